"""The command produce: messages from standard input into a store, whose broker must be stopped, or to a running cluster."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, BinaryIO

import pyarrow as pa
import typer

from spark_mq.cli.message_lines import (
    Line,
    LineError,
    look_like_objects,
    read_lines,
    rows_of_bodies,
    rows_of_objects,
    say_overruled,
)
from spark_mq.cli.stores import store_to_write
from spark_mq.command_options import LOCK_TIMEOUT_MS, NO_CLUSTER, Conf, Connection, LockTimeout
from spark_mq.terminal import CommandError, UsageError, print_table, say
from storage import MessageStore, open_store
from storage.epoch_times import current_time_ms
from storage.errors import RowIllegalError
from storage.files.local_file_system import LocalFileSystem
from storage.put.settings import PutOptions, message_rules, put_settings
from storage.rules.message_rows import MessageRows
from storage.rules.row_columns import overruled
from storage.rules.row_rules import DEFAULT_QUEUE_COUNT
from storage.settings.load import load_config

_KEY_PREFIX_SIZE = 10  # of keys that are not written

OneStoreOrCluster = Annotated[
    str | None,
    typer.Argument(
        metavar="PATH", show_default=False, help="A broker's store: what holds commitlog/; in its place --name-server."
    ),
]
StoreHost = Annotated[
    str | None,
    typer.Option(
        "--store-host",
        metavar="HOST:PORT",
        help="The broker's address, where brokerIP1 in broker.conf does not say it.",
    ),
]


class _Written:
    """Numbers of messages appended so far, by queue."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self.first_offsets: dict[tuple[str, int], int] = {}

    def add(self, results: pa.RecordBatch) -> None:
        """The results of `put_batch`. No other writer appends meanwhile, so the offsets of a queue have no gaps."""
        topics, queue_ids, offsets = (
            results.column(name).to_pylist() for name in ("topic", "queue_id", "queue_offset")
        )
        queues = list(zip(topics, queue_ids, strict=True))
        self.counts.update(queues)
        for queue, offset in zip(queues, offsets, strict=True):
            self.first_offsets.setdefault(queue, offset)

    def print(self) -> None:
        rows = [
            (topic, queue_id, count, self.first_offsets[topic, queue_id], self.first_offsets[topic, queue_id] + count)
            for (topic, queue_id), count in sorted(self.counts.items())
        ]
        print_table(("topic", "queue", "messages", "from", "to"), rows, title=f"{self.counts.total():,} message(s)")


