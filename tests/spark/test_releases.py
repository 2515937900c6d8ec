"""Each feature in the Spark that is installed: it works, or is refused by name. `tests/support/spark_releases.py` makes a table.

A test's first line of docstring is its row of docs/tables/spark-releases.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_mq
from spark_mq.archive.archiver import ArchiveTask, TaskResult, archive_once, write_task
from spark_mq.archive.commits import open_or_make
from spark_mq.source.archive_table import Place
from spark_mq.source.options import SourceOptions
from spark_mq.spark_versions import ADMISSION_CONTROL, FILTERS, Ability
from storage import open_store
from tests.support.fixture_stores import Fixture
from tests.support.store_builder import StoreBuilder

from .conftest import ReadStore
from .streams import Stream

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.release]

Refused = Callable[[str, Ability], None]


@pytest.fixture
def refused(request: pytest.FixtureRequest) -> Refused:
    """Notes for the table that this release refuses the feature, after the text was held against the rule."""

    def note(text: str, ability: Ability) -> None:
        assert not ability.is_here, "a release that can do it must not refuse it"
        assert f"needs Spark {ability.since[0]}.{ability.since[1]}: " in text
        request.node.user_properties.append(("refused", f"needs {ability.since[0]}.{ability.since[1]}"))

    return note


def test_batch_read(read_store: ReadStore, pristine_store: Callable[[str], Fixture]) -> None:
    """`spark.read`, all columns"""
    rows = read_store(pristine_store("clean").root, topic="TopicA").collect()
    assert len(rows) == 600
    assert rows[0].topic == "TopicA"


def test_kafka_columns(read_store: ReadStore, pristine_store: Callable[[str], Fixture]) -> None:
    """`spark.read` with Kafka's columns"""
    rows = read_store(pristine_store("clean").root, topic="TopicA", columns="kafka").collect()
    assert len(rows) == 600
    assert rows[0].asDict().keys() >= {"key", "value", "partition", "offset"}


def test_sql_view(spark: SparkSession, pristine_store: Callable[[str], Fixture]) -> None:
    """SQL: a temporary view `USING spark_mq`"""
    path = pristine_store("clean").root
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW letters USING spark_mq OPTIONS (path '{path}', topic 'TopicA')")
    assert spark.sql("SELECT count(*) AS n FROM letters").collect()[0].n == 600


def test_push_down(
    spark: SparkSession, read_store: ReadStore, pristine_store: Callable[[str], Fixture], refused: Refused
) -> None:
    """filters pushed down (`pushDown`)"""
    flag = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(flag, None)
    spark.conf.set(flag, "true")
    try:
        rows = read_store(pristine_store("clean").root, topic="TopicA", pushDown="true").where("queue_id = 0").collect()
    except PySparkException as error:
        refused(str(error), FILTERS)
        return
    finally:
        spark.conf.set(flag, before or "false")
    assert rows
    assert {row.queue_id for row in rows} == {0}


def test_batch_write(spark: SparkSession, tmp_path: Path) -> None:
    """`df.write`, exactly once by `writeId`"""
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS body")
    for _ in range(2):
        frame.write.format("spark_mq").mode("append").options(topic="T", writeId="one").save(f"{tmp_path}/store")
    assert messages(tmp_path / "store", "T") == 100


def test_stream_read(stream_store: Callable[..., Stream], pristine_store: Callable[[str], Fixture]) -> None:
    """`spark.readStream` with `Trigger.AvailableNow`, restarted"""
    stream = stream_store(pristine_store("clean").root, topic="TopicA", startingOffsets="earliest")
    stream.run()
    first = rows_in(stream)
    stream.run()
    assert (first, rows_in(stream)) == (600, 600)


def test_stream_goes_on(spark: SparkSession, stream_store: Callable[..., Stream], tmp_path: Path) -> None:
    """`spark.readStream`, started again on its checkpoint: each row once"""
    append(spark, tmp_path / "store", 0, 50)
    stream = stream_store(tmp_path / "store", topic="T", startingOffsets="earliest")
    stream.start().processAllAvailable()
    append(spark, tmp_path / "store", 50, 80)
    assert stream._query is not None
    stream._query.processAllAvailable()
    stream.stop()
    append(spark, tmp_path / "store", 80, 100)
    stream.start().processAllAvailable()
    assert sorted(map(int, stream.bodies())) == list(range(100))


