"""What every job's command line shares: PATH, --conf, --every, --lock-timeout, --json, and stepping back from another writer's store.

A job is a module of this package. Its docstring begins `What it does, in one sentence: ...` (the part before the first colon is
its help) and says `python -m jobs.NAME PATH` somewhere; it has a function for Python, and

    def add_options(parser: argparse.ArgumentParser) -> None: ...    # only where it has options of its own
    def run(options: argparse.Namespace) -> JobReport: ...           # one run: opens options.path with options.conf, and lets go
    def main(arguments: Sequence[str] | None = None) -> int: return run_job(run, arguments, add_options=add_options)
    if __name__ == "__main__": sys.exit(main())

so that it runs as `spark-submit jobs/NAME.py PATH`, `python -m jobs.NAME PATH` and `spark-mq job NAME PATH`. A job that writes opens
the store with `open_to_write`, waits its turn for `options.lock_timeout_ms`, and lets the StoreLockedError out: two runs at the same
time are safe, and the loser exits 75, or 0 with --busy-ok. Errors that an operator can do something about (StorageError,
SparkMqError, OSError, no Java) are let out too: one line, with --json an object as well, and a code of `spark_mq/exit_codes.py`.
"""

from __future__ import annotations

import argparse
import errno
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from spark_mq.cluster_arguments import add_cluster_arguments
from spark_mq.conditions import ConvertedError, OptionError, SparkMqError
from spark_mq.exit_codes import BUSY, DONE, INTERRUPTED, USAGE, exit_code_of
from spark_mq.session import SESSION_ERRORS
from spark_mq.source.option_values import parse_duration_ms
from spark_mq.stop_signals import stop_on_signal
from storage import MessageStore, open_store
from storage.errors import DescribedError, StorageError, StoreLockedError
from storage.files.os_errors import from_os_error
from storage.tables.put_statistics import PutStatistics

SLEEP_SLICE_S = 0.5
"""How long a signal may have to wait while a repeated job sleeps."""
LOCK_TIMEOUT_MS = 10_000
"""How long a job waits for its turn, unless told otherwise."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class JobReport:
    """What one run did, in lines for people and in figures for programs; `exit_code` 1 says that it found what somebody has to look at.

    `is_idle` says that it did nothing and found nothing new: of such runs one behind the other only the first is printed.
    `is_busy` says that a part was left, because another process has the store.
    """

    lines: Iterable[str] = ()
    exit_code: int = 0
    is_idle: bool = False
    is_busy: bool = False
    figures: Mapping[str, object] = field(default_factory=dict)
    """The same for programs: what `--json` prints."""
    put: PutStatistics | None = None
    """What was put into the store; None of a job that puts nothing."""


Run = Callable[[argparse.Namespace], JobReport]


def run_job(
    run: Run,
    arguments: Sequence[str] | None = None,
    *,
    add_options: Callable[[argparse.ArgumentParser], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run a job once, or with `--every` again and again; returns the exit code of the last run.

    Repeated runs begin `--every` apart; one that takes longer is followed by the next at once. SIGTERM or SIGINT lets the run that
    is under way finish and ends then; a second signal ends at once, as SIGINT does where the job runs once: exit code 130.
    A store that is locked, a full disk, or any error that is `retriable`, is tried again at the next turn; other errors end the job.
    A run that left anything because another process has the store ends with BUSY, or with DONE under `--busy-ok`.
    A run that did nothing prints nothing behind another such run. `clock` and `sleep` are in seconds.
    """
    given = sys.argv[1:] if arguments is None else arguments
    parser = job_parser(run, prints_json="--json" in given)
    if add_options is not None:
        add_options(parser)
    options = parser.parse_args(given)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr, flush=True)
        try:
            if options.every is None:
                return _run_once(run, options).exit_code
            with stop_on_signal() as is_stopping:
                return _repeat(run, options, clock, sleep, is_stopping)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr, flush=True)
            return INTERRUPTED


@contextmanager
def open_to_write(
    path: str,
    *,
    conf: str | None = None,
    clock: Callable[[], int] | None = None,
    lock_timeout_ms: int = 0,
    put: PutStatistics | None = None,
) -> Iterator[MessageStore]:
    """The store, open for writing, and left as it was found: closed cleanly if it was, else only given back.

    So what commits of sinks keep open between them stays cheap to open. Waits `lock_timeout_ms` for its turn: behind commits and jobs
    that began to wait before, ahead of those that begin later. Does not wait for a broker. `put` counts what is put from the
    opening on. Raises StoreLockedError where another writer has the store.
    """
    with open_store(
        path, config=conf, read_only=False, clock=clock, lock_timeout_ms=lock_timeout_ms, holder="job"
    ) as store:
        if put is not None:
            store.writer.statistics = put
        yield store
        if store.recovery is None or not store.recovery.was_clean:
            store.release()


