"""Build a store's consume queues and index again from its log.

    python -m jobs.rebuild_queues PATH

For queues or an index that were lost or differ from the log (`jobs.verify_store` says so). The broker must be stopped. The store
is recovered first; a log with damage in it is refused and nothing changes. Nothing is put yet, and no group goes back to where a lost
queue begins (another writer that opens the store meanwhile does let it). Then, in this order:

  1. the checkpoint forgets queues and index, synced: the next opening after a crash from here on dispatches all of the log
  2. under the lock, consumequeue/, consumequeue_ext/ and index/ are renamed to ROOT/spark_mq/rebuild/: the store has no queues then
  3. the store is opened for writing, which dispatches all of the log, syncs, and writes the checkpoint
  4. what was renamed is deleted; if 3 failed it is put back instead

A second run at the same time steps back (spark_mq/rebuild.lock); another writer that opens the store between 2 and 3 does 3.

Topics that were deleted while their records are still in the log come back, as they do when a broker rebuilds its queues.
Extension units are made again where enableConsumeQueueExt says so, with empty bit maps (a broker then filters by the message). Without
it the new entries hold the tags code itself.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs.run import JobReport, Shared, StorePath, run_job
from spark_mq.terminal import progress_bar
from storage import open_store
from storage.dispatch.recovery_plan import RecoveryReport
from storage.files.local_file_system import LocalFileSystem
from storage.files.remote import plain_path
from storage.log.commit_log import read_checkpoint, write_checkpoint

_DERIVED = ("consumequeue", "consumequeue_ext", "index")
_PATIENCE_MS = 60_000
"""How long to wait for a writer that came in between two steps: the rebuilding must not stop half-way."""


def rebuild_queues(path: str, *, conf: str | None = None, lock_timeout_ms: int = 0) -> RecoveryReport:
    """Rebuild them; returns the report of the rebuilding. Raises StorageError, and then the store is as recovered before."""
    path = plain_path(path)
    root, file_system = Path(path), LocalFileSystem()
    with open_store(
        path, config=conf, read_only=False, lock_timeout_ms=lock_timeout_ms, holder="job", writes_as="rebuilder"
    ):
        file_system.make_directories(str(root / "spark_mq"))
    with file_system.locked(str(root / "spark_mq" / "rebuild.lock")):
        return _rebuild(path, root, conf, file_system)


def _rebuild(path: str, root: Path, conf: str | None, file_system: LocalFileSystem) -> RecoveryReport:
    aside, lock = root / "spark_mq" / "rebuild", str(root / "lock")
    with file_system.locked(lock, _PATIENCE_MS):
        checkpoint = read_checkpoint(file_system, str(root))
        nothing = {"logics_msg_timestamp": 0, "index_msg_timestamp": 0}
        nothing["logics_physical_offset"] = checkpoint.queue_position(None)
        write_checkpoint(file_system, str(root), checkpoint._replace(**nothing))
        _move(root, aside)
    try:
        with (
            progress_bar("rebuilding") as progress,
            open_store(path, config=conf, read_only=False, lock_timeout_ms=_PATIENCE_MS, on_progress=progress) as store,
        ):
            report = store.recovery or RecoveryReport(was_clean=False, log_end=store.log_end)
    except BaseException:
        with file_system.locked(lock, _PATIENCE_MS):
            _move_back(root, aside)
            write_checkpoint(file_system, str(root), checkpoint)
        raise
    shutil.rmtree(aside)
    return report


def _move(root: Path, aside: Path) -> None:
    if aside.exists():  # from a killed run; the store was complete again before this one started
        shutil.rmtree(aside)
    LocalFileSystem().make_directories(str(aside))
    for name in _DERIVED:
        if (root / name).exists():
            os.rename(root / name, aside / name)
    _sync(aside, root)


def _move_back(root: Path, aside: Path) -> None:
    for name in _DERIVED:
        shutil.rmtree(root / name, ignore_errors=True)
        if (aside / name).exists():
            os.rename(aside / name, root / name)
    _sync(aside, root)
    shutil.rmtree(aside)


def _sync(*directories: Path) -> None:
    for directory in directories:
        LocalFileSystem().sync(str(directory))


def run(path: StorePath, shared: Shared) -> JobReport:
    report = rebuild_queues(path, conf=shared.conf, lock_timeout_ms=shared.lock_timeout_ms)
    figures = {"queue_entries": report.added_entries, "index_keys": report.indexed_keys}
    return JobReport(
        [f"{report.added_entries} queue entries and {report.indexed_keys} index keys written"], figures=figures
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(run, arguments)


if __name__ == "__main__":
    sys.exit(main())
