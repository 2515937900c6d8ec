"""The timer's log and wheel: appending as Java does, found again after any end, cut, mended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage.delay import timer_store
from storage.delay.timer_files import ALL_TICKS, TimerLog, TimerWheel
from storage.delay.timer_records import whole_numbers
from storage.delay.timer_store import TimerMetrics
from storage.errors import StoreRefusedError
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import MAGIC_DEFAULT, NO_POSITION, UNIT, UNIT_SIZE, WHEEL_SLOTS, encode_filler
from tests.support.fixture_stores import Fixture

FILES = LocalFileSystem()
FILE_BYTES = 256
"""Four units (208 bytes), of which a filler of 48 bytes keeps the fifth away."""


def units(count: int, first_place: int = 0) -> np.ndarray:
    made = np.zeros(count, UNIT)
    made["size_bytes"], made["magic"], made["previous_position"] = UNIT_SIZE, MAGIC_DEFAULT, NO_POSITION
    made["commitlog_offset"] = first_place + np.arange(count)
    return made


def append(log: TimerLog, count: int, first_place: int = 0) -> list[int]:
    positions = log.places(count)
    log.append(positions, units(count, first_place))
    log.sync()
    return [int(position) for position in positions]


def walked(root: Path, position: int = 0) -> tuple[TimerLog, list[int]]:
    log = TimerLog(FILES, str(root), FILE_BYTES)
    runs = list(log.walk(position))
    return log, [int(place) for run in runs for place in run.units["commitlog_offset"]]


# The log


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9, 13])
@pytest.mark.parametrize("before", [0, 1, 4, 5])
def test_units_never_span_files_and_a_filler_ends_each(before: int, count: int, tmp_path: Path) -> None:
    """TimerLog.append: a unit goes to the next file if behind it no 16 bytes for a filler were left."""
    log = TimerLog(FILES, str(tmp_path), FILE_BYTES)
    append(log, before)
    append(log, count, before)
    expected, position = [], 0
    for _ in range(before + count):
        if FILE_BYTES - position % FILE_BYTES < UNIT_SIZE + 16:
            position += FILE_BYTES - position % FILE_BYTES
        expected.append(position)
        position += UNIT_SIZE
    again, places = walked(tmp_path)
    assert places == list(range(before + count))
    paths = sorted((tmp_path / "timerlog").iterdir())
    assert [int(path.name) for path in paths] == sorted({position // FILE_BYTES * FILE_BYTES for position in expected})
    assert {path.stat().st_size for path in paths} == {FILE_BYTES}
    for path in paths[:-1]:
        assert path.read_bytes()[4 * UNIT_SIZE :] == encode_filler(FILE_BYTES - 4 * UNIT_SIZE).ljust(48, b"\0")
    assert again.units_at(np.array(expected))["commitlog_offset"].tolist() == list(range(before + count))


def test_appending_goes_on_where_a_broker_stopped(fixture_store: Callable[[str], Fixture]) -> None:
    """The bytes before stay, the unit behind them is the next one that recovery finds (TimerMessageStore.recoverAndRevise)."""
    root = fixture_store("timer").root
    before = {path.name: path.read_bytes() for path in (root / "timerlog").iterdir()}
    log = TimerLog(FILES, str(root), 1024)
    count = sum(len(run.units) for run in log.walk(0))
    assert log.end == 2048 + 7 * UNIT_SIZE
    positions = log.places(20)
    assert positions[0] == log.end
    assert positions[-1] >= 3072
    log.append(positions, units(20))
    again = TimerLog(FILES, str(root), 1024)
    assert sum(len(run.units) for run in again.walk(0)) == count + 20
    for name, content in before.items():
        end = len(content.rstrip(b"\0"))
        assert (root / "timerlog" / name).read_bytes()[:end] == content[:end]


@pytest.mark.parametrize("position", [0, 52, 156, 208, 256, 260, 308])
def test_a_walk_begins_at_the_unit_of_a_position(position: int, tmp_path: Path) -> None:
    append(TimerLog(FILES, str(tmp_path), FILE_BYTES), 6)
    log, places = walked(tmp_path, position)
    first = {0: 0, 52: 1, 156: 3, 208: 4, 256: 4, 260: 4, 308: 5}[position]
    assert places == list(range(first, 6))
    assert log.end == 256 + 2 * UNIT_SIZE


def test_the_end_in_a_full_file_is_before_its_filler_or_behind_it(tmp_path: Path) -> None:
    append(TimerLog(FILES, str(tmp_path), FILE_BYTES), 4)
    log, _ = walked(tmp_path, 104)
    assert log.end == 208
    assert append(log, 1, 4) == [256]
    assert walked(tmp_path)[1] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("damage", [b"\x00\x00\x00\x35", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"])
def test_the_log_ends_at_the_first_bad_unit_and_is_cut_there(damage: bytes, tmp_path: Path) -> None:
    """recoverAndRevise, truncateDirtyFiles. Departure: what stood behind is zeroed, so that it never comes back."""
    append(TimerLog(FILES, str(tmp_path), FILE_BYTES), 10)
    FILES.write(str(tmp_path / "timerlog" / f"{256:020d}"), UNIT_SIZE, damage)
    log, places = walked(tmp_path)
    assert places == [0, 1, 2, 3, 4]
    log.cut()
    log.sync()
    assert [path.name for path in sorted((tmp_path / "timerlog").iterdir())] == [f"{0:020d}", f"{256:020d}"]
    assert not any((tmp_path / "timerlog" / f"{256:020d}").read_bytes()[UNIT_SIZE:])
    append(log, 1, 77)
    assert walked(tmp_path)[1] == [0, 1, 2, 3, 4, 77]


def test_the_last_unit_is_found_across_files(tmp_path: Path) -> None:
    """TimerMessageStore.reviseQueueOffset reads before the log's end."""
    log = TimerLog(FILES, str(tmp_path), FILE_BYTES)
    assert log.last_unit() is None
    for count in range(1, 10):
        append(log, 1, count)
        again, _ = walked(tmp_path)
        unit = again.last_unit()
        assert unit is not None
        assert unit["commitlog_offset"] == count
    append(log, 3, 10)
    log, _ = walked(tmp_path)
    log.end = 768  # an empty file stands there
    unit = log.last_unit()
    assert unit is not None
    assert unit["commitlog_offset"] == 12


