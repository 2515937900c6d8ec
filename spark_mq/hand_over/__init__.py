"""A sink's batch on its way to whoever has the store open: a commit of the sink's own, or a broker of ours on the same machine.

    staged_commit.py  what a commit does on an open store, whoever has it open
    local_socket.py   the broker's socket under ROOT/spark_mq: where it is, whose it is, frames on it
    messages.py       what is said over it: a staged batch there, its outcome or error back
    group_offsets.py  likewise the position of a query that reads beside the broker, as its consumer group's

The rows lie on the disk already, in segments below ROOT/spark_mq/staged; a message names them. Imports the engine. Begin with
`staged_commit.py`; the broker's side is `spark_mq/broker_server/batch_server.py`, the sink's `hand_over` in
`spark_mq/sink/commit.py`.
"""
