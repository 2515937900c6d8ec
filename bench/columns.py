"""What columns cost: whole reads of one store with more and more of them, and ways to hand Spark the properties.

    python -m bench.columns [--messages 2000000] [--rounds 3]

The store is that of `bench/run.py`, made if it is not there; Kafka has no part in it. The ceiling of a line is a source of prebuilt
batches with the same schema: what lies between two ceilings is what Spark itself pays for a column.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console

from bench import ceiling, live
from bench.measure import BY_CEILING, Peer, Processes, jvm_of, measure, table
from bench.messages import QUEUES, TOPIC
from bench.rocketmq_store import make_store
from bench.session import bench_session

_PLACE = "topic,queue_id,queue_offset,body"
_TIMES = f"{_PLACE},keys,tags,born_timestamp,store_timestamp,sys_flag,flag"
SETS = {
    "body": "body",
    "place, body": _PLACE,
    "+ keys, tags": f"{_PLACE},keys,tags",
    "+ timestamps, flags": _TIMES,
    "+ msg_id, unique_key": f"{_TIMES},msg_id,unique_key",
    "+ born_host, store_host": f"{_TIMES},msg_id,unique_key,born_host,store_host",
    "all 21": "*",
    "place, body, properties": f"{_PLACE},properties",
}
PROPERTIES = {
    "properties as text": (
        "array_join(transform(map_entries(properties), e -> concat(e.key, '\\u0001', e.value)), '\\u0002')"
    ),
    "properties as a struct of five": "struct(" + ", ".join(f"properties['{name}'] AS {name}" for name in (
        "KEYS", "TAGS", "UNIQ_KEY", "WAIT", "CLUSTER")) + ")",
}  # fmt: skip
UNPACKED = "str_to_map(properties, '\\u0002', '\\u0001')"


@dataclass(frozen=True, slots=True)
class ColumnsCase:
    """One source with some columns."""

    peer: Peer
    columns: str
    frame: DataFrame
    messages: int

    @property
    def labels(self) -> tuple[str, ...]:
        return ("spark_mq" if self.peer == "spark_mq" else "prebuilt batches", self.columns)

    def prepare(self) -> None:
        """Nothing: what is read was made before."""

    def run(self) -> float:
        start = time.perf_counter()
        self.frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - start

    def check(self) -> None:
        """Raise RuntimeError unless all messages are there."""
        if (found := self.frame.count()) != self.messages:
            raise RuntimeError(f"{self.labels}: {found} rows, expected {self.messages}")

    def clear(self) -> None:
        """Nothing: what is read is kept."""


def cases(spark: SparkSession, store: Path, samples: Path, messages: int) -> Iterator[ColumnsCase]:
    """Ours and the ceiling for each set of columns; then ceilings with the properties in other shapes."""
    reader = spark.read.format("spark_mq").option("path", str(store)).option("topic", TOPIC)

    def prebuilt(frame: DataFrame, name: str) -> DataFrame:
        return ceiling.read_prebuilt(
            frame, samples / f"{name}.arrow", batch_rows=10_000, rows=messages, partitions=QUEUES
        )

    for number, (what, columns) in enumerate(SETS.items()):
        ours = reader.option("columns", columns).load()
        yield ColumnsCase("spark_mq", what, ours, messages)
        yield ColumnsCase("ceiling", what, prebuilt(ours, f"columns-{number}"), messages)
    with_map = reader.option("columns", SETS["place, body, properties"]).load()
    for number, (what, shape) in enumerate(PROPERTIES.items()):
        other = prebuilt(with_map.withColumn("properties", f.expr(shape)), f"properties-{number}")
        yield ColumnsCase("ceiling", what, other, messages)
        if what == "properties as text":
            unpacked = other.withColumn("properties", f.expr(UNPACKED))
            yield ColumnsCase("ceiling", f"{what}, str_to_map", unpacked, messages)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.columns", description=(__doc__ or "").splitlines()[0])
    live.add_arguments(parser)
    parser.set_defaults(rounds=3)
    asked = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    with console.status(f"a store of {asked.messages:,} messages by the Apache broker"):
        store = make_store(asked.home, asked.oracle, asked.messages)
    with bench_session(asked.batch_rows, None, asked.sockets) as spark:
        processes = Processes(jvm=jvm_of(spark))
        results = measure(
            list(cases(spark, store, asked.home / "ceiling", asked.messages)),
            messages=asked.messages,
            rounds=asked.rounds,
            processes=lambda case: processes,
            progress=console.print,
        )
    console.print(table(f"Columns, {asked.sockets} sockets", ("source", "columns"), results, (BY_CEILING,)))


if __name__ == "__main__":
    main(sys.argv[1:])
