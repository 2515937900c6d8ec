"""The sinks side by side: the same rows written by Spark's Kafka sink, ours and one that only counts.

Each round writes to a fresh place, which is removed after it, so that disks do not fill.

    HOME/sink-<flush>/            a round's store (recycled.py)
    HOME/sink-checkpoint/         a streaming query's checkpoint, a round's
    HOME/sink-counted             what the counting sink counted
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal, Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from bench import input_rows, kafka_peer
from bench.ceiling_sink import CountingSink
from bench.measure import Peer
from bench.messages import QUEUES, TOPIC
from bench.recycled import RecycledStore
from bench.sink_kinds import KINDS, PLAIN, SinkKind
from storage import open_store

Mode = Literal["batch", "micro-batch"]
Flush = Literal["ASYNC_FLUSH", "SYNC_FLUSH"]

TITLE = "Writing the same rows"
HEADINGS = ("sink", "as", "settings")
NAMES: dict[Peer, str] = {
    "kafka": "Spark's Kafka sink",
    "spark_mq": "spark_mq",
    "ceiling": "counts rows (ceiling)",
    "java": "Java's batch producer",
}

TOPIC_NUMBERS = count()

Sums = tuple[int, ...]
"""Rows, bytes of bodies, sum of the bodies' and of the keys' CRC-32."""


class Target(Protocol):
    """Where a sink writes to, and what it asks for."""

    format: str

    def shaped(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns that the sink takes."""
        ...

    def prepare(self, mode: Mode) -> dict[str, str]:
        """A fresh place; the options that name it, and that make the sink as safe as it can be."""
        ...

    def check(self, expected: Sums) -> None:
        """Raise RuntimeError unless the place holds these rows."""
        ...

    def clear(self) -> None:
        """Remove the place."""
        ...


class KafkaTarget:
    """A topic, another one each round. The tag is left out, as Kafka has none."""

    format = "kafka"

    def __init__(self, spark: SparkSession, broker: kafka_peer.Broker, producer: Mapping[str, str]) -> None:
        self.spark = spark
        self.broker = broker
        self.producer = producer
        self.topic = ""

    def shaped(self, rows: DataFrame) -> DataFrame:
        return rows.select(f.col("keys").alias("key"), f.col("body").alias("value"))

    def prepare(self, mode: Mode) -> dict[str, str]:
        self.topic = f"{TOPIC}-{next(TOPIC_NUMBERS)}"
        kafka_peer.create_topic(self.spark, self.broker, self.topic)
        return kafka_peer.sink_options(self.broker, self.topic) | dict(self.producer)

    def check(self, expected: Sums) -> None:
        found = sums_of(kafka_peer.read_topic(self.spark, self.broker, self.topic), f.col("value"), f.col("key"))
        compare(f"Kafka's topic {self.topic}", found, expected)

    def clear(self) -> None:
        kafka_peer.delete_topic(self.spark, self.broker, self.topic)


class StoreTarget:
    """A store, new each round but for its recycled files."""

    format = "spark_mq"

    def __init__(self, spark: SparkSession, store: RecycledStore, flush: Flush, kind: SinkKind = PLAIN) -> None:
        self.spark = spark
        self.store = store
        self.flush = flush
        self.kind = kind

    def shaped(self, rows: DataFrame) -> DataFrame:
        return self.kind.shaped(rows)

    def prepare(self, mode: Mode) -> dict[str, str]:
        self.store.prepare()
        if self.kind.options.get("sendBack"):  # what failed came from a store that is there
            open_store(self.store.path, read_only=False, create=True).close()
        options = {
            "path": str(self.store.path),
            "queueNum": str(QUEUES),
            "flushDiskType": self.flush,
            **self.kind.options,
        }
        return options | {"writeId": "bench"} if mode == "batch" else options  # a query has an id of its own

    def check(self, expected: Sums) -> None:
        reader = self.spark.read.format("spark_mq").option("path", str(self.store.path))
        rows = reader.option("topic", self.kind.topic).load()
        compare(str(self.store.path), sums_of(rows, f.col("body"), f.col("keys")), expected)

    def clear(self) -> None:
        self.store.clear()


