"""What the timer does to messages, case by case as Java does it; each case names the method of TimerMessageStore that it holds to.

Properties of delivered and rolled records are compared with those that a broker wrote (fixture `timer`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import StoreConfig, open_store
from storage.delay.timer_records import LastRolls, due_messages, read_timer_records
from storage.delay.timer_store import NOTHING_TIMED
from storage.format.arrays import string_hash
from storage.format.properties import decode_properties
from storage.queues.scan import scan_queue
from storage.rules.delays import TIMER_TOPIC
from storage.rules.inner_messages import InnerMessage, InnerMessages
from tests.support.fixture_stores import Fixture
from tests.support.timed_store import NOW, TIMER, TimedStore

ROLL_TIMES, ENQUEUE_MS, DEQUEUE_MS = "TIMER_ROLL_TIMES", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"


@pytest.fixture
def timed(tmp_path: Path) -> Iterable[TimedStore]:
    timed = TimedStore(tmp_path / "store")
    yield timed
    timed.store.release()


# When


@pytest.mark.parametrize("late_ms", [0, 1, 999])
def test_a_message_waits_until_its_tick_is_over(late_ms: int, timed: TimedStore) -> None:
    """dequeue: a slot is read when currReadTimeMs < currWriteTimeMs. TIMER_OUT_MS is before the asked time, so it is never early."""
    timed.park("m", NOW + 5_000)
    assert timed.deliver(NOW + 5_000 + late_ms).delivered == 0
    report = timed.deliver(NOW + 6_000 + late_ms)
    assert (report.delivered, timed.delivered) == (1, ["m"])
    assert timed.deliver(NOW + 9_000).delivered == 0, "and once"


def test_messages_come_tick_by_tick_and_in_a_tick_as_they_were_put(timed: TimedStore) -> None:
    """dequeue: slot after slot, normalMsgStack.addFirst."""
    for name, second in (("d", 4), ("a", 1), ("e", 4), ("b", 2), ("c", 2), ("later", 30)):
        timed.park(name, NOW + second * 1_000)
    report = timed.deliver(NOW + 10_000)
    assert timed.delivered == ["a", "b", "c", "d", "e"]
    assert (report.delivered, report.pending, report.next_due_ms) == (5, 1, NOW + 30_000)


@pytest.mark.parametrize("days", [0, 1, 6, 8, 20])
def test_what_is_long_overdue_is_delivered(days: int, timed: TimedStore) -> None:
    """recover. Departure: what was due more than seven days ago Java's wheel has forgotten (TIMER_WHEEL_TTL_DAY)."""
    timed.park("entered", NOW + 1_000)
    timed.deliver(NOW)
    timed.park("not entered", NOW + 2_000)
    timed.reopen()
    timed.deliver(NOW + days * 86_400_000 + 10_000)
    timed.deliver(NOW + days * 86_400_000 + 12_000)
    assert sorted(timed.delivered) == ["entered", "not entered"]


def test_a_message_due_before_the_last_delivery_comes_with_the_next(timed: TimedStore) -> None:
    """TimerEnqueuePutService.putMessageToTimerWheel delivers it at once; here by way of the first slot not read."""
    timed.park("first", NOW)
    timed.deliver(NOW + 10_000)
    timed.park("second", NOW + 4_000)
    timed.deliver(NOW + 11_000)
    assert timed.delivered == ["first", "second"]


@pytest.mark.parametrize("precision_ms", [100, 200, 500])
def test_a_finer_precision_has_shorter_ticks(precision_ms: int, tmp_path: Path) -> None:
    """MessageStoreConfig.timerPrecisionMs, TimerWheel.getSlotIndex."""
    timed = TimedStore(tmp_path / "store", replace(TIMER, timer_precision_ms=precision_ms))
    timed.park("m", NOW + 3_000)
    assert timed.deliver(NOW + 3_000 + precision_ms - 1).delivered == 0
    assert timed.deliver(NOW + 3_000 + precision_ms).delivered == 1
    assert timed.checkpoint.last_read_time_ms == NOW + 3_000 + precision_ms


def test_a_clock_that_went_back_delivers_nothing_twice(timed: TimedStore) -> None:
    """dequeue waits until currWriteTimeMs has passed currReadTimeMs again."""
    timed.park("a", NOW + 1_000)
    timed.deliver(NOW + 60_000)
    timed.park("b", NOW + 2_000)
    assert timed.deliver(NOW + 30_000).delivered == 0
    assert timed.deliver(NOW + 62_000).delivered == 1
    assert timed.delivered == ["a", "b"]


