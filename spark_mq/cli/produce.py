"""Commands that put something into a store: produce, create-topic. The store's broker must be stopped."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated

import pyarrow as pa
import typer

from spark_mq.cli.app import (
    AsJson,
    CommandError,
    Conf,
    LockTimeout,
    OneStorePath,
    app,
    lock_timeout_ms,
    store_to_write,
)
from spark_mq.cli.message_lines import LineError, read_lines, rows_of_bodies, rows_of_objects
from spark_mq.cli.output import console, print_json, print_table
from storage import MessageStore, open_store
from storage.broker_names import broker_names
from storage.config import load_config
from storage.errors import RowIllegalError
from storage.files.file_system import LocalFileSystem
from storage.message_rules import DEFAULT_QUEUE_COUNT
from storage.names import validate_user_topic
from storage.topic_creation import create_topic as enter_topic
from storage.topics import PERM_READ, PERM_WRITE, TopicConfig, TopicTable

_GREATEST_PERM = 7  # PermName.isValid

StoreHost = Annotated[
    str | None,
    typer.Option(
        "--store-host", metavar="HOST:PORT", help="The broker's address, for a store without configuration and records."
    ),
]


class _Written:
    """What was appended so far, by queue."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self.first_offsets: dict[tuple[str, int], int] = {}

    def add(self, results: pa.RecordBatch) -> None:
        """What `put_batch` answered. Nobody else appends meanwhile, so the offsets of a queue have no gaps."""
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


@app.command()
def produce(
    path: OneStorePath,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="The topic; of lines that name none, with --json.")
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
            help="Queues of a topic that is made; without it 8, or as many as its lines name.",
        ),
    ] = None,
    create_topic: Annotated[
        bool, typer.Option("--create-topic/--no-create-topic", help="Make topics that are missing, or refuse them.")
    ] = True,
    sync: Annotated[bool, typer.Option("--sync", help="SYNC_FLUSH: each thousand lines onto the disk.")] = False,
    store_host: StoreHost = None,
    lock_timeout: LockTimeout = "10s",
    conf: Conf = None,
) -> None:
    """Append messages from standard input, a line each, and close the store cleanly. A store is made where none is.

    With --json a line has body (a text) or body_base64, and any of topic, tags, keys (a text or a list), properties, queue_id,
    sharding_key, flag, born_timestamp (ms), delay_level, deliver_at (ms), retry_group, reconsume_times and origin_msg_id.
    Lines are appended a thousand at a time; a bad one is refused with its whole thousand.
    """
    if topic is None and not objects:
        raise CommandError("give --topic: a line is a body and nothing else")
    timeout_ms = lock_timeout_ms(lock_timeout)
    root, is_new = store_to_write(path)
    written = _Written()
    refusal = None
    try:
        with open_store(
            root,
            config=conf,
            read_only=False,
            create=True,
            lock_timeout_ms=timeout_ms,
            store_host=store_host,
            flush_disk_type="SYNC_FLUSH" if sync else None,
        ) as store:
            if is_new:
                console().print(f"made a new store at {root}", markup=False)
            rules = {"topic": topic, "queue_count": queue_num, "create_topic": create_topic}
            refusal = _put_lines(store, written, rules, objects=objects)
    finally:
        if written.counts:
            written.print()
    if refusal is not None:
        raise refusal
    if not written.counts:
        console().print("there was no line, nothing was written")


def _put_lines(
    store: MessageStore, written: _Written, rules: Mapping[str, object], *, objects: bool
) -> CommandError | None:
    """Append standard input. Returns why it ended before its end, so that the store is closed before that is told.

    A topic that is made here goes on getting the queues that lines name.
    """
    before = frozenset(store.writer.settings.topics.topics)
    for lines in read_lines(sys.stdin.buffer, skip_blank=objects):
        try:
            rows = rows_of_objects(lines) if objects else rows_of_bodies(lines)
            try:
                made = frozenset(store.writer.settings.topics.topics) - before
                written.add(store.put_batch(rows, **rules, growing=made))
            except RowIllegalError as error:
                more = f"; {error.more} more of these lines are refused" if error.more else ""
                raise LineError(lines[error.row].number, error.column, error.rule + more) from error
        except LineError as error:
            count = written.counts.total()
            hint = (
                f"{count:,} message(s) were written, up to the line before {lines[0].number}: go on from there"
                if count
                else "nothing was written"
            )
            return CommandError(error.describe(), hint)
    return None


@app.command("create-topic")
def create_topic(
    path: OneStorePath,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="Its name.")],
    queues: Annotated[
        int, typer.Option("--queues", metavar="N", min=1, help="How many queues, to read and to write.")
    ] = DEFAULT_QUEUE_COUNT,
    perm: Annotated[
        int, typer.Option("--perm", metavar="N", min=0, max=_GREATEST_PERM, help="4 to read, 2 to write, 6 for both.")
    ] = PERM_READ | PERM_WRITE,
    lock_timeout: LockTimeout = "10s",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Enter a topic into topics.json. A topic that is there is never changed; exit code 1 if it is not as asked for.

    A store is made where none is. Nothing else in a store is touched, no recovery takes place.
    """
    timeout_ms = lock_timeout_ms(lock_timeout)
    root, is_new = store_to_write(path)
    files = LocalFileSystem()
    config = load_config(root, conf, read_bytes=files.read_file)
    wanted = TopicConfig(topic, queues, queues, perm)
    if is_new:  # an illegal name does not make a store
        names = broker_names(config, TopicTable())
        validate_user_topic(topic, broker_name=names.broker, cluster_name=names.cluster)
        open_store(root, config=config, read_only=False, create=True, lock_timeout_ms=timeout_ms).close()
    present = enter_topic(
        root,
        config,
        wanted,
        now_ms=time.time_ns() // 1_000_000,
        file_system=files,
        lock_timeout_ms=timeout_ms,
    )
    entry = present or wanted
    shape = f"{entry.read_queue_count} read queues, {entry.write_queue_count} write queues and perm {entry.perm}"
    if present is not None and _shape(present) != _shape(wanted):
        raise CommandError(
            f"topic {topic} is there already, with {shape}", "nothing was changed; mqadmin updateTopic changes topics"
        )
    if as_json:
        print_json(
            {
                "store": root,
                "topic": topic,
                "created": present is None,
                "readQueueNums": entry.read_queue_count,
                "writeQueueNums": entry.write_queue_count,
                "perm": entry.perm,
            }
        )
    else:
        console().print(f"topic {topic} {'was there already' if present else 'made'}, with {shape}", markup=False)


def _shape(config: TopicConfig) -> tuple[int, int, int]:
    return config.read_queue_count, config.write_queue_count, config.perm
