"""A batch's rows on their way into the log, slice by slice.

    SLICE {first row, rows, bytes, sum} · its rows    at most 4 MiB, under one hold of the put lock
    others' messages, if there are any                the lock is given up between two slices
    SLICE · its rows · …

The next slice is read and summed up while one is stamped and written. Queues and index know of the rows when all of them are
appended, or after some hundred thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from itertools import chain
from typing import NamedTuple

import numpy as np

from storage.batch.ledger import SLICE, Batch, LedgerMessage, ledger_body, outgoing_ledger_message
from storage.batch.stretches import RowSlice, cut_slices, runs_between, runs_from
from storage.errors import SliceMismatchError
from storage.failpoints import reach
from storage.files.file_system import Scratch
from storage.format.record_block import OwnBlock, RecordBlock, RecordRun, with_body
from storage.format.record_content import content_sum
from storage.log.placement import Placement
from storage.put.put import INDEX_LEASE_MS
from storage.put.store_writer import StoreWriter

SLICE_BYTES = 4 << 20
_READABLE_ROWS = 1 << 20
"""What is kept in memory between log and queues at most, unless others' puts make it readable before."""
Turn = Callable[[], AbstractContextManager[object]]
"""Takes the put lock of an open store; what it returns gives it back."""


class Tail(NamedTuple):
    """Rows that the log's last slice lacks, where nothing stands behind it: they complete it where it stands."""

    row_count: int
    log_end: int


NO_TAIL = Tail(0, 0)


class LoadedSlice(NamedTuple):
    """A slice in memory, to be stamped there."""

    first_row: int
    blocks: list[OwnBlock]
    size_bytes: int
    checksum: int

    @property
    def row_count(self) -> int:
        return sum(block.columns.row_count for block in self.blocks)


def append_slices(
    writer: StoreWriter, batch: Batch, runs: Sequence[RecordRun], first_row: int, turn: Turn, tail: Tail = NO_TAIL
) -> list[Placement]:
    """Append all rows of the runs, of which the first is the batch's row `first_row`; returns the rows' places.

    On return they are readable, and on the disk under SYNC_FLUSH. The first rows complete the slice of `tail`, unless somebody has
    put behind it meanwhile. Raises what `StoreWriter.append` does; then this writer is at its end.
    """
    placements: list[Placement] = []
    rest = cut_slices(runs_from(runs, tail.row_count), first_row + tail.row_count, SLICE_BYTES)
    slices = (
        chain([RowSlice(first_row, tuple(runs_between(runs, 0, tail.row_count)))], rest) if tail.row_count else rest
    )
    left = _Room(writer, runs)
    any_record = writer.settings.encode(outgoing_ledger_message(SLICE, batch, 0, now_ms=0))
    with closing(_loaded(slices)) as loaded:
        for part in loaded:
            with turn():
                left.reserve_again()
                if not placements and tail.row_count and writer.log_end == tail.log_end:
                    placements += writer.append_records(part.blocks, index_lease_ms=INDEX_LEASE_MS)
                else:
                    placements += _append_slice(writer, batch, part, any_record)
                left.use(part.size_bytes)
                reach("after-slice")
                writer.make_readable(_READABLE_ROWS)
    with turn():
        writer.make_readable()
    return placements


def check_contents(root: str, found: Iterable[LedgerMessage], runs: Sequence[RecordRun]) -> None:
    """Whether rows that were staged anew are those that the log's slices of their batch hold; else SliceMismatchError."""
    row_count = sum(run.columns.row_count for run in runs)
    scratch = Scratch()
    for message in found:
        checksum = None
        if 0 <= message.first_row <= message.end_row <= row_count:
            rows = RowSlice(message.first_row, tuple(runs_between(runs, message.first_row, message.end_row)))
            loaded = _load(rows, scratch)
            checksum = loaded.checksum if loaded.size_bytes == message.size_bytes else None
        if checksum != message.checksum:
            raise SliceMismatchError(
                root, *message.batch, message.first_row, message.end_row, message.commitlog_offset, row_count
            )


def _append_slice(writer: StoreWriter, batch: Batch, part: LoadedSlice, any_record: RecordBlock) -> list[Placement]:
    body = ledger_body(
        SLICE,
        batch,
        part.row_count,
        first_row=part.first_row,
        size_bytes=part.size_bytes,
        checksum=part.checksum,
    )
    writer.append_records([with_body(any_record, body, writer.clock())], index_lease_ms=INDEX_LEASE_MS)
    reach("amid-slice")
    return writer.append_records(part.blocks, index_lease_ms=INDEX_LEASE_MS)


class _Room:
    """The room in the log that was reserved for the rows, as long as nobody else puts."""

    def __init__(self, writer: StoreWriter, runs: Sequence[RecordRun]) -> None:
        self._writer = writer
        self._runs = runs
        self._left = sum(int(run.columns.sizes_bytes.sum(dtype=np.int64)) for run in runs)
        self._log_end: int | None = None

    def reserve_again(self) -> None:
        """Others have put since, and taken some of it: what is left is reserved anew."""
        if self._log_end not in (None, self._writer.log_end):
            largest = max(int(run.columns.sizes_bytes.max(initial=0)) for run in self._runs)
            self._writer.reserve(self._left, largest)

    def use(self, size_bytes: int) -> None:
        self._left -= size_bytes
        self._log_end = self._writer.log_end


def _loaded(slices: Iterator[RowSlice]) -> Generator[LoadedSlice]:
    """The slices in memory; each is good until the next one is asked for, which is read meanwhile."""
    scratches = Scratch(), Scratch()
    number, following = 0, next(slices, None)
    if following is None:
        return
    current, following = _load(following, scratches[0]), next(slices, None)
    if following is not None:
        with ThreadPoolExecutor(1) as loading:
            while following is not None:
                number += 1
                upcoming = loading.submit(_load, following, scratches[number % 2])
                yield current
                current, following = upcoming.result(), next(slices, None)
    yield current


def _load(part: RowSlice, scratch: Scratch) -> LoadedSlice:
    ends = np.cumsum([run.columns.sizes_bytes.sum(dtype=np.int64) for run in part.parts]).tolist()
    buffer = scratch.take(ends[-1] if ends else 0)
    blocks, start, checksum = [], 0, 0
    for run, end in zip(part.parts, ends, strict=True):
        data, sizes = buffer[start:end], run.columns.sizes_bytes
        run.read(0, end - start, data)
        checksum = content_sum(data, np.cumsum(sizes, dtype=np.int64) - sizes, checksum)
        blocks.append(OwnBlock(run.columns, data))
        start = end
    return LoadedSlice(part.first_row, blocks, len(buffer), checksum)
