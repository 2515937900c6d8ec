"""From records to queue entries and index keys: what the broker made of the same records."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import index_key_hash
from storage.format.delay import parse_delay_levels
from storage.format.record import Message, encode_record
from storage.format.record_batch import Records
from storage.log.commit_log import CommitLog
from storage.log.dispatch import DispatchBatch, dispatch, index_keys, queue_entries
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.message_builder import make_message

DELAYS = (1_000, 5_000)


def dispatched(messages: list[Message]) -> DispatchBatch:
    records = [encode_record(message) for message in messages]
    starts = np.cumsum([0] + [len(record) for record in records])[:-1]
    places = np.array([message.commitlog_offset for message in messages], np.int64)
    return dispatch(places, Records(np.frombuffer(b"".join(records), np.uint8), starts), DELAYS)


@pytest.mark.parametrize("name", ["clean", "syncflush", "roll", "ipv6"])
def test_entries_are_those_that_the_broker_wrote(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    (config,) = golden_lines(fixture.golden, "config")
    log = CommitLog(LocalFileSystem(), (f"{fixture.root}/commitlog",))
    found = {}
    keys = set()
    for offsets, records in log.walk(log.minimum):
        batch = dispatch(offsets, records, parse_delay_levels(config["messageDelayLevel"]))
        for new in queue_entries(batch):
            for offset, entry in zip(new.queue_offsets.tolist(), new.entries.tolist(), strict=True):
                assert (new.topic, new.queue_id, offset) not in found
                found[new.topic, new.queue_id, offset] = entry
        taken = index_keys(batch)
        keys |= set(zip(taken.key_hashes.tolist(), taken.commitlog_offsets.tolist(), strict=True))
    assert found == {
        (line["cqTopic"], line["cqQueueId"], line["cqOffset"]): (
            *(line["cqPhysicalOffset"], line["cqSize"], line["tagsCode"]),
        )
        for line in golden_lines(fixture.golden, "message")
    }
    for line in golden_lines(fixture.golden, "query"):
        key_hash = index_key_hash(f"{line['topic']}#{line['key']}")
        assert {(key_hash, place) for place in line["physicalOffsets"]} <= keys


def test_transaction_records_are_entered_where_java_enters_them() -> None:
    kinds = {0: "none", 4: "prepared", 8: "commit", 12: "rollback"}
    batch = dispatched(
        [
            make_message(commitlog_offset=1_000 * number, sys_flag=flag, properties={"UNIQ_KEY": name})
            for number, (flag, name) in enumerate(kinds.items())
        ]
    )
    (entries,) = queue_entries(batch)
    assert entries.entries["commitlog_offset"].tolist() == [0, 2_000]
    assert index_keys(batch).commitlog_offsets.tolist() == [0, 1_000, 2_000]


def test_entries_come_by_queue_in_log_order() -> None:
    messages = [
        make_message(topic, queue_id, offset, commitlog_offset=place)
        for place, (topic, queue_id, offset) in enumerate(
            [("B", 1, 0), ("A", 0, 5), ("B", 0, 9), ("A", 0, 6), ("B", 1, 1), ("A", 2**31 - 1, 0), ("A", 0, 7)]
        )
    ]
    found = {
        (new.topic, new.queue_id): (new.queue_offsets.tolist(), new.entries["commitlog_offset"].tolist())
        for new in queue_entries(dispatched(messages))
    }
    assert found == {
        ("B", 1): ([0, 1], [0, 4]),
        ("A", 0): ([5, 6, 7], [1, 3, 6]),
        ("B", 0): ([9], [2]),
        ("A", 2**31 - 1): ([0], [5]),
    }


@pytest.mark.parametrize(
    ("level", "code"),
    [
        ("1", 1_001),
        ("2", 5_001),
        ("9", 5_001),
        ("+2", 5_001),
        ("0000000000001", 1_001),
        ("2147483647", 5_001),
        ("0", 97),
        ("+0", 97),
        ("-1", 97),
        ("+-1", 97),
        ("x", 97),
        ("", 97),
        ("99999999999", 97),
        (None, 97),
    ],
)
def test_a_delayed_message_has_its_deliver_time_for_a_tags_code(level: str | None, code: int) -> None:
    """CommitLog.checkMessageAndReturnSize, Integer.parseInt; where that throws a broker stops, and we go on."""
    properties = {"TAGS": "a"} | ({"DELAY": level} if level is not None else {})
    batch = dispatched([make_message("SCHEDULE_TOPIC_XXXX", properties=properties, store_time_ms=1)])
    assert batch.tags_codes.tolist() == [code]
    assert dispatched([make_message("TopicA", properties=properties)]).tags_codes.tolist() == [97]


def test_keys_of_a_record_are_entered_once_each_in_log_order() -> None:
    messages = [
        make_message(commitlog_offset=0, properties={"KEYS": "a b  a ", "UNIQ_KEY": "u"}),
        make_message(commitlog_offset=500),
        make_message("TopicB", commitlog_offset=700, properties={"KEYS": "a"}, store_time_ms=9),
        make_message(commitlog_offset=900, properties={"UNIQ_KEY": "ü 😀"}),
    ]
    taken = index_keys(dispatched(messages))
    expected = [("TopicA#u", 0), ("TopicA#a", 0), ("TopicA#b", 0), ("TopicB#a", 700), ("TopicA#ü 😀", 900)]
    pairs = list(zip(taken.key_hashes.tolist(), taken.commitlog_offsets.tolist(), strict=True))
    assert pairs == [(index_key_hash(key), place) for key, place in expected]
    assert taken.store_times_ms.tolist()[3] == 9
    later = index_keys(dispatched(messages), 700)
    assert later.commitlog_offsets.tolist() == [700, 900]
    assert len(index_keys(dispatched(messages), 10_000).key_hashes) == 0


def test_no_records_make_no_entries() -> None:
    batch = dispatched([])
    assert (len(batch), list(queue_entries(batch)), len(index_keys(batch).key_hashes)) == (0, [], 0)
