"""Static topics in requests and answers, pure: TopicQueueMappingManager, PullMessageProcessor."""

from __future__ import annotations

import pytest

from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.rules.static_topics import (
    LogicalQueue,
    PhysicalPull,
    PullPlace,
    answered_place,
    logical_pull,
    logical_queue,
    physical_pull,
    physical_queue_id,
)
from storage.tables.topics import MappingItem, TopicQueueMapping, TopicQueueMappingTable

HERE, THERE = "broker-a", "broker-b"
FIRST = MappingItem(THERE, 7, generation=0, logic_offset=0, end_offset=500)
MIDDLE = MappingItem(HERE, 3, generation=1, logic_offset=1_000, end_offset=300)
LEADER = MappingItem(HERE, 4, generation=2, logic_offset=2_000)
CHAIN = (FIRST, MIDDLE, LEADER)
TABLE = TopicQueueMappingTable(
    mappings={
        "Static": TopicQueueMapping("Static", HERE, 3, hosted_queues={2: CHAIN, 1: (FIRST,)}),
        "Empty": TopicQueueMapping("Empty", HERE, 3),
    }
)
QUEUE = logical_queue(TABLE, "Static", 2)


@pytest.mark.parametrize(
    ("topic", "queue_id", "logical", "choose", "expected"),
    [
        ("Plain", 2, None, True, (None, False, ())),
        ("Static", 2, None, True, (2, True, CHAIN)),
        ("Static", 2, True, True, (2, True, CHAIN)),
        ("Static", 2, False, True, (None, False, ())),
        ("Static", 1, None, True, (1, False, (FIRST,))),
        ("Static", 0, None, True, (0, False, ())),
        ("Static", -1, None, True, (1, False, (FIRST,))),
        ("Static", -1, None, False, (-1, False, ())),
        ("Static", None, None, False, (None, False, ())),
        ("Empty", -1, None, True, (-1, False, ())),
    ],
)
def test_a_requests_queue_is_found_in_the_mapping(
    topic: str, queue_id: int | None, logical: bool | None, choose: bool, expected: tuple[object, ...]
) -> None:
    """TopicQueueMappingManager.buildTopicQueueMappingContext, TopicQueueMappingContext.isLeader."""
    queue = logical_queue(TABLE, topic, queue_id, logical=logical, choose_queue=choose)
    assert (queue.queue_id, queue.is_led_here, queue.items) == expected


def test_an_ordinary_topic_is_left_alone() -> None:
    """TopicQueueMappingManager.rewriteRequestForStaticTopic, SendMessageProcessor.rewriteResponseForStaticTopic."""
    queue = LogicalQueue("Plain")
    assert physical_queue_id(queue, 5) == 5
    assert answered_place(queue, 5, 17) == (5, 17)
    assert physical_pull(queue, 17) is None


def test_a_send_goes_to_the_leaders_queue_and_is_answered_in_logical_offsets() -> None:
    """TopicQueueMappingManager.rewriteRequestForStaticTopic, SendMessageProcessor.rewriteResponseForStaticTopic."""
    assert physical_queue_id(QUEUE, 2) == 4
    assert answered_place(QUEUE, 4, 17) == (2, 2_017)


@pytest.mark.parametrize("queue_id", [0, 1])
def test_only_the_leader_takes_sends_and_pulls(queue_id: int) -> None:
    """TopicQueueMappingManager.rewriteRequestForStaticTopic, PullMessageProcessor.rewriteRequestForStaticTopic."""
    queue = logical_queue(TABLE, "Static", queue_id)
    with pytest.raises(RequestRefusedError) as sent:
        physical_queue_id(queue, queue_id)
    with pytest.raises(RequestRefusedError) as pulled:
        physical_pull(queue, 0)
    assert (sent.value.code, pulled.value.code) == (ResponseCode.NOT_LEADER_FOR_QUEUE,) * 2
    assert pulled.value.remark == (
        f"Static-{queue_id} cannot find mapping item in request process of current broker broker-a"
    )


@pytest.mark.parametrize(
    ("logical", "expected"),
    [
        (0, PhysicalPull(FIRST, 0, 32, False)),
        (499, PhysicalPull(FIRST, 499, 32, False)),
        (700, PhysicalPull(FIRST, 700, 32, False)),  # in the gap: behind the link's end
        (1_000, PhysicalPull(MIDDLE, 0, 32, True)),
        (1_299, PhysicalPull(MIDDLE, 299, 32, True)),
        (2_000, PhysicalPull(LEADER, 0, 32, True)),
        (9_999, PhysicalPull(LEADER, 7_999, 32, True)),
        (-5, PhysicalPull(FIRST, -5, 32, False)),
    ],
)
def test_a_pull_goes_to_the_link_that_holds_the_offset(logical: int, expected: PhysicalPull) -> None:
    """PullMessageProcessor.rewriteRequestForStaticTopic."""
    assert physical_pull(QUEUE, logical, 32) == expected


