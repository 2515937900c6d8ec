"""Commands that print messages: dump, query."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any

import typer

from spark_mq.cli.app import AsJson, CommandError, Conf, QueueNumber, StorePath, Topic, app, open_cluster
from spark_mq.cli.output import body_text, print_json, print_table, time_in_words
from spark_mq.dump import describe_message, described_body, dump_queue
from spark_mq.message_line import Unreadable, message_line, queue_lines
from spark_mq.progress import OnProgress, progress_bar
from spark_mq.source.cluster import Cluster
from spark_mq.source.offsets import QueueId
from spark_mq.source.option_values import parse_time
from spark_mq.stop_signals import interrupt_on_signal
from storage import Message, MessageStore
from storage.epoch_times import current_time_ms
from storage.errors import CorruptMessageError, CorruptRecordError, OffsetOutOfRangeError
from storage.format.message_id import decode_offset_message_id
from storage.names import is_retry_or_dead_letter_topic, names_several
from storage.nearest_name import nearest
from storage.tables.topics import FILE_NAME as TOPICS_FILE
from storage.tables.topics import TopicTable

JavaWords = Annotated[
    bool, typer.Option("--java", help="The fields and names of Apache's own tools, with digests, for comparing.")
]
_POLL_S = 0.5
_END_OF_TIME_MS = 2**63 - 1


@app.command()
def dump(
    path: StorePath,
    topic: Topic = None,
    queue_id: QueueNumber = None,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="First queue offset.")] = 0,
    end: Annotated[
        int | None, typer.Option("--to", metavar="OFFSET", min=0, help="Queue offset to stop before.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many lines.")] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="The bodies too, decompressed.")] = False,
    every_topic: Annotated[
        bool, typer.Option("--all", help="RocketMQ's own topics too, and consumer groups' retries and dead letters.")
    ] = False,
    java: JavaWords = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new messages until Ctrl-C.")] = False,
    conf: Conf = None,
) -> None:
    """Print messages, queue by queue: one JSON object a line, with the columns of the Spark source. Without --topic those of all
    topics of users.

    With --bodies these are lines for `spark-mq produce --json`: a body that is no UTF-8 text is body_base64. An entry of a queue that
    leads to no message is told on stderr, and the exit code is 1.
    """
    cluster = open_cluster(path, conf)
    try:
        refuse_unknown_topic(cluster, topic)
        wanted = _Wanted(topic, queue_id, start, end, bodies=bodies, every_topic=every_topic, java=java)
        _refuse_nothing_wanted(cluster, wanted, follow=follow)
        if follow:
            with interrupt_on_signal(), suppress(KeyboardInterrupt):
                _print_lines(_lines(cluster, wanted, follow=True), limit)
        else:
            total = sum(cluster.maximum(queue) - cluster.minimum(queue) for queue in wanted.queues(cluster))
            with progress_bar("messages") as progress:
                _print_lines(_lines(cluster, wanted), limit, None if sys.stdout.isatty() else progress, total)
    finally:
        cluster.close()


def _print_lines(
    lines: Iterator[dict[str, Any] | Unreadable],
    limit: int | None,
    progress: OnProgress | None = None,
    total: int = 0,
) -> None:
    """Raises typer.Exit(1) where some of them were none."""
    unreadable = 0
    total = total if limit is None else min(total, limit)
    for number, line in enumerate(islice(lines, limit)):
        if isinstance(line, Unreadable):
            unreadable += 1
            typer.echo(f"no message: {line.describe()}", err=True)
        else:
            print_json(line)
        if progress is not None and number % 1_000 == 0:
            progress(number, total)
    if unreadable:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be dumped."""

    topic: str | None
    queue_id: int | None
    start: int
    end: int | None
    bodies: bool
    every_topic: bool
    java: bool

    def queues(self, cluster: Cluster) -> list[QueueId]:
        """Queues of a named topic that this package cannot read are refused."""
        if self.topic is not None:
            cluster.refuse_batch_topics([self.topic])
        return [
            queue
            for queue in cluster.queues()
            if self._takes(cluster, queue.topic) and (self.queue_id is None or self.queue_id == queue.queue_id)
        ]

    def _takes(self, cluster: Cluster, topic: str) -> bool:
        if self.topic is not None or self.every_topic:
            return self.topic in (None, topic)
        return not (cluster.is_system_topic(topic) or is_retry_or_dead_letter_topic(topic))

    def lines(self, cluster: Cluster, queue: QueueId, start: int, end: int) -> Iterator[dict[str, Any] | Unreadable]:
        """Of one queue."""
        store, name = cluster.stores[queue.broker_name], queue.broker_name
        if not self.java:
            yield from queue_lines(store, queue.topic, queue.queue_id, start, end, broker_name=name, body=self.bodies)
            return
        for line in dump_queue(store, queue.topic, queue.queue_id, start, end, bodies=self.bodies):
            yield line if len(cluster.stores) == 1 else line | {"brokerName": name}


