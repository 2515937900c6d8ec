"""topics.json: what a broker wrote is read, changed in one place and written back otherwise as it was."""

from __future__ import annotations

import json

import pytest

from storage.errors import NameIllegalError, StateFileError
from storage.format import fastjson
from storage.format.typed_json import DataVersion
from storage.tables.topics import TopicConfig, TopicTable
from tests.support.places import VECTORS

TEXT = (VECTORS / "config" / "topics.json").read_text(encoding="utf-8")
NOW_MS = 1_800_000_000_000


def test_a_brokers_topics() -> None:
    table = TopicTable.load(TEXT)
    assert table.version == DataVersion(counter=15, timestamp_ms=1795220417316)
    assert table.topics["TopicBatch"] == TopicConfig("TopicBatch", 4, 4)
    assert table.topics["SCHEDULE_TOPIC_XXXX"] == TopicConfig("SCHEDULE_TOPIC_XXXX", 18, 18)
    assert table.topics["TBW102"] == TopicConfig("TBW102", 4, 4, perm=7)
    assert table.topics["rmq_sys_SYNC_BROKER_MEMBER_broker-lab"].perm == 1
    assert "MQ_INST_lab_001%TopicNs" in table.topics
    assert any(len(topic) > 127 for topic in table.topics)


def test_an_unchanged_table_is_written_byte_for_byte_as_the_broker_wrote_it() -> None:
    assert TopicTable.load(TEXT).to_text() == TEXT


def test_a_new_topic_is_the_only_difference() -> None:
    """The entry has the fields of a broker's own entry in its order."""
    table = TopicTable.load(TEXT).ensure_topic("TopicNew", 6, now_ms=NOW_MS)
    before, after = json.loads(TEXT), json.loads(table.to_text())
    assert after["dataVersion"] == {"counter": 16, "stateVersion": 0, "timestamp": NOW_MS}
    entry = after["topicConfigTable"].pop("TopicNew")
    assert after["topicConfigTable"] == before["topicConfigTable"]
    assert entry == {
        **before["topicConfigTable"]["TopicBatch"],
        "topicName": "TopicNew",
        "readQueueNums": 6,
        "writeQueueNums": 6,
    }
    assert list(entry) == list(before["topicConfigTable"]["TopicBatch"])


def test_what_is_written_is_what_is_in_the_table() -> None:
    table = TopicTable.load(TEXT).ensure_topic("TopicNew", 6, now_ms=NOW_MS)
    assert TopicTable.load(table.to_text()) == table


def test_a_topic_that_is_there_already_changes_nothing() -> None:
    table = TopicTable.load(TEXT)
    assert table.ensure_topic("TopicBatch", 4, now_ms=NOW_MS) is table
    assert table.ensure_topic("TopicBatch", 1, now_ms=NOW_MS) is table


def test_a_topic_with_too_few_queues_gets_more_and_keeps_the_rest() -> None:
    text = """{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5,"later":true},"future":[1],
        "topicConfigTable":{"T":{"topicName":"T","readQueueNums":2,"writeQueueNums":8,"perm":4,"order":true,
        "attributes":{"message.type":"FIFO"},"future":{"a":null}}}}"""
    table = TopicTable.load(text).ensure_topic("T", 4, now_ms=NOW_MS)
    assert table.topics["T"] == TopicConfig("T", 4, 8, perm=4, order=True, attributes={"message.type": "FIFO"})
    written = json.loads(table.to_text())
    assert written["future"] == [1]
    assert written["topicConfigTable"]["T"]["future"] == {"a": None}
    assert written["topicConfigTable"]["T"]["readQueueNums"] == 4


def test_a_minimal_entry_has_javas_defaults() -> None:
    table = TopicTable.load('{"topicConfigTable":{"T":{}, "U":{perm:"4", readQueueNums:null}}}')
    assert table.version == DataVersion(0, 0, 0)
    assert table.topics == {"T": TopicConfig("T", 16, 16, 6), "U": TopicConfig("U", 16, 16, 4)}


def test_a_table_can_begin_empty() -> None:
    table = TopicTable().ensure_topic("T", 4, now_ms=NOW_MS)
    assert list(json.loads(table.to_text())) == ["dataVersion", "topicConfigTable"]
    assert TopicTable.load(table.to_text()) == table
    assert TopicTable().topics == {}


def test_a_topic_can_be_taken_out() -> None:
    table = TopicTable.load(TEXT)
    without = table.without_topic("TopicBatch", now_ms=NOW_MS)
    assert set(table.topics) - set(without.topics) == {"TopicBatch"}
    assert without.version.counter == 16
    assert TopicTable.load(without.to_text()) == without
    assert table.without_topic("NoSuchTopic", now_ms=NOW_MS) is table


@pytest.mark.parametrize(
    "topic",
    [
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "rmq_sys_wheel_timer",
        "LabCluster",
        "broker-lab",
    ],
)
def test_topics_that_a_broker_makes_itself_are_refused(topic: str) -> None:
    with pytest.raises(NameIllegalError, match="system topic"):
        TopicTable.load(TEXT).ensure_topic(
            topic, 32, now_ms=NOW_MS, broker_name="broker-lab", cluster_name="LabCluster"
        )


@pytest.mark.parametrize("topic", ["TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_spark_mq_ledger", "%RETRY%GroupNew"])
def test_topics_that_are_made_on_demand_are_not(topic: str) -> None:
    assert topic in TopicTable().ensure_topic(topic, 1, now_ms=NOW_MS).topics


def test_illegal_names_are_refused() -> None:
    with pytest.raises(NameIllegalError):
        TopicTable().ensure_topic("../T", 1, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "an object is expected"),
        ('{"topicConfigTable":[]}', "topicConfigTable"),
        ('{"topicConfigTable":{"T":7}}', "T: it must be an object"),
        ('{"topicConfigTable":{"T":{"perm":"rw"}}}', "perm: it must be a number of 32 bits"),
        ('{"topicConfigTable":{"T":{"order":"perhaps"}}}', r"T\.order: it must be true or false"),
        ('{"topicConfigTable":{"T":{"attributes":[]}}}', r"T\.attributes: it must be an object"),
        ('{"dataVersion":{"counter":1.5}}', "counter: it must be a number of 64 bits"),
        ('{"dataVersion":7}', "dataVersion"),
        (TEXT[:-1], "line "),
    ],
)
def test_a_file_of_another_shape_is_an_error_that_names_file_and_field(text: str, words: str) -> None:
    with pytest.raises(StateFileError, match=words) as caught:
        TopicTable.load(text, "store/config/topics.json")
    assert caught.value.file == "store/config/topics.json"


def test_the_version_is_raised_as_java_raises_it() -> None:
    assert DataVersion(3, 5, state_version=7).raised(NOW_MS) == DataVersion(4, NOW_MS, 0)
    assert DataVersion.from_document(fastjson.parse(TEXT)).to_document() == json.loads(TEXT)["dataVersion"]
