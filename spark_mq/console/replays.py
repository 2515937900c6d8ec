"""Dead letters, replayed by the console: the job's own code (`jobs/replay_dead_letters.py`), one run at a time.

A preview lists what a run would do; it starts no Spark and writes nothing. A run goes on in a thread, while the page looks at it. The
audit is the job's Delta table, which is read without Spark; a run that writes it starts Spark, as the job does.
The job's `--where` is not offered: a predicate of Spark SQL may call any class of the driver.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from jobs.replay_dead_letters import Replay, preview
from jobs.replay_dead_letters import run as run_replay
from jobs.run import JobReport, Shared
from spark_mq.cli.output import UsageError, describe
from spark_mq.command_options import NO_CLUSTER, Connection
from spark_mq.replay import SETTLED
from spark_mq.source.archive_table import Place, open_delta
from storage.epoch_times import current_time_ms

AUDIT_ROWS = 200
PREVIEW_LINES = 500
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
        clock: Callable[[], int] = current_time_ms,
    ) -> None:
        """A store, or the cluster that the connection names. `audit` is the job's Delta table."""
        self._path = path
        self._connection = connection
        self._shared = Shared(conf=conf)
        self.audit = audit
        self._clock = clock
        self._lock = threading.Lock()
        self._previewing = threading.Lock()
        self._last: Run | None = None
        self._thread: threading.Thread | None = None

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

    def start(self, options: Replay) -> None:
        """Begin a run. Raises UsageError while another one goes on."""
        with self._lock:
            if self._last is not None and self._last.is_going_on:
                raise UsageError(f"dead letters of group {self._last.group} are being replayed", "wait for its end")
            self._last = Run(options.group, self._clock())
            wanted = replace(options, audit=self.audit)
            self._thread = threading.Thread(target=self._go, args=(wanted,), name="console-replay", daemon=True)
            self._thread.start()

    @property
    def last(self) -> Run | None:
        """The last run, or the one that goes on; None before the first."""
        with self._lock:
            return self._last

    def close(self) -> None:
        """Waits for a run that goes on: what it has put must be noted."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, options: Replay) -> JobReport:
        return run_replay(self._shared, options, path=self._path, connection=self._connection)

    def _go(self, options: Replay) -> None:
        lines: tuple[str, ...] = ()
        error = hint = None
        try:
            lines = tuple(self._run(options).lines)
        except Exception as found:  # the page says it
            described = describe(found)
            if described is None:
                _LOG.exception("the replay of dead letters of group %s has failed", options.group)
            error, hint = (repr(found), None) if described is None else (described.text, described.hint)
        with self._lock:
            assert self._last is not None
            self._last = replace(self._last, ended_ms=self._clock(), lines=lines, error=error, hint=hint)


def audit_rows(table: str, group: str) -> list[Mapping[str, Any]]:
    """The newest rows of the group in the job's audit; none where there is no table yet. Raises OptionError, ArchiveError."""
    delta = open_delta(Place.of(table))
    if delta is None:
        return []
    rows = delta.to_pyarrow_table(columns=_SHOWN, filters=[("consumer_group", "=", group)])
    newest = rows.take(pc.select_k_unstable(rows, AUDIT_ROWS, [("time", "descending")]))
    return [{**row, "time_ms": _ms(row["time"])} for row in newest.to_pylist()]


def settled_ids(table: str, group: str) -> set[str]:
    """The message ids of the group's letters that the job's audit calls settled. Raises OptionError, ArchiveError."""
    delta = open_delta(Place.of(table))
    if delta is None:
        return set()
    wanted = [("consumer_group", "=", group), ("result", "in", list(SETTLED))]
    return set(delta.to_pyarrow_table(columns=["dead_letter_msg_id"], filters=wanted)["dead_letter_msg_id"].to_pylist())


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)
