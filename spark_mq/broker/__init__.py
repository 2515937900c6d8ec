"""The broker's part of the put path: what it makes of a request, and what it answers. No sockets, no Spark.

Imports `storage`. Decisions are functions of values; `send.py` is the one place that runs them in Java's order and hands
what they made to the store. Begin with `send.py`.
"""
