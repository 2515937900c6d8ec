"""Replication of a log between stores: sessions without sockets, and listener and follower, which have them. Java: HAService.

Imports `service`, the facade, `put`, `log`, `place`, `settings`, `files` and `format`.
Begin with `sessions.py`, then `follower.py`.
"""