class CountTarget:
    """A file that the counting sink leaves its count in."""

    format = "counting"

    def __init__(self, spark: SparkSession, counted: Path) -> None:
        spark.dataSource.register(CountingSink)
        self.counted = counted.resolve()

    def shaped(self, rows: DataFrame) -> DataFrame:
        return rows

    def prepare(self, mode: Mode) -> dict[str, str]:
        return {"counted": str(self.counted)}

    def check(self, expected: Sums) -> None:
        compare("the counting sink", (int(self.counted.read_text()),), expected[:1])

    def clear(self) -> None:
        self.counted.unlink()


@dataclass(slots=True)
class SinkCase:
    """One sink, given the rows of a Parquet directory as a batch or by a streaming query."""

    spark: SparkSession
    peer: Peer
    mode: Mode
    target: Target
    rows: Path
    expected: Sums
    checkpoint: Path
    settings: str
    options: dict[str, str] = field(default_factory=dict, init=False)
    """This round's."""

    @property
    def labels(self) -> tuple[str, ...]:
        return NAMES[self.peer], self.mode, self.settings

    def prepare(self) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self.options = self.target.prepare(self.mode)

    def run(self) -> float:
        return self._run_batch() if self.mode == "batch" else self._run_stream()

    def check(self) -> None:
        self.target.check(self.expected)

    def clear(self) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self.target.clear()

    def _run_batch(self) -> float:
        rows = self.target.shaped(self.spark.read.schema(input_rows.SCHEMA).parquet(str(self.rows)))
        writer = rows.write.format(self.target.format).options(**self.options).mode("append")
        start = time.perf_counter()
        writer.save()
        return time.perf_counter() - start

    def _run_stream(self) -> float:
        """Seconds of the one micro-batch, from the trigger to its entry in the checkpoint's commits."""
        rows = self.target.shaped(self.spark.readStream.schema(input_rows.SCHEMA).parquet(str(self.rows)))
        writer = rows.writeStream.format(self.target.format).options(**self.options)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        if len(batches) != 1:
            raise RuntimeError(f"{self.labels}: {len(batches)} micro-batches, not one")
        return float(batches[0]["durationMs"]["triggerExecution"]) / 1_000


def sink_cases(
    spark: SparkSession,
    home: Path,
    rows: Path,
    broker: kafka_peer.Broker | None,
    only: Collection[str],
    resources: ExitStack,
) -> list[SinkCase]:
    """The cases of each peer of `only`, Kafka's if there is a broker. `resources` removes what they keep between rounds."""
    given = spark.read.schema(input_rows.SCHEMA).parquet(str(rows))
    expected = sums_of(given, f.col("body"), f.col("keys"))
    checkpoint = home.resolve() / "sink-checkpoint"

    def case(peer: Peer, mode: Mode, target: Target, settings: str) -> SinkCase:
        return SinkCase(spark, peer, mode, target, rows, expected, checkpoint, settings)

    cases = []
    modes: tuple[Mode, ...] = ("batch", "micro-batch")
    flushes: tuple[Flush, ...] = ("ASYNC_FLUSH", "SYNC_FLUSH")
    if broker is not None:
        cases.append(case("kafka", "batch", KafkaTarget(spark, broker, {}), "default"))
        cases.append(case("kafka", "batch", KafkaTarget(spark, broker, kafka_peer.PRODUCER), "64 KiB batches"))
    if "spark_mq" in only:
        for flush in flushes:
            store = resources.enter_context(RecycledStore(home / f"sink-{flush}"))
            target = StoreTarget(spark, store, flush)
            cases += [case("spark_mq", mode, target, flush) for mode in modes]
            if flush == "ASYNC_FLUSH":
                targets = [StoreTarget(spark, store, flush, kind) for kind in KINDS if kind is not PLAIN]
                cases += [case("spark_mq", "batch", target, f"{flush}, {target.kind.name}") for target in targets]
    if "ceiling" in only:
        counted = CountTarget(spark, home / "sink-counted")
        cases += [case("ceiling", mode, counted, "") for mode in modes]
    return cases


def sums_of(rows: DataFrame, body: Column, key: Column) -> Sums:
    return tuple(rows.agg(f.count("*"), f.sum(f.length(body)), f.sum(f.crc32(body)), f.sum(f.crc32(key))).first() or ())


def compare(where: str, found: Sums, expected: Sums) -> None:
    if found != expected:
        raise RuntimeError(f"{where}: (rows, bytes, sums of CRCs) {found}, expected {expected}")
