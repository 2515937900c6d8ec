"""Slices of decoded records → Arrow batches of the columns that a query asks for. Pure; the same for files and for pulled records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.source.offsets import QueueId
from spark_mq.source.rows import (
    PROPERTY_COLUMNS,
    Column,
    RowSource,
    arrow_schema,
    columns_named,
    rows_with_tags,
    to_record_batches,
    wanted_of,
)
from storage.format.window_decoder import Wanted
from storage.queues.scan import QueueSlice


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

    @property
    def columns(self) -> list[Column]:
        return columns_named(self.column_names, kafka=self.kafka, permissive=self.permissive)

    @property
    def wanted(self) -> Wanted:
        """What to decode of all messages that are read. Of those with one key the rest is decoded when they are found: they are few."""
        if self.key is not None:
            return Wanted(properties=frozenset({"KEYS", "UNIQ_KEY"}), raw=True)
        tags = Wanted() if self.tags is None else Wanted(properties=frozenset({"TAGS"}), raw=True)
        return tags | Wanted(raw=self.verify_crc) | wanted_of(self.columns)


class ShownAs(NamedTuple):
    """The queue that rows name in place of the one that is read, whose offsets are `delta` greater."""

    queue: QueueId
    delta: int


def to_batches(
    slices: Iterable[QueueSlice],
    queue: QueueId,
    broker_rank: int,
    request: RowRequest,
    shown: ShownAs | None,
    *,
    force_property_crc: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The messages of slices of one queue that the request wants, as batches of its schema, in the order of the slices.

    Raises CorruptMessageError, unless the request is permissive, where a body does not decompress.
    """
    columns = request.columns
    schema = arrow_schema(columns, request.nullable)
    shown_queue, delta = shown or (queue, 0)
    for part in slices:
        source = RowSource(
            QueueSlice(part.queue_offsets + delta, part.records) if delta else part,
            shown_queue.topic,
            shown_queue.broker_name,
            shown_queue.queue_id,
            request.decompress,
            broker_rank << 16,
            all_properties=any(column.name in PROPERTY_COLUMNS for column in columns),
            permissive=request.permissive,
        )
        if request.permissive and request.verify_crc:
            source.note_corrupt_sums(force_property_crc=force_property_crc)
        wanted = _wanted_rows(source, request)
        if wanted is not None and not wanted.all():
            source.take(wanted)
        if source.count:
            yield from to_record_batches(source, columns, schema)


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
