"""From the log into queues and index; also where an open store ends. Java: ReputMessageService, CommitLogDispatcher.

Imports `log`, `queues`, `index`, `tables` and the rooms below them. Begin with `writer.py`, then `queue_ends.py`.
"""