def produce(
    path: OneStoreOrCluster = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="The topic of all lines, whatever they name.")
    ] = None,
    objects: Annotated[
        bool, typer.Option("--json", help="A line is a JSON object with columns of the sink, not a body.")
    ] = False,
    queue_num: Annotated[
        int | None,
        typer.Option(
            "--queue-num",
            metavar="N",
            min=1,
            show_default=False,
            help="Queues of a topic that is made; without it defaultTopicQueueNums (8), or as many as its lines name.",
        ),
    ] = None,
    create_topic: Annotated[
        bool | None,
        typer.Option(
            "--create-topic/--no-create-topic",
            show_default=False,
            help="Make topics that are missing, or refuse them; without it as autoCreateTopicEnable says.",
        ),
    ] = None,
    keep_unique_key: Annotated[
        bool,
        typer.Option(
            "--keep-unique-key", help="With --json: keep a line's unique_key; else each message gets a new one."
        ),
    ] = False,
    sync: Annotated[bool, typer.Option("--sync", help="SYNC_FLUSH: each thousand lines onto the disk.")] = False,
    store_host: StoreHost = None,
    lock_timeout_ms: LockTimeout = LOCK_TIMEOUT_MS,
    conf: Conf = None,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Write a message for each line of standard input.

    The messages go to a store, which is made if there is none and closed cleanly afterwards, or to a running cluster.

    With --json a line has body (a text) or body_base64, and any of topic, tags, keys (a text or a list), properties, queue_id,
    sharding_key, flag, born_timestamp (ms), delay_level, deliver_at (ms), retry_group, reconsume_times, origin_msg_id and unique_key:
    what `spark-mq dump --bodies` prints. --topic overrides the topic of a line. A cluster takes no retry_group, reconsume_times and
    origin_msg_id, and sets the born timestamp itself.

    Lines are appended a thousand at a time. A bad line is refused with its whole thousand; if it is among the first of a new store, no
    store is made.
    """
    if topic is None and not objects:
        raise UsageError("give --topic: a line is a body and nothing else")
    if connection.is_chosen(path):
        of_stores = {"--conf": conf, "--store-host": store_host, "--sync": sync, "--keep-unique-key": keep_unique_key}
        for name, given in of_stores.items():
            if given:
                raise UsageError(f"{name} is for stores: leave it away with --name-server")
        from spark_mq.cli.sending import NewTopics, send_input  # a store needs no client

        wanted = NewTopics(create_topic, DEFAULT_QUEUE_COUNT if queue_num is None else queue_num)
        send_input(connection.settings(), topic, wanted, objects=objects)
        return
    root, is_new = store_to_write(path or "")
    options: dict[str, Any] = {
        "topic": topic,
        "queue_count": queue_num,
        "create_topic": create_topic,
        "keep_unique_key": keep_unique_key,
    }
    lines = _Input(sys.stdin.buffer, objects=objects, topic=topic)
    if is_new:
        _judge_first(lines, root, conf, store_host, PutOptions(**options))
        if lines.is_empty:
            say("there was no line, nothing was written")
            return
    written = _Written()
    refusal = None
    try:
        with open_store(
            root,
            config=conf,
            read_only=False,
            create=True,
            lock_timeout_ms=lock_timeout_ms,
            store_host=store_host,
            flush_disk_type="SYNC_FLUSH" if sync else None,
        ) as store:
            if is_new:
                say(f"made a new store at {root}")
            refusal = _put_lines(store, written, options, lines)
    finally:
        if written.counts:
            written.print()
    if refusal is not None:
        raise refusal
    if not written.counts:
        say("there was no line, nothing was written")
    elif lines.only_bodies_of_objects:
        notice = "each line looks like a JSON object and was sent as a body, as it stands; with --json a line has a message's columns"
        typer.echo(notice, err=True)


class _Input:
    """The lines of standard input as rows, a thousand at a time; the first of them can be looked at before."""

    def __init__(self, stream: BinaryIO, *, objects: bool, topic: str | None) -> None:
        self._parse = rows_of_objects if objects else rows_of_bodies
        self._said = {} if topic is None else {"topic": topic}
        """The given topic, until a line with another topic comes."""
        self.only_bodies_of_objects = not objects
        """Whether each line so far is a body, and looks like a JSON object."""
        self._batches = read_lines(stream, skip_blank=objects)
        self._first: list[Line] | None = None

    @property
    def is_empty(self) -> bool:
        return not self.first()

    def first(self) -> list[Line]:
        """The first lines, which iteration gives again; none where there are none."""
        if self._first is None:
            self._first = next(self._batches, [])
        return self._first

    def rows(self, lines: Sequence[Line]) -> pa.RecordBatch:
        """Raises LineError."""
        rows = self._parse(lines)
        for other in overruled(rows, self._said).values():
            say_overruled(other, self._said.pop("topic"))
        return rows

    def __iter__(self) -> Iterator[list[Line]]:
        for lines in chain([self.first()] if self.first() else [], self._batches):
            self.only_bodies_of_objects = self.only_bodies_of_objects and look_like_objects(lines)
            yield lines


def _judge_first(lines: _Input, root: str, conf: str | None, store_host: str | None, options: PutOptions) -> None:
    """Hold the first lines to the rules of a store that is yet to be made. Raises CommandError where one is refused."""
    files = LocalFileSystem()
    settings = put_settings(root, load_config(root, conf, read_bytes=files.read_file), files, store_host)
    try:
        rows = lines.rows(lines.first())
        judge = MessageRows(message_rules(settings, options), bytes(_KEY_PREFIX_SIZE))
        prepared = judge.prepare(rows, current_time_ms())
        if prepared.rejected:
            number, column, rule = prepared.rejected[0]
            raise _refused(lines.first(), RowIllegalError(number, column, rule, len(prepared.rejected) - 1))
    except LineError as error:
        raise CommandError(error.describe(), "nothing was written") from error


def _refused(lines: Sequence[Line], error: RowIllegalError) -> LineError:
    more = f"; {error.more} more of these lines are refused" if error.more else ""
    return LineError(lines[error.row].number, error.column, error.rule + more)


def _put_lines(
    store: MessageStore, written: _Written, options: Mapping[str, Any], source: _Input
) -> CommandError | None:
    """Append standard input. Returns why it ended early, so that the store is closed before the error is printed.

    A topic that is made here goes on getting the queues that lines name.
    """
    before = frozenset(store.writer.settings.topics.topics)
    for lines in source:
        try:
            rows = source.rows(lines)
            try:
                made = frozenset(store.writer.settings.topics.topics) - before
                written.add(store.put_batch(rows, **options, growing=made))
            except RowIllegalError as error:
                raise _refused(lines, error) from error
        except LineError as error:
            count = written.counts.total()
            hint = (
                f"{count:,} message(s) were written, up to the line before {lines[0].number}: go on from there"
                if count
                else "nothing was written"
            )
            return CommandError(error.describe(), hint)
    return None
