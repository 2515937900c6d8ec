"""A queue read in bulk: the same messages as one by one, in slices of bounded size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import open_store
from storage.errors import CorruptRecordError, OffsetOutOfRangeError
from storage.format.arrays import string_hash
from storage.queues.scan import TagsWanted, scan_queue
from tests.support.fixture_stores import FIXTURE_NAMES, Fixture, golden_lines
from tests.support.message_builder import StoreBuilder


@pytest.mark.parametrize("name", [name for name in FIXTURE_NAMES if name not in ("damaged", "damaged-unclean")])
def test_a_scan_serves_the_records_that_apache_serves(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    golden: dict[tuple[str, int], dict[int, str]] = {}
    for line in golden_lines(fixture.golden, "message"):
        if "error" not in line:
            golden.setdefault((line["cqTopic"], line["cqQueueId"]), {})[line["cqOffset"]] = line["recordSha256"]
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        for queue in store.queues:
            start, end = store.min_offset(queue.topic, queue.queue_id), store.max_offset(queue.topic, queue.queue_id)
            found = {}
            for part in scan_queue(queue, store.log, store.log_end, start, end, verify_crc=True):
                sizes = part.records.column("size_bytes")
                for offset, position, size in zip(part.queue_offsets, part.records.positions, sizes, strict=True):
                    record = part.records.buffer[position : position + size].tobytes()
                    found[int(offset)] = hashlib.sha256(record).hexdigest()
            expected = golden.get((queue.topic, queue.queue_id), {})
            assert found == {offset: expected[offset] for offset in found}
            assert found.keys() == {offset for offset in expected if offset < end}
            assert list(found) == sorted(found)


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    store = StoreBuilder(tmp_path)
    for number in range(90):
        tag = ("TagA", "TagB", "")[number % 3]
        message = store.put(
            queue_id=number % 2, entered=False, properties={"TAGS": tag} if tag else {}, body=b"x" * number
        )
        store.enter(message, string_hash(tag))
    return store


def scanned(store: StoreBuilder, start: int, end: int, tags: set[str] | None = None, *, crc: bool = False) -> list[int]:
    codes = None if tags is None else frozenset(string_hash(tag) for tag in tags)
    with store.open() as opened:
        queue = opened.queues.get("TopicA", 0)
        assert queue is not None
        tags = None if codes is None else TagsWanted(codes)
        parts = scan_queue(queue, opened.log, opened.log_end, start, end, tags=tags, verify_crc=crc)
        return [offset for part in parts for offset in part.queue_offsets.tolist()]


@pytest.mark.parametrize(("start", "end"), [(0, 45), (0, 0), (3, 3), (7, 8), (19, 21), (0, 20), (20, 40), (44, 45)])
def test_a_range_is_what_was_asked_for(store: StoreBuilder, start: int, end: int) -> None:
    assert scanned(store, start, end) == list(range(start, end))


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("size", [1, 500, 1 << 20])
def test_slices_of_any_size_add_up(store: StoreBuilder, rows: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.queues.scan.SLICE_ROWS", rows)
    monkeypatch.setattr("storage.queues.scan.SLICE_BYTES", size)
    assert scanned(store, 0, 45) == list(range(45))


def test_a_range_over_the_end_ends_there(store: StoreBuilder) -> None:
    assert scanned(store, 40, 60) == [40, 41, 42, 43, 44]
    assert scanned(store, 45, 1_000) == []


def test_tags_are_chosen_by_their_codes_and_codes_that_may_be_torn(store: StoreBuilder) -> None:
    messages = store.of_queue()
    untagged = [message.queue_offset for message in messages if not message.raw_properties]
    with_a = [message.queue_offset for message in messages if b"TagA" in message.raw_properties]
    assert scanned(store, 0, 45, {"TagA"}) == sorted(with_a + untagged)
    assert scanned(store, 0, 45, {"none"}) == untagged


def test_a_wrong_body_is_found_when_asked_for(store: StoreBuilder) -> None:
    message = store.of_queue()[3]
    assert message.body
    store.write_log(message.commitlog_offset + 88, b"y")
    store.put()
    config_free = scanned(store, 0, 3, crc=True)
    assert config_free == [0, 1, 2]
    with store.open() as opened:
        queue = opened.queues.get("TopicA", 0)
        assert queue is not None
        assert sum(len(part.records) for part in scan_queue(queue, opened.log, store.end, 0, 46)) == 46
        with pytest.raises(CorruptRecordError) as raised:
            list(scan_queue(queue, opened.log, store.end, 0, 46, verify_crc=True))
    assert raised.value.field == "body CRC"
    assert "offset 3" in str(raised.value)


def test_a_log_file_deleted_on_the_way_is_told_in_the_queues_offsets(store: StoreBuilder) -> None:
    files = sorted((store.root / "commitlog").iterdir())
    first_kept = next(message for message in store.of_queue() if message.commitlog_offset >= int(files[1].name))
    with store.open() as opened:
        queue = opened.queues.get("TopicA", 0)
        assert queue is not None
        opened.log.close()
        files[0].unlink()
        for start in (0, 5):
            with pytest.raises(OffsetOutOfRangeError) as raised:
                list(scan_queue(queue, opened.log, opened.log_end, start, 45))
            assert (raised.value.topic, raised.value.queue_id) == ("TopicA", 0)
            assert raised.value.minimum == first_kept.queue_offset
        rest = scan_queue(queue, opened.log, opened.log_end, first_kept.queue_offset, 45)
        assert [offset for part in rest for offset in part.queue_offsets.tolist()] == list(
            range(first_kept.queue_offset, 45)
        )


def test_a_queue_whose_files_are_gone_is_out_of_range(store: StoreBuilder) -> None:
    with store.open() as opened:
        queue = opened.queues.get("TopicA", 0)
        assert queue is not None
        for path in store.queue_directory("TopicA", 0).iterdir():
            path.unlink()
        queue.close()
        queue.list_files()
        with pytest.raises(OffsetOutOfRangeError) as raised:
            list(scan_queue(queue, opened.log, opened.log_end, 0, 45))
        assert raised.value.minimum == 45
