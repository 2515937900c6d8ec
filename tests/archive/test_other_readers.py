"""Readers of Delta that are not ours see the archive's messages, whatever kept the table; ours reads what they have changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_mq.archive import upkeep
from spark_mq.archive.upkeep import UpkeepReport, compact
from tests.support.python_script import run_script
from tests.support.store_builder import START_MS, StoreBuilder

from .archived import archived, opened, rows_of, table_rows

pytestmark = pytest.mark.long

DAY_MS = 86_400_000
SHOWN = ("topic", "broker_name", "queue_id", "queue_offset", "incarnation", "keys", "unique_key")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two topics over three days, with messages that expired unarchived; one was made again; files are joined; a checkpoint."""
    store, place = StoreBuilder(tmp_path / "broker-a", log_file_size_bytes=2 << 10), tmp_path / "archive"
    for step in range(6):
        for number in range(12):
            for topic in ("Topic", "%DLQ%group"):
                store.send(
                    topic,
                    f"{step}/{number} ü",
                    queue_id=number % 2,
                    keys=f"k{step} {number}",
                    unique_key=f"U{step:03}{number:03}",
                    store_time_ms=START_MS + step * DAY_MS // 2 + number,
                )
        if step == 3:
            while len(store.log_files) > 1:
                store.delete_oldest_log_file()
        if step == 4:
            archived(place, path=str(store.root))
            store.delete_topic("%DLQ%group")
            for number in range(5):
                store.send("%DLQ%group", f"new {number}", store_time_ms=START_MS + 9 * DAY_MS + number)
        archived(place, path=str(store.root))
    compact(opened(place), lambda joins: [upkeep.write_joined(join) for join in joins], UpkeepReport())
    opened(place).delta.create_checkpoint()
    assert opened(place).gap_files()
    return place


def shown(rows: list[dict[str, Any]]) -> list[list[Any]]:
    return sorted([*(row[name] for name in SHOWN), row["body"].hex(), row["properties_count"]] for row in rows)


def expected(table: Path) -> list[list[Any]]:
    """By delta-rs with Arrow."""
    return shown([{**row, "properties_count": len(row["properties"] or ())} for row in table_rows(table)])


SPARK = """
import json, os
from pyspark.sql import functions as f
from spark_mq import build_session

names = {names!r}
spark = build_session("test", master="local[2]", delta=True)

def rows(frame):
    some = frame.where("gap_end IS NULL").select(*names, f.lower(f.hex("body")).alias("body"), f.size("properties").alias("count"))
    return sorted(list(row) for row in some.collect())

table = spark.read.format("delta").load("archive")
print("ROWS", json.dumps(rows(table)))
stream = spark.readStream.format("delta").load("archive").writeStream.format("memory").queryName("seen")
assert stream.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start().awaitTermination(120) is not False
print("STREAM", json.dumps(rows(spark.table("seen"))))
spark.sql(f"OPTIMIZE delta.`{{os.path.abspath('archive')}}`").collect()
print("AFTER", json.dumps(rows(spark.read.format("delta").load("archive"))))
"""


@pytest.mark.filterwarnings("ignore:.*tolerated:RuntimeWarning")
@pytest.mark.spark
def test_delta_spark_reads_it_in_batch_and_as_a_stream_and_may_optimize_it(table: Path, tmp_path: Path) -> None:
    rows = expected(table)
    ours = [rows_of(archive=str(table), topic=topic, failOnDataLoss="false") for topic in ("Topic", "%DLQ%group")]
    ran = run_script(SPARK.format(names=list(SHOWN)), tmp_path, small=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = dict(line.split(" ", 1) for line in ran.stdout.splitlines() if line.split(" ")[0].isupper())
    assert json.loads(said["ROWS"]) == json.loads(said["STREAM"]) == json.loads(said["AFTER"]) == rows
    assert len(opened(table).files()) < 20, "joined across queues"
    again = [rows_of(archive=str(table), topic=topic, failOnDataLoss="false") for topic in ("Topic", "%DLQ%group")]
    assert again == ours


def by_duckdb(connection: Any, source: str) -> list[list[Any]]:
    names = ", ".join(SHOWN)
    counted = "lower(hex(body)) AS body, cardinality(properties) AS count"
    rows = connection.sql(f"SELECT {names}, {counted} FROM {source} WHERE gap_end IS NULL").fetchall()
    return sorted(list(row) for row in rows)


def test_duckdb_reads_it_through_arrow(table: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register("archive", opened(table).delta.to_pyarrow_dataset())
    assert by_duckdb(connection, "archive") == expected(table)


@pytest.mark.network
def test_duckdb_reads_it_by_its_own_extension(table: Path) -> None:
    """The extension `delta` comes from DuckDB's site on first use."""
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.sql("INSTALL delta; LOAD delta")
    assert by_duckdb(connection, f"delta_scan('{table}')") == expected(table)


def test_polars_reads_it(table: Path) -> None:
    """Its own reader takes the values of a partition from the names of directories."""
    polars = pytest.importorskip("polars")
    found = polars.read_delta(str(table)).filter(polars.col("gap_end").is_null()).to_dicts()
    assert shown([{**row, "properties_count": len(row["properties"] or ())} for row in found]) == expected(table)
