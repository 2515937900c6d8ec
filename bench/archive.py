"""`python -m bench.archive`: archiving beside Spark's Kafka source into Delta, reading beside Delta's own reader, a look for one key.

    HOME/archive-round            what a round of archiving has written; removed after it
    HOME/archive-<messages>       the archive of the store of <messages> messages, for reading
    HOME/archive-keys-<n>         a table of <n> small messages, for looks by key

Each table is made once, and found again. All write Parquet by zstd.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from bench import kafka_peer, live
from bench.measure import BY_KAFKA, Case, Peer, Processes, Ratio, jvm_of, measure, table
from bench.messages import BODY_SIZE_BYTES, TOPIC, bodies, crc_sum
from bench.rocketmq_store import make_store
from bench.session import bench_session
from jobs.archive import main as archive_job
from spark_mq.archive.commits import commit, open_or_make
from spark_mq.archive.data_files import LifeOfQueue, write_messages
from spark_mq.source.archive_table import FILE_SCHEMA, ArchiveTable, Place, Progress
from spark_mq.source.offsets import QueueId
from spark_mq.source.rows import COLUMN_NAMES

KEYED_MESSAGES = 10_000_000
LOOKS = 5
_KEYED_QUEUES = 4
_KEYED_DAYS = 100
_START_US = 1_759_968_000_000_000
"""Midnight of a day in UTC."""
_DAY_US = 86_400_000_000
_BATCH = 50_000

Columns = Literal["kafka", "all", "body, keys"]
BODY: dict[Columns, str] = {"kafka": "value", "all": "body", "body, keys": "body"}
BY_DELTA = Ratio("x Delta", "delta", same_way=True)


def check_rows(where: str, rows: DataFrame, body: str, messages: int, crc: int) -> None:
    """Raise RuntimeError unless all bodies are there, each once."""
    column = f.col(body)
    found = tuple(rows.agg(f.count("*"), f.sum(f.length(column)), f.sum(f.crc32(column))).first() or ())
    expected = (messages, messages * BODY_SIZE_BYTES, crc)
    if found != expected:
        raise RuntimeError(f"{where}: (rows, bytes, sum of CRCs) {found}, expected {expected}")


@dataclass(frozen=True, slots=True)
class Archiving:
    """A topic that becomes a Delta table: by Spark's writer from a source, or by the archive job where there is no `frame`."""

    peer: Peer
    name: str
    columns: Columns
    spark: SparkSession
    store: Path
    place: Path
    messages: int
    crc: int
    frame: DataFrame | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return self.name, self.columns

    def prepare(self) -> None:
        self.clear()

    def run(self) -> float:
        start = time.perf_counter()
        if self.frame is not None:
            self.frame.write.format("delta").save(str(self.place))
        else:
            archive(self.store, self.place)
        return time.perf_counter() - start

    def check(self) -> None:
        rows = self.spark.read.format("delta").load(str(self.place))
        check_rows(str(self.labels), rows, BODY[self.columns], self.messages, self.crc)

    def clear(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)


def archive(store: Path, place: Path) -> None:
    """The job, in this process and its session."""
    said = io.StringIO()
    with redirect_stdout(said):
        code = archive_job([str(store), "--table", str(place), "--topics", TOPIC])
    if code:
        raise RuntimeError(f"the archive job ended with {code}: {said.getvalue()}")


@dataclass(frozen=True, slots=True)
class Reading:
    """A whole read of an archive into Spark's `noop` sink."""

    peer: Peer
    name: str
    columns: Columns
    frame: DataFrame
    messages: int
    crc: int

    @property
    def labels(self) -> tuple[str, ...]:
        return self.name, self.columns

    def prepare(self) -> None:
        """Nothing: the table was made before."""

    def run(self) -> float:
        start = time.perf_counter()
        self.frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - start

    def check(self) -> None:
        check_rows(str(self.labels), self.frame, BODY[self.columns], self.messages, self.crc)

    def clear(self) -> None:
        """Nothing: the table is kept."""


def archiving_cases(
    spark: SparkSession, store: Path, home: Path, messages: int, kafka: DataFrame | None
) -> list[Archiving]:
    crc, place = crc_sum(bodies(), messages), home / "archive-round"
    reader = spark.read.format("spark_mq").option("path", str(store)).option("topic", TOPIC)
    ours, all_columns = reader.option("columns", "kafka").load(), read_store(spark, store)

    def case(peer: Peer, name: str, columns: Columns, frame: DataFrame | None) -> Archiving:
        return Archiving(peer, name, columns, spark, store, place, messages, crc, frame)

    cases = [] if kafka is None else [case("kafka", "Spark's Kafka source, Delta's writer", "kafka", kafka)]
    return [
        *cases,
        case("spark_mq", "spark_mq, Delta's writer", "kafka", ours),
        case("spark_mq", "spark_mq, Delta's writer", "all", all_columns),
        case("spark_mq", "spark-mq job archive", "all", None),
    ]


