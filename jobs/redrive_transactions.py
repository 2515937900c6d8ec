"""Put half messages without an answer back, so that they are checked again.

    python -m jobs.redrive_transactions PATH

For messages that `jobs.check_transactions` or a broker has moved to TRANS_CHECK_MAX_TIME_TOPIC, when a checker that knows the answers
is available again. Each goes back once, with its checks counted from 0. What was committed or rolled back meanwhile stays, and so does
what is older than the log's files get (fileReservedTime), because the next check would give it up again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from jobs.run import JobReport, Shared, StorePath, open_to_write, run_job
from storage.epoch_times import current_time_ms
from storage.tables.put_statistics import PutStatistics
from storage.transaction.discard import RedriveReport, redrive


def redrive_transactions(
    path: str,
    *,
    topics: Sequence[str] = (),
    conf: str | None = None,
    lock_timeout_ms: int = 0,
    put: PutStatistics | None = None,
    clock: Callable[[], int] = current_time_ms,
) -> RedriveReport:
    """One run, for all topics or for these. Raises StorageError, StoreLockedError if another writer has the store."""
    with open_to_write(path, conf=conf, clock=clock, lock_timeout_ms=lock_timeout_ms, put=put) as store:
        return redrive(store, clock(), topics=frozenset(topics) or None)


def run(
    path: StorePath,
    shared: Shared,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only messages of this topic; may be given several times."),
    ] = None,
) -> JobReport:
    put = PutStatistics()
    report = redrive_transactions(
        path, topics=topic or (), conf=shared.conf, lock_timeout_ms=shared.lock_timeout_ms, put=put
    )
    return JobReport(report.lines(), figures=report.figures(), put=put)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(run, arguments)


if __name__ == "__main__":
    sys.exit(main())
