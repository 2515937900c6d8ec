"""A batch's rows on their way into the log, slice by slice.

    SLICE {first row, rows, bytes, sum} · its rows    at most 4 MiB, under one hold of the put lock
    others' messages, if there are any                the lock is given up between two slices
    SLICE · its rows · …

The next slice is read and summed up while one is stamped and written. Queues and index know of the rows when all of them are
appended, or after some hundred thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import chain
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from storage.batch.ledger import SLICE, Batch, LedgerStatement, outgoing_ledger_message
from storage.batch.stretches import RowSlice, cut_slices, runs_between, runs_from
from storage.failpoints import reach
from storage.files.early_sync import EarlySync
from storage.files.file_system import Scratch
from storage.format.record_block import OwnBlock, RecordBlock, RecordRun, with_body
from storage.format.record_content import content_sum
from storage.log.placement import Placement
from storage.log.writer import RunningSync
from storage.put.raw_writer import INDEX_LEASE_MS
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


class SharedLog:
    """The log of a batch that gives up the put lock between its slices: what others have put there, and what room it has.

    To be asked and told under the put lock alone.
    """

    def __init__(self, writer: StoreWriter, turn: Turn, room: tuple[int, int], begun_at: int | None = None) -> None:
        """`room`: what is reserved, as `StoreWriter.reserve` takes it. `begun_at`: where an earlier attempt at the batch begins."""
        self._writer = writer
        self.turn = turn
        self.is_shared = turn is not nullcontext
        """Whether anybody else can put at all."""
        self._own_end = writer.log_end
        self._left, self._largest = room
        self._lacks_room = False
        self._stretches = [] if begun_at is None else [(begun_at, writer.log_end)]

    def reserve_again(self) -> None:
        """Reserve what is left of the room anew where others have put since, and taken some of it."""
        self._look()
        if self._lacks_room:
            self._writer.reserve(self._left, self._largest)
            self._lacks_room = False

    def appended(self, size_bytes: int) -> None:
        """What stands at the log's end now is this batch's own, rows of so many bytes."""
        self._left = max(0, self._left - size_bytes)
        self._own_end = self._writer.log_end

    def take_stretches(self) -> list[tuple[int, int]]:
        """Places in the log, [start, end), where others have put, each given once."""
        self._look()
        taken, self._stretches = self._stretches, []
        return taken

    def _look(self) -> None:
        end = self._writer.log_end
        if self._own_end != end:
            self._stretches.append((self._own_end, end))
            self._own_end, self._lacks_room = end, True


def append_slices(
    writer: StoreWriter,
    batch: Batch,
    runs: Sequence[RecordRun],
    first_row: int,
    shared: SharedLog,
    tail: Tail = NO_TAIL,
    goes_on: Callable[[], bool] | None = None,
) -> list[Placement]:
    """Append all rows of the runs, of which the first is the batch's row `first_row`; returns the rows' places.

    On return they are readable, and on the disk under SYNC_FLUSH. The first rows complete the slice of `tail`, unless somebody has
    put behind it meanwhile. Before each slice `goes_on` is asked, under the put lock: at its no only the slices before are appended.
    With it every slice is readable when the lock is given up, so that nobody misses a row of it who could put another in its place.
    Raises what `StoreWriter.append` does; then this writer is at its end.
    """
    placements: list[Placement] = []
    rest = cut_slices(runs_from(runs, tail.row_count), first_row + tail.row_count, SLICE_BYTES)
    slices = (
        chain([RowSlice(first_row, tuple(runs_between(runs, 0, tail.row_count)))], rest) if tail.row_count else rest
    )
    readable_rows = 0 if goes_on is not None and shared.is_shared else _READABLE_ROWS
    any_record = writer.settings.encode(outgoing_ledger_message(LedgerStatement(SLICE, batch, 0), now_ms=0))
    with closing(_loaded(slices)) as loaded, EarlyLogSync(writer, shared.turn) as early:
        for part in loaded:
            with shared.turn():
                shared.reserve_again()
                if goes_on is not None and not goes_on():
                    break
                if not placements and tail.row_count and writer.log_end == tail.log_end:
                    placements += writer.append_records(part.blocks, index_lease_ms=INDEX_LEASE_MS)
                else:
                    placements += _append_slice(writer, batch, part, any_record)
                shared.appended(part.size_bytes)
                if readable_rows:  # else it is synced at once
                    early.note(part.size_bytes)
                reach("after-slice")
                writer.make_readable(readable_rows)
    with shared.turn():
        writer.make_readable()
    return placements


def content_of(runs: Sequence[RecordRun], first: int, last: int) -> tuple[int, int]:
    """Bytes and checksum of rows [first, last), as a SLICE has them."""
    loaded = _load(RowSlice(first, tuple(runs_between(runs, first, last))), Scratch())
    return loaded.size_bytes, loaded.checksum


def _append_slice(writer: StoreWriter, batch: Batch, part: LoadedSlice, any_record: RecordBlock) -> list[Placement]:
    said = LedgerStatement(
        SLICE,
        batch,
        part.row_count,
        first_row=part.first_row,
        size_bytes=part.size_bytes,
        checksum=part.checksum,
    )
    writer.append_records([with_body(any_record, said.body, writer.clock())], index_lease_ms=INDEX_LEASE_MS)
    reach("amid-slice")
    return writer.append_records(part.blocks, index_lease_ms=INDEX_LEASE_MS)


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


class EarlyLogSync:
    """A context manager, at whose end no sync is running. It dispatches nothing, and leaves what was appended last to the writer.

    Under SYNC_FLUSH, the log of a long batch: another thread brings it to the disk while more is appended.
    """

    def __init__(self, writer: StoreWriter, turn: Callable[[], AbstractContextManager[object]]) -> None:
        """`turn` takes the put lock."""
        self._writer = writer
        self._turn = turn
        self._early = EarlySync(self._begin, self._end)
        self._sync: RunningSync | None = None

    def note(self, size_bytes: int) -> None:
        """So many bytes more have been appended. Under the put lock. Raises OSError where a sync has failed."""
        if self._writer.settings.sync_flush:
            self._early.note(size_bytes)

    def _begin(self) -> Callable[[], None]:
        self._sync = self._writer.begin_log_sync()
        return self._sync.log.run

    def _end(self, error: BaseException | None) -> None:
        assert self._sync is not None
        self._writer.end_log_sync(self._sync, error)
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._early.wait()
        if self._sync is not None:
            with self._turn():
                self._early.end()
