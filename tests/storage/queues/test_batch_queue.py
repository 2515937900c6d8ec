"""Batch queues (queue.type=BatchCQ) of stores that the Apache broker wrote: its own client's messages are the judge.

`served.jsonl` of the fixture `batches-killed` is that of the broker after its recovery. A reader of the killed store sees
what its queues know, as of plain queues: the last record was not dispatched.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.verify_store import verify_store
from spark_mq.cli.message_lines import dump_queue
from storage import MessageStore, open_store
from storage.errors import CorruptMessageError, StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.batch_items import single_messages, single_records
from storage.format.consume_queue import BATCH_UNIT, BATCH_UNIT_SIZE
from storage.format.record import INNER_BATCH, encode_record
from storage.format.record_batch import Records
from storage.log.dispatch import dispatch, queue_entries
from storage.queues import batch_queue
from storage.queues.batch_queue import BatchConsumeQueue
from storage.queues.scan import scan_queue
from storage.recovery.verify import _of_messages
from tests.spark.in_process import next_batch, open_stream, read_batch
from tests.support.fixture_stores import Fixture
from tests.support.message_builder import make_message

Line = dict[str, Any]
NAMES = ["batches", "batches-killed"]


def served(fixture: Fixture, type_: str = "message") -> list[Line]:
    assert fixture.served is not None
    lines = map(json.loads, fixture.served.read_text("utf-8").splitlines())
    return [line for line in lines if line["type"] == type_]


def readable(fixture: Fixture) -> list[Line]:
    """The served messages that the store's queues knew when it was left; the others are those of the log's undispatched end."""
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        known = store.log_end - store.undispatched_bytes
        return [line for line in served(fixture) if line["commitLogOffset"] < known]


def topics_of(fixture: Fixture) -> list[str]:
    return sorted({line["topic"] for line in served(fixture, "queue")})


def as_served(rows: list[dict[str, Any]]) -> list[Line]:
    """Rows of the source as the client lists messages."""
    return [
        {
            "topic": row["topic"],
            "queueId": row["queue_id"],
            "queueOffset": row["queue_offset"],
            "uniqKey": row["unique_key"],
            "tags": row["tags"],
            "keys": row["keys"],
            "bodyLen": len(row["body"]),
            "bodySha256": hashlib.sha256(row["body"]).hexdigest(),
            "commitLogOffset": row["commitlog_offset"],
        }
        for row in rows
    ]


def in_order(lines: list[Line]) -> list[Line]:
    kept = [{name: value for name, value in line.items() if name not in ("type", "offsetMsgId")} for line in lines]
    return sorted(kept, key=lambda line: (line["topic"], line["queueId"], line["queueOffset"]))


@pytest.fixture(params=NAMES)
def fixture(request: pytest.FixtureRequest, pristine_store: Callable[[str], Fixture]) -> Fixture:
    return pristine_store(request.param)


def test_a_batch_read_gives_the_messages_that_its_own_broker_serves(fixture: Fixture) -> None:
    rows = read_batch(fixture.root, subscribe=",".join(topics_of(fixture)), verifyCrc="true")
    assert in_order(as_served(rows)) == in_order(readable(fixture))
    sizes = [line["commitLogOffset"] for line in served(fixture)]
    assert len(set(sizes)) < len(sizes), "records hold several messages"


def test_a_stream_that_stops_in_the_middle_of_a_batch_goes_on_there(fixture: Fixture) -> None:
    options = {"subscribePattern": "Batch.*", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "13"}
    rows: list[dict[str, Any]] = []
    position = open_stream(fixture.root, **options).initialOffset()
    while True:
        reader = open_stream(fixture.root, **options)  # each time as another process
        end, found = next_batch(reader, json.loads(json.dumps(position)))
        if end == position:
            break
        assert 0 < len(found) <= 13
        rows, position = rows + found, end
    assert in_order(as_served(rows)) == in_order([line for line in readable(fixture) if line["topic"] != "Simples"])


def test_dump_lists_what_its_own_broker_serves(fixture: Fixture) -> None:
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        names = [(topic, queue_id) for topic in topics_of(fixture) for queue_id in store.queue_ids(topic)]
        lines = [line for name in names for line in dump_queue(store, *name)]
    found = [
        (line["cqTopic"], line["cqQueueId"], line["cqOffset"], line["bodySha256"], line["properties"].get("UNIQ_KEY"))
        for line in lines
    ]
    assert sorted(found) == sorted(
        (line["topic"], line["queueId"], line["queueOffset"], line["bodySha256"], line["uniqKey"])
        for line in readable(fixture)
    )


def test_queues_begin_and_end_where_the_broker_says(fixture: Fixture) -> None:
    with open_store(fixture.root, config=str(fixture.conf)) as store:
        for line in served(fixture, "queue"):
            name = line["topic"], line["queueId"]
            unknown = len(served(fixture)) - len(readable(fixture)) if name == ("BatchTail", 0) else 0
            assert store.bounds(*name) == (line["minOffset"], line["maxOffset"] - unknown)


def test_any_range_of_offsets_gives_its_messages(pristine_store: Callable[[str], Fixture]) -> None:
    with open_store(pristine_store("batches").root) as store:
        whole = list(messages(store, "Batches", 0, *store.bounds("Batches", 0)))  # type: ignore[misc]
        end = len(whole)
        for start in range(0, end, 3):
            for stop in (start + 1, start + 4, end):
                assert list(messages(store, "Batches", 0, start, min(stop, end))) == whole[start:stop]
        found = [store.get("Batches", 0, at, 1).messages[0] for at in range(end)]
        assert [(message.queue_offset, message.body) for message in found] == whole


def messages(store: MessageStore, topic: str, queue_id: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    queue = store.queues.get(topic, queue_id)
    assert queue is not None
    for part in scan_queue(queue, store.log, store.log_end, start, end):
        yield from zip(part.queue_offsets.tolist(), part.records.bodies().to_pylist(), strict=True)


def test_a_get_decodes_each_record_once(
    pristine_store: Callable[[str], Fixture], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(pristine_store("batches").root) as store:
        queue, decoded = store.queues.get("Batches", 0), []
        assert isinstance(queue, BatchConsumeQueue)
        units = queue.units(0, 40)
        monkeypatch.setattr(
            batch_queue, "single_messages", lambda record: decoded.append(record) or single_messages(record)
        )
        found = store.get("Batches", 0, 0, 20, max_bytes=1 << 30).messages
        assert len(found) == 20
        assert len(decoded) == np.searchsorted(np.cumsum(units["message_count"]), 20) + 1 < 20


def test_the_ends_of_a_queue_are_known_without_reading_its_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = np.zeros(9_000, BATCH_UNIT)
    written = units[:8_000]
    written["base_offset"], written["message_count"] = np.arange(8_000) * 3, 3
    written["size_bytes"], written["store_time_ms"] = 100, 1
    (tmp_path / f"{0:020d}").write_bytes(units.tobytes())
    queue, read = BatchConsumeQueue(LocalFileSystem(), str(tmp_path), "Batches", 0), []
    assert queue.last_file_end_offset == 24_000
    reading = queue._read
    monkeypatch.setattr(queue, "_read", lambda *place: read.append(place[2]) or reading(*place))
    assert (queue.first_file_offset, queue.last_file_end_offset) == (0, 24_000)
    assert sum(read) <= 20 * BATCH_UNIT_SIZE


def test_an_end_that_is_cut_is_found_again(fixture_store: Callable[[str], Fixture]) -> None:
    with open_store(fixture_store("batches").root) as store:
        queue = store.queues.get("Batches", 0)
        assert isinstance(queue, BatchConsumeQueue)
        units = queue.units(0, queue.last_file_end_offset)
        row = len(units) - 2
        start, at = divmod(row, queue.file_size_bytes // BATCH_UNIT_SIZE)
        with Path(queue.path_of(queue.file_starts[start])).open("r+b") as file:
            file.seek(at * BATCH_UNIT_SIZE)
            file.write(bytes(2 * BATCH_UNIT_SIZE))
        assert queue.last_file_end_offset == units["base_offset"][row]


def test_a_damaged_count_of_messages_is_no_count() -> None:
    """A unit of the queue has two bytes for it. A damaged one must not cost memory for a thousand million entries."""
    for count, expected in (("32767", 32_767), ("32768", 1), ("999999999", 1)):
        properties = {"INNER_NUM": count, "INNER_BASE": "0"}
        record = encode_record(make_message("Batches", properties=properties, sys_flag=INNER_BATCH))
        records, offsets = records_of(bytearray(record)), np.zeros(1, np.int64)
        (new,) = queue_entries(dispatch(offsets, records, (1_000,)))
        assert len(_of_messages(new, offsets, records).entries) == expected


def test_an_offset_is_found_by_time_at_the_first_message_of_a_record(pristine_store: Callable[[str], Fixture]) -> None:
    with open_store(pristine_store("batches").root) as store:
        times = [store.store_time(store.queues.get("Batches", 0), at) for at in range(store.max_offset("Batches", 0))]  # type: ignore[arg-type]
        for time_ms in {*times, times[0] - 1, times[-1] + 1}:
            first = next((at for at, found in enumerate(times) if found >= time_ms), len(times))
            assert store.offset_in_queue_by_time("Batches", 0, time_ms) == first


def test_bytes_count_once_a_record(pristine_store: Callable[[str], Fixture]) -> None:
    with open_store(pristine_store("batches").root) as store:
        queue = store.queues.get("Batches", 0)
        assert isinstance(queue, BatchConsumeQueue)
        units = queue.units(0, store.max_offset("Batches", 0))
        assert store.size_between("Batches", 0, 0, store.max_offset("Batches", 0)) == units["size_bytes"].sum()
        assert store.offset_at_size("Batches", 0, 0, int(units["size_bytes"][0])) == units["message_count"][0]


def test_a_filter_by_tag_or_key_sees_the_messages_own(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("batches")
    lines = [line for line in served(fixture) if line["topic"] == "Batches"]
    tagged = read_batch(fixture.root, topic="Batches", tags="TagA")
    assert in_order(as_served(tagged)) == in_order([line for line in lines if line["tags"] == "TagA"]) != []
    key = next(line["keys"] for line in lines if line["keys"])
    keyed = read_batch(fixture.root, topic="Batches", key=key)
    assert in_order(as_served(keyed)) == in_order([line for line in lines if line["keys"] == key])


def test_a_records_tag_hides_none_of_its_messages(fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("batches")
    before = as_served(read_batch(fixture.root, topic="Batches", tags="TagA"))
    for file in (fixture.root / "batchconsumequeue" / "Batches").glob("*/*"):
        units = np.frombuffer(file.read_bytes(), BATCH_UNIT).copy()
        units["tags_code"][units["size_bytes"] > 0] = 77
        file.write_bytes(units.tobytes())
    assert in_order(as_served(read_batch(fixture.root, topic="Batches", tags="TagA"))) == in_order(before) != []


def test_a_healthy_store_is_verified_and_a_lost_unit_is_missed(
    fixture: Fixture, fixture_store: Callable[[str], Fixture]
) -> None:
    assert [found.kind for found in verify_store(str(fixture.root)).findings] == []
    copy = fixture_store(fixture.name)
    file = sorted((copy.root / "batchconsumequeue" / "Batches" / "0").iterdir())[0]
    units = np.frombuffer(file.read_bytes(), BATCH_UNIT).copy()
    units[3] = np.zeros((), BATCH_UNIT)
    file.write_bytes(units.tobytes())
    kinds = {str(found.kind) for found in verify_store(str(copy.root)).findings}
    assert "missing_entry" in kinds


def test_a_batch_that_is_none_is_an_error_that_names_the_message(pristine_store: Callable[[str], Fixture]) -> None:
    with open_store(pristine_store("batches").root) as store:
        place = store.position("Batches", 0, 0)
        assert place is not None
        record = bytearray(store.log.bytes_at(place.commitlog_offset, place.size_bytes))
    assert len(single_records(records_of(record)).records) > 1
    for position in (88, 88 + 16):  # the first item's size, its body's
        broken = bytearray(record)
        broken[position : position + 4] = (1 << 20).to_bytes(4, "big")
        with pytest.raises(CorruptMessageError, match="batch of messages"):
            single_records(records_of(broken))


def records_of(record: bytearray) -> Records:
    return Records(np.frombuffer(bytes(record), np.uint8), np.zeros(1, np.int64))


def test_a_topic_with_queues_of_both_kinds_is_refused(fixture_store: Callable[[str], Fixture]) -> None:
    """One kind would hide the messages of the other; and no broker starts on it."""
    copy = fixture_store("batches")
    (copy.root / "consumequeue" / "Batches" / "0").mkdir(parents=True)
    with pytest.raises(StoreRefusedError, match="topic Batches has queues of both kinds"):
        open_store(copy.root, config=str(copy.conf))


@pytest.mark.filterwarnings("ignore:store .*:RuntimeWarning")  # of gaps, where it is not refused
@pytest.mark.parametrize("lost", ["batchconsumequeue", "consumequeue"])
def test_a_log_with_batches_refuses_to_be_dispatched(lost: str, fixture_store: Callable[[str], Fixture]) -> None:
    """Where nothing else says any more that the store had batch queues, its records do: they would enter plain queues."""
    copy = fixture_store("batches-killed")
    for name in ("batchconsumequeue", "config", lost):
        shutil.rmtree(copy.root / name, ignore_errors=True)
    before = content(copy.root / "commitlog")
    rule = r"record at \d+ of the log is a batch, at offset \d+ of queue \d of topic Batch\w+, which has batch.*BatchCQ"
    with pytest.raises(StoreRefusedError, match=rule):
        open_store(copy.root, config=str(copy.conf), read_only=False)
    assert not list((copy.root / "consumequeue").glob("Batch*"))
    kept = content(copy.root / "commitlog")
    assert kept.items() <= before.items(), "but a file that was made ahead"


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_queue_grows_as_units_are_written(tmp_path: Path) -> None:
    """Beside a broker: the end moves with each unit, over the ends of files."""
    directory = tmp_path / "batchconsumequeue" / "T" / "0"
    directory.mkdir(parents=True)
    queue = BatchConsumeQueue(LocalFileSystem(), str(directory), "T", 0)
    assert (queue.written_end(), queue.first_file_offset) == (0, 0)
    units = np.zeros(12, BATCH_UNIT)
    units["size_bytes"], units["message_count"] = 100, np.arange(1, 13)
    units["base_offset"] = 5 + np.cumsum(units["message_count"]) - units["message_count"]
    units["commitlog_offset"] = 100 * np.arange(12)
    for count in range(1, 13):
        for number in range(0, count, 4):
            part = units[number : min(count, number + 4)].tobytes()
            (directory / f"{number * BATCH_UNIT_SIZE:020d}").write_bytes(part.ljust(4 * BATCH_UNIT_SIZE, b"\0"))
        queue.close()
        queue.list_files()
        end = 5 + int(units["message_count"][:count].sum())
        assert queue.written_end() == queue.written_end(5) == queue.written_end(end - 1) == end
        assert queue.first_file_offset == 5
        for start in queue.file_starts[:-1]:  # expiry reads it of each file
            assert queue.last_place(start) == units["commitlog_offset"][start // BATCH_UNIT_SIZE + 3]
        entries = queue.entries(0, end + 3)
        expected = np.repeat(units["commitlog_offset"][:count], units["message_count"][:count])
        assert entries["commitlog_offset"][5:end].tolist() == expected.tolist()
        assert not entries["size_bytes"][:5].any()
        assert not entries["size_bytes"][end:].any()
        assert queue.first_offset_at(100 * (count - 1), end) == int(units["base_offset"][count - 1])
    queue.close()
