"""Syncing what is derived from the log, queues and index, while both go on growing. Java: FlushConsumeQueueService, IndexService.flush.

`begin_sync` looks at what is not synced, `DerivedSync.run` syncs that, `end_sync` takes note of it. The first and the last need the
store for themselves, the one in the middle takes the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from storage.files.local_file_system import LocalFileSystem
from storage.files.sync_gate import SyncGate
from storage.index.writer import IndexWriter
from storage.queues.writer import ConsumeQueueWriter


class _QueueState(NamedTuple):
    writer: ConsumeQueueWriter
    end: int
    paths: frozenset[str]
    open_paths: frozenset[str]


@dataclass(frozen=True, slots=True)
class DerivedSync:
    """What is to be synced, and what is known of it then."""

    paths: tuple[str, ...]
    """Files before their directories."""
    is_thorough: bool
    """Whether that is all: entries and keys of every record up to `store_time_ms`, but for those of its own millisecond."""
    store_time_ms: int
    index_end_ms: int
    queues: tuple[_QueueState, ...]
    index_key_count: int
    file_system: LocalFileSystem
    gate: SyncGate

    def run(self) -> None:
        """Returns when all is on the disk. Raises OSError; then nobody knows what is."""
        self.gate.run(lambda: self.file_system.sync_all(self.paths))  # a file may have expired meanwhile


def begin_sync(
    file_system: LocalFileSystem,
    writers: Iterable[ConsumeQueueWriter],
    index_writer: IndexWriter | None,
    inherited: Iterable[str],
    gate: SyncGate,
    *,
    least_pages: int,
    store_time_ms: int,
) -> DerivedSync:
    """Of the queues those with `least_pages` to sync; for 0 all, with their directories, the index and what an earlier writer left.

    `store_time_ms` is that of the last record that was dispatched.
    """
    is_thorough = least_pages == 0
    states = [
        _QueueState(writer, writer.end, frozenset(writer.paths), writer.open_paths())
        for writer in writers
        if (writer.paths or writer.has_new_file) and (is_thorough or writer.is_worth_syncing(least_pages))
    ]
    paths = {path for state in states for path in state.paths}
    if is_thorough:
        paths |= set(inherited) | unsynced_directories(state.writer for state in states)
        if index_writer is not None:
            paths |= index_writer.unsynced_paths
    return DerivedSync(
        tuple(sorted(paths, reverse=True)),
        is_thorough,
        store_time_ms,
        0 if index_writer is None else index_writer.end_time_ms,
        tuple(states),
        0 if index_writer is None else index_writer.key_count,
        file_system,
        gate,
    )


def unsynced_directories(writers: Iterable[ConsumeQueueWriter]) -> set[str]:
    """Those with entries of new files and queues that are not synced."""
    return {directory for writer in writers if writer.has_new_file for directory in writer.directories()}


def end_sync(sync: DerivedSync, index_writer: IndexWriter | None) -> None:
    """Take note that what was to be synced is."""
    for state in sync.queues:
        state.writer.note_synced(state.paths, state.end)
        if sync.is_thorough and state.writer.open_paths() == state.open_paths:
            state.writer.note_directories_synced()
    if sync.is_thorough and index_writer is not None and index_writer.key_count == sync.index_key_count:
        index_writer.unsynced.clear()
        index_writer.has_new_file = False
