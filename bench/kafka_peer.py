"""Spark's Kafka source and sink, and a Kafka broker of one node (KRaft) for them, from Maven Central, on loopback.

    HOME/kafka-jars/broker/           the broker's class path
    HOME/kafka-jars/spark/            what pyspark's own jars lack to speak with it
    HOME/kafka-jars/pom.xml           what they were fetched by; exists once all are there
    HOME/kafka-<messages>/data/       the broker's log directory: a topic with <messages> of `bench.messages`
    HOME/kafka-<messages>/loaded      exists once the topic holds all of them
    HOME/kafka-sink/data/             that of the broker which the sink writes to: a topic at a time, emptied at the start

HOME is the directory that every run's data stays in.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.input_rows import message_rows
from bench.messages import BATCH_MESSAGES, QUEUES, TOPIC
from bench.ports import free_port

START_TIMEOUT_S = 60.0
DELETE_TIMEOUT_S = 60.0
CLUSTER_ID = "c3BhcmtfbXEgYmVuY2guLg"  # any 16 bytes in Base64
# A producer that waits until its batches are full: quicker to write, and easier to read, than with the default 16 KiB at once.
PRODUCER = {"kafka.batch.size": "65536", "kafka.linger.ms": "5"}
# Spark would keep the producer for ten minutes, beside what is measured then.
SPARK_CONFIG = {
    "spark.kafka.producer.cache.timeout": "1s",
    "spark.kafka.producer.cache.evictorThreadRunInterval": "1s",
}


@dataclass(frozen=True, slots=True)
class Jars:
    broker: Path
    """A directory with the broker's class path."""
    spark: tuple[Path, ...]
    """For Spark's `spark.jars`."""


@dataclass(frozen=True, slots=True)
class Broker:
    bootstrap: str
    """host:port"""
    pid: int
    data: Path
    """Its log directory: one below it for each partition."""
    loaded: Path
    """A file that exists once the topic to be read is complete."""


def fetch_jars(home: Path) -> Jars:
    """The jars that `bench/pom.xml` names, copied under `home` by Maven unless they lie there.

    Raises CalledProcessError when Maven fails, which then has said why.
    """
    directory = home.resolve() / "kafka-jars"
    pom, fetched_by = Path(__file__).with_name("pom.xml"), directory / "pom.xml"
    if not fetched_by.exists() or fetched_by.read_bytes() != pom.read_bytes():
        shutil.rmtree(directory, ignore_errors=True)
        goals = ("dependency:copy-dependencies@broker", "dependency:copy@spark")
        subprocess.run(["mvn", "-q", "-B", "-f", pom, *goals, f"-Dhome={directory}"], check=True)
        shutil.copyfile(pom, fetched_by)
    return Jars(directory / "broker", tuple(sorted((directory / "spark").glob("*.jar"))))


@contextmanager
def running_broker(directory: Path, jars: Jars) -> Iterator[Broker]:
    """A broker whose data lies under `directory`, stopped at the end.

    Unless an earlier run has finished loading a topic there, the directory is emptied first. Raises RuntimeError
    when the broker does not start, with the place of its log.
    """
    directory = directory.resolve()
    loaded = directory / "loaded"
    if not loaded.exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    port = free_port(1)
    properties = directory / "server.properties"
    properties.write_text(_properties(directory / "data", port))
    java = ["java", "-Xmx1g", "-XX:-UsePerfData", "-cp", f"{jars.broker}/*"]
    log = directory / "broker.log"
    with log.open("wb") as output:
        format_storage = ("kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", CLUSTER_ID)
        subprocess.run([*java, *format_storage, "-c", str(properties)], check=True, stdout=output, stderr=output)
        # A session of its own: an interrupt from the keyboard is ours to handle, and then we stop the broker.
        broker = subprocess.Popen(
            [*java, "kafka.Kafka", str(properties)], stdout=output, stderr=output, start_new_session=True
        )
    try:
        _await_start(broker, log)
        yield Broker(f"127.0.0.1:{port}", broker.pid, directory / "data", loaded)
    finally:
        broker.terminate()
        broker.wait()


def _properties(data: Path, port: int) -> str:
    """The broker's configuration: Kafka's defaults, except for a single node that keeps its data for ever."""
    return "\n".join(
        (
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.voters=1@127.0.0.1:{port + 1}",
            f"listeners=BROKER://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
            "listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name=BROKER",
            "controller.listener.names=CONTROLLER",
            f"log.dirs={data}",
            f"num.partitions={QUEUES}",
            "offsets.topic.replication.factor=1",
            "log.retention.ms=-1",
            "log.segment.delete.delay.ms=0",  # a topic that was deleted gives its disk back at once
            "",
        )
    )


def _await_start(broker: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while b"Kafka Server started" not in log.read_bytes():
        if broker.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the Kafka broker did not start; it says why in {log}")
        time.sleep(0.2)


def load_topic(spark: SparkSession, broker: Broker, messages: int) -> None:
    """Send messages 0 … `messages` - 1 through Spark's Kafka sink, unless an earlier run did."""
    if broker.loaded.exists():
        return
    partition = (f.floor(f.col("number") / BATCH_MESSAGES) % QUEUES).cast("int").alias("partition")
    rows = message_rows(spark, messages, QUEUES)
    (
        rows.select(f.col("keys").alias("key"), f.col("body").alias("value"), partition)
        .write.format("kafka")
        .options(**sink_options(broker, TOPIC), **PRODUCER)
        .save()
    )
    broker.loaded.touch()


def read_topic(spark: SparkSession, broker: Broker, topic: str) -> DataFrame:
    """The whole topic by Spark's Kafka source with its default options, all seven columns."""
    return (
        spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", topic).load()
    )


def sink_options(broker: Broker, topic: str) -> dict[str, str]:
    """What Spark's sink must be told; the producer keeps its defaults."""
    return {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}


def create_topic(spark: SparkSession, broker: Broker, topic: str) -> None:
    with _admin(spark, broker) as (jvm, admin):
        new = jvm.org.apache.kafka.clients.admin.NewTopic(topic, QUEUES, 1)
        admin.createTopics(jvm.java.util.Collections.singletonList(new)).all().get()


def delete_topic(spark: SparkSession, broker: Broker, topic: str) -> None:
    """Delete it and wait until its files are gone."""
    with _admin(spark, broker) as (jvm, admin):
        admin.deleteTopics(jvm.java.util.Collections.singletonList(topic)).all().get()
    deadline = time.monotonic() + DELETE_TIMEOUT_S
    while any(broker.data.glob(f"{topic}-*")):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the Kafka broker has not removed {topic} from {broker.data} in {DELETE_TIMEOUT_S} s")
        time.sleep(0.1)


@contextmanager
def _admin(spark: SparkSession, broker: Broker) -> Iterator[tuple[Any, Any]]:
    """The session's JVM and Kafka's administration client in it."""
    jvm: Any = spark.sparkContext._jvm
    properties = jvm.java.util.Properties()
    properties.put("bootstrap.servers", broker.bootstrap)
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
    try:
        yield jvm, admin
    finally:
        admin.close()
