"""Which stores, topics, queues and messages a query reads; what is refused, and how it says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_mq
from spark_mq.conditions import ConvertedError, OffsetJsonError, OptionError, SparkMqError
from storage import open_store
from storage.settings.load import ConfigurationWarning
from storage.tables.topics import TopicConfig, TopicTable
from tests.support.fixture_stores import Fixture
from tests.support.store_builder import StoreBuilder

from .conftest import ReadStore
from .golden_rows import golden_rows
from .in_process import bodies, open_stream, read_batch

pytestmark = pytest.mark.slow

PristineStore = Callable[[str], Fixture]


# Topics and queues


def test_a_pattern_passes_over_topics_named_after_the_cluster_that_topics_tell(tmp_path: Path) -> None:
    builder = StoreBuilder(tmp_path / "broker-a")
    for topic in ("Topic", "Told", "Told_REPLY_TOPIC"):
        builder.send(topic, "1")
    assert set(topics_read_at(builder.root)) == {"Topic", "Told", "Told_REPLY_TOPIC"}
    (builder.root / "config").mkdir()
    table = {"Told": {"topicName": "Told", "perm": 7}, "Told_REPLY_TOPIC": {"topicName": "Told_REPLY_TOPIC"}}
    (builder.root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}), "utf-8")
    assert set(topics_read_at(builder.root)) == {"Topic"}


def topics_read_at(root: Path) -> list[str]:
    return [row["topic"] for row in read_batch(root, subscribePattern=".*", columns="topic")]


def test_a_topic_that_is_not_there_is_refused_with_those_that_are(pristine_store: PristineStore) -> None:
    store = pristine_store("roll")
    for read in (read_batch, lambda *args, **options: open_stream(*args, **options).initialOffset()):
        with pytest.raises(
            OptionError, match=r"\[SPARK_MQ_INVALID_OPTION\] option topic: TopicOn: .*[Tt]here are TopicOne"
        ):
            read(store.root, topic="TopicOn")
        with pytest.raises(OptionError, match=r"option assign: TopicOne/broker-lab/9"):
            read(store.root, assign='{"TopicOne": [0, 9]}')


# Tags


@pytest.mark.parametrize("name", ["clean", "ext"])
def test_tags_choose_messages(name: str, pristine_store: PristineStore) -> None:
    store = pristine_store(name)
    golden = golden_rows(store, "TopicA", "TopicBatch")
    for text, tags in (("TagA", {"TagA"}), (" TagA|| TagC ", {"TagA", "TagC"}), ("NoSuchTag", set()), ("*", None)):
        rows = read_batch(store.root, subscribe="TopicA,TopicBatch", tags=text, columns="commitlog_offset")
        expected = {row["commitlog_offset"] for row in golden if tags is None or row["tags"] in tags}
        assert {row["commitlog_offset"] for row in rows} == expected, text
        assert len(rows) == len(expected)
        assert expected or text == "NoSuchTag"


def test_tags_of_equal_hash_are_told_apart_by_their_text(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    for tags in ("Aa", "BB", None, "Aa", "C"):  # "Aa".hashCode() == "BB".hashCode()
        store.send("Topic", str(tags), tags=tags)
    assert bodies(read_batch(store.root, topic="Topic", tags="BB")) == ["BB"]
    assert bodies(read_batch(store.root, topic="Topic", tags="Aa")) == ["Aa", "Aa"]


def test_the_hash_in_the_queue_is_looked_at_before_the_text(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    store.send("Topic", "a", tags="TagA")
    entries = next((store.root / "consumequeue/Topic/0").iterdir())
    with entries.open("r+b") as file:
        file.seek(12)
        file.write((12345).to_bytes(8, "big"))  # an entry that says: another tag
    assert read_batch(store.root, topic="Topic", tags="TagA") == []
    assert len(read_batch(store.root, topic="Topic")) == 1


def test_tags_of_scheduled_messages_are_compared_by_text_alone(pristine_store: PristineStore) -> None:
    """Their entries hold the time of delivery where others hold the hash."""
    store = pristine_store("clean")
    expected = [row for row in golden_rows(store, "SCHEDULE_TOPIC_XXXX") if row["tags"] == "TagA"]
    assert expected
    assert len(read_batch(store.root, topic="SCHEDULE_TOPIC_XXXX", tags="TagA")) == len(expected)


# Stores and brokers


def test_a_directory_of_stores_is_a_cluster(tmp_path: Path) -> None:
    for name in ("broker-b", "broker-a"):
        StoreBuilder(tmp_path / name).send("Topic", name)
    StoreBuilder(tmp_path / "home-c" / "store").send("Topic", "home-c")  # a broker's home
    rows = read_batch(tmp_path, topic="Topic")
    assert [(row["broker_name"], row["body"].decode()) for row in rows] == [
        ("broker-a", "broker-a"),
        ("broker-b", "broker-b"),
        ("home-c", "home-c"),
    ]
    only = read_batch(tmp_path, assign='{"Topic": {"broker-b": [0]}}')
    assert bodies(only) == ["broker-b"]
    with pytest.raises(OffsetJsonError, match="name the broker"):
        read_batch(tmp_path, assign='{"Topic": [0]}')
    (tmp_path / "logs").mkdir()
    with pytest.raises(OptionError, match="beside stores it holds logs; name the store that is meant"):
        read_batch(tmp_path, topic="Topic")


def test_two_stores_of_one_broker_are_refused(tmp_path: Path) -> None:
    for place in ("x", "y"):
        StoreBuilder(tmp_path / place / "broker-a").send("Topic", "1")
    with pytest.raises(OptionError, match="two stores are of one broker, broker-a"):
        read_batch([tmp_path / "x", tmp_path / "y"], topic="Topic")


def test_a_brokers_name_comes_from_the_nearest_that_tells_it(tmp_path: Path) -> None:
    def name_read(**options: str) -> str:
        return str(read_batch(home / "store", topic="Topic", **options)[0]["broker_name"])

    home = tmp_path / "home-name"
    StoreBuilder(home / "store").send("Topic", "1")
    assert name_read() == "home-name"
    (home / "store/config").mkdir()
    member = "rmq_sys_SYNC_BROKER_MEMBER_member-name"
    (home / "store/config/topics.json").write_text(json.dumps({"topicConfigTable": {member: {"topicName": member}}}))
    assert name_read() == "member-name"
    (home / "broker.conf").write_text("brokerName=conf-name\n")
    assert name_read() == "conf-name"
    other = tmp_path / "other.conf"
    other.write_text("brokerName=other-name\n")
    assert name_read(conf=str(other)) == "other-name"
    assert name_read(conf=str(other), brokerName="given-name") == "given-name"


def test_one_broker_name_cannot_name_two_stores(tmp_path: Path) -> None:
    for name in ("broker-a", "broker-b"):
        StoreBuilder(tmp_path / name).send("Topic", name)
    with pytest.raises(OptionError, match="option brokerName: names one store, but there are 2"):
        read_batch(tmp_path, topic="Topic", brokerName="me")


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    store.send("Topic", "1")
    assert bodies(read_batch(f"file://{store.root}", topic="Topic")) == ["1"]


# Refusals


def refused(read: Callable[[], object]) -> str:
    with pytest.raises(SparkMqError) as caught:
        read()
    return str(caught.value)


def test_a_compacted_topic_is_read_with_one_warning(tmp_path: Path) -> None:
    root = tmp_path / "broker-a"
    builder = StoreBuilder(root)
    for body in "ab":
        builder.send("Prices", body)
        builder.send("Others", body)
    compacted = TopicConfig("Prices", attributes={"cleanup.policy": "COMPACTION"})
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(TopicTable().with_topic(compacted, now_ms=1).to_text(), "utf-8")
    with pytest.warns(ConfigurationWarning, match=r"topic Prices .*COMPACTION") as said:
        rows = read_batch(root, subscribe="Prices,Others", minPartitions="4")
    assert sorted(bodies(rows)) == ["a", "a", "b", "b"]
    assert len(said) == 1


def test_a_queue_of_a_lite_topic_says_why_it_gives_no_rows(tmp_path: Path) -> None:
    root = tmp_path / "broker-a"
    StoreBuilder(root).send("Orders", "a")
    queues = root / "consumequeue"
    shutil.copytree(next((queues / "Orders").iterdir()), queues / "%LMQ%$Orders$child" / "0")
    with pytest.warns(ConfigurationWarning, match=r"%LMQ%.*name records of other topics, so it gives no rows") as said:
        assert len(read_batch(root, topic="%LMQ%$Orders$child")) == 0
    assert len(said) == 1


def test_a_table_of_topics_that_cannot_be_read_is_a_warning_where_no_row_needs_it(tmp_path: Path) -> None:
    root = tmp_path / "store"
    StoreBuilder(root).send("Prices", "a")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text("[", "utf-8")
    with pytest.warns(
        ConfigurationWarning, match=r"which topics of broker-a are compacted is not known: .*topics\.json"
    ):
        assert bodies(read_batch(root, topic="Prices", brokerName="broker-a")) == ["a"]


def test_a_path_without_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(ConvertedError, match=rf"\[SPARK_MQ_STORE_NOT_FOUND\].*{path}"):
            read_batch(path, topic="Topic")


# Through Spark


@pytest.mark.spark
def test_spark_shows_a_refusal_with_its_condition(
    spark: SparkSession, read_store: ReadStore, pristine_store: PristineStore, tmp_path: Path
) -> None:
    root = pristine_store("roll").root
    with pytest.raises(Exception, match=r"\[SPARK_MQ_UNKNOWN_OPTION\] there is no option topics; did you mean topic"):
        read_store(root, topics="TopicOne").collect()
    with pytest.raises(Exception, match=r"\[SPARK_MQ_UNKNOWN_OPTION\] there is no option topics; did you mean topic"):
        spark.readStream.format("spark_mq").option("topics", "TopicOne").load(str(root))
    with pytest.raises(Exception, match=r"\[SPARK_MQ_STORE_NOT_FOUND\]"):
        read_store(tmp_path, topic="TopicOne").collect()


@pytest.mark.spark
def test_load_takes_several_stores(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("broker-a", "broker-b"):
        StoreBuilder(tmp_path / name).send("Topic", name)
    paths = [str(tmp_path / "broker-b"), str(tmp_path / "broker-a")]
    rows = spark.read.format("spark_mq").option("topic", "Topic").load(paths).select("broker_name").collect()
    assert sorted(row.broker_name for row in rows) == ["broker-a", "broker-b"]


@pytest.mark.spark
def test_a_temporary_view_keeps_its_options(spark: SparkSession, pristine_store: PristineStore) -> None:
    root = pristine_store("roll").root
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW messages USING spark_mq OPTIONS (path '{root}', topic 'TopicTwo', queueId '0')"
    )
    try:
        expected = [row for row in golden_rows(pristine_store("roll"), "TopicTwo") if row["queue_id"] == 0]
        found = spark.sql("SELECT count(*) AS n, max(queue_offset) AS last FROM messages").collect()[0]
        assert (found.n, found.last) == (len(expected), expected[-1]["queue_offset"])
    finally:
        spark.catalog.dropTempView("messages")


@pytest.mark.spark
def test_what_is_inserted_into_a_view_goes_to_the_views_topic(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    with open_store(root, read_only=False, create=True) as store:
        store.put("T", b"one")
    options = f"path '{root}', topic 'T'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW reading USING spark_mq OPTIONS ({options})")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW reads USING spark_mq OPTIONS ({options}, startingOffsets 'earliest')")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW writing (body BINARY) USING spark_mq OPTIONS ({options})")
    try:
        spark.sql("INSERT INTO reading SELECT * FROM reading")
        with pytest.raises(PySparkException, match="option startingOffsets: it is for reading"):
            spark.sql("INSERT INTO reads SELECT * FROM reading")
        spark.sql("INSERT INTO writing SELECT body FROM reading")
    finally:
        for view in ("reading", "reads", "writing"):
            spark.catalog.dropTempView(view)
    with open_store(root) as store:
        assert sum(store.max_offset("T", queue_id) for queue_id in store.queue_ids("T")) == 3, "a view is planned once"


@pytest.mark.spark
def test_the_source_can_be_registered_explicitly(spark: SparkSession, read_store: ReadStore, tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    store.send("Topic", "1")
    spark_mq.register(spark)
    assert read_store(store.root, topic="Topic").count() == 1
