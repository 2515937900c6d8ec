"""Opening, recovering, quarantining and making a store. Java: DefaultMessageStore.load and recover.

Imports `batch`, `put`, `ends` and the rooms below them. Begin with `passes.py`, then `opening.py`.
"""