def test_a_batch_is_run_again(spark: SparkSession, stream_store: Callable[..., Stream], tmp_path: Path) -> None:
    """a batch that was not committed is run again with the same rows"""
    append(spark, tmp_path / "store", 0, 50)
    stream = stream_store(tmp_path / "store", topic="T", startingOffsets="earliest")
    stream.run()
    last = max(stream.batches)
    rows = stream.bodies(last)
    stream.forget_commit(last)
    append(spark, tmp_path / "store", 50, 60)
    stream.run()
    if not ADMISSION_CONTROL.is_here:
        stream.run()  # such a Spark makes one batch a run, and this run's was the old one
    assert stream.runs.count(last) == 2
    assert stream.bodies(last) == rows
    assert len(stream.bodies()) == 60


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_limits(
    stream_store: Callable[..., Stream], pristine_store: Callable[[str], Fixture], refused: Refused, option: str
) -> None:
    """limits of a micro-batch"""
    limit = {"maxOffsetsPerTrigger": "250", "minOffsetsPerTrigger": "10", "maxBytesPerTrigger": "40k"}[option]
    stream = stream_store(pristine_store("clean").root, topic="TopicA", startingOffsets="earliest", **{option: limit})
    try:
        stream.run()
    except PySparkException as error:
        refused(str(error)[str(error).index(option) :], ADMISSION_CONTROL)
        return
    assert rows_in(stream) == 600
    sizes = [len(rows) for rows in stream.batches.values() if rows]
    assert len(sizes) == 1 if option.startswith("min") else max(sizes) <= 300


def test_lost_rows_fail_a_query(spark: SparkSession, stream_store: Callable[..., Stream], tmp_path: Path) -> None:
    """`failOnDataLoss`: a query whose queue was replaced fails by name"""
    append(spark, tmp_path / "store", 0, 50)
    stream = stream_store(tmp_path / "store", topic="T", startingOffsets="earliest")
    stream.run()
    other = tmp_path / "other"
    append(spark, other, 0, 20)
    (tmp_path / "store").rename(tmp_path / "gone")
    other.rename(tmp_path / "store")
    with pytest.raises(PySparkException, match=r"SPARK_MQ_(DATA_LOSS|CHECKPOINT_OF_ANOTHER_QUERY)"):
        stream.run()


def test_group_offsets(spark: SparkSession, stream_store: Callable[..., Stream], tmp_path: Path) -> None:
    """`commitOffsets`: a consumer group's offsets follow a running query"""
    append(spark, tmp_path / "store", 0, 50)
    options = {"topic": "T", "startingOffsets": "earliest", "consumerGroup": "g", "commitOffsets": "true"}
    stream = stream_store(tmp_path / "store", **options)
    query = stream.start()
    query.processAllAvailable()
    append(spark, tmp_path / "store", 50, 60)
    query.processAllAvailable()
    append(spark, tmp_path / "store", 60, 61)
    query.processAllAvailable()
    stream.stop()
    found = json.loads((tmp_path / "store" / "config" / "consumerOffset.json").read_text("utf-8"))
    assert sum(found["offsetTable"]["T@g"].values()) >= 50


def test_streaming_sink(spark: SparkSession, tmp_path: Path) -> None:
    """`df.writeStream`, exactly once, a repeated batch recognised"""
    append(spark, tmp_path / "from", 0, 50)
    target, checkpoint = tmp_path / "to", tmp_path / "checkpoint"
    for _ in range(2):
        copy(spark, tmp_path / "from", target, checkpoint)
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink()
    copy(spark, tmp_path / "from", target, checkpoint)
    assert messages(target, "C") == 50


