"""A running broker: sockets, threads and clocks around `broker.Broker`, and its registration at name servers.

    settings.py       settings of the process in broker.conf: addresses, name servers, TLS
    name_servers.py   requests to name servers
    opening.py        opens the store in its role, and serves it to slaves
    batch_server.py   batches that Spark's sink hands over on this machine
    duties.py         periodic duties: delays, transaction checks, retention, writing of offsets
    following.py      duties of a slave: the log (`storage/ha`), and its master's state files (`state_copies.py`, `masters.py`)
    server.py         listeners and pools; passes requests to `Broker`, and its answers and events to connections
    supervised.py     closes and restarts everything when the store has failed; `controlled.py` does so under a controller

Begin with `server.py`.
Java: BrokerController, BrokerOuterAPI.
"""
