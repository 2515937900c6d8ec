"""A server of RocketMQ's remoting protocol: sockets, TLS, queues of requests. What it answers is the business of whoever makes it.

    settings.py        addresses, limits and times, by Java's names
    tls.py             TLS in three modes
    pools.py           requests that wait their turn, and are refused when they wait too long
    processors.py      request code → who answers, and in which pool
    peer.py            one connection, as those who answer see it
    channel.py         one connection, as the event loop sees it
    arrivals.py        sockets that were accepted and have not said yet whether they speak TLS
    server.py          listeners, and all connections
    administration.py  what operators may do to a server that keeps no users
    notices.py         one word to a broker that has not asked

Imports the remoting room, who somebody is (`access`), the client, the rules' response codes, and of `storage` what reads settings and
writes small files. Begin with `server.py`.
Java: NettyRemotingServer, NettyRemotingAbstract, BrokerFastFailure.
"""
