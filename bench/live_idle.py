"""What those cost who wait for messages that do not come: requests that name server and broker see, processor time.

The broker registers itself under an address at which a proxy listens and counts (127.0.0.2, at the broker's own port).
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from rich.table import Table

from bench.client_peer import ClientPeer
from bench.counting_proxy import CountingProxy, counting_proxy
from bench.measure import CpuSeconds, Processes, jvm_of
from bench.rocketmq_broker import RunningBroker, running_broker
from spark_mq.remoting import RequestCode

TITLE = "1,000 queues with nothing new"
PROXY_HOST = "127.0.0.2"
SETTLING_SECONDS = 15
AT_ONCE = "0 seconds"
"""Spark's default trigger."""


class Shape(NamedTuple):
    """So many topics of so many queues."""

    topics: int
    queues: int

    @property
    def prefix(self) -> str:
        return f"idle_{self.topics}x{self.queues}"


FEW_TOPICS, MANY_TOPICS = Shape(10, 100), Shape(250, 4)


@dataclass(frozen=True, slots=True)
class IdleCluster:
    """A broker and its name server, both behind proxies."""

    broker: RunningBroker
    at_name_server: CountingProxy
    at_broker: CountingProxy

    @property
    def broker_for_clients(self) -> RunningBroker:
        """The same, by the counted way."""
        return replace(self.broker, name_server=self.at_name_server.address)


@contextmanager
def idle_cluster(script: Path, directory: Path) -> Iterator[IdleCluster]:
    with (
        running_broker(script, directory, directory / "store", f"brokerIP1={PROXY_HOST}") as broker,
        counting_proxy((PROXY_HOST, int(broker.address.rpartition(":")[2])), broker.address) as at_broker,
        counting_proxy(("127.0.0.1", 0), broker.name_server) as at_name_server,
    ):
        for shape in (FEW_TOPICS, MANY_TOPICS):
            broker.make_topics([f"{shape.prefix}_{number}" for number in range(shape.topics)], shape.queues)
        yield IdleCluster(broker, at_name_server, at_broker)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One who waits for messages, from when its context is entered."""

    name: str
    shape: Shape
    processes: Processes
    waits: Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class IdleResult:
    waiting: Waiting
    seconds: float
    to_broker: Counter[int]
    to_name_server: Counter[int]
    answer_bytes: int
    """The broker's answers."""
    cpu: CpuSeconds


def all_waiting(
    spark: SparkSession,
    cluster: IdleCluster,
    java: ClientPeer,
    python: ClientPeer,
    checkpoint: Path,
    seconds: int,
) -> list[Waiting]:
    """Our queries by shape and trigger, then push consumers."""
    broker = cluster.broker.pid
    waiting = []
    of_spark = Processes(jvm=jvm_of(spark), broker=broker)
    triggers = [(FEW_TOPICS, AT_ONCE), *((MANY_TOPICS, trigger) for trigger in (AT_ONCE, "1 second", "10 seconds"))]
    for shape, trigger in triggers:
        query = _Query(spark, cluster, shape, trigger, checkpoint)
        waiting.append(Waiting(f"our source, trigger {trigger}", shape, of_spark, query.runs))
    clients = (
        ("our push consumer", python, Processes(python=python.pid, broker=broker)),
        ("Java's push consumer", java, Processes(jvm=java.pid, broker=broker)),
    )
    for name, client, processes in clients:
        consumer = _Consumer(client, MANY_TOPICS, seconds)
        waiting.append(Waiting(name, MANY_TOPICS, processes, consumer.runs))
    return waiting


def measure_idle(
    all_who_wait: list[Waiting], cluster: IdleCluster, seconds: int, progress: Callable[[str], None]
) -> list[IdleResult]:
    """Each for so many seconds, when it has settled."""
    results = []
    for waiting in all_who_wait:
        with waiting.waits():
            time.sleep(SETTLING_SECONDS)
            result = _measured(waiting, cluster, seconds)
        progress(f"idle: {waiting.name}, {waiting.shape}: {_by_code(result.to_broker, result.seconds)} at the broker")
        results.append(result)
    return results


def _measured(waiting: Waiting, cluster: IdleCluster, seconds: int) -> IdleResult:
    with waiting.processes.watched() as used:
        begun = time.monotonic()
        to_broker, to_names = Counter(cluster.at_broker.requests), Counter(cluster.at_name_server.requests)
        answered = cluster.at_broker.answer_bytes
        time.sleep(seconds)
        return IdleResult(
            waiting,
            time.monotonic() - begun,
            cluster.at_broker.requests - to_broker,
            cluster.at_name_server.requests - to_names,
            cluster.at_broker.answer_bytes - answered,
            used(),
        )


class _Query(NamedTuple):
    """A streaming query of ours."""

    spark: SparkSession
    cluster: IdleCluster
    shape: Shape
    trigger: str
    checkpoint: Path

    @contextmanager
    def runs(self) -> Iterator[None]:
        """Raises what the query failed with, if it does."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        reader = self.spark.readStream.format("spark_mq").option("nameServer", self.cluster.at_name_server.address)
        reader = reader.option("subscribePattern", f"{self.shape.prefix}_.*").option("startingOffsets", "latest")
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(processingTime=self.trigger).start()
        try:
            yield
            failure = query.exception()
            if failure is not None:
                raise failure
        finally:
            query.stop()
            shutil.rmtree(self.checkpoint, ignore_errors=True)


class _Consumer(NamedTuple):
    """A client program's push consumer."""

    client: ClientPeer
    shape: Shape
    seconds: int
    """For how long it is measured."""

    @contextmanager
    def runs(self) -> Iterator[None]:
        """Raises RuntimeError where it fails."""
        failures: list[RuntimeError] = []

        def wait() -> None:
            try:
                self.client.run("idle", self.shape.prefix, self.shape.topics, SETTLING_SECONDS + self.seconds + 5)
            except RuntimeError as error:
                failures.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        try:
            yield
        finally:
            thread.join()
        if failures:
            raise failures[0]


def table(results: list[IdleResult]) -> Table:
    shown = Table(title=TITLE, caption="requests a second, by code; JVM, Python, broker: processor seconds a second")
    for heading in ("who waits", "topics x queues"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("at the broker", "at the name server", "answers, KiB/s"):
        shown.add_column(heading, justify="right")
    for heading in ("JVM", "Python", "broker", "others"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        shape, cpu, seconds = result.waiting.shape, result.cpu, result.seconds
        shown.add_row(
            result.waiting.name,
            f"{shape.topics:,} x {shape.queues:,}",
            _by_code(result.to_broker, seconds),
            _by_code(result.to_name_server, seconds),
            f"{result.answer_bytes / seconds / 1024:,.0f}",
            *(f"{used / seconds:.2f}" for used in (cpu.jvm, cpu.python, cpu.broker, cpu.machine - cpu.of_case)),
        )
    return shown


def _by_code(requests: Counter[int], seconds: float) -> str:
    parts = [f"{RequestCode(code).name} {number / seconds:,.2f}" for code, number in requests.most_common(3)]
    return f"{requests.total() / seconds:,.1f}" + (f" ({', '.join(parts)})" if parts else "")
