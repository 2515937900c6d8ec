"""The job delivers what the Apache broker left pending, as the broker delivered the rest, and says how late it was."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.deliver_delayed import deliver_delayed, main, run
from jobs.run import JobReport, Shared, StorePath
from jobs.verify_store import verify_store
from storage import Message, MessageStore, StoreConfig, open_store
from storage.delay.schedule import read_plan
from storage.format.delay import SCHEDULE_TOPIC
from storage.rules.delays import route_delayed
from storage.rules.inner_messages import InnerMessage
from storage.tables.masters import DelayOffsets
from tests.support.fixture_stores import Fixture
from tests.support.served import served

FixtureStore = Callable[[str], Fixture]
PENDING_LEVEL = 18
TWO_HOURS_MS = 2 * 3600 * 1_000
"""Level 18 of the fixtures' messageDelayLevel."""


def offsets_file(root: Path) -> Path:
    return root / "config" / "delayOffset.json"


def saved_offsets(root: Path) -> dict[int, int]:
    return dict(DelayOffsets.load(offsets_file(root).read_text()).offsets)


def messages(store: MessageStore, topic: str, queue_id: int) -> list[Message]:
    return list(served(store, topic, queue_id))


def parked(store: MessageStore, level: int) -> list[Message]:
    return messages(store, SCHEDULE_TOPIC, level - 1)


@pytest.mark.parametrize("name", ["clean", "ext", "syncflush"])
def test_a_brokers_pending_messages_are_read_with_their_meaning(pristine_store: FixtureStore, name: str) -> None:
    """Levels 1 to 4 were delivered before the broker stopped, five messages of level 18 wait for two hours from their store time."""
    with open_store(pristine_store(name).root) as store:
        waiting = parked(store, PENDING_LEVEL)
        due_ms = [message.store_time_ms + TWO_HOURS_MS for message in waiting]
        assert [(m.properties["DELAY"], m.properties["REAL_TOPIC"]) for m in waiting] == [("18", "TopicDelay")] * 5
        for now_ms, count in ((due_ms[0] - 1, 0), (due_ms[0], 1), (due_ms[2], 3), (due_ms[4], 5)):
            plan = read_plan(store, now_ms)
            assert {level.level: level.end - level.start for level in plan.levels} == {
                1: 0,
                2: 0,
                3: 0,
                4: 0,
                PENDING_LEVEL: count,
            }
            assert plan.levels[-1].next_due_ms == (due_ms[count] if count < 5 else None)


def test_a_brokers_pending_messages_are_delivered_when_they_are_due(fixture_store: FixtureStore) -> None:
    fixture = fixture_store("clean")
    with open_store(fixture.root) as store:
        waiting = parked(store, PENDING_LEVEL)
        before = {queue_id: store.max_offset("TopicDelay", queue_id) for queue_id in range(4)}
    now_ms = waiting[2].store_time_ms + TWO_HOURS_MS
    levels, _ = deliver_delayed(str(fixture.root), clock=lambda: now_ms)
    assert (levels.delivered, levels.pending) == ({PENDING_LEVEL: 3}, {PENDING_LEVEL: 2})
    assert (levels.corrected, levels.missing_levels, levels.stranded) == ({}, {}, {})
    first_due_ms = waiting[0].store_time_ms + TWO_HOURS_MS
    assert levels.lateness_max_ms == now_ms - first_due_ms
    assert saved_offsets(fixture.root) == {1: 5, 2: 5, 3: 21, 4: 9, PENDING_LEVEL: 3}
    with open_store(fixture.root) as store:
        delivered = [m for queue_id in range(4) for m in messages(store, "TopicDelay", queue_id)[before[queue_id] :]]
    expected = [message.properties["UNIQ_KEY"] for message in waiting[:3]]
    assert sorted(message.properties["UNIQ_KEY"] for message in delivered) == sorted(expected)
    assert not (fixture.root / "abort").exists()  # it was closed cleanly before
    assert verify_store(str(fixture.root)).findings == ()


