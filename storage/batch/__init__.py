"""Exactly once: staged segments, the intent that decides, the ledger that remembers, and the completion after a crash.

Imports `put` and the rooms below it. Begin with `commit.py`, then `redo.py`.
"""
