"""Put half messages that nobody answered for back, to be asked about again: `python -m jobs.redrive_transactions PATH`.

For what `jobs.check_transactions` or a broker has moved to TRANS_CHECK_MAX_TIME_TOPIC, once whoever can answer is there
again. Each goes back once, with its checks counted from 0; what was committed or rolled back meanwhile stays, and what
is older than the log's files get (fileReservedTime), which the next check would give up again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from jobs.run import JobReport, open_to_write, run_job
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
    """One run, for all topics or for these. Raises StorageError, StoreLockedError where another writer has the store."""
    with open_to_write(path, conf=conf, clock=clock, lock_timeout_ms=lock_timeout_ms, put=put) as store:
        return redrive(store, clock(), topics=frozenset(topics) or None)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic", metavar="TOPIC", action="append", default=[], help="only what was sent to it; may be repeated"
    )


def run(options: argparse.Namespace) -> JobReport:
    put = PutStatistics()
    report = redrive_transactions(
        options.path, topics=options.topic, conf=options.conf, lock_timeout_ms=options.lock_timeout_ms, put=put
    )
    return JobReport(report.lines(), figures=report.figures(), put=put)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(run, arguments, add_options=add_options)


if __name__ == "__main__":
    sys.exit(main())
