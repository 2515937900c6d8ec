"""A query's lag for each queue, in rows, bytes and time: computed by the source, read from a query's progress.

Only the JSON of its offsets gets from a Python source into Spark's progress. Therefore `reportLatestOffset` returns

    {"queues":        {"TopicA": {"broker-a": {"0": {"next": 120, "before": [9000, 1700000000000]}}}},
     "unread":        {"TopicA": {"broker-a": {"0": {"from": 100, "bytes": 20480}}}},
     "commitOffsets": {"group": "G", "skipped": {"broker-a": "…"}}}

`queues` holds the ends of the queues, in the checkpoint's shape. `unread` holds the distance from the end of the planned batch to the
end of the queue, for queues where it is not empty (bytes null: not counted yet). `commitOffsets` appears with that option.

The lag is the rest after the progress's batch. An unknown value is None, never 0: also where a queue ends before the batch, because
its messages are others than those that were read (`Position`). Spark: KafkaMicroBatchStream.metrics
(offsetsBehindLatest), which has rows only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from spark_mq.conditions import OffsetJsonError
from spark_mq.source.offsets import QueueId, QueueOffset, QueueOffsets
from spark_mq.source.ranges import MessageSizes

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

ENTRIES_A_LOOK = 4 << 20
"""Queue entries that one look counts at most (80 MB): of a longer backlog the bytes are unknown until it was gone through."""


class Position(NamedTuple):
    """One reader in one queue, as a look found it; None = unknown. Its `lag` is the one rule for queries and groups."""

    broker_offset: int | None
    """The queue's end: the offset of the next message. None: the queue is not there."""
    group_offset: int | None
    """The next offset to read. None: nothing is stored."""
    unread_since_ms: int | None = None
    """When the oldest unread message was stored. None, too, where nothing is unread."""
    unread_bytes: int | None = None

    @property
    def lag(self) -> int | None:
        """Number of unread offsets. A queue that never had a message has none."""
        if self.broker_offset == 0 and not self.group_offset:
            return 0
        if self.broker_offset is None or self.group_offset is None or self.group_offset > self.broker_offset:
            return None
        return self.broker_offset - self.group_offset


class QueueLag(NamedTuple):
    """A query's lag in one queue. None = unknown; all three are 0 without a lag.

    `rows` are offsets, gaps included. `bytes` are whole records, as the queue's entries tell their sizes. `time_ms` is the
    store time of the newest message less that of the last one read.
    """

    topic: str
    broker_name: str
    queue_id: int
    rows: int | None
    bytes: int | None
    time_ms: int | None


class Total(NamedTuple):
    """The lag over several queues: rows and bytes added up, the longest time; None as soon as one is unknown."""

    rows: int | None
    bytes: int | None
    time_ms: int | None


def queue_lags(progress: StreamingQueryProgress, latest: Mapping[int, str] = MappingProxyType({})) -> list[QueueLag]:
    """The lag of every queue of the progress's `spark_mq` sources, in queue order; other sources are passed over.

    A queue whose position alone is in the progress (Spark asks for no latest offset when it repeats a batch after
    a restart) has three unknowns, unless `latest` holds its source's latest offset, by the source's number in the progress.
    """
    return [
        lag
        for number, source in enumerate(progress.sources)
        for lag in _lags(source.endOffset, latest.get(number, source.latestOffset))
    ]


def sources_without_latest(progress: StreamingQueryProgress) -> list[int]:
    """The numbers of the `spark_mq` sources whose latest offset is missing in the progress."""
    return [
        number
        for number, source in enumerate(progress.sources)
        if position_of(source.endOffset) is not None and not _is_latest(_loads(source.latestOffset))
    ]


def source_metrics(lags: Collection[QueueLag]) -> dict[str, str]:
    """Like the metrics of Spark's Kafka source in a progress: offsets behind the latest, as text.

    Empty where a lag is unknown, or where there is no queue. PySpark 4.2 takes no metrics from a Python source, so `sources[].metrics`
    of a progress stays empty. Spark: KafkaMicroBatchStream.metrics.
    """
    rows = [lag.rows for lag in lags]
    known = [row for row in rows if row is not None]
    if not known or len(known) < len(rows):
        return {}
    return {
        "minOffsetsBehindLatest": str(min(known)),
        "maxOffsetsBehindLatest": str(max(known)),
        "avgOffsetsBehindLatest": str(sum(known) / len(known)),
    }


def skipped_commits(progress: StreamingQueryProgress) -> dict[str, str]:
    """By broker name, why option commitOffsets could not store the group's offsets; empty when it could, or is off."""
    skipped: dict[str, str] = {}
    for source in progress.sources:
        latest = _loads(source.latestOffset)
        if _is_latest(latest):
            skipped |= latest.get("commitOffsets", {}).get("skipped", {})
    return skipped


def total_lag(lags: Collection[QueueLag]) -> Total:
    """The lag of a whole query."""
    return Total(
        _sum([lag.rows for lag in lags]), _sum([lag.bytes for lag in lags]), _longest([lag.time_ms for lag in lags])
    )


