"""The stores at a path, as commands read them; and which of the two a command reads, stores or a running cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from spark_mq.cli.message_lines import (
    Unreadable,
    describe_message,
    described_body,
    dump_queue,
    message_line,
    queue_lines,
    record_of,
)
from spark_mq.cli.places import FoundMessage, FoundOffset, KeySearch, Place, topic_entry
from spark_mq.command_options import Connection
from spark_mq.lag.figures import LagLooks
from spark_mq.lag.of_stores import StoreLag
from spark_mq.source.cluster import Cluster, find_stores
from spark_mq.source.offsets import QueueId
from spark_mq.terminal import CommandError, UsageError
from storage import Message, MessageStore
from storage.errors import CorruptRecordError, OffsetOutOfRangeError, StoreNotFoundError, StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem
from storage.files.remote import only_for_reading, plain_path
from storage.format.record import decode_offset_message_id
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE, TOPICS_FILE
from storage.tables.surroundings import is_empty_place, no_store
from storage.tables.topics import TopicConfig, TopicTable

OneStorePath = Annotated[
    str, typer.Argument(metavar="PATH", show_default=False, help="A broker's store: what holds commitlog/.")
]
ReadPath = Annotated[
    str | None,
    typer.Argument(
        metavar="PATH",
        show_default=False,
        help="A broker's store, or a directory of stores; in its place --name-server.",
    ),
]


_MOVED = "a message that lies in tiered storage is found by its key (--topic with --key or --unique-key)"


@contextmanager
def open_place(path: str | None, conf: str | None, connection: Connection, *, java: bool = False) -> Iterator[Place]:
    """The stores at PATH, or the cluster that --name-server names, open for reading. Raises OptionError for both and for none."""
    place: Place
    if connection.is_chosen(path):
        if conf is not None:
            raise UsageError("--conf is the configuration of stores: leave it away with --name-server")
        if java:
            raise UsageError("--java shows what is in a store's files: give PATH, not --name-server")
        from spark_mq.cli.live_place import LivePlace  # a store needs no client

        place = LivePlace(connection.settings())
    else:
        place = StorePlace(open_cluster(path or "", conf), java=java)
    try:
        yield place
    finally:
        place.close()


def open_cluster(path: str, conf: str | None) -> Cluster:
    """The store or the stores at a path, open for reading. A directory that is read as a cluster is named on stderr."""
    roots, top = find_stores(path), _directory(path)
    if roots != [top]:
        listed = ", ".join(root.removeprefix(f"{top}/") for root in roots)
        stores = "1 store" if len(roots) == 1 else f"{len(roots)} stores"
        typer.echo(f"{path} is read as a cluster of {stores}: {listed}", err=True)
    return Cluster.open([path], conf=conf)


def one_store(path: str, *, to_write: bool = False) -> str:
    """The root of the only store at a path, named on stderr where the path is not the store itself.

    Raises CommandError where there are several; with `to_write` StoreNotWritableError for one that is not local, without
    looking there.
    """
    if to_write and (rule := only_for_reading(path)):
        raise StoreNotWritableError(path, rule)
    roots = find_stores(path)
    if len(roots) > 1:
        raise CommandError(f"{path} holds {len(roots)} stores", f"name one of them: {', '.join(roots)}")
    if roots != [_directory(path)]:
        typer.echo(f"the store at {path} is {roots[0]}", err=True)
    return roots[0]


def _directory(path: str) -> str:
    return plain_path(path).rstrip("/") or "/"


def store_to_write(path: str) -> tuple[str, bool]:
    """The root of the only store at a path, and whether it must be made: nothing is there, or an empty directory."""
    try:
        return one_store(path, to_write=True), False
    except StoreNotFoundError:
        root, files = _directory(path), LocalFileSystem()
        if not is_empty_place(root, files):
            raise no_store(root, "commitlog/", files, to_make=True) from None
        return root, True


class StorePlace:
    """The place whose data is files. With `java` messages have the fields and names of Apache's tools."""

    def __init__(self, cluster: Cluster, *, java: bool = False) -> None:
        self._cluster = cluster
        self.stores = self._stores = cluster.stores
        self.troubles: Mapping[str, Exception] = {}
        self._java = java

    def refresh(self) -> None:
        self._cluster.refresh()

    def close(self) -> None:
        self._cluster.close()

    def known_topics(self) -> set[str]:
        queues = {name for store in self._stores.values() for name in store.topics()}
        return queues | {name for table in self._topic_tables() for name in table.topics}

    def is_system_topic(self, topic: str) -> bool:
        return self._cluster.is_system_topic(topic)

    def topic_entries(self) -> list[dict[str, Any]]:
        """Topics with queues and topics with settings."""
        return [entry for name, store in self._stores.items() for entry in _topics_of(name, store)]

    def known_entries(self, topic: str | None = None) -> list[dict[str, Any]]:
        return [entry for entry in self.topic_entries() if topic in (None, entry["topic"])]

    def queues(self, topic: str | None) -> Sequence[QueueId]:
        return [queue for queue in self._cluster.queues() if topic in (None, queue.topic)]

    def queue_count(self, topic: str) -> int:
        configs = [table.topics[topic] for table in self._topic_tables() if topic in table.topics]
        return max((max(each.read_queue_count, each.write_queue_count) for each in configs), default=0)

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        return self._cluster.bounds(queue)

    def newest_ms(self, queue: QueueId) -> int | None:
        newest = self._cluster.position(queue, self.bounds(queue)[1] - 1)
        return None if newest is None else newest.store_time_ms

    def size_between(self, queue: QueueId, start: int, end: int) -> int | None:
        return self._cluster.bytes_between(queue, max(start, self.bounds(queue)[0]), end)

    def lines(self, queue: QueueId, start: int, end: int, *, bodies: bool) -> Iterator[dict[str, Any] | Unreadable]:
        store, name = self._stores[queue.broker_name], queue.broker_name
        if not self._java:
            yield from queue_lines(store, queue.topic, queue.queue_id, start, end, broker_name=name, body=bodies)
            return
        for line in dump_queue(store, queue.topic, queue.queue_id, start, end, bodies=bodies):
            yield line if len(self._stores) == 1 else line | {"brokerName": name}

    def describe(self, found: FoundMessage, *, bodies: bool) -> dict[str, Any]:
        name, message = found
        if not self._java:
            return message_line(message, broker_name=name, body=bodies)
        record = record_of(self._stores[name], message.commitlog_offset, message.size_bytes)
        line = {"type": "message", "brokerName": name, **describe_message(message, record)}
        return line | described_body(message) if bodies else line

    def by_key(self, search: KeySearch) -> list[FoundMessage]:
        return [
            FoundMessage(name, message)
            for name, store in self._stores.items()
            for message in store.messages_by_key(
                search.topic, search.key, search.limit, begin_ms=search.begin_ms, end_ms=search.end_ms
            )
            if not search.is_unique or message.unique_key == search.key
        ]

    def by_message_id(self, msg_id: str, topic: str | None) -> list[FoundMessage]:
        _, _, commitlog_offset = decode_offset_message_id(msg_id)
        found = ((name, _message_at(store, commitlog_offset)) for name, store in self._stores.items())
        messages = [FoundMessage(name, one) for name, one in found if one is not None and one.msg_id == msg_id.upper()]
        stores = () if messages else self._stores.values()
        for store in (each for each in stores if each.has_moved_messages and commitlog_offset < each.log.minimum):
            typer.echo(
                f"{store.root}: place {commitlog_offset} has left the log, which begins at {store.log.minimum}; {_MOVED}",
                err=True,
            )
        return messages

    def offsets_by_time(self, topic: str, time_ms: int, *, upper: bool, with_times: bool = True) -> list[FoundOffset]:
        found = []
        for name, store in self._stores.items():
            for queue_id in store.queue_ids(topic):
                offset = store.offset_in_queue_by_time(topic, queue_id, time_ms, upper=upper)
                position = store.position(topic, queue_id, offset)
                time_there = position.store_time_ms if position else None
                found.append(FoundOffset(QueueId(topic, name, queue_id), offset, time_there))
        return found

    def groups(self) -> set[str]:
        return {name for _, table in self._group_tables() for name in table.groups()}

    def lag_looks(
        self, checkpoints: Sequence[str] = (), *, brokers: Collection[str] = (), with_bytes: bool = False
    ) -> LagLooks:
        return StoreLag(self._cluster, checkpoints=checkpoints, brokers=brokers, with_bytes=with_bytes)

    def _topic_tables(self) -> list[TopicTable]:
        tables = [store.state(TOPICS_FILE, TopicTable.load) for store in self._stores.values()]
        return [table for table in tables if table is not None]

    def _group_tables(self) -> list[tuple[str, ConsumerOffsets]]:
        tables = [(name, store.state(OFFSETS_FILE, ConsumerOffsets.load)) for name, store in self._stores.items()]
        return [(name, table) for name, table in tables if table is not None]


def _message_at(store: MessageStore, commitlog_offset: int) -> Message | None:
    try:
        return store.message_by_commitlog_offset(commitlog_offset)
    except (CorruptRecordError, OffsetOutOfRangeError):
        return None


def _topics_of(broker_name: str, store: MessageStore) -> list[dict[str, Any]]:
    table = store.state(TOPICS_FILE, TopicTable.load)
    configs = dict(table.topics) if table is not None else {}
    return [_topic(broker_name, store, name, configs.get(name)) for name in sorted({*store.topics(), *configs})]


def _topic(broker_name: str, store: MessageStore, topic: str, config: TopicConfig | None) -> dict[str, Any]:
    bounds = {
        queue_id: (store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
        for queue_id in store.queue_ids(topic)
    }
    settings = None if config is None else (config.read_queue_count, config.write_queue_count, config.perm)
    return topic_entry(topic, broker_name, settings, bounds)
