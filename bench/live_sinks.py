"""Sinks that send to running brokers, side by side: Spark's Kafka sink, ours with both guarantees, Java's batch producer.

HOME/live-staging/       what our sink stages
HOME/sink-checkpoint/    a streaming query's checkpoint, a round's
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench import input_rows, kafka_peer
from bench.client_peer import ClientPeer
from bench.live_sources import expect_all
from bench.measure import BY_KAFKA, Peer, Ratio
from bench.messages import BATCH_MESSAGES, QUEUES
from bench.rocketmq_broker import RunningBroker
from bench.sinks import NAMES, KafkaTarget, Mode, SinkCase, Sums, Target, sums_of

Guarantee = Literal["atLeastOnce", "exactlyOnce"]

TITLE = "Sending the same rows to running brokers"
HEADINGS = ("sink", "as", "settings")
RATIOS = (BY_KAFKA, Ratio("x Java", "java"))
PRODUCER_THREADS = 2  # as many as Spark has tasks

TOPIC_NUMBERS = count()


class FreshTopic:
    """A topic, another one each round, on a broker whose disk is freed afterwards. Java's consumer says what it holds."""

    def __init__(self, broker: RunningBroker, judge: ClientPeer) -> None:
        self.broker = broker
        self.judge = judge
        self.name = ""

    def make(self) -> None:
        self.name = f"bench_{next(TOPIC_NUMBERS)}"
        self.broker.make_topics([self.name], QUEUES)

    def check(self, messages: int) -> None:
        """Raise RuntimeError unless it holds messages 0 … `messages` - 1, each once."""
        expect_all(self.judge.run("pull", self.name, messages, 1), messages)

    def clear(self) -> None:
        self.broker.delete_topic(self.name)
        self.broker.free_disk()


class ClusterTarget:
    """A topic of a running broker, as our sink's target."""

    format = "spark_mq"

    def __init__(self, topic: FreshTopic, guarantee: Guarantee, staging: Path) -> None:
        self.topic = topic
        self.guarantee = guarantee
        self.staging = staging

    def shaped(self, rows: DataFrame) -> DataFrame:
        return rows

    def prepare(self, mode: Mode) -> dict[str, str]:
        self.topic.make()
        options = {"nameServer": self.topic.broker.name_server, "topic": self.topic.name, "guarantee": self.guarantee}
        if self.guarantee == "exactlyOnce":
            options["stagingPath"] = str(self.staging)
            if mode == "batch":
                options["writeId"] = self.topic.name
        return options

    def check(self, expected: Sums) -> None:
        self.topic.check(expected[0])

    def clear(self) -> None:
        self.topic.clear()
        shutil.rmtree(self.staging, ignore_errors=True)


@dataclass(slots=True)
class ProducerCase:
    """Java's producer, batches that are waited for; it makes its messages itself."""

    client: ClientPeer
    topic: FreshTopic
    messages: int
    peer: Peer = field(default="java", init=False)

    @property
    def labels(self) -> tuple[str, ...]:
        return NAMES[self.peer], "", f"{BATCH_MESSAGES} a request, {PRODUCER_THREADS} threads"

    def prepare(self) -> None:
        self.topic.make()

    def run(self) -> float:
        return self.client.run("batch", self.topic.name, self.messages, PRODUCER_THREADS, BATCH_MESSAGES).seconds

    def check(self) -> None:
        self.topic.check(self.messages)

    def clear(self) -> None:
        self.topic.clear()


@dataclass(frozen=True, slots=True)
class RowsToSend:
    """The rows that Spark's sinks are given, and what they come to."""

    spark: SparkSession
    home: Path
    rows: Path
    expected: Sums

    @classmethod
    def of(cls, spark: SparkSession, home: Path, rows: Path) -> RowsToSend:
        given = spark.read.schema(input_rows.SCHEMA).parquet(str(rows))
        return cls(spark, home.resolve(), rows, sums_of(given, f.col("body"), f.col("keys")))

    def kafka_cases(self, broker: kafka_peer.Broker) -> list[SinkCase]:
        """Spark's Kafka sink with its default producer, and with one that waits for full batches."""
        settings: list[tuple[str, dict[str, str]]] = [("default", {}), ("64 KiB batches", kafka_peer.PRODUCER)]
        return [
            self._case("kafka", KafkaTarget(self.spark, broker, producer), name, "batch") for name, producer in settings
        ]

    def cluster_cases(self, broker: RunningBroker, judge: ClientPeer) -> list[SinkCase]:
        """Ours with both guarantees, as a batch and as one micro-batch."""
        guarantees: tuple[Guarantee, ...] = ("atLeastOnce", "exactlyOnce")
        modes: tuple[Mode, ...] = ("batch", "micro-batch")
        cases = []
        for guarantee in guarantees:
            for mode in modes:
                target = ClusterTarget(FreshTopic(broker, judge), guarantee, self.home / "live-staging")
                cases.append(self._case("spark_mq", target, guarantee, mode))
        return cases

    def _case(self, peer: Peer, target: Target, settings: str, mode: Mode) -> SinkCase:
        checkpoint = self.home / "sink-checkpoint"
        return SinkCase(self.spark, peer, mode, target, self.rows, self.expected, checkpoint, settings)
