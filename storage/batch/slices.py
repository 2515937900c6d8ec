"""Writing a batch's rows into the log, slice by slice.

    SLICE {first row, rows, bytes, sum} · its rows    at most 4 MiB, under one hold of the put lock
    others' messages, if there are any                the lock is released between two slices
    SLICE · its rows · …

The next slice is read and its checksum computed while one is stamped and written. Queues and index get the rows when all of them are
appended, or after some hundred thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import chain
from typing import NamedTuple, Self

import numpy as np

from storage.batch.ledger import SLICE, Batch, LedgerStatement, outgoing_ledger_message
from storage.failpoints import reach
from storage.files.file_system import Scratch
from storage.files.syncs import EarlySync
from storage.format.record_block import BlockColumns, OwnBlock, RecordBlock, RecordRun, content_sum, with_body
from storage.log.writer import Placement, RunningSync
from storage.put.store_writer import INDEX_LEASE_MS, StoreWriter

SLICE_BYTES = 4 << 20
_READABLE_ROWS = 1 << 20
"""How many rows are kept in memory between log and queues at most, unless others' puts make them readable before."""
Turn = Callable[[], AbstractContextManager[object]]
"""Takes the put lock of an open store; its result releases it."""


class Tail(NamedTuple):
    """Rows that the log's last slice lacks, if nothing follows it: they complete it in its place."""

    row_count: int
    log_end: int


NO_TAIL = Tail(0, 0)


class LoadedSlice(NamedTuple):
    """A slice in memory, stamped in place."""

    first_row: int
    blocks: list[OwnBlock]
    size_bytes: int
    checksum: int

    @property
    def row_count(self) -> int:
        return sum(block.columns.row_count for block in self.blocks)


