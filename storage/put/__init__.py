"""One put: its settings, and the writer of an open store. Java: CommitLog.asyncPutMessage.

Imports `derived`, `rows`, `messages` and the rooms below them. Begin with `put.py`, then `store_writer.py`.
"""
