"""Compare a store's queues, index and checkpoint with its log, reading only.

    python -m jobs.verify_store PATH

Takes no lock and may run beside a broker. Exit code 1 when something differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from jobs.run import JobReport, Shared, StorePath, run_job
from spark_mq.terminal import progress_bar
from storage import open_store
from storage.files.remote import file_system_of, plain_path
from storage.format.delay import parse_delay_levels
from storage.log.commit_log import read_checkpoint
from storage.recovery.verify import VerifyReport, verify
from storage.settings.load import load_config
from storage.tables.document import TOPICS_FILE, read_state
from storage.tables.topics import TopicTable


def verify_store(
    path: str, *, conf: str | None = None, on_progress: Callable[[int, int], None] | None = None
) -> VerifyReport:
    """The audit of one store. Raises StorageError if it cannot be read."""
    root = plain_path(path).rstrip("/") or "/"
    file_system = file_system_of(path)
    config = load_config(root, conf, read_bytes=file_system.read_file)
    # Before the store is opened, so that a large table is not held beside its queues.
    topics = read_state(file_system, root, config, TOPICS_FILE, TopicTable.load)
    known_topics = None if topics is None else frozenset(topics.topics)
    del topics
    checkpoint = read_checkpoint(file_system, root)  # before the log: it must not be ahead
    with open_store(path, config=config) as store:
        return verify(
            store.log,
            store.queues,
            store.index if store.config.index.has_files else None,
            checkpoint,
            store.plan,
            delays_ms=parse_delay_levels(store.config.delay.message_delay_level),
            known_topics=known_topics,
            on_progress=on_progress,
        )


def run(path: StorePath, shared: Shared) -> JobReport:
    with progress_bar("comparing") as progress:
        report = verify_store(path, conf=shared.conf, on_progress=progress)
    return JobReport(
        [
            *(f"{found.kind}: {found.where}: {found.count}, first: {found.example}" for found in report.findings),
            f"{report.records} records, {report.queue_entries} queue entries, {report.index_keys} keys compared",
        ],
        exit_code=1 if report.findings else 0,
        figures={
            "findings": [
                {"kind": one.kind, "where": one.where, "count": one.count, "example": one.example}
                for one in report.findings
            ],
            "records": report.records,
            "queue_entries": report.queue_entries,
            "index_keys": report.index_keys,
        },
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(run, arguments)


if __name__ == "__main__":
    sys.exit(main())
