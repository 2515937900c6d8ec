"""A bounded read: `spark.read.format("spark_mq")`. Ranges by options, cut further by pushed filters and the index.

Filters cut ranges of queue_id, queue_offset and store_timestamp, tags by their hash, keys and unique_key by the index. A cut is never
narrower than its filter: Spark evaluates the filter again.

Push-down in PySpark needs a session flag, and a reader that overrides `pushFilters` fails without it; so the method is set on the
instance in a shape that Spark takes for "not overridden" while the flag is off. It is set only with option `pushDown`: Spark 4.2.0
keeps the plan of a pushed filter in the DataFrame's relation, and uses it for every other use of that DataFrame, such as a later action
or the other side of a self-join (PythonDataSourceV2.readInfo).
Spark: KafkaBatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_mq.conditions import named_for_spark, warn_of_losses
from spark_mq.source.options import SourceOptions
from spark_mq.source.partition_reader import into_partitions, read_partition
from spark_mq.source.query_cluster import Piece, QueryCluster, Split
from spark_mq.source.ranges import QueueRange, ranges_between
from spark_mq.source.rows import RowRequest
from spark_mq.source.selection import open_cluster, request_of, select_queues, split_shown
from spark_mq.source.starting_offsets import check_order, resolve_end, resolve_start
from spark_mq.spark_api import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from storage.epoch_times import current_time_ms
from storage.errors import IndexGeometryUnknownError

if TYPE_CHECKING:
    from spark_mq.source.query_cluster import QueryCluster


class _PushFilters:
    """`pushFilters` of one reader. Spark asks `__func__` whether it is the base class's own."""

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", None))  # type: ignore[arg-type]
    """The function itself, not a method of this object. Spark before 4.1 has none, and does not ask."""

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes what cuts the read; gives all back, because cuts are wider than filters: Spark evaluates them again."""
        for pushed in filters:
            self._reader.cuts = self._reader.cuts.with_filter(pushed)
        return filters


class BatchReader(DataSourceReader):
    """Plans partitions on the driver; `read` runs in tasks and uses nothing but its partition."""

    def __init__(self, options: SourceOptions, column_names: Sequence[str], nullable: Sequence[str] = ()) -> None:
        self.options = options
        self.column_names = tuple(column_names)
        self.nullable = tuple(nullable)
        self.cuts = Cuts.none(kafka=options.kafka_columns)
        if options.push_down:
            self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    @named_for_spark()
    def partitions(self) -> Sequence[InputPartition]:
        cluster = open_cluster(self.options)
        try:
            limits = self.options.min_partitions, self.options.max_records_per_partition
            return into_partitions(self._splits(cluster), *limits) or [_EMPTY]
        finally:
            cluster.close()

    def _splits(self, cluster: QueryCluster) -> list[Split]:
        ranges = self._ranges(cluster)
        key = self.options.key if self.options.key is not None else self.cuts.index_key
        if key is not None:
            try:
                return self._key_splits(cluster, ranges, key)
            except IndexGeometryUnknownError:
                if self.options.key is not None:
                    raise
        request = self._request()
        return [
            cluster.split(piece, request)
            for piece in split_shown(
                cluster, ranges, self.options.min_partitions, self.options.max_records_per_partition
            )
        ]

    def _ranges(self, cluster: QueryCluster) -> list[QueueRange]:
        queues = select_queues(cluster, self.options)
        now_ms = current_time_ms()
        strict = self.options.fail_on_data_loss
        starts = resolve_start(
            self.options.batch_start, queues, cluster, brokers=cluster.brokers, now_ms=now_ms, fail_on_data_loss=strict
        )
        ends = resolve_end(
            self.options.batch_end, queues, cluster, brokers=cluster.brokers, now_ms=now_ms, fail_on_data_loss=strict
        )
        warn_of_losses(starts.losses + ends.losses)
        check_order(starts.offsets, ends.offsets)
        ranges = ranges_between(starts.offsets, ends.offsets)
        return [cut for piece in ranges if (cut := self.cuts.cut(piece, cluster)) is not None]

    def _key_splits(self, cluster: QueryCluster, ranges: list[QueueRange], key: str) -> list[Split]:
        splits, request = [], self._request()
        for piece, shown in (part for whole in ranges for part in cluster.physical(whole)):
            found = cluster.offsets_with_key(piece, key)
            if found:
                splits.append(cluster.split(Piece(piece.queue, found, shown), request))
        return splits

    def _request(self) -> RowRequest:
        return request_of(self.options, self.column_names, nullable=self.nullable, tags=self.cuts.tags)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_partition(partition)


_EMPTY = InputPartition(None)  # Spark turns an empty list into one partition None


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
    """The rest of a read after the filters. `tags` None = all, `index_key` None = no look-up."""

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
