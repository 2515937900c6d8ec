"""Delivery from small stores: what is put, what is saved, what is reported. Java: ScheduleMessageService."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage import Message, MessageStore, StoreConfig, open_store
from storage.delay.schedule import DeliveryReport, Undeliverable, deliver_due, read_plan
from storage.errors import StateFileError
from storage.format.delay import SCHEDULE_TOPIC
from storage.retention import Occasion, apply_expiry, plan_expiry
from storage.rules.delays import route_delayed
from storage.rules.inner_messages import InnerMessage
from storage.settings.nouns import DelayConfig, RetentionConfig
from storage.tables.masters import DelayOffsets
from tests.support.dying import Killed, kill_at
from tests.support.served import served

START_MS = 1_700_000_000_000
LEVELS = "1s 5s 10s"


class Park:
    """A tiny store with the levels 1 s, 5 s and 10 s, opened anew for each step, and a clock that a test moves."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_ms = START_MS
        self.config = replace(StoreConfig.tiny(), delay=DelayConfig(LEVELS))

    def open(self, **options: object) -> MessageStore:
        given = {"config": self.config, "read_only": False, "create": True, "clock": lambda: self.now_ms, **options}
        return open_store(self.root, **given)  # type: ignore[arg-type]

    def send(self, *levels: int, topic: str = "TopicA", queue_id: int = 0, **fields: object) -> None:
        """A message for each level, through the routing of a put."""
        with self.open() as store:
            number = store.writer.log_end
            for level in levels:
                message = InnerMessage(
                    topic=topic,
                    queue_id=queue_id,
                    body=f"{level}@{number}".encode(),
                    properties={"UNIQ_KEY": f"K{number}", "TAGS": "t", "DELAY": str(level)},
                    born_time_ms=self.now_ms - 7,
                    **fields,  # type: ignore[arg-type]
                )
                store.put_inner([self.route(message)])
                number = store.writer.log_end

    def route(self, message: InnerMessage) -> InnerMessage:
        return route_delayed(
            message, delays_ms=self.config.delay.delays_ms, timer=self.config.timer, now_ms=self.now_ms
        )

    def park(self, level: int, **properties: str) -> None:
        """A record in a level's queue, whatever it says."""
        with self.open() as store:
            record = InnerMessage(
                topic=SCHEDULE_TOPIC, queue_id=level - 1, body=b"b", properties={"DELAY": str(level), **properties}
            )
            store.put_inner([record])

    def deliver(self, max_messages: int | None = None) -> DeliveryReport:
        with self.open() as store:
            return deliver_due(store, self.now_ms, max_messages=max_messages)

    def messages(self, topic: str = "TopicA", queue_id: int = 0) -> list[Message]:
        with self.open(read_only=True, create=False) as store:
            return list(served(store, topic, queue_id))

    def bodies(self, topic: str = "TopicA", queue_id: int = 0) -> list[bytes]:
        return [message.body for message in self.messages(topic, queue_id)]

    @property
    def offsets_file(self) -> Path:
        return self.root / "config" / "delayOffset.json"

    @property
    def offsets(self) -> dict[int, int]:
        return dict(DelayOffsets.load(self.offsets_file.read_text()).offsets)

    def save_offsets(self, offsets: dict[int, int]) -> None:
        self.offsets_file.parent.mkdir(parents=True, exist_ok=True)
        self.offsets_file.write_text(json.dumps({"offsetTable": offsets}))


@pytest.fixture
def park(tmp_path: Path) -> Park:
    return Park(tmp_path / "store")


def test_a_message_is_delivered_when_its_time_has_come_and_once(park: Park) -> None:
    """ScheduleMessageService.executeOnTimeUp: store time + delay, and not a millisecond earlier."""
    park.send(1)
    park.now_ms += 999
    early = park.deliver()
    assert (early.delivered, early.pending, early.next_due_ms) == ({}, {1: 1}, START_MS + 1_000)
    assert park.messages() == []
    park.now_ms += 1
    report = park.deliver()
    assert (report.delivered, report.pending, report.next_due_ms) == ({1: 1}, {}, None)
    assert (report.lateness_p50_ms, report.lateness_max_ms) == (0, 0)
    assert park.bodies() == [b"1@0"]
    assert park.deliver().delivered == {}
    assert park.bodies() == [b"1@0"]
    assert park.offsets == {1: 1}


