"""One put: its settings, and the writer of an open store. Java: CommitLog.asyncPutMessage.

Begin with `put.py`, then `store_writer.py`.
"""
