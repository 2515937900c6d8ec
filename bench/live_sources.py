"""Sources that read a topic from a running broker, side by side: Spark's Kafka source, ours, Java's lite pull consumer."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from bench.client_peer import ClientPeer, Done
from bench.measure import BY_KAFKA, Peer, Ratio
from bench.messages import TOPIC, expected_sums
from bench.rocketmq_broker import RunningBroker
from bench.sources import BODY, NAMES, SourceCase

TITLE = "Reading from running brokers"
HEADINGS = ("source", "columns")
RATIOS = (BY_KAFKA, Ratio("x Java", "java"))


@dataclass(slots=True)
class PullConsumerCase:
    """Java's lite pull consumer over a topic; its program looks at each body's length."""

    client: ClientPeer
    topic: str
    messages: int
    peer: Peer = "java"

    @property
    def labels(self) -> tuple[str, ...]:
        return NAMES[self.peer], "messages"

    def prepare(self) -> None:
        """Nothing: what is read was made before."""

    def run(self) -> float:
        return self._read(is_checked=False).seconds

    def check(self) -> None:
        """Raise RuntimeError unless all messages come, with their bodies."""
        expect_all(self._read(is_checked=True), self.messages)

    def clear(self) -> None:
        """Nothing: what is read is kept."""

    def _read(self, *, is_checked: bool) -> Done:
        return self.client.run("pull", self.topic, self.messages, int(is_checked))


def expect_all(done: Done, messages: int) -> None:
    """Raise RuntimeError unless messages 0 … `messages` - 1 were consumed, each once."""
    found, expected = done[1:], expected_sums(messages)
    if found != expected:
        raise RuntimeError(f"consumed (messages, bytes, sum of CRCs) {found}, expected {expected}")


def cluster_cases(spark: SparkSession, broker: RunningBroker, messages: int) -> list[SourceCase]:
    """Ours over the broker, for each set of columns."""
    cases = []
    for columns in BODY:
        reader = spark.read.format("spark_mq").option("nameServer", broker.name_server).option("topic", TOPIC)
        frame = (reader.option("columns", "kafka") if columns == "kafka" else reader).load()
        cases.append(SourceCase("spark_mq", columns, frame, messages, expected_sums(messages)[2]))
    return cases
