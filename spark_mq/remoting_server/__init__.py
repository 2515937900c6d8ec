"""A server of RocketMQ's remoting protocol. What it answers is the business of whoever makes it.

    settings.py     addresses, limits and times, by Java's names

Imports the words and `storage/settings`. Begin with `settings.py`. Java: NettyRemotingServer, NettyServerConfig.
"""