def read_store(spark: SparkSession, store: Path) -> DataFrame:
    return spark.read.format("spark_mq").option("path", str(store)).option("topic", TOPIC).load()


def reading_cases(spark: SparkSession, place: Path, messages: int) -> list[Reading]:
    crc = crc_sum(bodies(), messages)
    delta = spark.read.format("delta").load(str(place)).where(f"topic = '{TOPIC}' AND gap_end IS NULL")
    ours = spark.read.format("spark_mq").option("archive", str(place)).option("topic", TOPIC)
    cases = []
    for columns in ("all", "body, keys"):
        names = COLUMN_NAMES if columns == "all" else tuple(columns.split(", "))
        own = ours.option("columns", ",".join(names)).load()
        cases.append(Reading("delta", "Delta's reader", columns, delta.select(*names), messages, crc))
        cases.append(Reading("spark_mq", "spark_mq, option archive", columns, own, messages, crc))
    return cases


# One key


def make_keyed(home: Path, messages: int) -> Path:
    """A table of so many messages in four queues over a hundred days, whose keys ascend; each has a body of 100 bytes."""
    place = home / f"archive-keys-{messages}"
    if not (place / "made").exists():
        shutil.rmtree(place, ignore_errors=True)
        table_of, each = open_or_make(Place.of(str(place))), messages // (_KEYED_QUEUES * _KEYED_DAYS)
        files, ends = [], {}
        for queue_id in range(_KEYED_QUEUES):
            life = LifeOfQueue(TOPIC, "broker-a", queue_id, 0)
            for day in range(_KEYED_DAYS):
                files += write_messages(table_of.place, life, _keyed_rows(queue_id, day, each))
            ends[QueueId(TOPIC, "broker-a", queue_id)] = Progress(0, each * _KEYED_DAYS)
        commit(table_of, files, ends)
        (place / "made").touch()
    return place


def key_of(queue_id: int, offset: int) -> str:
    return f"order-{offset:08}-{queue_id}"


def _keyed_rows(queue_id: int, day: int, count: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, _BATCH):
        offsets = np.arange(day * count + start, day * count + min(start + _BATCH, count), dtype=np.int64)
        texts = pa.array([key_of(queue_id, offset) for offset in offsets.tolist()])
        times = pa.array(_START_US + day * _DAY_US + np.linspace(0, _DAY_US - 1, len(offsets)).astype(np.int64))
        values: dict[str, pa.Array] = {
            "broker_name": pa.repeat(pa.scalar("broker-a"), len(offsets)),
            "queue_id": pa.repeat(pa.scalar(queue_id, pa.int32()), len(offsets)),
            "queue_offset": pa.array(offsets),
            "keys": texts,
            "unique_key": texts,
            "body": pa.repeat(pa.scalar(b"x" * 100), len(offsets)),
            "store_timestamp": times.cast(pa.timestamp("us")).cast(FILE_SCHEMA.field("store_timestamp").type),
            "commitlog_offset": pa.array(300 * offsets),
            "store_size": pa.repeat(pa.scalar(300, pa.int32()), len(offsets)),
        }
        kinds = [(name, FILE_SCHEMA.field(name).type) for name in FILE_SCHEMA.names if name in COLUMN_NAMES]
        columns = {
            name: values[name].cast(kind) if name in values else _blank(kind, len(offsets)) for name, kind in kinds
        }
        yield pa.record_batch(columns)


def _blank(kind: pa.DataType, count: int) -> pa.Array:
    """As an old release's column that a reader may not take for null."""
    return pa.repeat(pa.scalar(0, kind), count) if pa.types.is_integer(kind) else pa.nulls(count, kind)


@dataclass(frozen=True, slots=True)
class Looks:
    """Seconds of looks for one key, each for another one."""

    name: str
    seconds: Sequence[float]
    opened: int | None
    """Files, of the median look; None where the reader does not say."""
    files: int


