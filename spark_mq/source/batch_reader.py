"""A bounded read: `spark.read.format("spark_mq")`. Ranges by options, cut further by pushed filters and the index.

Spark: KafkaBatch. Push-down in PySpark needs a session flag, and a reader that overrides `pushFilters` fails without it; so
the method is put on the instance in a shape that Spark takes for "not overridden" while the flag is off.

It is put there only with option `pushDown`: Spark 4.2.0 keeps the plan of a pushed filter in the DataFrame's relation, and
reads every other use of that DataFrame, a later action or the other side of a self-join, by it (PythonDataSourceV2.readInfo).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from spark_mq.conditions import warn_of_losses
from spark_mq.source.options import SourceOptions
from spark_mq.source.partition_reader import Split, into_partitions, read_partition
from spark_mq.source.pushdown import Cuts
from spark_mq.source.query_cluster import Piece, QueryCluster
from spark_mq.source.ranges import QueueRange, ranges_between
from spark_mq.source.row_batches import RowRequest
from spark_mq.source.selection import open_cluster, request_of, select_queues, split_shown
from spark_mq.source.starting_offsets import check_order, resolve_end, resolve_start
from spark_mq.worker_errors import named_for_spark
from storage.epoch_times import current_time_ms
from storage.errors import IndexGeometryUnknownError


class _PushFilters:
    """`pushFilters` of one reader. Spark asks `__func__` whether it is the base class's own."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

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
