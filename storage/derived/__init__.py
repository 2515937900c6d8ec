"""Entering appended records into queues and index, and syncing these. Java: ReputMessageService, CommitLogDispatcher.

Imports `ends`, `queues`, `index` and the rooms below them. Begin with `writer.py`.
"""
