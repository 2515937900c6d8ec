"""The metrics of a broker, by the names, types and labels that Apache's broker serves with metricsExporterType=PROM.

Java: BrokerMetricsConstant, RemotingMetricsConstant, DefaultStoreMetricsConstant, and the managers that make the instruments (5.3.3).
OpenTelemetry appends a unit to the name: `rocketmq_consumer_lag_latency` is served as `rocketmq_consumer_lag_latency_milliseconds`.
Two names do not say the unit of their values, in Java and so here: `rocketmq_finish_message_latency_milliseconds` and
`rocketmq_timer_dequeue_latency_milliseconds` are in seconds.
Not supported: the metrics of POP, of RocksDB and of tiered storage (docs/metrics.md).
"""

from __future__ import annotations

from spark_mq.prometheus.metric import Kind, Metric

SCOPE = "broker-meter"
"""Value of the label otel_scope_name. Java: OPEN_TELEMETRY_METER_NAME."""

_KIB, _MIB = 1_024.0, 1_048_576.0
_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0
_STORAGE = (("storage_type", "local"), ("storage_medium", "disk"))
_REMOTING = (("protocol_type", "remoting"),)
_IN = ("topic", "message_type", "is_system")
_OUT = ("topic", "consumer_group", "is_system")
_OF_GROUP = ("consumer_group", "topic", "is_retry", "is_system")
_CREATE_MS = (10.0, 100.0, 1_000.0, 3_000.0, 5_000.0)


def _counter(name: str, text: str, *labels: str, fixed: tuple[tuple[str, str], ...] = ()) -> Metric:
    return Metric(f"rocketmq_{name}", Kind.COUNTER, text, labels, fixed=fixed)


def _gauge(name: str, text: str, *labels: str, fixed: tuple[tuple[str, str], ...] = ()) -> Metric:
    return Metric(f"rocketmq_{name}", Kind.GAUGE, text, labels, fixed=fixed)


def _histogram(
    name: str, text: str, bounds: tuple[float, ...], *labels: str, fixed: tuple[tuple[str, str], ...] = ()
) -> Metric:
    return Metric(f"rocketmq_{name}", Kind.HISTOGRAM, text, labels, bounds, fixed)


# The broker

PROCESSOR_WATERMARK = _gauge("processor_watermark", "Requests that wait for a pool", "processor")
BROKER_PERMISSION = _gauge("broker_permission", "Broker permission")
TOPIC_NUMBER = _gauge("topic_number", "Number of topics")
CONSUMER_GROUP_NUMBER = _gauge("consumer_group_number", "Number of consumer groups")

# Messages in and out

MESSAGES_IN = _counter("messages_in_total", "Messages that were stored", *_IN)
THROUGHPUT_IN = _counter("throughput_in_total", "Bytes of the records of messages that were stored", *_IN)
MESSAGE_SIZE = _histogram(
    "message_size",
    "Bytes of a stored message's record; of a batch, the mean of its messages",
    (_KIB, 4 * _KIB, 512 * _KIB, _MIB, 2 * _MIB, 4 * _MIB),
    *_IN,
)
MESSAGES_OUT = _counter("messages_out_total", "Messages that consumers have pulled", *_OUT)
THROUGHPUT_OUT = _counter("throughput_out_total", "Bytes of the records that consumers have pulled", *_OUT)
TOPIC_CREATION = _histogram(
    "topic_create_execution_time_milliseconds",
    "Duration of a request that creates or changes topics",
    _CREATE_MS,
    "invocation_status",
    "is_system",
)
GROUP_CREATION = _histogram(
    "consumer_group_create_execution_time_milliseconds",
    "Duration of a request that creates or changes consumer groups",
    _CREATE_MS,
    "invocation_status",
)

# Clients

PRODUCER_CONNECTIONS = _gauge(
    "producer_connections", "Connections of producers", "language", "version", fixed=_REMOTING
)
CONSUMER_CONNECTIONS = _gauge(
    "consumer_connections",
    "Connections of consumers",
    "consumer_group",
    "language",
    "version",
    "consume_mode",
    "is_system",
    fixed=_REMOTING,
)

# Lag

