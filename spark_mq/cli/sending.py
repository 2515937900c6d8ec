"""Commands that write to a running cluster: lines of standard input as messages, many at a time, and topics.

Lines without a queue take the topic's queues in turn. Lines that name a queue or a sharding key keep their order there: of each such
queue one is on its way at a time. No batches: in one, all messages would get one unique key.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

import typer

from spark_mq.cli.message_lines import Line, LineError, parse_objects, read_lines, say_overruled
from spark_mq.cli.places import refuse_other_shape
from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.errors import (
    ClientError,
    MessageRefusedError,
    NoBrokerError,
    ResponseError,
    TopicRouteNotFoundError,
)
from spark_mq.client.message import Message, MessageQueue
from spark_mq.client.producer import Producer, by_hash
from spark_mq.client.send_results import SendResult, SendStatus
from spark_mq.client.settings import ClientSettings, ProducerSettings, with_namespace
from spark_mq.remoting.frames import MOST_BODY_BYTES
from spark_mq.terminal import CommandError, print_table, say
from storage.format.properties import is_reserved_name
from storage.names import MASTER_ID, validate_user_topic
from storage.tables.topics import PERM_READ, PERM_WRITE, TopicConfig

PRODUCER_GROUP = "spark-mq-produce"
"""The group that brokers list this command under."""
_IN_FLIGHT = 64
"""A broker refuses what waits for more than 200 ms in its queue of sends (SYSTEM_BUSY)."""
_PAUSES_S = (0.1, 0.3, 1.0, 3.0, None)
"""Between the tries of a line that a busy broker refuses; None: the last one."""
_OF_A_STORE = ("retry_group", "reconsume_times", "origin_msg_id")
_SHARDING_KEY = "__SHARDINGKEY"
_POLL_S = 0.05


class _Outgoing(NamedTuple):
    """A line as it is sent; `queue` None: the topic's queues in turn."""

    number: int
    message: Message
    queue: MessageQueue | None


class Sent:
    """Numbers of messages that brokers have stored so far."""

    def __init__(self) -> None:
        self._counts: Counter[MessageQueue] = Counter()
        self._first: dict[MessageQueue, int] = {}
        self._statuses: Counter[SendStatus] = Counter()

    @property
    def count(self) -> int:
        return self._counts.total()

    def add(self, result: SendResult) -> None:
        self._counts[result.queue] += 1
        first = self._first.get(result.queue, result.queue_offset)
        self._first[result.queue] = min(first, result.queue_offset)
        self._statuses[result.status] += 1

    def print(self) -> None:
        """A row for each queue; on stderr what is stored less safely than its broker wants it."""
        rows = [(*queue, count, self._first[queue]) for queue, count in sorted(self._counts.items())]
        print_table(("topic", "broker", "queue", "messages", "from"), rows, title=f"{self.count:,} message(s)")
        for status, count in self._statuses.items():
            if status is not SendStatus.SEND_OK:
                typer.echo(f"{count:,} message(s) are stored, and the broker answered {status.name}", err=True)


class NewTopics(NamedTuple):
    """Whether topics are made that are not there; None: brokers decide (autoCreateTopicEnable)."""

    are_made: bool | None
    queue_count: int


def send_input(settings: ClientSettings, topic: str | None, new: NewTopics, *, objects: bool) -> None:
    """Send standard input to a running cluster, and say what its brokers have stored, also where a line ends it."""
    known: set[str] = set()
    sent, is_said = Sent(), False
    sending = ProducerSettings(
        send_timeout_ms=settings.request_timeout_ms,
        max_in_flight=_IN_FLIGHT,
        max_message_bytes=MOST_BODY_BYTES,  # which of them a broker takes it says itself
    )
    try:
        with Producer(settings, PRODUCER_GROUP, sending) as producer:
            for lines in read_lines(sys.stdin.buffer, skip_blank=objects):
                try:
                    rows = parse_objects(lines) if objects else [{"body": line.content} for line in lines]
                    if topic is not None:
                        others = [str(row["topic"]) for row in rows if row.get("topic") not in (None, "", topic)]
                        if others and not is_said:
                            say_overruled(others[0], topic)
                            is_said = True
                        rows = [{**row, "topic": topic} for row in rows]
                    for name in sorted({str(row["topic"]) for row in rows if row.get("topic")} - known):
                        _find_or_make(producer, name, new)
                        known.add(name)
                    send_rows(producer, lines, rows, sent)
                except LineError as error:
                    hint = f"{sent.count:,} message(s) were sent: go on from line {lines[0].number}"
                    raise CommandError(error.describe(), hint if sent.count else "nothing was sent") from error
    finally:
        if sent.count:
            sent.print()
    if not sent.count:
        say("there was no line, nothing was sent")


