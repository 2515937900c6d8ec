"""Replication of a log between stores: sessions without sockets, and listener and follower, which have them. Java: HAService.

Begin with `sessions.py`, then `follower.py`.
"""
