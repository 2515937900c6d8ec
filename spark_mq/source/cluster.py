"""The stores that a query reads, as one cluster: brokers by name, queues, positions and sizes. Driver side.

A cluster is one store, or a directory of stores: its children are stores, or homes of brokers with their stores in `store/`. A
directory of homes may hold nothing else: otherwise it is more likely a user's folder with unrelated stores. A store does not contain
its broker's name. The name is taken from the option, else from broker.conf, else from the topic that a broker names after itself, else
from the directory. Java: a MessageQueue is (topic, brokerName, queueId).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from spark_mq.conditions import OptionError, names
from spark_mq.source.group_offsets import GroupOffsets
from spark_mq.source.offsets import QueueId, RecordPlace
from spark_mq.source.query_cluster import Piece
from spark_mq.source.queue_split import QueueSplit, StoreProof, proof_of
from spark_mq.source.ranges import QueueRange
from spark_mq.source.rows import RowRequest, ShownAs
from spark_mq.source.starting_offsets import QueueFacts
from storage import MessageStore, open_store
from storage.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    StateFileError,
    StoreNotFoundError,
    StoreRefusedError,
)
from storage.files.file_system import FileSystem
from storage.files.remote import absolute_path, file_system_of, plain_path, unexpanded_home
from storage.format.arrays import index_key_hash
from storage.format.keys import index_key
from storage.log.fingerprint import LogFingerprint
from storage.names import is_system_topic
from storage.queues.scan import record_sizes
from storage.queues.store import QueuePosition
from storage.settings.load import ConfigurationWarning, warn_of_unread
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.document import OFFSETS_FILE, TOPICS_FILE
from storage.tables.surroundings import HOME, is_store, no_store
from storage.tables.topics import BrokerNames, TopicTable, broker_names, named_brokers

_NAMED = 5
_ENTRIES_COMPARED = 1 << 17
_LOST_LOG = "give the broker.conf that says where the log lies, or copy the log's files, too"


def find_stores(path: str, file_system: FileSystem | None = None) -> list[str]:
    """The store roots at a path: itself, or the stores in its directories, sorted.

    Raises StoreNotFoundError if none is; StoreRefusedError for `~`; OptionError where stores lie in the homes of brokers, and other
    directories beside them.
    """
    path = plain_path(path).rstrip("/") or "/"
    if rule := unexpanded_home(path):
        raise StoreRefusedError(path, rule)
    files = file_system or file_system_of(path)
    if is_store(path, files):
        return [path]
    found, in_homes, others = [], [], []
    for entry in files.list_directory(path):
        child = f"{path.rstrip('/')}/{entry.name}"
        if not entry.is_directory or entry.name.startswith("."):
            continue
        if is_store(child, files):
            found.append(child)
        elif is_store(f"{child}/{HOME}", files):
            in_homes.append(f"{child}/{HOME}")
        else:
            others.append(entry.name)
    if in_homes and others:
        stores = ", ".join(sorted([*found, *in_homes])[:_NAMED])
        beside = f"beside stores it holds {names(others)}; name the store that is meant"
        rule = f"{absolute_path(path)} is no store, and no cluster: {beside}"
        raise OptionError("path", f"{rule}, such as {stores}")
    if not found and not in_homes:
        raise no_store(path, "commitlog/, or a directory that holds a store,", files)
    return sorted([*found, *in_homes])


def broker_name_of(store: MessageStore, path: str) -> str:
    """The name of a store's broker if the options do not name it; `path` is the store's as the user wrote it and checkpoints have it.

    Raises OptionError where the topics tell several names.
    """
    if name := _names_of(store).broker:
        return name
    if known := named_brokers(_topics_of(store)):
        rule = f"the topics of {store.root} have {len(known)} names of its broker: {names(known)}; say which one holds"
        raise OptionError("brokerName", f"{rule}, or give its broker.conf")
    parts = [part for part in path.split("/") if part]
    return parts[-2] if len(parts) > 1 and parts[-1] == HOME else parts[-1]


def _names_of(store: MessageStore) -> BrokerNames:
    return broker_names(store.config, _topics_of(store))


def _topics_of(store: MessageStore) -> TopicTable:
    return store.state(TOPICS_FILE, TopicTable.load) or TopicTable()


def _refuse_lost_log(store: MessageStore) -> None:
    """StoreNotFoundError for a log without a file, where queues hold entries: what a broker deletes never includes the last file."""
    if not store.log.files and any(queue.file_starts for queue in store.queues):
        found = "the log has no file, though its queues have some"
        raise StoreNotFoundError(store.root, "every file of the log", found=found, hint=_LOST_LOG)


class Cluster:
    """Open stores by broker name: the QueryCluster whose data is files."""

    def __init__(self, stores: Mapping[str, MessageStore], place: str = "") -> None:
        self.stores = dict(sorted(stores.items()))
        self.place = place
        self._fingerprints: dict[str, LogFingerprint | None] = {}
        self._group_tables: dict[str, ConsumerOffsets | None] = {}
        self._queues: tuple[dict[str, list[tuple[str, int]]], list[QueueId]] | None = None
        self._records_before: dict[tuple[QueueId, int], RecordPlace | None] = {}

    @cached_property
    def cluster_names(self) -> dict[str, str]:
        """The cluster of each broker, by the broker's name."""
        return {name: _names_of(store).cluster for name, store in self.stores.items()}

    @classmethod
    def open(cls, paths: Sequence[str], *, conf: str | None = None, broker_name: str | None = None) -> Cluster:
        """Open every store of the paths for reading.

        Raises OptionError where `broker_name` is given for several stores, or two stores have one name; StorageError where
        a store cannot be read.
        """
        roots = [root for path in paths for root in find_stores(path)]
        if broker_name is not None and len(roots) > 1:
            raise OptionError("brokerName", f"names one store, but there are {len(roots)}: {', '.join(roots)}")
        stores: dict[str, MessageStore] = {}
        conf = conf and absolute_path(conf)
        for root in roots:
            store = open_store(absolute_path(root), config=conf)  # tasks have other working directories
            _refuse_lost_log(store)
            name = broker_name or broker_name_of(store, root)
            if name in stores:
                raise OptionError("path", f"two stores are of one broker, {name}: {stores[name].root} and {root}")
            stores[name] = store
        return cls(stores, ", ".join(map(absolute_path, paths)))

    def tell_unread_settings(self) -> None:
        """Say in the log, once a process, which settings of the stores' brokers take no effect here."""
        for store in self.stores.values():
            warn_of_unread(store.config.file, store.config.settings)

    def refresh(self) -> bool:
        """Look at what the brokers did meanwhile; returns whether they did anything."""
        self._fingerprints.clear()
        self._group_tables.clear()
        changes = [store.refresh() for store in self.stores.values()]
        if any(changes):
            self._records_before.clear()
        return any(changes)

    @property
    def brokers(self) -> list[str]:
        return list(self.stores)

    def rank(self, broker_name: str) -> int:
        """The broker's place among the names in order: what Kafka's partition column counts from."""
        return self.brokers.index(broker_name)

    def queues(self) -> Sequence[QueueId]:
        """All queues of all stores, sorted. The same list as long as there are the same ones."""
        names = {name: store.queues.names() for name, store in self.stores.items()}
        if self._queues is None or self._queues[0] != names:
            found = sorted(
                QueueId(topic, name, queue_id) for name, queues in names.items() for topic, queue_id in queues
            )
            self._queues = names, found
        return self._queues[1]

    @property
    def topics(self) -> Sequence[str]:
        return sorted({queue.topic for queue in self.queues()})

    def is_system_topic(self, topic: str) -> bool:
        return any(
            is_system_topic(topic, broker_name=name, cluster_name=cluster_name)
            for name, cluster_name in self.cluster_names.items()
        )

    def refuse_batch_topics(self, topics: Sequence[str]) -> None:
        """Stores' batch queues are read."""

    def queue_count(self, topic: str) -> int:
        """Number of queues of the topic in the store that has most: those of topics.json, and those that hold messages."""
        counts = [0]
        for store in self.stores.values():
            config = _topics_of(store).topics.get(topic)
            counts.append(0 if config is None else config.read_queue_count)
            counts.append(1 + max(store.queue_ids(topic), default=-1))
        return max(counts)

    def await_brokers(self, brokers: Collection[str]) -> bool:
        """A store that is not there now does not come while a query waits."""
        return False

    def refuse_lost_queues(self, brokers: Collection[str]) -> None:
        """Raises StoreNotFoundError for a store whose log has messages and which has no queue at all: a topic may be deleted, but not
        all of them at once.
        """
        for name in sorted(self.stores.keys() & set(brokers)):
            store = self.stores[name]
            if store.log_end > store.log.minimum and not store.queues.names():
                raise StoreNotFoundError(store.root, "any queue below consumequeue/, though the log has messages,")

    # Positions

    def minimum(self, queue: QueueId) -> int:
        return self.stores[queue.broker_name].min_offset(queue.topic, queue.queue_id)

    def earliest(self, queues: Collection[QueueId]) -> Mapping[QueueId, int]:
        """The minimum, which a store finds in its log."""
        return {queue: self.minimum(queue) for queue in queues}

    def maximum(self, queue: QueueId) -> int:
        return self.stores[queue.broker_name].max_offset(queue.topic, queue.queue_id)

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        """Minimum and maximum; cheaper than both."""
        return self.stores[queue.broker_name].bounds(queue.topic, queue.queue_id) or (0, 0)

    def offset_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        offset = self.stores[queue.broker_name].offset_in_queue_by_time(queue.topic, queue.queue_id, timestamp_ms)
        return offset if offset < self.maximum(queue) else None

    def end_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        """The offset from which on no message is older than a time; None where the last one is."""
        return self.offset_by_time(queue, timestamp_ms)

    def group_offset(self, group: str, queue: QueueId) -> int | None:
        """The stored offset, of a table that is read once a look at the cluster."""
        name = queue.broker_name
        if name not in self._group_tables:
            self._group_tables[name] = self.stores[name].state(OFFSETS_FILE, ConsumerOffsets.load)
        offsets = self._group_tables[name]
        return offsets.get(queue.topic, group, queue.queue_id) if offsets else None

    def record_before(self, queue: QueueId, offset: int) -> RecordPlace | None:
        """(commit log offset, store time) of the record at `offset - 1`; None if none is visible."""
        if (queue, offset) not in self._records_before:
            self.look_up({queue: offset})
        return self._records_before[queue, offset]

    def first_from(self, queue: QueueId, offset: int) -> int | None:
        """The offset, if a message is there."""
        return None if self.position(queue, offset) is None else offset

    def is_compacted(self, queue: QueueId) -> bool:
        """Whatever its broker serves, the log is read, which has all."""
        return False

    def look_up(self, offsets: Mapping[QueueId, int]) -> None:
        """Look up many positions for `record_before` at once: much cheaper than one after the other.

        What was found holds until a refresh finds anything new.
        """
        wanted = [one for one in offsets.items() if one not in self._records_before]
        by_broker: dict[str, list[tuple[QueueId, int]]] = {}
        for queue, offset in wanted:
            by_broker.setdefault(queue.broker_name, []).append((queue, offset))
        for name, ones in by_broker.items():
            found = self.stores[name].positions([(queue.topic, queue.queue_id, offset - 1) for queue, offset in ones])
            for one, position in zip(ones, found, strict=True):
                place = None if position is None else (position.commitlog_offset, position.store_time_ms)
                self._records_before[one] = place

    def position(self, queue: QueueId, offset: int) -> QueuePosition | None:
        return self.stores[queue.broker_name].position(queue.topic, queue.queue_id, offset)

    def moved_away(self, queue: QueueId) -> str:
        store = self.stores.get(queue.broker_name)
        found = None if store is None else store.moved_away(queue.topic, queue.queue_id)
        return "" if found is None else f"; {found.describe()}"

    def facts(self, queue: QueueId) -> QueueFacts | None:
        store = self.stores.get(queue.broker_name)
        bounds = None if store is None else store.bounds(queue.topic, queue.queue_id)
        if store is None or bounds is None:
            return None
        before: Callable[[int], RecordPlace | None] = lambda offset: self.record_before(queue, offset)  # noqa: E731
        return QueueFacts(*bounds, before, store.log_end)

    def group_offsets(self, group: str) -> GroupOffsets:
        return GroupOffsets.of_stores(group, self.stores)

    def physical_positions(self, offsets: Mapping[QueueId, int]) -> Mapping[QueueId, int]:
        """The positions as consumer groups store them."""
        return offsets

    def physical(self, piece: QueueRange) -> list[tuple[QueueRange, ShownAs | None]]:
        """The physical ranges that tasks read for a range, each with the queue and offsets that rows show (None: its own)."""
        return [(piece, None)]

    def split(self, piece: Piece, request: RowRequest) -> QueueSplit:
        queue, ranges, shown = piece
        self._tell_compacted(queue)
        store, rank = self.stores[queue.broker_name], self.rank((queue if shown is None else shown.queue).broker_name)
        proof = self._proof(queue, ranges[-1][1])
        return QueueSplit(store.layout, store.log_end, queue, rank, ranges, request, proof, shown)

    def _tell_compacted(self, queue: QueueId) -> None:
        """Warn, once for each topic, that rows are not what its broker serves."""
        if (queue.broker_name, queue.topic) in self._compacted:
            self._compacted.remove((queue.broker_name, queue.topic))
            what = f"topic {queue.topic} of {queue.broker_name} is compacted by its broker (cleanup.policy=COMPACTION)"
            rule = "rows are all messages that the log still holds, and not the newest one of each key"
            warnings.warn(f"{what}: {rule}", ConfigurationWarning, stacklevel=2)

    @cached_property
    def _compacted(self) -> set[tuple[str, str]]:
        """Broker and name of the compacted topics that no warning has named yet. A warning for a table that cannot be read."""
        found: set[tuple[str, str]] = set()
        for name, store in self.stores.items():
            try:
                topics = _topics_of(store).topics
            except StateFileError as error:  # messages can be read without it
                warnings.warn(
                    f"which topics of {name} are compacted is not known: {error}", ConfigurationWarning, stacklevel=3
                )
                continue
            found.update((name, topic) for topic, config in topics.items() if config.is_compacted)
        return found

    def offsets_with_key(self, piece: QueueRange, key: str) -> tuple[tuple[int, int], ...]:
        return tuple(offsets_with_key(self.stores[piece.queue.broker_name], piece, key))

    def _proof(self, queue: QueueId, end: int) -> StoreProof:
        """The proof that a task checks before it reads the queue up to `end`. Fingerprints are taken once per look at the cluster."""
        store = self.stores[queue.broker_name]
        if queue.broker_name not in self._fingerprints:
            self._fingerprints[queue.broker_name] = store.fingerprint()
        return proof_of(store, self._fingerprints[queue.broker_name], queue, end)

    # Sizes

    @property
    def tells_sizes(self) -> bool:
        return True

    def bytes_between(self, queue: QueueId, start: int, end: int) -> int:
        return self.stores[queue.broker_name].size_between(queue.topic, queue.queue_id, start, end)

    def offset_at_bytes(self, queue: QueueId, start: int, size_bytes: int) -> int:
        return self.stores[queue.broker_name].offset_at_size(queue.topic, queue.queue_id, start, size_bytes)

    def close(self) -> None:
        for store in self.stores.values():
            store.close()


