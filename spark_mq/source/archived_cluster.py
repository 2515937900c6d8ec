"""Queues that go on in an archive: what lies below a queue's minimum is read from the table, the rest where the brokers have it.

    offsets       |0 ──────────── table ────────────|minimum ───── log, or broker ─────▶
                  start of the archived life         the rest

A message that is in both is read once: the minimum decides, as it was at the last look. The table's newest life goes on in the log if
the log has the last archived record, or has it no more. If another record is there, the topic was made again since the last run of the
archiver, or the brokers have lost messages that are archived, or the store is older than the archive: what is below the minimum is not
known. That is a loss; if losses are tolerated, the log alone is read.

Offsets that are in neither, and named gaps, are a loss for the query that reads across them (`Life.losses_between`). Driver side.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from spark_mq.conditions import DataLossError, SparkMqError, warn_of_losses
from spark_mq.source.archive_files import ArchiveSplit, first_not_older, place_at, sizes_of, total_size
from spark_mq.source.archive_table import ArchiveTable, Life, Loss, Part, Place, last_place
from spark_mq.source.cluster import Cluster
from spark_mq.source.group_offsets import GroupOffsets
from spark_mq.source.offsets import QueueId, RecordPlace
from spark_mq.source.query_cluster import Piece, QueryCluster, Split
from spark_mq.source.ranges import QueueRange
from spark_mq.source.rows import RowRequest, ShownAs
from spark_mq.source.starting_offsets import QueueFacts
from storage.errors import OffsetOutOfRangeError

_LOG = logging.getLogger("spark_mq.source.archive")
LOOK_EVERY_S = 10.0
"""Between two looks at a table that nothing asks for."""


class ArchivedCluster:
    """The QueryCluster of an archive and of the brokers whose queues it has; of the archive alone without `brokers`."""

    def __init__(self, brokers: QueryCluster | None, table: ArchiveTable, *, fail_on_data_loss: bool = True) -> None:
        self._is_alone = brokers is None
        self._inner: QueryCluster = Cluster({}) if brokers is None else brokers
        self._table = table
        self._strict = fail_on_data_loss
        self._looked_at = time.monotonic()
        self._lives: dict[QueueId, Life | None] = {}
        self._shown: tuple[Sequence[QueueId], list[QueueId]] | None = None
        self._records_before: dict[tuple[QueueId, int], RecordPlace | None] = {}
        self._told: set[QueueId] = set()
        self._planned: set[str] = set()
        """The files that splits name."""
        self._there: tuple[Sequence[QueueId], frozenset[QueueId]] = (), frozenset()

    # What there is

    @property
    def brokers(self) -> Sequence[str]:
        if not self._is_alone:
            return self._inner.brokers
        return sorted({queue.broker_name for queue in self._table.queues()})

    @property
    def place(self) -> str:
        archive = f"the archive {self._table.place.url}"
        return archive if self._is_alone else f"{self._inner.place} and {archive}"

    def refresh(self) -> bool:
        """The brokers' news, and the table's: at once where a queue begins behind what is known of the table, else now and then."""
        changed = self._inner.refresh()
        if changed:
            self._forget()
        is_behind = changed and any(
            life is not None and life.end < self._inner.bounds(queue)[0]
            for queue, life in ((queue, self._table.newest(queue)) for queue in self._inner.queues())
        )
        if is_behind or time.monotonic() - self._looked_at >= LOOK_EVERY_S:
            changed = self._look_at_table() or changed
        return changed

    def _look_at_table(self) -> bool:
        self._looked_at = time.monotonic()
        if not self._table.refresh():
            return False
        self._forget()
        self._shown = None
        return True

    def _forget(self) -> None:
        self._lives.clear()
        self._records_before.clear()

    def _has(self, queue: QueueId) -> bool:
        """Whether the brokers have the queue."""
        there = self._inner.queues()
        if self._there[0] is not there:
            self._there = there, frozenset(there)
        return queue in self._there[1]

    def queues(self) -> Sequence[QueueId]:
        there = self._inner.queues()
        if self._shown is None or self._shown[0] is not there:
            names = set(self.brokers)
            archived = (queue for queue in self._table.queues() if queue.broker_name in names)
            self._shown = there, sorted({*there, *archived})
        return self._shown[1]

    @property
    def topics(self) -> Sequence[str]:
        return sorted({*self._inner.topics, *(queue.topic for queue in self.queues())})

    def queue_count(self, topic: str) -> int:
        archived = [queue.queue_id + 1 for queue in self.queues() if queue.topic == topic]
        return max(self._inner.queue_count(topic), *archived, 0) if archived else self._inner.queue_count(topic)

    def is_system_topic(self, topic: str) -> bool:
        from storage.names import is_system_topic

        return is_system_topic(topic) if self._is_alone else self._inner.is_system_topic(topic)

    def refuse_batch_topics(self, topics: Sequence[str]) -> None:
        there = {queue.topic for queue in self._inner.queues()}
        self._inner.refuse_batch_topics([topic for topic in topics if topic in there])

    def await_brokers(self, brokers: Collection[str]) -> bool:
        return self._inner.await_brokers(brokers)

    def refuse_lost_queues(self, brokers: Collection[str]) -> None:
        self._inner.refuse_lost_queues(brokers)

    # Where the table ends and the log begins

    def _life(self, queue: QueueId) -> Life | None:
        """The archived life that goes on in the log; None if there is none."""
        if queue not in self._lives:
            self._lives[queue] = self._joined(queue)
        return self._lives[queue]

    def _joined(self, queue: QueueId) -> Life | None:
        life = self._table.newest(queue)
        if life is None or not life.parts or not self._has(queue):
            return life if life is not None and life.parts else None
        minimum, maximum = self._inner.bounds(queue)
        if life.end <= minimum or minimum >= maximum:
            return life
        # The table may know messages that came after our last look at the brokers.
        last = last_place(self._table.place, life, maximum)
        if last is None or last[0] < minimum:
            return life
        found = self._inner.record_before(queue, last[0] + 1)
        if found is None or found[1] == last[1][1]:
            return life
        text = (
            f"queue {queue}: its archive cannot be read: another record than the archived one stands at offset {last[0]}. "
            "The topic was made again, or its messages are not those that were archived; spark-mq job archive finds out"
        )
        if self._strict:
            raise DataLossError(text)
        if queue not in self._told:
            self._told.add(queue)
            warn_of_losses([text])
        return None

    def _border(self, queue: QueueId) -> int:
        """The first offset that is read from the log."""
        if self._has(queue):
            minimum, maximum = self._inner.bounds(queue)
            return minimum if maximum > minimum else max(minimum, maximum)
        life = self._life(queue)
        return 0 if life is None else life.end

    # Positions

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        life = self._life(queue)
        if not self._has(queue):
            return (0, 0) if life is None else (life.start, life.end)
        minimum, maximum = self._inner.bounds(queue)
        return (minimum, maximum) if life is None else (min(life.start, minimum), max(minimum, maximum))

    def minimum(self, queue: QueueId) -> int:
        return self.bounds(queue)[0]

    def earliest(self, queues: Collection[QueueId]) -> Mapping[QueueId, int]:
        """Where the archived life starts, or the first message of the log if that is before it or no life is archived."""
        starts = {queue: life.start for queue in queues if (life := self._life(queue)) is not None}
        in_log = [
            queue
            for queue in queues
            if self._has(queue) and (queue not in starts or self._inner.bounds(queue)[0] < starts[queue])
        ]
        found = self._inner.earliest(in_log)
        return {
            queue: min((each[queue] for each in (starts, found) if queue in each), default=self.minimum(queue))
            for queue in queues
        }

    def maximum(self, queue: QueueId) -> int:
        return self.bounds(queue)[1]

    def offset_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        is_there = self._has(queue)
        found = self._inner.offset_by_time(queue, timestamp_ms) if is_there else None
        border, life = self._border(queue), self._life(queue)
        if life is None or (found is not None and found > border):
            return found
        if found is None and is_there and self._inner.bounds(queue)[0] < self._inner.bounds(queue)[1]:
            return None  # the last message is in the log, and older
        archived = first_not_older(self._table.place, life.between(life.start, border), timestamp_ms)
        return archived if archived is not None and archived < border else found

    def end_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        return self.offset_by_time(queue, timestamp_ms)

    def moved_away(self, queue: QueueId) -> str:
        return self._inner.moved_away(queue)

    def group_offset(self, group: str, queue: QueueId) -> int | None:
        return self._inner.group_offset(group, queue) if self._has(queue) else None

    def record_before(self, queue: QueueId, offset: int) -> RecordPlace | None:
        border = self._border(queue)
        if offset > border:
            return self._inner.record_before(queue, offset)
        if (queue, offset) not in self._records_before:
            life = self._life(queue)
            parts = [] if life is None else life.between(offset - 1, offset)
            places = (place_at(self._table.place, part, offset - 1) for part in parts)
            self._records_before[queue, offset] = next((place for place in places if place is not None), None)
        return self._records_before[queue, offset]

    def first_from(self, queue: QueueId, offset: int) -> int | None:
        return self._inner.first_from(queue, offset)

    def is_compacted(self, queue: QueueId) -> bool:
        return self._inner.is_compacted(queue)

    def look_up(self, offsets: Mapping[QueueId, int]) -> None:
        self._inner.look_up({queue: offset for queue, offset in offsets.items() if offset > self._border(queue)})

    def facts(self, queue: QueueId) -> QueueFacts | None:
        facts = self._inner.facts(queue)
        if facts is None and self._life(queue) is None:
            return None
        minimum, maximum = self.bounds(queue)
        made = QueueFacts(minimum, maximum, lambda offset: self.record_before(queue, offset))
        return (
            made
            if facts is None
            else facts._replace(minimum=minimum, maximum=maximum, record_before=made.record_before)
        )

    # Sizes

    @property
    def tells_sizes(self) -> bool:
        return self._inner.tells_sizes

    def bytes_between(self, queue: QueueId, start: int, end: int) -> int:
        border = self._border(queue)
        stop, total = min(end, border), 0
        for part in self._parts(queue, start, stop):
            if start <= part.start and part.end <= stop:
                total += total_size(self._table.place, part)
                continue
            offsets, sums = sizes_of(self._table.place, part)
            low, high = offsets.searchsorted(start), offsets.searchsorted(stop)
            if high > low:
                total += int(sums[high - 1]) - (int(sums[low - 1]) if low else 0)
        return total + (self._inner.bytes_between(queue, max(start, border), end) if end > border else 0)

    def offset_at_bytes(self, queue: QueueId, start: int, size_bytes: int) -> int:
        border = self._border(queue)
        for part in self._parts(queue, start, border):
            offsets, sums = sizes_of(self._table.place, part)
            low, stop = int(offsets.searchsorted(start)), int(offsets.searchsorted(border))
            before = int(sums[low - 1]) if low else 0
            high = int(sums.searchsorted(before + size_bytes, side="right"))
            if high < stop:
                return int(offsets[high])
            size_bytes -= int(sums[stop - 1]) - before if stop > low else 0
        return self._inner.offset_at_bytes(queue, max(start, border), size_bytes) if self._has(queue) else border

    # Reading

    def _parts(self, queue: QueueId, start: int, end: int) -> list[Part]:
        life = self._life(queue)
        return [] if life is None else life.between(start, end)

    def physical(self, piece: QueueRange) -> list[tuple[QueueRange, ShownAs | None]]:
        """The part below the border, and the rest. Raises DataLossError for offsets that are in neither, unless loss is tolerated."""
        border = self._border(piece.queue)
        archived = piece._replace(end=min(piece.end, border))
        pieces: list[tuple[QueueRange, ShownAs | None]] = []
        if archived.size > 0:
            self._refuse_loss(archived)
            pieces.append((archived, None))
        rest = piece._replace(start=max(piece.start, border))
        return [*pieces, *(self._inner.physical(rest) if rest.size > 0 else [])]

    def _refuse_loss(self, piece: QueueRange) -> None:
        life = self._life(piece.queue) or Life(piece.queue, 0, piece.start, (), ())
        refuse(life.losses_between(piece.start, piece.end), is_strict=self._strict)

    def physical_positions(self, offsets: Mapping[QueueId, int]) -> Mapping[QueueId, int]:
        return self._inner.physical_positions({queue: offset for queue, offset in offsets.items() if self._has(queue)})

    def split(self, piece: Piece, request: RowRequest) -> Split:
        queue, ranges, _ = piece
        life = self._life(queue)
        if ranges[-1][1] > self._border(queue):
            inner = self._inner.split(piece, request)
            newest = self._table.newest(queue)
            if life is None and newest is not None and newest.parts:  # it is not the log's
                return inner
            return LogSplit(self._table.place, inner, self._rank(queue), 0 if newest is None else newest.incarnation)
        for start, end in ranges:  # the border may have moved since `physical`
            self._refuse_loss(QueueRange(queue, start, end))
        parts = self._parts(queue, ranges[0][0], ranges[-1][1])
        if request.key is not None:
            parts = [part for part in parts if part.may_have_key(request.key)]
        self._planned.update(part.path for part in parts)
        return ArchiveSplit(self._table.place, queue, self._rank(queue), ranges, tuple(parts), request)

    def _rank(self, queue: QueueId) -> int:
        return list(self.brokers).index(queue.broker_name)

    def offsets_with_key(self, piece: QueueRange, key: str) -> tuple[tuple[int, int], ...]:
        """Below the border: the offsets of the files whose statistics admit the key."""
        if piece.end > self._border(piece.queue):
            return self._inner.offsets_with_key(piece, key)
        found: list[tuple[int, int]] = []
        for part in self._parts(piece.queue, piece.start, piece.end):
            if part.may_have_key(key):
                start, end = max(part.start, piece.start), min(part.end, piece.end)
                if found and start <= found[-1][1]:
                    start, end = found[-1][0], max(end, found.pop()[1])
                found.append((start, end))
        return tuple(found)

    def group_offsets(self, group: str) -> GroupOffsets:
        return self._inner.group_offsets(group)

    def close(self) -> None:
        if self._planned:
            count = len(self._table.files())
            _LOG.info("archive %s: the query opens %d of %d files", self._table.place.url, len(self._planned), count)
        self._inner.close()


def refuse(losses: Sequence[Loss], *, is_strict: bool) -> None:
    """Raise DataLossError for losses, or warn of them where they are tolerated."""
    texts = [str(loss) for loss in losses]
    if texts and is_strict:
        raise DataLossError(*texts)
    warn_of_losses(texts)


@dataclass(frozen=True, slots=True)
class LogSplit:
    """A split of the log whose messages may expire before a task has read them. What was archived by then is read from there.

    `incarnation` is the life of the queue that goes on in the log, as it was planned.
    """

    place: Place
    inner: Any
    broker_rank: int
    incarnation: int

    @property
    def queue(self) -> QueueId:
        queue: QueueId = self.inner.queue
        return queue

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        ranges: tuple[tuple[int, int], ...] = self.inner.ranges
        return ranges

    def read(self) -> Iterator[pa.RecordBatch]:
        """As the inner split's, which is read first. Raises what it raises where the archive does not have what it lacks."""
        request: RowRequest = self.inner.request
        offset = "offset" if request.kafka else "queue_offset"
        names = tuple(dict.fromkeys([*request.column_names, offset]))
        is_lenient = request.asks_leniently or not request.fail_on_data_loss
        strictly = replace(request, column_names=names, fail_on_data_loss=True, asks_leniently=is_lenient)
        strict = replace(self.inner, request=strictly)
        at = self.ranges[0][0]
        try:
            for batch in strict.read():
                if batch.num_rows:
                    at = int(batch.column(offset)[-1].as_py()) + 1
                yield batch.select(list(request.column_names))
            return
        except (OffsetOutOfRangeError, DataLossError, SparkMqError) as error:
            if DataLossError.condition not in str(error):
                raise
            lost = error
        yield from self._from_archive(at, lost)

    def _life_now(self) -> Life | None:
        """What the table has now of the planned life; None if it has nothing, or another one is the newest."""
        life = ArchiveTable.open(self.place).newest(self.queue)
        return None if life is None or life.incarnation != self.incarnation else life

    def _from_archive(self, at: int, lost: Exception) -> Iterator[pa.RecordBatch]:
        """The rest, from offset `at`, by the table as it is now."""
        request: RowRequest = self.inner.request
        ranges = [(max(start, at), end) for start, end in self.ranges if end > at]
        life = self._life_now()
        if life is None and request.fail_on_data_loss:
            raise lost
        if life is not None:
            archived = tuple((start, min(end, life.end)) for start, end in ranges if start < life.end)
            losses = [loss for start, end in archived for loss in life.losses_between(start, end)]
            refuse(losses, is_strict=request.fail_on_data_loss)
            parts = dict.fromkeys(part for start, end in archived for part in life.between(start, end))
            some = tuple(part for part in parts if request.key is None or part.may_have_key(request.key))
            yield from ArchiveSplit(self.place, self.queue, self.broker_rank, archived, some, request).read()
            ranges = [(max(start, life.end), end) for start, end in ranges if end > life.end]
        if ranges:
            yield from replace(self.inner, ranges=tuple(ranges)).read()
