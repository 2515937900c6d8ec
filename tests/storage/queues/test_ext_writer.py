"""Extension units as they are written: their bytes, where they go on, what is cut.

Expected bytes are Java's: ConsumeQueueExt.put. `tests/interop/test_extension_units.py` asks its classes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from jobs.rebuild_queues import rebuild_queues
from jobs.verify_store import verify_store
from storage import open_store
from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import string_hash
from storage.format.bloom_filter import BitTest, BloomFilter
from storage.format.consume_queue import ENTRY, ENTRY_SIZE, decode_entries, ext_address, ext_position, is_ext_address
from storage.log.dispatch import QueueEntries
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.ext import ConsumeQueueExt, ConsumeQueueExtWriter
from storage.queues.writer import ConsumeQueueWriter
from storage.settings.load import StoreConfig, parse_config
from tests.support.fixture_stores import Fixture

EXT_FILE = 64  # three units, and the four bytes that stay free
CONF = (
    "brokerName=b\nbrokerIP1=127.0.0.1\nmappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=400\nmaxHashSlotNum=10\n"
    "maxIndexNum=40\nmappedFileSizeConsumeQueueExt={size}\nenableConsumeQueueExt={on}\n"
)


def settings(*, on: bool = True, size: int = EXT_FILE) -> StoreConfig:
    return parse_config(CONF.format(size=size, on=str(on).lower()).encode())


def put(root: Path, count: int, *, on: bool = True, tags: str = "TagA", queue_id: int = 0) -> None:
    with open_store(str(root), config=settings(on=on), read_only=False, create=True) as store:
        for number in range(count):
            store.put("T", b"body %d" % number, tags=tags, queue_id=queue_id)


def raw_codes(root: Path, queue_id: int = 0) -> list[int]:
    """The tags codes that stand in the queue's entries."""
    data = b"".join(path.read_bytes() for path in sorted((root / f"consumequeue/T/{queue_id}").iterdir()))
    entries = decode_entries(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE])
    return [int(code) for code in entries["tags_code"][entries["size_bytes"] > 0].tolist()]


def ext_files(root: Path, queue_id: int = 0) -> dict[int, bytes]:
    directory = root / f"consumequeue_ext/T/{queue_id}"
    found = sorted(directory.iterdir()) if directory.exists() else []
    return {int(path.name): path.read_bytes() for path in found}


def codes_read(root: Path, queue_id: int = 0) -> list[int]:
    """The tags codes that a reader takes the entries to mean."""
    with open_store(str(root), config=settings()) as store:
        queue = store.queues.get("T", queue_id)
        assert queue is not None
        entries = queue.entries(queue.first_file_offset, store.max_offset("T", queue_id))
        return [int(code) for code in store.queues.ext("T", queue_id).tags_codes(entries["tags_code"]).tolist()]


def findings(root: Path) -> tuple[object, ...]:
    conf = root.parent / f"{root.name}.conf"
    conf.write_text(CONF.format(size=EXT_FILE, on="true"))
    return verify_store(str(root), conf=str(conf)).findings


def store_times(root: Path) -> list[int]:
    with open_store(str(root), config=settings()) as store:
        return [m.store_time_ms for m in store.get("T", 0, 0, 1_000).messages]


def test_units_roll_as_javas_do(tmp_path: Path) -> None:
    put(tmp_path, 7)
    times, code = store_times(tmp_path), string_hash("TagA")
    units = [struct.pack(">hqqh", 20, code, time, 0) for time in times]
    assert ext_files(tmp_path) == {
        0: b"".join(units[:3]) + b"\xff\xff\0\0",
        64: b"".join(units[3:6]) + b"\xff\xff\0\0",
        128: units[6].ljust(64, b"\0"),
    }
    assert raw_codes(tmp_path) == [ext_address(place) for place in (0, 20, 40, 64, 84, 104, 128)]
    assert codes_read(tmp_path) == [code] * 7


def test_many_at_once_lie_as_those_one_by_one(tmp_path: Path) -> None:
    rows = pa.record_batch({"topic": ["T"] * 50, "body": [b"x"] * 50, "queue_id": pa.array([0] * 50, pa.int32())})
    with open_store(str(tmp_path / "many"), config=settings(), read_only=False, create=True) as store:
        store.put_batch(rows)
    put(tmp_path / "one", 50)
    assert raw_codes(tmp_path / "many") == raw_codes(tmp_path / "one")
    assert set(ext_files(tmp_path / "many")) == set(ext_files(tmp_path / "one"))
    assert codes_read(tmp_path / "many") == [0] * 50


