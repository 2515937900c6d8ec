"""Opening, recovering, quarantining, making and verifying a store. Java: DefaultMessageStore.load and recover.

Imports `batch`, `put`, `dispatch` and the rooms below them. Begin with `passes.py`, then `opening.py`.
"""
