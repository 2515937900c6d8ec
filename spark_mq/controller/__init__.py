"""The controller: which of a name's brokers is master, which are in sync with it, and who follows when it is gone.

    state.py               what it knows for good, changed by events alone; events as values and bytes; who was heard last when
    decisions.py           what comes of a request: who gets which id, who is in sync, who becomes master; pure
    settings.py            what the configuration file says
    controller.py          request code → handler; no sockets
    journal.py             the decisions on disk, and what a crash leaves of them
    server.py              the server around it, which alone has sockets and a clock

Imports the remoting rooms, and of `storage` what writes small files.
Begin with `controller.py`. Java: the module controller. A single node: no Raft.
"""
