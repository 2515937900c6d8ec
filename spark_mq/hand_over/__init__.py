"""Hands a sink's batch to the process that has the store open: the sink's own commit, or a spark_mq broker on the same machine.

    messages.py       the commit on an open store; messages that hand over a staged batch and return its outcome or error; the same
                      for the position of a query that reads the broker's store, as its consumer group's
    local_socket.py   the sockets under ROOT/spark_mq: paths, owners, frames

The rows are already on disk, in segments below ROOT/spark_mq/staged; a message names them. Begin with
`messages.py`; the broker's side is `spark_mq/broker_server/batch_server.py`, the sink's `hand_over` in
`spark_mq/sink/commit.py`.
"""
