"""The commit log: reading, appending, placing, walking, syncing, and what a record says to what is derived. Java: CommitLog.

Imports `files`, `format` and `settings`. Begin with `commit_log.py`, then `dispatch.py`.
"""
