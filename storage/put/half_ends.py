"""Ends half messages in the batch that brings them: by commits, which name their half's place, and by op messages.

    halves (places a, b, c; states commit, rollback, commit) · commits (prepared_transaction_offset a, c) · op "offsets of a, b, c,"

A commit has the bytes of its half except its queue and flags. So it is made of the half when it is read to be appended, after the
half's place is known, which is written into it. Java: EndTransactionProcessor, TransactionalMessageServiceImpl.deletePrepareMessage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from storage.errors import CorruptRecordError
from storage.files.file_system import Scratch
from storage.format.arrays import row_windows
from storage.format.record import TRANSACTION_COMMIT
from storage.format.record_block import (
    BlockColumns,
    QueueFields,
    RecordBlock,
    RecordRun,
    UnjoinedBlock,
    stamp_halves,
    write_commits,
)
from storage.log.writer import Placement
from storage.put.settings import PutSettings
from storage.rules.half_messages import op_messages
from storage.rules.inner_messages import InnerMessages, outgoing_messages

_WINDOW_BYTES = 4 << 20
"""How many bytes of halves become commits at a time. At 768 KiB the calls for a window cost as much as its rows do."""
_LONGEST_OFFSET = len("9223372036854775807,")
_Halves = TypeVar("_Halves", RecordBlock, UnjoinedBlock)


class HalfPlaces(NamedTuple):
    """The places of n halves."""

    commitlog_offsets: np.ndarray
    queue_offsets: np.ndarray

    @classmethod
    def of(cls, placements: Sequence[Placement]) -> HalfPlaces:
        """The places of appended runs."""
        nothing = np.empty(0, np.int64)
        return cls(
            np.concatenate([nothing, *(placement.commitlog_offsets for placement in placements)]),
            np.concatenate([nothing, *(placement.queue_offsets for placement in placements)]),
        )

    def followed_by(self, others: HalfPlaces) -> HalfPlaces:
        """These, then the others."""
        return HalfPlaces(*(np.concatenate(pair) for pair in zip(self, others, strict=True)))


class CommitsOfHalves:
    """The commits of the halves of a run that are committed, as records made of the halves' bytes on reading."""

    def __init__(self, halves: RecordRun, columns: BlockColumns) -> None:
        """`columns` are the commits'. Raises ValueError if they do not match the committed halves."""
        states = halves.columns.transaction_states
        self._rows = np.flatnonzero(states == TRANSACTION_COMMIT)
        if len(self._rows) != columns.row_count:
            raise ValueError(f"{columns.row_count} commits for {len(self._rows)} halves that are committed")
        rests = _sizes_but_for_names(halves.columns)[self._rows]
        if (differs := rests != _sizes_but_for_names(columns)).any():
            raise ValueError(f"{np.count_nonzero(differs)} commits of another size than their halves")
        self._halves = halves
        self._half_edges = _edges_of(halves.columns)
        self._edges = _edges_of(columns)
        self._scratch = Scratch()
        self.columns = columns

    def read(self, start: int, end: int, into: np.ndarray) -> None:
        """Copy bytes [start, end) of the records, which must be whole records, not stamped yet.

        Also reads the uncommitted halves since the last read: reading all commits in order reads all halves.
        Raises CorruptRecordError if halves have changed.
        """
        first, last = np.searchsorted(self._edges, (start, end)).tolist()
        if first == last:
            return
        rows = self._rows[first:last]
        half = int(self._rows[first - 1]) + 1 if first else 0
        half_end = int(rows[-1]) + 1 if last < len(self._rows) else len(self._half_edges) - 1
        edges = self._half_edges[half : half_end + 1]
        for window, _ in row_windows(edges[:-1], np.diff(edges), _WINDOW_BYTES):
            begin, stop = int(edges[window.start]), int(edges[window.stop])
            data = self._scratch.take(stop - begin)
            self._halves.read(begin, stop, data)
            one, other = np.searchsorted(rows, (half + window.start, half + window.stop)).tolist()
            made = slice(*(self._edges[first + row] - start for row in (one, other)))
            codes = self.columns.queue_codes[first + one : first + other]
            positions = self._half_edges[rows[one:other]] - begin
            try:
                write_commits(into[made], data, positions, self.columns.queues, codes)
            except (ValueError, IndexError) as error:
                raise CorruptRecordError("half messages", begin, "those that were staged", str(error)) from error


def _edges_of(columns: BlockColumns) -> np.ndarray:
    """The starts of a run's records, and the end of the last."""
    return np.concatenate([[0], np.cumsum(columns.sizes_bytes, dtype=np.int64)])


def _sizes_but_for_names(columns: BlockColumns) -> np.ndarray:
    names = np.array([len(name) for name in QueueFields.of(columns.queues).names], np.int64)
    return np.asarray(columns.sizes_bytes - names[columns.queue_codes])


class CommitRun:
    """Commits that name their halves' places, `half_offsets`, in record order."""

    def __init__(self, run: RecordRun, half_offsets: np.ndarray) -> None:
        self._run = run
        self._half_offsets = half_offsets
        self._edges = _edges_of(run.columns)
        self.columns = run.columns

    def read(self, start: int, end: int, into: np.ndarray) -> None:
        """Copy bytes [start, end) of the records, which must be whole records."""
        self._run.read(start, end, into)
        rows = slice(*np.searchsorted(self._edges, (start, end)).tolist())
        stamp_halves(into, self._edges[rows] - start, self._half_offsets[rows])


def commit_runs(halves: Sequence[RecordRun], commits: Sequence[RecordRun], places: HalfPlaces) -> list[RecordRun]:
    """The commits of all these halves, in order; the halves are at `places`."""
    half_offsets = places.commitlog_offsets[states_of(halves) == TRANSACTION_COMMIT]
    bounds = np.cumsum([0, *(run.columns.row_count for run in commits)])
    if bounds[-1] != len(half_offsets):
        raise ValueError(f"{bounds[-1]} commits for {len(half_offsets)} halves that are committed")
    return [
        CommitRun(run, half_offsets[start:end]) for run, start, end in zip(commits, bounds, bounds[1:], strict=False)
    ]


def op_runs(halves: Sequence[RecordRun], places: HalfPlaces, settings: PutSettings, now_ms: int) -> list[RecordRun]:
    """The op messages of the halves whose end is known."""
    ended = places.queue_offsets[states_of(halves) != 0]
    # A message that cannot be appended would block every later opening of the store.
    greatest = min(settings.max_message_size - _LONGEST_OFFSET, settings.log_file_size_bytes // 2)
    limit = settings.transaction.transaction_op_msg_max_size
    limit = limit and max(min(limit, greatest), 1)
    messages = op_messages(ended, limit, now_ms)
    if not messages:
        return []
    inner = InnerMessages.of(messages)
    parts = outgoing_messages(
        inner, settings.host, settings.delays_ms, settings.limits, indexes_tags=settings.release.indexes_tags
    )
    return [settings.encode(part) for part in parts]


def with_states(halves: _Halves, states: np.ndarray) -> _Halves:
    """The halves with these final states."""
    return halves._replace(columns=halves.columns._replace(transaction_states=states))


def states_of(halves: Sequence[RecordRun]) -> np.ndarray:
    """The final state of each half, by its transaction bits."""
    states = [run.columns.transaction_states for run in halves]
    return np.concatenate([np.empty(0, np.int8), *(found for found in states if found is not None)])