def test_a_delivered_record_is_the_parked_one_with_its_own_topic_and_queue(park: Park) -> None:
    """ScheduleMessageService.messageTimeUp: the property string is made before DELAY is cleared; no transaction offset is set."""
    host = bytes([10, 0, 0, 7, 0, 0, 0x2A, 0x9F])
    park.send(2, queue_id=3, flag=9, sys_flag=8, born_host=host, reconsume_times=2, prepared_transaction_offset=77)
    park.now_ms += 6_200
    report = park.deliver()
    (parked,) = park.messages(SCHEDULE_TOPIC, 1)
    (delivered,) = park.messages("TopicA", 3)
    expected = replace(InnerMessage.of(parked), topic="TopicA", queue_id=3, prepared_transaction_offset=0)
    assert InnerMessage.of(delivered) == expected
    assert delivered.raw_properties == parked.raw_properties
    assert delivered.properties["DELAY"] == "2"
    assert (parked.prepared_transaction_offset, delivered.born_host, delivered.sys_flag) == (77, host, 8)
    assert delivered.store_time_ms == park.now_ms
    assert (report.lateness_p50_ms, report.lateness_max_ms) == (1_200, 1_200)


def test_a_delivered_message_is_found_by_tag_and_key(park: Park) -> None:
    """CommitLog.checkMessageAndReturnSize: in its own topic the tags code is the tag's again."""
    park.send(1)
    park.now_ms += 1_000
    park.deliver()
    with park.open(read_only=True) as store:
        assert [message.body for message in store.get("TopicA", 0, 0, tags="t").messages] == [b"1@0"]
        assert [message.body for message in store.query("TopicA", "K0")] == [b"1@0"]


def test_lateness_is_told_of_what_was_put(park: Park) -> None:
    for _ in range(3):
        park.send(1)
        park.now_ms += 400
    park.now_ms = START_MS + 2_000
    report = park.deliver()
    assert report.delivered_count == 3
    assert (report.lateness_p50_ms, report.lateness_max_ms) == (600, 1_000)


def test_levels_have_their_own_progress(park: Park) -> None:
    park.send(1, 2, 3, 1, 9)
    park.now_ms += 5_000
    report = park.deliver()
    assert (report.delivered, report.pending) == ({1: 2, 2: 1}, {3: 2})
    assert report.next_due_ms == START_MS + 10_000
    assert park.offsets == {1: 2, 2: 1, 3: 0}
    assert sorted(body[:2] for body in park.bodies()) == [b"1@", b"1@", b"2@"]


def test_messages_go_to_topics_that_have_no_entry_without_making_one(park: Park) -> None:
    """ScheduleMessageService.deliverMessage puts into the store, past topic creation."""
    park.send(1, topic="%RETRY%GroupR")
    park.now_ms += 1_000
    assert park.deliver().delivered == {1: 1}
    assert len(park.messages("%RETRY%GroupR")) == 1
    assert not (park.root / "config" / "topics.json").exists()


def test_many_messages_over_many_log_files_come_in_order(park: Park) -> None:
    park.send(*[1] * 60)
    park.now_ms += 1_000
    assert park.deliver(max_messages=25).delivered == {1: 25}
    report = park.deliver()
    assert report.delivered == {1: 35}
    assert park.bodies() == park.bodies(SCHEDULE_TOPIC, 0)


def test_a_clock_that_went_back_makes_messages_due(park: Park) -> None:
    """ScheduleMessageService.correctDeliverTimestamp."""
    park.send(1)
    park.now_ms -= 1
    report = park.deliver()
    assert report.delivered == {1: 1}
    assert report.lateness_max_ms == 1  # its store time is that of the record before it, which is ahead of the clock


# Offsets


def test_an_offset_above_the_maximum_is_corrected(park: Park) -> None:
    """ScheduleMessageService.correctDelayOffset; here the opening does it, before anything is put."""
    park.send(1, 1)
    park.save_offsets({1: 9})
    park.now_ms += 1_000
    report = park.deliver()
    assert (report.corrected, report.delivered) == ({}, {})
    assert park.offsets == {1: 2}