def test_without_the_setting_entries_hold_the_code_itself(tmp_path: Path) -> None:
    put(tmp_path, 2, on=False)
    assert raw_codes(tmp_path) == [string_hash("TagA")] * 2
    assert not (tmp_path / "consumequeue_ext").exists()


def test_the_setting_may_be_switched_on_off_and_on_again(tmp_path: Path) -> None:
    for number, on in enumerate([False, True, False, True]):
        put(tmp_path, 2, on=on, tags=f"Tag{number}")
    raw = raw_codes(tmp_path)
    assert [is_ext_address(np.int64(code)).item() for code in raw] == [False] * 2 + [True] * 2 + [False] * 2 + [
        True
    ] * 2
    assert [ext_position(code) for code in raw if code < -(2**31)] == [0, 20, 40, 64]
    assert codes_read(tmp_path) == [string_hash(f"Tag{number}") for number in range(4) for _ in range(2)]
    with open_store(str(tmp_path), config=settings()) as store:
        for number in range(4):
            found = store.get("T", 0, 0, 100, tags=f"Tag{number}").messages
            assert [m.queue_offset for m in found] == [2 * number, 2 * number + 1]


def test_an_entry_filters_by_the_unit_of_its_own(tmp_path: Path) -> None:
    put(tmp_path, 3, tags="A")
    put(tmp_path, 4, tags="B")
    with open_store(str(tmp_path), config=settings()) as store:
        assert [m.queue_offset for m in store.get("T", 0, 0, 100, tags="B").messages] == [3, 4, 5, 6]


def test_lost_extension_files_leave_no_address_that_means_another_message(tmp_path: Path) -> None:
    put(tmp_path, 5, tags="Lost")
    for path in (tmp_path / "consumequeue_ext/T/0").iterdir():
        path.unlink()
    put(tmp_path, 2, tags="New")
    assert codes_read(tmp_path) == [0] * 5 + [string_hash("New")] * 2  # 0: the record is asked
    assert [ext_position(code) for code in raw_codes(tmp_path)[-2:]] == [128, 148]
    with open_store(str(tmp_path), config=settings()) as store:
        assert len(store.get("T", 0, 0, 100, tags="Lost").messages) == 5


def test_what_stands_behind_the_last_unit_is_zeroed_before_more_is_written(tmp_path: Path) -> None:
    put(tmp_path, 2)
    path = tmp_path / "consumequeue_ext/T/0" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:40] + b"\x12" * 24)
    (path.parent / f"{64:020d}").write_bytes(b"\x34" * 64)
    put(tmp_path, 1, tags="B")
    files = ext_files(tmp_path)
    assert list(files) == [0]
    assert files[0][42:50] == string_hash("B").to_bytes(8, "big", signed=True)
    assert files[0][60:] == bytes(4)