def look_up(spark: SparkSession, place: Path, messages: int) -> list[Looks]:
    """Looks in turn; a first one, which is checked, warms up."""
    each = messages // _KEYED_QUEUES
    wanted = [key_of(number % _KEYED_QUEUES, (number * 7_919 + each // 3) % each) for number in range(LOOKS + 1)]
    delta = spark.read.format("delta").load(str(place)).where(f"topic = '{TOPIC}'")
    looked = ArchiveTable.open(Place.of(str(place)))
    parts = [part for queue in looked.queues() for life in looked.lives(queue) for part in life.parts]
    opened = [sum(part.may_have_key(key) for part in parts) for key in wanted]

    def ours(key: str) -> list[str]:
        reader = spark.read.format("spark_mq").option("archive", str(place)).option("topic", TOPIC)
        return [row.keys for row in reader.option("key", key).option("columns", "keys,body").load().collect()]

    def deltas(key: str) -> list[str]:
        return [row.keys for row in delta.where(f.col("keys") == key).select("keys", "body").collect()]

    found: dict[str, list[float]] = {"spark_mq, option key": [], "Delta's reader": []}
    for number, key in enumerate(wanted):
        for name, look in (("spark_mq, option key", ours), ("Delta's reader", deltas)):
            start = time.perf_counter()
            rows = look(key)
            if rows != [key]:
                raise RuntimeError(f"{name}: {key} gave {rows}")
            if number:
                found[name].append(time.perf_counter() - start)
    count = len(looked.files())
    shown = {"spark_mq, option key": int(median(opened)), "Delta's reader": None}
    return [Looks(name, seconds, shown[name], count) for name, seconds in found.items()]


def looks_table(messages: int, looks: Sequence[Looks]) -> Table:
    shown = Table(
        title=f"One key of {messages:,} archived messages", caption="seconds of a query, from its start to its row"
    )
    for heading in ("reader", "seconds", "x Delta", "files opened", "of"):
        shown.add_column(heading, justify="left" if heading == "reader" else "right")
    base = next(each for each in looks if each.name == "Delta's reader")
    for each in looks:
        ratio = median(other / own for own, other in zip(each.seconds, base.seconds, strict=True))
        seconds = f"{median(each.seconds):.2f} ({min(each.seconds):.2f} - {max(each.seconds):.2f})"
        shown.add_row(
            each.name, seconds, f"{ratio:.2f}", "" if each.opened is None else str(each.opened), str(each.files)
        )
    return shown


# All of it


@contextmanager
def kafka_topic(
    asked: argparse.Namespace, spark: SparkSession, jars: kafka_peer.Jars | None
) -> Iterator[tuple[DataFrame | None, int | None]]:
    """The topic that Kafka's broker has, and the broker's process id; None without jars."""
    if jars is None:
        yield None, None
        return
    directory = asked.home / f"kafka-{asked.messages}"
    with kafka_peer.running_broker(directory, jars) as broker:
        kafka_peer.load_topic(spark, broker, asked.messages)
        yield kafka_peer.read_topic(spark, broker, TOPIC), broker.pid


def measure_archive(asked: argparse.Namespace, console: Console) -> None:
    """Print the three tables."""
    home = Path(asked.home).resolve()
    with console.status(f"a store of {asked.messages:,} messages by the Apache broker"):
        store = make_store(home, asked.oracle, asked.messages)
    jars = None if asked.without_kafka else kafka_peer.fetch_jars(home)
    with bench_session(asked.batch_rows, jars, asked.sockets, delta=True) as spark:
        jvm = jvm_of(spark)
        with kafka_topic(asked, spark, jars) as (topic, broker):

            def works(case: Case) -> Processes:
                return Processes(jvm=jvm, broker=broker if case.peer == "kafka" else None)

            cases = archiving_cases(spark, store, home, asked.messages, topic)
            results = measure(
                cases, messages=asked.messages, rounds=asked.rounds, processes=works, progress=console.print
            )
        console.print(table("Archiving into a Delta table", ("from", "columns"), results, (BY_KAFKA,)))
        place = home / f"archive-{asked.messages}"
        if not place.exists():
            with console.status("the archive"):
                archive(store, place)
        results = measure(
            reading_cases(spark, place, asked.messages),
            messages=asked.messages,
            rounds=asked.rounds,
            processes=lambda case: Processes(jvm=jvm),
            progress=console.print,
        )
        console.print(table("Reading the archive into the noop sink", ("reader", "columns"), results, (BY_DELTA,)))
        with console.status(f"a table of {asked.keyed_messages:,} messages"):
            keyed = make_keyed(home, asked.keyed_messages)
        console.print(looks_table(asked.keyed_messages, look_up(spark, keyed, asked.keyed_messages)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `run.py` takes for this part besides."""
    parser.add_argument(
        "--keyed-messages",
        type=int,
        default=KEYED_MESSAGES,
        help="in the table of looks by key (default %(default)s)",
    )
    parser.add_argument("--without-kafka", action="store_true", help="archiving without Spark's Kafka source beside it")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.archive", description=(__doc__ or "").splitlines()[0])
    live.add_arguments(parser)
    add_arguments(parser)
    measure_archive(parser.parse_args(arguments), Console(width=None if sys.stdout.isatty() else 160))


if __name__ == "__main__":
    main(sys.argv[1:])
