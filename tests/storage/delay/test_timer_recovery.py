"""Going on from what a timer has left: a broker's stopped or killed one, ours, and files that are damaged or lost.

The broker's stores are the fixtures `timer` and `timer-killed`. Every message that was acknowledged and not cancelled is in its topic
once in the end, whichever timer delivered it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage import MessageStore, open_store
from storage.delay.timer_files import TimerLog
from storage.delay.timer_records import put_since
from storage.delay.timer_recovery import recover_timer
from storage.delay.timer_store import deliver_timed
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import SLOT, UNIT_SIZE, WHEEL_SLOTS
from storage.rules.delays import TIMER_TOPIC
from storage.tables.masters import (
    FollowedTimer,
    followed_timer_path,
    read_followed_timer,
    read_timer_checkpoint,
    timer_checkpoint_path,
    write_timer_checkpoint,
)
from tests.support.clock import Clock
from tests.support.fixture_stores import Fixture
from tests.support.served import served
from tests.support.timed_store import NOW, TimedStore

FILES = LocalFileSystem()
FAR_MS = 4_000_000
"""After it everything in the fixtures is due."""


def sent(fixture: Fixture) -> list[dict[str, object]]:
    assert fixture.sent is not None
    return [json.loads(line) for line in fixture.sent.read_text("utf-8").splitlines()]


def expected_bodies(fixture: Fixture) -> Counter[str]:
    lines = sent(fixture)
    cancelled = {line["cancels"] for line in lines if line["kind"] == "cancel"}
    return Counter(str(line["body"]) for line in lines if line["kind"] != "cancel" and line["msgId"] not in cancelled)


def bodies(store: MessageStore, topic: str = "TopicTimer") -> Counter[str]:
    return Counter(message.body.decode() for message in served(store, topic))


def deliver_all(fixture: Fixture, *steps_ms: int) -> Counter[str]:
    """What stands in the topic after deliveries so long after the last message was sent, each by a store opened anew."""
    last = max(int(str(line["sentAt"])) for line in sent(fixture))
    clock = Clock(0)
    for step_ms in steps_ms:
        clock.now_ms = last + step_ms
        with open_store(fixture.root, read_only=False, clock=clock) as store:
            deliver_timed(store, clock.now_ms)
            found = bodies(store)
    return found


# A broker's files


@pytest.mark.parametrize("name", ["timer", "timer-killed"])
@pytest.mark.parametrize(
    "steps_ms", [(FAR_MS,), (3_000, 13_000, 14_000, 40_000, FAR_MS)], ids=["at once", "as time goes"]
)
def test_what_a_broker_left_is_delivered_once(
    name: str, steps_ms: tuple[int, ...], fixture_store: Callable[[str], Fixture]
) -> None:
    """TimerMessageStore.recover, shutdown; dequeued, rolled and cancelled before and after the end of the broker."""
    fixture = fixture_store(name)
    assert deliver_all(fixture, *steps_ms) == expected_bodies(fixture)
    metrics = json.loads((fixture.root / "config" / "timermetrics").read_text("utf-8"))
    assert metrics["timingCount"]["TopicTimer"]["count"] == 0


def test_messages_that_a_killed_broker_had_entered_are_not_entered_again(
    fixture_store: Callable[[str], Fixture],
) -> None:
    """recover. Java begins at the smaller of the log's last message and the checkpoint's master offset, and enters them twice."""
    fixture = fixture_store("timer-killed")
    with open_store(fixture.root, read_only=False) as store:
        checkpoint = read_timer_checkpoint(FILES, store.root)
        found = recover_timer(store, FILES)
        behind = [m.commitlog_offset for m in store.get(TIMER_TOPIC, 0, checkpoint.queue_offset).messages]
        assert found.log_is_whole
        assert found.queue_offset == checkpoint.queue_offset
        count = (found.log.end - checkpoint.log_position) // UNIT_SIZE
        assert found.entered["commitlog_offset"].tolist() == behind[:count] != []
        report = deliver_timed(store, checkpoint.last_read_time_ms)
        assert report.entered == len(behind) - count


def test_the_wheel_learns_what_a_killed_broker_had_entered(fixture_store: Callable[[str], Fixture]) -> None:
    """recoverAndRevise, TimerWheel.reviseSlot: units behind the last flush are in the log and not in the wheel."""
    fixture = fixture_store("timer-killed")
    before = np.fromfile(fixture.root / "timerwheel", SLOT)
    with open_store(fixture.root, read_only=False) as store:
        checkpoint = read_timer_checkpoint(FILES, store.root)
        assert before["last_position"].max() < checkpoint.log_position
        found = recover_timer(store, FILES)
    assert found.wheel.slots["last_position"].max() == found.log.end - UNIT_SIZE


def test_what_a_broker_put_behind_its_checkpoint_is_found_in_the_log(fixture_store: Callable[[str], Fixture]) -> None:
    """TimerFlushService: the checkpoint is a second old at worst. Set back, it makes Java deliver again; here the log tells."""
    fixture = fixture_store("timer")
    checkpoint = read_timer_checkpoint(FILES, str(fixture.root))
    earlier = checkpoint._replace(last_read_time_ms=checkpoint.last_read_time_ms - 60_000)
    write_timer_checkpoint(FILES, str(fixture.root), earlier)
    with open_store(fixture.root) as store:
        assert len(put_since(store.log, store.log_end, earlier.last_read_time_ms)) >= 16
        assert len(put_since(store.log, store.log_end, checkpoint.version_time_ms + 60_000)) == 0
    assert deliver_all(fixture, FAR_MS) == expected_bodies(fixture)


# Files that are lost or damaged


@pytest.mark.parametrize("name", ["timer", "timer-killed"])
def test_a_lost_wheel_is_made_again_from_the_log(name: str, fixture_store: Callable[[str], Fixture]) -> None:
    """recoverAndRevise. Departure: Java's walk covers two files of the log only, and forgets what older ones say."""
    fixture = fixture_store(name)
    (fixture.root / "timerwheel").unlink()
    assert deliver_all(fixture, 3_000, FAR_MS) == expected_bodies(fixture)