def test_files_go_whose_last_unit_points_before_the_log(tmp_path: Path) -> None:
    """MappedFileQueue.deleteExpiredFileByOffsetForTimerLog: in order, never the last file."""
    log = TimerLog(FILES, str(tmp_path), FILE_BYTES)
    append(log, 14)
    assert log.delete_expired(3) == 0
    assert log.delete_expired(4) == 1
    assert log.file_starts == (256, 512, 768)
    assert log.delete_expired(10_000) == 2
    assert log.file_starts == (768,)
    assert walked(tmp_path)[1] == [12, 13]
    assert log.units_at(np.array([0, 780]))["commitlog_offset"].tolist() == [0, 0]


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    """MappedFileQueue.load: a broker does not start either."""
    append(TimerLog(FILES, str(tmp_path), FILE_BYTES), 1)
    with pytest.raises(StoreRefusedError, match="256 bytes is no timer log file of 512 bytes"):
        TimerLog(FILES, str(tmp_path), 512)


# The wheel


def wheel_in(root: Path) -> TimerWheel:
    return TimerWheel(FILES, str(root))


def slot(wheel: TimerWheel, tick: int) -> tuple[int, ...]:
    return tuple(int(value) for value in wheel.slots[tick % WHEEL_SLOTS].item())


def enter(wheel: TimerWheel, *entries: tuple[int, int, int]) -> list[int]:
    columns = np.array(entries, np.int64).T
    return [int(position) for position in wheel.enter(columns[0], columns[1], columns[2].astype(np.int32))]


TICK = 1_795_251_500