def test_lateness_is_the_store_time_less_the_time_it_was_due(timed: TimedStore) -> None:
    for second in (1, 2, 9):
        timed.park(f"m{second}", NOW + second * 1_000)
    report = timed.deliver(NOW + 10_000)
    assert (report.lateness_p50_ms, report.lateness_max_ms) == (8_000, 9_000)


# What


def test_a_delivered_message_keeps_all_but_place_and_gets_its_times(timed: TimedStore) -> None:
    """convert, convertMessage: REAL_TOPIC and REAL_QID stand in the record; TIMER_ENQUEUE_MS is the unit's write time."""
    message = InnerMessage(
        topic=TIMER_TOPIC,
        queue_id=0,
        body=b"\x00body",
        properties={
            "TAGS": "t",
            "KEYS": "k",
            "UNIQ_KEY": "U",
            "TIMER_OUT_MS": f"{NOW}",
            "REAL_TOPIC": "T",
            "REAL_QID": "5",
        },
        flag=9,
        sys_flag=1,
        born_time_ms=77,
        born_host=b"\x0a\x00\x00\x01\x00\x00\x04\xd2",
        reconsume_times=3,
        prepared_transaction_offset=42,
    )
    timed.store.put_inner([message])
    timed.deliver(NOW + 3_456)
    (found,) = timed.messages("T", 5)
    times = {ENQUEUE_MS: f"{NOW + 3_000}", DEQUEUE_MS: f"{NOW + 3_456}"}
    assert dict(found.properties) == {**message.properties, **times}
    expected = replace(message, topic="T", queue_id=5, properties=found.properties, prepared_transaction_offset=0)
    assert InnerMessage.of(found) == expected
    assert timed.store.get("T", 5, 0, tags="t").messages == (found,)
    assert [hit.commitlog_offset for hit in timed.store.query("T", "k")] == [found.commitlog_offset]


def lines_of(fixture: Fixture, topic: str) -> list[dict[str, Any]]:
    with fixture.golden.open(encoding="utf-8") as text:
        lines = [json.loads(line) for line in text]
    return [line for line in lines if line["type"] == "message" and line["cqTopic"] == topic]


