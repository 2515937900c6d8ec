"""The controller: decides which of a name's brokers is master, which are in sync with it, and which one is the next master.

    state.py               the durable state, changed by events alone; events as values and bytes; times of heartbeats
    decisions.py           decisions by request: ids, brokers in sync, the master; pure
    settings.py            settings of the configuration file
    controller.py          request code → handler; no sockets
    journal.py             the decisions on disk, and recovery after a crash
    quorum.py              the same as entries of a log that several controllers have
    server.py              the server around it, with sockets and a clock

Begin with `controller.py`. Java: the module controller, without its JRaft.
"""