def test_units_are_linked_to_the_ones_before_them(tmp_path: Path) -> None:
    """TimerMessageStore.doEnqueue, TimerWheel.putSlot; one by one or many at once."""
    wheel = wheel_in(tmp_path)
    entries = [(TICK, 0, 1), (TICK + 1, 52, 1), (TICK, 104, 1), (TICK, 156, -1), (TICK + 1, 208, 1), (TICK, 260, 1)]
    previous = enter(wheel, *entries[:3]) + enter(wheel, *entries[3:])
    assert previous == [-1, -1, 0, 104, 52, 156]
    assert slot(wheel, TICK) == (TICK, 0, 260, 2, 0)
    assert slot(wheel, TICK + 1) == (TICK + 1, 52, 208, 2, 0)
    again = wheel_in(tmp_path)
    for entry in entries:
        enter(again, entry)
    assert (again.slots == wheel.slots).all()


def test_a_tick_takes_over_the_slot_of_one_fourteen_days_ago(tmp_path: Path) -> None:
    """TimerWheel.getSlot: a slot of another tick counts as empty."""
    wheel = wheel_in(tmp_path)
    enter(wheel, (TICK, 0, 1), (TICK, 52, 1))
    assert len(wheel.waiting(TICK, TICK + 1)) == 1
    assert enter(wheel, (TICK + WHEEL_SLOTS, 104, 1)) == [-1]
    assert slot(wheel, TICK) == (TICK + WHEEL_SLOTS, 104, 104, 1, 0)
    assert len(wheel.waiting(TICK, TICK + 1)) == 0


def test_a_saved_wheel_reads_the_same(tmp_path: Path) -> None:
    wheel = wheel_in(tmp_path)
    enter(wheel, (TICK, 0, 1), (TICK + 500, 52, 1))
    wheel.save()
    assert (tmp_path / "timerwheel").stat().st_size == 38_707_200
    enter(wheel, (TICK, 104, 1), (WHEEL_SLOTS * 1_485 - 1, 156, 1))
    wheel.save()
    again = wheel_in(tmp_path)
    assert again.was_there
    assert (again.slots == wheel.slots).all()
    assert (tmp_path / "timerwheel").read_bytes() == wheel.slots.tobytes()
    assert again.waiting(0, ALL_TICKS)["tick"].tolist() == sorted([TICK, TICK + 500, WHEEL_SLOTS * 1_485 - 1])
    assert again.waiting(TICK, ALL_TICKS)["count"].sum() == 4


def test_revising_lets_a_slot_end_at_the_newest_unit_of_the_log(tmp_path: Path) -> None:
    """TimerWheel.reviseSlot(time, IGNORE, position, force)."""
    wheel = wheel_in(tmp_path)
    enter(wheel, (TICK, 0, 1), (TICK, 52, 1), (TICK + 1 - WHEEL_SLOTS, 104, 1))
    wheel.revise(np.array([TICK, TICK + 1, TICK, TICK + 1]), np.array([156, 208, 260, 312]))
    assert slot(wheel, TICK)[:3] == (TICK, 0, 260)
    assert slot(wheel, TICK + 1) == (TICK + 1, 208, 312, 2, 0)


def test_slots_that_point_behind_the_log_are_told_and_emptied(tmp_path: Path) -> None:
    """TimerWheel.checkPhyPos finds them; Java leaves them, and links the unit that later comes to that place to itself."""
    wheel = wheel_in(tmp_path)
    enter(wheel, (TICK, 0, 1), (TICK + 1, 52, 1), (TICK, 104, 1))
    assert wheel.behind(104, TICK)["tick"].tolist() == [TICK]
    assert wheel.behind(52, TICK)["tick"].tolist() == [TICK, TICK + 1]
    assert wheel.behind(52, TICK + 1)["tick"].tolist() == [TICK + 1]
    wheel.empty(np.array([TICK]))
    assert wheel.waiting(TICK, TICK + 1).tolist() == []
    assert enter(wheel, (TICK, 104, 1)) == [-1]
    assert slot(wheel, TICK) == (TICK, 104, 104, 1, 0)


def test_a_wheel_of_another_length_is_refused(tmp_path: Path) -> None:
    """TimerWheel's constructor: `Timer wheel length:… != expected`."""
    (tmp_path / "timerwheel").write_bytes(bytes(32 * 86_400))
    with pytest.raises(StoreRefusedError, match="2764800 bytes, and a timer wheel 38707200"):
        wheel_in(tmp_path)


