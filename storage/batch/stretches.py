"""Parts of the runs of a batch: rows from a number on, rows that a mask wants, slices of so many bytes. Pure.

Rows are numbered over all runs, in their order. A part reads its bytes from its run; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from storage.format.record_block import BlockColumns, RecordRun


class Stretch(NamedTuple):
    """Some rows of a run that stand side by side."""

    run: RecordRun
    columns: BlockColumns
    start: int

    def read(self, start: int, end: int, into: np.ndarray) -> None:
        """Copy bytes [start, end) of the records."""
        self.run.read(self.start + start, self.start + end, into)


class RowSlice(NamedTuple):
    """Rows that go into the log together."""

    first_row: int
    parts: tuple[RecordRun, ...]

    @property
    def row_count(self) -> int:
        return sum(part.columns.row_count for part in self.parts)


def runs_from(runs: Sequence[RecordRun], first_row: int) -> list[RecordRun]:
    """The runs without the first rows; empty ones are left out."""
    return runs_between(runs, first_row, sum(run.columns.row_count for run in runs))


def runs_between(runs: Sequence[RecordRun], first: int, last: int) -> list[RecordRun]:
    """Rows [first, last) of the runs; empty ones are left out."""
    found: list[RecordRun] = []
    for run in runs:
        count = run.columns.row_count
        start, end = max(first, 0), min(last, count)
        if start < end:
            found.append(_Edges(run).between(start, end))
        first, last = first - count, last - count
    return found


def stretches_of(wanted: np.ndarray) -> list[tuple[int, int]]:
    """The row ranges [first, last) that a mask wants."""
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
    """Where the rows of a run begin and end, in bytes and in keys."""

    def __init__(self, run: RecordRun) -> None:
        self._run = run
        self._bytes = np.concatenate([[0], np.cumsum(run.columns.sizes_bytes, dtype=np.int64)])
        self._keys: np.ndarray | None = None

    def bytes_between(self, first: int, last: int) -> int:
        return int(self._bytes[last] - self._bytes[first])

    def fitting(self, first: int, size_bytes: int) -> int:
        """Behind which row the rows from `first` on have more than so many bytes."""
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
