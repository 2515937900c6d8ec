"""A server of RocketMQ's remoting protocol: sockets, TLS, queues of requests. Its owner decides what it answers.

    settings.py        addresses, limits and times, by Java's names
    pools.py           requests that wait their turn, and are refused when they wait too long
    processors.py      request code → who answers, and in which pool
    peer.py            one connection, as those who answer see it
    channel.py         one connection, as the event loop sees it
    shared.py          what all connections share: turns, room, answers that wait, requests that are not supported
    server.py          listeners, all connections, and TLS in three modes
    administration.py  what name server and controller share: how they answer, and what operators may change

Imports the remoting room, who somebody is (`access`), the client, the rules' response codes, and of `storage` what reads settings and
writes small files. Begin with `server.py`.
Java: NettyRemotingServer, NettyRemotingAbstract, BrokerFastFailure.
"""
