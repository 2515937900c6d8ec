"""State files of a master taken over: whole tables by their version, groups' offsets that never go back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from storage.errors import StateFileError
from storage.format import fastjson
from storage.tables.consumer_groups import ConsumerOffsets
from storage.tables.masters import (
    COPIES,
    copied_delays,
    copied_groups,
    copied_mappings,
    copied_offsets,
    copied_topics,
)
from storage.tables.topics import MappingItem, TopicQueueMappingTable, TopicTable
from tests.support.places import VECTORS

VERSION = {"counter": 3, "stateVersion": 0, "timestamp": 17}


def config(name: str) -> str:
    return (VECTORS / "config" / name).read_text("utf-8")


def offsets(table: dict[str, Any]) -> str:
    return json.dumps({"dataVersion": VERSION, "offsetTable": table})


def test_what_a_broker_has_written_is_taken_over_once() -> None:
    there = {name: copy for name, copy in COPIES.items() if (VECTORS / "config" / name).exists()}
    assert len(there) == 4
    for name, copy in there.items():
        text = copy(config(name), None)
        assert text is not None, name
        said, taken = fastjson.parse(config(name)), fastjson.parse(text)
        assert isinstance(said, dict)
        assert isinstance(taken, dict)
        for key in ("topicConfigTable", "subscriptionGroupTable", "offsetTable"):
            assert taken.get(key) == said.get(key)
        assert copy(config(name), text) is None


def test_topics_that_the_master_does_not_have_go_and_the_others_keep_their_attributes() -> None:
    one = {"topicName": "one", "attributes": {"+message.type": "FIFO"}}
    own = json.dumps({"dataVersion": {"counter": 1}, "topicConfigTable": {"two": {"topicName": "two"}}, "kept": 1})
    text = copied_topics(json.dumps({"dataVersion": VERSION, "topicConfigTable": {"one": one}}), own)
    assert text is not None
    assert list(TopicTable.load(text).topics) == ["one"]
    assert json.loads(text)["topicConfigTable"]["one"] == one
    assert json.loads(text)["kept"] == 1


def test_an_offset_never_goes_back() -> None:
    own = offsets({"t@g": {"0": 10, "1": 20}, "t@only": {"0": 5}})
    text = copied_offsets(offsets({"t@g": {"0": 12, "1": 7, "2": 1}, "u@g": {"0": 3}}), own)
    assert text is not None
    found = ConsumerOffsets.load(text)
    assert found.offsets == {("t", "g"): {0: 12, 1: 20, 2: 1}, ("t", "only"): {0: 5}, ("u", "g"): {0: 3}}
    assert copied_offsets(offsets({"t@g": {"0": 1}}), own) is None


def test_a_delay_level_is_where_the_master_is() -> None:
    """A greater one of our own may count deliveries of a log that was cut since."""
    text = copied_delays(offsets({"1": 4, "2": 7}), offsets({"1": 9, "3": 5}))
    assert text is not None
    assert json.loads(text)["offsetTable"] == {"1": 4, "2": 7, "3": 5}
    assert copied_delays(offsets({"1": 4}), offsets({"1": 4, "3": 5})) is None


@pytest.mark.parametrize("copy", [copied_topics, copied_groups, copied_offsets, copied_delays])
@pytest.mark.parametrize(
    "answer", ["", "[]", "{", '{"offsetTable":{"t@g":{"0":"x"}},"topicConfigTable":1,"subscriptionGroupTable":2}']
)
def test_an_answer_that_is_no_table_is_refused(copy: Any, answer: str) -> None:
    with pytest.raises(StateFileError):
        copy(answer, None)


def test_static_topics_are_taken_over_with_their_version_and_where_there_are_none_there_is_no_file() -> None:
    mapping = {"topic": "S", "bname": "b", "totalQueues": 1, "epoch": 5, "hostedQueues": {"0": [{"bname": "b"}]}}
    said = {"dataVersion": {"counter": 9}, "mappingDataVersion": VERSION, "topicConfigTable": {}}
    text = copied_mappings(json.dumps({**said, "topicQueueMappingDetailMap": {"S": mapping}}), None)
    assert text is not None
    table = TopicQueueMappingTable.load(text)
    assert (table.mappings["S"].epoch, table.version.counter) == (5, 3)
    assert table.mappings["S"].hosted_queues == {0: (MappingItem("b"),)}
    assert copied_mappings(json.dumps({**said, "topicQueueMappingDetailMap": {"S": mapping}}), text) is None
    assert copied_mappings(json.dumps(said), None) is None
    later = {**said, "mappingDataVersion": {**VERSION, "counter": 4}, "topicQueueMappingDetailMap": {}}
    gone = copied_mappings(json.dumps(later), text)
    assert gone is not None
    assert not TopicQueueMappingTable.load(gone).mappings
