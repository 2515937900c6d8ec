"""The Spark source: options, planning, reading, lag. Spark: KafkaMicroBatchStream and what is around it.

Begin with `stream_reader.py`, then `queue_split.py`.
"""
