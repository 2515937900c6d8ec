"""Timing of peers that take turns, and the table of it.

Interleaved, because a machine's speed drifts: each ratio is taken within a round, and their median is shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, Protocol

from pyspark.sql import SparkSession
from rich.table import Table

from bench.cpu import cpu_seconds_below, own_cpu_seconds

Peer = Literal["kafka", "spark_mq", "ceiling"]


class Case(Protocol):
    """One peer in one of the ways that it is measured in."""

    @property
    def peer(self) -> Peer: ...

    @property
    def labels(self) -> tuple[str, ...]:
        """What the table shows. The second is the way: a case is compared with the ceiling of the same."""
        ...

    def prepare(self) -> None:
        """Make what a round needs; not timed."""

    def run(self) -> float:
        """Move all messages once; return how many seconds that took."""
        ...

    def check(self) -> None:
        """Raise RuntimeError unless the last run moved all messages, each once."""

    def clear(self) -> None:
        """Remove what a round has left; not timed."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What moving all messages once took."""

    seconds: float
    jvm_cpu_seconds: float
    python_cpu_seconds: float
    broker_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    case: Case
    messages: int
    timings: list[Timing] = field(default_factory=list)

    def rates(self) -> list[float]:
        """Messages a second, round by round."""
        return [self.messages / timing.seconds for timing in self.timings]


def measure(
    spark: SparkSession,
    cases: Sequence[Case],
    *,
    messages: int,
    rounds: int,
    broker_pid: int | None,
    progress: Callable[[str], None],
) -> list[Result]:
    """Run every case once a round, in turn; a round before the first warms up, checks and is not counted."""
    assert spark.sparkContext._jvm is not None
    jvm_pid = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    results = [Result(case, messages) for case in cases]
    for number in range(rounds + 1):
        for result in results:
            result.case.prepare()
            os.sync()  # else the last case's dirty pages go to disk at this one's cost
            timing = _time(result.case, jvm_pid, broker_pid)
            if number:
                result.timings.append(timing)
            else:
                result.case.check()
            result.case.clear()
            labels = ", ".join(filter(None, result.case.labels))
            what = f"round {number}" if number else "warm-up, checked"
            progress(f"{what}: {labels}: {messages / timing.seconds / 1000:,.0f} k messages/s")
    return results


def _time(case: Case, jvm_pid: int, broker_pid: int | None) -> Timing:
    def cpu_times() -> tuple[float, float, float]:
        broker = 0.0 if broker_pid is None else own_cpu_seconds(broker_pid)
        return own_cpu_seconds(jvm_pid), cpu_seconds_below(jvm_pid), broker

    before = cpu_times()
    seconds = case.run()
    return Timing(seconds, *(end - start for start, end in zip(before, cpu_times(), strict=True)))


def table(title: str, headings: Sequence[str], results: Sequence[Result]) -> Table:
    """Rates as median (least - greatest); ratios as median of the rounds' own; processor time as median."""
    kafka = next((result for result in results if result.case.peer == "kafka"), None)
    ceilings = {result.case.labels[1]: result for result in results if result.case.peer == "ceiling"}
    shown = Table(title=title, caption="JVM, Python, broker: processor seconds for a million messages")
    for heading in headings:
        shown.add_column(heading, no_wrap=True)
    for heading in ("k messages/s", "x Kafka", "of ceiling", "JVM", "Python", "broker"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        rates = [rate / 1000 for rate in result.rates()]
        timings = result.timings
        shown.add_row(
            *result.case.labels,
            f"{median(rates):,.0f} ({min(rates):,.0f} - {max(rates):,.0f})",
            _ratio(result, kafka, "{:.2f}"),
            _ratio(result, ceilings.get(result.case.labels[1]), "{:.0%}"),
            _per_million([timing.jvm_cpu_seconds for timing in timings], result.messages),
            _per_million([timing.python_cpu_seconds for timing in timings], result.messages),
            _per_million([timing.broker_cpu_seconds for timing in timings], result.messages)
            if result.case.peer == "kafka"
            else "",
        )
    return shown


def _ratio(result: Result, to: Result | None, form: str) -> str:
    if to is None:
        return ""
    return form.format(median(own / other for own, other in zip(result.rates(), to.rates(), strict=True)))


def _per_million(seconds: Sequence[float], messages: int) -> str:
    return f"{median(seconds) * 1e6 / messages:.2f}"
