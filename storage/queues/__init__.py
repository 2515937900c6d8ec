"""Consume queues: their list, their entries, their ends, and the messages that entries point to. Java: ConsumeQueue(Store).

Imports `log` and the rooms below it. Begin with `consume_queue.py`; `scan.py` reads messages in bulk.
"""
