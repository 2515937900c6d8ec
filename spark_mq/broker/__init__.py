"""A broker without its sockets: what it makes of each request, what it answers, whom it tells. No Spark.

    broker.py           one object that answers any request of any client, and gives events for the server
    broker_store.py     topics, groups, settings and reads of its store; what only the server around it knows
    request_table.py    each request: typed header, pool, what access control asks for
    …_handlers.py       requests by what they are about; `pull.py` and `send.py` run the checks of pulls and sends in Java's order
    client_tables.py, held_pulls.py, group_offsets.py    what is known of clients, as tables with time as an argument

Imports `storage` and `remoting`. Begin with `broker.py`.
"""