def test_a_pull_asks_for_no_more_than_a_closed_link_holds() -> None:
    """PullMessageProcessor.rewriteRequestForStaticTopic: setMaxMsgNums."""
    counts = []
    for offset in (1_000, 2_000):
        pull = physical_pull(QUEUE, offset, 10_000)
        assert pull is not None
        counts.append(pull.max_count)
    assert counts == [300, 10_000]


def test_a_pull_of_a_chain_without_a_decided_link_is_an_error() -> None:
    """PullMessageProcessor.rewriteRequestForStaticTopic, where mappingItem is null and SYSTEM_ERROR is answered."""
    mapping = TopicQueueMapping("New", HERE, 1, hosted_queues={0: (MappingItem(HERE, logic_offset=-1),)})
    with pytest.raises(RequestRefusedError) as refused:
        physical_pull(LogicalQueue("New", 0, mapping), 0)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


# (logical offset, code, next, min, max of the physical answer) → (code, next, min, max, delta)
BY_APACHE = {
    (-5, 0, 300, 50, 300): (0, 300, 50, 2000, 0),
    (-5, 0, 600, 0, 0): (0, 500, 0, 2000, 0),
    (-5, 19, 0, 50, 99): (21, 50, 50, 2000, 0),
    (0, 19, 0, 0, 0): (20, 1000, 1000, 2000, 1000),
    (0, 19, 600, 0, 99): (19, 500, 0, 2000, 0),
    (0, 20, 1, 0, 99): (20, 1, 0, 2000, 0),
    (0, 21, 1, 0, 99): (21, 1, 0, 2000, 0),
    (99, 21, 1, 50, 99): (20, 1000, 1000, 2000, 1000),
    (1000, 0, 310, 50, 300): (0, 1300, 1050, 2000, 1000),
    (1000, 0, 0, 50, 99): (0, 1000, 1050, 2000, 1000),
    (1000, 19, 0, 0, 0): (20, 2000, 2000, 2000, 2000),
    (1000, 19, 0, 50, 99): (20, 1050, 1050, 2000, 1000),
    (1000, 19, 0, 400, 600): (20, 1300, 1400, 2000, 1000),
    (1000, 21, 1, 0, 99): (21, 1001, 1000, 2000, 1000),
    (1050, 20, 310, 50, 300): (20, 1300, 1050, 2000, 1000),
    (1299, 19, 1, 50, 99): (20, 2000, 2000, 2000, 2000),
    (2000, 0, 300, 50, 300): (0, 2300, 2050, 2300, 2000),
    (2000, 19, 0, 50, 99): (20, 2050, 2050, 2099, 2000),
    (2000, 20, 1, 0, 0): (20, 2001, 2000, 2000, 2000),
    (2001, 21, 1, 0, 0): (21, 2000, 2000, 2000, 2000),
    (2050, 21, 300, 50, 300): (21, 2300, 2050, 2300, 2000),
    (2100, 21, 0, 0, 99): (21, 2099, 2000, 2099, 2000),
}
# The same where the leader's place is not decided.
BY_APACHE_UNDECIDED = {
    (1299, 20, 0, 0, 99): (19, 1000, 1000, 1099, 1000),
    (1300, 21, 300, 50, 300): (19, 1300, 1050, 1300, 1000),
    (2000, 0, 310, 0, 0): (0, 1300, 1000, 1000, 1000),
}


@pytest.mark.parametrize("asked", BY_APACHE)
def test_a_pulls_answer_is_told_in_logical_offsets(asked: tuple[int, ...]) -> None:
    """PullMessageProcessor.rewriteResponseForStaticTopic; the numbers are its own (rocketmq-broker 5.3.3, called with this chain)."""
    assert answered(QUEUE, *asked) == BY_APACHE[asked]


@pytest.mark.parametrize("asked", BY_APACHE_UNDECIDED)
def test_no_pull_goes_on_to_a_link_whose_place_is_not_decided(asked: tuple[int, ...]) -> None:
    """PullMessageProcessor.rewriteResponseForStaticTopic; the numbers are its own."""
    chain = (FIRST, MIDDLE, MappingItem(HERE, 4, generation=2, logic_offset=-1))
    queue = LogicalQueue("Moving", 2, TopicQueueMapping("Moving", HERE, 3, hosted_queues={2: chain}))
    assert answered(queue, *asked) == BY_APACHE_UNDECIDED[asked]


def answered(queue: LogicalQueue, logical: int, code: int, *physical: int) -> tuple[int, ...]:
    pull = physical_pull(queue, logical)
    assert pull is not None
    return tuple(map(int, logical_pull(queue, pull, PullPlace(ResponseCode(code), *physical))))