def test_a_lost_log_is_made_again_from_the_queue(fixture_store: Callable[[str], Fixture]) -> None:
    """recover. Departure: Java goes on behind the checkpoint's offset, and never delivers what waited."""
    fixture = fixture_store("timer")
    for path in (fixture.root / "timerlog").iterdir():
        path.unlink()
    found = deliver_all(fixture, 3_000, 13_000, 40_000, FAR_MS)
    expected = expected_bodies(fixture)
    assert found.keys() == expected.keys()
    rolled = {str(line["body"]) for line in sent(fixture) if str(line["body"]).partition("-")[0] == "sec"}
    assert (found - expected).keys() <= rolled | {"deliver-24", "deliver-25", "deliver-26"}, "originals of rolled ones"


def test_a_lost_checkpoint_loses_nothing(fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("timer")
    Path(timer_checkpoint_path(str(fixture.root))).unlink()
    assert deliver_all(fixture, FAR_MS) == expected_bodies(fixture)


@pytest.mark.parametrize("kept", [3, 4, 8, 9, 10])
def test_messages_of_a_cut_log_are_entered_again(kept: int, tmp_path: Path) -> None:
    """reviseQueueOffset: the queue is gone on with behind the message of the last unit that is left. It looks a file back, as Java."""
    timed = TimedStore(tmp_path / "store")
    for number in range(12):
        timed.park(f"m{number}", NOW + 20_000 + 1_000 * (number % 3))
    timed.deliver(NOW)
    timed.store.release()
    position = 52 * kept if kept < 9 else 512 + 52 * (kept - 9)
    path = timed.root / "timerlog" / f"{position // 512 * 512:020d}"
    FILES.write(str(path), position % 512, bytes(4))
    timed.store = timed.open()
    found = recover_timer(timed.store, FILES)
    assert (found.log_is_whole, found.log.end, found.queue_offset) == (False, position, kept)
    timed.deliver(NOW + 5_000)
    timed.deliver(NOW + 60_000)
    assert Counter(timed.delivered) == Counter(f"m{number}" for number in range(12))
    timed.store.release()


def test_a_slot_that_points_behind_the_log_does_not_link_a_unit_to_itself(tmp_path: Path) -> None:
    """TimerMessageStore.dequeue follows `prev` until −1: in Java such a unit is followed for ever."""
    timed = TimedStore(tmp_path / "store")
    timed.park("a", NOW + 20_000)
    timed.deliver(NOW)
    timed.store.release()
    FILES.write(str(timed.root / "timerlog" / f"{0:020d}"), 0, bytes(52))
    timed.store = timed.open()
    timed.deliver(NOW + 1_000)
    (unit,) = timed.units()
    assert unit["previous_position"] == -1
    timed.deliver(NOW + 60_000)
    assert timed.delivered == ["a"]
    timed.store.release()


def test_a_record_that_is_gone_is_counted_and_the_others_come(tmp_path: Path) -> None:
    """TimerDequeueGetMessageService: `dequeue_get_msg_miss`, after retention or a cut of the commit log."""
    timed = TimedStore(tmp_path / "store")
    for number in range(60):
        timed.park(f"m{number}", NOW + 20_000)
    timed.deliver(NOW)
    assert len(timed.store.log.files) > 2
    first = timed.store.log.files[0]
    gone = [m.body.decode() for m in timed.messages(TIMER_TOPIC, 0) if m.commitlog_offset < first.end]
    timed.store.release()
    Path(first.path).unlink()
    timed.store = timed.open()
    report = timed.deliver(NOW + 60_000)
    assert report.missing == len(gone) > 0
    assert timed.delivered == [f"m{number}" for number in range(len(gone), 60)]
    assert min(int(path.name) for path in (timed.root / "timerlog").iterdir()) == len(gone) // 9 * 512
    timed.store.release()


# What a broker would do next


def java_start(root: Path) -> int:
    """The queue offset at which Java's timer goes on: TimerMessageStore.recover, reviseQueueOffset, for a whole log."""
    checkpoint = read_timer_checkpoint(FILES, str(root))
    log = TimerLog(FILES, str(root), 512)
    units = [unit for run in log.walk(0) for unit in run.units]
    if not units:
        return min(checkpoint.queue_offset, checkpoint.master_queue_offset)
    with open_store(root) as store:
        message = store.message_by_commitlog_offset(int(units[-1]["commitlog_offset"]))
    return min(message.queue_offset + 1, checkpoint.master_queue_offset)


def test_a_broker_goes_on_behind_everything_that_we_have_dealt_with(tmp_path: Path) -> None:
    """recover, for all kinds of last messages: due already, waiting, unreadable."""
    timed = TimedStore(tmp_path / "store")
    for count, out_ms in enumerate((NOW + 20_000, NOW - 5_000, NOW - 99_000, "soon", NOW + 900_000), start=1):
        timed.park(f"m{count}", out_ms)
        timed.deliver(NOW + count * 1_000)
        timed.reopen()
        assert java_start(timed.root) == count
    timed.store.release()


def test_the_wheel_has_one_place_for_ticks_a_fortnight_apart() -> None:
    """TimerWheel.getSlotIndex: slotsTotal * 2 places of a second."""
    assert WHEEL_SLOTS == 2 * 7 * 24 * 3_600


# A replica, whose master's timer has delivered


def made_replica(fixture: Fixture) -> FollowedTimer:
    """The fixture's log with nothing of its timer but what the master tells of it."""
    root = Path(fixture.root)
    told = FollowedTimer.of_answer((root / "config/timercheck").read_bytes())
    for path in (*root.glob("timerwheel"), *root.glob("timerlog/*"), *root.glob("config/timer*")):
        path.unlink()
    FILES.replace(followed_timer_path(str(root)), told.to_text().encode())
    return told


@pytest.mark.parametrize("steps_ms", [(FAR_MS,), (3_000, 13_000, 14_000, 40_000, FAR_MS)])
def test_a_promoted_replica_delivers_what_its_master_has_not(
    fixture_store: Callable[[str], Fixture], steps_ms: tuple[int, ...]
) -> None:
    fixture = fixture_store("timer")
    expected = expected_bodies(fixture)
    with open_store(fixture.root) as store:
        before = bodies(store)
    assert before
    assert before != expected, "the master has delivered some"
    told = made_replica(fixture)
    assert told.read_time_ms > 0
    assert told.queue_offset > 0
    assert deliver_all(fixture, *steps_ms) == expected
    assert read_followed_timer(FILES, str(fixture.root)) is None


def test_a_replica_that_was_told_nothing_delivers_all_again(fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("timer")
    made_replica(fixture)
    Path(followed_timer_path(str(fixture.root))).unlink()
    assert deliver_all(fixture, FAR_MS) > expected_bodies(fixture)


def test_a_timer_that_has_run_here_since_goes_on(fixture_store: Callable[[str], Fixture]) -> None:
    fixture = fixture_store("timer")
    expected = expected_bodies(fixture)
    told = FollowedTimer.of_answer(Path(timer_checkpoint_path(str(fixture.root))).read_bytes())
    earlier = told._replace(read_time_ms=told.read_time_ms - 1_000, queue_offset=1)
    FILES.replace(followed_timer_path(str(fixture.root)), earlier.to_text().encode())
    assert deliver_all(fixture, FAR_MS) == expected
