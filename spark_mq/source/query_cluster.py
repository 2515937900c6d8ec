"""The interface of planning to the data: a directory of stores (`cluster.py`), or a cluster of brokers. Driver side.

One Protocol for both, so that options, starts, limits, continuity, lag and checkpoints share the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spark_mq.source.group_offsets import GroupOffsets
from spark_mq.source.offsets import QueueId, RecordPlace
from spark_mq.source.ranges import MessageSizes, QueueRange
from spark_mq.source.rows import RowRequest, ShownAs
from spark_mq.source.starting_offsets import Positions, QueueFacts

if TYPE_CHECKING:
    import pyarrow as pa


class Piece(NamedTuple):
    """Ranges [start, end) of a physical queue, ascending, and as what their rows are shown; None = as they are."""

    queue: QueueId
    ranges: tuple[tuple[int, int], ...]
    shown: ShownAs | None = None


class Split(Protocol):
    """Ranges [start, end) of offsets of one queue, ascending, with all that a task must know to read them. It is pickled."""

    @property
    def queue(self) -> QueueId: ...

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]: ...

    def read(self) -> Iterator[pa.RecordBatch]:
        """The messages as Arrow batches of the request's schema, in queue order. Raises the named conditions."""
        ...


class QueryCluster(Positions, MessageSizes, Protocol):
    """The brokers of one query and their queues, as they were at the last look.

    Offsets are queue offsets, times are ms since 1970. What fails is one of the named conditions, or an error that becomes one
    (`conditions.named_for_spark`).
    """

    @property
    def brokers(self) -> Sequence[str]:
        """The names of all brokers whose data can be read, in order."""
        ...

    @property
    def place(self) -> str:
        """The place of the data, for texts: the stores' directories, or the name servers."""
        ...

    def refresh(self) -> bool:
        """Read the news of the brokers; returns whether there are any. Cheap: called every few milliseconds."""
        ...

    def queues(self) -> Sequence[QueueId]:
        """All queues there are, sorted. The same list as long as there are the same ones."""
        ...

    @property
    def topics(self) -> Sequence[str]:
        """The names of all topics there are, for texts."""
        ...

    def queue_count(self, topic: str) -> int:
        """Number of queues of the topic at the broker that has most."""
        ...

    def is_system_topic(self, topic: str) -> bool: ...

    def refuse_batch_topics(self, topics: Sequence[str]) -> None:
        """Raises for a named topic whose queues this package cannot read."""
        ...

    def await_brokers(self, brokers: Collection[str]) -> bool:
        """Wait for brokers of a checkpoint whose data cannot be read yet; returns whether one came, and its queues are there now."""
        ...

    def refuse_lost_queues(self, brokers: Collection[str]) -> None:
        """Raises where queues of these brokers cannot be seen for a cause that is no loss."""
        ...

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        """Minimum and maximum; cheaper than both. (0, 0) of a queue that is not there."""
        ...

    def end_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        """The offset from which on no message is older than a time; None where the last one is."""
        ...

    def record_before(self, queue: QueueId, offset: int) -> RecordPlace | None:
        """(commit log offset, store time) of the record at `offset - 1`; None if none is visible."""
        ...

    def first_from(self, queue: QueueId, offset: int) -> int | None:
        """The offset of the first message at or behind an offset; None if there is none. Each call asks anew. Where that
        would cost much, only the offset itself is looked at.
        """
        ...

    def is_compacted(self, queue: QueueId) -> bool:
        """Whether only the newest message of each key is served here, so that any offset may have none. Raises if that is unknown."""
        ...

    def look_up(self, offsets: Mapping[QueueId, int]) -> None:
        """Look up many positions for `record_before` at once: much cheaper than one after the other."""
        ...

    def facts(self, queue: QueueId) -> QueueFacts | None:
        """The facts about a queue now; None if it does not exist."""
        ...

    @property
    def tells_sizes(self) -> bool:
        """Whether `bytes_between` and `offset_at_bytes` work."""
        ...

    def physical(self, piece: QueueRange) -> list[tuple[QueueRange, ShownAs | None]]:
        """The physical ranges that tasks read for a range, each with the queue and offsets that rows show (None: its own)."""
        ...

    def physical_positions(self, offsets: Mapping[QueueId, int]) -> Mapping[QueueId, int]:
        """The positions as consumer groups store them."""
        ...

    def split(self, piece: Piece, request: RowRequest) -> Split:
        """The split by which a task reads a piece of a physical queue."""
        ...

    def offsets_with_key(self, piece: QueueRange, key: str) -> tuple[tuple[int, int], ...]:
        """Ranges [start, end) of a physical range, ascending and apart, outside which no message has the key.

        Raises IndexGeometryUnknownError where the index cannot be read.
        """
        ...

    def group_offsets(self, group: str) -> GroupOffsets:
        """The writer of the group's positions. Raises OptionError for a group or a place that takes none."""
        ...

    def close(self) -> None: ...
