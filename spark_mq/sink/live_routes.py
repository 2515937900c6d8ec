"""Routes and limits of running brokers: the queues of topics, the addresses of brokers, the largest row, and the rules for rows.

Rows are checked by the same rules as rows for a store (`storage/rules/`), with the limits of Java's producer. Rules that only a broker
can check (a topic's kind) are checked by the broker's answer. The largest row, and so the largest batch, depends on each broker of the
topic:

    the broker says it (request 26)      its maxMessageSize, or the option maxMessageSize if that is lower
    it does not (ACL, a proxy, silence)  the option maxMessageSize, else Java's default of 4 MiB
    a topic of several brokers           the lowest of them
    always                               what a frame of 16 MiB carries

A process asks a broker once, and again after half a minute; if a broker is away or silent twice, each task asks it. The broker
checks the body as it is stored, after compression, and a batch by all of its bytes. Java's broker acknowledges a message that is larger
than a file of its log (mappedFileSizeCommitLog) and does not store it: CommitLog.asyncPutMessage takes a second END_OF_FILE for
PUT_OK. So the file's size is a limit here.

Java: Validators.checkMessage, MQClientInstance (topicRouteData2TopicPublishInfo), MessageExtEncoder.encode, MessageStoreConfig.
Departure: Java's producer knows its own setting alone, and judges a body before it compresses it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import pyarrow as pa

from spark_mq.client.calls import make_call, may_pass, patiently
from spark_mq.client.errors import (
    BrokerNotFoundError,
    BrokerUnreachableError,
    ClientError,
    MessageQueueNotFoundError,
    RequestTimeoutError,
    TopicRouteNotFoundError,
    request_text,
    response_error,
)
from spark_mq.client.event_loop import run
from spark_mq.client.instance import ClientInstance
from spark_mq.client.routes import LOGICAL_PREFIX
from spark_mq.client.settings import ClientSettings, with_namespace
from spark_mq.remoting import MessageQueue, RequestCode
from spark_mq.remoting.frames import MOST_BODY_BYTES
from spark_mq.sink.options import DEFAULT_GROUP, LiveSinkOptions
from spark_mq.sink.send_plan import MOST_LEVEL
from spark_mq.sink.sends import DEFAULT_TOPIC_QUEUE_COUNT
from storage.errors import NameIllegalError
from storage.format.arrays import as_texts
from storage.names import MASTER_ID, in_one_form, retry_topic, validate_group, validate_topic, validate_user_topic
from storage.rules.half_messages import PREPARED, TransactionRules
from storage.rules.inner_messages import MAX_MESSAGE_SIZE
from storage.rules.response_codes import ResponseCode
from storage.rules.retries import RetryRules
from storage.rules.row_rules import MessageRules, TopicTarget
from storage.rules.topics import AUTO_CREATE_TOPIC

ASK_INTERVAL_S = 30.0
_SETTING = re.compile(rb"^(maxMessageSize|mappedFileSizeCommitLog)=([0-9]{1,10})\s*$", re.MULTILINE)
_ADDED_BYTES = 1_024
"""Properties that a broker adds to a record, at most: cluster, region, trace, and those of a delay."""
_RECORDS_OVER_ITEMS = 8


class BodyLimit(NamedTuple):
    """The largest body, as stored."""

    size_bytes: int
    cure: str
    """The owner of the limit, and how to raise it; for texts."""
    log_file_size: int | None = None
    """The smallest file of a broker's log, less what the broker adds to a record; None = none is known."""

    @property
    def batch_bytes(self) -> int:
        """The largest batch: its records are up to eight times as large as its items, and lie in one file."""
        most = self.size_bytes
        return most if self.log_file_size is None else min(most, self.log_file_size // _RECORDS_OVER_ITEMS)


class KnownLimits(NamedTuple):
    """Limits from a broker's configuration."""

    max_message_size: int | None
    reason: str = ""
    """Why it says nothing."""
    log_file_size: int | None = None


_known: dict[tuple[ClientSettings, str], tuple[float, KnownLimits]] = {}
"""Limits of brokers and when they were read, by the client's settings and the broker's name. One table for the process: Spark reuses
its workers."""


def limit_of(known: dict[str, KnownLimits], option: int | None) -> BodyLimit:
    """The lowest limit of these brokers, by their names, under the option. Pure."""
    limits = [_of_broker(name, one, option) for name, one in sorted(known.items())]
    limits.append(BodyLimit(MOST_BODY_BYTES, "a frame carries no more"))
    files = [one.log_file_size for one in known.values() if one.log_file_size is not None]
    least = min(limits, key=lambda limit: limit.size_bytes)
    return least._replace(log_file_size=min(files) - _ADDED_BYTES) if files else least


def _of_broker(name: str, known: KnownLimits, option: int | None) -> BodyLimit:
    if known.max_message_size is None:
        if option is not None:
            return BodyLimit(option, "option maxMessageSize")
        rule = f"broker {name} does not say its own ({known.reason}): give the option maxMessageSize"
        return BodyLimit(MAX_MESSAGE_SIZE, rule)
    if option is not None and option < known.max_message_size:
        return BodyLimit(option, "option maxMessageSize")
    return BodyLimit(known.max_message_size, f"raise it in the configuration of broker {name}")


async def ask_for_limits(instance: ClientInstance, broker_names: Iterable[str]) -> dict[str, KnownLimits]:
    """The limits of the masters of these names, at most half a minute old. A broker that fails has no known limit."""
    names = sorted(set(broker_names))
    return dict(zip(names, await asyncio.gather(*(_limits_of(instance, name) for name in names)), strict=True))


async def _limits_of(instance: ClientInstance, name: str) -> KnownLimits:
    key = instance.settings, name
    known = _known.get(key)
    if known is None or time.monotonic() - known[0] > ASK_INTERVAL_S:
        try:
            known = _known[key] = time.monotonic(), await _ask(instance, name)
        except ClientError as error:  # it may pass: nothing to remember
            return KnownLimits(None, error.describe())
    return known[1]


async def _ask(instance: ClientInstance, name: str) -> KnownLimits:
    """Raises ClientError if there is no answer; after a time-out the request is sent once more."""
    request = make_call(RequestCode.GET_BROKER_CONFIG)
    address = await instance.broker_address(name)
    try:
        answer = await instance.invoke(address, request)
    except RequestTimeoutError:
        answer = await instance.invoke(address, request)
    if answer.code != ResponseCode.SUCCESS:
        what = request_text(request.code)
        return KnownLimits(None, response_error(answer.code, answer.remark, address, what).describe())
    said = {name: int(text) for name, text in _SETTING.findall(bytes(answer.body))}
    size, file_size = said.get(b"maxMessageSize"), said.get(b"mappedFileSizeCommitLog")
    return KnownLimits(size, "" if size is not None else "its configuration names none", file_size)


class Routes(Protocol):
    """Targets of rows (`LiveRoutes`)."""

    def queues_of(self, topic: str) -> tuple[MessageQueue, ...]: ...

    def queue_at(self, topic: str, place: int) -> MessageQueue: ...

    def is_static(self, topic: str) -> bool: ...

    def body_limit(self, topic: str) -> BodyLimit: ...

    def address_of(self, broker_name: str, topic: str) -> str: ...

    def broker_at(self, address: str) -> str: ...


class LiveRoutes:
    """Routes of one task or commit. A context manager: its client ends with it."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        create_topic: bool,
        retry_timeout_ms: int,
        max_message_size: int | None = None,
    ) -> None:
        """A cluster that is away, as one whose broker restarts, is waited for, up to the time-out. `max_message_size` as the option."""
        self._settings = settings
        self._default_queue_count = DEFAULT_TOPIC_QUEUE_COUNT if create_topic else None
        self._retry_timeout_ms = retry_timeout_ms
        self._max_message_size = max_message_size
        self._instance = ClientInstance.of(settings)
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._static: set[str] = set()
        self._names: dict[str, str] = {}
        self._limits: dict[str, BodyLimit] = {}

    def queues_of(self, topic: str) -> tuple[MessageQueue, ...]:
        """The writable queues of a topic, or the queues that it will get; as of the first call. A logical queue of a static topic has
        the broker that leads it.

        Raises TopicRouteNotFoundError for a topic that is not there; WaitedInVainError.
        """
        if topic not in self._queues:
            what = f"the route of topic {topic}"

            def ask() -> tuple[MessageQueue, ...]:
                query = self._instance.publish_queues(topic, default_queue_count=self._default_queue_count)
                found = run(query, self._patience_ms, what)
                self._static |= {queue.topic for queue in found if queue.broker_name.startswith(LOGICAL_PREFIX)}
                return tuple(queue._replace(broker_name=self._instance.broker_name_of(queue)) for queue in found)

            self._queues[topic] = patiently(ask, self._retry_timeout_ms, what, passes=_may_be_routed)
        return self._queues[topic]

    def is_static(self, topic: str) -> bool:
        """Whether a topic has logical queues, which may move to another broker."""
        self.queues_of(topic)
        return topic in self._static

    def queue_at(self, topic: str, place: int) -> MessageQueue:
        """The queue at a place among the topic's."""
        return self.queues_of(topic)[place]

    def body_limit(self, topic: str) -> BodyLimit:
        """The largest body that the brokers of the topic's queues take; as of the first call."""
        if topic not in self._limits:
            names = {queue.broker_name for queue in self.queues_of(topic)}
            asking = ask_for_limits(self._instance, names)
            self._limits[topic] = limit_of(
                run(asking, self._patience_ms, "the brokers' limits"), self._max_message_size
            )
        return self._limits[topic]

    def address_of(self, broker_name: str, topic: str) -> str:
        """The address of the master of that name, as the route of a topic of it says now. Raises BrokerNotFoundError."""
        return run(self._address_of(broker_name, topic), self._patience_ms, f"the address of broker {broker_name}")

    async def _address_of(self, broker_name: str, topic: str) -> str:
        for known in (topic, AUTO_CREATE_TOPIC):  # a topic without any send has no route
            with suppress(TopicRouteNotFoundError):
                await self._instance.route(known, refresh=True)
                break
        try:
            return await self._instance.broker_address(broker_name)
        except BrokerNotFoundError:  # what was consumed there may be of a topic that is gone
            brokers = (await self._instance.name_servers.cluster_info()).broker_address_table
            if broker_name in brokers and MASTER_ID in brokers[broker_name].broker_addresses:
                return brokers[broker_name].broker_addresses[MASTER_ID]
            raise

    def broker_at(self, address: str) -> str:
        """The name of the broker whose address that is. One that restarts is waited for. Raises WaitedInVainError."""

        spelt = in_one_form(address)

        def ask() -> str:
            info = run(self._instance.name_servers.cluster_info(), self._patience_ms, "the cluster's brokers")
            for name, broker in info.broker_address_table.items():
                self._names |= dict.fromkeys(map(in_one_form, broker.broker_addresses.values()), name)
            if spelt not in self._names:
                raise BrokerUnreachableError(address, "no broker of the cluster is registered there")
            return self._names[spelt]

        known = self._names.get(spelt)
        return known or patiently(ask, self._retry_timeout_ms, f"the name of the broker at {address}")

    def close(self) -> None:
        """Give the client back."""
        self._instance.release()

    @property
    def _patience_ms(self) -> int:
        """The client bounds each of its waits; this is for what it does one after another."""
        return 2 * self._settings.question_timeout_ms + self._settings.connect_timeout_ms

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _may_be_routed(error: ClientError) -> bool:
    """Not a topic that no broker has; a topic without queues, and a cluster without brokers, may be starting."""
    if isinstance(error, TopicRouteNotFoundError):
        return error.topic == AUTO_CREATE_TOPIC
    return isinstance(error, MessageQueueNotFoundError) or may_pass(error)


def live_routes(options: LiveSinkOptions) -> LiveRoutes:
    """As the options say."""
    settings, timeout_ms = options.client_settings(), options.retry_timeout
    return LiveRoutes(
        settings,
        create_topic=options.create_topic,
        retry_timeout_ms=timeout_ms,
        max_message_size=options.max_message_size,
    )


QueuesOf = Callable[[str], tuple[MessageQueue, ...]]
"""The queues of a topic that may be written, as brokers name it: by broker's name, then by number."""
LimitOf = Callable[[str], BodyLimit]
"""The largest body that the topic's brokers take."""

DELAY_COLUMNS = ("delay_level", "deliver_at")
SINGLE_COLUMNS = (*DELAY_COLUMNS, "retry_group")
"""Rows that say something in these may have to go alone."""
_OFTEN = 2**31 - 1


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
    takes: Callable[[str], str | None] = lambda topic: None
    """Why rows do not go to a topic; None = they do."""
    namespace: str | None = None

    @property
    def leading(self) -> Mapping[str, str]:
        """What a client says of a half. All else that it says stands in the request, and a broker adds its own."""
        return {} if self.transaction is None else {PREPARED: "true"}

    def target(self, topic: str | None) -> TopicTarget:
        """The target for the topic that a row names; its name is the brokers', with the namespace."""
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
        if (refusal := self.takes(known)) is not None:
            return TopicTarget(known, refusal=refusal)
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

    def takes(topic: str) -> str | None:
        if not (options.is_exact and routes.is_static(topic)):
            return None
        return "it is a static topic: its queues move between brokers, and messages cannot be counted; use guarantee=atLeastOnce"

    return RouteRules(
        queues_of=routes.queues_of,
        limit_of=routes.body_limit,
        takes=takes,
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
