"""A sink's batch on its way to the process that has the store open: the sink's own commit, or a broker of ours on the same machine.

    messages.py       what a commit does on an open store; how a staged batch is handed over, and its outcome or error comes back;
                      likewise the position of a query that reads beside the broker, as its consumer group's
    local_socket.py   the sockets under ROOT/spark_mq: where they are, whose they are, frames on them

The rows lie on the disk already, in segments below ROOT/spark_mq/staged; a message names them. Imports the engine. Begin with
`messages.py`; the broker's side is `spark_mq/broker_server/batch_server.py`, the sink's `hand_over` in
`spark_mq/sink/commit.py`.
"""
