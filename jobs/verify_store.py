"""Compare a store's queues, index and checkpoint with its log, reading only: `python -m jobs.verify_store PATH`.

Takes no lock and may run beside a broker. Exit code 1 when something differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from storage import StorageError, open_store
from storage.checkpoint import read_checkpoint
from storage.files.remote import file_system_of
from storage.format.delay_level import parse_delay_levels
from storage.topics import FILE_NAME as TOPICS_FILE
from storage.topics import TopicTable
from storage.verify import VerifyReport, verify


def verify_store(
    path: str, *, conf: str | None = None, on_progress: Callable[[int, int], None] | None = None
) -> VerifyReport:
    """The audit of one store. Raises StorageError where it cannot be read."""
    checkpoint = read_checkpoint(file_system_of(path), path.rstrip("/") or "/")  # before the log: it must not be ahead
    with open_store(path, config=conf) as store:
        topics = store.state(TOPICS_FILE, TopicTable.load)
        return verify(
            store.log,
            store.queues,
            store.index if store.config.index.message_index_enable else None,
            checkpoint,
            store.plan,
            delays_ms=parse_delay_levels(store.config.delay.message_delay_level),
            known_topics=frozenset(topics.topics) if topics is not None else None,
            on_progress=on_progress,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="jobs.verify_store", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", help="the store: the directory that holds commitlog/")
    parser.add_argument("--conf", help="the broker's broker.conf")
    asked = parser.parse_args(arguments)
    try:
        report = verify_store(asked.path, conf=asked.conf)
    except StorageError as error:
        print(error, file=sys.stderr)
        return 1
    for finding in report.findings:
        print(f"{finding.kind}: {finding.where}: {finding.count}, first: {finding.example}")
    print(f"{report.records} records, {report.queue_entries} queue entries, {report.index_keys} keys compared")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
