"""What pushed filters cut from a batch read. Cuts are never narrower than the filter: Spark evaluates it again.

Ranges of queue_id, queue_offset and store_timestamp, equality of tags (by hash), keys and unique_key (by index).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from spark_mq.source.ranges import QueueRange

if TYPE_CHECKING:
    from spark_mq.source.query_cluster import QueryCluster

_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """A closed range of whole numbers."""

    low: int = 0
    high: int = _LONG_MAX

    def narrowed(self, pushed: Filter, value: int) -> Bounds:
        """With `column OP value` taken into account."""
        match pushed:
            case EqualTo():
                return Bounds(max(self.low, value), min(self.high, value))
            case GreaterThan():
                return Bounds(max(self.low, value + 1), self.high)
            case GreaterThanOrEqual():
                return Bounds(max(self.low, value), self.high)
            case LessThan():
                return Bounds(self.low, min(self.high, value - 1))
            case LessThanOrEqual():
                return Bounds(self.low, min(self.high, value))
            case _:
                return self


@dataclass(frozen=True, slots=True)
class Cuts:
    """What is left of a read after the filters. `tags` None = all, `index_key` None = no look-up."""

    columns: tuple[tuple[str, str], ...]  # (name in the query, what it is)
    queue_ids: frozenset[int] | None = None
    queue_id_bounds: Bounds = Bounds()
    offsets: Bounds = Bounds()
    store_times_us: Bounds = Bounds()
    tags: frozenset[str] | None = None
    index_key: str | None = None

    @classmethod
    def none(cls, *, kafka: bool) -> Cuts:
        """Nothing cut yet. Kafka's partition mixes broker and queue id, so it is left to Spark."""
        if kafka:
            return cls((("offset", "offset"), ("timestamp", "store_time")))
        return cls(
            (
                ("queue_id", "queue_id"),
                ("queue_offset", "offset"),
                ("store_timestamp", "store_time"),
                ("tags", "tags"),
                ("keys", "keys"),
                ("unique_key", "unique_key"),
            )
        )

    def with_filter(self, pushed: Filter) -> Cuts:
        """These cuts narrowed by a filter, or the same where it cuts nothing."""
        column = _attribute(pushed)
        kind = dict(self.columns).get(column[0]) if len(column) == 1 else None
        value: Any = getattr(pushed, "value", None)
        if kind == "queue_id":
            return self._with_queue_ids(pushed, value)
        if kind == "offset" and isinstance(value, int):
            return replace(self, offsets=self.offsets.narrowed(pushed, value))
        if kind == "store_time" and isinstance(value, datetime):
            return replace(self, store_times_us=self.store_times_us.narrowed(pushed, _microseconds(value)))
        if kind == "tags":
            return self._with_tags(pushed, value)
        if kind in ("keys", "unique_key") and isinstance(pushed, EqualTo) and isinstance(value, str):
            tokens = value.split(" ") if kind == "keys" else [value]
            first = next((token for token in tokens if token), None)
            return replace(self, index_key=self.index_key or first)
        return self

    def _with_queue_ids(self, pushed: Filter, value: Any) -> Cuts:
        if isinstance(pushed, In):
            given = frozenset(one for one in value if one is not None)
            return replace(self, queue_ids=given if self.queue_ids is None else self.queue_ids & given)
        if isinstance(value, int):
            return replace(self, queue_id_bounds=self.queue_id_bounds.narrowed(pushed, value))
        return self

    def _with_tags(self, pushed: Filter, value: Any) -> Cuts:
        if isinstance(pushed, EqualTo) and isinstance(value, str):
            given = frozenset((value,))
        elif isinstance(pushed, In):
            given = frozenset(one for one in value if one is not None)
        else:
            return self
        return replace(self, tags=given if self.tags is None else self.tags & given)

    def cut(self, piece: QueueRange, cluster: QueryCluster) -> QueueRange | None:
        """The part of a range that the filters leave, None if nothing of it."""
        queue_id = piece.queue.queue_id
        if self.queue_ids is not None and queue_id not in self.queue_ids:
            return None
        if not self.queue_id_bounds.low <= queue_id <= self.queue_id_bounds.high:
            return None
        start, end = max(piece.start, self.offsets.low), min(piece.end, self.offsets.high + 1)
        if self.store_times_us.low > 0:
            first = cluster.offset_by_time(piece.queue, -(-self.store_times_us.low // 1_000))
            start = end if first is None else max(start, first)
        if self.store_times_us.high < _LONG_MAX:
            behind = cluster.end_by_time(piece.queue, self.store_times_us.high // 1_000 + 1)
            end = end if behind is None else min(end, behind)
        return QueueRange(piece.queue, start, end) if start < end else None


def _microseconds(moment: datetime) -> int:
    """Since 1970 UTC, exactly; Spark gives an aware datetime."""
    seconds = int(moment.replace(microsecond=0).timestamp())
    return seconds * 1_000_000 + moment.microsecond


def _attribute(pushed: Filter) -> tuple[str, ...]:
    """The column's path; empty for filters that have none."""
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    return attribute
