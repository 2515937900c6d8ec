"""Where an open store ends: found by opening, followed while others write, kept for the next who opens it.

Imports `log`, `queues`, `index` and `tables`. Begin with `recovery_plan.py`, then `queue_ends.py`.
"""