@pytest.mark.parametrize("name", ["timer", "timer-killed"])
def test_records_become_what_the_broker_made_of_them(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    """convert, convertMessage: each record of the timer's topic, delivered or rolled with the broker's own times, is the broker's."""
    fixture = pristine_store(name)
    parked = lines_of(fixture, TIMER_TOPIC)
    copies: dict[str, list[dict[str, Any]]] = {}
    for line in parked + lines_of(fixture, "TopicTimer"):
        copies.setdefault(line["properties"]["UNIQ_KEY"], []).append(line)
    place_of = {line["cqPhysicalOffset"]: row for row, line in enumerate(parked)}
    with open_store(fixture.root) as store:
        queue = store.queues.get(TIMER_TOPIC, 0)
        assert queue is not None
        (slice_,) = scan_queue(queue, store.log, store.log_end, 0, len(parked))
        timed = read_timer_records(slice_.records, 4 << 20)
        compared = 0
        for versions in copies.values():
            for before, after in pairwise(versions):
                row = place_of[before["cqPhysicalOffset"]]
                is_rolled = np.full(len(parked), after["cqTopic"] == TIMER_TOPIC)
                enqueued = np.full(len(parked), int(after["properties"][ENQUEUE_MS]))
                due, fits = due_messages(timed, is_rolled, enqueued, int(after["properties"][DEQUEUE_MS]))
                assert fits[row]
                assert decode_properties(due.properties[row].as_py()) == after["properties"]
                assert (due.topics[row].as_py(), due.queue_ids[row]) == (after["cqTopic"], after["cqQueueId"])
                assert (due.born_times_ms[row], due.flags[row]) == (after["bornTimestamp"], after["flag"])
                assert due.reconsume_times[row] == after["reconsumeTimes"]
                compared += 1
        assert compared >= 18


def test_nothing_is_done_where_the_timer_is_off_or_was_never_used(tmp_path: Path) -> None:
    """BrokerController.initializeMessageStore: without timerWheelEnable there is no timer."""
    off = TimedStore(tmp_path / "off", replace(TIMER, timer_wheel_enable=False))
    off.park("m", NOW)
    assert off.deliver(NOW + 10_000) == NOTHING_TIMED
    unused = TimedStore(tmp_path / "unused")
    assert unused.deliver(NOW + 10_000) == NOTHING_TIMED
    for timed in (off, unused):
        assert {"timerwheel", "timerlog"}.isdisjoint(path.name for path in timed.root.iterdir())


# Deletions


def test_a_deletion_takes_its_message_out_of_its_slot(timed: TimedStore) -> None:
    """TimerDequeueGetMessageService, buildDeleteKey: real topic + unique key, in the same slot, before or after its message.
    From 5.4 on it names the unique key alone.
    """
    timed.park("deletes-b", NOW + 5_000, TIMER_DEL_UNIQKEY="TopicA+b")
    for name in "abcde":
        timed.park(name, NOW + 5_000)
    timed.park("deletes-c", NOW + 5_000, TIMER_DEL_UNIQKEY="TopicA+c")
    timed.park("deletes-e", NOW + 5_000, TIMER_DEL_UNIQKEY="e")
    assert timed.deliver(NOW + 2_000).pending == 2
    assert timed.counts() == {"TopicA": 2}
    report = timed.deliver(NOW + 7_000)
    assert timed.delivered == ["a", "d"]
    assert (report.delivered, report.cancelled, report.pending) == (2, 3, 0)
    assert timed.counts() == {"TopicA": 0}


@pytest.mark.parametrize(
    ("key", "second"),
    [("TopicA+m", 6), ("m", 6), ("TopicB+m", 5), ("TopicA+M", 5), ("M", 5)],
    ids=["another slot", "another slot, no topic", "another topic", "another key", "another key, no topic"],
)
def test_another_deletion_does_nothing_and_goes_nowhere(key: str, second: int, timed: TimedStore) -> None:
    """doPut: PUT_NO_RETRY for a deletion. The count of its topic is right again (Java's avoidDeleteLose)."""
    timed.park("m", NOW + 5_000)
    timed.park("deletion", NOW + second * 1_000, TIMER_DEL_UNIQKEY=key)
    report = timed.deliver(NOW + 10_000)
    assert timed.delivered == ["m"]
    assert (report.cancelled, report.undeliverable_count) == (0, 0)
    assert timed.counts().get("TopicA", 0) == 0


def test_two_deletions_of_one_message_in_both_forms_count_as_one(timed: TimedStore) -> None:
    """So a broker writes them that does not know which release delivers."""
    timed.park("m", NOW + 5_000)
    for key in ("TopicA+m", "m"):
        timed.park("m", NOW + 5_000, TIMER_DEL_UNIQKEY=key)
    report = timed.deliver(NOW + 10_000)
    assert (timed.delivered, report.cancelled, report.pending) == ([], 1, 0)
    assert timed.counts().get("TopicA", 0) == 0


def test_a_deletion_with_the_key_of_a_message_that_was_rolled_is_another_message(timed: TimedStore) -> None:
    """A recall gives the deletion the unique key of its message; a timer that starts anew enters each copy's last roll only."""
    timed.park("m", NOW + 100_000)
    for second in (0, 61):
        timed.deliver(NOW + second * 1_000)
    timed.park("m", NOW + 100_000, TIMER_DEL_UNIQKEY="m")
    queue = timed.store.queues.get(TIMER_TOPIC, 0)
    assert queue is not None
    slices = scan_queue(queue, timed.store.log, timed.store.log_end, 0, timed.store.max_offset(TIMER_TOPIC, 0))
    (records,) = [read_timer_records(each.records, 4_096) for each in slices]
    assert records.is_deletion.tolist() == [False, False, True]
    assert LastRolls([records]).are_older(records).tolist() == [True, False, False]


def test_a_deletion_needs_no_place_of_its_own(timed: TimedStore) -> None:
    timed.park("m", NOW + 5_000)
    timed.park("deletion", NOW + 5_000, TIMER_DEL_UNIQKEY="TopicA+m", REAL_QID="")
    assert timed.deliver(NOW + 10_000).undeliverable_count == 0
    assert timed.delivered == []


def test_a_deletion_put_while_nobody_delivered_still_finds_its_message(timed: TimedStore) -> None:
    """A running timer would have had it in the wheel in time: everything is entered before the first slot is read."""
    timed.park("before", NOW)
    timed.deliver(NOW + 2_000)
    timed.park("m", NOW + 10_000)
    timed.park("deletion", NOW + 10_000, TIMER_DEL_UNIQKEY="TopicA+m")
    assert timed.deliver(NOW + 60_000).cancelled == 1
    assert timed.delivered == ["before"]


# Rolling


@pytest.mark.parametrize(
    ("wait_s", "stop_s"),
    [(59, None), (60, 30), (79, 30), (80, 60), (500, 60)],
)
def test_a_message_beyond_the_window_stops_on_its_way(wait_s: int, stop_s: int | None, timed: TimedStore) -> None:
    """doEnqueue: needRoll; half a window if less than a third of one would be left, else a whole one."""
    timed.park("m", NOW + wait_s * 1_000)
    timed.deliver(NOW + 345)
    (unit,) = timed.units()
    assert unit["magic"] == (1 if stop_s is None else 3)
    assert (unit["write_time_ms"], unit["delay_ms"]) == (NOW, (stop_s or wait_s) * 1_000)
    assert unit["topic_hash"] == string_hash("TopicA")


def test_a_rolled_message_goes_round_and_comes_once(timed: TimedStore) -> None:
    """convert(needRoll): TIMER_ROLL_TIMES counts the rounds; the times are those of the last one."""
    timed.park("m", NOW + 200_000)
    rounds = [timed.deliver(NOW + second * 1_000).rolled for second in range(0, 220, 10)]
    assert sum(rounds) == 3  # after 60, 130 and 190 − 30 s, as doEnqueue has it
    assert timed.delivered == ["m"]
    parked = timed.messages(TIMER_TOPIC, 0)
    assert [message.properties.get(ROLL_TIMES) for message in parked] == [None, "1", "2", "3"]
    (found,) = timed.messages()
    assert found.properties[ROLL_TIMES] == "3"
    assert list(found.properties).count(DEQUEUE_MS) == 1
    assert timed.counts() == {"TopicA": 0}


def test_a_rolled_message_that_is_late_comes_in_one_go(timed: TimedStore) -> None:
    timed.park("far", NOW + 200_000)
    timed.park("near", NOW + 10_000)
    timed.deliver(NOW)
    report = timed.deliver(NOW + 900_000)
    assert timed.delivered == ["near", "far"]
    assert (report.rolled, report.pending) == (1, 0)


def test_a_deletion_beyond_the_window_rolls_with_its_message(timed: TimedStore) -> None:
    """TimerDequeueGetMessageService: a unit to be rolled is put back, also that of a deletion; in its own slot it deletes."""
    timed.park("m", NOW + 100_000)
    timed.deliver(NOW)
    timed.park("deletion", NOW + 100_000, TIMER_DEL_UNIQKEY="TopicA+m")
    timed.park("kept", NOW + 100_000)
    for second in range(0, 140, 20):
        timed.deliver(NOW + second * 1_000)
    assert timed.delivered == ["kept"]
    assert timed.counts() == {"TopicA": 0}


def test_late_rolled_messages_meet_their_deletions(timed: TimedStore) -> None:
    """Also where both are long due when somebody delivers again."""
    timed.park("m", NOW + 100_000)
    timed.park("deletion", NOW + 100_000, TIMER_DEL_UNIQKEY="TopicA+m")
    timed.deliver(NOW)
    assert timed.deliver(NOW + 500_000).cancelled == 1
    assert timed.delivered == []


# To another broker: a slave that stands in for its master


class Elsewhere:
    """Takes messages while it `takes`, and remembers them."""

    def __init__(self) -> None:
        self.takes = True
        self.found: list[str] = []

    def __call__(self, messages: InnerMessages) -> bool:
        if self.takes:
            self.found += [messages.message(row).body.decode() for row in range(messages.row_count)]
        return self.takes


def test_what_another_broker_does_not_take_waits(timed: TimedStore) -> None:
    elsewhere = Elsewhere()
    for second in (1, 2, 3):
        timed.park(f"m{second}", NOW + second * 1_000)
    assert timed.deliver(NOW + 2_000, elsewhere).delivered == 1
    elsewhere.takes = False
    report, counts = timed.deliver(NOW + 10_000, elsewhere), timed.counts()
    assert (report.delivered, report.pending, counts) == (0, 2, {"TopicA": 2})
    timed.reopen()
    elsewhere.takes = True
    assert timed.deliver(NOW + 11_000, elsewhere).delivered == 2
    assert (elsewhere.found, timed.delivered, timed.counts()) == (["m1", "m2", "m3"], [], {"TopicA": 0})


def test_a_message_beyond_the_window_waits_on_without_a_copy(timed: TimedStore) -> None:
    """The log is the master's: nothing is put at the queue's end, as rolled messages are."""
    elsewhere = Elsewhere()
    timed.park("far", NOW + 200_000)
    timed.park("gone", NOW + 150_000)
    timed.park("deletion", NOW + 150_000, TIMER_DEL_UNIQKEY="TopicA+gone")
    end = timed.store.log_end
    for second in range(0, 190, 10):
        elsewhere.takes = second % 20 == 0
        timed.deliver(NOW + second * 1_000, elsewhere)
    assert (elsewhere.found, timed.store.log_end) == ([], end)
    elsewhere.takes = True
    for second in (201, 202):
        timed.deliver(NOW + second * 1_000, elsewhere)
    assert (elsewhere.found, timed.delivered, timed.store.log_end) == (["far"], [], end)


def test_a_rolled_message_whose_checkpoint_was_lost_waits_once(timed: TimedStore) -> None:
    elsewhere = Elsewhere()
    timed.park("far", NOW + 200_000)
    timed.park("near", NOW + 60_000)
    timed.deliver(NOW, elsewhere)
    before = Path(timed.root, "config", "timercheck").read_bytes()
    timed.deliver(NOW + 61_000, elsewhere)
    timed.store.release()
    Path(timed.root, "config", "timercheck").write_bytes(before)
    timed.store = timed.open()
    for second in (62, 130, 192, 201, 202):
        timed.deliver(NOW + second * 1_000, elsewhere)
    assert elsewhere.found == ["near", "near", "far"]


# What stands on the disk


def test_units_are_written_as_java_writes_them(timed: TimedStore) -> None:
    """doEnqueue, TimerLog.append: linked in the slot, one file after the other."""
    for number in range(12):
        timed.park(f"m{number}", NOW + 20_000 + 1_000 * (number % 2))
    timed.park("deletion", NOW + 20_000, TIMER_DEL_UNIQKEY="TopicA+m0")
    timed.deliver(NOW + 1_999)
    units, parked = timed.units(), timed.messages(TIMER_TOPIC, 0)
    positions = [52 * number + (512 - 9 * 52) * (number // 9) for number in range(13)]  # 9 units a file of 512 bytes
    for number, (unit, message) in enumerate(zip(units, parked, strict=True)):
        previous = number - 2 if number >= 2 else None
        assert unit == {
            "size_bytes": 52,
            "previous_position": -1 if previous is None else positions[previous],
            "magic": 5 if number == 12 else 1,
            "write_time_ms": NOW + 1_000,
            "delay_ms": 19_000 + 1_000 * (number % 2),
            "commitlog_offset": message.commitlog_offset,
            "record_size_bytes": message.size_bytes,
            "topic_hash": string_hash("TopicA"),
            "reserved": 0,
        }
    assert sorted(path.name for path in (timed.root / "timerlog").iterdir()) == [f"{0:020d}", f"{512:020d}"]


def test_the_checkpoint_names_log_queue_and_time(timed: TimedStore) -> None:
    """prepareTimerCheckPoint: what a broker goes on from; the master's offset is a master's own."""
    for number in range(3):
        timed.park(f"m{number}", NOW + 20_000)
    timed.deliver(NOW + 1_999)
    first = timed.checkpoint
    assert first[:4] == (NOW + 1_000, 3 * 52, 3, 3)
    timed.deliver(NOW + 2_500)
    assert timed.checkpoint[:4] == (NOW + 2_000, 3 * 52, 3, 3)
    assert timed.checkpoint.version_counter > first.version_counter


def test_each_topics_waiting_messages_are_counted(timed: TimedStore) -> None:
    """addMetric: plus one when entered, minus one when it leaves."""
    timed.park("a", NOW + 5_000)
    timed.park("b", NOW + 5_000, REAL_TOPIC="TopicB")
    timed.park("c", NOW + 50_000, REAL_TOPIC="TopicB")
    timed.deliver(NOW)
    assert timed.counts() == {"TopicA": 1, "TopicB": 2}
    timed.deliver(NOW + 10_000)
    assert timed.counts() == {"TopicA": 0, "TopicB": 1}


# What nobody can deliver

UNREADABLE = {
    "no time": (None, {}, "TIMER_OUT_MS is no whole number"),
    "a time that is no number": ("soon", {}, "TIMER_OUT_MS is no whole number"),
    "a time with a blank": (f"{NOW} ", {}, "TIMER_OUT_MS is no whole number"),
    "a time of more than 64 bits": ("9223372036854775808", {}, "TIMER_OUT_MS is no whole number"),
    "no queue": (NOW, {"REAL_QID": ""}, "REAL_QID is no whole number"),
    "a queue of more than 32 bits": (NOW, {"REAL_QID": "2147483648"}, "REAL_QID is no whole number"),
    "no topic": (NOW, {"REAL_TOPIC": ""}, "REAL_TOPIC is missing or no topic"),
    "a topic outside the store": (NOW, {"REAL_TOPIC": "../config"}, "REAL_TOPIC is missing or no topic"),
    "a topic of 128 characters": (NOW, {"REAL_TOPIC": "t" * 128}, "REAL_TOPIC is missing or no topic"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_stops_javas_timer_for_ever_is_passed_over(case: str, timed: TimedStore) -> None:
    """enqueue (Long.parseLong) and convertMessage (Integer.parseInt): with timerSkipUnknownError=false Java tries the same for ever."""
    out_ms, properties, rule = UNREADABLE[case]
    timed.park("before", NOW)
    timed.park("bad", out_ms, **properties)
    timed.park("after", NOW)
    place = timed.messages(TIMER_TOPIC, 0)[1].commitlog_offset
    report = timed.deliver(NOW + 5_000)
    assert timed.delivered == ["before", "after"]
    ((found_place, found_rule),) = report.undeliverable
    assert (found_place, rule in found_rule, report.undeliverable_count) == (place, True, 1)
    assert timed.deliver(NOW + 9_000).undeliverable_count == 0, "it is told once"
    assert len(timed.units()) == 3, "a broker, which goes on behind the last unit, must not meet it"


def test_a_record_over_javas_buffer_is_passed_over(tmp_path: Path) -> None:
    """getMessageByCommitOffset: its buffer has maxMessageSize + 100 bytes, and a longer record throws for ever."""
    tiny = StoreConfig.tiny()
    timed = TimedStore(
        tmp_path / "store", config=replace(tiny, commit_log=replace(tiny.commit_log, max_message_size=1_000))
    )
    timed.park("x" * 800, NOW)
    timed.park("m", NOW)
    sizes = [message.size_bytes for message in timed.messages(TIMER_TOPIC, 0)]
    assert sizes[0] > 1_100 > sizes[1]
    report = timed.deliver(NOW + 5_000)
    assert timed.delivered == ["m"]
    assert "more than 1100 bytes" in report.undeliverable[0].rule


def test_a_message_whose_properties_are_full_is_told_and_the_others_come(tmp_path: Path) -> None:
    """doPut: PROPERTIES_SIZE_EXCEEDED is PUT_NO_RETRY."""
    tiny = StoreConfig.tiny()
    log = replace(tiny.commit_log, mapped_file_size_commit_log=1 << 17)
    timed = TimedStore(tmp_path / "store", config=replace(tiny, commit_log=log))
    timed.park("full", NOW, filling="x" * 32_660)
    timed.park("m", NOW)
    report = timed.deliver(NOW + 5_000)
    assert timed.delivered == ["m"]
    assert "no room" in report.undeliverable[0].rule


# Many


def test_a_full_slot_and_many_slots_are_delivered_in_order(timed: TimedStore) -> None:
    """Links are followed or the log read through (`timer_store.py`): the order is the same."""
    first = [f"a{number}" for number in range(40)]
    timed.store.put_inner(
        [
            InnerMessage(
                topic=TIMER_TOPIC,
                queue_id=0,
                body=name.encode(),
                properties={
                    "TIMER_OUT_MS": str(NOW + 5_000 + 1_000 * (n % 4)),
                    "REAL_TOPIC": "TopicA",
                    "REAL_QID": "3",
                },
            )
            for n, name in enumerate(first)
        ]
    )
    report = timed.deliver(NOW + 30_000)
    assert report.delivered == 40
    assert timed.delivered == [name for tick in range(4) for name in first[tick::4]]
