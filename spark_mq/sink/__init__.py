"""The Spark sink: options, rows into staged segments, the commit; or rows to running brokers. Spark: KafkaStreamingWrite.

Begin with `writers.py`, then
`commit.py`; for running brokers with `live_sink.py`, then `exact_commit.py`.
"""
