"""The Spark sink: options, rows into staged segments, the commit; or rows to running brokers. Spark: KafkaStreamingWrite.

Imports `storage`, `spark_mq.broker`, `spark_mq.client` and, for what both need, `spark_mq.source`. Begin with `writers.py`, then
`commit.py`; for running brokers with `live_sink.py`, then `exact_commit.py`.
"""