def test_an_empty_file_is_a_new_wheel(tmp_path: Path) -> None:
    """TimerWheel's constructor takes length 0 for none."""
    (tmp_path / "timerwheel").write_bytes(b"")
    wheel = wheel_in(tmp_path)
    assert not wheel.was_there
    enter(wheel, (TICK, 0, 1))
    wheel.save()
    assert wheel_in(tmp_path).waiting(0, ALL_TICKS)["count"].sum() == 1


# Slots that are due


@pytest.mark.parametrize("count", [1, 50])
def test_links_and_a_scan_of_the_log_find_the_same(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TimerMessageStore.dequeue follows the links; where most of the log is due it is read through."""
    log, wheel = TimerLog(FILES, str(tmp_path), FILE_BYTES), wheel_in(tmp_path)
    choice = np.random.default_rng(count)
    for _ in range(count):
        size = int(choice.integers(1, 20))
        ticks, positions = TICK + choice.integers(0, 7, size), log.places(size)
        made = units(size)
        made["write_time_ms"], made["delay_ms"] = 1_000 * TICK, 1_000 * (ticks - TICK)
        made["previous_position"] = wheel.enter(ticks, positions, np.ones(size, np.int32))
        log.append(positions, made)
    scanned = timer_store.due_units(wheel, log, TICK + 1, TICK + 5, 1_000)
    monkeypatch.setattr(timer_store, "_SCAN_WASTE", -1)
    monkeypatch.setattr(timer_store, "PUT_ROWS", -1)
    linked = timer_store.due_units(wheel, log, TICK + 1, TICK + 5, 1_000)
    assert scanned.ticks.tolist() == linked.ticks.tolist() == sorted(scanned.ticks.tolist())
    assert scanned.units.tobytes() == linked.units.tobytes()
    in_slots = wheel.waiting(TICK + 1, TICK + 5)["count"].sum()
    assert len(scanned.units) == in_slots > 0


def test_a_group_is_whole_slots_and_a_put_a_part_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_store, "PUT_ROWS", 4)
    ticks = np.array([1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 4, 5])
    groups = list(timer_store.DueUnits(ticks, units(12)).groups())
    assert [group.ticks.tolist() for group in groups] == [[1, 1, 1, 2], [3] * 6, [4, 5]]
    assert [[int(rows.sum()) for rows in group.puts()] for group in groups] == [[4], [4, 2], [2]]


# Counts


def test_the_brokers_counts_are_read_changed_and_kept(pristine_store: Callable[[str], Fixture]) -> None:
    """TimerMetrics.decode, addAndGet, encode; the version goes up once for all that a delivery changed."""
    text = (pristine_store("timer").root / "config" / "timermetrics").read_text("utf-8")
    before = TimerMetrics.load(text)
    assert before.counts == {"TopicTimer": 15}
    assert before.version.counter == json.loads(text)["dataVersion"]["counter"] > 0
    assert before.with_changes({"TopicTimer": 0}, now_ms=1) is before
    after = json.loads(before.with_changes({"TopicTimer": -2, "Other": 3}, now_ms=77).to_text())
    assert {topic: entry["count"] for topic, entry in after["timingCount"].items()} == {"TopicTimer": 13, "Other": 3}
    assert after["timingCount"]["Other"]["timeStamp"] == after["dataVersion"]["timestamp"] == 77
    assert after["dataVersion"]["counter"] == before.version.counter + 1


def test_numbers_are_read_as_java_reads_them_however_long() -> None:
    """Long.parseLong; a record's properties have room for 32,767 digits."""
    texts = ["12", "+3", "-0007", "0" * 5_000 + "7", "9" * 5_000, str(2**63), str(2**63 - 1), "", "-", None]
    expected = [12, 3, -7, 7, None, None, 2**63 - 1, None, None, None]
    assert whole_numbers(pa.array(texts, pa.string()), pa.int64()).to_pylist() == expected
