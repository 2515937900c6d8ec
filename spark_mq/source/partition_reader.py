"""What a task does: read ranges of one queue into Arrow batches. Stateless; opens what it needs.

Everything a task knows stands in its `QueueSplit`: the reader that planned it lives in another process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from spark_mq.source.offsets import QueueId
from spark_mq.source.ranges import MOST_PARTITIONS, pack
from spark_mq.source.rows import (
    PROPERTY_COLUMNS,
    RowSource,
    arrow_schema,
    columns_named,
    rows_with_tags,
    to_record_batches,
)
from spark_mq.source.split_proof import NO_PROOF, StoreProof, check_sight
from spark_mq.worker_errors import expect_hang_up, named_for_spark
from storage.errors import (
    CorruptMessageError,
    OffsetOutOfRangeError,
    StoreNotSharedError,
    StoreRefusedError,
)
from storage.files.file_system import Scratch
from storage.files.os_errors import host_name
from storage.files.remote import file_system_of
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.format.java_hash import string_hash
from storage.log.commit_log import LOOKS, CommitLog
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.ext import ConsumeQueueExt
from storage.queues.scan import QueueSlice, scan_queue
from storage.store_layout import StoreLayout


@dataclass(frozen=True, slots=True)
class RowRequest:
    """What a query wants of each message: the same for all its partitions."""

    column_names: tuple[str, ...]
    kafka: bool = False
    tags: frozenset[str] | None = None
    key: str | None = None
    decompress: bool = True
    verify_crc: bool = False
    fail_on_data_loss: bool = True
    nullable: frozenset[str] = frozenset()  # columns that a schema of the user's lets be null
    permissive: bool = False


class ShownAs(NamedTuple):
    """The queue that rows name in place of the one that is read, whose offsets are `delta` greater."""

    queue: QueueId
    delta: int


@dataclass(frozen=True, slots=True)
class QueueSplit:
    """Ranges of offsets of one queue, ascending, where its store lies, and what proves that a task sees that store.

    `log_end` is the validated log's end.
    """

    layout: StoreLayout
    log_end: int
    queue: QueueId
    broker_rank: int
    ranges: tuple[tuple[int, int], ...]
    request: RowRequest
    proof: StoreProof = NO_PROOF
    shown: ShownAs | None = None
    """None = as it is."""


class QueuePartition(InputPartition):
    """Splits as one of Spark's partitions: nearly always one; of very many queues several small ones, read one after the other."""

    def __init__(self, *splits: QueueSplit) -> None:
        super().__init__(splits)
        self.splits = splits


def into_partitions(
    splits: Sequence[QueueSplit], min_partitions: int | None = None, max_records_per_partition: int | None = None
) -> list[QueuePartition]:
    """The splits in order, as partitions of which Spark can plan a batch (`pack`)."""
    most = max(MOST_PARTITIONS, min_partitions or 0)
    sizes = [sum(end - start for start, end in split.ranges) for split in splits]
    return [QueuePartition(*splits[start:end]) for start, end in pack(sizes, most, max_records_per_partition)]


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """`read_split` of all its splits; nothing of another's partition."""
    if isinstance(partition, QueuePartition):
        for split in partition.splits:
            yield from read_split(split)


def read_split(split: QueueSplit) -> Iterator[pa.RecordBatch]:
    """The messages of a split as Arrow batches of the request's schema, in queue order.

    Messages that expired since the split was planned are data loss (`SPARK_MQ_DATA_LOSS`), or passed over where the
    request tolerates that. A store that this machine does not see is neither: `SPARK_MQ_STORE_NOT_FOUND`. A corrupt message is an error
    that names it (`SPARK_MQ_CORRUPT_RECORD`), or a row of a permissive request.
    """
    files = _SplitFiles(split)
    expect_hang_up()
    with named_for_spark():
        try:
            for start, end in split.ranges:
                yield from _read_range(files, start, end)
        except CorruptMessageError as error:
            raise error.of_broker(split.queue.broker_name) from None
        finally:
            files.close()


