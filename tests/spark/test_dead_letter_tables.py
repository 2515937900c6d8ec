"""Retry, dead-letter and schedule topics as tables: whose message each is, as the broker's own classes tell it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from spark_mq.conditions import OptionError
from spark_mq.replay import DeadLetter
from spark_mq.replay_audit import select_letters
from spark_mq.source.options import SourceOptions
from spark_mq.source.rows import COLUMN_NAMES
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.store_builder import StoreBuilder

from .in_process import read_batch

pytestmark = pytest.mark.slow

PristineStore = Callable[[str], Fixture]
PLACES = "topic,queue_id,queue_offset,origin_topic,origin_msg_id,real_topic,real_queue_id,reconsume_times"


def golden_places(fixture: Fixture) -> list[tuple[Any, ...]]:
    """PLACES of every message, from the properties that Java reads in its record."""
    rows = []
    for line in golden_lines(fixture.golden, "message"):
        properties = line["properties"]
        rows.append(
            (
                line["topic"],
                line["cqQueueId"],
                line["cqOffset"],
                properties.get("RETRY_TOPIC", line["topic"]),
                properties.get("ORIGIN_MESSAGE_ID", line["msgId"]),
                properties.get("REAL_TOPIC"),
                int(properties["REAL_QID"]) if "REAL_QID" in properties else None,
                line["reconsumeTimes"],
            )
        )
    return sorted(rows, key=lambda row: row[:3])


@pytest.mark.parametrize("name", ["clean", "ipv6", "preblank"])
def test_every_message_tells_where_it_came_from_and_where_it_goes(name: str, pristine_store: PristineStore) -> None:
    store = pristine_store(name)
    options = {"subscribePattern": ".*", "includeSystemTopics": "true", "columns": PLACES}
    rows = [tuple(row.values()) for row in read_batch(store.root, **options)]
    assert sorted(rows, key=lambda row: row[:3]) == golden_places(store)


@pytest.mark.spark
def test_dead_letters_join_what_was_produced(spark: SparkSession, pristine_store: PristineStore) -> None:
    """The fixture's consumer gave up on the messages whose property `fail` is 99, after two retries."""
    reader = spark.read.format("spark_mq").option("path", str(pristine_store("clean").root))
    dead = reader.option("topic", "%DLQ%GroupR").option("columns", "*,origin_topic,origin_msg_id").load()
    produced = reader.option("topic", "TopicRetry").option("columns", "topic,msg_id,properties").load()
    bad = produced.where("properties['fail'] = '99'").select("topic", "msg_id")
    origins = dead.where("reconsume_times = 3").selectExpr("origin_topic AS topic", "origin_msg_id AS msg_id")
    assert_df_equality(origins, bad, ignore_row_order=True, ignore_nullable=True)
    assert bad.count() > 0
    assert dead.columns == [*COLUMN_NAMES, "origin_topic", "origin_msg_id"]


def test_a_queue_that_is_no_number_is_null(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    for queue_id in ("3", "x", "-1", "9999999999"):
        store.send("Topic", "body", properties={"REAL_QID": queue_id})
    rows = read_batch(store.root, topic="Topic", columns="real_queue_id,real_topic,origin_topic")
    assert [row["real_queue_id"] for row in rows] == [3, None, None, None]
    assert {(row["real_topic"], row["origin_topic"]) for row in rows} == {(None, "Topic")}


def columns(text: str) -> tuple[str, ...]:
    return SourceOptions.parse({"path": "/store", "topic": "T", "columns": text}).columns


def test_these_columns_are_there_where_they_are_named() -> None:
    assert SourceOptions.parse({"path": "/store", "topic": "T"}).columns == columns("*") == COLUMN_NAMES
    assert columns("origin_topic, body") == ("origin_topic", "body")
    assert columns("*, real_topic") == (*COLUMN_NAMES, "real_topic")
    with pytest.raises(OptionError, match="a column is named twice"):
        columns("*,body")
    with pytest.raises(OptionError, match="no column 'origin_topics'; did you mean origin_topic"):
        columns("origin_topics")


@pytest.mark.spark
def test_dead_letters_are_chosen_by_time_and_by_a_predicate(spark: SparkSession, pristine_store: PristineStore) -> None:
    store = pristine_store("clean")
    golden = [line for line in golden_lines(store.golden, "message") if line["topic"] == "%DLQ%GroupR"]
    times = sorted(line["storeTimestamp"] for line in golden)
    path = str(store.root)

    def offsets(**rules: Any) -> list[int]:
        return sorted(row.queue_offset for row in select_letters(spark, {"path": path}, "GroupR", **rules).collect())

    assert offsets() == [0, 1, 2, 3]
    assert offsets(since_ms=times[1], until_ms=times[3]) == [
        line["cqOffset"] for line in golden if times[1] <= line["storeTimestamp"] < times[3]
    ]
    tagged = [line["cqOffset"] for line in golden if line["properties"]["TAGS"] == "TagA"]
    assert offsets(where="tags = 'TagA' AND origin_topic = 'TopicRetry'") == tagged
    (row, *_) = select_letters(spark, {"path": path}, "GroupR", where="queue_offset = 2").collect()
    assert DeadLetter(*row) == DeadLetter(0, 2, golden[2]["msgId"], golden[2]["properties"]["UNIQ_KEY"], "TopicRetry")
    for predicate in ("no predicate at all", "no_such_column = 1"):
        with pytest.raises(OptionError, match="where"):
            select_letters(spark, {"path": path}, "GroupR", where=predicate)
