"""Where a delayed message goes. Each case names what of Java's HookUtils (5.3.3) it is derived from."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import numpy as np
import pytest

from storage.errors import PutRefusedError
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from storage.pending import PutStatus
from storage.rules.delays import Congestion, DelayWish, Waits, is_slot_full, judge_delays, route_delayed
from storage.rules.inner_messages import InnerMessage
from storage.settings.load import parse_config
from storage.settings.nouns import TimerConfig

DELAYS_MS = (1_000, 5_000, 10_000)
NOW_MS = 1_700_000_000_500
TIMER = TimerConfig()
DAY_S = 24 * 3600


def message(
    properties: Mapping[str, str] | None = None,
    *,
    sys_flag: int = 0,
    topic: str = "TopicA",
    queue_id: int = 3,
    body: bytes = b"b",
    **named: str,
) -> InnerMessage:
    stored = {**(properties or {}), **named}
    return InnerMessage(topic=topic, queue_id=queue_id, body=body, properties=stored, sys_flag=sys_flag)


def route(given: InnerMessage, timer: TimerConfig = TIMER, is_congested: Congestion | None = None) -> InnerMessage:
    return route_delayed(given, delays_ms=DELAYS_MS, timer=timer, now_ms=NOW_MS, is_congested=is_congested)


def refusal(given: InnerMessage, timer: TimerConfig = TIMER) -> PutStatus:
    with pytest.raises(PutRefusedError) as caught:
        route(given, timer)
    return caught.value.status


# Delay levels


@pytest.mark.parametrize(
    ("level", "stored_level", "queue_id"),
    [
        pytest.param("1", "1", 0, id="HookUtils.transformDelayLevelMessage: level 1 is queue 0"),
        pytest.param("3", "3", 2, id="ScheduleMessageService.delayLevel2QueueId: level - 1"),
        pytest.param("4", "3", 2, id="HookUtils.transformDelayLevelMessage: above the last is the last"),
        pytest.param("2147483647", "3", 2, id="HookUtils.transformDelayLevelMessage: far above the last"),
        pytest.param("+2", "2", 1, id="Message.getDelayTimeLevel: Integer.parseInt takes a sign"),
    ],
)
def test_a_level_parks_a_message_in_the_schedule_topic(level: str, stored_level: str, queue_id: int) -> None:
    routed = route(message(TAGS="t", DELAY=level))
    assert (routed.topic, routed.queue_id) == ("SCHEDULE_TOPIC_XXXX", queue_id)
    assert routed.properties == {"TAGS": "t", "DELAY": stored_level, "REAL_TOPIC": "TopicA", "REAL_QID": "3"}


@pytest.mark.parametrize("level", ["0", "-1"], ids=lambda level: f"HookUtils.handleScheduleMessage: level {level}")
def test_a_level_that_is_not_positive_parks_nothing(level: str) -> None:
    given = message(DELAY=level)
    assert route(given) is given


@pytest.mark.parametrize("level", ["x", "", "1 ", "2147483648", "1_0"])
def test_a_level_that_is_no_number_ends_the_request_in_an_error(level: str) -> None:
    """Message.getDelayTimeLevel: Integer.parseInt throws, and SendMessageProcessor answers SYSTEM_ERROR."""
    assert refusal(message(DELAY=level)) is PutStatus.UNKNOWN_ERROR


def test_a_level_wins_over_times_which_are_taken_off() -> None:
    """HookUtils.checkIfTimerMessage."""
    routed = route(message(DELAY="1", TIMER_DELAY_SEC="5", TIMER_DELAY_MS="5", TIMER_DELIVER_MS="5"))
    assert routed.topic == "SCHEDULE_TOPIC_XXXX"
    assert routed.properties == {"DELAY": "1", "REAL_TOPIC": "TopicA", "REAL_QID": "3"}


def test_a_level_parks_where_the_timer_is_off_too() -> None:
    """HookUtils.checkIfTimerMessage: what has a level is no timer message."""
    routed = route(message(DELAY="1", TIMER_DELAY_SEC="5"), TimerConfig(timer_wheel_enable=False))
    assert routed.topic == "SCHEDULE_TOPIC_XXXX"


def test_a_level_is_not_intercepted_by_the_timer() -> None:
    """HookUtils.checkIfTimerMessage: the line that asks timerInterceptDelayLevel is commented out in 5.3.3."""
    routed = route(message(DELAY="1"), parse_config(b"timerInterceptDelayLevel=true").timer)
    assert routed.topic == "SCHEDULE_TOPIC_XXXX"


def test_an_earlier_real_topic_is_overwritten() -> None:
    """HookUtils.transformDelayLevelMessage puts the property anew."""
    routed = route(message(topic="%RETRY%g", queue_id=0, REAL_TOPIC="TopicA", REAL_QID="3", DELAY="2"))
    assert (routed.properties["REAL_TOPIC"], routed.properties["REAL_QID"]) == ("%RETRY%g", "0")


# Transactions


@pytest.mark.parametrize("flag", [TRANSACTION_PREPARED, TRANSACTION_ROLLBACK])
@pytest.mark.parametrize("delay", ["DELAY", "TIMER_DELAY_SEC"])
def test_prepared_and_rolled_back_messages_are_not_parked(flag: int, delay: str) -> None:
    """HookUtils.handleScheduleMessage: only transaction types NOT and COMMIT."""
    given = message({delay: "2"}, sys_flag=flag)
    assert route(given) is given


def test_a_committed_message_is_parked() -> None:
    """HookUtils.handleScheduleMessage: TRANSACTION_COMMIT_TYPE; the flag stays."""
    routed = route(message(sys_flag=TRANSACTION_COMMIT, DELAY="2"))
    assert (routed.topic, routed.sys_flag) == ("SCHEDULE_TOPIC_XXXX", TRANSACTION_COMMIT)


def test_a_half_message_whose_bits_are_cleared_is_parked_with_the_half_topic_as_its_own() -> None:
    """TransactionalMessageBridge.parseHalfMessageInner clears them; ScheduleMessageService discards the message when it is due."""
    routed = route(message(topic="RMQ_SYS_TRANS_HALF_TOPIC", queue_id=0, DELAY="2"))
    assert routed.properties["REAL_TOPIC"] == "RMQ_SYS_TRANS_HALF_TOPIC"


# Deliver times


@pytest.mark.parametrize(
    ("properties", "out_ms"),
    [
        pytest.param(
            {"TIMER_DELAY_SEC": "3"}, NOW_MS + 2_500, id="HookUtils.transformTimerMessage: seconds, rounded down"
        ),
        pytest.param({"TIMER_DELAY_MS": "1600"}, NOW_MS + 1_500, id="HookUtils.transformTimerMessage: milliseconds"),
        pytest.param(
            {"TIMER_DELIVER_MS": "1700000009999"}, 1_700_000_009_000, id="HookUtils.transformTimerMessage: a time"
        ),
        pytest.param(
            {"TIMER_DELIVER_MS": "1700000009000"},
            1_700_000_008_000,
            id="HookUtils.transformTimerMessage: an exact time loses a step",
        ),
        pytest.param(
            {"TIMER_DELIVER_MS": "1700000000501"},
            1_700_000_000_000,
            id="HookUtils.transformTimerMessage: rounded into the past",
        ),
        pytest.param(
            {"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "1", "TIMER_DELAY_SEC": "3"},
            NOW_MS + 2_500,
            id="HookUtils.transformTimerMessage: seconds come first",
        ),
        pytest.param(
            {"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "1600"},
            NOW_MS + 1_500,
            id="HookUtils.transformTimerMessage: then milliseconds",
        ),
        pytest.param(
            {"DELAY": "0", "TIMER_DELAY_SEC": "3"},
            NOW_MS + 2_500,
            id="HookUtils.checkIfTimerMessage: level 0 is no level",
        ),
        pytest.param(
            {"TIMER_DELAY_SEC": str(3 * DAY_S)},
            NOW_MS - 500 + 3 * DAY_S * 1_000,
            id="MessageStoreConfig.timerMaxDelaySec: just in reach",
        ),
    ],
)
def test_a_time_ahead_parks_a_message_in_the_timers_topic(properties: dict[str, str], out_ms: int) -> None:
    routed = route(message(properties))
    assert (routed.topic, routed.queue_id) == ("rmq_sys_wheel_timer", 0)
    assert routed.properties == {**properties, "TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": "TopicA", "REAL_QID": "3"}


def test_the_precision_is_the_stores() -> None:
    """MessageStoreConfig.timerPrecisionMs."""
    routed = route(message(TIMER_DELAY_MS="160"), TimerConfig(timer_precision_ms=100))
    assert routed.properties["TIMER_OUT_MS"] == str(NOW_MS + 100)


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({"TIMER_DELIVER_MS": str(NOW_MS)}, id="HookUtils.transformTimerMessage: now"),
        pytest.param({"TIMER_DELAY_SEC": "0"}, id="HookUtils.transformTimerMessage: no delay"),
        pytest.param({"TIMER_DELAY_SEC": "-9"}, id="HookUtils.transformTimerMessage: passed"),
        pytest.param(
            {"TIMER_OUT_MS": "9", "TIMER_DELAY_SEC": "9"}, id="HookUtils.checkIfTimerMessage: was parked before"
        ),
        pytest.param({}, id="HookUtils.checkIfTimerMessage: asks for nothing"),
    ],
)
def test_what_is_not_ahead_goes_to_its_topic_as_it_is(properties: dict[str, str]) -> None:
    given = message(properties)
    assert route(given) is given


def test_a_message_that_the_timer_rolls_stays_in_its_topic() -> None:
    """HookUtils.isRolledTimerMessage."""
    given = message(topic="rmq_sys_wheel_timer", queue_id=0, TIMER_DELAY_SEC="9")
    assert route(given) is given


@pytest.mark.parametrize(
    ("properties", "timer", "status"),
    [
        pytest.param(
            {"TIMER_DELAY_SEC": "3"},
            TimerConfig(timer_wheel_enable=False),
            PutStatus.WHEEL_TIMER_NOT_ENABLE,
            id="HookUtils.handleScheduleMessage: the timer is off",
        ),
        pytest.param(
            {"TIMER_DELIVER_MS": "1"},
            TimerConfig(timer_wheel_enable=False),
            PutStatus.WHEEL_TIMER_NOT_ENABLE,
            id="HookUtils.handleScheduleMessage: the timer is off, for a time that has passed too",
        ),
        pytest.param({"TIMER_DELAY_SEC": "x"}, TIMER, PutStatus.WHEEL_TIMER_MSG_ILLEGAL, id="Long.parseLong throws"),
        pytest.param(
            {"TIMER_DELAY_SEC": "", "TIMER_DELAY_MS": "9"},
            TIMER,
            PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
            id="the first one counts",
        ),
        pytest.param(
            {"TIMER_DELIVER_MS": "9" * 5_000}, TIMER, PutStatus.WHEEL_TIMER_MSG_ILLEGAL, id="Long.parseLong: too long"
        ),
        pytest.param(
            {"TIMER_DELAY_SEC": str(3 * DAY_S + 1)},
            TIMER,
            PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
            id="timerMaxDelaySec: out of reach",
        ),
        pytest.param(
            {"TIMER_DELAY_SEC": str(2**62)},
            TIMER,
            PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
            id="a sum over 64 bits, which Java wraps round",
        ),
        pytest.param(
            {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "K"},
            TIMER,
            PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
            id="HookUtils.transformTimerMessage: a deletion whose time has passed",
        ),
    ],
)
def test_a_time_may_be_refused(properties: dict[str, str], timer: TimerConfig, status: PutStatus) -> None:
    assert refusal(message(properties), timer) is status


def test_a_deletion_ahead_is_parked_as_the_message_is_that_it_deletes() -> None:
    """HookUtils.transformTimerMessage."""
    assert route(message(TIMER_DELAY_SEC="9", TIMER_DEL_UNIQKEY="K")).topic == "rmq_sys_wheel_timer"


def test_a_full_slot_refuses_a_message() -> None:
    """TimerMessageStore.isReject, asked for the rounded time."""
    asked = []

    def is_congested(out_ms: np.ndarray) -> np.ndarray:
        asked.extend(out_ms.tolist())
        return out_ms > 0

    with pytest.raises(PutRefusedError) as caught:
        route_delayed(
            message(TIMER_DELAY_SEC="3"), delays_ms=DELAYS_MS, timer=TIMER, now_ms=NOW_MS, is_congested=is_congested
        )
    assert caught.value.status is PutStatus.WHEEL_TIMER_FLOW_CONTROL
    assert asked == [NOW_MS + 2_500]


@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELAY_SEC": "3"}], ids=["level", "time"])
def test_a_message_without_body_is_not_parked(properties: dict[str, str]) -> None:
    """MessageDecoder.decode leaves its body null, and HookUtils.checkBeforePutMessage refuses that at every attempt."""
    assert refusal(message(properties, body=b"")) is PutStatus.MESSAGE_ILLEGAL


# Columns


CASES: list[tuple[int | None, int | None]] = [
    (None, None),
    (0, None),
    (-1, NOW_MS + 9_000),
    (1, None),
    (3, NOW_MS + 9_000),
    (99, None),
    (None, NOW_MS + 1),
    (None, 1_700_000_009_000),
    (None, 1_700_000_009_001),
    (None, NOW_MS),
    (None, 0),
    (None, 2**63 - 1),
    (None, NOW_MS + 3 * DAY_S * 1_000),
    (None, NOW_MS + 3 * DAY_S * 1_000 + 1),
]


def judged_rows(
    timer: TimerConfig = TIMER, empty: Collection[int] = (), is_congested: Congestion | None = None
) -> Waits:
    wish = DelayWish(
        np.array([level or 0 for level, _ in CASES]),
        np.array([time is not None for _, time in CASES]),
        np.array([time or 0 for _, time in CASES], np.int64),
        np.isin(np.arange(len(CASES)), list(empty)),
    )
    return judge_delays(wish, delays_ms=DELAYS_MS, timer=timer, now_ms=NOW_MS, is_congested=is_congested)


def full_from(start_ms: int) -> Congestion:
    return lambda times: times >= start_ms


@pytest.mark.parametrize("timer", [TIMER, TimerConfig(timer_wheel_enable=False)], ids=["on", "off"])
@pytest.mark.parametrize("is_congested", [None, full_from(1_700_000_008_500)], ids=["free", "full"])
def test_rows_go_where_single_messages_go(timer: TimerConfig, is_congested: Congestion | None) -> None:
    waits = judged_rows(timer, is_congested=is_congested)
    refused = {row: why for found, why in waits.refused_rows() for row in found.tolist()}
    for row, (level, time) in enumerate(CASES):
        properties = {"DELAY": str(level)} if level is not None and level > 0 else {}
        properties |= {"TIMER_DELIVER_MS": str(time)} if time is not None else {}
        given = message(properties)
        if row in refused:
            with pytest.raises(PutRefusedError, match=re.escape(refused[row].reason)):
                route(given, timer, is_congested)
            continue
        expected = route(given, timer, is_congested)
        assert expected.properties.get("TIMER_OUT_MS") == (
            str(np.asarray(waits.out_ms)[row]) if np.asarray(waits.is_timed)[row] else None
        )
        if expected.topic == "SCHEDULE_TOPIC_XXXX":
            assert (expected.queue_id + 1, expected.properties["DELAY"]) == (
                np.asarray(waits.levels)[row],
                str(np.asarray(waits.levels)[row]),
            )
        else:
            assert np.asarray(waits.levels)[row] == 0


def test_refused_rows_are_told_once_each_in_order() -> None:
    waits = judged_rows(empty=(3, 6, 9, 13))
    assert [(found.tolist(), why.status) for found, why in waits.refused_rows()] == [
        ([11, 13], PutStatus.WHEEL_TIMER_MSG_ILLEGAL),
        ([3, 6], PutStatus.MESSAGE_ILLEGAL),
    ]


def test_each_time_of_many_rows_is_asked_about_once() -> None:
    asked: list[list[int]] = []

    def is_congested(times: np.ndarray) -> np.ndarray:
        asked.append(times.tolist())
        return times == NOW_MS + 2_500

    times = NOW_MS + np.array([3_000, 3_100, 0, 60_000])
    wish = DelayWish(np.zeros(4, np.int64), np.ones(4, bool), times, np.zeros(4, bool))
    waits = judge_delays(wish, delays_ms=DELAYS_MS, timer=TIMER, now_ms=NOW_MS, is_congested=is_congested)
    assert asked == [[NOW_MS + 2_500, NOW_MS + 59_500]]
    assert [(rows.tolist(), why.status) for rows, why in waits.refused_rows()] == [
        ([0, 1], PutStatus.WHEEL_TIMER_FLOW_CONTROL)
    ]


@pytest.mark.parametrize(
    ("count", "draw", "is_full"),
    [(100, 999, False), (101, 0, False), (101, 999, True), (150, 499, False), (150, 500, True), (200, -1, True)],
)
def test_a_slot_fills_up_by_chance_and_then_for_certain(count: int, draw: int, is_full: bool) -> None:
    """TimerMessageStore.isReject with timerCongestNumEachSlot = 100: RANDOM.nextInt(1000) > 1000 * excess / (100 + 0.1)."""
    assert bool(is_slot_full(count, 100, draw)) is is_full
    assert is_slot_full(np.array([count]), 100, np.array([draw])).tolist() == [is_full]
