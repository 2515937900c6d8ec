"""Dead letters, replayed by the console: the job's own code (`jobs/replay_dead_letters.py`), one run at a time.

A preview lists what a run would do; it starts no Spark and writes nothing. A run goes on in a thread, while the page looks at it. The
audit is the job's Delta table, which is read without Spark; a run that writes it starts Spark, as the job does.
The job's `--where` is not offered: a predicate of Spark SQL may call any class of the driver.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from jobs.replay_dead_letters import Pace, Replay, preview, run_paced
from jobs.run import JobReport, Shared
from spark_mq.command_options import NO_CLUSTER, Connection
from spark_mq.replay import SETTLED
from spark_mq.source.archive_table import Place, delta_rows, open_delta
from spark_mq.terminal import UsageError, describe
from storage.epoch_times import current_time_ms

AUDIT_ROWS = 200
PREVIEW_LINES = 500
NUMBERS_KEPT = 1_000
_SHOWN = [
    "time",
    "result",
    "dead_letter_queue",
    "dead_letter_offset",
    "unique_key",
    "origin_topic",
    "new_msg_id",
    "reason",
]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the job, as far as it is."""

    group: str
    started_ms: int
    ended_ms: int | None = None
    lines: tuple[str, ...] = ()
    error: str | None = None
    hint: str | None = None

    @property
    def is_going_on(self) -> bool:
        return self.ended_ms is None


class Replays:
    """The runs of one process. For several threads."""

    def __init__(
        self,
        path: str | None,
        connection: Connection = NO_CLUSTER,
        *,
        conf: str | None = None,
        audit: str | None = None,
        storage: Sequence[str] | None = None,
        clock: Callable[[], int] = current_time_ms,
    ) -> None:
        """A store, or the cluster that the connection names. `audit` is the job's Delta table, `storage` are options of its place as
        delta-rs names them; Spark has its own. Raises OptionError.
        """
        self._path = path
        self._connection = connection
        self._shared = Shared(conf=conf)
        self.audit = None if audit is None else Place.given(audit, storage)
        self._audit_table = audit
        self._clock = clock
        self._lock = threading.Lock()
        self._previewing = threading.Lock()
        self._last: Run | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._taken: deque[str | None] = deque(maxlen=NUMBERS_KEPT)
        """The numbers of forms that have begun a run."""

    @property
    def can_run(self) -> bool:
        """Whether there is one store, or a cluster, for the job."""
        return self._path is not None or self._connection.is_given

    def preview(self, options: Replay) -> list[str]:
        """What a run would do, in lines. Raises UsageError while another preview is made, and what the job raises."""
        if not self._previewing.acquire(blocking=False):
            raise UsageError("another preview is being made", "wait for its end")
        try:
            settled = None if self.audit is None else settled_ids(self.audit, options.group)
            report = preview(self._shared, options, settled, path=self._path, connection=self._connection)
            return list(report.lines)
        finally:
            self._previewing.release()

    def start(self, options: Replay, number: str | None = None) -> None:
        """Begin a run; nothing if a form with this number has begun one. Raises UsageError while another one goes on."""
        with self._lock:
            if number is not None and number in self._taken:  # a double click
                return
            if self._last is not None and self._last.is_going_on:
                raise UsageError(f"dead letters of group {self._last.group} are being replayed", "wait for its end")
            self._taken.append(number)
            self._last = Run(options.group, self._clock())
            wanted = replace(options, audit=self._audit_table)
            self._thread = threading.Thread(target=self._go, args=(wanted,), name="console-replay", daemon=True)
            self._thread.start()

    @property
    def last(self) -> Run | None:
        """The last run, or the one that goes on; None before the first."""
        with self._lock:
            return self._last

    def close(self) -> None:
        """Lets a run that goes on end before its next burst, and waits until what it has put is noted. The next run does the rest."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, options: Replay) -> JobReport:
        pace = Pace(sleep=self._stopping.wait, is_stopping=self._stopping.is_set)
        return run_paced(self._shared, options, pace, path=self._path, connection=self._connection)

    def _go(self, options: Replay) -> None:
        lines: tuple[str, ...] = ()
        error = hint = None
        try:
            lines = tuple(self._run(options).lines)
        except BaseException as found:  # the page says it, also of a library that ends the thread
            described = describe(found) if isinstance(found, Exception) else None
            if described is None:
                _LOG.exception("the replay of dead letters of group %s has failed", options.group)
            error, hint = (repr(found), None) if described is None else (described.text, described.hint)
        with self._lock:
            assert self._last is not None
            self._last = replace(self._last, ended_ms=self._clock(), lines=lines, error=error, hint=hint)


def audit_rows(audit: Place, group: str) -> list[Mapping[str, Any]]:
    """The newest rows of the group in the job's audit; none where there is no table yet. Raises OptionError, ArchiveError."""
    delta = open_delta(audit)
    if delta is None:
        return []
    rows = delta_rows(audit, delta, _SHOWN, {"consumer_group": [group]})
    newest = rows.take(pc.select_k_unstable(rows, AUDIT_ROWS, [("time", "descending")]))
    return [{**row, "time_ms": _ms(row["time"])} for row in newest.to_pylist()]


def settled_ids(audit: Place, group: str) -> set[str]:
    """The message ids of the group's letters that the job's audit calls settled. Raises OptionError, ArchiveError."""
    delta = open_delta(audit)
    if delta is None:
        return set()
    wanted = {"consumer_group": [group], "result": SETTLED}
    return set(delta_rows(audit, delta, ["dead_letter_msg_id"], wanted)["dead_letter_msg_id"].to_pylist())


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)