@pytest.mark.parametrize("name", ["clean", "ext"])
def test_a_message_is_delivered_as_the_broker_delivered_it(fixture_store: FixtureStore, name: str) -> None:
    """Without its offset a level is delivered once more, retries among it: each record must equal the broker's own."""
    fixture = fixture_store(name)
    with open_store(fixture.root) as store:
        again = {level: len(parked(store, level)) for level in (1, 2, 3, 4)}
        queues = {
            (message.properties["REAL_TOPIC"], int(message.properties["REAL_QID"]))
            for level in again
            for message in parked(store, level)
        }
        of_broker = {queue: messages(store, *queue) for queue in queues}
        now_ms = max(message.store_time_ms for found in of_broker.values() for message in found)
    offsets_file(fixture.root).write_text('{"offsetTable":{18:0}}')
    offsets_file(fixture.root).with_suffix(".json.bak").unlink()
    levels, _ = deliver_delayed(str(fixture.root), clock=lambda: now_ms)
    assert levels.delivered == levels.missing_levels == again
    with open_store(fixture.root) as store:
        for queue, found in of_broker.items():
            ours = messages(store, *queue)[len(found) :]
            key = [(m.properties["UNIQ_KEY"], m.reconsume_times) for m in ours]
            theirs = {(m.properties["UNIQ_KEY"], m.reconsume_times): m for m in found if "REAL_QID" in m.properties}
            assert [InnerMessage.of(m) for m in ours] == [InnerMessage.of(theirs[k]) for k in key]
            assert len(set(key)) == len(ours) > 0


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A store with a message of level 1 that has been due for about a minute, and one that says no topic."""
    path = str(tmp_path / "store")
    ago_ms = time.time_ns() // 1_000_000 - 61_000
    with open_store(path, config=StoreConfig.tiny(), create=True, read_only=False, clock=lambda: ago_ms) as store:
        message = InnerMessage(topic="TopicA", queue_id=0, body=b"b", properties={"DELAY": "1"})
        config = store.config
        routed = route_delayed(message, delays_ms=config.delay.delays_ms, timer=config.timer, now_ms=ago_ms)
        store.put_inner([routed, replace(message, topic=SCHEDULE_TOPIC)])
    Path(path).with_name("broker.conf").write_text(
        "".join(f"{name}={value}\n" for name, value in StoreConfig.tiny().settings.items())
    )
    return path


def test_the_command_line_tells_what_was_late_and_what_has_nowhere_to_go(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([root]) == 1
    printed = capsys.readouterr().out
    assert (found := re.search(r"by level 1 delivered \(level 1: 1\), late by (\d+) ms .*, (\d+) ms", printed))
    assert 60_000 <= int(found[1]) == int(found[2])
    assert "not delivered: level 1 offset 1, record at" in printed
    assert "it has no REAL_TOPIC" in printed
    assert main([root]) == 0
    assert "by level 0 delivered\n" in capsys.readouterr().out


def test_a_repeated_run_prints_what_it_did_and_once_that_it_did_nothing(
    root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = 0

    def count_runs(path: StorePath, shared: Shared) -> JobReport:
        nonlocal runs
        runs += 1
        if runs == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return run(path, shared)

    monkeypatch.setattr("jobs.deliver_delayed.run", count_runs)
    assert main([root, "--every", "1ms"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("by level")]
    assert [line.split(" (")[0] for line in told] == ["by level 1 delivered", "by level 0 delivered"]
    assert runs == 5


def test_a_new_store_has_no_offsets_and_nothing_is_said_of_it(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([root])
    assert "no offset" not in capsys.readouterr().out


def test_a_run_delivers_no_more_than_it_is_asked_to(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([root, "--max-messages", "1"]) == 0
    assert "1 wait" in capsys.readouterr().out


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "many"])
def test_a_limit_that_is_none_is_refused(root: str, count: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([root, "--max-messages", count]) == 2
    assert "--max-messages" in capsys.readouterr().err


def test_levels_without_an_offset_are_told_in_one_line(
    fixture_store: FixtureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    root = fixture_store("clean").root
    offsets_file(root).write_text('{"offsetTable":{"18":5}}')
    assert main([str(root)]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "no offset" in line]
    line = "level 1, 2, 3, 4: no offset in delayOffset.json, 40 delivered from the queue's beginning, maybe again"
    assert told == [line], "5 + 5 + 21 + 9, as the broker's delayOffset.json had them"


def test_a_deliver_time_whose_extension_unit_is_lost_is_computed_from_the_record(fixture_store: FixtureStore) -> None:
    """ScheduleMessageService.executeOnTimeUp: pickupStoreTimestamp and computeDeliverTimestamp."""
    fixture = fixture_store("ext")
    queue_files = fixture.root / "consumequeue_ext" / SCHEDULE_TOPIC / str(PENDING_LEVEL - 1)
    for path in queue_files.iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    with open_store(fixture.root) as store:
        waiting = parked(store, PENDING_LEVEL)
        plan = read_plan(store, waiting[1].store_time_ms + TWO_HOURS_MS)
    assert (plan.levels[-1].level, plan.levels[-1].end) == (PENDING_LEVEL, 2)
    assert plan.levels[-1].next_due_ms == waiting[2].store_time_ms + TWO_HOURS_MS
