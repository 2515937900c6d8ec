"""Exactly once: staged segments, the intent that decides, the ledger that remembers, and the completion after a crash.

Begin with `commit.py`, then `intent.py`.
"""
