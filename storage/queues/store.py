"""All consume queues of a store: their list and their ends; one entry each of many queues, and whether the log has its message.

A store may have 100,000 queues. Opening reads the end of each; all other work is done for all of them together, so that it costs
a few microseconds a queue and not a few hundred.

Java: ConsumeQueueStore (truncateDirty), ConsumeQueue.recover.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.errors import OffsetOutOfRangeError, StoreRefusedError
from storage.files.file_system import DirectoryEntry, FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format.consume_queue import ENTRY, ENTRY_SIZE, decode_entries, is_entry, is_pre_blank, may_be_torn
from storage.log.commit_log import CommitLog
from storage.names import QueueName, can_be_path_element
from storage.queues.batch_queue import BatchConsumeQueue
from storage.queues.consume_queue import ConsumeQueue, valid_entries
from storage.queues.ext import ConsumeQueueExt, ConsumeQueueExtWriter, ext_file_size, is_ext_file
from storage.queues.tiered_queue import MovedMessages, TieredConsumeQueue

DEFAULT_QUEUE_FILE_SIZE = 6_000_000
"""Java: MessageStoreConfig.mappedFileSizeConsumeQueue."""


def plain_queue(
    file_system: FileSystem,
    directory: str,
    topic: str,
    queue_id: int,
    file_size_bytes: int | None,
    moved_directory: str | None,
) -> ConsumeQueue:
    """A queue whose files lie in `directory`, for reading also with what has moved into `moved_directory`, now or later."""
    if moved_directory is not None:
        moved = MovedMessages(file_system, moved_directory, topic, queue_id)
        return TieredConsumeQueue(file_system, directory, topic, queue_id, file_size_bytes, moved)
    return ConsumeQueue(file_system, directory, topic, queue_id, file_size_bytes)


def queue_file_size(file_system: FileSystem, root: str, configured: int | None) -> int:
    """Bytes of a new queue's files: the configured size, else that of an existing queue's file, else Java's default.

    All queues of a store have files of one length; a broker does not start on others.
    """
    return configured or _found_file_size(file_system, root) or DEFAULT_QUEUE_FILE_SIZE


def has_queue_file(root: str, file_system: FileSystem) -> bool:
    """Whether any queue of the store at ROOT has a file."""
    return _found_file_size(file_system, root) is not None


def _found_file_size(file_system: FileSystem, root: str) -> int | None:
    directory = f"{root}/consumequeue"
    for topic in file_system.list_directory(directory):
        for queue in file_system.list_directory(f"{directory}/{topic.name}") if topic.is_directory else ():
            for entry in file_system.list_directory(f"{directory}/{topic.name}/{queue.name}"):
                if not entry.is_directory and entry.size_bytes and entry.size_bytes % ENTRY_SIZE == 0:
                    return entry.size_bytes
    return None


class RocksDBPlace(NamedTuple):
    """Where a store's queues lie instead of in files."""

    directory: str
    delays_ms: tuple[int, ...]
    """The delay of each level: entries of the schedule topic hold the time of delivery."""