class SharedLog:
    """The log of a batch that releases the put lock between its slices: what others have put there, and how much room it has.

    Use it only under the put lock.
    """

    def __init__(self, writer: StoreWriter, turn: Turn, room: tuple[int, int], started_at: int | None = None) -> None:
        """`room`: what is reserved, as `StoreWriter.reserve` takes it. `started_at`: where an earlier attempt at the batch starts."""
        self._writer = writer
        self.turn = turn
        self.is_shared = turn is not nullcontext
        """Whether other threads can put at all."""
        self._own_end = writer.log_end
        self._left, self._largest = room
        self._lacks_room = False
        self._stretches = [] if started_at is None else [(started_at, writer.log_end)]

    def reserve_again(self) -> None:
        """Reserve the rest of the room anew if others have put since, and used some of it."""
        self._look()
        if self._lacks_room:
            self._writer.reserve(self._left, self._largest)
            self._lacks_room = False

    def appended(self, size_bytes: int) -> None:
        """The last `size_bytes` bytes of the log are this batch's own rows."""
        self._left = max(0, self._left - size_bytes)
        self._own_end = self._writer.log_end

    def take_stretches(self) -> list[tuple[int, int]]:
        """Ranges of the log, [start, end), where others have put, each given once."""
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
    """Append all rows of the runs; the first one is the batch's row `first_row`. Returns the rows' places.

    On return they are readable, and on the disk under SYNC_FLUSH. The first rows complete the slice of `tail`, unless another writer
    has put after it meanwhile. Before each slice `goes_on` is called, under the put lock: on False only the earlier slices are
    appended. With `goes_on` every slice is readable when the lock is released, so that other writers see all rows that they could
    commit. Raises what `StoreWriter.append` does; then this writer is unusable.
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
    """The slices in memory; each is valid until the next one is requested, which is read meanwhile."""
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
    """Under SYNC_FLUSH, early syncs of a long batch's log: another thread syncs while more is appended.

    A context manager; at its end no sync is running. It dispatches nothing, and leaves the last appended part to the writer.
    """

    def __init__(self, writer: StoreWriter, turn: Callable[[], AbstractContextManager[object]]) -> None:
        """`turn` takes the put lock."""
        self._writer = writer
        self._turn = turn
        self._early = EarlySync(self._begin, self._end)
        self._sync: RunningSync | None = None

    def note(self, size_bytes: int) -> None:
        """Report that so many more bytes were appended. Under the put lock. Raises OSError if a sync has failed."""
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

    def __exit__(self, *_: object) -> None:
        self._early.wait()
        if self._sync is not None:
            with self._turn():
                self._early.end()


class Stretch(NamedTuple):
    """Some neighbouring rows of a run.

    Rows are numbered over all runs, in order. A stretch reads its bytes from its run; nothing is copied.
    """

    run: RecordRun
    columns: BlockColumns
    start: int

    def read(self, start: int, end: int, into: np.ndarray) -> None:
        """Copy bytes [start, end) of the records."""
        self.run.read(self.start + start, self.start + end, into)


class RowSlice(NamedTuple):
    """Rows that are appended together."""

    first_row: int
    parts: tuple[RecordRun, ...]

    @property
    def row_count(self) -> int:
        return sum(part.columns.row_count for part in self.parts)


def runs_from(runs: Sequence[RecordRun], first_row: int) -> list[RecordRun]:
    """The runs without the first rows; empty ones are omitted."""
    return runs_between(runs, first_row, sum(run.columns.row_count for run in runs))


def runs_between(runs: Sequence[RecordRun], first: int, last: int) -> list[RecordRun]:
    """Rows [first, last) of the runs; empty ones are omitted."""
    found: list[RecordRun] = []
    for run in runs:
        count = run.columns.row_count
        start, end = max(first, 0), min(last, count)
        if start < end:
            found.append(_Edges(run).between(start, end))
        first, last = first - count, last - count
    return found


def stretches_of(wanted: np.ndarray) -> list[tuple[int, int]]:
    """The row ranges [first, last) of a mask."""
    edges = np.flatnonzero(np.diff(wanted.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def cut_slices(runs: Sequence[RecordRun], first_row: int, slice_bytes: int) -> Iterator[RowSlice]:
    """All rows of the runs in slices of at most so many bytes, unless one record is larger. `first_row` is the number of the first."""
    parts: list[RecordRun] = []
    room = slice_bytes
    for run in runs:
        edges, first, count = _Edges(run), 0, run.columns.row_count
        while first < count:
            last = edges.fitting(first, room)
            if last == first and parts:
                yield RowSlice(first_row, tuple(parts))
                first_row += sum(part.columns.row_count for part in parts)
                parts, room = [], slice_bytes
                continue
            last = max(last, first + 1)
            parts.append(edges.between(first, last))
            room -= edges.bytes_between(first, last)
            first = last
    if parts:
        yield RowSlice(first_row, tuple(parts))


class _Edges:
    """Start and end of the rows of a run, in bytes and in keys."""

    def __init__(self, run: RecordRun) -> None:
        self._run = run
        self._bytes = np.concatenate([[0], np.cumsum(run.columns.sizes_bytes, dtype=np.int64)])
        self._keys: np.ndarray | None = None

    def bytes_between(self, first: int, last: int) -> int:
        return int(self._bytes[last] - self._bytes[first])

    def fitting(self, first: int, size_bytes: int) -> int:
        """The first row end at which the rows from `first` on have more than so many bytes."""
        return int(np.searchsorted(self._bytes, self._bytes[first] + max(size_bytes, 0), side="right")) - 1

    def between(self, first: int, last: int) -> RecordRun:
        columns = self._run.columns
        if last - first == columns.row_count:
            return self._run
        if self._keys is None:
            self._keys = np.concatenate([[0], np.cumsum(columns.key_counts, dtype=np.int64)])
        rows, keys = slice(first, last), slice(int(self._keys[first]), int(self._keys[last]))
        part = columns._replace(
            queue_codes=columns.queue_codes[rows],
            sizes_bytes=columns.sizes_bytes[rows],
            tags_codes=columns.tags_codes[rows],
            key_counts=columns.key_counts[rows],
            key_hashes=columns.key_hashes[keys],
            transaction_states=None if columns.transaction_states is None else columns.transaction_states[rows],
        )
        return Stretch(self._run, part, int(self._bytes[first]))
