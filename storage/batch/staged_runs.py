"""The segments of a batch as the runs that go into the log: of commits without records of their own, those made of their halves.

    halves of task 0 · halves of task 1 · columns of the commits of 0 · of 1    segments
    halves of task 0 · halves of task 1 · commits of 0 · commits of 1           runs

A version before has staged commits as records; those are runs as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from storage.batch.staged_segment import SegmentReader, StagedSegment
from storage.errors import CorruptRecordError
from storage.files.local_file_system import LocalFileSystem
from storage.format.record_block import RecordRun
from storage.format.sys_flag import TRANSACTION_COMMIT
from storage.put.half_ends import CommitsOfHalves

_MANY_BYTES = 16 << 20
_THREADS = 2


class StagedRuns(NamedTuple):
    """What was staged for a batch, opened."""

    runs: tuple[RecordRun, ...]
    """In the order of the segments, a run for each."""
    readers: tuple[SegmentReader, ...]

    def verify_data(self) -> None:
        """Read all records, of several segments at once; raises CorruptRecordError if they are not those that were staged."""
        if sum(reader.segment.data_size_bytes for reader in self.readers) < _MANY_BYTES:
            for reader in self.readers:
                reader.verify_data()
        else:
            with ThreadPoolExecutor(_THREADS) as threads:
                list(threads.map(SegmentReader.verify_data, self.readers))


def open_runs(
    file_system: LocalFileSystem, root: str, segments: Iterable[StagedSegment], resources: ExitStack
) -> StagedRuns:
    """The segments opened, until `resources` end. Raises StagedRowsGoneError, CorruptRecordError."""
    readers = [resources.enter_context(SegmentReader(file_system, root, segment)) for segment in segments]
    return StagedRuns(tuple(_runs(readers)), tuple(readers))


def _runs(readers: Sequence[SegmentReader]) -> Iterable[RecordRun]:
    halves = iter([reader for reader in readers if _commit_count(reader)])
    for reader in readers:
        own = next(halves, None) if reader.columns.transaction_states is None else None
        if reader.segment.has_records:
            yield reader
        else:
            yield _commits(own, reader)


def _commits(halves: SegmentReader | None, commits: SegmentReader) -> CommitsOfHalves:
    wanted = f"the commits of {commits.segment.rows} halves of the batch"
    if halves is None:
        raise CorruptRecordError("columns", 0, wanted, "no such halves", commits.segment.path)
    try:
        return CommitsOfHalves(halves, commits.columns)
    except ValueError as error:
        raise CorruptRecordError("columns", 0, wanted, str(error), commits.segment.path) from error


def _commit_count(reader: SegmentReader) -> int:
    return int(np.count_nonzero(reader.columns.transaction_states == TRANSACTION_COMMIT))
