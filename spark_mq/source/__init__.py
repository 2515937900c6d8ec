"""The Spark source: options, planning, reading, lag. Spark: KafkaMicroBatchStream and what is around it.

Imports `storage` and the named errors. Begin with `stream_reader.py`, then `queue_split.py`.
"""
