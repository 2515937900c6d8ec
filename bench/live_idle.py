"""What a streaming query costs that has nothing to read: requests that name server and broker see, processor time.

The broker registers itself under an address at which a proxy listens and counts (127.0.0.2, at the broker's own port).
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from rich.table import Table

from bench.counting_proxy import CountingProxy, counting_proxy
from bench.measure import CpuSeconds, Processes, jvm_of
from bench.rocketmq_broker import RunningBroker, running_broker
from spark_mq.remoting import RequestCode

TITLE = "A query over 1,000 queues with nothing new"
PROXY_HOST = "127.0.0.2"
SETTLING_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Shape:
    """A query over so many topics, as often as its trigger says."""

    topics: int
    queues: int
    """Of each topic."""
    trigger: str
    """As Spark's processingTime; "0 seconds" is the default: at once again."""


SHAPES = (
    Shape(10, 100, "0 seconds"),
    Shape(250, 4, "0 seconds"),
    Shape(250, 4, "1 second"),
    Shape(250, 4, "10 seconds"),
)


@dataclass(frozen=True, slots=True)
class IdleCluster:
    """A broker and its name server, both behind proxies."""

    broker: RunningBroker
    at_name_server: CountingProxy
    at_broker: CountingProxy


@contextmanager
def idle_cluster(script: Path, directory: Path) -> Iterator[IdleCluster]:
    with (
        running_broker(script, directory, directory / "store", f"brokerIP1={PROXY_HOST}") as broker,
        counting_proxy((PROXY_HOST, int(broker.address.rpartition(":")[2])), broker.address) as at_broker,
        counting_proxy(("127.0.0.1", 0), broker.name_server) as at_name_server,
    ):
        yield IdleCluster(broker, at_name_server, at_broker)


@dataclass(frozen=True, slots=True)
class IdleResult:
    shape: Shape
    seconds: float
    to_broker: Counter[int]
    to_name_server: Counter[int]
    answer_bytes: int
    """The broker's answers."""
    cpu: CpuSeconds


def measure_idle(
    spark: SparkSession, cluster: IdleCluster, directory: Path, seconds: int, progress: Callable[[str], None]
) -> list[IdleResult]:
    """Each shape for so many seconds."""
    made: set[tuple[int, int]] = set()
    results = []
    for shape in SHAPES:
        name = f"idle_{shape.topics}x{shape.queues}"
        if (shape.topics, shape.queues) not in made:
            made.add((shape.topics, shape.queues))
            cluster.broker.make_topics([f"{name}_{number}" for number in range(shape.topics)], shape.queues)
        result = _measure(spark, cluster, directory / "idle-checkpoint", f"{name}_.*", shape, seconds)
        progress(f"idle: {shape}: {result.to_broker.total() / result.seconds:.1f} requests/s at the broker")
        results.append(result)
    return results


def _measure(
    spark: SparkSession, cluster: IdleCluster, checkpoint: Path, pattern: str, shape: Shape, seconds: int
) -> IdleResult:
    shutil.rmtree(checkpoint, ignore_errors=True)
    reader = spark.readStream.format("spark_mq").option("nameServer", cluster.at_name_server.address)
    frame = reader.option("subscribePattern", pattern).option("startingOffsets", "latest").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime=shape.trigger).start()
    try:
        time.sleep(SETTLING_SECONDS)
        processes = Processes(jvm=jvm_of(spark), broker=cluster.broker.pid)
        cpu, begun = processes.cpu_seconds(), time.monotonic()
        to_broker, to_names = Counter(cluster.at_broker.requests), Counter(cluster.at_name_server.requests)
        answered = cluster.at_broker.answer_bytes
        time.sleep(seconds)
        result = IdleResult(
            shape,
            time.monotonic() - begun,
            cluster.at_broker.requests - to_broker,
            cluster.at_name_server.requests - to_names,
            cluster.at_broker.answer_bytes - answered,
            processes.cpu_seconds().since(cpu),
        )
        failure = query.exception()
        if failure is not None:
            raise failure
        return result
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)


def table(results: list[IdleResult]) -> Table:
    shown = Table(title=TITLE, caption="requests a second, by code; JVM, Python, broker: processor seconds a second")
    for heading in ("topics x queues", "trigger"):
        shown.add_column(heading, no_wrap=True)
    shown.add_column("at the broker", justify="right")
    shown.add_column("at the name server", justify="right")
    for heading in ("answers, KiB/s", "JVM", "Python", "broker", "others"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        shape, cpu, seconds = result.shape, result.cpu, result.seconds
        others = cpu.machine - cpu.of_case
        shown.add_row(
            f"{shape.topics:,} x {shape.queues:,}",
            shape.trigger,
            _by_code(result.to_broker, seconds),
            _by_code(result.to_name_server, seconds),
            f"{result.answer_bytes / seconds / 1024:,.0f}",
            *(f"{used / seconds:.2f}" for used in (cpu.jvm, cpu.python, cpu.broker, others)),
        )
    return shown


def _by_code(requests: Counter[int], seconds: float) -> str:
    parts = [f"{RequestCode(code).name} {number / seconds:,.2f}" for code, number in requests.most_common(3)]
    return f"{requests.total() / seconds:,.1f}" + (f" ({', '.join(parts)})" if parts else "")
