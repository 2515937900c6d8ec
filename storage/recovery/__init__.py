"""Opening, recovering, quarantining, making and verifying a store. Java: DefaultMessageStore.load and recover.

Begin with `passes.py`, then `opening.py`.
"""