def offsets_with_key(store: MessageStore, piece: QueueRange, key: str) -> Iterator[tuple[int, int]]:
    """Ranges [start, end) of the piece's offsets, ascending and apart, outside which no message has the key.

    They come from the index where it names the records, and are a scan's where not: a missing, deleted or lagging index leaves
    stretches of the log that only a scan can answer for, as does tiered storage.
    What they hold is a superset of the messages with the key: rows are compared afterwards.
    """
    queue = store.queues.get(piece.queue.topic, piece.queue.queue_id)
    if piece.queue.topic in store.queues.batch_topics:  # the index has keys of records, and not of their messages
        yield piece.start, piece.end
        return
    border = 0 if queue is None else min(queue.border(store.log, piece.end), piece.end)
    moved = [(piece.start, border)] if piece.start < border else []
    piece = piece._replace(start=max(piece.start, border))
    found = [(offset, offset + 1) for offset in _indexed_offsets(store, piece, key)]
    yield from _merged(sorted(moved + found + list(_uncovered_ranges(store, piece))))


def _indexed_offsets(store: MessageStore, piece: QueueRange, key: str) -> Iterator[int]:
    topic, _, queue_id = piece.queue
    queue = store.queues.get(topic, queue_id)
    for hit in store.index.lookup(index_key_hash(index_key(topic, key)), 0, 2**63 - 1):
        try:
            message = store.message_by_commitlog_offset(hit.commitlog_offset)
        except (OffsetOutOfRangeError, CorruptRecordError):
            continue
        if message.topic != topic or message.queue_id != queue_id or queue is None:
            continue
        offset = queue.first_offset_at(hit.commitlog_offset, piece.end)
        if piece.start <= offset < piece.end:
            yield offset


def _uncovered_ranges(store: MessageStore, piece: QueueRange) -> Iterator[tuple[int, int]]:
    """Ranges of queue offsets whose records no item of the index names: it has none of their keys.

    Between its first record and its last an index may lack some: its broker has run with messageIndexEnable=false.
    """
    queue = store.queues.get(piece.queue.topic, piece.queue.queue_id)
    if queue is None:
        return
    for at in range(piece.start, piece.end, _ENTRIES_COMPARED):
        entries = queue.entries(at, min(piece.end, at + _ENTRIES_COMPARED))
        places = np.where(record_sizes(entries) > 0, entries["commitlog_offset"].astype(np.int64), -1)
        lacks = (places >= 0) & ~store.index.names(places)
        bounds = np.flatnonzero(np.diff(lacks, prepend=False, append=False)) + at
        yield from zip(bounds[::2].tolist(), bounds[1::2].tolist(), strict=True)


def _merged(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Overlapping and touching ranges as one; `ranges` are sorted."""
    start = end = -1
    for low, high in ranges:
        if low > end:
            if end > start:
                yield start, end
            start, end = low, high
        end = max(end, high)
    if end > start:
        yield start, end