def _find_or_make(producer: Producer, topic: str, new: NewTopics) -> None:
    """Raises CommandError if the topic is missing and must not be made, ClientError if its route cannot be looked up."""
    if new.are_made is not None:
        with Admin(producer.settings) as admin:
            is_there = with_namespace(producer.settings.namespace, topic) in admin.topics()
        if not is_there and not new.are_made:
            raise CommandError(f"there is no topic {topic}", "--create-topic makes it")
        if not is_there:
            shape = TopicConfig(topic, new.queue_count, new.queue_count, PERM_READ | PERM_WRITE)
            make_at_brokers(producer.settings, shape, None)
    producer.queues(topic)


def send_rows(producer: Producer, lines: Sequence[Line], rows: Sequence[Mapping[str, Any]], sent: Sent) -> None:
    """Send a line each and wait for the answers. Raises LineError before any is sent, CommandError where a send failed."""
    left = [_outgoing(producer, line, row) for line, row in zip(lines, rows, strict=True)]
    while left:
        taken: set[MessageQueue] = set()
        now: list[_Outgoing] = []
        later: list[_Outgoing] = []
        for one in left:
            (later if one.queue in taken else now).append(one)
            if one.queue is not None:
                taken.add(one.queue)
        _send_together(producer, now, sent)
        left = later


def _outgoing(producer: Producer, line: Line, row: Mapping[str, Any]) -> _Outgoing:
    for name in _OF_A_STORE:
        if row.get(name):
            raise LineError(line.number, name, "only a store takes it, at PATH: a client cannot say it to a broker")
    topic, key = row.get("topic"), row.get("sharding_key")
    if not topic:
        raise LineError(line.number, "topic", "it is missing, and there is no --topic")
    own = dict(row.get("properties") or ())
    properties = {name: text for name, text in own.items() if not is_reserved_name(name) or name == _SHARDING_KEY}
    if key is not None:
        properties[_SHARDING_KEY] = key
    message = Message(
        topic,
        row["body"],
        tags=row.get("tags") or None,
        keys=(row.get("keys") or "").split(),
        properties=properties,
        flag=row.get("flag") or 0,
        delay_level=row.get("delay_level") or 0,
        deliver_time_ms=row.get("deliver_at"),
    )
    return _Outgoing(line.number, message, _queue(producer, line, message, row.get("queue_id")))


def _queue(producer: Producer, line: Line, message: Message, queue_id: int | None) -> MessageQueue | None:
    key = message.properties.get(_SHARDING_KEY)
    if queue_id is None and key is None:
        return None
    queues = producer.queues(message.topic)
    if queue_id is None:
        return by_hash(queues, message, key)
    found = [queue for queue in queues if queue.queue_id == queue_id]
    if not found:
        most = max(queue.queue_id for queue in queues)
        rule = f"topic {message.topic} has no queue {queue_id}, its queues are 0 to {most}"
        raise LineError(line.number, "queue_id", rule)
    return found[0]


def _send_together(producer: Producer, lines: Sequence[_Outgoing], sent: Sent) -> None:
    """Send lines that may overtake each other. What a broker refuses for a while only (it is busy) is sent again, after a pause."""
    for pause_s in _PAUSES_S:
        lines = _tried(producer, lines, sent, is_last=pause_s is None)
        if not lines:
            return
        time.sleep(pause_s or 0)


def _tried(producer: Producer, lines: Sequence[_Outgoing], sent: Sent, *, is_last: bool) -> list[_Outgoing]:
    """Send each and wait. Returns those that were refused for a while; raises the first other failure, and with `is_last` that too."""
    started: list[tuple[_Outgoing, Future[SendResult]]] = []
    again: list[_Outgoing] = []
    error: CommandError | None = None
    for line in lines:
        try:
            started.append((line, producer.send_async(line.message, line.queue)))
        except ClientError as failure:
            error = _failed(line.number, failure)
            break
    for line, future in started:
        try:
            sent.add(future.result())
        except ClientError as failure:
            if isinstance(failure, ResponseError) and failure.retriable and not is_last:
                again.append(line)
            else:
                error = error or _failed(line.number, failure)
    if error is not None:
        raise error
    return again


def _failed(number: int, failure: ClientError) -> CommandError:
    if isinstance(failure, MessageRefusedError):
        return CommandError(f"line {number}, {failure.what}: {failure.rule}", failure.hint)
    return CommandError(f"line {number}: {failure.describe()}", failure.hint)


