"""The name server: knows all brokers, and the brokers that hold a topic's queues.

    tables.py              the tables; texts by namespace and key, and their file
    registration.py        a broker registers (103) and leaves: by request, by silence, or with its connection; limits
    settings.py            settings of the configuration file
    name_server.py         request code → handler, with the caller; routes (105) and names of topics; no sockets
    server.py              the server around it, with sockets and a clock

Begin with `name_server.py`. Java: the module namesrv.
"""
