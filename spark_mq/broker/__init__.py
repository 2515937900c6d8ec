"""A broker without sockets: it handles each request, makes the answer, and collects events for clients. No Spark.

    broker.py           one object that answers any request of any client, and gives events for the server
    broker_store.py     topics, groups, settings and reads of its store; what only the server around it knows
    request_table.py    each request: typed header, pool, permissions that it needs
    …_handlers.py       requests by subject; `pull.py` and `send.py` run the checks of pulls and sends in Java's order
    client_tables.py, held_pulls.py, group_offsets.py    state of clients, as tables with time as an argument

Begin with `broker.py`.
"""
