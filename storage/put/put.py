"""Putting messages into an open store, one or a table of them. Java: DefaultMessageStore.putMessage, putMessages.

A call is appended completely or not at all, as long as the process lives; after a crash a part of it may be in the log, in order. For
exactly-once writes use staged segments and an intent (`storage/batch/commit.py`).
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from storage.errors import RowIllegalError
from storage.format.keys import FIRST_RANKS, new_prefix
from storage.format.properties import decode_property_maps
from storage.format.record import encode_offset_message_id, hex_strings
from storage.format.record_block import OutgoingMessages, RecordBlock, RecordRun
from storage.log.writer import Placement
from storage.put.half_ends import CommitsOfHalves, HalfPlaces, commit_runs, op_runs, with_states
from storage.put.settings import PutOptions, PutSettings, message_rules, refuse_before_start
from storage.put.store_writer import INDEX_LEASE_MS, StoreWriter
from storage.rules.inner_messages import (
    EncodedMessage,
    InnerMessage,
    InnerMessages,
    columns_of,
    few_block,
    outgoing_messages,
)
from storage.rules.message_rows import MessageRows, Prepared
from storage.rules.row_columns import check_columns
from storage.rules.row_rules import MessageRules
from storage.tables.topics import TopicTable


class PutResult(NamedTuple):
    """The place of a message. Java: PutMessageResult, SendResult."""

    topic: str
    queue_id: int
    queue_offset: int
    commitlog_offset: int
    msg_id: str
    """The offset message id."""
    unique_key: str
    store_time_ms: int


Places: TypeAlias = pa.RecordBatch | list[PutResult]
"""The places of a put's messages, row by row: the fields of `PutResult` as columns, or as rows for a few messages."""


class Append(Protocol):
    """`StoreWriter.append`, or a replacement if another thread syncs and dispatches."""

    def __call__(self, runs: Sequence[RecordRun], *, index_lease_ms: int = 0) -> list[Placement]: ...


class Putter:
    """Makes messages of rows and appends them. Keys and turns continue from call to call while the rules stay the same."""

    def __init__(self, writer: StoreWriter, append: Append | None = None) -> None:
        self._writer = writer
        self._append = append or writer.append
        self._lock = threading.Lock()
        self._rules: MessageRules | None = None
        self._rows: MessageRows | None = None

    def put(self, batch: pa.RecordBatch, options: PutOptions) -> pa.RecordBatch:
        """Append the rows; returns the fields of `PutResult` for each, in order: where they are, wait, or are prepared.

        Columns are those of `rows.columns.COLUMNS`.
        Raises ColumnIllegalError for a table without messages' columns, RowIllegalError for the first invalid row, with nothing
        appended; StoreNotWritableError, OSError.
        """
        return self.prepare(batch, options)()

    def prepare(self, batch: pa.RecordBatch, options: PutOptions) -> Callable[[], pa.RecordBatch]:
        """Do the part of `put` that many threads may do at a time; returns the part that needs exclusive access to the store.

        Raises ColumnIllegalError, RowIllegalError. So may the second part: if a topic has changed in between, it prepares again.
        """
        check_columns(batch.schema)
        first = self._prepare(batch, options)

        def append() -> pa.RecordBatch:
            put = first if first.suits(self._writer.settings.topics) else self._prepare(batch, options)
            return put.append_to(self._writer, self._append)

        return append

    def _prepare(self, batch: pa.RecordBatch, options: PutOptions) -> _RowPut:
        with self._lock:
            settings = self._writer.settings
            refuse_before_start(self._writer.root, settings, self._writer.clock())
            wanted = message_rules(settings, options)
            if self._rows is None or wanted != self._rules:
                prefix = new_prefix(os.getpid(), secrets.token_bytes)
                self._rules, self._rows = wanted, MessageRows(wanted, prefix, secrets.randbelow(FIRST_RANKS))
            prepared = self._rows.prepare(batch, self._writer.clock())
        return _RowPut(settings, prepared)


class _RowPut:
    """Rows made into records. Raises RowIllegalError for the first invalid row."""

    def __init__(self, settings: PutSettings, prepared: Prepared) -> None:
        if prepared.rejected:
            first = prepared.rejected[0]
            raise RowIllegalError(
                int(prepared.rejected_indices[0]), first.column, first.rule, len(prepared.rejected) - 1
            )
        there, rules = settings.topics.topics, settings.topic_rules
        self._topics = {
            topic: there.get(topic) or rules.new_topic(topic, count) for topic, count in prepared.topics.items()
        }
        self._prepared, self._host = prepared, settings.host
        self._block = settings.encode(prepared.messages)
        self._commits = None if prepared.commits is None else settings.columns_of(prepared.commits.messages)

    def suits(self, table: TopicTable) -> bool:
        """Whether the topics are still as assumed for the rows, or can be made so."""
        return all(table.topics.get(name, topic) == topic for name, topic in self._topics.items())

    def append_to(self, writer: StoreWriter, append: Append) -> pa.RecordBatch:
        messages, block = self._prepared.messages, self._block
        if not len(messages.queue_codes):
            return _results(messages, None, self._host, 0)
        writer.reserve(len(block.data), _largest_record(block))
        writer.topic_entries.ensure(self._prepared.topics, self._prepared.grown)
        placement = append([block], index_lease_ms=INDEX_LEASE_MS)[0]
        self._end_halves(placement, writer, append)
        last = writer.ends.last_record
        assert last is not None, "something was appended"
        return _results(messages, placement, self._host, last.store_time_ms)

    def _end_halves(self, placement: Placement, writer: StoreWriter, append: Append) -> None:
        if self._prepared.commits is None or self._commits is None:
            return
        halves, places = with_states(self._block, self._prepared.commits.states), HalfPlaces.of([placement])
        runs = commit_runs([halves], [CommitsOfHalves(halves, self._commits)], places)
        if runs[0].columns.row_count:
            append(runs, index_lease_ms=INDEX_LEASE_MS)
        if ops := op_runs([halves], places, writer.settings, writer.clock()):
            append(ops, index_lease_ms=INDEX_LEASE_MS)


