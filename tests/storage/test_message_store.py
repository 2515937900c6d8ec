"""The facade: get with every status, filters, key look-up, look-up by time, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import GetStatus, StoreConfig, open_store
from storage.errors import (
    ColumnIllegalError,
    CorruptRecordError,
    IndexGeometryUnknownError,
    OffsetOutOfRangeError,
    StoreNotFoundError,
    StoreRefusedError,
    TopicNotFoundError,
)
from storage.format.arrays import string_hash
from storage.settings.load import ConfigurationWarning
from storage.settings.nouns import CommitLogConfig, IndexConfig, StoreModeConfig
from storage.tables.topics import TopicConfig
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.message_builder import FIRST_STORE_TIME_MS, StoreBuilder


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path / "store")


def test_every_status(store: StoreBuilder) -> None:
    store.queue_ends["TopicA", 0] = 5
    first = store.put(properties={"TAGS": "TagA"})
    store.put(properties={"TAGS": "TagA"})
    store.put("TopicB")
    store.write_entry("TopicEmpty", 0, 0, 0, 0)
    with store.open() as opened:
        answers = {
            ("TopicNone", 0, 0): (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0),
            ("TopicA", 9, 0): (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0),
            ("TopicEmpty", 0, 0): (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0),
            ("TopicA", 0, -1): (GetStatus.OFFSET_TOO_SMALL, 5, 5, 7),
            ("TopicA", 0, 4): (GetStatus.OFFSET_TOO_SMALL, 5, 5, 7),
            ("TopicA", 0, 5): (GetStatus.FOUND, 7, 5, 7),
            ("TopicA", 0, 6): (GetStatus.FOUND, 7, 5, 7),
            ("TopicA", 0, 7): (GetStatus.OFFSET_OVERFLOW_ONE, 7, 5, 7),
            ("TopicA", 0, 8): (GetStatus.OFFSET_OVERFLOW_BADLY, 7, 5, 7),
        }
        for asked, expected in answers.items():
            got = opened.get(*asked)
            assert (got.status, got.next_begin_offset, got.min_offset, got.max_offset) == expected, asked
        assert opened.get("TopicA", 0, 5).messages[0] == first
        got = opened.get("TopicA", 0, 5, tags="TagB")
        assert (got.status, got.next_begin_offset, got.messages) == (GetStatus.NO_MATCHED_MESSAGE, 7, ())


def test_count_and_bytes_limit_a_get(store: StoreBuilder) -> None:
    messages = [store.put(body=bytes(100)) for _ in range(15)]
    size = messages[0].size_bytes
    with store.open() as opened:
        for count in (1, 2, 15):
            got = opened.get("TopicA", 0, 0, count)
            assert (got.messages, got.next_begin_offset) == (tuple(messages[:count]), count)
            assert got.size_bytes == count * size
        for limit, expected in [(0, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (10**9, 15)]:
            got = opened.get("TopicA", 0, 0, 100, max_bytes=limit)
            assert (len(got.messages), got.next_begin_offset) == (expected, expected)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (None, [0, 1, 2, 3, 4]),
        ("*", [0, 1, 2, 3, 4]),
        ("", [0, 1, 2, 3, 4]),
        ("TagA", [0, 3]),
        ("TagA || TagB", [0, 1, 3]),
        ("  TagB||none ", [1]),
        ("Aa", [2]),
        ("BB", []),
        ("none", []),
    ],
)
def test_tags_are_compared_by_hash_and_by_text(store: StoreBuilder, tags: str | None, expected: list[int]) -> None:
    for tag in ("TagA", "TagB", "Aa", "TagA", None):
        message = store.put(entered=False, properties={"TAGS": tag} if tag else {})
        store.enter(message, string_hash(tag or ""))
    with store.open() as opened:
        got = opened.get("TopicA", 0, 0, tags=tags)
        assert [message.queue_offset for message in got.messages] == expected
        assert got.next_begin_offset == 5


def test_a_filter_looks_at_800_entries_as_java_does(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "store", log_file_size=1 << 20, queue_file_size=20 * 2_000)
    for number in range(900):
        message = store.put(entered=False, properties={"TAGS": "TagB" if number == 850 else "TagA"})
        store.enter(message, string_hash(message.raw_properties.decode()[5:9]))
    with open_store(store.root, config=StoreConfig()) as opened:
        got = opened.get("TopicA", 0, 0, tags="TagB")
        assert (got.status, got.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)
        got = opened.get("TopicA", 0, 800, tags="TagB")
        assert [message.queue_offset for message in got.messages] == [850]


@given(data=st.data())
def test_the_time_of_a_message_is_found(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = StoreBuilder(tmp_path_factory.mktemp("times") / "store")
    store.queue_ends["TopicA", 0] = first = data.draw(st.integers(0, 25))
    times = sorted(data.draw(st.lists(st.integers(100, 130), min_size=1, max_size=30)))
    for time in times:
        store.put(store_time_ms=time)
    asked = data.draw(st.integers(95, 135))
    with store.open() as opened:
        lower = next((first + number for number, time in enumerate(times) if time >= asked), first + len(times))
        assert opened.offset_by_time("TopicA", 0, asked) == lower
        upper = max((first + number for number, time in enumerate(times) if time <= asked), default=first)
        assert opened.offset_by_time("TopicA", 0, asked, upper=True) == upper


def test_a_topic_that_the_store_does_not_know_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", read_only=False, create=True) as store:
        store.put("Orders", b"x", keys="k")
        store.save_topic(TopicConfig("Empty", 4, 4))
        for look in (lambda: store.offset_by_time("orderz", 0, 0), lambda: store.query("orderz", "k")):
            with pytest.raises(
                TopicNotFoundError, match=r"there is no topic orderz in .*; did you mean Orders"
            ) as refused:
                look()
            assert (refused.value.topic, refused.value.nearest) == ("orderz", "Orders")
        assert store.offset_by_time("Empty", 3, 0) == 0
        assert store.query("Empty", "k") == store.query("Orders", "other") == []
        assert store.offset_in_queue_by_time("orderz", 0, 0) == 0  # as Java answers


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("tags", {"tags": ["a"]}),
        ("body", {"body": 7}),
        ("keys", {"keys": [7]}),
        ("properties", {"properties": {"a": 7}}),
        ("flag", {"flag": 2**31}),
        ("queue_id", {"queue_id": "1"}),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_column(
    tmp_path: Path, column: str, values: dict[str, Any]
) -> None:
    with open_store(tmp_path / "store", read_only=False, create=True) as store:
        with pytest.raises(ColumnIllegalError, match=f"^column {column}: .*, expected ") as refused:
            store.put(**{"topic": "T", "body": b"x", **values})
        assert refused.value.column == column
        assert store.topics() == []


def test_a_time_in_seconds_is_refused_with_the_milliseconds(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", read_only=False, create=True) as store:
        store.put("Orders", b"x", keys="k")
        for look in (
            lambda: store.offset_by_time("Orders", 0, 1_767_225_600),
            lambda: store.query("Orders", "k", begin_ms=1_767_225_600),
            lambda: store.query("Orders", "k", end_ms=1_767_225_600),
        ):
            with pytest.raises(ValueError, match=r"looks like seconds.*: write 1767225600000"):
                look()


def keyed(store: StoreBuilder, count: int = 60) -> None:
    for number in range(count):
        store.put(
            queue_id=number % 2,
            properties={"UNIQ_KEY": f"unique{number}", "KEYS": f"key{number % 7} all" + " all" * (number % 2)},
        )
    store.open(read_only=False).close()


def test_messages_are_found_by_key_and_unique_key(store: StoreBuilder) -> None:
    keyed(store)
    with store.open() as opened:
        for number, message in enumerate(store.messages):
            assert opened.query("TopicA", f"unique{number}") == [message]
        for residue in range(7):
            assert opened.query("TopicA", f"key{residue}") == store.messages[residue::7]
        assert opened.query("TopicA", "all", 1_000) == store.messages
        assert opened.query("TopicA", "all", 5) == store.messages[-5:]
        for topic, key in [("TopicB", "all"), ("TopicA", "key"), ("TopicA", ""), ("TopicA", "key1 all")]:
            assert opened.messages_by_key(topic, key) == []


def test_times_of_a_key_look_up_are_whole_seconds(store: StoreBuilder) -> None:
    keyed(store, 6)
    start = FIRST_STORE_TIME_MS
    with store.open() as opened:
        found = opened.query("TopicA", "all", begin_ms=start + 2_000, end_ms=start + 3_000)
        assert [message.queue_offset * 2 + message.queue_id for message in found] == [2, 3]
        assert opened.query("TopicA", "all", begin_ms=start + 60_000) == []
        assert opened.query("TopicA", "all", end_ms=start - 1) == []


def test_keys_whose_hashes_collide_are_told_apart(store: StoreBuilder) -> None:
    first = store.put(properties={"KEYS": "Aa"})
    second = store.put(properties={"KEYS": "BB"})
    store.open(read_only=False).close()
    with store.open() as opened:
        assert opened.query("TopicA", "Aa") == [first]
        assert opened.query("TopicA", "BB") == [second]


def test_a_key_of_an_expired_message_is_not_found(store: StoreBuilder) -> None:
    keyed(store)
    min((store.root / "commitlog").iterdir()).unlink()
    with store.open() as opened:
        kept = [message for message in store.messages if message.commitlog_offset >= 4096]
        assert opened.query("TopicA", "all", 1_000) == kept


def test_without_the_index_geometry_look_ups_say_so_and_all_else_works(store: StoreBuilder) -> None:
    keyed(store)
    with open_store(store.root, config=StoreConfig()) as opened:
        assert opened.get("TopicA", 0, 0).messages
        with pytest.raises(IndexGeometryUnknownError, match=r"broker\.conf"):
            opened.query("TopicA", "all")


def test_a_message_is_found_by_its_place(store: StoreBuilder) -> None:
    messages = [store.put() for _ in range(3)]
    with store.open() as opened:
        assert opened.message_by_commitlog_offset(messages[1].commitlog_offset) == messages[1]
        for place in (1, store.end - 1):
            with pytest.raises(CorruptRecordError):
                opened.message_by_commitlog_offset(place)
        for place in (-1, store.end, 10**15):
            with pytest.raises(OffsetOutOfRangeError):
                opened.message_by_commitlog_offset(place)


def test_sizes_are_told_by_the_queue(store: StoreBuilder) -> None:
    messages = [store.put(body=bytes(number)) for number in range(50)]
    sizes = [message.size_bytes for message in messages]
    with store.open() as opened:
        assert opened.size_between("TopicA", 0, 10, 45) == sum(sizes[10:45])
        assert opened.size_between("TopicA", 0, 5, 5) == opened.size_between("TopicNone", 0, 0, 9) == 0
        for limit in (0, sizes[10] - 1, sizes[10], sum(sizes[10:30]), sum(sizes[10:30]) + 1, 10**9):
            end = opened.offset_at_size("TopicA", 0, 10, limit)
            assert sum(sizes[10:end]) <= limit
            assert end == 50 or sum(sizes[10 : end + 1]) > limit


@pytest.mark.parametrize("missing", ["all", "commitlog"])
def test_where_no_store_is_none_is_opened(tmp_path: Path, missing: str) -> None:
    if missing == "commitlog":
        (tmp_path / "consumequeue").mkdir()
    for read_only in (True, False):
        with pytest.raises(StoreNotFoundError, match="commitlog"):
            open_store(tmp_path / "store" if missing == "all" else tmp_path, read_only=read_only)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("mode", "read_only"),
    [
        ({"store_type": "defaultRocksDB"}, False),
        ({"enable_dleger_commit_log": True}, False),
        ({"broker_role": "SLAVE"}, False),
        ({"duplication_enable": True}, False),
        ({"enable_controller_mode": True}, False),
    ],
    ids=str,
)
def test_stores_of_another_kind_are_refused(store: StoreBuilder, mode: dict[str, Any], read_only: bool) -> None:
    store.put()
    with pytest.raises(StoreRefusedError):
        open_store(store.root, config=StoreConfig(mode=StoreModeConfig(**mode)), read_only=read_only)
    assert not (store.root / "abort").exists()


def test_foreign_directories_are_refused(store: StoreBuilder) -> None:
    store.put()
    (store.root / "dledger-n0").mkdir()
    with pytest.raises(StoreRefusedError, match="DLedger"):
        store.open(read_only=False)


@pytest.mark.parametrize("directory", ["rdb", "metadata", "consumerOffsets"])
def test_a_store_whose_tables_lie_in_rocksdb_is_not_written(store: StoreBuilder, directory: str) -> None:
    """Without broker.conf what is there decides."""
    store.put()
    (store.root / "config" / directory).mkdir(parents=True)
    (store.root / "config" / directory / "CURRENT").touch()
    with pytest.raises(StoreRefusedError, match=f"config/{directory}: its topics, groups and offsets lie in RocksDB"):
        store.open(read_only=False)


def test_a_topic_with_batch_queues_is_refused_by_name_for_writing(store: StoreBuilder) -> None:
    store.put()
    (store.root / "batchconsumequeue" / "TopicBatch" / "0").mkdir(parents=True)
    with pytest.raises(StoreRefusedError, match=r"TopicBatch.*BatchCQ"):
        store.open(read_only=False)


def test_a_store_with_queues_of_lite_topics_is_not_written(store: StoreBuilder) -> None:
    """Their entries name records of other topics: a recovery would cut them all as stale."""
    store.put()
    queue = store.root / "consumequeue" / "TopicA" / "0"
    shutil.copytree(queue, store.root / "consumequeue" / "%LMQ%$TopicA$child" / "0")
    with pytest.raises(StoreRefusedError, match=r"%LMQ%\$TopicA\$child: it has queues of lite topics"):
        store.open(read_only=False)
    copied = store.root / "consumequeue" / "%LMQ%$TopicA$child" / "0" / f"{0:020d}"
    assert copied.read_bytes() == (queue / f"{0:020d}").read_bytes()


def test_a_log_in_another_directory_is_found_by_the_configuration(store: StoreBuilder, tmp_path: Path) -> None:
    message = store.put()
    shutil.move(store.root / "commitlog", tmp_path / "log")
    config = StoreConfig(commit_log=CommitLogConfig(store_path_commit_log=str(tmp_path / "log")), index=IndexConfig())
    with pytest.warns(ConfigurationWarning, match="are read from"), open_store(store.root, config=config) as opened:
        assert opened.get("TopicA", 0, 0).messages == (message,)


def test_reading_needs_no_lock_and_makes_no_file(store: StoreBuilder) -> None:
    store.put()
    with store.open(read_only=False), store.open() as reader:
        assert reader.max_offset("TopicA", 0) == 1
    shutil.rmtree(store.root / "index")
    before = sorted(store.root.rglob("*"))
    with store.open() as reader:
        assert reader.query("TopicA", "key") == []
    assert sorted(store.root.rglob("*")) == before


@pytest.mark.slow
def test_ext_units_give_the_tags_of_an_entry(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("ext")
    lines = [line for line in golden_lines(fixture.golden, "message") if "ext" in line]
    assert len(lines) > 100
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        for line in lines[::9]:
            tags = line["properties"].get("TAGS")
            if tags and line["cqTopic"] != "SCHEDULE_TOPIC_XXXX":
                place = line["cqTopic"], line["cqQueueId"], line["cqOffset"]
                assert len(store.get(*place, 1, tags=tags).messages) == 1
                found = store.get(*place, 1, tags="no such tag").messages
                assert found == ()