class ConsumeQueueStore:
    """The queues under ROOT/consumequeue, each opened when first needed. A queue is (topic, queue id).

    Also the batch queues under ROOT/batchconsumequeue: a store that has any is only read. A topic has queues of one kind.
    """

    def __init__(
        self,
        file_system: FileSystem,
        root: str,
        *,
        file_size_bytes: int | None = None,
        ext_file_size_bytes: int | None = None,
        writes_ext: bool = False,
        moved_directory: str | None = None,
    ) -> None:
        """With `writes_ext` writers give each new entry an extension unit; StoreRefusedError if existing files have another length.

        Queues go on in `moved_directory`, of tiered storage, where it has them.
        """
        self._file_system = file_system
        self.directory = f"{root}/consumequeue"
        self._ext_directory = f"{root}/consumequeue_ext"
        self._batch_directory = f"{root}/batchconsumequeue"
        self._file_size_bytes = file_size_bytes
        self._ext_file_size_bytes = (
            ext_file_size(file_system, root, ext_file_size_bytes) if writes_ext else ext_file_size_bytes
        )
        self.writes_ext = writes_ext
        self._topics: dict[str, dict[int, ConsumeQueue]] = {}
        self._moved_directory = moved_directory
        self.batch_topics: frozenset[str] = frozenset()
        """Topics with batch queues."""
        self._topics_in_turn = 0
        self.discover()

    def discover(self, most_topics: int | None = None) -> list[tuple[str, int]]:
        """List the queues again; returns the new ones. Files and names that are no queue are ignored, as in Java.

        At most `most_topics` of the known topics are looked into, in turn. Raises StoreRefusedError for a topic with queues of both
        kinds.
        """
        new = []
        before, self._topics = self._topics, {}
        listed = [entry.name for entry in self._file_system.list_directory(self.directory) if entry.is_directory]
        found = self._file_system.list_directory(self._batch_directory)
        self.batch_topics = frozenset(entry.name for entry in found if entry.is_directory)
        listed += sorted(self._moved_topics().difference(listed))
        for topic in sorted(self.batch_topics.intersection(listed)):
            rule = f"topic {topic} has queues of both kinds, consumequeue/ and batchconsumequeue/ (queue.type=BatchCQ)"
            raise StoreRefusedError(
                posixpath.dirname(self.directory), rule, "no broker starts on it: look which is right"
            )
        listed += sorted(self.batch_topics)
        for topic, is_in_turn in zip(listed, self._in_turn(len(listed), most_topics), strict=True):
            known = before.pop(topic, {})
            queues = self._queues_of(topic, known) if is_in_turn or not known else known
            new += [(topic, queue_id) for queue_id in queues if queue_id not in known]
            if queues:
                self._topics[topic] = queues
        for gone in before.values():
            _close(gone)
        return new

    def follow(self, log_end: int) -> None:
        """The log has valid records up to `log_end`: know their entries. In files they lie already, or their writer brings them."""

    def _in_turn(self, count: int, most: int | None) -> Sequence[bool]:
        if most is None or count <= most:
            return [True] * count
        turns = np.zeros(count, bool)
        turns[np.arange(self._topics_in_turn, self._topics_in_turn + most) % count] = True
        self._topics_in_turn = (self._topics_in_turn + most) % count
        found: list[bool] = turns.tolist()
        return found

    def _queues_of(self, topic: str, known: Mapping[int, ConsumeQueue]) -> dict[int, ConsumeQueue]:
        """A topic's present queues by id; known ones are kept, or closed if they are gone."""
        listed = self._file_system.list_directory(f"{self._directory_of(topic)}/{topic}")
        ids = _queue_ids(listed)
        if self._moved_directory is not None:
            directory = f"{self._moved_directory}/{topic}"
            moved = _queue_ids(self._file_system.list_directory(directory)) - ids
            ids |= {id_ for id_ in moved if MovedMessages(self._file_system, self._moved_directory, topic, id_).end}
        _close({queue_id: queue for queue_id, queue in known.items() if queue_id not in ids})
        return {queue_id: known.get(queue_id) or self.make(topic, queue_id) for queue_id in sorted(ids)}

    def _moved_topics(self) -> set[str]:
        """Topics in tiered storage: they may have no queue of their own any more."""
        if self._moved_directory is None:
            return set()
        return {entry.name for entry in self._file_system.list_directory(self._moved_directory) if entry.is_directory}

    def look_for(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """A queue that may have appeared since the last listing; None if it has no file yet."""
        queue = self.get(topic, queue_id)
        if queue is None and can_be_path_element(topic):
            made = self.make(topic, queue_id)
            queue = self.get_or_make(topic, queue_id) if made.file_starts else None
        return queue

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue, whether it has files yet or not."""
        directory = f"{self._directory_of(topic)}/{topic}/{queue_id}"
        if topic in self.batch_topics:
            return BatchConsumeQueue(self._file_system, directory, topic, queue_id)
        return plain_queue(self._file_system, directory, topic, queue_id, self._file_size_bytes, self._moved_directory)

    def _directory_of(self, topic: str) -> str:
        return self._batch_directory if topic in self.batch_topics else self.directory

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._topics.get(topic, {}).get(queue_id)

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self.get(topic, queue_id)
        if queue is None:
            queues = {**self._topics.get(topic, {}), queue_id: self.make(topic, queue_id)}
            self._topics[topic] = dict(sorted(queues.items()))
            queue = self._topics[topic][queue_id]
        return queue

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """By topic, then queue id."""
        return iter([queue for topic in self.topics() for queue in self._topics[topic].values()])

    def topics(self) -> list[str]:
        """Topics that have a queue, sorted."""
        return sorted(self._topics)

    def queue_ids(self, topic: str) -> list[int]:
        """Ids of the topic's queues, sorted."""
        return list(self._topics.get(topic, ()))

    def names(self) -> list[tuple[str, int]]:
        return [(topic, queue_id) for topic in self.topics() for queue_id in self._topics[topic]]

    def ext(self, topic: str, queue_id: int) -> ConsumeQueueExt:
        """The extension file that entries with an address for a tags code point into."""
        directory = f"{self._ext_directory}/{topic}/{queue_id}"
        return ConsumeQueueExt(self._file_system, directory, self._ext_file_size_bytes)

    def ext_writer(self, file_system: LocalFileSystem, topic: str, queue_id: int) -> ConsumeQueueExtWriter | None:
        """The writer of the queue's extension units; None if none are written."""
        if not self.writes_ext or self._ext_file_size_bytes is None:
            return None
        directory = f"{self._ext_directory}/{topic}/{queue_id}"
        return ConsumeQueueExtWriter(file_system, directory, self._ext_file_size_bytes)

    def last_ext_paths(self, topic: str, queue_id: int) -> list[str]:
        """The last extension file of a queue, and the directories up to ROOT; empty if there is none, or none is written."""
        directory = f"{self._ext_directory}/{topic}/{queue_id}"
        found = self._file_system.list_directory(directory) if self.writes_ext else ()
        last = next((f"{directory}/{entry.name}" for entry in reversed(found) if is_ext_file(entry)), None)
        root = posixpath.dirname(self._ext_directory)
        return [] if last is None else [last, directory, posixpath.dirname(directory), self._ext_directory, root]

    def delete(self, files: LocalFileSystem, topic: str) -> None:
        """Delete the files of a topic's queues, oldest first, then their directories. `discover` forgets the queues. Raises OSError."""
        for folder in (self.directory, self._ext_directory):
            path = f"{folder}/{topic}"
            if not files.exists(path):
                continue
            for queue in files.list_directory(path):
                if queue.is_directory:
                    for entry in files.list_directory(f"{path}/{queue.name}"):
                        files.unlink(posixpath.join(path, queue.name, entry.name))
                    files.remove_directory(f"{path}/{queue.name}")
            files.remove_directory(path)
            files.sync(folder)

    def close(self) -> None:
        for queues in self._topics.values():
            _close(queues)


def _queue_ids(listed: Sequence[DirectoryEntry]) -> set[int]:
    return {int(entry.name) for entry in listed if entry.is_directory and entry.name.isascii() and entry.name.isdigit()}


def _close(queues: Mapping[int, ConsumeQueue]) -> None:
    for queue in queues.values():
        queue.close()


_RECORD_BYTES = 16 << 20  # how much of the log a remote store fetches at a time
_RECORDS_AT_ONCE = 8_192
_NO_ENTRY = bytes(ENTRY_SIZE)
_ENTRIES_AT_ONCE = 8_192  # entries at a time
_GROWTH_ENTRIES = 31  # looked at behind a queue's end
_NO_BLOCK = bytes(ENTRY_SIZE * (1 + _GROWTH_ENTRIES))


class QueuePosition(NamedTuple):
    """The place in the log, size and store time of the message at one queue offset."""

    commitlog_offset: int
    size_bytes: int
    store_time_ms: int

    @property
    def end(self) -> int:
        """Log offset where the record ends."""
        return self.commitlog_offset + self.size_bytes


class TrueEntries(NamedTuple):
    """Which of n entries name a message of the validated log, and when it was stored (0 for the others)."""

    true: np.ndarray
    store_times_ms: np.ndarray


def true_entries(queues: Sequence[ConsumeQueue], entries: np.ndarray, log: CommitLog, log_end: int) -> TrueEntries:
    """Compare entry i of queue i with the record that it points to (`valid_entries` of many queues)."""
    places, sizes = entries["commitlog_offset"].astype(np.int64), entries["size_bytes"].astype(np.int64)
    true = is_entry(entries) & ~is_pre_blank(entries) & (places >= log.minimum) & (places + sizes <= log_end)
    rows = np.flatnonzero(true)
    true[rows] = False
    times = np.zeros(len(entries), np.int64)
    for some in _portions(rows[np.argsort(places[rows], kind="stable")], sizes):
        topics = pa.array([queues[row].topic.encode() for row in some.tolist()], pa.binary())
        queue_ids = np.array([queues[row].queue_id for row in some.tolist()], np.int64)
        for part, records in log.records(places[some], sizes[some]):
            agrees = records.agree_each(places[some[part]], sizes[some[part]], topics[part], queue_ids[part])
            true[some[part]] = agrees
            times[some[part]] = np.where(agrees, records.column("store_time_ms"), 0)
    return TrueEntries(true, times)


def read_positions(
    queues: Sequence[ConsumeQueue], offsets: Sequence[int], log: CommitLog, log_end: int
) -> list[QueuePosition | None]:
    """The place of the message at each queue's offset; None if none is visible.

    Raises OffsetOutOfRangeError if a file of a queue or of the log expired since it was listed.
    """
    read = (queue.bytes_from(offset, 1) or _NO_ENTRY for queue, offset in zip(queues, offsets, strict=True))
    entries = decode_entries(b"".join(read))
    true, times = true_entries(queues, entries, log, log_end)
    rows = zip(
        true.tolist(),
        entries["commitlog_offset"].tolist(),
        entries["size_bytes"].tolist(),
        times.tolist(),
        strict=True,
    )
    return [QueuePosition(place, size, time) if is_true else None for is_true, place, size, time in rows]


@dataclass(frozen=True, slots=True)
class GrownQueues:
    """By how many entries each of n queues has grown, and the place of its last message.

    A count of None: the queue did not just get a few valid entries. It must be looked at alone.
    """

    counts: list[int | None]
    last: list[QueuePosition]

    @classmethod
    def look(cls, queues: Sequence[tuple[ConsumeQueue, int, int]], log: CommitLog, log_end: int) -> GrownQueues:
        """`queues` with their known ends, and the log offset where the last message before each ends."""
        read = [_read_behind(queue, end) for queue, end, _ in queues]
        blocks = decode_entries(b"".join(data or _NO_BLOCK for data in read)).reshape(-1, 1 + _GROWTH_ENTRIES)
        written = is_entry(blocks) & ~is_pre_blank(blocks)
        before = blocks["commitlog_offset"][:, 0].astype(np.int64) + blocks["size_bytes"][:, 0]
        is_same = written[:, 0] & (before == np.array([last_place for *_, last_place in queues], np.int64))
        free = ~is_entry(blocks[:, 1:])
        counts = np.where(is_same & free.any(axis=1), free.argmax(axis=1), -1)
        last = blocks[np.arange(len(blocks)), np.maximum(counts, 0)]
        rows = np.flatnonzero(counts > 0)
        times = np.zeros(len(blocks), np.int64)
        true, times[rows] = true_entries([queues[row][0] for row in rows.tolist()], last[rows], log, log_end)
        counts[rows[~true]] = -1
        columns = (last["commitlog_offset"].tolist(), last["size_bytes"].tolist(), times.tolist())
        return cls(
            [count if count >= 0 else None for count in counts.tolist()],
            [QueuePosition(*position) for position in zip(*columns, strict=True)],
        )


def _read_behind(queue: ConsumeQueue, end: int) -> bytes | None:
    """The entry before the end and those after it; None if they are not in one file, or that is gone."""
    try:
        data = queue.bytes_from(end - 1, 1 + _GROWTH_ENTRIES) if end else b""
    except OffsetOutOfRangeError:
        return None
    return data if len(data) == len(_NO_BLOCK) else None


def _portions(rows: np.ndarray, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Groups of rows whose records need limited memory."""
    while len(rows):
        fitting = int(np.searchsorted(np.cumsum(sizes[rows[:_RECORDS_AT_ONCE]]), _RECORD_BYTES, side="right"))
        yield rows[: max(1, fitting)]
        rows = rows[max(1, fitting) :]


_FIRST_LOOK_ENTRIES = 205  # a page: most queues have nothing after it
_LONGEST_LOOK_ENTRIES = 4096
_TAILS_BYTES = 8 << 20  # how much of all queues' ends is held at a time


@dataclass(frozen=True, slots=True)
class QueueTails:
    """For n queues, by topic and id: the first queue offset without an entry, and the entry before it (zeros if there is none)."""

    queues: Sequence[ConsumeQueue]
    ends: np.ndarray
    last: np.ndarray
    zero_until: np.ndarray
    """The queue offset up to which only zeros follow the end."""

    def ends_by_name(self) -> dict[QueueName, int]:
        return _by_name(self.queues, self.ends)

    def zero_until_by_name(self) -> dict[QueueName, int]:
        return _by_name(self.queues, self.zero_until)

    def greatest_ends(self) -> np.ndarray:
        """Log offset where each queue's last message ends; −1 for a queue without messages."""
        ends = self.last["commitlog_offset"].astype(np.int64) + self.last["size_bytes"]
        return np.where(is_entry(self.last) & ~is_pre_blank(self.last), ends, -1)

    def places_by_name(self) -> dict[QueueName, int]:
        """`greatest_ends` by queue name."""
        return _by_name(self.queues, self.greatest_ends())

    def maybe_torn(self) -> frozenset[QueueName]:
        """Queues whose last entry may, after a crash, have place and size only."""
        torn = is_entry(self.last) & ~is_pre_blank(self.last) & may_be_torn(self.last["tags_code"])
        return frozenset((self.queues[row].topic, self.queues[row].queue_id) for row in np.flatnonzero(torn).tolist())

    def visible(self, log: CommitLog, log_end: int) -> QueueTails:
        """The tails without stale entries (`ConsumeQueue.visible_end`)."""
        sound = (
            true_entries(self.queues, self.last, log, log_end).true
            | is_pre_blank(self.last)
            | (self.last["commitlog_offset"] < log.minimum)
        )
        ends, last = self.ends.copy(), self.last.copy()
        for row in np.flatnonzero(~sound & is_entry(self.last)).tolist():
            queue = self.queues[row]
            ends[row] = queue.visible_end(int(self.ends[row]), log, log_end)
            last[row] = _entry_before(queue, int(ends[row]))
        return QueueTails(self.queues, ends, last, self.zero_until)


def read_tails(queues: Sequence[ConsumeQueue]) -> QueueTails:
    """Find the end of each queue, as `ConsumeQueue.written_end` does."""
    ends = np.array([queue.recovery_start for queue in queues], np.int64)
    limits = np.array([queue.last_file_end_offset for queue in queues], np.int64)
    last, is_known = np.zeros(len(queues), ENTRY), limits == 0
    zero_until = ends.copy()
    rows, count = np.flatnonzero(ends < limits), _FIRST_LOOK_ENTRIES
    while len(rows):
        going_on = []
        for some in np.array_split(rows, -(-len(rows) * count * ENTRY_SIZE // _TAILS_BYTES)):
            blocks, counts = _blocks(queues, some, ends, count)
            free = ~is_entry(blocks)
            found = np.where(free.any(axis=1), free.argmax(axis=1), count)
            has_any = np.flatnonzero(found)
            last[some[has_any]] = blocks[has_any, found[has_any] - 1]
            is_known[some[has_any]] = True
            behind = ~_is_zero(blocks) & (np.arange(count) >= found[:, np.newaxis])
            zero_until[some] = ends[some] + np.where(behind.any(axis=1), behind.argmax(axis=1), counts)
            ends[some] += found
            going_on.append(some[(found == counts) & (counts > 0) & (ends[some] < limits[some])])
        rows, count = np.concatenate(going_on), min(4 * count, _LONGEST_LOOK_ENTRIES)
    for row in np.flatnonzero(~is_known).tolist():
        last[row] = _entry_before(queues[row], int(ends[row]))
    for queue in queues:
        queue.close()
    return QueueTails(queues, ends, last, zero_until)


def _blocks(
    queues: Sequence[ConsumeQueue], rows: np.ndarray, starts: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """`count` entries of each queue as rows, zeros after the end of its file; and how many of them are in the file."""
    read = [
        queues[row].bytes_from(start, count) for row, start in zip(rows.tolist(), starts[rows].tolist(), strict=True)
    ]
    lengths = np.array([len(block) for block in read], np.int64)
    joined = b"".join(block.ljust(count * ENTRY_SIZE, b"\0") for block in read)
    return decode_entries(joined).reshape(len(rows), count), lengths // ENTRY_SIZE


def _is_zero(entries: np.ndarray) -> np.ndarray:
    return (entries["commitlog_offset"] == 0) & (entries["size_bytes"] == 0) & (entries["tags_code"] == 0)


def _entry_before(queue: ConsumeQueue, end: int) -> np.ndarray | np.void:
    return queue.entries(end - 1, end)[0] if end > queue.first_file_offset else np.zeros((), ENTRY)


def _by_name(queues: Sequence[ConsumeQueue], values: np.ndarray) -> dict[QueueName, int]:
    return {(queue.topic, queue.queue_id): value for queue, value in zip(queues, values.tolist(), strict=True)}


def offset_by_time(
    queue: ConsumeQueue,
    log: CommitLog,
    log_end: int,
    bounds: tuple[int, int],
    timestamp_ms: int,
    *,
    upper: bool = False,
) -> int:
    """The first offset within `bounds` (minimum and maximum) whose store time is not before `timestamp_ms`, or the maximum.

    With `upper` the last offset whose store time is not after it, or the minimum. Java: getOffsetInQueueByTime, BoundaryType.

    Raises OffsetOutOfRangeError if a file of the queue or of the log expired since it was listed.
    """
    low, high = bounds
    if isinstance(queue, TieredConsumeQueue) and low < (border := min(high, queue.border(log, high))):
        found = queue.offset_by_time((low, border), timestamp_ms, upper=upper)
        if found is not None:
            return found
        low = border
        bounds = border - 1 if upper else border, high
    last_before, first_not_before = bounds
    while low < high:
        middle = (low + high) // 2
        offset = _visible_from(queue, middle, high, log, log_end)
        if offset is None:
            high = middle
            continue
        position = read_positions([queue], [offset], log, log_end)[0]
        store_time = -1 if position is None else position.store_time_ms
        if store_time < timestamp_ms or (upper and store_time == timestamp_ms):
            low, last_before = offset + 1, offset
        else:
            high, first_not_before = middle, offset
    return last_before if upper else first_not_before


def _visible_from(queue: ConsumeQueue, start: int, end: int, log: CommitLog, log_end: int) -> int | None:
    """The first offset in [start, end) with a message: other offsets have no time to compare."""
    block_size = 1
    while start < end:
        entries = queue.entries(start, min(end, start + block_size))
        valid = valid_entries(entries, queue.topic, queue.queue_id, log, log_end)
        if valid.any():
            return start + int(np.argmax(valid))
        start, block_size = start + len(entries), min(8 * block_size, _ENTRIES_AT_ONCE)
    return None