def _lines(cluster: Cluster, wanted: _Wanted, *, follow: bool = False) -> Iterator[dict[str, Any] | Unreadable]:
    done: dict[QueueId, int] = {}
    while True:
        for queue in wanted.queues(cluster):
            first = done.get(queue, wanted.start)
            done[queue] = max(first, cluster.maximum(queue))
            yield from wanted.lines(
                cluster, queue, first, done[queue] if wanted.end is None else min(wanted.end, done[queue])
            )
        if not follow:
            return
        sys.stdout.flush()
        time.sleep(_POLL_S)
        cluster.refresh()


def refuse_unknown_topic(cluster: Cluster, topic: str | None) -> None:
    """Raises CommandError for a topic that no store has a queue of and none has in its topics.json."""
    queues = {name for store in cluster.stores.values() for name in store.topics()}
    batch_topics = {name for store in cluster.stores.values() for name in store.queues.batch_topics}
    known = queues | batch_topics | {name for table in _topic_tables(cluster) for name in table.topics}
    if topic is not None and topic not in known:
        if names_several(topic):
            raise CommandError(f"there is no topic {topic}", "--topic takes one name")
        like = nearest(topic, known)
        raise CommandError(f"there is no topic {topic}", f"did you mean {like}?" if like else None)


def _topic_tables(cluster: Cluster) -> list[TopicTable]:
    tables = [store.state(TOPICS_FILE, TopicTable.load) for store in cluster.stores.values()]
    return [table for table in tables if table is not None]


def _refuse_nothing_wanted(cluster: Cluster, wanted: _Wanted, *, follow: bool) -> None:
    """Raises CommandError, with what there is, for a queue that no topic has and for offsets that no queue can have.

    A queue without messages that topics.json counts is none of these. Who follows all topics may wait for any queue.
    """
    if wanted.queue_id is not None:
        configs = [config for table in _topic_tables(cluster) for config in table.topics.values()]
        counts = [max(each.read_queue_count, each.write_queue_count) for each in configs if each.topic == wanted.topic]
        there = {queue.queue_id for queue in replace(wanted, queue_id=None).queues(cluster)}
        there |= set(range(max(counts, default=0)))
        if wanted.queue_id not in there and (wanted.topic is not None or not follow):
            whose = "any topic" if wanted.topic is None else f"topic {wanted.topic}"
            hint = f"the queues are {min(there)} to {max(there)}" if there else "no queue is there"
            raise CommandError(f"there is no queue {wanted.queue_id} of {whose}", hint)
    if wanted.end is not None and wanted.end <= wanted.start:
        queues = wanted.queues(cluster)
        least = min((cluster.minimum(queue) for queue in queues), default=0)
        most = max((cluster.maximum(queue) for queue in queues), default=0)
        raise CommandError(
            f"no offset is from {wanted.start} on and before {wanted.end}: --to must be greater than --from",
            f"the queues hold offsets {least} to {most - 1}" if most > least else "the queues hold no message",
        )


