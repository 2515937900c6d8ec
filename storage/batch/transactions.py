"""The rows of a batch of transactions on their way into the log: halves, then the commits that name them.

What an earlier attempt has left is not written again: halves by comparison with what was staged, commits by the halves that they name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from storage.batch.ledger import Batch, LedgerMessage
from storage.batch.redo import Progress, commit_places, places_behind
from storage.batch.slices import SharedLog, Tail, append_slices
from storage.batch.stretches import runs_between, runs_from, stretches_of
from storage.failpoints import reach
from storage.format.record_block import RecordRun
from storage.format.sys_flag import TRANSACTION_COMMIT
from storage.put.half_ends import HalfPlaces, commit_runs, states_of
from storage.put.store_writer import StoreWriter


def append_transactions(
    writer: StoreWriter,
    batch: Batch,
    halves: Sequence[RecordRun],
    commits: Sequence[RecordRun],
    there: Progress,
    begun: Sequence[LedgerMessage],
    tail: Tail,
    shared: SharedLog,
) -> tuple[int, HalfPlaces]:
    """Halves and then commits that are not there yet; returns the last row's place, and the places of all halves.

    A half that is committed already stays so, whoever did it: a broker that was started in between may have asked its producer, and so
    may whoever has the put lock between two slices.
    """
    half_count = sum(run.columns.row_count for run in halves)
    file_size = writer.settings.log_file_size_bytes
    with shared.turn():
        places = places_behind(writer.log, file_size, begun, halves, min(there.row_count, half_count))
    if rest := runs_from(halves, there.row_count):
        tail = tail._replace(row_count=min(tail.row_count, half_count - there.row_count))
        appended = append_slices(writer, batch, rest, there.row_count, shared, tail)
        places = places.followed_by(HalfPlaces.of(appended))
        reach("after-halves")
    runs = commit_runs(halves, commits, places)
    half_offsets = places.commitlog_offsets[states_of(halves) == TRANSACTION_COMMIT]
    committed = np.full(len(half_offsets), -1, np.int64)

    def nobody_else_commits() -> bool:
        """Under the put lock: whether others have committed none of the halves since this was asked last."""
        stretches = shared.take_stretches() if len(half_offsets) else []
        if not stretches:
            return True
        open_before = np.count_nonzero(committed < 0)
        for start, end in stretches:
            theirs = commit_places(writer.log, start, end, half_offsets)
            committed[:] = np.where(committed < 0, theirs, committed)
        return int(np.count_nonzero(committed < 0)) == open_before

    with shared.turn():
        nobody_else_commits()
    while open_stretches := stretches_of(committed < 0):
        first, end = open_stretches[0]
        rest = runs_between(runs, first, end)
        appended = append_slices(writer, batch, rest, half_count + first, shared, goes_on=nobody_else_commits)
        offsets = [placement.commitlog_offsets for placement in appended]
        count = sum(map(len, offsets))
        committed[first : first + count] = np.concatenate([committed[:0], *offsets])
    last = committed if len(committed) else places.commitlog_offsets
    return int(last[-1]), places