def test_an_offset_below_the_minimum_is_corrected(park: Park) -> None:
    """ScheduleMessageService.correctDelayOffset."""
    park.send(*[1] * 40)
    (park.root / "commitlog" / f"{0:020d}").unlink()
    with park.open(read_only=True) as store:
        minimum = store.min_offset(SCHEDULE_TOPIC, 0)
    assert 0 < minimum < 40
    park.save_offsets({1: 0})
    park.now_ms += 1_000
    report = park.deliver()
    assert (report.corrected, report.delivered) == ({1: (0, minimum)}, {1: 40 - minimum})
    assert park.offsets == {1: 40}


def test_a_level_that_is_missing_is_delivered_again_from_0_and_told(park: Park) -> None:
    """ScheduleMessageService.start: no offset is 0."""
    park.send(1, 1, 2)
    park.now_ms += 5_000
    park.deliver()
    park.save_offsets({2: 1})
    report = park.deliver()
    assert (report.missing_levels, report.delivered) == ({1: 2}, {1: 2})
    assert len(park.bodies()) == 5
    assert park.deliver().missing_levels == {}


def test_where_there_is_no_table_yet_no_level_is_missing(park: Park) -> None:
    """ScheduleMessageService.load: a new store has none."""
    park.send(1, 2)
    park.now_ms += 5_000
    report = park.deliver()
    assert (report.missing_levels, report.delivered) == ({}, {1: 1, 2: 1})


def test_an_unreadable_table_without_backup_delivers_nothing(park: Park) -> None:
    park.send(1)
    park.now_ms += 1_000
    park.save_offsets({})
    park.offsets_file.write_text("{")
    with pytest.raises(StateFileError, match=r"delayOffset\.json"):
        park.deliver()
    assert park.messages() == []


def test_offsets_of_unknown_fields_and_levels_stay(park: Park) -> None:
    park.send(1)
    park.offsets_file.parent.mkdir(exist_ok=True)
    park.offsets_file.write_text('{"offsetTable":{1:0,19:0},"whatever":1}')
    park.now_ms += 1_000
    park.deliver()
    assert park.offsets == {1: 1, 19: 0}
    assert json.loads(park.offsets_file.read_text())["whatever"] == 1


def test_fewer_levels_leave_messages_behind_and_tell(park: Park) -> None:
    """ScheduleMessageService.start: one task for each level of messageDelayLevel."""
    park.send(3, 3, 1)
    park.config = replace(park.config, delay=DelayConfig("1s 5s"))
    park.now_ms += 10_000
    report = park.deliver()
    assert (report.delivered, report.stranded) == ({1: 1}, {3: 2})
    park.config = replace(park.config, delay=DelayConfig(LEVELS))
    assert park.deliver().delivered == {3: 2}


def test_other_delays_hold_for_messages_that_come_later(park: Park) -> None:
    """CommitLog.checkMessageAndReturnSize: what is due when stands in the entry; correctDeliverTimestamp knows the delay of now."""
    park.send(1, 2)
    park.config = replace(park.config, delay=DelayConfig("3s 2s"))
    park.now_ms += 1_000
    assert park.deliver().delivered == {1: 1, 2: 1}  # the second is 4 s ahead, more than its level's 2 s
    park.send(1)
    park.now_ms += 2_999
    assert park.deliver().delivered == {}
    park.now_ms += 1
    assert park.deliver().delivered == {1: 1}


# What is not delivered


def test_a_half_message_is_discarded(park: Park) -> None:
    """ScheduleMessageService.executeOnTimeUp: RMQ_SYS_TRANS_HALF_TOPIC as real topic."""
    park.send(1, topic="RMQ_SYS_TRANS_HALF_TOPIC")
    park.send(1)
    park.now_ms += 1_000
    report = park.deliver()
    assert (report.half_count, report.delivered, report.undeliverable_count) == (1, {1: 1}, 0)
    assert park.messages("RMQ_SYS_TRANS_HALF_TOPIC") == []
    assert park.offsets == {1: 2}


