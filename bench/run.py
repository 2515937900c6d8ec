"""`make bench`: Spark's Kafka source and sink, ours, and Python ones that do nothing else; their rates as tables.

Makes what is read on the first run (README.md beside this file) and finds it again on the next.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from bench import archive, engine, handlers, input_rows, kafka_peer, lateness, live, sinks, sources, write_engine
from bench.kafka_peer import Jars
from bench.measure import Case, Processes, jvm_of, measure, table
from bench.messages import TOPIC, bodies, crc_sum
from bench.recycled import RecycledStore
from bench.rocketmq_store import make_store
from bench.session import bench_session

PARTS = ("kafka", "spark_mq", "ceiling", "engine", "live", "archive")
PEERS = {"kafka", "spark_mq", "ceiling"}
LIVE_PARTS = {"read": {"source"}, "write": {"sink"}, None: set(live.PARTS)}
OPENING_STORE_MESSAGES = 7_700_000  # 10 GiB of log, at 1.4 KB a record


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("direction", nargs="?", choices=("read", "write"), help="measure nothing else")
    parser.add_argument("--rows", type=int, default=1_000_000, help="to write, of 1 KiB (default %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measure nothing else")
    parser.add_argument("--opening-store", action="store_true", help="make the 10 GiB store, for its opening time")
    live.add_arguments(parser)
    archive.add_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    asked = parse(arguments)
    only = set(asked.only)
    console = Console(width=None if sys.stdout.isatty() else 160)
    if only & PEERS:
        measure_peers(asked, console)
    if "engine" in only and asked.direction != "write":
        opening_store = find_store(asked, console, OPENING_STORE_MESSAGES) if asked.opening_store else None
        rows = engine.engine_rows(find_store(asked, console, asked.messages), opening_store)
        console.print(engine.table("Storage engine, reading", rows))
    if "engine" in only and asked.direction != "read":
        with RecycledStore(asked.home / "write-engine") as recycled:
            rows = write_engine.engine_rows(recycled, asked.batch_rows)
            console.print(engine.table("Storage engine, writing, 1 KiB bodies", rows))
            rows = write_engine.kind_rows(recycled, asked.batch_rows)
            console.print(engine.table("Storage engine, ways into the store, 1 KiB bodies", rows))
            rows = lateness.lateness_rows(asked.home)
            console.print(
                engine.table("Deliveries beside a sink that commits without pause", rows, heading="two processes")
            )
            console.print(write_engine.scaling_table(write_engine.scaling(recycled, asked.batch_rows)))
        handlers.print_tables(console, asked.home / "handlers")
    if "live" in only:
        live.Live(asked, asked.rows // 2, console).measure(LIVE_PARTS[asked.direction])
    if "archive" in only and asked.direction is None:
        archive.measure_archive(asked, console)


def find_store(asked: argparse.Namespace, console: Console, messages: int) -> Path:
    with console.status(f"a store of {messages:,} messages by the Apache broker"):
        return make_store(asked.home, asked.oracle, messages)


def measure_peers(asked: argparse.Namespace, console: Console) -> None:
    """Print the tables of the sources and of the sinks that were asked for."""
    jars = None
    if "kafka" in asked.only:
        with console.status("Kafka: jars"):
            jars = kafka_peer.fetch_jars(asked.home)
    with bench_session(asked.batch_rows, jars, asked.sockets) as spark:
        if asked.direction != "write":
            measure_sources(asked, spark, jars, console)
        if asked.direction != "read":
            measure_sinks(asked, spark, jars, console)


def processes_of(spark: SparkSession, broker: kafka_peer.Broker | None) -> Callable[[Case], Processes]:
    """Spark works for every case, Kafka's broker for its own."""
    jvm = jvm_of(spark)
    return lambda case: Processes(jvm=jvm, broker=broker.pid if broker and case.peer == "kafka" else None)


def measure_sources(asked: argparse.Namespace, spark: SparkSession, jars: Jars | None, console: Console) -> None:
    cases = []
    crcs = crc_sum(bodies(), asked.messages)
    with ExitStack() as resources:
        broker = None
        if jars is not None:
            with console.status(f"Kafka: {asked.messages:,} messages"):
                directory = asked.home / f"kafka-{asked.messages}"
                broker = resources.enter_context(kafka_peer.running_broker(directory, jars))
                kafka_peer.load_topic(spark, broker, asked.messages)
            topic = kafka_peer.read_topic(spark, broker, TOPIC)
            cases.append(sources.SourceCase("kafka", "kafka", topic, asked.messages, crcs))
        if {"spark_mq", "ceiling"} & set(asked.only):
            store = find_store(asked, console, asked.messages)
            ours = sources.store_cases(spark, store, asked.home, asked.messages, crcs)
            cases += [case for case in ours if case.peer in asked.only]
        results = measure(
            cases,
            messages=asked.messages,
            rounds=asked.rounds,
            processes=processes_of(spark, broker),
            progress=console.print,
        )
    console.print(table(f"{sources.TITLE}, {asked.sockets} sockets", sources.HEADINGS, results))


def measure_sinks(asked: argparse.Namespace, spark: SparkSession, jars: Jars | None, console: Console) -> None:
    with console.status(f"{asked.rows:,} rows to write"):
        rows = input_rows.write_input(spark, asked.home, asked.rows)
    with ExitStack() as resources:
        broker = None
        if jars is not None:
            with console.status("Kafka: broker"):
                broker = resources.enter_context(kafka_peer.running_broker(asked.home / "kafka-sink", jars))
        results = measure(
            sinks.sink_cases(spark, asked.home, rows, broker, asked.only, resources),
            messages=asked.rows,
            rounds=asked.rounds,
            processes=processes_of(spark, broker),
            progress=console.print,
        )
    console.print(table(f"{sinks.TITLE}, {asked.sockets} sockets", sinks.HEADINGS, results))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # as an interrupt: brokers are stopped
    main(sys.argv[1:])
