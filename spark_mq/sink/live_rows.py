"""Rows that are sent to running brokers: which columns they may have, and where their topic's route lets them go.

Rows are judged as those of a store are (`storage/rules/`), by the limits of Java's producer; what only a broker knows (its own
limits, a topic's kind) it says when the row comes. Java: Validators.checkMessage, MQClientInstance (topicRouteData2TopicPublishInfo).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_mq.client.errors import TopicRouteNotFoundError
from spark_mq.client.settings import with_namespace
from spark_mq.conditions import SinkModeError, SinkSchemaError
from spark_mq.remoting import MessageQueue
from spark_mq.sink.body_limits import BodyLimit
from spark_mq.sink.columns import (
    KAFKA_SINK_COLUMNS,
    LIVE_SEND_BACK_COLUMNS,
    SINK_COLUMNS,
    InputColumns,
    check_types,
    columns_sent_back,
    names_to_take,
    require_topic,
)
from spark_mq.sink.live_lanes import Routes
from spark_mq.sink.live_options import DEFAULT_GROUP, LiveSinkOptions
from spark_mq.sink.parking_places import MOST_LEVEL
from storage.errors import NameIllegalError
from storage.format.arrays import as_texts
from storage.names import retry_topic, validate_group, validate_topic, validate_user_topic
from storage.rules.half_messages import PREPARED, TransactionRules
from storage.rules.message_rows import KAFKA_COLUMNS, is_kafka
from storage.rules.retries import RetryRules
from storage.rules.row_columns import LEFT_COLUMNS
from storage.rules.row_rules import MessageRules, TopicTarget
from storage.rules.topics import AUTO_CREATE_TOPIC

QueuesOf = Callable[[str], tuple[MessageQueue, ...]]
"""The queues of a topic that may be written, as brokers name it: by broker's name, then by number."""
LimitOf = Callable[[str], BodyLimit]
"""How large a body the topic's brokers take."""

DELAY_COLUMNS = ("delay_level", "deliver_at")
SINGLE_COLUMNS = (*DELAY_COLUMNS, "retry_group")
"""Rows that say something in these may have to go alone."""
_ENDS = "a half message lies in a system topic, where exactlyOnce does not look for it; say guarantee=atLeastOnce"
_NOT_EXACTLY_ONCE = dict.fromkeys(("transaction_state", "producer_group"), _ENDS)
_LEFT = ("born_timestamp",)
"""A message is born when it is sent, as one of Java's producer."""
_SENT_BACK = ("topic", "msg_id")
_OFTEN = 2**31 - 1


def columns_to_send(schema: StructType, options: LiveSinkOptions, *, mode: str) -> InputColumns:
    """What to take of a frame's rows. Raises SinkModeError for a mode but append, SinkSchemaError for a column that cannot be sent,
    that nobody knows, or whose type does not fit.
    """
    if mode != "append":
        raise SinkModeError(mode)
    for name, rule in _NOT_EXACTLY_ONCE.items() if options.is_exact else ():
        if name in schema.names:
            raise SinkSchemaError(name, rule)
    if options.send_back:
        return columns_sent_back(schema, LIVE_SEND_BACK_COLUMNS, _SENT_BACK)
    kafka = is_kafka(schema.names)
    taken = KAFKA_SINK_COLUMNS if kafka else {name: one for name, one in SINK_COLUMNS.items() if name not in _LEFT}
    left = KAFKA_COLUMNS if kafka else (*LEFT_COLUMNS, *_LEFT)
    check_types(schema, taken, left, needed="value" if kafka else "body")
    names = names_to_take(schema.names, taken, options)
    require_topic(names, options.topic)
    return InputColumns(names, kafka)


def with_group_namespaces(rows: pa.RecordBatch, namespace: str | None) -> pa.RecordBatch:
    """The rows with their producer groups as brokers name them."""
    if namespace is None or "producer_group" not in rows.schema.names:
        return rows
    place = rows.schema.get_field_index("producer_group")
    encoded = as_texts(rows.column(place)).dictionary_encode()
    names = pa.array([with_namespace(namespace, name) for name in encoded.dictionary.to_pylist()], pa.large_string())
    return rows.set_column(place, "producer_group", names.take(encoded.indices))


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRules(MessageRules):
    """The rules of rows for a cluster: a topic has the queues that its route shows, one after another over all brokers."""

    queues_of: QueuesOf
    limit_of: LimitOf
    namespace: str | None = None

    @property
    def leading(self) -> Mapping[str, str]:
        """What a client says of a half. All else that it says stands in the request, and a broker adds its own."""
        return {} if self.transaction is None else {PREPARED: "true"}

    def target(self, topic: str | None) -> TopicTarget:
        """What is to be known of the topic that a row names; its name is the brokers', with the namespace."""
        name = self.topic if topic is None else topic
        if name is None:
            return TopicTarget("", refusal="it is null, and the option topic is not given")
        try:
            known = validate_topic(with_namespace(self.namespace, validate_user_topic(name)))
        except NameIllegalError as error:
            return TopicTarget(name, refusal=error.describe())
        return self._routed(known)

    def max_reconsume_times(self, group: str) -> int:
        """No row is a dead letter here: its broker decides, by the group's entry or the option maxReconsumeTimes."""
        return _OFTEN

    def retry_target(self, group: str, is_dead: bool) -> TopicTarget:
        """The group's retry topic, whose broker makes a dead letter of what was tried too often."""
        if is_dead:
            return TopicTarget("")
        try:
            known = validate_topic(retry_topic(with_namespace(self.namespace, validate_group(group))))
        except NameIllegalError as error:
            return TopicTarget("", refusal=error.describe())
        return self._routed(known)

    def _routed(self, known: str) -> TopicTarget:
        try:
            count = len(self.queues_of(known))
        except TopicRouteNotFoundError as error:
            if error.topic == AUTO_CREATE_TOPIC:  # no broker is there at all
                raise
            return TopicTarget(known, refusal=error.describe())
        limit = self.limit_of(known)
        return TopicTarget(
            known,
            queue_count=count,
            queue_limit=count,
            there_count=count,
            is_fixed=True,
            max_message_size=limit.size_bytes,
            size_cure=limit.cure,
            log_file_size=limit.log_file_size,
        )


def route_rules(options: LiveSinkOptions, routes: Routes, row_mark: str | None = None) -> RouteRules:
    """The rules for the rows of a task."""
    group = (
        None if options.producer_group == DEFAULT_GROUP else with_namespace(options.namespace, options.producer_group)
    )
    return RouteRules(
        queues_of=routes.queues_of,
        limit_of=routes.body_limit,
        namespace=options.namespace,
        topic=options.topic,
        compress_body_over=options.compress_body_over,
        keep_unique_key=options.keep_unique_key,
        strict_properties=options.strict_properties,
        is_sent=True,
        row_mark=row_mark,
        most_level=MOST_LEVEL if options.is_exact else None,
        transaction=TransactionRules(group) if options.transactional else None,
        retries=RetryRules(max_reconsume_times=options.max_reconsume_times),
    )
