"""Peers side by side on running brokers: Apache RocketMQ 5.3.3 and Kafka; sources, sinks, clients, and a query that idles.

A part of `make bench`, and by itself:

    python -m bench.live --messages 200000 --rows 100000 --client-messages 20000 --rounds 1 --only source clients
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from bench import input_rows, kafka_peer, live_clients, live_idle, live_sinks, live_sources
from bench.client_peer import ClientPeer, java_peer, python_peer
from bench.kafka_peer import Jars
from bench.measure import Case, Peer, Processes, Result, jvm_of, measure, table
from bench.messages import TOPIC, expected_sums
from bench.rocketmq_broker import CLEANS_AT_ONCE, KEPT_FOR_EVER, UNHURRIED, RunningBroker, running_broker
from bench.rocketmq_store import make_store
from bench.session import SOCKETS, bench_session
from bench.sources import SourceCase

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("source", "sink", "clients", "idle")
WITH_SPARK = {"source", "sink", "idle"}
WITH_KAFKA = {"source", "sink"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What this part shares with `run.py`: how much, where, and how."""
    home = Path(os.environ.get("SPARK_MQ_BENCH_HOME", ROOT / "build" / "bench"))
    oracle = ROOT / "tests" / "oracle" / "oracle.sh"
    parser.add_argument("--messages", type=int, default=2_000_000, help="to read, of 1 KiB (default %(default)s)")
    parser.add_argument("--client-messages", type=int, default=100_000, help="for each client (default %(default)s)")
    parser.add_argument("--idle-seconds", type=int, default=30, help="for each idle query (default %(default)s)")
    parser.add_argument(
        "--batch-rows", type=int, default=5_000, help="an Arrow batch that Spark gives a sink (default %(default)s)"
    )
    parser.add_argument(
        "--sockets", choices=SOCKETS, default=SOCKETS[0], help="between JVM and Python workers (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="beside the warm-up (default %(default)s)")
    parser.add_argument("--home", type=Path, default=home, help="for stores and jars (default %(default)s)")
    parser.add_argument("--oracle", type=Path, default=oracle, help="starts the Apache broker (default %(default)s)")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.live", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000, help="to send, of 1 KiB (default %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measure nothing else")
    add_arguments(parser)
    return parser.parse_args(arguments)


@dataclass(frozen=True, slots=True)
class Live:
    """What is asked for, and where it is shown."""

    asked: argparse.Namespace
    rows: int
    console: Console

    @property
    def home(self) -> Path:
        return Path(self.asked.home).resolve()

    def measure(self, parts: set[str]) -> None:
        """Print a table for each part."""
        if parts & WITH_SPARK:
            jars = kafka_peer.fetch_jars(self.home) if parts & WITH_KAFKA else None
            with bench_session(self.asked.batch_rows, jars, self.asked.sockets) as spark:
                if jars is not None and "source" in parts:
                    self._sources(spark, jars)
                if jars is not None and "sink" in parts:
                    self._sinks(spark, jars)
                if "idle" in parts:
                    self._idle(spark)
        if "clients" in parts:
            self._clients()

    def _sources(self, spark: SparkSession, jars: Jars) -> None:
        messages = self.asked.messages
        with self.console.status(f"a store of {messages:,} messages by the Apache broker"):
            store = make_store(self.home, self.asked.oracle, messages)
        with ExitStack() as running:
            directory = running.enter_context(self._scratch("live-source"))
            broker = running.enter_context(self._broker(directory, store, KEPT_FOR_EVER))
            java = running.enter_context(java_peer(broker, directory))
            with self.console.status(f"Kafka: {messages:,} messages"):
                kafka = running.enter_context(kafka_peer.running_broker(self.home / f"kafka-{messages}", jars))
                kafka_peer.load_topic(spark, kafka, messages)
            topic = kafka_peer.read_topic(spark, kafka, TOPIC)
            cases: list[Case] = [
                SourceCase("kafka", "kafka", topic, messages, expected_sums(messages)[2]),
                live_sources.PullConsumerCase(java, TOPIC, messages),
                *live_sources.cluster_cases(spark, broker, messages),
            ]
            results = self._measured(cases, messages, _processes(spark, kafka, broker, java))
        self.console.print(
            table(
                f"{live_sources.TITLE}, {self.asked.sockets} sockets",
                live_sources.HEADINGS,
                results,
                live_sources.RATIOS,
            )
        )

    def _sinks(self, spark: SparkSession, jars: Jars) -> None:
        rows = self.rows
        with self.console.status(f"{rows:,} rows to send"):
            given = live_sinks.RowsToSend.of(spark, self.home, input_rows.write_input(spark, self.home, rows))
        with ExitStack() as running:
            directory = running.enter_context(self._scratch("live-sink"))
            broker = running.enter_context(self._broker(directory, directory / "store", CLEANS_AT_ONCE))
            java = running.enter_context(java_peer(broker, directory))
            kafka = running.enter_context(kafka_peer.running_broker(self.home / "kafka-sink", jars))
            cases: list[Case] = [
                *given.kafka_cases(kafka),
                live_sinks.ProducerCase(java, live_sinks.FreshTopic(broker, java), rows),
                *given.cluster_cases(broker, java),
            ]
            results = self._measured(cases, rows, _processes(spark, kafka, broker, java))
        self.console.print(
            table(f"{live_sinks.TITLE}, {self.asked.sockets} sockets", live_sinks.HEADINGS, results, live_sinks.RATIOS)
        )

    def _clients(self) -> None:
        with ExitStack() as running:
            directory = running.enter_context(self._scratch("live-clients"))
            broker = running.enter_context(self._broker(directory, directory / "store", CLEANS_AT_ONCE))
            java = running.enter_context(java_peer(broker, directory))
            python = running.enter_context(python_peer(broker, directory))
            peers: Mapping[Peer, ClientPeer] = {"java": java, "spark_mq": python}
            of_peer = {
                "java": Processes(jvm=java.pid, broker=broker.pid),
                "spark_mq": Processes(python=python.pid, broker=broker.pid),
            }
            results = []
            for messages, cases in live_clients.client_cases(broker, peers, self.asked.client_messages):
                results += self._measured(cases, messages, lambda case: of_peer[case.peer])
        self.console.print(table(live_clients.TITLE, live_clients.HEADINGS, results, live_clients.RATIOS))

    def _idle(self, spark: SparkSession) -> None:
        with ExitStack() as running:
            directory = running.enter_context(self._scratch("live-idle"))
            cluster = running.enter_context(live_idle.idle_cluster(self.asked.oracle, directory))
            java = running.enter_context(java_peer(cluster.broker_for_clients, directory))
            python = running.enter_context(python_peer(cluster.broker_for_clients, directory))
            seconds, checkpoint = self.asked.idle_seconds, directory / "checkpoint"
            waiting = live_idle.all_waiting(spark, cluster, java, python, checkpoint, seconds)
            results = live_idle.measure_idle(waiting, cluster, seconds, self.console.print)
        self.console.print(live_idle.table(results))

    def _measured(self, cases: list[Case], messages: int, processes: Callable[[Case], Processes]) -> list[Result]:
        progress = self.console.print
        return measure(cases, messages=messages, rounds=self.asked.rounds, processes=processes, progress=progress)

    @contextmanager
    def _broker(self, directory: Path, store: Path, *settings: str) -> Iterator[RunningBroker]:
        with running_broker(self.asked.oracle, directory, store, *settings, *UNHURRIED) as broker:
            yield broker

    @contextmanager
    def _scratch(self, name: str) -> Iterator[Path]:
        """An empty directory, removed after success; else the servers' logs lie there until the next try."""
        directory = self.home / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        yield directory
        shutil.rmtree(directory)


def _processes(
    spark: SparkSession, kafka: kafka_peer.Broker, broker: RunningBroker, java: ClientPeer
) -> Callable[[Case], Processes]:
    of_peer: dict[Peer, Processes] = {
        "kafka": Processes(jvm=jvm_of(spark), broker=kafka.pid),
        "spark_mq": Processes(jvm=jvm_of(spark), broker=broker.pid),
        "java": Processes(jvm=java.pid, broker=broker.pid),
    }
    return lambda case: of_peer[case.peer]


def main(arguments: list[str]) -> None:
    asked = parse(arguments)
    Live(asked, asked.rows, Console(width=None if sys.stdout.isatty() else 160)).measure(set(asked.only))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # as an interrupt: brokers are stopped
    main(sys.argv[1:])