class InnerPut:
    """Unchanged messages made into records. Raises MessageIllegalError for a message that no record can hold."""

    def __init__(
        self,
        settings: PutSettings,
        messages: InnerMessages | Sequence[InnerMessage],
        delays_ms: tuple[int, ...],
    ) -> None:
        inner = messages if isinstance(messages, InnerMessages) else InnerMessages.of(messages)
        self._host = settings.host
        self._parts = list(
            outgoing_messages(
                inner,
                settings.host,
                delays_ms,
                settings.limits,
                appends_crc=settings.appends_crc,
                indexes_tags=settings.release.indexes_tags,
            )
        )
        self._blocks = [settings.encode(part) for part in self._parts]

    def append_to(self, writer: StoreWriter, append: Append | None = None) -> pa.RecordBatch:
        """Append them, all or none as long as the process lives; returns the fields of `PutResult` for each, in order.

        Raises StoreNotWritableError, OSError.
        """
        if not self._parts:
            return NO_RESULTS
        writer.reserve(sum(len(block.data) for block in self._blocks), max(map(_largest_record, self._blocks)))
        placements = (append or writer.append)(self._blocks, index_lease_ms=INDEX_LEASE_MS)
        last = writer.ends.last_record
        assert last is not None, "something was appended"
        results = [
            _results(part, placement, self._host, last.store_time_ms)
            for part, placement in zip(self._parts, placements, strict=True)
        ]
        return results[0] if len(results) == 1 else pa.Table.from_batches(results).combine_chunks().to_batches()[0]


def put_few(
    settings: PutSettings,
    messages: Sequence[EncodedMessage],
    delays_ms: tuple[int, ...],
    writer: StoreWriter,
    append: Append,
) -> Places:
    """Append a few messages, all or none as long as the process lives; returns their places.

    Raises, with nothing appended, MessageIllegalError for a message that no record can hold, ValueError and OverflowError for a value
    that no column can hold; StoreNotWritableError, OSError.
    """
    block = (
        None
        if settings.appends_crc
        else few_block(messages, settings.host, settings.limits, indexes_tags=settings.release.indexes_tags)
    )
    if block is None:
        return InnerPut(settings, columns_of(messages), delays_ms).append_to(writer, append)
    settings.refuse_unreadable(block.columns.queues)
    writer.reserve(len(block.data), _largest_record(block))
    (placement,) = append([block], index_lease_ms=INDEX_LEASE_MS)
    last = writer.ends.last_record
    assert last is not None, "something was appended"
    address, port = settings.host[:-4], int.from_bytes(settings.host[-4:], "big")
    return [
        PutResult(
            message.topic,
            message.queue_id,
            queue_offset,
            commitlog_offset,
            encode_offset_message_id(address, port, commitlog_offset),
            message.properties.get("UNIQ_KEY", ""),
            last.store_time_ms,
        )
        for message, queue_offset, commitlog_offset in zip(
            messages, placement.queue_offsets.tolist(), placement.commitlog_offsets.tolist(), strict=True
        )
    ]


def table_of(places: Places) -> pa.RecordBatch:
    """The places as a table with the fields of `PutResult`."""
    if isinstance(places, pa.RecordBatch):
        return places
    columns = zip(*places, strict=True) if places else [[] for _ in PutResult._fields]
    arrays = [pa.array(column, found.type) for column, found in zip(columns, NO_RESULTS.schema, strict=True)]
    return pa.record_batch(arrays, names=list(PutResult._fields))


def _largest_record(block: RecordBlock) -> int:
    return int(block.columns.sizes_bytes.max())


def _results(
    messages: OutgoingMessages, placement: Placement | None, host: bytes, store_time_ms: int
) -> pa.RecordBatch:
    count = len(messages.queue_codes)
    codes = pa.array(messages.queue_codes)
    nothing = np.empty(0, np.int64)
    offsets = nothing if placement is None else placement.commitlog_offsets
    ids = np.empty((count, len(host) + 8), np.uint8)
    ids[:, : len(host)] = np.frombuffer(host, np.uint8)
    ids[:, len(host) :] = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
    columns = (
        pa.array([topic for topic, _ in messages.queues], pa.string()).take(codes),
        pa.array([queue_id for _, queue_id in messages.queues], pa.int32()).take(codes),
        pa.array(nothing if placement is None else placement.queue_offsets),
        pa.array(offsets),
        hex_strings(ids),
        decode_property_maps(messages.properties.cast(pa.binary())).values_of("UNIQ_KEY"),
        pa.array(np.full(count, store_time_ms)),
    )
    return pa.record_batch(list(columns), names=list(PutResult._fields))


NO_RESULTS = pa.record_batch(
    {
        "topic": pa.array([], pa.string()),
        "queue_id": pa.array([], pa.int32()),
        "queue_offset": pa.array([], pa.int64()),
        "commitlog_offset": pa.array([], pa.int64()),
        "msg_id": pa.array([], pa.string()),
        "unique_key": pa.array([], pa.string()),
        "store_time_ms": pa.array([], pa.int64()),
    }
)