@pytest.mark.parametrize(
    ("properties", "rule"),
    [
        pytest.param(
            {"REAL_QID": "0"}, "it has no REAL_TOPIC", id="executeOnTimeUp: the put throws, the message is passed over"
        ),
        pytest.param({"REAL_TOPIC": "T"}, "REAL_QID is None, no queue id", id="messageTimeUp: Integer.parseInt throws"),
        pytest.param(
            {"REAL_TOPIC": "T", "REAL_QID": "x"}, "REAL_QID is 'x', no queue id", id="messageTimeUp: no number"
        ),
        pytest.param({"REAL_TOPIC": "T", "REAL_QID": "-1"}, "REAL_QID is '-1', no queue id", id="a negative queue"),
        pytest.param(
            {"REAL_TOPIC": "T", "REAL_QID": "2147483648"}, "REAL_QID is '2147483648', no queue id", id="no int"
        ),
        pytest.param(
            {"REAL_TOPIC": "../T", "REAL_QID": "0"}, "REAL_TOPIC: it cannot be the name of a directory", id="a path"
        ),
        pytest.param(
            {"REAL_TOPIC": "T" * 128, "REAL_QID": "0"},
            "REAL_TOPIC has more than 127 bytes",
            id="HookUtils.checkBeforePutMessage: Java tries for ever",
        ),
    ],
)
def test_what_has_no_place_to_go_is_passed_over_and_told(park: Park, properties: dict[str, str], rule: str) -> None:
    park.park(1, **properties)
    park.send(1)
    park.now_ms += 1_000
    report = park.deliver()
    assert report.delivered == {1: 1}
    assert (report.undeliverable_count, report.undeliverable) == (1, (Undeliverable(1, 0, 0, rule),))
    assert park.offsets == {1: 2}


def test_a_topic_of_255_bytes_is_delivered_if_it_is_a_retry_topic(park: Park) -> None:
    """HookUtils.checkBeforePutMessage."""
    topic = "%RETRY%" + "g" * 248
    park.park(1, REAL_TOPIC=topic, REAL_QID="0")
    park.now_ms += 1_000
    assert park.deliver().delivered == {1: 1}
    assert len(park.messages(topic)) == 1


# Reading only


def test_a_plan_is_read_from_a_store_that_is_not_locked(park: Park) -> None:
    park.send(1, 2)
    park.now_ms += 1_000
    with park.open(), park.open(read_only=True, create=False) as store:
        plan = read_plan(store, park.now_ms)
    assert [(level.level, level.start, level.end, level.maximum) for level in plan.levels] == [
        (1, 0, 1, 1),
        (2, 0, 0, 1),
    ]
    assert not park.offsets_file.exists()


# A round that was begun


@pytest.fixture
def stop_at() -> Iterator[Callable[[str, int], None]]:
    """`stop_at(name, n)`: the delivery ends the n-th time it reaches that point, and leaves the disk as it is then."""
    with pytest.MonkeyPatch.context() as patch:

        def arm(name: str, times: int = 1) -> None:
            patch.undo()
            kill_at(patch, name, times)

        yield arm


def expect_stop(park: Park) -> None:
    with pytest.raises(Killed):
        park.deliver()


@pytest.mark.parametrize(
    ("point", "found"),
    [("after-mark", 0), ("after-delivery", 6), ("after-delivery-sync", 6), ("after-delivery-save", 0)],
)
def test_a_delivery_that_ended_in_the_middle_is_gone_on_with(
    park: Park, stop_at: Callable[[str, int], None], point: str, found: int
) -> None:
    park.send(1, 2, 1, 2, 1, 2)
    park.now_ms += 5_000
    stop_at(point, 1)
    expect_stop(park)
    stop_at("", 1)
    park.now_ms += 1
    report = park.deliver()
    assert report.found_delivered == found
    assert sorted(park.bodies()) == sorted(park.bodies(SCHEDULE_TOPIC, 0) + park.bodies(SCHEDULE_TOPIC, 1))
    assert park.offsets == {1: 3, 2: 3}
    assert park.deliver().delivered == {}


