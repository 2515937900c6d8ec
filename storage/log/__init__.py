"""The commit log: reading, appending, placing, walking, syncing, and the records' data for derived files. Java: CommitLog.

Begin with `commit_log.py`, then `dispatch.py`.
"""
