"""The commit log: reading, appending, placing, walking, syncing, and the records' data for derived files. Java: CommitLog.

Imports `files`, `format` and `settings`. Begin with `commit_log.py`, then `dispatch.py`.
"""
