"""Delay levels, and the timer's files as a broker wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import ConfigurationError
from storage.format.arrays import string_hash
from storage.format.delay import (
    CHECKPOINT_PAGE_BYTES,
    DEFAULT_LEVELS,
    FILLER_SIZE,
    MAGIC_DELETE,
    MAGIC_ROLL,
    UNIT,
    UNIT_SIZE,
    WHEEL_SLOTS,
    TimerCheckpoint,
    decode_slots,
    decode_timer_checkpoint,
    decode_units,
    deliver_time_ms,
    due_times_ms,
    effective_precision_ms,
    effective_window,
    encode_filler,
    encode_timer_checkpoint,
    is_filler,
    is_unit,
    parse_delay_levels,
)
from storage.settings.nouns import DelayConfig
from tests.support.fixture_stores import Fixture, golden_lines


def test_the_default_levels() -> None:
    delays = parse_delay_levels(DEFAULT_LEVELS)
    assert len(delays) == 18
    assert (delays[0], delays[3], delays[4], delays[17]) == (1_000, 30_000, 60_000, 7_200_000)


def test_all_units() -> None:
    assert parse_delay_levels("1s 2m 3h 4d") == (1_000, 120_000, 10_800_000, 345_600_000)


@pytest.mark.parametrize(
    "text", ["1", "s", "1x", "-1s", "1.5s", "1s,2s", "1S", "²s", "9" * 40 + "d", "9" * 5_000 + "s"]
)
def test_what_is_no_level_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_delay_levels(text)


def test_the_setting_is_named_once() -> None:
    with pytest.raises(ConfigurationError) as failure:
        DelayConfig(message_delay_level="1s 2x")
    assert str(failure.value).count("messageDelayLevel") == 1
    assert "'2x' is not a number" in str(failure.value)


@pytest.mark.parametrize("name", ["clean", "recovered"])
def test_the_broker_entered_these_deliver_times(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    (config,) = golden_lines(fixture.golden, "config")
    delays = parse_delay_levels(config["messageDelayLevel"])
    levels = set()
    for line in golden_lines(fixture.golden, "message"):
        if line["cqTopic"] == "SCHEDULE_TOPIC_XXXX":
            level = int(line["properties"]["DELAY"])
            levels.add(level)
            assert deliver_time_ms(level, line["storeTimestamp"], delays) == line["tagsCode"]
            assert line["cqQueueId"] == level - 1
    assert len(levels) >= 4


def test_a_level_above_the_last_counts_as_the_last() -> None:
    assert deliver_time_ms(99, 5, (1_000, 2_000)) == 2_005


NAMES = ("timer", "timer-killed")
TIMER_TOPIC = "rmq_sys_wheel_timer"
LOG_FILE_BYTES = 1024
"""mappedFileSizeTimerLog of the fixtures: 19 units, then a filler of 36 bytes."""


def log_files(fixture: Fixture) -> list[Path]:
    return sorted((fixture.root / "timerlog").iterdir())


def all_units(fixture: Fixture) -> dict[int, np.void]:
    """Position in the log → unit."""
    found = {}
    for path in log_files(fixture):
        for number, unit in enumerate(decode_units(path.read_bytes())):
            if is_unit(np.array([unit], UNIT))[0]:
                found[int(path.name) + number * UNIT_SIZE] = unit
    return found


def parked(fixture: Fixture) -> dict[int, dict[str, Any]]:
    """Place in the commit log → message of the timer's topic."""
    lines = golden_lines(fixture.golden, "message")
    return {line["cqPhysicalOffset"]: line for line in lines if line["cqTopic"] == TIMER_TOPIC}