@app.command()
def query(
    path: StorePath,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The messages' topic.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="One of a message's keys.")] = None,
    unique_key: Annotated[
        str | None, typer.Option("--unique-key", metavar="KEY", help="The id that a client gave the message.")
    ] = None,
    msg_id: Annotated[
        str | None, typer.Option("--msg-id", metavar="ID", help="The id that the broker gave it: its place.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Not stored before: ms, ISO-8601 or -10m.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Not stored after: ms, ISO-8601 or -10m.")
    ] = None,
    maximum: Annotated[int, typer.Option("--max", metavar="N", min=1, help="The newest so many, of each store.")] = 32,
    bodies: Annotated[bool, typer.Option("--bodies", help="With --json: the bodies too.")] = False,
    conf: Conf = None,
    as_json: AsJson = False,
    java: JavaWords = False,
) -> None:
    """Find messages by key, by unique key (both through the index) or by message id. With --json they are printed as dump does."""
    if sum(value is not None for value in (key, unique_key, msg_id)) != 1:
        raise CommandError("give exactly one of --key, --unique-key and --msg-id")
    if msg_id is None and topic is None:
        raise CommandError("give --topic: the index holds topic and key together")
    now_ms = current_time_ms()
    begin_ms = parse_time(begin, "--from").at(now_ms) if begin is not None else 0
    end_ms = parse_time(end, "--to").at(now_ms) if end is not None else _END_OF_TIME_MS
    cluster = open_cluster(path, conf)
    found: list[tuple[str, MessageStore, Message]] = []
    try:
        for name, store in cluster.stores.items():
            if msg_id is not None:
                messages = _by_message_id(store, msg_id)
            else:
                messages = store.messages_by_key(
                    topic or "", key or unique_key or "", maximum, begin_ms=begin_ms, end_ms=end_ms
                )
            found += [(name, store, message) for message in messages if unique_key in (None, message.unique_key)]
        if not found:
            refuse_unknown_topic(cluster, topic)
        if as_json or java:
            print_json([_describe(name, store, message, bodies=bodies, java=java) for name, store, message in found])
        else:
            _print_messages([(name, message) for name, _, message in found], now_ms)
    finally:
        cluster.close()


def _by_message_id(store: MessageStore, msg_id: str) -> list[Message]:
    try:
        _, _, commitlog_offset = decode_offset_message_id(msg_id)
    except ValueError as error:
        raise CommandError(str(error), "an id that a client gave goes with --unique-key") from error
    try:
        message = store.message_by_commitlog_offset(commitlog_offset)
    except (CorruptRecordError, OffsetOutOfRangeError):
        return []
    return [message] if message.msg_id == msg_id.upper() else []


def _describe(broker_name: str, store: MessageStore, message: Message, *, bodies: bool, java: bool) -> dict[str, Any]:
    if not java:
        return message_line(message, broker_name=broker_name, body=bodies)
    record = store.log.bytes_at(message.commitlog_offset, message.size_bytes)
    line = {"type": "message", "brokerName": broker_name, **describe_message(message, record)}
    return line | described_body(message) if bodies else line


def _body_text(message: Message) -> str:
    try:
        return body_text(message.plain_body)
    except CorruptMessageError as error:
        return f"corrupt: {error.reason}"


def _print_messages(found: list[tuple[str, Message]], now_ms: int) -> None:
    rows = [
        (
            message.topic,
            broker_name,
            message.queue_id,
            message.queue_offset,
            time_in_words(message.store_time_ms, now_ms),
            message.tags,
            " ".join(message.keys),
            message.unique_key,
            message.msg_id,
            _body_text(message),
        )
        for broker_name, message in found
    ]
    columns = "topic", "broker", "queue", "offset", "stored", "tags", "keys", "unique key", "message id", "body"
    print_table(columns, rows, title=f"{len(rows)} message(s)")
