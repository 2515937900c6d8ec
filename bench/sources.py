"""The sources side by side: whole reads into Spark's `noop` sink."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench import ceiling
from bench.measure import Peer
from bench.messages import BODY_SIZE_BYTES, QUEUES, TOPIC

Columns = Literal["kafka", "all"]

TITLE = "Reading into the noop sink"
HEADINGS = ("source", "columns")
NAMES: dict[Peer, str] = {
    "kafka": "Spark's Kafka source",
    "spark_mq": "spark_mq",
    "ceiling": "prebuilt batches (ceiling)",
    "java": "Java's lite pull consumer",
    "delta": "Delta's reader",
}
BODY: dict[Columns, str] = {"kafka": "value", "all": "body"}


@dataclass(frozen=True, slots=True)
class SourceCase:
    """One source with one set of columns."""

    peer: Peer
    columns: Columns
    frame: DataFrame
    messages: int
    crc_sum: int | None
    """Of all bodies; None where the bodies are a sample."""

    @property
    def labels(self) -> tuple[str, ...]:
        return NAMES[self.peer], self.columns

    def prepare(self) -> None:
        """Nothing: what is read was made before."""

    def run(self) -> float:
        start = time.perf_counter()
        self.frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - start

    def check(self) -> None:
        """Raise RuntimeError unless the source has all bodies, of their size, with their sum of CRCs if known."""
        body = f.col(BODY[self.columns])
        sums = (f.count("*"), f.sum(f.length(body)), f.sum(f.crc32(body)))
        found = tuple(self.frame.agg(*sums).first() or ())
        expected = (self.messages, self.messages * BODY_SIZE_BYTES, found[2] if self.crc_sum is None else self.crc_sum)
        if found != expected:
            raise RuntimeError(f"{self.labels}: read (rows, bytes, sum of CRCs) {found}, expected {expected}")

    def clear(self) -> None:
        """Nothing: what is read is kept."""


def store_cases(spark: SparkSession, store: Path, samples: Path, messages: int, crc_sum: int) -> list[SourceCase]:
    """Ours over `store` and the ceiling of the same, whose sample is kept in the directory `samples`; for each set of columns."""
    cases = []
    for columns in BODY:
        ours = read_store(spark, store, columns)
        cases.append(SourceCase("spark_mq", columns, ours, messages, crc_sum))
        sample = samples / f"ceiling-{columns}.arrow"
        prebuilt = ceiling.read_prebuilt(
            ours, sample, batch_rows=ceiling.BATCH_ROWS[columns], rows=messages, partitions=QUEUES
        )
        cases.append(SourceCase("ceiling", columns, prebuilt, messages, None))
    return cases


def read_store(spark: SparkSession, store: Path, columns: Columns) -> DataFrame:
    reader = spark.read.format("spark_mq").option("path", str(store)).option("topic", TOPIC)
    return (reader.option("columns", "kafka") if columns == "kafka" else reader).load()