@pytest.mark.parametrize("name", NAMES)
def test_every_unit_names_a_message_as_apache_reads_it(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    """TimerMessageStore.doEnqueue."""
    fixture = pristine_store(name)
    messages, units = parked(fixture), all_units(fixture)
    assert len(units) > 30
    for unit in units.values():
        line = messages[int(unit["commitlog_offset"])]
        properties = line["properties"]
        assert unit["record_size_bytes"] == line["cqSize"]
        assert unit["topic_hash"] == string_hash(properties["REAL_TOPIC"])
        assert bool(unit["magic"] & MAGIC_DELETE) == ("TIMER_DEL_UNIQKEY" in properties)
        due_ms, out_ms = int(due_times_ms(np.array([unit], UNIT))[0]), int(properties["TIMER_OUT_MS"])
        assert (due_ms < out_ms) if unit["magic"] & MAGIC_ROLL else (due_ms == out_ms)
        assert unit["reserved"] == 0
    assert sum(bool(unit["magic"] & MAGIC_ROLL) for unit in units.values()) >= 10
    assert sum(bool(unit["magic"] & MAGIC_DELETE) for unit in units.values()) >= 1


@pytest.mark.parametrize("name", NAMES)
def test_units_and_fillers_encode_to_the_brokers_bytes(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    """TimerLog.append."""
    paths = log_files(pristine_store(name))
    assert len(paths) >= 2
    for path in paths[:-1]:
        content = path.read_bytes()
        units = decode_units(content)[:-1] if len(decode_units(content)) > 19 else decode_units(content)
        assert is_unit(units).all()
        assert len(units) == 19
        rest = LOG_FILE_BYTES - 19 * UNIT_SIZE
        assert units.tobytes() + encode_filler(rest) == content[: 19 * UNIT_SIZE + FILLER_SIZE]
        assert not any(content[19 * UNIT_SIZE + FILLER_SIZE :])


def test_a_filler_is_no_unit_and_free_space_is_neither() -> None:
    places = decode_units(encode_filler(100).ljust(UNIT_SIZE, b"\0") + bytes(UNIT_SIZE) + b"\0" * 20)
    assert is_filler(places).tolist() == [True, False]
    assert is_unit(places).tolist() == [False, False]


@pytest.mark.parametrize(("magic", "is_one"), [(0, True), (1, True), (7, True), (15, True), (16, False), (-1, False)])
def test_only_the_four_lowest_bits_make_a_magic(magic: int, is_one: bool) -> None:
    """TimerMessageStore.isMagicOK."""
    unit = np.zeros(1, UNIT)
    unit["size_bytes"], unit["magic"] = UNIT_SIZE, magic
    assert is_unit(unit)[0] == is_one
    unit["size_bytes"] = UNIT_SIZE + 1
    assert not is_unit(unit)[0]


def test_slots_link_the_units_of_their_tick(pristine_store: Callable[[str], Fixture]) -> None:
    """TimerWheel.putSlot, Slot: first and last unit, count; each unit names the one before it."""
    fixture = pristine_store("timer")
    content = (fixture.root / "timerwheel").read_bytes()
    slots, units = decode_slots(content), all_units(fixture)
    assert len(slots) == WHEEL_SLOTS
    assert slots.tobytes() == content
    used = slots[slots["tick"] != 0]
    assert len(used) > 5
    assert (used["tick"] % WHEEL_SLOTS == np.flatnonzero(slots["tick"])).all()
    seen = 0
    for slot in used:
        position, count = int(slot["last_position"]), 0
        while position != -1:
            unit = units[position]
            assert (unit["write_time_ms"] + unit["delay_ms"]) // 1_000 == slot["tick"]
            count += -1 if unit["magic"] & MAGIC_DELETE else 1
            seen += 1
            first, position = position, int(unit["previous_position"])
        assert (first, count, 0) == (slot["first_position"], slot["count"], slot["magic"])
    assert seen == len(units)


@pytest.mark.parametrize("name", NAMES)
def test_the_checkpoint_says_how_far_the_broker_was(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    """TimerMessageStore.prepareTimerCheckPoint, TimerCheckpoint.flush."""
    fixture = pristine_store(name)
    page = (fixture.root / "config" / "timercheck").read_bytes()
    checkpoint = decode_timer_checkpoint(page)
    assert encode_timer_checkpoint(checkpoint) == page
    assert len(page) == CHECKPOINT_PAGE_BYTES
    (queue,) = [line for line in golden_lines(fixture.golden, "queue") if line["topic"] == TIMER_TOPIC]
    units = all_units(fixture)
    log_end = max(units) + UNIT_SIZE
    assert checkpoint.queue_offset == checkpoint.master_queue_offset
    if name == "timer":
        assert (checkpoint.queue_offset, checkpoint.log_position) == (queue["maxOffset"], log_end)
    else:  # killed within a flush interval: messages were taken, units written, and no checkpoint since
        assert checkpoint.queue_offset < queue["maxOffset"]
        assert checkpoint.log_position < log_end
        assert checkpoint.log_position in units
    assert checkpoint.last_read_time_ms % 1_000 == 0
    assert 0 <= checkpoint.version_time_ms - checkpoint.last_read_time_ms < 5_000


def test_a_short_or_missing_page_reads_as_zeros() -> None:
    """TimerCheckpoint: an older broker wrote no DataVersion, and the map fills up with zeros."""
    page = encode_timer_checkpoint(TimerCheckpoint(1, 2, 3, 4, 5, 6, 7))
    assert decode_timer_checkpoint(b"") == TimerCheckpoint()
    assert decode_timer_checkpoint(page[:32]) == TimerCheckpoint(1, 2, 3, 4)


def test_metrics_count_what_waits(pristine_store: Callable[[str], Fixture]) -> None:
    """TimerMetrics.addAndGet: what the fixture's file counts is what was sent less what was delivered and cancelled."""
    fixture = pristine_store("timer")
    metrics = json.loads((fixture.root / "config" / "timermetrics").read_text("utf-8"))
    lines = [json.loads(line) for line in (fixture.root.parent / "sent.jsonl").read_text("utf-8").splitlines()]
    delivered = [line for line in golden_lines(fixture.golden, "message") if line["cqTopic"] == "TopicTimer"]
    cancels = sum(line["kind"] == "cancel" for line in lines)
    waiting = len(lines) - 2 * cancels - len(delivered)
    assert waiting == 15
    assert metrics["timingCount"]["TopicTimer"]["count"] == waiting


@pytest.mark.parametrize(
    ("configured", "effective"),
    [(1_000, 1_000), (60_000, 1_000), (999, 500), (500, 500), (499, 200), (200, 200), (199, 100), (100, 100), (1, 100)],
)
def test_the_precision_is_one_of_four(configured: int, effective: int) -> None:
    """MessageStoreConfig.setTimerPrecisionMs."""
    assert effective_precision_ms(configured) == effective


@pytest.mark.parametrize(
    ("configured", "effective"),
    [(2, 2), (172_800, 172_800), (604_740, 604_740), (604_741, 604_740), (1, 604_740), (0, 604_740), (-5, 604_740)],
)
def test_the_window_is_at_most_a_week_less_a_minute(configured: int, effective: int) -> None:
    """TimerMessageStore's constructor: timerRollWindowSlot."""
    assert effective_window(configured) == effective
