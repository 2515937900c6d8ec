"""consumerOffset.json of an Apache broker: bare integer keys in, quoted keys out."""

from __future__ import annotations

import json

import pytest

from storage.errors import NameIllegalError, StateFileError
from storage.format.typed_json import DataVersion
from storage.tables.consumer_groups import ConsumerOffsets
from tests.support.places import VECTORS

TEXT = (VECTORS / "config" / "consumerOffset.json").read_text(encoding="utf-8")
NOW_MS = 1_800_000_000_000


def test_a_brokers_offsets() -> None:
    table = ConsumerOffsets.load(TEXT)
    assert table.version == DataVersion(counter=0, timestamp_ms=1795220385319)
    assert table.offsets["TopicA", "GroupA"] == {0: 150, 1: 150, 2: 150, 3: 150}
    assert table.get("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS", 0) == 41
    assert table.get("%RETRY%GroupR", "GroupR", 0) == 12
    assert table.get("TopicA", "GroupA", 4) is None
    assert table.get("TopicA", "GroupR", 0) is None


def test_groups_and_their_topics() -> None:
    """As the broker's own groupTopicMap in the same file says."""
    table = ConsumerOffsets.load(TEXT)
    derived = json.loads(TEXT[TEXT.index("{", TEXT.index("groupTopicMap")) : TEXT.index(',\n\t"offsetTable"')])
    assert table.groups() == sorted(derived)
    for group, topics in derived.items():
        assert table.topics_of(group) == sorted(topics)
    assert table.topics_of("NoSuchGroup") == []


def test_offsets_are_set_in_one_change_and_the_others_stay() -> None:
    before = ConsumerOffsets.load(TEXT)
    after = before.with_offsets("GroupA", {("TopicA", 1): 149, ("TopicA", 12): 7, ("TopicNew", 0): 0}, now_ms=NOW_MS)
    assert after.version == DataVersion(1, NOW_MS)
    assert after.offsets["TopicA", "GroupA"] == {0: 150, 1: 149, 2: 150, 3: 150, 12: 7}
    assert after.get("TopicNew", "GroupA", 0) == 0
    changed = {("TopicA", "GroupA"), ("TopicNew", "GroupA")}
    assert {key: queues for key, queues in after.offsets.items() if key not in changed} == {
        key: queues for key, queues in before.offsets.items() if key not in changed
    }
    assert before.get("TopicA", "GroupA", 1) == 150


def test_what_is_written_is_plain_json_and_is_what_is_in_the_table() -> None:
    table = ConsumerOffsets.load(TEXT).with_offsets("GroupA", {("TopicA", 10): 3, ("TopicA", 9): 2}, now_ms=NOW_MS)
    written = json.loads(table.to_text())
    assert list(written["offsetTable"]["TopicA@GroupA"]) == ["0", "1", "2", "3", "9", "10"]
    assert written["dataVersion"] == {"counter": 1, "stateVersion": 0, "timestamp": NOW_MS}
    assert "groupTopicMap" not in written
    assert ConsumerOffsets.load(table.to_text()) == table


def test_setting_what_is_there_already_changes_nothing() -> None:
    table = ConsumerOffsets.load(TEXT)
    assert table.with_offsets("GroupA", {("TopicA", 0): 150}, now_ms=NOW_MS) is table
    assert table.with_offsets("GroupA", {}, now_ms=NOW_MS) is table


def test_keys_that_are_not_topic_and_group_are_passed_over_and_kept() -> None:
    text = '{"offsetTable":{"lonely":{0:1},"a@b@c":{0:2},"T@G":{0:3,-1:4,2:null}},"future":{"x":1}}'
    table = ConsumerOffsets.load(text)
    assert table.offsets == {("T", "G"): {0: 3, -1: 4}}
    written = json.loads(table.with_offsets("H", {("T", 0): 1}, now_ms=NOW_MS).to_text())
    assert written["offsetTable"] == {
        "lonely": {"0": 1},
        "a@b@c": {"0": 2},
        "T@G": {"0": 3, "-1": 4, "2": None},
        "T@H": {"0": 1},
    }
    assert written["future"] == {"x": 1}


def test_a_table_can_begin_empty() -> None:
    table = ConsumerOffsets().with_offsets("G", {("T", 0): 5}, now_ms=NOW_MS)
    assert table.get("T", "G", 0) == 5
    assert ConsumerOffsets.load(table.to_text()) == table
    assert ConsumerOffsets().groups() == []


@pytest.mark.parametrize(("group", "topic"), [("a@b", "T"), ("G", "a@b"), ("G", "a/b"), ("", "T"), ("G", "")])
def test_names_that_would_break_the_key_are_refused(group: str, topic: str) -> None:
    with pytest.raises(NameIllegalError):
        ConsumerOffsets().with_offsets(group, {(topic, 0): 1}, now_ms=NOW_MS)


@pytest.mark.parametrize(("queue_id", "offset"), [(-1, 0), (0, -1)])
def test_negative_numbers_are_refused(queue_id: int, offset: int) -> None:
    with pytest.raises(ValueError, match="negative"):
        ConsumerOffsets().with_offsets("G", {("T", queue_id): offset}, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"offsetTable":{"T@G":[1]}}', "T@G: an object"),
        ('{"offsetTable":{"T@G":{"x":1}}}', "T@G: a queue id"),
        ('{"offsetTable":{"T@G":{0:true}}}', "0: a whole number"),
        ('{"offsetTable":{"T@G":{0:9223372036854775808}}}', "0: a whole number"),
        ('{"offsetTable":{"T@G":{' + "9" * 5_000 + ":1}}}", "T@G: a queue id"),
        ('{"offsetTable":{"T@G":{0:1}', "line 1, column 28"),
    ],
)
def test_a_file_of_another_shape_is_an_error(text: str, words: str) -> None:
    with pytest.raises(StateFileError, match=words):
        ConsumerOffsets.load(text)