def make_at_brokers(settings: ClientSettings, wanted: TopicConfig, cluster: str | None) -> tuple[list[str], list[str]]:
    """Make the topic on the masters that do not have it. Returns all brokers in question, and those where it was made.

    Raises CommandError where it is there in another shape.
    """
    named = with_namespace(settings.namespace, wanted.topic)
    with Admin(settings) as admin:
        masters = _masters(admin, cluster, wanted.topic)
        have = _brokers_that_have(admin, named, wanted)
        missing = [name for name in masters if name not in have]
        new = NewTopic(named, wanted.read_queue_count, wanted.write_queue_count, wanted.perm)
        for name in missing:
            admin.create_topic(new, address=masters[name])
        end = time.monotonic() + settings.request_timeout_ms / 1000
        while missing and not _is_routed(admin, named, missing) and time.monotonic() < end:
            time.sleep(_POLL_S)  # a name server that did not answer its broker in time learns it later
    return sorted(masters), missing


def _masters(admin: Admin, cluster: str | None, topic: str) -> dict[str, str]:
    """The masters' addresses by broker name. Raises CommandError where one has none or there is no such cluster; NoBrokerError."""
    info = admin.cluster_info()
    clusters = info.cluster_address_table
    if cluster is not None and cluster not in clusters:
        raise CommandError(f"there is no cluster {cluster}", f"the name server knows {', '.join(sorted(clusters))}")
    found = {}
    for cluster_name in clusters if cluster is None else [cluster]:
        for name in sorted(clusters[cluster_name]):
            validate_user_topic(topic, broker_name=name, cluster_name=cluster_name)
            addresses = info.broker_address_table[name].broker_addresses
            if MASTER_ID not in addresses:
                raise CommandError(f"broker {name} has no master now, and only a master makes topics")
            found[name] = addresses[MASTER_ID]
    if not found:
        raise NoBrokerError
    return found


def _brokers_that_have(admin: Admin, topic: str, wanted: TopicConfig) -> set[str]:
    try:
        found = admin.topic_config(topic)
    except TopicRouteNotFoundError:
        return set()
    for name, config in found.items():
        present = TopicConfig(wanted.topic, config.read_queue_count, config.write_queue_count, config.perm)
        refuse_other_shape(wanted, present, f" at broker {name}")
    return set(found)


def _is_routed(admin: Admin, topic: str, brokers: list[str]) -> bool:
    try:
        return set(brokers) <= admin.route(topic).brokers.keys()
    except TopicRouteNotFoundError:
        return False


def alter_at_brokers(
    settings: ClientSettings, topic: str, change: Callable[[TopicConfig], TopicConfig], cluster: str | None
) -> dict[str, tuple[TopicConfig, TopicConfig]]:
    """Change the topic on the masters that have it; returns it as it was and as it is now, by broker name.

    What does not change is sent as it is: request 17 sets the whole entry, and changes the attributes that it names. Raises
    CommandError where the topic is missing or static, or a broker fails after others have changed it; and what `change` raises,
    before the first one.
    """
    named = with_namespace(settings.namespace, topic)
    with Admin(settings) as admin:
        masters = _masters(admin, cluster, topic)
        try:
            route, found = admin.route(named), admin.topic_config(named)
        except TopicRouteNotFoundError:
            raise CommandError(f"there is no topic {topic}", "spark-mq create-topic makes it") from None
        if route.leaders:
            raise CommandError(f"topic {topic} is static", "mqadmin updateStaticTopic changes its queues")
        here = {name: replace(found[name], topic=topic) for name in masters if name in found}  # without the namespace
        both = {name: (present, change(present)) for name, present in here.items()}
        if not both:
            raise CommandError(f"no master{'' if cluster is None else f' of cluster {cluster}'} has topic {topic}")
        done: list[str] = []
        for name, (before, wanted) in both.items():
            if wanted == before:
                continue
            new = NewTopic(
                named,
                wanted.read_queue_count,
                wanted.write_queue_count,
                wanted.perm,
                is_order=wanted.order,
                filter_type=wanted.topic_filter_type,
                sys_flag=wanted.topic_sys_flag,
            )
            try:
                admin.create_topic(new, address=masters[name])
            except ClientError as error:
                if not done:
                    raise
                hint = f"topic {topic} is changed at {', '.join(done)} already; run the command again"
                raise CommandError(error.describe(), hint) from error
            done.append(name)
    return both
