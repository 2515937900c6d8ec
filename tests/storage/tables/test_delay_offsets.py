"""delayOffset.json: a broker's table read, changed and written. Java: ScheduleMessageService, DelayOffsetSerializeWrapper."""

from __future__ import annotations

import json

import pytest

from storage.errors import StateFileError
from storage.format.typed_json import DataVersion
from storage.tables.masters import DelayOffsets
from tests.support.places import VECTORS

TEXT = (VECTORS / "config" / "delayOffset.json").read_text(encoding="utf-8")
NOW_MS = 1_800_000_000_000


def test_a_brokers_offsets() -> None:
    table = DelayOffsets.load(TEXT)
    assert table.version == DataVersion(counter=3, timestamp_ms=1_795_220_434_981)
    assert table.offsets == {1: 5, 2: 5, 3: 21, 4: 9, 18: 0}
    assert table.get(18) == 0
    assert table.get(5) is None


def test_some_offsets_are_set_in_one_change_and_the_others_stay() -> None:
    before = DelayOffsets.load(TEXT)
    after = before.with_offsets({18: 2, 6: 1}, now_ms=NOW_MS)
    assert after.offsets == {1: 5, 2: 5, 3: 21, 4: 9, 18: 2, 6: 1}
    assert after.version == DataVersion(4, NOW_MS)
    assert before.get(18) == 0
    assert DelayOffsets.load(after.to_text()) == after


def test_setting_what_is_there_already_changes_nothing() -> None:
    before = DelayOffsets.load(TEXT)
    assert before.with_offsets({1: 5, 18: 0}, now_ms=NOW_MS) is before


def test_fields_that_are_not_known_survive_a_change() -> None:
    table = DelayOffsets.load('{"offsetTable":{1:5},"whatever":{"a":[1]}}').with_offsets({1: 6}, now_ms=NOW_MS)
    assert json.loads(table.to_text())["whatever"] == {"a": [1]}


def test_an_empty_table_is_written_as_a_broker_reads_it() -> None:
    written = json.loads(DelayOffsets().with_offsets({2: 7}, now_ms=NOW_MS).to_text())
    assert written == {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": NOW_MS},
        "offsetTable": {"2": 7},
    }


@pytest.mark.parametrize("text", ["{}", '{"offsetTable":null}', '{"offsetTable":{3:null}}'])
def test_what_names_no_level_names_none(text: str) -> None:
    assert DelayOffsets.load(text).offsets == {}


@pytest.mark.parametrize(
    "text",
    [
        *("[]", '{"offsetTable":[]}', '{"offsetTable":{"x":1}}', '{"offsetTable":{1:"x"}}', "{"),
        *('{"offsetTable":{' + "9" * 5_000 + ":1}}", '{"offsetTable":{1:9223372036854775808}}', "[" * 100_000),
    ],
)
def test_what_is_no_table_is_refused_by_name(text: str) -> None:
    with pytest.raises(StateFileError, match=r"delayOffset\.json"):
        DelayOffsets.load(text, "delayOffset.json")
