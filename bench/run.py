"""`make bench`: Spark reads a RocketMQ store, a Kafka topic and batches made before; their rates as a table.

Makes what it reads on the first run (README.md beside this file) and finds it again on the next.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from bench import ceiling, engine, kafka_peer
from bench.measure import BODY, Case, Columns, measure, table, verify
from bench.messages import BODY_SIZE_BYTES, QUEUES, TOPIC, bodies, crc_sum
from bench.rocketmq_store import make_store
from spark_mq.session import build_session

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("kafka", "spark_mq", "ceiling", "engine")
OPENING_STORE_MESSAGES = 7_700_000  # 10 GiB of log, at 1.4 KB a record


def parse(arguments: list[str]) -> argparse.Namespace:
    home = Path(os.environ.get("SPARK_MQ_BENCH_HOME", ROOT / "build" / "bench"))
    oracle = ROOT / "tests" / "oracle" / "oracle.sh"
    parser = argparse.ArgumentParser(prog="bench/run.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000_000, help="of 1 KiB each (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="beside the warm-up (default %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measure nothing else")
    parser.add_argument("--opening-store", action="store_true", help="make the 10 GiB store, for its opening time")
    parser.add_argument("--home", type=Path, default=home, help="for stores and jars (default %(default)s)")
    parser.add_argument("--oracle", type=Path, default=oracle, help="starts the Apache broker (default %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    asked = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 130)
    only = set(asked.only)
    store = opening_store = None
    if only != {"kafka"}:
        with console.status(f"a store of {asked.messages:,} messages by the Apache broker"):
            store = make_store(asked.home, asked.oracle, asked.messages)
    if asked.opening_store:
        with console.status(f"a store of {OPENING_STORE_MESSAGES:,} messages by the Apache broker"):
            opening_store = make_store(asked.home, asked.oracle, OPENING_STORE_MESSAGES)

    if only != {"engine"}:
        measure_sources(asked, store, console)
    if store is not None and "engine" in only and (rows := engine.engine_rows(store, opening_store)):
        console.print(engine.table(rows))


def measure_sources(asked: argparse.Namespace, store: Path | None, console: Console) -> None:
    """Print the table of the sources that were asked for."""
    config = {"spark.driver.memory": "2g"}
    with ExitStack() as resources:
        broker = None
        if "kafka" in asked.only:
            with console.status("Kafka: jars and broker"):
                jars = kafka_peer.fetch_jars(asked.home)
                broker = resources.enter_context(kafka_peer.running_broker(asked.home, jars, asked.messages))
            config |= kafka_peer.SPARK_CONFIG | {"spark.jars": ",".join(map(str, jars.spark))}
        spark = build_session("spark_mq bench", master="local[2]", config=config)
        resources.callback(spark.stop)

        cases = []
        crcs = crc_sum(bodies(), asked.messages)
        if broker is not None:
            with console.status(f"Kafka: {asked.messages:,} messages"):
                kafka_peer.load_topic(spark, broker, asked.messages)
            frame = kafka_peer.read_topic(spark, broker)
            cases.append(Case("kafka", "kafka", frame, crcs))
        if store is not None:
            for columns in BODY:
                cases += store_cases(asked, spark, store, columns, crcs)

        for case in cases:
            with console.status(f"checking {case}"):
                verify(case, asked.messages, BODY_SIZE_BYTES)
        results = measure(
            spark,
            cases,
            messages=asked.messages,
            rounds=asked.rounds,
            broker_pid=broker.pid if broker else None,
            progress=console.print,
        )
        console.print(table(results))


def store_cases(asked: argparse.Namespace, spark: SparkSession, store: Path, columns: Columns, crcs: int) -> list[Case]:
    """Ours over `store` with these columns, and the ceiling of the same."""
    ours = read_store(spark, store, columns)
    cases = []
    if "spark_mq" in asked.only:
        cases.append(Case("spark_mq", columns, ours, crcs))
    if "ceiling" in asked.only:
        sample = asked.home / f"ceiling-{columns}.arrow"
        frame = ceiling.read_prebuilt(ours, sample, rows=asked.messages, partitions=QUEUES)
        cases.append(Case("ceiling", columns, frame, None))
    return cases


def read_store(spark: SparkSession, store: Path, columns: Columns) -> DataFrame:
    reader = spark.read.format("spark_mq").option("path", str(store)).option("topic", TOPIC)
    return (reader.option("columns", "kafka") if columns == "kafka" else reader).load()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # as an interrupt: brokers are stopped
    main(sys.argv[1:])
