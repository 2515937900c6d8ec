"""Whose directory this is: what tells a store, which log is its own, and where this package may write beside it.

Asked before a byte is written. Imports `log`, `queues` and the rooms below them. Begin with `log_place.py`, the decision.
"""
