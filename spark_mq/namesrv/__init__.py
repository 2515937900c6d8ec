"""The name server: which brokers there are, and at which of them a topic's queues lie.

    tables.py              the tables, as they stand; texts by namespace and key, and their file
    registration.py        a broker comes (103) and goes: it says so, is silent, or its connection closes; how much of it all is taken
    settings.py            what the configuration file says
    name_server.py         request code → handler, by who asks; routes (105) and names of topics; no sockets
    server.py              the server around it, which alone has sockets and a clock

Imports the remoting rooms, and of `storage` what keeps small files. Begin with `name_server.py`. Java: the module namesrv.
"""