def test_types_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """`df.writeStream`: every type of column"""
    append(spark, tmp_path / "from", 0, 5)
    rows = spark.readStream.format("spark_mq").options(topic="T", startingOffsets="earliest").load(f"{tmp_path}/from")
    rows = rows.selectExpr(
        *("'C' AS topic", "body", "array('k1', 'k2') AS keys", "map('a', 'b') AS properties", "7 AS flag"),
        "timestamp '2026-01-02 03:04:05.006' AS born_timestamp",
    )
    writer = rows.writeStream.format("spark_mq").options(checkpointLocation=f"{tmp_path}/checkpoint")
    writer.trigger(availableNow=True).start(f"{tmp_path}/to").awaitTermination()
    with open_store(tmp_path / "to") as store:
        found = [one for queue in store.queue_ids("C") for one in store.get("C", queue, 0).messages]
    assert len(found) == 5
    assert {(tuple(one.keys), one.properties["a"], one.flag, one.born_time_ms) for one in found} == {
        (("k1", "k2"), "b", 7, 1767323045006)
    }


def test_refused_query(spark: SparkSession, tmp_path: Path) -> None:
    """a refused query says its condition"""
    with pytest.raises(PySparkException, match="SPARK_MQ_UNKNOWN_OPTION"):
        spark.read.format("spark_mq").options(topik="T").load(str(tmp_path)).collect()
    writer = spark.readStream.format("spark_mq").options(topic="T").load(str(tmp_path / "none")).writeStream
    query = writer.format("noop").option("checkpointLocation", f"{tmp_path}/c").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="SPARK_MQ_"):
        query.awaitTermination()


def test_lag(spark: SparkSession, stream_store: Callable[..., Stream], tmp_path: Path) -> None:
    """`LagListener` and `queue_lags`"""
    append(spark, tmp_path / "store", 0, 50)
    reports: list[Any] = []
    listener = spark_mq.LagListener(reports.append)
    spark.streams.addListener(listener)
    try:
        stream = stream_store(tmp_path / "store", topic="T", startingOffsets="earliest")
        stream.start().processAllAvailable()
        for _ in range(200):
            if reports:
                break
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        stream.stop()
    finally:
        spark.streams.removeListener(listener)
    assert reports
    assert {lag.topic for lag in reports[-1].lags} == {"T"}


def test_archive(
    spark: SparkSession, read_store: ReadStore, stream_store: Callable[..., Stream], tmp_path: Path
) -> None:
    """the archive: Spark's tasks write the table; with the option `archive`, batch and stream read on in it"""
    store, table = StoreBuilder(tmp_path / "store", log_file_size_bytes=8 << 10), str(tmp_path / "table")
    bodies = [store.send_many("T", 1, queue_id=number % 2)[0] for number in range(120)]

    def by_spark(tasks: Sequence[ArchiveTask]) -> list[TaskResult]:
        return spark.sparkContext.parallelize(list(tasks), len(tasks)).map(write_task).collect()

    source = SourceOptions.parse({"path": str(store.root), "topic": "T"}, "batch")
    assert archive_once(source, open_or_make(Place.of(table)), by_spark).rows == {"T": 120}
    for file in sorted((store.root / "commitlog").iterdir())[:-1]:
        file.unlink()
    assert read_store(store.root, topic="T").count() < 120
    rows = read_store(store.root, topic="T", archive=table).collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(bodies)
    stream = stream_store(store.root, topic="T", archive=table, startingOffsets="earliest")
    stream.run()
    assert sorted(stream.bodies()) == sorted(bodies)


def rows_in(stream: Stream) -> int:
    return sum(map(len, stream.batches.values()))


def append(spark: SparkSession, path: Path, start: int, end: int) -> None:
    frame = spark.range(start, end).selectExpr("CAST(id AS STRING) AS body")
    frame.write.format("spark_mq").mode("append").options(topic="T").save(str(path))


def copy(spark: SparkSession, source: Path, target: Path, checkpoint: Path) -> None:
    rows: DataFrame = (
        spark.readStream.format("spark_mq").options(topic="T", startingOffsets="earliest").load(str(source))
    )
    writer = rows.select("body").writeStream.format("spark_mq").options(topic="C")
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(
        str(target)
    ).awaitTermination()


def messages(path: Path, topic: str) -> int:
    with open_store(path) as store:
        return sum(store.max_offset(topic, queue) for queue in store.queue_ids(topic))
