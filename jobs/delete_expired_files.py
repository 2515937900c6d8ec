"""Delete a store's oldest log files, and the files of queues and index that then point to nothing.

    python -m jobs.delete_expired_files PATH

One run does what a broker does every ten seconds: nothing, unless it is the hour for it (deleteWhen, 4 o'clock) or a disk is too
full (diskMaxUsedSpaceRatio, 75 %); then up to ten files (deleteFileBatchMax) that were last changed three days ago (fileReservedTime),
and on a nearly full disk (diskSpaceCleanForciblyRatio, 85 %) younger ones too. `--now` ignores hour and disk. `--dry-run` only
lists what would go, takes no lock and may run beside a broker. The settings are those of broker.conf.

A store that was closed cleanly is closed cleanly again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import typer

from jobs.run import JobReport, Shared, StorePath, open_to_write, run_job
from storage import open_store
from storage.epoch_times import current_time_ms
from storage.errors import StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem, disk_used_percent
from storage.files.remote import file_system_of
from storage.retention import ExpiryPlan, apply_expiry, plan_run


def delete_expired_files(
    path: str,
    *,
    conf: str | None = None,
    now: bool = False,
    dry_run: bool = False,
    lock_timeout_ms: int = 0,
    clock: Callable[[], int] = current_time_ms,
    sleep: Callable[[float], None] = time.sleep,
    used_percent: Callable[[str], int] = disk_used_percent,
) -> tuple[ExpiryPlan, int]:
    """One run; returns what was (or would be) deleted, and how many sinks' last batches were written into the ledger again.

    `clock` gives milliseconds. Raises StorageError, StoreLockedError if another writer has the store.
    """
    files = file_system_of(path)
    if not isinstance(files, LocalFileSystem):
        raise StoreNotWritableError(path, "it does not lie on a local file system")
    if dry_run:
        with open_store(path, config=conf, clock=clock) as store:
            return plan_run(
                store, files, clock(), store.config.retention, is_requested=now, used_percent=used_percent
            ), 0
    with open_to_write(path, conf=conf, clock=clock, lock_timeout_ms=lock_timeout_ms) as store:
        plan = plan_run(store, files, clock(), store.config.retention, is_requested=now, used_percent=used_percent)
        return plan, apply_expiry(store.writer, plan, store.config.retention, sleep=sleep)


def _lines(plan: ExpiryPlan, renewed: int, dry_run: bool) -> Iterator[str]:
    verb = "would delete" if dry_run else "deleted"
    if plan.occasion.reasons:
        age = ", whatever their age" if plan.occasion.whatever_age else ""
        yield f"log files may go{age}: {'; '.join(plan.occasion.reasons)}"
    else:
        yield "no log file goes: it is not the hour for it (deleteWhen), and the disks are not too full"
    if plan.log_files:
        yield f"{verb} {len(plan.log_files)} log files, {plan.log_bytes} bytes; the log begins at {plan.minimum}"
    elif plan.occasion.reasons:
        yield "no log file has expired"
    if plan.occasion.is_full:
        yield "the disk is fuller than diskSpaceWarningLevelRatio: a broker would take no message now"
    for topic, count in plan.messages_of_topics.items():
        yield f"topic {topic}: {count} messages"
    queue_files = sum(len(queue.paths) for queue in plan.queues)
    if queue_files or plan.index_paths:
        yield f"{verb} {queue_files} queue files and {len(plan.index_paths)} index files that point to nothing any more"
    if renewed:
        yield f"the last batch of {renewed} sinks was written into the ledger again"


def _figures(plan: ExpiryPlan, renewed: int, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "log_files": len(plan.log_files),
        "log_bytes": plan.log_bytes,
        "queue_files": sum(len(queue.paths) for queue in plan.queues),
        "index_files": len(plan.index_paths),
        "messages": dict(plan.messages_of_topics),
        "renewed_sinks": renewed,
    }


def run(
    path: StorePath,
    shared: Shared,
    *,
    now: Annotated[bool, typer.Option("--now", help="Whatever the hour, and however full the disk is.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would go, and delete nothing.")] = False,
) -> JobReport:
    plan, renewed = delete_expired_files(
        path, conf=shared.conf, now=now, dry_run=dry_run, lock_timeout_ms=shared.lock_timeout_ms
    )
    return JobReport(_lines(plan, renewed, dry_run), figures=_figures(plan, renewed, dry_run))


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(run, arguments)


if __name__ == "__main__":
    sys.exit(main())
