"""The common command line of all jobs: their options, repeated runs, and giving way to another writer of the store.

A job is a module of this package, listed in `jobs/__init__.py`. It has a function for Python, and

    def run(path: StorePath, shared: Shared, …) -> JobReport: ...    # one run: opens the store, and lets go; Typer's annotations
    def main(arguments: Sequence[str] | None = None) -> int: return run_job(run, arguments)
    if __name__ == "__main__": sys.exit(main())

so that it runs as `spark-submit jobs/NAME.py PATH`, `python -m jobs.NAME PATH` and `spark-mq job NAME PATH`. The parameters of `run`
are its command line, as those of any command of `spark-mq`. A job that writes opens the store with `open_to_write`, waits its turn for
`shared.lock_timeout_ms`, and does not catch StoreLockedError: two runs at the same time are safe, and the one that finds the store
locked exits 75, or 0 with --busy-ok. It does not catch errors that an operator can act on either (StorageError, SparkMqError, OSError,
the client's, no Java): they become one line, with --json an object as well, and a code of `spark_mq/terminal.py`.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand

from jobs import JOBS
from spark_mq.command_options import LOCK_TIMEOUT_MS, NO_CLUSTER, Conf, LockTimeout, duration_ms, with_options
from spark_mq.conditions import SparkMqError, as_condition, may_pass
from spark_mq.session import SESSION_ERRORS
from spark_mq.terminal import BUSY, DONE, INTERRUPTED, USAGE, exit_code_of, stop_on_signal
from storage import MessageStore, open_store
from storage.errors import DescribedError, StorageError, StoreLockedError
from storage.files.os_errors import from_os_error
from storage.tables.put_statistics import PutStatistics

SLEEP_SLICE_S = 0.5
"""How long a signal may have to wait while a repeated job sleeps."""
_UsageError: type[Any] = typer.BadParameter.__bases__[0]
"""Click's; some releases of Typer have a Click of their own."""


def _interval_s(value: object) -> float:
    if (interval_ms := duration_ms(value)) <= 0:
        raise typer.BadParameter(f"{value!r} is no interval")
    return interval_ms / 1_000


