"""Timing of whole reads into Spark's `noop` sink, the rounds interleaved, and the table of it.

Interleaved, because a machine's speed drifts: each ratio is taken within a round, and their median is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.table import Table

from bench.cpu import cpu_seconds, cpu_seconds_between, descendants

Source = Literal["kafka", "spark_mq", "ceiling"]
Columns = Literal["kafka", "all"]

NAMES: dict[Source, str] = {
    "kafka": "Spark's Kafka source",
    "spark_mq": "spark_mq",
    "ceiling": "prebuilt batches (ceiling)",
}
BODY: dict[Columns, str] = {"kafka": "value", "all": "body"}


@dataclass(frozen=True, slots=True)
class Case:
    """One source with one set of columns."""

    source: Source
    columns: Columns
    frame: DataFrame
    crc_sum: int | None
    """Of all bodies; None where the bodies are a sample."""

    def __str__(self) -> str:
        return f"{self.source}, columns {self.columns}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read of all messages took."""

    seconds: float
    jvm_cpu_seconds: float
    python_cpu_seconds: float
    broker_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    case: Case
    messages: int
    readings: list[Reading] = field(default_factory=list)

    def rates(self) -> list[float]:
        """Messages a second, round by round."""
        return [self.messages / reading.seconds for reading in self.readings]


def verify(case: Case, messages: int, body_size_bytes: int) -> None:
    """Raise RuntimeError unless `case` reads `messages` bodies of this size, with its sum of CRCs if any."""
    body = f.col(BODY[case.columns])
    sums = (f.count("*"), f.sum(f.length(body)), f.sum(f.crc32(body)))
    found = tuple(case.frame.agg(*sums).first() or ())
    expected = (messages, messages * body_size_bytes, found[2] if case.crc_sum is None else case.crc_sum)
    if found != expected:
        raise RuntimeError(f"{case}: read (rows, bytes, sum of CRCs) {found}, expected {expected}")


def measure(
    spark: SparkSession,
    cases: Sequence[Case],
    *,
    messages: int,
    rounds: int,
    broker_pid: int | None,
    progress: Callable[[str], None],
) -> list[Result]:
    """Read every case once a round, in turn; a round before the first warms the JVM up and is not counted."""
    assert spark.sparkContext._jvm is not None
    jvm_pid = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    results = [Result(case, messages) for case in cases]
    for number in range(rounds + 1):
        for result in results:
            reading = _read(result.case.frame, jvm_pid, broker_pid)
            what = f"round {number}" if number else "warm-up"
            progress(f"{what}: {result.case}: {messages / reading.seconds / 1000:,.0f} k messages/s")
            if number:
                result.readings.append(reading)
    return results


def _read(frame: DataFrame, jvm_pid: int, broker_pid: int | None) -> Reading:
    def cpu_times() -> tuple[dict[int, float], ...]:
        brokers = [] if broker_pid is None else [broker_pid]
        return cpu_seconds([jvm_pid]), cpu_seconds(descendants(jvm_pid)), cpu_seconds(brokers)

    cpu_before, start = cpu_times(), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    seconds, cpu_after = time.perf_counter() - start, cpu_times()
    return Reading(seconds, *map(cpu_seconds_between, cpu_before, cpu_after))


def table(results: Sequence[Result]) -> Table:
    """Rates as median (least - greatest); ratios as median of the rounds' own; processor time as median."""
    by_case = {(result.case.source, result.case.columns): result for result in results}
    shown = Table(
        title="Reading into the noop sink",
        caption="JVM, Python, broker: processor seconds for a million messages",
    )
    for heading in ("source", "columns"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("k messages/s", "x Kafka", "of ceiling", "JVM", "Python", "broker"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        rates = [rate / 1000 for rate in result.rates()]
        readings = result.readings
        shown.add_row(
            NAMES[result.case.source],
            result.case.columns,
            f"{median(rates):,.0f} ({min(rates):,.0f} - {max(rates):,.0f})",
            _ratio(result, by_case.get(("kafka", "kafka")), "{:.2f}"),
            _ratio(result, by_case.get(("ceiling", result.case.columns)), "{:.0%}"),
            _per_million([reading.jvm_cpu_seconds for reading in readings], result.messages),
            _per_million([reading.python_cpu_seconds for reading in readings], result.messages),
            _per_million([reading.broker_cpu_seconds for reading in readings], result.messages)
            if result.case.source == "kafka"
            else "",
        )
    return shown


def _ratio(result: Result, to: Result | None, form: str) -> str:
    if to is None:
        return ""
    return form.format(median(own / other for own, other in zip(result.rates(), to.rates(), strict=True)))


def _per_million(seconds: Sequence[float], messages: int) -> str:
    return f"{median(seconds) * 1e6 / messages:.2f}"