class _SplitFiles:
    """The log and the queue of a split, opened when first needed, and only if they are those that the driver saw."""

    def __init__(self, split: QueueSplit) -> None:
        self.split = split
        self._files = file_system_of(split.layout.root)
        self._scratch = Scratch()
        self._opened: tuple[CommitLog, ConsumeQueue] | None = None

    def open(self) -> tuple[CommitLog, ConsumeQueue]:
        """Raises StoreNotSharedError where this machine sees another store, or none."""
        looks = 0
        while self._opened is None:
            try:
                looks += 1
                opened = self._look()
                check_sight(self.split.proof, self.split.layout.root, *opened)
                self._opened = opened
            except OffsetOutOfRangeError:  # a file expired between two looks
                if looks == LOOKS:
                    raise
            except StoreRefusedError as error:  # the driver has opened it
                raise StoreNotSharedError(host_name(), self.split.layout.root, error.reason) from error
        return self._opened

    def _look(self) -> tuple[CommitLog, ConsumeQueue]:
        layout, name = self.split.layout, self.split.queue
        queue = layout.consume_queue(self._files, name.topic, name.queue_id)
        queue.list_files()  # before the log's
        return layout.commit_log(self._files, self._scratch), queue

    def ext(self) -> ConsumeQueueExt:
        name = self.split.queue
        return self.split.layout.consume_queue_ext(self._files, name.topic, name.queue_id)

    def close(self) -> None:
        """Let go of the files; the next `open` looks again which there are."""
        for opened in self._opened or ():
            opened.close()
        self._opened = None


def _read_range(files: _SplitFiles, start: int, end: int) -> Iterator[pa.RecordBatch]:
    split = files.split
    request = split.request
    columns = columns_named(request.column_names, kafka=request.kafka, permissive=request.permissive)
    schema = arrow_schema(columns, request.nullable)
    shown, delta = split.shown or (split.queue, 0)
    for part in _slices(files, start, end):
        source = RowSource(
            QueueSlice(part.queue_offsets + delta, part.records) if delta else part,
            shown.topic,
            shown.broker_name,
            shown.queue_id,
            request.decompress,
            split.broker_rank << 16,
            all_properties=any(column.name in PROPERTY_COLUMNS for column in columns),
            permissive=request.permissive,
        )
        if request.permissive and request.verify_crc:
            source.note_corrupt_sums(force_property_crc=split.layout.force_property_crc)
        wanted = _wanted_rows(source, request)
        if wanted is not None and not wanted.all():
            source.take(wanted)
        if source.count:
            yield from to_record_batches(source, columns, schema)


def _slices(files: _SplitFiles, start: int, end: int) -> Iterator[QueueSlice]:
    split = files.split
    codes = _tags_codes(split.request.tags, split.queue.topic)
    while start < end:
        log, queue = files.open()
        ext = files.ext() if codes is not None else None
        crc = split.request.verify_crc and not split.request.permissive
        try:
            for part in scan_queue(queue, log, split.log_end, start, end, tags_codes=codes, ext=ext, verify_crc=crc):
                start = int(part.queue_offsets[-1]) + 1
                yield part
            return
        except OffsetOutOfRangeError as error:
            if split.request.fail_on_data_loss:
                raise
            start = max(start + 1, error.minimum)
            files.close()


def _tags_codes(tags: frozenset[str] | None, topic: str) -> frozenset[int] | None:
    """What entries of messages with these tags show; None where entries do not tell.

    Entries of the schedule topic hold the time of delivery in place of the tag's hash.
    """
    return None if tags is None or topic == SCHEDULE_TOPIC else frozenset(string_hash(tag) for tag in tags)


def _wanted_rows(source: RowSource, request: RowRequest) -> np.ndarray | None:
    wanted = None if request.tags is None else rows_with_tags(source, request.tags)
    if request.key is not None:
        has_key = rows_with_key(source, request.key)
        wanted = has_key if wanted is None else wanted & has_key
    return wanted


def rows_with_key(source: RowSource, key: str) -> np.ndarray:
    """Which rows have this key or unique key."""
    lists = pc.split_pattern(source.text("KEYS").fill_null(""), " ")
    rows = np.repeat(np.arange(source.count), pc.list_value_length(lists).to_numpy())
    equal = pc.equal(lists.flatten(), key).to_numpy(zero_copy_only=False)
    has_key = np.zeros(source.count, bool)
    has_key[rows[equal]] = True
    unique = pc.fill_null(pc.equal(source.text("UNIQ_KEY"), key), False).to_numpy(zero_copy_only=False)
    return has_key | unique
