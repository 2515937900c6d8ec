"""The controller: which of a name's brokers is master, which are in sync with it, and who follows when it is gone.

    state.py               what it knows for good, changed by events alone
    events.py              what was decided, as values and bytes
    liveness.py            who was heard of last when
    election.py            who becomes master (1002)
    sync_state.py          who is in sync (1001, 1004, 1006)
    decided.py             what comes of a request: events and an answer
    settings.py            what the configuration file says
    controller.py          request code → handler; ids of brokers (1012, 1013, 1003), brokers are forgotten (1011), limits; no sockets
    journal.py             the decisions on disk, and what a crash leaves of them
    server.py              the server around it, which alone has sockets and a clock

Imports the remoting rooms, the client, and of `storage` what writes small files.
Begin with `controller.py`. Java: the module controller. A single node: no Raft.
"""
