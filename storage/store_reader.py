"""Reading an open store: messages by queue, key, time or place. Java: DefaultMessageStore.getMessage, queryMessage.

What is served has a queue entry, lies inside the validated log, and its record agrees with the entry in size, place, topic and
queue id. Nothing here changes a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from itertools import islice
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from storage.dispatch.queue_ends import VisibleEnds
from storage.epoch_times import other_unit_rule
from storage.errors import OffsetOutOfRangeError, StoreRefusedError, TopicNotFoundError
from storage.files.atomic_file import read_table
from storage.files.file_system import FileSystem
from storage.format.java_hash import string_hash
from storage.format.record import Message
from storage.index.store import LONG_MAX, IndexStore, messages_with_key
from storage.log.commit_log import CommitLog
from storage.log.fingerprint import LogFingerprint, take_fingerprint
from storage.nearest_name import nearest
from storage.queues.consume_queue import ConsumeQueue, valid_entries
from storage.queues.positions import QueuePosition, read_positions
from storage.queues.scan import SLICE_ROWS, TORN_TAGS_CODES, record_sizes
from storage.queues.store import ConsumeQueueStore
from storage.tables.topics import FILE_NAME as TOPICS_FILE
from storage.tables.topics import TopicTable

MAX_TRANSFER_BYTES = 256 << 10  # maxTransferBytesOnMessageInMemory
_MAX_FILTER_BYTES = 16_000  # maxFilterMessageSize: bytes of queue entries that one get looks at
_ENTRIES_LOOKED_AT = 64
_T = TypeVar("_T")
_P = ParamSpec("_P")


def _outliving_expiry(
    look: Callable[Concatenate[StoreReader, _P], _T],
) -> Callable[Concatenate[StoreReader, _P], _T]:
    """A look that begins anew where files expired since they were listed: each time there are fewer."""

    @wraps(look)
    def repeated(store: StoreReader, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        while True:
            try:
                return look(store, *args, **kwargs)
            except OffsetOutOfRangeError as error:
                if not store._list_again(error):
                    raise

    return repeated


class StoreReader(ABC):
    """The reading half of a `MessageStore`."""

    root: str
    log: CommitLog
    queues: ConsumeQueueStore
    index: IndexStore
    _file_system: FileSystem

    @property
    @abstractmethod
    def _ends(self) -> VisibleEnds:
        """Where log and queues end, as far as is known now."""

    # What there is

    @property
    def log_end(self) -> int:
        """Where the validated log ends."""
        return self._ends.log_end

    @_outliving_expiry
    def fingerprint(self) -> LogFingerprint | None:
        """What tells this store's log from another one, for a process that opens the store after this one; None of an empty log."""
        return take_fingerprint(self.log, self.log_end, self._ends.last_record)

    @_outliving_expiry
    def last_message_end(self, topic: str, queue_id: int, end: int) -> tuple[int, int] | None:
        """The last of the few offsets before `end` that has an entry, and where in the log its message ends; reads nothing for a
        queue's own end.
        """
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return None
        known = self._ends.last_message_end(topic, queue_id) if end == self.max_offset(topic, queue_id) else None
        return (end - 1, known) if known is not None else queue.last_message_end(max(0, end - _ENTRIES_LOOKED_AT), end)

    def topics(self) -> list[str]:
        """Topics that have a queue, sorted."""
        return self.queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Queue ids of a topic, sorted; empty if there is none. Raises StoreRefusedError for a batch-queue topic."""
        if topic in self.queues.batch_topics:
            raise StoreRefusedError(self.root, f"topic {topic} has batch consume queues (queue.type=BatchCQ)")
        return self.queues.queue_ids(topic)

    @_outliving_expiry
    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset whose message the log still holds; the maximum if it holds none."""
        queue = self.queues.get(topic, queue_id)
        return 0 if queue is None else self._ends.minimum(queue)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset behind the last message."""
        return self._ends.maximum(topic, queue_id)

    @_outliving_expiry
    def bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """`min_offset` and `max_offset`; None of a queue that is not there."""
        ends = self._ends
        known = ends.known_bounds((topic, queue_id))
        if known is not None:
            return known
        queue = self.queues.get(topic, queue_id)
        return None if queue is None else (ends.minimum(queue), ends.maximum(topic, queue_id))

    @property
    def undispatched_bytes(self) -> int:
        """Valid records at the log's end that no queue names yet. Java: dispatchBehindBytes."""
        return max(0, self.log_end - max(self._ends.dispatched_end, self.log.minimum)) if self.log.files else 0

    def _list_again(self, error: OffsetOutOfRangeError) -> bool:
        """Look which files of the log and of the error's queue are there; returns whether it is others than before."""
        files = self.log.files
        self.log.list_files()
        queue = None if error.queue_id is None else self.queues.get(error.topic, error.queue_id)
        starts = () if queue is None else queue.file_starts
        if queue is not None:
            queue.list_files()
        return self.log.files != files or (queue is not None and queue.file_starts != starts)

    # Reading

    @_outliving_expiry
    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        *,
        tags: str | None = None,
        max_bytes: int = MAX_TRANSFER_BYTES,
    ) -> GetResult:
        """Messages from a queue offset on, at most `max_count` and (but for the first) `max_bytes`. Java: getMessage.

        `tags` is "TagA || TagB"; None or "*" is all. `next_begin_offset` is where to go on, whatever the status. Like Java's,
        one call reads from one queue file and looks at 800 entries at most when it filters.
        """
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        minimum, maximum = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        if maximum == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, minimum, maximum)
        if offset < minimum:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum)
        if offset >= maximum:
            status = GetStatus.OFFSET_OVERFLOW_ONE if offset == maximum else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetResult(status, maximum, minimum, maximum)
        return self._get_inside(queue, offset, minimum, maximum, max_count, tags, max_bytes)

    def _get_inside(
        self,
        queue: ConsumeQueue,
        offset: int,
        minimum: int,
        maximum: int,
        max_count: int,
        tags: str | None,
        max_bytes: int,
    ) -> GetResult:
        file_entries = queue.file_size_bytes // 20
        last = min(
            maximum, offset + max(_MAX_FILTER_BYTES // 20, max_count), (offset // file_entries + 1) * file_entries
        )
        entries = queue.entries(offset, last)
        wanted = None if tags in (None, "*", "") else frozenset(tag.strip() for tag in (tags or "").split("||"))
        codes = self.queues.ext(queue.topic, queue.queue_id).tags_codes(entries["tags_code"])
        hashes = None if wanted is None else {string_hash(tag) for tag in wanted}
        valid = np.empty(0, bool)
        messages: list[Message] = []
        status, total, next_offset = GetStatus.NO_MATCHED_MESSAGE, 0, offset
        for number in range(len(entries)):
            size = int(entries["size_bytes"][number])
            if messages and (len(messages) >= max_count or total + size > max_bytes):
                break
            next_offset = offset + number + 1
            if hashes is not None and int(codes[number]) not in hashes | TORN_TAGS_CODES:
                continue
            if number >= len(valid):  # a block at a time: most calls need no more than the first
                block = entries[number : number + max_count]
                block = block[: max(1, int(np.searchsorted(np.cumsum(record_sizes(block)), max_bytes, side="right")))]
                sound = valid_entries(block, queue.topic, queue.queue_id, self.log, self.log_end)
                valid = np.concatenate((valid, np.zeros(number - len(valid), bool), sound))
            if not valid[number]:
                status = status if messages else GetStatus.MESSAGE_WAS_REMOVING
                continue
            message = self.log.message_at(int(entries["commitlog_offset"][number]), self.log_end)
            if wanted is not None and message.tags not in wanted:
                continue
            messages.append(message)
            total += size
            status = GetStatus.FOUND
        return GetResult(status, next_offset, minimum, maximum, tuple(messages))

    def message_by_commitlog_offset(self, commitlog_offset: int) -> Message:
        """The message whose record begins there. Java: lookMessageByOffset.

        Raises OffsetOutOfRangeError outside the validated log, CorruptRecordError where no record begins.
        """
        return self.log.message_at(commitlog_offset, self.log_end)

    def query(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int = LONG_MAX
    ) -> list[Message]:
        """What `messages_by_key` finds; where it finds nothing, raises TopicNotFoundError for a topic that the store does not know.

        Raises ValueError for times that look like seconds, microseconds or nanoseconds.
        """
        _refuse_other_unit(begin_ms)
        _refuse_other_unit(end_ms)
        found = self.messages_by_key(topic, key, max_count, begin_ms=begin_ms, end_ms=end_ms)
        if not found:
            self._refuse_unknown_topic(topic)
        return found

    def messages_by_key(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int = LONG_MAX
    ) -> list[Message]:
        """The newest `max_count` messages of a topic with that key or unique key, by place in the log. Java: queryMessage.

        The key is compared with the record's. The time range is Java's: by whole seconds of the store time.
        Raises IndexGeometryUnknownError where the index files do not have the configured or default geometry.
        """
        found = messages_with_key(self.index, self.log, self.log_end, topic, key, begin_ms=begin_ms, end_ms=end_ms)
        return sorted(islice(found, max_count), key=lambda message: message.commitlog_offset)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """What `offset_in_queue_by_time` answers, of a topic that the store knows, by a time in milliseconds.

        Raises TopicNotFoundError for another topic, and ValueError for a time that looks like seconds, microseconds or nanoseconds.
        """
        _refuse_other_unit(timestamp_ms)
        if self.queues.get(topic, queue_id) is None:
            self._refuse_unknown_topic(topic)
        return self.offset_in_queue_by_time(topic, queue_id, timestamp_ms, upper=upper)

    @_outliving_expiry
    def offset_in_queue_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """The first offset whose store time is not before `timestamp_ms`, or the maximum (Java: BoundaryType.LOWER).

        With `upper` the last offset whose store time is not after it, or the minimum. 0 for a queue that is not there, whatever its
        topic. Java: getOffsetInQueueByTime.
        """
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return 0
        minimum, maximum = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        low, high = minimum, maximum
        first_not_before, last_before = maximum, minimum
        while low < high:
            middle = (low + high) // 2
            offset = self._visible_from(queue, middle, high)
            if offset is None:
                high = middle
                continue
            store_time = self.store_time(queue, offset)
            if store_time < timestamp_ms or (upper and store_time == timestamp_ms):
                low, last_before = offset + 1, offset
            else:
                high, first_not_before = middle, offset
        return last_before if upper else first_not_before

    def _refuse_unknown_topic(self, topic: str) -> None:
        """Raises TopicNotFoundError for a topic without a queue that topics.json does not name either."""
        table = self.state(TOPICS_FILE, TopicTable.load)
        known = {*self.topics(), *self.queues.batch_topics, *(table.topics if table is not None else ())}
        if topic not in known:
            raise TopicNotFoundError(self.root, topic, nearest(topic, known))

    def _visible_from(self, queue: ConsumeQueue, start: int, end: int) -> int | None:
        """The first offset in [start, end) with a message: offsets without one have no time to compare."""
        block_size = 1
        while start < end:
            entries = queue.entries(start, min(end, start + block_size))
            valid = valid_entries(entries, queue.topic, queue.queue_id, self.log, self.log_end)
            if valid.any():
                return start + int(np.argmax(valid))
            start, block_size = start + len(entries), min(8 * block_size, SLICE_ROWS)
        return None

    def store_time(self, queue: ConsumeQueue, offset: int) -> int:
        """Store time of the message at a queue offset; −1 where none is."""
        position = self.position(queue.topic, queue.queue_id, offset)
        return -1 if position is None else position.store_time_ms

    @_outliving_expiry
    def position(self, topic: str, queue_id: int, offset: int) -> QueuePosition | None:
        """Where the message at a queue offset lies and when it was stored; None where none is to be seen."""
        return self._positions([(topic, queue_id, offset)])[0]

    def positions(self, asked: Sequence[tuple[str, int, int]]) -> list[QueuePosition | None]:
        """`position` of many (topic, queue id, queue offset): much cheaper than one after the other."""
        try:
            return self._positions(asked)
        except OffsetOutOfRangeError:  # one of them has expired meanwhile
            return [self.position(*one) for one in asked]

    def _positions(self, asked: Sequence[tuple[str, int, int]]) -> list[QueuePosition | None]:
        ends = self._ends
        found = [ends.position((topic, queue_id), offset) for topic, queue_id, offset in asked]
        queues: list[ConsumeQueue] = []
        rows, offsets = [], []
        for row, (topic, queue_id, offset) in enumerate(asked):
            queue = self.queues.get(topic, queue_id) if found[row] is None else None
            if queue is not None and 0 <= offset < ends.maximum(topic, queue_id):
                rows.append(row)
                queues.append(queue)
                offsets.append(offset)
        for row, position in zip(rows, read_positions(queues, offsets, self.log, self.log_end), strict=True):
            found[row] = position
            if position is not None:
                ends.note_position(asked[row][:2], asked[row][2], position)
        return found

    @_outliving_expiry
    def size_between(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """Bytes of the records at queue offsets [start, end), as the queue's entries tell them."""
        queue = self.queues.get(topic, queue_id)
        blocks = range(start, end, SLICE_ROWS) if queue is not None else ()
        return sum(int(record_sizes(queue.entries(at, min(end, at + SLICE_ROWS))).sum()) for at in blocks if queue)

    @_outliving_expiry
    def offset_at_size(self, topic: str, queue_id: int, start: int, size_bytes: int) -> int:
        """The greatest offset up to which the records from `start` on have at most `size_bytes`; the maximum if all fit."""
        queue, end = self.queues.get(topic, queue_id), self.max_offset(topic, queue_id)
        while queue is not None and start < end:
            sizes = np.cumsum(record_sizes(queue.entries(start, min(end, start + SLICE_ROWS))))
            fitting = int(np.searchsorted(sizes, size_bytes, side="right"))
            if fitting < len(sizes):
                return start + fitting
            start, size_bytes = start + fitting, size_bytes - int(sizes[-1])
        return end

    def state(self, name: str, parse: Callable[[str, str], _T]) -> _T | None:
        """A table of config/NAME, or of its `.bak` (Java: ConfigManager.load); None where there is neither.

        Raises StateFileError where neither can be read: what it says is not known then, and not nothing.
        """
        return read_state(self._file_system, self.root, name, parse)


def _refuse_other_unit(time_ms: int) -> None:
    if rule := other_unit_rule(time_ms):
        raise ValueError(rule)


def read_state(file_system: FileSystem, root: str, name: str, parse: Callable[[str, str], _T]) -> _T | None:
    """`StoreReader.state` of a store that need not be open."""
    return read_table(f"{root}/config/{name}", parse, file_system.read_file)


class GetStatus(Enum):
    """How a `get` ended. Java: GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class GetResult:
    """What a `get` found. Java: GetMessageResult."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[Message, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(message.size_bytes for message in self.messages)