StorePath = Annotated[
    str,
    typer.Argument(metavar="PATH", show_default=False, help="The store: the directory that holds commitlog/."),
]
StorePathUnlessCluster = Annotated[
    str | None,
    typer.Argument(
        metavar="PATH",
        show_default=False,
        help="The store: the directory that holds commitlog/; in its place --name-server.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The options of every job."""

    conf: Conf = None
    every: Annotated[
        float | None,
        typer.Option("--every", metavar="TIME", parser=_interval_s, help="Repeat with this interval, such as 30s."),
    ] = None
    """In seconds."""
    as_json: Annotated[bool, typer.Option("--json", help="Print each run as one JSON object, in a line.")] = False
    busy_ok: Annotated[
        bool, typer.Option("--busy-ok", help="Exit 0, not 75, where a broker or another process holds the store.")
    ] = False
    lock_timeout_ms: LockTimeout = LOCK_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class JobReport:
    """The result of one run, as lines to display and as figures for programs.

    `exit_code` 1 means that it found something that an operator must examine. `is_idle` means that it did and found nothing
    new: of several such runs in a row only the first is printed. `is_busy` means that it left a part, because another process has the
    store.
    """

    lines: Iterable[str] = ()
    exit_code: int = 0
    is_idle: bool = False
    is_busy: bool = False
    figures: Mapping[str, object] = field(default_factory=dict)
    """The same for programs: what `--json` prints."""
    put: PutStatistics | None = None
    """What was put into the store; None for a job that puts nothing."""


Run = Callable[..., JobReport]


def run_job(
    run: Run,
    arguments: Sequence[str] | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run a job by its command line, once, or with `--every` repeatedly. Returns the exit code of the last run; 2 for wrong usage.

    Repeated runs start `--every` apart; a longer run is followed by the next at once. After SIGTERM or SIGINT the current run
    finishes and the job ends. A second signal ends it at once, as SIGINT does if the job runs once: exit code 130.
    After a locked store, a full disk, or any `retriable` error the next turn tries again; other errors end the job.
    A run that left anything because another process has the store ends with BUSY, or with DONE under `--busy-ok`.
    `clock` and `sleep` are in seconds.
    """
    given = None if arguments is None else list(arguments)
    try:
        job_command(run, clock, sleep).main(given, prog_name=f"jobs.{job_name(run)}")
    except SystemExit as ending:
        return int(ending.code or 0)
    return DONE


def job_command(
    run: Run, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> Any:
    """A job as a command of Typer; `spark-mq job NAME` runs the same."""
    name = job_name(run)

    def call(**given: Any) -> None:
        path, cluster = given.get("path"), given.get("connection", NO_CLUSTER)
        place = {"name_server": cluster.name_server} if path is None else {"store": path}
        job = _Job(partial(run, **given), {"job": name, **place}, given["shared"])
        raise typer.Exit(_turns(job, clock, sleep))

    of_one = typer.Typer(add_completion=False)
    of_one.command(name, cls=_JobCommand, help=JOBS.get(name))(with_options(run, call))
    return typer.main.get_command(of_one)


class _JobCommand(TyperCommand):
    """With --json it also prints errors of the command line as an object."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        prints_json = "--json" in args  # parsing removes words
        try:
            return super().make_context(info_name, args, *more, **extra)
        except _UsageError as error:
            if prints_json:
                head = {"job": self.name, "exit_code": USAGE}
                print(json.dumps({**head, "error": error.format_message(), "hint": None}), flush=True)
            raise


@contextmanager
def open_to_write(
    path: str,
    *,
    conf: str | None = None,
    clock: Callable[[], int] | None = None,
    lock_timeout_ms: int = 0,
    put: PutStatistics | None = None,
) -> Iterator[MessageStore]:
    """The store, open for writing. It is left as it was found: closed cleanly if it was, else only released.

    So the state that commits of sinks keep open between them stays cheap to open. Waits `lock_timeout_ms` for its turn: after commits
    and jobs that started to wait before, ahead of later ones. Does not wait for a broker. `put` counts what is put from the
    opening on. Raises StoreLockedError if another writer has the store.
    """
    with open_store(
        path, config=conf, read_only=False, clock=clock, lock_timeout_ms=lock_timeout_ms, holder="job"
    ) as store:
        if put is not None:
            store.writer.statistics = put
        yield store
        if store.recovery is None or not store.recovery.was_clean:
            store.release()


def job_name(run: Run) -> str:
    """The module's name."""
    return Path(sys.modules[run.__module__].__file__ or run.__module__).stem


class _Job(NamedTuple):
    """A job with its command line."""

    run: Callable[[], JobReport]
    head: Mapping[str, object]
    """The first fields that --json prints: which job, and where."""
    shared: Shared


class _Turn(NamedTuple):
    """The end of a run."""

    exit_code: int
    goes_on: bool = True
    """Whether the next turn makes sense."""
    is_idle: bool = False


def _turns(job: _Job, clock: Callable[[], float], sleep: Callable[[float], None]) -> int:
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr, flush=True)
        try:
            if job.shared.every is None:
                return _run_once(job).exit_code
            with stop_on_signal() as is_stopping:
                return _repeat(job, job.shared.every, clock, sleep, is_stopping)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr, flush=True)
            return INTERRUPTED


def _run_once(job: _Job, *, after_idle: bool = False) -> _Turn:
    """One run, printed; an idle run after another idle one is not printed."""
    begin_s = time.monotonic()
    try:
        report, goes_on, text = job.run(), True, None
    except StoreLockedError as error:
        reason, goes_on, text = error.describe(), True, None
        report = JobReport([f"nothing done: {reason}"], is_busy=True, figures={"nothing_done": reason})
    except (OSError, *SESSION_ERRORS, SparkMqError, DescribedError) as error:
        goes_on, named = may_pass(error), _named(error)
        text = str(named)
        cause, _, hint = text.partition("\n")
        if isinstance(named, SparkMqError):
            cause, hint = f"[{named.condition}] {named.describe()}", "\n".join(named.details())
        report = JobReport(exit_code=exit_code_of(error), figures={"error": cause, "hint": hint or None})
    if report.is_busy and report.exit_code == DONE and not job.shared.busy_ok:
        report = replace(report, exit_code=BUSY)
    if not (report.is_idle and after_idle):
        for line in _lines(report, job, round((time.monotonic() - begin_s) * 1_000)):
            print(line, flush=True)
    if text is not None:
        print(f"error: {text}", file=sys.stderr, flush=True)
    return _Turn(report.exit_code, goes_on, report.is_idle)


def _named(error: Exception) -> Exception:
    """The error as an operator is shown it: a client's under its condition's name, as Spark shows it."""
    if isinstance(error, OSError):
        return from_os_error(error)
    if isinstance(error, DescribedError) and not isinstance(error, StorageError):
        return as_condition(error)
    return error


def _lines(report: JobReport, job: _Job, took_ms: int) -> Iterator[str]:
    """The lines of a run: its own and what it put, or all of it as JSON."""
    if not job.shared.as_json:
        yield from report.lines
        if report.put is not None and (line := report.put.line()):
            yield f"{line}; {took_ms:,} ms"
        return
    head = {**job.head, "exit_code": report.exit_code, "took_ms": took_ms}
    if report.put is not None:
        put = {topic: {"messages": one.messages, "bytes": one.size_bytes} for topic, one in report.put.topics.items()}
        head["put"] = put
    yield json.dumps({**head, **report.figures})


def _repeat(
    job: _Job,
    interval_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    is_stopping: Callable[[], bool],
) -> int:
    is_idle = False
    while True:
        due = clock() + interval_s
        exit_code, goes_on, is_idle = _run_once(job, after_idle=is_idle)
        while goes_on and not is_stopping() and (rest := due - clock()) > 0:
            sleep(min(rest, SLEEP_SLICE_S))
        if not goes_on or is_stopping():
            return exit_code
