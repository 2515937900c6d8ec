"""The Spark sink: options, rows into staged segments, the commit. Spark: KafkaStreamingWrite.

Imports `storage`, `spark_mq.broker` and, for what both need, `spark_mq.source`. Begin with `batch_writer.py`, then `commit.py`.
"""