LAG_MESSAGES = _gauge("consumer_lag_messages", "Messages that a group has not consumed", *_OF_GROUP)
LAG_LATENCY = _gauge(
    "consumer_lag_latency_milliseconds", "Age of the oldest message that a group has not consumed", *_OF_GROUP
)
INFLIGHT_MESSAGES = _gauge("consumer_inflight_messages", "Messages pulled by a group and not consumed", *_OF_GROUP)
QUEUEING_LATENCY = _gauge(
    "consumer_queueing_latency_milliseconds", "Age of the oldest message that a group has not pulled", *_OF_GROUP
)
READY_MESSAGES = _gauge("consumer_ready_messages", "Messages that a group has not pulled", *_OF_GROUP)
DEAD_LETTERS = _counter(
    "send_to_dlq_messages_total", "Messages that became dead letters", "consumer_group", "topic", "is_system"
)

# Transactions

COMMITTED = _counter("commit_messages_total", "Transactions that were committed", "topic")
ROLLED_BACK = _counter("rollback_messages_total", "Transactions that were rolled back", "topic")
FINISH_LATENCY = _histogram(
    "finish_message_latency_milliseconds",
    "Seconds from the birth of a half message to its commit",
    (5.0, _MINUTE, 10 * _MINUTE, _HOUR, 12 * _HOUR, _DAY),
    "topic",
)
HALF_MESSAGES = _gauge("half_messages", "Half messages without an end", "topic")

# Requests

RPC_LATENCY = _histogram(
    "rpc_latency_milliseconds",
    "Duration of a request, from its arrival to its answer",
    (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1_000.0, 2_000.0, 3_000.0),
    "request_code",
    "response_code",
    "is_long_polling",
    "result",
    fixed=_REMOTING,
)

# The store

STORAGE_SIZE = _gauge("storage_size_bytes", "Used bytes of the disk that the store lies on", fixed=_STORAGE)
FLUSH_BEHIND = _gauge("storage_flush_behind_bytes", "Appended bytes that are not on the disk yet", fixed=_STORAGE)
DISPATCH_BEHIND = _gauge("storage_dispatch_behind_bytes", "Appended bytes that are in no queue yet", fixed=_STORAGE)
RESERVE_TIME = _gauge(
    "storage_message_reserve_time_milliseconds", "Age of the oldest message in the log", fixed=_STORAGE
)

# The timer

TIMER_ENQUEUE_LAG = _gauge("timer_enqueue_lag", "Timed messages that the wheel does not have yet", fixed=_STORAGE)
TIMER_ENQUEUE_LATENCY = _gauge(
    "timer_enqueue_latency_milliseconds", "Age of the oldest timed message that the wheel does not have", fixed=_STORAGE
)
TIMER_DEQUEUE_LAG = _gauge("timer_dequeue_lag", "Timed messages that wait in the wheel", fixed=_STORAGE)
TIMER_DEQUEUE_LATENCY = _gauge(
    "timer_dequeue_latency_milliseconds", "Seconds by which deliveries of timed messages are late", fixed=_STORAGE
)
TIMING_MESSAGES = _gauge("timing_messages", "Timed messages that wait", "topic", fixed=_STORAGE)
TIMER_SNAPSHOT = _gauge(
    "timer_message_snapshot",
    "Timed messages that are due within so many seconds, and later than the bound before",
    "timer_bound_s",
    fixed=_STORAGE,
)
TIMER_ENQUEUED = _counter("timer_enqueue_total", "Timed messages that the wheel was given", "topic", fixed=_STORAGE)
TIMER_DEQUEUED = _counter("timer_dequeue_total", "Timed messages that have left the wheel", "topic", fixed=_STORAGE)
DELAY_LATENCY = _histogram(
    "delay_message_latency_seconds",
    "Seconds from the birth of a timed message to its deliver time",
    (_MINUTE, 10 * _MINUTE, _HOUR, 12 * _HOUR, _DAY, 3 * _DAY),
    "topic",
    fixed=_STORAGE,
)
TIMER_BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
"""Java: TimerMetrics.timerDist."""

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All of them."""
ABSENT = (
    "rocketmq_pop_",
    "rocketmq_rocksdb_",
    "rocketmq_tiered_store_",
)
"""How names of Apache's begin that no page of ours has."""
