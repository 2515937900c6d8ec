"""The jobs and the option as a user runs them: Spark's tasks write, Spark reads, other readers of Delta see the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.python_script import run_script
from tests.support.store_builder import StoreBuilder

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
import json, os, shutil, sys
from pathlib import Path
from jobs.archive import main as archive
from jobs.restore import main as restore
from spark_mq import build_session

path, table = "shop/broker-a", "archive"
spark = build_session("test", master="local[2,3]", config={"spark.sql.shuffle.partitions": "2"})
told = {}

def by_option(**options):
    reader = spark.read.format("spark_mq").option("path", path).option("archive", table).option("topic", "Topic")
    return sorted((row.queue_id, row.queue_offset, bytes(row.body).decode()) for row in reader.options(**options).load().collect())

def stream():
    reader = spark.readStream.format("spark_mq").option("path", path).option("archive", table).option("topic", "Topic")
    loaded = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "40").load()
    query = loaded.writeStream.format("parquet").option("path", "out").option("checkpointLocation", "checkpoint")
    assert query.trigger(availableNow=True).start().awaitTermination(120) is not False
    rows = spark.read.parquet("out").collect()
    return sorted((row.queue_id, row.queue_offset, bytes(row.body).decode()) for row in rows)

assert archive([path, "--table", table, "--master", "local[2]"]) == 0

# A task that dies when its file is written: Spark runs it again, and the file of the first try is in no commit.
from pyspark import TaskContext
from spark_mq.archive.archiver import archive_once, write_task
from spark_mq.archive.commits import open_or_make
from spark_mq.source.archive_table import Place
from spark_mq.source.options import SourceOptions

def dying(task):
    written = write_task(task)
    if TaskContext.get().attemptNumber() == 0:
        os._exit(9)
    return written

def run_tasks(tasks):
    return spark.sparkContext.parallelize(tasks, len(tasks)).map(dying).collect()

options = SourceOptions.parse({"path": path, "topic": "Topic"}, "batch")
dead = open_or_make(Place.of("dead"))
told["dead"] = sum(archive_once(options, dead, run_tasks).rows.values())
told["dead_rows"] = dead.delta.to_pyarrow_table().num_rows
told["dead_files"] = len(list(Path("dead").rglob("*.parquet"))) > len(dead.files())

# The oldest log files expire: the query goes on in the table.
for file in sorted(Path(path, "commitlog").iterdir())[:-1]:
    file.unlink()
told["batch"] = by_option()
told["few"] = by_option(startingOffsets=json.dumps({"Topic": {"0": 3, "1": 3}}), endingOffsets=json.dumps({"Topic": {"0": 5, "1": 4}}))
told["stream"] = stream()
plain = spark.read.format("spark_mq").option("path", path).option("topic", "Topic").load()
told["log"] = plain.count()

assert restore(["again", "--table", table, "--topic", "Topic", "--to", "Again", "--audit", "audit", "--keep-unique-key"]) == 0
assert restore(["again", "--table", table, "--topic", "Topic", "--to", "Again", "--audit", "audit", "--keep-unique-key"]) == 0
rows = spark.read.format("spark_mq").option("path", "again").option("topic", "Again").load().collect()
told["restored"] = sorted((row.queue_id, bytes(row.body).decode(), row.unique_key) for row in rows)

import polars
from deltalake import DeltaTable

told["arrow"] = DeltaTable(table).to_pyarrow_table(filters=[("topic", "=", "Topic")]).num_rows
told["polars"] = polars.read_delta(table).filter(polars.col("gap_end").is_null()).height
Path("told.json").write_text(json.dumps(told))
"""


def test_jobs_and_option_by_spark(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "shop" / "broker-a", log_file_size_bytes=8 << 10)
    sent = []
    for number in range(120):
        offset = store.send(
            "Topic", f"body {number}", queue_id=number % 2, keys=f"k{number}", unique_key=f"U{number:05}"
        )
        sent.append([number % 2, offset, f"body {number}"])
    ran = run_script(SCRIPT, tmp_path, small=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["batch"] == told["stream"] == sorted(sent)
    assert told["log"] < len(sent)
    assert told["few"] == [row for row in sorted(sent) if (row[0], row[1]) in ((0, 3), (0, 4), (1, 3))]
    assert (told["dead"], told["dead_rows"], told["dead_files"]) == (120, 120, True)
    assert told["restored"] == sorted([row[0], row[2], f"U{int(row[2].split()[1]):05}"] for row in sent)
    assert told["arrow"] == told["polars"] == 120
    assert "put back queue Topic/broker-a/0: offsets [0, 60)" in ran.stdout
    assert ran.stdout.rstrip().splitlines()[-1] == "nothing to put back"


TYPED = """
import json
from pathlib import Path
from jobs.archive import main as archive
from tests.support.store_builder import StoreBuilder
from deltalake import DeltaTable

store = StoreBuilder(Path("broker-a"))
said = []
def run(*more):
    said.append(archive(["broker-a", "--table", "archive", "--values", "orders=orders.json", "--master", "local[1]", *more]))
def schema(**kinds):
    properties = {name: {"type": kind} for name, kind in kinds.items()}
    Path("orders.json").write_text(json.dumps({"type": "object", "required": ["order"], "properties": properties}))

schema(order="integer", amount="number")
store.send("orders", '{"order": 1, "amount": 2.5}', keys="a")
store.send("orders", '{"order": 2, "amount": "12.50"}', queue_id=1)
store.send("other", "no order")
run()
run()
store.send("orders", '{"order": 3, "coupon": "SPRING"}')
run()
schema(order="integer", amount="number", coupon="string")
store.send("orders", '{"order": 4, "coupon": "SPRING"}')
run()
schema(order="string", amount="number", coupon="string")
run()
typed = DeltaTable("archive-values/orders").to_pyarrow_table().sort_by("mq_store_timestamp").to_pylist()
names = ("mq_queue_id", "mq_offset", "mq_incarnation", "mq_keys", "mq_error", "mq_body", "order", "amount", "coupon")
print("TYPED", json.dumps([[str(row[name]) if name == "mq_body" else row[name] for name in names] for row in typed]))
print("SAID", said)
"""


@pytest.mark.long
def test_a_typed_table_has_each_message_once_with_its_value_or_its_error(tmp_path: Path) -> None:
    ran = run_script(TYPED, tmp_path, small=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    lines = ran.stdout.splitlines()
    (typed,) = (json.loads(line.removeprefix("TYPED ")) for line in lines if line.startswith("TYPED "))
    wrong, strange = '{"order": 2, "amount": "12.50"}', '{"order": 3, "coupon": "SPRING"}'
    assert typed == [
        [0, 0, 0, "a", None, "None", 1, 2.5, None],
        [1, 0, 0, None, "amount is not DOUBLE", f"b'{wrong}'", None, None, None],
        [0, 1, 0, None, "it also has coupon", f"b'{strange}'", None, None, None],
        [0, 2, 0, None, None, "None", 4, None, "SPRING"],
    ]
    assert [line for line in lines if line.startswith(("typed", "the typed"))] == [
        "typed 2 messages of orders; 1 are not of the schema",
        "typed 1 messages of orders; 1 are not of the schema",
        "typed 1 messages of orders; 0 are not of the schema",
        "the typed table of orders has new fields: coupon",
    ]
    assert "field order is string in the schema, and long in the typed table" in ran.stderr
    assert lines[-1] == "SAID [0, 0, 0, 0, 2]"
