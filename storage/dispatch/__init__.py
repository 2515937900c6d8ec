"""From the log into queues and index; also where an open store ends. Java: ReputMessageService, CommitLogDispatcher.

Begin with `writer.py`, then `queue_ends.py`.
"""
