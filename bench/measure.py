"""Timing of peers that take turns, and the table of it.

Interleaved, because a machine's speed drifts: each ratio is taken within a round, and their median is shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple, Protocol

from pyspark.sql import SparkSession
from rich.table import Table

from bench.cpu import Below, busy_seconds, own_cpu_seconds

Peer = Literal["kafka", "spark_mq", "ceiling", "java", "delta"]


class Processes(NamedTuple):
    """Which processes work for a case, by id."""

    jvm: int | None = None
    """What it starts is Python."""
    python: int | None = None
    """A Python program, without a JVM."""
    broker: int | None = None

    @contextmanager
    def watched(self) -> Iterator[Callable[[], CpuSeconds]]:
        """Gives a function that says what they have used since the block began."""
        below = [Below(pid) for pid in (self.jvm, self.python) if pid is not None]

        def look() -> CpuSeconds:
            return CpuSeconds(
                jvm=own_cpu_seconds(self.jvm) if self.jvm is not None else 0,
                python=sum(each.seconds() for each in below)
                + (own_cpu_seconds(self.python) if self.python is not None else 0),
                broker=own_cpu_seconds(self.broker) if self.broker is not None else 0,
                machine=busy_seconds(),
            )

        before = look()
        with ExitStack() as watching:
            for each in below:
                watching.enter_context(each.watched())
            yield lambda: look().since(before)


class CpuSeconds(NamedTuple):
    """Processor time by whose it is."""

    jvm: float
    python: float
    broker: float
    machine: float
    """All processes of the machine, those of the case among them."""

    def since(self, before: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(*(end - start for start, end in zip(before, self, strict=True)))

    @property
    def of_case(self) -> float:
        return self.jvm + self.python + self.broker


class Case(Protocol):
    """One peer in one of the ways that it is measured in."""

    @property
    def peer(self) -> Peer: ...

    @property
    def labels(self) -> tuple[str, ...]:
        """What the table shows. The second is the way: ratios are taken between peers of one way where a table says so."""
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
    cpu: CpuSeconds
    elapsed_seconds: float
    """Those in which the processors were looked at: with what a case does before and after its messages move."""


@dataclass(frozen=True, slots=True)
class Result:
    case: Case
    messages: int
    has_broker: bool
    timings: list[Timing] = field(default_factory=list)

    def rates(self) -> list[float]:
        """Messages a second, round by round."""
        return [self.messages / timing.seconds for timing in self.timings]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A column: the rate of each case by that of another one in the same round."""

    heading: str
    peer: Peer
    """Whose: its first case, or with `same_way` that of the same second label."""
    same_way: bool = False
    form: str = "{:.2f}"

    def base(self, result: Result, results: Sequence[Result]) -> Result | None:
        of_peer = [other for other in results if other.case.peer == self.peer]
        if self.same_way:
            of_peer = [other for other in of_peer if other.case.labels[1] == result.case.labels[1]]
        return next(iter(of_peer), None)


BY_KAFKA = Ratio("x Kafka", "kafka")
BY_CEILING = Ratio("of ceiling", "ceiling", same_way=True, form="{:.0%}")
BY_JAVA = Ratio("x Java", "java", same_way=True)


def jvm_of(spark: SparkSession) -> int:
    """The process id of a session's JVM."""
    assert spark.sparkContext._jvm is not None
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


def measure(
    cases: Sequence[Case],
    *,
    messages: int,
    rounds: int,
    processes: Callable[[Case], Processes],
    progress: Callable[[str], None],
) -> list[Result]:
    """Run every case once a round, in turn; a round before the first warms up, checks and is not counted."""
    results = [Result(case, messages, processes(case).broker is not None) for case in cases]
    for number in range(rounds + 1):
        for result in results:
            result.case.prepare()
            os.sync()  # else the last case's dirty pages go to disk at this one's cost
            timing = _time(result.case, processes(result.case))
            if number:
                result.timings.append(timing)
            else:
                result.case.check()
            result.case.clear()
            labels = ", ".join(filter(None, result.case.labels))
            what = f"round {number}" if number else "warm-up, checked"
            progress(f"{what}: {labels}: {messages / timing.seconds / 1000:,.1f} k messages/s")
    return results


def _time(case: Case, processes: Processes) -> Timing:
    begun = time.perf_counter()
    with processes.watched() as used:
        seconds = case.run()
        return Timing(seconds, used(), time.perf_counter() - begun)


def table(
    title: str, headings: Sequence[str], results: Sequence[Result], ratios: Sequence[Ratio] = (BY_KAFKA, BY_CEILING)
) -> Table:
    """Rates as median (least - greatest); ratios as median of the rounds' own; processor time as median."""
    shown = Table(title=title, caption="JVM, Python, broker: processor seconds for a million messages")
    for heading in headings:
        shown.add_column(heading, no_wrap=True)
    for heading in ("k messages/s", *(ratio.heading for ratio in ratios), "JVM", "Python", "broker", "cores", "others"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        rates = [rate / 1000 for rate in result.rates()]
        timings = result.timings
        form = ",.0f" if median(rates) >= 100 else ",.1f"
        low, middle, high = (format(rate, form) for rate in (min(rates), median(rates), max(rates)))
        shown.add_row(
            *result.case.labels,
            f"{middle} ({low} - {high})",
            *(_ratio(result, ratio.base(result, results), ratio.form) for ratio in ratios),
            _per_million([timing.cpu.jvm for timing in timings], result.messages),
            _per_million([timing.cpu.python for timing in timings], result.messages),
            _per_million([timing.cpu.broker for timing in timings], result.messages) if result.has_broker else "",
            f"{median(timing.cpu.of_case / timing.elapsed_seconds for timing in timings):.2f}",
            f"{median((timing.cpu.machine - timing.cpu.of_case) / timing.elapsed_seconds for timing in timings):.2f}",
        )
    return shown


def _ratio(result: Result, to: Result | None, form: str) -> str:
    if to is None:
        return ""
    return form.format(median(own / other for own, other in zip(result.rates(), to.rates(), strict=True)))


def _per_million(seconds: Sequence[float], messages: int) -> str:
    return f"{median(seconds) * 1e6 / messages:.2f}"
