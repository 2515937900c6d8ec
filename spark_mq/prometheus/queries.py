"""Metrics by names of this package, because RocketMQ has none for them: of Spark's streaming queries, of `spark-mq exporter`, and what
a broker's own page lacks.
"""

from __future__ import annotations

from spark_mq.prometheus.metric import Kind, Metric

_QUERY = ("query", "query_id")


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"spark_mq_{name}", Kind.GAUGE, text, labels)


QUERY_ACTIVE = _gauge("query_active", "1 while the query runs", *_QUERY)
QUERY_BATCH_ID = _gauge("query_batch_id", "Number of the last batch", *_QUERY)
QUERY_INPUT_RATE = _gauge("query_input_rows_per_second", "Rows that came a second, in the last batch", *_QUERY)
QUERY_ROW_RATE = _gauge("query_processed_rows_per_second", "Rows that were read a second, in the last batch", *_QUERY)
QUERY_BYTE_RATE = _gauge(
    "query_processed_bytes_per_second", "Bytes of records that were read a second, in the last batch", *_QUERY
)
QUERY_LAG_ROWS = _gauge("query_lag_rows", "Messages that the query has not read", *_QUERY)
QUERY_LAG_BYTES = _gauge("query_lag_bytes", "Bytes of the records that the query has not read", *_QUERY)
QUERY_OLDEST = _gauge("query_oldest_unread_seconds", "Age of the oldest message that the query has not read", *_QUERY)
QUERY_FAILURES = Metric(
    "spark_mq_query_failures_total", Kind.COUNTER, "Ends of the query by an error", (*_QUERY, "condition")
)

LAG_BYTES = _gauge(
    "consumer_lag_bytes", "Bytes of the records that a group has not consumed; of stores", "consumer_group", "topic"
)
LAG_UNKNOWN = _gauge(
    "consumer_lag_unknown_queues",
    "Queues of a topic in which the group's offset is unknown, or ahead of the queue",
    "consumer_group",
    "topic",
)
EXPORTER_UP = _gauge("exporter_up", "1 if the last look at the brokers or stores found all of them")
EXPORTER_REQUESTS = _gauge("exporter_look_requests", "Requests to brokers and name servers of the last look")
EXPORTER_SECONDS = _gauge("exporter_look_seconds", "Duration of the last look")

GAUGES_MISSING = _gauge(
    "broker_gauges_missing", "Values of a part of the broker's gauges that could not be had", "part"
)

QUERY_METRICS: tuple[Metric, ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, Metric) and value.name.startswith("spark_mq_query_")
)
EXPORTER_METRICS: tuple[Metric, ...] = (LAG_BYTES, LAG_UNKNOWN, EXPORTER_UP, EXPORTER_REQUESTS, EXPORTER_SECONDS)
