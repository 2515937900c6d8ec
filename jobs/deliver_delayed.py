"""Deliver delayed messages that are due, by level and by time.

    python -m jobs.deliver_delayed PATH --every 1s

One run delivers what is due when it begins, so a message comes at most the interval and the length of a run late. The job prints how
late. Of repeated runs that did nothing, only the first is printed. Levels, timer and flushing are as broker.conf has them. Two
runs at the same time are safe: the store's lock decides.

After a kill the next run goes on, and does not put again what the killed run put. A store that was closed cleanly is
closed cleanly again. Exit code 1: a message cannot be delivered, because its record does not say where to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import typer

from jobs.run import JobReport, Shared, StorePath, open_to_write, run_job
from storage.delay.schedule import DeliveryReport, deliver_due
from storage.delay.timer_store import TimerReport, deliver_timed
from storage.epoch_times import current_time_ms
from storage.tables.put_statistics import PutStatistics


def deliver_delayed(
    path: str,
    *,
    conf: str | None = None,
    max_messages: int | None = None,
    lock_timeout_ms: int = 0,
    put: PutStatistics | None = None,
    clock: Callable[[], int] = current_time_ms,
) -> tuple[DeliveryReport, TimerReport]:
    """One run; returns the reports for delay levels and for delivery times.

    `max_messages` limits what the levels deliver; `clock` gives milliseconds. Raises StorageError, StoreLockedError if another
    writer has the store.
    """
    with open_to_write(path, conf=conf, clock=clock, lock_timeout_ms=lock_timeout_ms, put=put) as store:
        return deliver_due(store, clock(), max_messages=max_messages), deliver_timed(store, clock())


def _lines(levels: DeliveryReport, timed: TimerReport, at_ms: int) -> Iterator[str]:
    by_level = ", ".join(f"level {level}: {count}" for level, count in sorted(levels.delivered.items()))
    yield f"by level {levels.delivered_count} delivered{f' ({by_level})' if by_level else ''}" + _lateness(levels)
    yield f"by time {timed.delivered} delivered, {timed.rolled} rolled, {timed.cancelled} cancelled" + _lateness(timed)
    waiting = sum(levels.pending.values()) + timed.pending
    due = [due_ms for due_ms in (levels.next_due_ms, timed.next_due_ms) if due_ms is not None]
    if waiting:
        yield f"{waiting} wait" + (f", the first for {max(0, min(due) - at_ms)} ms more" if due else "")
    if found := levels.found_delivered + timed.found_delivered:
        yield f"{found} of a run that was killed stood in the log already"
    for level, (offset, taken) in sorted(levels.corrected.items()):
        yield f"level {level}: offset {offset} is outside the queue, {taken} taken"
    if again := {level: count for level, count in sorted(levels.missing_levels.items()) if count}:
        which = ", ".join(map(str, again))
        yield f"level {which}: no offset in delayOffset.json, {sum(again.values())} delivered from the queue's beginning, maybe again"
    for level, count in sorted(levels.stranded.items()):
        yield f"level {level}: {count} messages, and messageDelayLevel has no such level: they are not delivered"
    if levels.half_count:
        yield f"{levels.half_count} half messages with a delay discarded, as a broker does"
    if timed.missing:
        yield f"{timed.missing} messages of the timer are not in the log any more"
    for wrong in levels.undeliverable:
        yield f"not delivered: level {wrong.level} offset {wrong.queue_offset}, record at {wrong.commitlog_offset}: {wrong.rule}"
    for place, rule in timed.undeliverable:
        yield f"not delivered: timer, record at {place}: {rule}"
    unnamed = levels.undeliverable_count - len(levels.undeliverable)
    unnamed += timed.undeliverable_count - len(timed.undeliverable)
    if unnamed:
        yield f"not delivered: {unnamed} more"


def _figures(levels: DeliveryReport, timed: TimerReport) -> dict[str, object]:
    return {
        "by_level": {str(level): count for level, count in sorted(levels.delivered.items())},
        "by_time": timed.delivered,
        "rolled": timed.rolled,
        "cancelled": timed.cancelled,
        "found_delivered": levels.found_delivered + timed.found_delivered,
        "undeliverable": levels.undeliverable_count + timed.undeliverable_count,
        "waiting": sum(levels.pending.values()) + timed.pending,
        "lateness_max_ms": {"by_level": levels.lateness_max_ms, "by_time": timed.lateness_max_ms},
    }


def _is_idle(levels: DeliveryReport, timed: TimerReport) -> bool:
    """Whether nothing was delivered, skipped or corrected; waiting and stranded messages are unchanged."""
    by_level = levels.delivered_count or levels.half_count or levels.undeliverable_count or levels.corrected
    by_time = timed.delivered or timed.rolled or timed.cancelled or timed.undeliverable_count or timed.missing
    return not (by_level or by_time or levels.found_delivered or timed.found_delivered)


def _lateness(report: DeliveryReport | TimerReport) -> str:
    delivered = report.delivered_count if isinstance(report, DeliveryReport) else report.delivered
    if not delivered:
        return ""
    return f", late by {report.lateness_p50_ms} ms (half of them), {report.lateness_max_ms} ms (at most)"


def run(
    path: StorePath,
    shared: Shared,
    *,
    max_messages: Annotated[
        int | None,
        typer.Option("--max-messages", metavar="N", min=1, help="Deliver at most so many by level in a run."),
    ] = None,
) -> JobReport:
    put = PutStatistics()
    levels, timed = deliver_delayed(
        path, conf=shared.conf, max_messages=max_messages, lock_timeout_ms=shared.lock_timeout_ms, put=put
    )
    exit_code = 1 if levels.undeliverable_count or timed.undeliverable_count else 0
    lines, figures = _lines(levels, timed, current_time_ms()), _figures(levels, timed)
    return JobReport(lines, exit_code, is_idle=_is_idle(levels, timed), figures=figures, put=put)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(run, arguments)


if __name__ == "__main__":
    sys.exit(main())
