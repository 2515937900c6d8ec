"""Where a query starts and ends. Meanings are those of Spark's Kafka connector, departures are named."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq.conditions import (
    DataLossError,
    NoGroupOffsetsError,
    NoOffsetForTimestampError,
    OffsetJsonError,
    QueuesNotMatchedError,
)
from spark_mq.source.offsets import NamedQueue, QueueId, QueueOffset, RecordPlace
from spark_mq.source.starting_offsets import (
    AtGroup,
    AtOffsets,
    AtTime,
    AtTimes,
    Continuity,
    Edge,
    Limit,
    NoMatch,
    QueueFacts,
    Resolved,
    TimePoint,
    check_continuity,
    check_new_queue,
    resolve_end,
    resolve_start,
)

NOW_MS = 100_000
BUSY = QueueId("T", "broker-a", 0)  # offsets 5 … 9, stored at 50 000, 60 000, … 90 000 ms
IDLE = QueueId("T", "broker-a", 1)  # offsets 0 … 1, stored at 1 000 and 2 000 ms
EMPTY = QueueId("T", "broker-a", 2)  # never written to
QUEUES = [BUSY, IDLE, EMPTY]


class Queue(NamedTuple):
    minimum: int
    store_times_ms: list[int]


class FakePositions:
    def __init__(self, group_offsets: Mapping[QueueId, int] | None = None) -> None:
        self.queues = {
            BUSY: Queue(5, [50_000, 60_000, 70_000, 80_000, 90_000]),
            IDLE: Queue(0, [1_000, 2_000]),
            EMPTY: Queue(0, []),
        }
        self.group_offsets = group_offsets or {}
        self.first_there: dict[QueueId, int] = {}

    def minimum(self, queue: QueueId) -> int:
        return self.queues[queue].minimum

    def earliest(self, queues: Collection[QueueId]) -> Mapping[QueueId, int]:
        return {queue: self.first_there.get(queue, self.minimum(queue)) for queue in queues}

    def maximum(self, queue: QueueId) -> int:
        return self.queues[queue].minimum + len(self.queues[queue].store_times_ms)

    def offset_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        for offset, stored in enumerate(self.queues[queue].store_times_ms, self.minimum(queue)):
            if stored >= timestamp_ms:
                return offset
        return None

    def moved_away(self, queue: QueueId) -> str:
        return ""

    def group_offset(self, group: str, queue: QueueId) -> int | None:
        return self.group_offsets.get(queue) if group == "g" else None


def start(limit: Limit, *, fail: bool = True, group_offsets: Mapping[QueueId, int] | None = None) -> Resolved:
    return resolve_start(
        limit,
        QUEUES,
        FakePositions(group_offsets),
        brokers={"broker-a"},
        now_ms=NOW_MS,
        fail_on_data_loss=fail,
    )


def end(limit: Limit, *, fail: bool = True) -> Resolved:
    return resolve_end(limit, QUEUES, FakePositions(), brokers={"broker-a"}, now_ms=NOW_MS, fail_on_data_loss=fail)


def each(busy: int, idle: int, empty: int) -> dict[QueueId, int]:
    return {BUSY: busy, IDLE: idle, EMPTY: empty}


def named(busy: int, idle: int, empty: int) -> dict[NamedQueue, int]:
    return {NamedQueue(*queue): number for queue, number in each(busy, idle, empty).items()}


@pytest.mark.parametrize(("first", "expected"), [(5, 5), (8, 8), (3, 5), (12, 10)])
def test_the_earliest_offset_is_that_of_the_first_message_that_is_there(first: int, expected: int) -> None:
    """A broker moves the minimum some time after it has deleted the messages. Messages may come after the look at the ends."""
    positions = FakePositions()
    positions.first_there[BUSY] = first
    for limit in (Edge.EARLIEST, AtOffsets("startingOffsets", named(-2, -2, -2))):
        found = resolve_start(limit, QUEUES, positions, brokers={"broker-a"}, now_ms=NOW_MS, fail_on_data_loss=True)
        assert found == Resolved(each(expected, 0, 0), ())


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        pytest.param(Edge.EARLIEST, (5, 0, 0), id="earliest"),
        pytest.param(Edge.LATEST, (10, 2, 0), id="latest"),
        pytest.param(AtOffsets("startingOffsets", named(7, 1, 0)), (7, 1, 0), id="offsets"),
        pytest.param(AtOffsets("startingOffsets", named(-2, -1, -1)), (5, 2, 0), id="sentinels"),
        pytest.param(AtOffsets("startingOffsets", named(10, 2, 0)), (10, 2, 0), id="the very end"),
        pytest.param(AtTime(TimePoint(1_000)), (5, 0, 0), id="time, the empty queue at its end"),
        pytest.param(AtTime(TimePoint(1_500), NoMatch.ERROR), (5, 1, 0), id="time between two messages"),
        pytest.param(AtTime(TimePoint(70_001), NoMatch.LATEST), (8, 2, 0), id="time, latest where none"),
        pytest.param(AtTime(TimePoint(30_000, before_now=True)), (7, 2, 0), id="relative, latest by default"),
        pytest.param(AtTime(TimePoint(10**9, before_now=True)), (5, 0, 0), id="relative, before 1970"),
        pytest.param(AtTimes("o", named(60_000, 2_000, 0)), (6, 1, 0), id="a time for each queue"),
        pytest.param(AtTimes("o", named(99_000, 9_000, 0), NoMatch.LATEST), (10, 2, 0), id="none that new"),
    ],
)
def test_a_start_is_resolved(limit: Limit, expected: tuple[int, int, int]) -> None:
    assert start(limit) == Resolved(each(*expected), ())


@pytest.mark.parametrize(
    "limit",
    [
        AtTime(TimePoint(70_000)),
        AtTime(TimePoint(70_000), NoMatch.ERROR),
        AtTime(TimePoint(10_000, before_now=True), NoMatch.ERROR),
        AtTimes("o", named(70_000, 2_001, 0)),
    ],
)
def test_a_time_that_no_message_is_new_enough_for_is_an_error(limit: Limit) -> None:
    with pytest.raises(NoOffsetForTimestampError, match=r"(?s)T/broker-a/1.*startingOffsetsByTimestampStrategy"):
        start(limit)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        pytest.param(Edge.LATEST, (10, 2, 0), id="latest"),
        pytest.param(AtOffsets("endingOffsets", named(7, -1, -1)), (7, 2, 0), id="offsets"),
        pytest.param(AtTime(TimePoint(70_000)), (7, 2, 0), id="exclusive: not the message of that time"),
        pytest.param(AtTime(TimePoint(10**9)), (10, 2, 0), id="none that new: the end, never an error"),
        pytest.param(AtTime(TimePoint(20_000, before_now=True)), (8, 2, 0), id="relative"),
        pytest.param(AtTimes("o", named(0, 2_000, 0)), (5, 1, 0), id="a time for each queue"),
    ],
)
def test_an_end_is_resolved(limit: Limit, expected: tuple[int, int, int]) -> None:
    assert end(limit) == Resolved(each(*expected), ())


def test_json_names_every_queue_and_no_other() -> None:
    offsets = {NamedQueue("T", "broker-a", 0): 7, NamedQueue("U", "broker-a", 0): 1}
    for resolve in (start, end):
        with pytest.raises(QueuesNotMatchedError) as caught:
            resolve(AtOffsets("startingOffsets", offsets))
        assert caught.value.unknown == ("U/broker-a/0",)
        assert caught.value.omitted == ("T/broker-a/1", "T/broker-a/2")
    with pytest.raises(QueuesNotMatchedError, match="option o must name every queue"):
        start(AtTimes("o", {NamedQueue("T", "broker-a", 0): 0}))


def test_json_without_brokers_serves_a_cluster_of_one() -> None:
    offsets = {NamedQueue("T", None, queue_id): -2 for queue_id in range(3)}
    assert start(AtOffsets("startingOffsets", offsets)).offsets == each(5, 0, 0)
    with pytest.raises(OffsetJsonError, match="startingOffsets: name the broker"):
        resolve_start(
            AtOffsets("startingOffsets", offsets),
            QUEUES,
            FakePositions(),
            brokers={"broker-a", "broker-b"},
            now_ms=0,
            fail_on_data_loss=True,
        )


@pytest.mark.parametrize(("asked", "taken"), [(4, 5), (11, 5)])
def test_a_start_that_is_not_there_is_data_loss(asked: int, taken: int) -> None:
    limit = AtOffsets("startingOffsets", named(asked, 0, 0))
    with pytest.raises(DataLossError, match=rf"(?s)T/broker-a/0.* {asked} is outside \[5, 10\].*failOnDataLoss"):
        start(limit)
    resolved = start(limit, fail=False)
    assert resolved.offsets == each(taken, 0, 0)
    assert len(resolved.losses) == 1


@pytest.mark.parametrize(("asked", "taken"), [(4, 5), (11, 10)])
def test_an_end_that_is_not_there_is_data_loss(asked: int, taken: int) -> None:
    limit = AtOffsets("endingOffsets", named(asked, 0, 0))
    with pytest.raises(DataLossError):
        end(limit)
    assert end(limit, fail=False).offsets == each(taken, 0, 0)


def test_a_group_is_followed_and_queues_new_to_it_start_at_their_minimum() -> None:
    assert start(AtGroup("g"), group_offsets={IDLE: 1}).offsets == each(5, 1, 0)
    assert start(AtGroup("g"), group_offsets={BUSY: 8, IDLE: 2, EMPTY: 0}).offsets == each(8, 2, 0)


def test_a_group_that_stored_nothing_is_an_error() -> None:
    with pytest.raises(NoGroupOffsetsError, match="group unknown"):
        start(AtGroup("unknown"), group_offsets={BUSY: 8})


def test_a_groups_offset_that_expired_is_data_loss() -> None:
    with pytest.raises(DataLossError):
        start(AtGroup("g"), group_offsets={BUSY: 2})
    assert start(AtGroup("g"), fail=False, group_offsets={BUSY: 2}).offsets[BUSY] == 5


BEFORE = (4096, 1_700_000_000_000)
OTHER = (8192, 1_700_000_000_000)


@pytest.mark.parametrize(
    ("previous", "minimum", "maximum", "found", "continuity", "resume"),
    [
        pytest.param((7, BEFORE), 0, 9, BEFORE, Continuity.UNBROKEN, 7, id="the same record before"),
        pytest.param((9, BEFORE), 0, 9, BEFORE, Continuity.UNBROKEN, 9, id="at the end"),
        pytest.param((7, BEFORE), 0, 9, None, Continuity.UNBROKEN, 7, id="a gap before: no identity"),
        pytest.param((7, None), 0, 9, OTHER, Continuity.UNBROKEN, 7, id="no identity noted"),
        pytest.param((7, BEFORE), 7, 9, OTHER, Continuity.UNBROKEN, 7, id="at the minimum it has expired"),
        pytest.param((0, None), 0, 0, None, Continuity.UNBROKEN, 0, id="empty"),
        pytest.param((7, BEFORE), 8, 9, OTHER, Continuity.BELOW_MINIMUM, 8, id="expired unread"),
        pytest.param((7, BEFORE), 9, 9, None, Continuity.BELOW_MINIMUM, 9, id="all expired unread"),
        pytest.param((7, BEFORE), 0, 6, OTHER, Continuity.BEYOND_END, 0, id="recreated, shorter"),
        pytest.param((7, BEFORE), 0, 0, None, Continuity.BEYOND_END, 0, id="recreated, empty"),
        pytest.param((7, BEFORE), 0, 7, OTHER, Continuity.REPLACED, 0, id="recreated, as long"),
        pytest.param((7, BEFORE), 2, 9, OTHER, Continuity.REPLACED, 2, id="recreated, longer"),
        pytest.param((7, BEFORE), 0, 9, (4096, 5), Continuity.REPLACED, 0, id="same place, other time"),
    ],
)
def test_a_queue_is_compared_with_where_a_query_stands(
    previous: tuple[int, RecordPlace | None],
    minimum: int,
    maximum: int,
    found: RecordPlace | None,
    continuity: Continuity,
    resume: int,
) -> None:
    verdict = check_continuity(BUSY, QueueOffset(*previous), QueueFacts(minimum, maximum, lambda offset: found))
    assert (verdict.continuity, verdict.resume) == (continuity, resume)
    assert (verdict.loss is None) == (continuity is Continuity.UNBROKEN)
    assert verdict.loss is None or "T/broker-a/0" in verdict.loss


@pytest.mark.parametrize(
    ("log_end", "expected"),
    [
        (None, "was deleted and made again, or its end was cut, or path leads to another store"),
        (4097, "was deleted and made again, or its end was cut, or path leads to another store"),
        (4096, "the store is older than the checkpoint"),
        (0, "the store is older than the checkpoint"),
    ],
)
def test_a_store_that_ends_before_the_record_that_was_read_is_an_older_one(log_end: int | None, expected: str) -> None:
    verdict = check_continuity(BUSY, QueueOffset(7, BEFORE), QueueFacts(0, 6, lambda offset: None, log_end))
    cause, _, cure = str(verdict.loss).partition("\n")
    assert cause.startswith("queue T/broker-a/0 ends at 6, before offset 7 of the checkpoint: ")
    assert expected in cause
    assert "Set failOnDataLoss to false to read the queue from offset 0 on" in cure
    assert ("read again" in cure) == (expected == "the store is older than the checkpoint")


@pytest.mark.parametrize(("asked", "is_behind"), [(4, False), (11, True)])
def test_an_offset_behind_the_end_is_not_said_to_have_expired(asked: int, is_behind: bool) -> None:
    with pytest.raises(DataLossError) as caught:
        start(AtOffsets("startingOffsets", named(asked, 0, 0)))
    assert ("No message has that offset yet" in str(caught.value)) == is_behind
    assert ("they expired" in str(caught.value)) != is_behind


def test_a_queue_that_is_gone_is_missing() -> None:
    verdict = check_continuity(BUSY, QueueOffset(7, BEFORE), None)
    assert (verdict.continuity, verdict.resume) == (Continuity.MISSING, None)


def test_the_record_before_is_asked_for_by_the_next_offset() -> None:
    asked = []

    def record_before(offset: int) -> RecordPlace:
        asked.append(offset)
        return BEFORE

    check_continuity(BUSY, QueueOffset(7, BEFORE), QueueFacts(0, 9, record_before))
    assert asked == [7]


@given(st.integers(0, 20), st.none() | st.just(BEFORE), st.integers(0, 20), st.integers(0, 20), st.booleans())
def test_reading_goes_on_inside_the_queue(
    next_offset: int, before: RecordPlace | None, minimum: int, length: int, same: bool
) -> None:
    facts = QueueFacts(minimum, minimum + length, lambda offset: BEFORE if same else OTHER)
    verdict = check_continuity(BUSY, QueueOffset(next_offset, before), facts)
    assert verdict.resume is not None
    assert minimum <= verdict.resume <= minimum + length


def test_a_new_queue_starts_at_its_minimum_and_has_lost_what_lies_before_it() -> None:
    assert check_new_queue(BUSY, 0) == (Continuity.UNBROKEN, 0, None)
    verdict = check_new_queue(BUSY, 5)
    assert (verdict.continuity, verdict.resume) == (Continuity.BELOW_MINIMUM, 5)
    assert verdict.loss is not None
