"""A broker that runs: sockets, threads and clocks around `broker.Broker`, and its word to name servers.

    settings.py       what a broker.conf says of the process: addresses, name servers, TLS
    name_servers.py   what it says to name servers, and what it asks them
    opening.py        its store, opened in its role, and served to slaves
    batch_server.py   batches that Spark's sink hands over on this machine, beside the requests
    duties.py         what a broker does by itself: delays, transaction checks, retention, offsets onto the disk
    server.py         listeners and pools; requests to `Broker`, its answers and events to connections
    supervised.py     all of it closed and started anew when the store has failed; `controlled.py` does so under a controller

Imports the broker, the server of the remoting protocol and the client (towards name servers). Begin with `server.py`.
Java: BrokerController, BrokerOuterAPI.
"""