def positive_count(text: str) -> int:
    """The type of an option that says how many: a whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


class _JobParser(argparse.ArgumentParser):
    """Tells what is wrong with the command line as JSON, too."""

    prints_json = False

    def error(self, message: str) -> NoReturn:
        if self.prints_json:
            name = self.prog.removeprefix("jobs.")
            print(json.dumps({"job": name, "exitCode": USAGE, "error": message, "hint": None}), flush=True)
        super().error(message)


def job_parser(run: Run, *, prints_json: bool = False) -> argparse.ArgumentParser:
    """The options that every job has: `path`, `conf` (None = the broker.conf beside the store), `every` (seconds or None),
    `lock_timeout_ms`, `busy_ok`, `as_json`.
    """
    module = sys.modules[run.__module__]
    parser = _JobParser(prog=f"jobs.{job_name(run)}", description=job_description(module.__doc__))
    parser.prints_json = prints_json
    takes_clusters = getattr(module, "TAKES_CLUSTERS", False)
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?" if takes_clusters else None,
        help="the store: the directory that holds commitlog/",
    )
    if takes_clusters:
        add_cluster_arguments(parser)
    parser.add_argument("--conf", metavar="FILE", help="the broker's broker.conf; without it the one beside the store")
    parser.add_argument("--every", metavar="TIME", type=_seconds, help="repeat with this interval, such as 30s")
    parser.add_argument(
        "--json", dest="as_json", action="store_true", help="print each run as one JSON object, in a line"
    )
    parser.add_argument(
        "--busy-ok", action="store_true", help="exit 0, not 75, where a broker or another process holds the store"
    )
    parser.add_argument(
        "--lock-timeout",
        dest="lock_timeout_ms",
        metavar="TIME",
        type=_milliseconds,
        default=LOCK_TIMEOUT_MS,
        help="how long to wait while a sink or another job writes; not for a broker; 10s",
    )
    return parser


def job_name(run: Run) -> str:
    """The module's."""
    return Path(sys.modules[run.__module__].__file__ or run.__module__).stem


def job_description(docstring: str | None) -> str:
    """The one sentence of a job's docstring: its first line up to the colon or the full stop."""
    first_line = (docstring or "").partition("\n")[0]
    return first_line.partition(":")[0].rstrip(".")


def _milliseconds(text: str) -> int:
    try:
        return parse_duration_ms(text, "TIME")
    except OptionError as error:
        raise argparse.ArgumentTypeError(error.rule) from None


def _seconds(text: str) -> float:
    duration_ms = _milliseconds(text)
    if duration_ms <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no interval")
    return duration_ms / 1_000


class _Turn(NamedTuple):
    """How a run ended."""

    exit_code: int
    goes_on: bool = True
    """Whether the next turn makes sense."""
    is_idle: bool = False


def _run_once(run: Run, options: argparse.Namespace, *, after_idle: bool = False) -> _Turn:
    """One run, printed, but for an idle one behind another."""
    begin_s = time.monotonic()
    try:
        report, may_pass, told = run(options), True, None
    except StoreLockedError as error:
        reason, may_pass, told = error.describe(), True, None
        report = JobReport([f"nothing done: {reason}"], is_busy=True, figures={"nothingDone": reason})
    except (OSError, *SESSION_ERRORS, SparkMqError, StorageError) as error:
        may_pass, named = _may_pass(error), from_os_error(error) if isinstance(error, OSError) else error
        told = str(named)
        text, _, hint = told.partition("\n")
        if isinstance(named, SparkMqError):
            text, hint = f"[{named.condition}] {named.describe()}", "\n".join(named.details())
        report = JobReport(exit_code=exit_code_of(error), figures={"error": text, "hint": hint or None})
    if report.is_busy and report.exit_code == DONE and not options.busy_ok:
        report = replace(report, exit_code=BUSY)
    if not (report.is_idle and after_idle):
        for line in _told(report, run, options, round((time.monotonic() - begin_s) * 1_000)):
            print(line, flush=True)
    if told is not None:
        print(f"error: {told}", file=sys.stderr, flush=True)
    return _Turn(report.exit_code, may_pass, report.is_idle)


def _told(report: JobReport, run: Run, options: argparse.Namespace, took_ms: int) -> Iterator[str]:
    """The lines of a run: its own and what it put, or all of it as JSON."""
    if not options.as_json:
        yield from report.lines
        if report.put is not None and (line := report.put.line()):
            yield f"{line}; {took_ms:,} ms"
        return
    place = {"store": options.path} if options.path is not None else {"nameServer": options.name_server}
    head = {"job": job_name(run), **place, "exitCode": report.exit_code, "tookMs": took_ms}
    if report.put is not None:
        put = {topic: {"messages": one.messages, "bytes": one.size_bytes} for topic, one in report.put.topics.items()}
        head["put"] = put
    yield json.dumps({**head, **report.figures})


def _may_pass(error: Exception) -> bool:
    is_full = isinstance(error, OSError) and error.errno in _DISK_FULL
    origin = (
        error.__context__ if isinstance(error, ConvertedError) else error
    )  # a client's error, under a condition's name
    return is_full or (isinstance(origin, DescribedError) and origin.retriable)


def _repeat(
    run: Run,
    options: argparse.Namespace,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    is_stopping: Callable[[], bool],
) -> int:
    is_idle = False
    while True:
        due = clock() + options.every
        exit_code, goes_on, is_idle = _run_once(run, options, after_idle=is_idle)
        while goes_on and not is_stopping() and (rest := due - clock()) > 0:
            sleep(min(rest, SLEEP_SLICE_S))
        if not goes_on or is_stopping():
            return exit_code
