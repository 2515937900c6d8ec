"""Consume queues: their list, their entries, their ends, and the messages that entries point to. Java: ConsumeQueue(Store).

Begin with `consume_queue.py`; `scan.py` reads messages in bulk.
"""