def test_files_of_another_length_are_refused_as_a_broker_refuses_them(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with pytest.raises(StoreRefusedError, match="mappedFileSizeConsumeQueueExt"):
        open_store(str(tmp_path), config=settings(size=128), read_only=False)
    with open_store(str(tmp_path), config=settings(size=128)) as store:
        assert len(store.get("T", 0, 0, 10, tags="TagA").messages) == 1


def test_a_file_that_holds_no_unit_leaves_the_code_in_the_entry(tmp_path: Path) -> None:
    with open_store(str(tmp_path), config=settings(size=23), read_only=False, create=True) as store:
        store.put("T", b"x", tags="TagA", queue_id=0)
    assert raw_codes(tmp_path) == [string_hash("TagA")]


# Recovered


def crash(root: Path) -> None:
    """As if the writer had been killed after its last checkpoint but one."""
    (root / "abort").write_text("1")
    (root / "checkpoint").write_bytes(bytes(4096))


@pytest.mark.parametrize("lost", [0, 3, 5])
def test_entries_whose_units_a_power_loss_took_get_new_ones(lost: int, tmp_path: Path) -> None:
    put(tmp_path, 6)
    address = ext_position(raw_codes(tmp_path)[lost])
    for start, content in ext_files(tmp_path).items():
        keep = min(len(content), max(0, address - start))
        (tmp_path / "consumequeue_ext/T/0" / f"{start:020d}").write_bytes(content[:keep].ljust(64, b"\0"))
    crash(tmp_path)
    with open_store(str(tmp_path), config=settings(), read_only=False) as store:
        assert store.max_offset("T", 0) == 6
    assert codes_read(tmp_path) == [string_hash("TagA")] * 6
    positions = [ext_position(code) for code in raw_codes(tmp_path)]
    assert all(a < b for a, b in pairwise(positions))
    assert findings(tmp_path) == ()


def test_a_unit_that_was_lost_while_the_setting_is_off_is_nobody_elses_later(tmp_path: Path) -> None:
    put(tmp_path, 3)
    unit = tmp_path / "consumequeue_ext/T/0" / f"{0:020d}"
    unit.write_bytes(unit.read_bytes()[:40].ljust(64, b"\0"))  # the third one's is gone
    crash(tmp_path)
    open_store(str(tmp_path), config=settings(on=False), read_only=False).close()
    put(tmp_path, 2, tags="TagB")
    assert len(set(raw_codes(tmp_path))) == 5
    with open_store(str(tmp_path), config=settings()) as store:
        assert [found.queue_offset for found in store.get("T", 0, 0, 32, tags="TagA").messages][:2] == [0, 1]
        assert [found.queue_offset for found in store.get("T", 0, 0, 32, tags="TagB").messages][-2:] == [3, 4]


def test_a_torn_unit_and_a_torn_address_are_written_again(tmp_path: Path) -> None:
    put(tmp_path, 3)
    unit = tmp_path / "consumequeue_ext/T/0" / f"{0:020d}"
    content = bytearray(unit.read_bytes())
    content[34:40] = bytes(6)  # the second one's store time
    unit.write_bytes(content)
    entries = tmp_path / "consumequeue/T/0" / f"{0:020d}"
    content = bytearray(entries.read_bytes())
    content[56:60] = bytes(4)  # the third one's address
    entries.write_bytes(content)
    crash(tmp_path)
    open_store(str(tmp_path), config=settings(), read_only=False).close()
    assert [ext_position(code) for code in raw_codes(tmp_path)] == [0, 20, 40]
    assert [content[at : at + 2] for content in ext_files(tmp_path).values() for at in (0, 20, 40)] == [b"\0\x14"] * 3
    assert findings(tmp_path) == ()


def test_units_go_with_the_entries_that_are_cut(tmp_path: Path) -> None:
    put(tmp_path, 5)
    with open_store(str(tmp_path), config=settings()) as store:
        [message] = store.get("T", 0, 2, 1).messages
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(message.commitlog_offset)
        log.write(bytes(65536 - message.commitlog_offset))
    crash(tmp_path)
    open_store(str(tmp_path), config=settings(), read_only=False).close()
    assert raw_codes(tmp_path) == [ext_address(0), ext_address(20)]
    [content] = ext_files(tmp_path).values()
    assert content[40:] == bytes(24)


# Rebuilt


@pytest.mark.parametrize("on", [True, False])
def test_rebuilt_queues_have_units_where_the_setting_says_so(on: bool, tmp_path: Path) -> None:
    put(tmp_path, 7)
    codes, units = raw_codes(tmp_path), ext_files(tmp_path)
    conf = tmp_path.parent / f"{tmp_path.name}.conf"
    conf.write_text(CONF.format(size=EXT_FILE, on=str(on).lower()))
    rebuild_queues(str(tmp_path), conf=str(conf))
    assert (raw_codes(tmp_path), ext_files(tmp_path)) == ((codes, units) if on else ([string_hash("TagA")] * 7, {}))
    assert not (tmp_path / "spark_mq/rebuild").exists()


def test_rebuilt_queues_of_a_brokers_store_are_its_own_but_for_bit_maps(
    fixture_store: Callable[[str], Fixture],
) -> None:
    fixture = fixture_store("ext")
    before = {path: path.read_bytes() for path in fixture.root.glob("consumequeue*/*/*/*")}
    rebuild_queues(str(fixture.root), conf=str(fixture.conf))
    after = {path: path.read_bytes() for path in fixture.root.glob("consumequeue*/*/*/*")}
    without_maps = {
        path.parent.relative_to(fixture.root / "consumequeue_ext")
        for path, content in before.items()
        if "consumequeue_ext" in path.parts and all(size in (0, 20) for size in unit_sizes(content))
    }
    compared = [path for path in before if Path(*path.parts[-3:-1]) in without_maps]
    assert len(without_maps) > 10
    assert {path: before[path] for path in compared} == {path: after.get(path) for path in compared}
    assert verify_store(str(fixture.root)).findings == ()


def unit_sizes(content: bytes) -> list[int]:
    sizes, at = [], 0
    while at + 2 <= len(content) and (size := int.from_bytes(content[at : at + 2], "big")) and size < 2**15:
        sizes.append(size)
        at += size
    return sizes


def entries_of(count: int, *, first: int, width: int = 0) -> QueueEntries:
    """Entries of records of 100 bytes, and maps of so many bytes, each with its row's number."""
    entries = np.zeros(count, ENTRY)
    entries["commitlog_offset"], entries["size_bytes"] = 100 * (first + np.arange(count)), 100
    entries["tags_code"] = 7
    maps = np.repeat(np.arange(count, dtype=np.uint8)[:, None], width, axis=1) if width else None
    return QueueEntries("T", 0, first + np.arange(count), entries, 1_000 + np.arange(count), maps)


def test_units_with_bit_maps_roll_as_javas_do(tmp_path: Path) -> None:
    files = LocalFileSystem()
    queue = ConsumeQueue(files, f"{tmp_path}/consumequeue/T/0", "T", 0, 400)
    ext = ConsumeQueueExtWriter(files, f"{tmp_path}/consumequeue_ext/T/0", EXT_FILE)
    writer = ConsumeQueueWriter(files, queue, 0, 400, ext=ext)
    writer.append(entries_of(2, first=0, width=3))
    writer.append(entries_of(1, first=2))
    writer.append(entries_of(1, first=3, width=3))
    units = [struct.pack(">hqqh3s", 23, 7, 1_000 + row, 3, bytes([row] * 3)) for row in (0, 1)]
    assert ext_files(tmp_path) == {
        0: (b"".join(units) + b"\xff\xff").ljust(64, b"\0"),
        64: (struct.pack(">hqqh", 20, 7, 1_000, 0) + units[0]).ljust(64, b"\0"),
    }
    assert raw_codes(tmp_path) == [ext_address(place) for place in (0, 23, 64, 84)]
    shape = BloomFilter(1, 24)
    passes = ConsumeQueueExt(files, ext.directory).passes
    codes = np.array(raw_codes(tmp_path))
    assert passes(codes, BitTest(shape, (0,), 0)).tolist() == [False, True, True, False]
    assert passes(codes, BitTest(shape, (0, 1), 0)).tolist() == [False, False, True, False]
    assert passes(codes, BitTest(shape, (1,), 1_000)).tolist() == [
        True,
        False,
        True,
        True,
    ]  # those before the group pass
    assert passes(np.array([5, *codes, ext_address(1 << 20)]), BitTest(shape, (0,), 0)).tolist()[::5] == [True, True]


def test_a_map_that_a_power_loss_may_have_torn_counts_as_wrong(tmp_path: Path) -> None:
    files = LocalFileSystem()
    queue = ConsumeQueue(files, f"{tmp_path}/consumequeue/T/0", "T", 0, 4_000)
    ext = ConsumeQueueExtWriter(files, f"{tmp_path}/consumequeue_ext/T/0", 4_096)
    writer = ConsumeQueueWriter(files, queue, 0, 4_000, ext=ext)
    writer.append(entries_of(1, first=0))
    new = entries_of(100, first=1, width=14)
    assert new.bit_maps is not None
    new.bit_maps[:, :] = 1
    writer.append(new)
    assert writer.end_of_sound_units(new) == 101
    path = tmp_path / "consumequeue_ext/T/0" / f"{0:020d}"
    sound, torn_at = path.read_bytes(), []
    for row in range(100):
        start, end = 20 + 34 * row, 20 + 34 * (row + 1)
        lost = max((end - 1) // 512 * 512, start + 20)  # what stands in the sector of the map's end
        path.write_bytes(sound[:lost] + bytes(end - lost) + sound[end:])
        if lost % 512 == 0:
            torn_at.append(row)
        assert writer.end_of_sound_units(new) == (row + 1 if lost % 512 == 0 else 101), row
    assert len(torn_at) == 4


def test_a_map_that_no_unit_can_hold_is_left_out(tmp_path: Path) -> None:
    files = LocalFileSystem()
    queue = ConsumeQueue(files, f"{tmp_path}/consumequeue/T/0", "T", 0, 400)
    ext = ConsumeQueueExtWriter(files, f"{tmp_path}/consumequeue_ext/T/0", 1 << 16)
    ConsumeQueueWriter(files, queue, 0, 400, ext=ext).append(entries_of(1, first=0, width=1 << 15))
    assert ext_files(tmp_path)[0][:20] == struct.pack(">hqqh", 20, 7, 1_000, 0)
