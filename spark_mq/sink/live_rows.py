"""Rows that are sent to running brokers: which columns they may have, and where their topic's route lets them go.

Rows are judged as those of a store are (`storage/rows/`), by the limits of Java's producer; what only a broker knows (its own
limits, a topic's kind) it says when the row comes. Java: Validators.checkMessage, MQClientInstance (topicRouteData2TopicPublishInfo).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from spark_mq.client.errors import TopicRouteNotFoundError
from spark_mq.client.namespaces import with_namespace
from spark_mq.client.routes import DEFAULT_TOPIC
from spark_mq.conditions import SinkModeError, SinkSchemaError
from spark_mq.remoting import MessageQueue
from spark_mq.sink.columns import KAFKA_SINK_COLUMNS, SINK_COLUMNS, InputColumns, check_types
from spark_mq.sink.live_options import LiveSinkOptions
from storage.errors import NameIllegalError
from storage.names import validate_topic, validate_user_topic
from storage.rows import kafka as kafka_rows
from storage.rows.rules import MessageRules, TopicTarget
from storage.rows.schema import LEFT_COLUMNS

QueuesOf = Callable[[str], tuple[MessageQueue, ...]]
"""The queues of a topic that may be written, as brokers name it: by broker's name, then by number."""

DELAY_COLUMNS = ("delay_level", "deliver_at")
_NOT_EXACTLY_ONCE = (
    "a row that waits lies in a system topic, where exactlyOnce does not look for it; say guarantee=atLeastOnce"
)
_REFUSED = {
    "retry_group": "rows for a retry topic are not sent to running brokers",
    "transaction_state": "transactions are not sent to running brokers",
    "producer_group": "transactions are not sent to running brokers",
}
_LEFT = ("born_timestamp", "reconsume_times", "origin_msg_id")
"""A message is born when it is sent, as one of Java's producer."""


def columns_to_send(schema: StructType, options: LiveSinkOptions, *, mode: str) -> InputColumns:
    """What to take of a frame's rows. Raises SinkModeError for a mode but append, SinkSchemaError for a column that cannot be sent,
    that nobody knows, or whose type does not fit.
    """
    if mode != "append":
        raise SinkModeError(mode)
    for name, rule in _REFUSED.items():
        if name in schema.names:
            raise SinkSchemaError(name, f"{rule}; write them to a store (path)")
    for name in DELAY_COLUMNS if options.is_exact else ():
        if name in schema.names:
            raise SinkSchemaError(name, _NOT_EXACTLY_ONCE)
    kafka = kafka_rows.is_kafka(schema.names)
    taken = KAFKA_SINK_COLUMNS if kafka else {name: one for name, one in SINK_COLUMNS.items() if name not in _LEFT}
    left = kafka_rows.COLUMNS if kafka else (*LEFT_COLUMNS, *_LEFT)
    check_types(schema, taken, left, needed="value" if kafka else "body")
    names = (name for name in schema.names if name in taken and (name != "unique_key" or options.keep_unique_key))
    return InputColumns(tuple(names), kafka)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRules(MessageRules):
    """The rules of rows for a cluster: a topic has the queues that its route shows, one after another over all brokers."""

    queues_of: QueuesOf
    namespace: str | None = None

    @property
    def leading(self) -> Mapping[str, str]:
        """Nothing: what a client says besides stands in the request, and a broker adds its own."""
        return {}

    def target(self, topic: str | None) -> TopicTarget:
        """What is to be known of the topic that a row names; its name is the brokers', with the namespace."""
        name = self.topic if topic is None else topic
        if name is None:
            return TopicTarget("", refusal="it is null, and the option topic is not given")
        try:
            known = validate_topic(with_namespace(self.namespace, validate_user_topic(name)))
            count = len(self.queues_of(known))
        except NameIllegalError as error:
            return TopicTarget(name, refusal=error.describe())
        except TopicRouteNotFoundError as error:
            if error.topic == DEFAULT_TOPIC:  # no broker is there at all
                raise
            return TopicTarget(name, refusal=error.describe())
        return TopicTarget(known, queue_count=count, queue_limit=count, there_count=count, is_fixed=True)


def route_rules(options: LiveSinkOptions, queues_of: QueuesOf, row_mark: str | None = None) -> RouteRules:
    """The rules for the rows of a task."""
    return RouteRules(
        queues_of=queues_of,
        namespace=options.namespace,
        topic=options.topic,
        compress_body_over=options.compress_body_over,
        keep_unique_key=options.keep_unique_key,
        strict_properties=options.strict_properties,
        is_sent=True,
        row_mark=row_mark,
    )