def _sum(values: Collection[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _longest(values: Collection[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known, default=0) if len(known) == len(values) else None


# Counting, in the source


class Unread(NamedTuple):
    """The unread part of a queue after `start`, the offset up to which a query has planned. None = not counted yet."""

    start: int
    bytes: int | None


class QueueSizes(MessageSizes, Protocol):
    """The cluster's methods for counting."""

    def minimum(self, queue: QueueId) -> int: ...


def unread_without_sizes(
    starts: Mapping[QueueId, int], ends: Mapping[QueueId, int], minimum: Callable[[QueueId], int]
) -> dict[QueueId, Unread]:
    """Like `UnreadBytes.count`, if sizes are unknown."""
    all_starts = {queue: starts[queue] if queue in starts else minimum(queue) for queue in ends}
    return {queue: Unread(start, None) for queue, start in all_starts.items() if start < ends[queue]}


class _Counted(NamedTuple):
    """`bytes` of the messages from `start` to `end`."""

    start: int
    end: int
    bytes: int


class UnreadBytes:
    """Keeps count of the bytes that a query has not planned to read.

    Each queue entry is looked up twice at most: when the queue has grown by it, and when a batch takes it; a query that takes
    all there is looks up none.
    """

    def __init__(self, entries_a_look: int = ENTRIES_A_LOOK) -> None:
        self._entries_a_look = entries_a_look
        self._counted: dict[QueueId, _Counted] = {}

    def forget(self, queues: Iterable[QueueId]) -> None:
        """Other messages stand in these queues than did."""
        for queue in queues:
            self._counted.pop(queue, None)

    def count(
        self, starts: Mapping[QueueId, int], ends: Mapping[QueueId, int], sizes: QueueSizes
    ) -> dict[QueueId, Unread]:
        """The unread part between the two positions, for queues of `ends` where it is not empty.

        A queue without a start (it is not in this run) is unread from its minimum.
        """
        self.forget([queue for queue in self._counted if queue not in ends])
        budget = self._entries_a_look
        unread = {}
        for queue, end in ends.items():
            start = starts[queue] if queue in starts else sizes.minimum(queue)
            if start >= end:
                self._counted.pop(queue, None)
                continue
            counted = self._at(queue, start, end, sizes)
            stop = min(end, counted.end + budget)
            if stop > counted.end:
                budget -= stop - counted.end
                grown = counted.bytes + sizes.bytes_between(queue, counted.end, stop)
                counted = _Counted(start, stop, grown)
            self._counted[queue] = counted
            unread[queue] = Unread(start, counted.bytes if stop == end else None)
        return unread

    def _at(self, queue: QueueId, start: int, end: int, sizes: QueueSizes) -> _Counted:
        """The counts, from `start` on."""
        known = self._counted.get(queue)
        if known is None or not known.start <= start < known.end <= end:
            return _Counted(start, start, 0)
        if start == known.start:
            return known
        if known.start < sizes.minimum(queue):  # the entries to take off may be gone
            return _Counted(start, start, 0)
        return _Counted(start, known.end, known.bytes - sizes.bytes_between(queue, known.start, start))


def latest_offset_json(
    latest: QueueOffsets, unread: Mapping[QueueId, Unread], commit_offsets: dict[str, Any] | None
) -> dict[str, Any]:
    """The result of `reportLatestOffset`."""
    tree: dict[str, dict[str, dict[str, dict[str, int | None]]]] = {}
    for queue, (start, size) in sorted(unread.items()):
        queues = tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
        queues[str(queue.queue_id)] = {"from": start, "bytes": size}
    document: dict[str, Any] = {"queues": latest.to_json_dict(), "unread": tree}
    return document if commit_offsets is None else {**document, "commitOffsets": commit_offsets}


# Reading, from the progress


def _lags(end_text: str | None, latest_text: str | None) -> list[QueueLag]:
    ends, document = position_of(end_text), _loads(latest_text)
    if ends is None:
        return []
    latest, unread = QueueOffsets(), {}
    if _is_latest(document):
        latest, unread = QueueOffsets.from_json_dict(document["queues"], "latestOffset"), document["unread"]
    return [
        _lag(queue, ends.get(queue), latest.get(queue), _unread(unread, queue))
        for queue in sorted(ends.keys() | latest.keys())
    ]


def _lag(queue: QueueId, end: QueueOffset | None, latest: QueueOffset | None, unread: Unread | None) -> QueueLag:
    newest = None if latest is None else latest.next
    start = end.next if end is not None else unread.start if unread is not None else newest
    rows = Position(newest, start).lag
    if latest is None or not rows:
        return QueueLag(*queue, rows, rows, rows)
    size = unread.bytes if unread is not None and unread.start == start else None
    time_ms = None
    if end is not None and end.before is not None and latest.before is not None:
        time_ms = latest.before[1] - end.before[1]
    if time_ms is not None and time_ms < 0:  # the broker's clock was set back
        time_ms = None
    return QueueLag(*queue, rows, size, time_ms)


def _unread(tree: Mapping[str, Any], queue: QueueId) -> Unread | None:
    leaf = tree.get(queue.topic, {}).get(queue.broker_name, {}).get(str(queue.queue_id))
    return None if leaf is None else Unread(leaf["from"], leaf["bytes"])


def position_of(text: str | None) -> QueueOffsets | None:
    """A source's position by an offset of its progress; None where there is none, or the source is another one."""
    return _own_offsets(_loads(text))


def _loads(text: str | None) -> Any:
    """The JSON value of a source's offset; None where there is none, or where the source writes no JSON."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _own_offsets(value: object) -> QueueOffsets | None:
    """A source's position if it has our shape, which no other source's has."""
    try:
        return QueueOffsets.from_json_dict(value)
    except OffsetJsonError:
        return None


def _is_latest(value: object) -> bool:
    return isinstance(value, dict) and value.keys() >= {"queues", "unread"}
