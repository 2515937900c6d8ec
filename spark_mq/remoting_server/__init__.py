"""A server of RocketMQ's remoting protocol: sockets, TLS, queues of requests. Its owner supplies the handlers.

    settings.py        addresses, limits and times, by Java's names
    pools.py           requests that wait for a thread, and are refused when they wait too long
    peer.py            one connection, as handlers see it; answers that wait without a thread
    channel.py         one connection, as the event loop sees it; turns and memory of all connections
    server.py          listeners, all connections, and TLS in three modes
    member_lines.py    a DLedger member's requests to the others, and theirs
    administration.py  shared by name server and controller: answers, and settings that operators may change

Begin with `server.py`.
Java: NettyRemotingServer, NettyRemotingAbstract, BrokerFastFailure.
"""
