"""What records that are being appended say to queues and index, as the columns of their runs tell it. Pure.

By the same lines as of records that are read from the log (`dispatch.entries_by_queue`, `message_keys`). Java: DispatchRequest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from storage.ends.store_ends import QueueName
from storage.format.record_block import BlockColumns, RecordRun, resolved_tags_codes
from storage.log.dispatch import IndexKeys, QueueEntries, entries_by_queue, entries_of
from storage.log.placement import Placement

DISPATCH_ROWS = 1 << 20


class AppendedRun(NamedTuple):
    """Records that stand in the log and in no queue yet."""

    columns: BlockColumns
    placement: Placement
    store_time_ms: int


def groups_of_runs(runs: Sequence[RecordRun]) -> Iterator[list[RecordRun]]:
    """Runs by about DISPATCH_ROWS rows: what is kept in memory between log and queues. Empty runs are left out."""
    group: list[RecordRun] = []
    rows = 0
    for run in runs:
        if run.columns.row_count:
            group.append(run)
            rows += run.columns.row_count
        if rows >= DISPATCH_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group


def queue_entries_of_runs(runs: Sequence[AppendedRun]) -> Iterator[QueueEntries]:
    """The entries of all runs that enter queues, a queue at a time."""
    runs = [run for run in runs if run.columns.is_queued]
    if not runs:
        return
    if len(runs) == 1 and len(runs[0].columns.queues) == 1:
        yield _entries_of_one(runs[0])
        return
    codes_by_name: dict[QueueName, int] = {}
    codes = []
    for run in runs:
        known = np.array([codes_by_name.setdefault(name, len(codes_by_name)) for name in run.columns.queues], np.int64)
        codes.append(known[run.columns.queue_codes])
    yield from entries_by_queue(
        list(codes_by_name),
        np.concatenate(codes),
        np.concatenate([run.placement.commitlog_offsets for run in runs]),
        np.concatenate([run.columns.sizes_bytes for run in runs]),
        np.concatenate([resolved_tags_codes(run.columns.tags_codes, run.store_time_ms) for run in runs]),
        np.concatenate([run.placement.queue_offsets for run in runs]),
        np.concatenate([np.full(run.columns.row_count, run.store_time_ms, np.int64) for run in runs]),
    )


def _entries_of_one(run: AppendedRun) -> QueueEntries:
    """Those of a run for one queue, as they stand in it already."""
    (name,), placement = run.columns.queues, run.placement
    codes = resolved_tags_codes(run.columns.tags_codes, run.store_time_ms)
    entries = entries_of(placement.commitlog_offsets, run.columns.sizes_bytes, codes)
    return QueueEntries(*name, placement.queue_offsets, entries, np.full(len(entries), run.store_time_ms, np.int64))


def index_keys_of_runs(runs: Sequence[AppendedRun]) -> IndexKeys:
    """The keys of all runs, in log order."""
    if len(runs) == 1:
        (run,), hashes = runs, runs[0].columns.key_hashes
        offsets, counts = run.placement.commitlog_offsets, run.columns.key_counts
        return IndexKeys(hashes, np.repeat(offsets, counts), np.full(len(hashes), run.store_time_ms, np.int64))
    places = [np.repeat(run.placement.commitlog_offsets, run.columns.key_counts) for run in runs]
    times = [np.full(len(run.columns.key_hashes), run.store_time_ms, np.int64) for run in runs]
    hashes = np.concatenate([run.columns.key_hashes for run in runs])
    return IndexKeys(hashes, np.concatenate(places), np.concatenate(times))