@pytest.mark.parametrize("slices", range(1, 5))
def test_what_of_a_round_stands_in_the_log_is_not_put_again(
    park: Park, stop_at: Callable[[str, int], None], slices: int
) -> None:
    """A slice is a log file's share of the round, so the round of this store has several."""
    park.send(*[1] * 70)
    park.park(1, REAL_TOPIC="TopicA")  # passed over, in the middle of a round
    park.send(*[2] * 20)
    park.now_ms += 5_000
    stop_at("amid-delivery", slices)
    expect_stop(park)
    before = len(park.bodies())
    assert 0 < before < 90
    stop_at("", 1)
    report = park.deliver()
    assert (report.found_delivered, report.delivered_count) == (before, 90 - before)
    assert park.bodies() == park.bodies(SCHEDULE_TOPIC, 0)[:70] + park.bodies(SCHEDULE_TOPIC, 1)


def test_a_round_that_others_wrote_behind_is_gone_on_with(park: Park, stop_at: Callable[[str, int], None]) -> None:
    park.send(1, 1)
    park.now_ms += 1_000
    stop_at("after-delivery", 1)
    expect_stop(park)
    stop_at("", 1)
    park.send(1)
    with park.open() as store:
        store.put("TopicA", b"other", queue_id=0)
    report = park.deliver()
    assert (report.found_delivered, report.delivered) == (2, {})
    assert len(park.bodies()) == 3


@pytest.mark.parametrize("point", ["amid-delivery", "after-delivery"])
def test_a_round_of_which_a_part_has_expired_is_gone_on_with(
    park: Park, stop_at: Callable[[str, int], None], point: str
) -> None:
    """What waits expires with its log file, before what the delivery has put of it does."""
    park.send(*[1] * 40, *[2] * 40)
    park.now_ms += 5_000
    stop_at(point, 1)
    expect_stop(park)
    stop_at("", 1)
    put, waiting = park.bodies(), [park.bodies(SCHEDULE_TOPIC, queue_id) for queue_id in (0, 1)]
    with park.open() as store:
        retention = RetentionConfig(delete_file_batch_max=1)
        full = Occasion(("the disk is full",), whatever_age=True)
        plan = plan_expiry(store, store.writer.file_system, retention, full, now_ms=park.now_ms)
        apply_expiry(store.writer, plan, retention, sleep=lambda seconds: None)
        expired = store.min_offset(SCHEDULE_TOPIC, 0)
        assert 0 < expired < 40
    report = park.deliver()
    everything = waiting[0] + waiting[1]
    assert park.bodies() == everything
    assert report.found_delivered == len(put) - expired
    assert report.delivered_count == len(everything) - len(put)


def test_a_mark_whose_records_are_gone_puts_them_again(park: Park, stop_at: Callable[[str, int], None]) -> None:
    """As after a power loss: others may have written in their place since."""
    park.send(1, 1)
    park.now_ms += 1_000
    stop_at("after-mark", 1)
    expect_stop(park)
    stop_at("", 1)
    with park.open() as store:
        store.put("TopicA", b"other", queue_id=0)
    report = park.deliver()
    assert (report.found_delivered, report.delivered) == (0, {1: 2})
    assert len(park.bodies()) == 3


def test_a_mark_is_nothing_once_a_broker_has_moved_the_offsets(park: Park, stop_at: Callable[[str, int], None]) -> None:
    park.send(1, 1, 1)
    park.now_ms += 1_000
    stop_at("after-mark", 1)
    expect_stop(park)
    stop_at("", 1)
    park.save_offsets({1: 2})
    report = park.deliver()
    assert (report.found_delivered, report.delivered) == (0, {1: 1})
    assert not (park.root / "spark_mq" / "delivery.json").exists()


@pytest.mark.parametrize("text", ["[]", '{"log_end":1e999,"ranges":[]}', '{"log_end":1,"ranges":[[1]]}', "[" * 100_000])
def test_a_mark_that_is_none_is_refused_by_name(text: str, park: Park) -> None:
    park.send(1)
    (park.root / "spark_mq" / "delivery.json").write_text(text)
    with pytest.raises(StateFileError, match=r"delivery\.json"):
        park.deliver()
