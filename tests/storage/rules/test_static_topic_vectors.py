"""Decisions about static topics beside Apache's own (`StaticTopicVectors.java`): mappings that operators send, offsets in a chain, and
answers to pulls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spark_mq.remoting import read_body
from storage.rules.response_codes import ResponseCode
from storage.rules.static_topics import (
    PullPlace,
    QueueEnds,
    accepted_mapping,
    committed_place,
    link_place,
    logical_pull,
    logical_queue,
    physical_pull,
    without_expired,
    without_passed_on,
)
from storage.tables.topics import MappingItem, TopicQueueMapping, TopicQueueMappingTable, find_item, next_item
from tests.support.places import VECTORS

LINES = [json.loads(line) for line in (VECTORS / "broker" / "static_topics.jsonl").read_text("utf-8").splitlines()]
HERE, TOPIC = "broker-a", "Static"


def lines(kind: str) -> Iterator[dict[str, Any]]:
    return (line for line in LINES if line["type"] == kind)


def mapping_of(text: str) -> TopicQueueMapping:
    return read_body(TopicQueueMapping, text.encode())


def chain_of(text: str) -> tuple[MappingItem, ...]:
    found = mapping_of(f'{{"topic":"{TOPIC}","bname":"{HERE}","totalQueues":4,"epoch":7,"hostedQueues":{{3:{text}}}}}')
    return found.hosted_queues[3]


def test_mappings_of_operators_are_accepted_and_refused_as_by_java() -> None:
    """With the assertions that Java has off by default; beyond them, a chain that ends before the known one is refused."""
    accepted = refused = stricter = 0
    for line in lines("update"):
        before = None if line["before"] is None else mapping_of(line["before"])
        told = mapping_of(line["told"])
        try:
            after = accepted_mapping(before, told, told.broker_name, force=line["force"])
        except ValueError as error:
            if "would be hidden" in str(error):
                stricter += 1
                continue
            after = None
        assert (after is None) == (line["error"] is not None), line
        if after is None:
            refused += 1
        else:
            assert after == mapping_of(line["after"]), line
            accepted += 1
    assert min(accepted, refused) > 30
    assert stricter < 5


def test_a_refusal_by_epoch_scope_or_leader_has_javas_words() -> None:
    words = ("Can't accept data", "Cannot accept equal epoch", "The new leader is different but epoch equal")
    found = set()
    for line in lines("update"):
        if line["error"] is None or not line["error"].startswith(words):
            continue
        told = mapping_of(line["told"])
        with pytest.raises(ValueError, match=r"[a-z]") as refused:
            accepted_mapping(mapping_of(line["before"]), told, told.broker_name)
        if str(refused.value).startswith(words):
            assert str(refused.value) == line["error"]
            found.add(str(refused.value)[:22])
    assert len(found) >= 2


def test_a_mapping_of_another_broker_is_refused() -> None:
    told = TopicQueueMapping(TOPIC, HERE, 1, 5, hosted_queues={0: (MappingItem(HERE),)})
    with pytest.raises(ValueError, match="that of broker 'broker-a', and this is 'broker-b'"):
        accepted_mapping(None, told, "broker-b")


def test_a_chain_that_ends_before_the_known_one_is_refused_though_its_epoch_is_newer() -> None:
    """Java takes it: then two brokers accept messages for one queue, and what is after the end is hidden."""
    first, second = MappingItem(HERE), MappingItem("broker-b", generation=1, logic_offset=10_000)
    before = TopicQueueMapping(TOPIC, HERE, 1, 5, hosted_queues={0: (first, second)})
    told = replace(before, epoch=6, hosted_queues={0: (first,)})
    with pytest.raises(ValueError, match="ends at link 0, before link 1: messages after it would be hidden"):
        accepted_mapping(before, told, HERE)
    assert accepted_mapping(before, told, HERE, force=True).hosted_queues == told.hosted_queues


def test_offsets_in_a_chain_are_javas() -> None:
    for line in lines("chain"):
        items = chain_of(line["items"])
        by_generation = {item.generation: item for item in items}
        for offset, generation in line["found"]:
            found = find_item(items, offset)
            assert (found and found.generation) == generation, (line, offset)
        for generation, behind in line["next"]:
            found = next_item(items, by_generation[generation])
            assert (found and found.generation) == behind, (line, generation)
        for generation, offset, loosely, strictly, physical, most in line["offsets"]:
            item = by_generation[generation]
            ours = item.logical_within(offset), item.logical(offset), item.physical(offset), item.end_logic_offset
            assert ours == (loosely, strictly, physical, most), (line, generation, offset)


def test_answers_to_pulls_are_javas() -> None:
    count = 0
    for line in lines("pull"):
        mapping = TopicQueueMapping(TOPIC, HERE, 4, 7, hosted_queues={3: chain_of(line["items"])})
        queue = logical_queue(TopicQueueMappingTable(mappings={TOPIC: mapping}), TOPIC, 3)
        pull = physical_pull(queue, line["offset"])
        assert pull is not None
        code, *numbers = line["found"]
        place = logical_pull(queue, pull, PullPlace(ResponseCode(code), *numbers))
        assert [place.code, *place[1:]] == [line["code"], *line["answer"]], line
        count += 1
    assert count > 100


A, B, C = HERE, "broker-b", "broker-c"
CHAIN = (
    MappingItem(B, 5),
    MappingItem(A, 2, generation=1, logic_offset=10_000),
    MappingItem(A, 3, generation=2, logic_offset=20_000),
)


def led(*items: MappingItem, name: str = A, epoch: int = 7) -> TopicQueueMapping:
    return TopicQueueMapping(TOPIC, name, 4, epoch, hosted_queues={3: items})


def test_an_offset_lies_in_the_link_that_holds_it() -> None:
    table = TopicQueueMappingTable(mappings={TOPIC: led(*CHAIN)})
    queue = logical_queue(table, TOPIC, 3)
    places = {offset: link_place(queue, offset) for offset in (0, 9_999, 10_000, 20_001)}
    assert {offset: (at.item.queue_id, at.queue_offset, at.is_here) for offset, at in places.items()} == {
        0: (5, 0, False),
        9_999: (5, 9_999, False),
        10_000: (2, 0, True),
        20_001: (3, 1, True),
    }
    assert committed_place(queue, 3, 20_001) == (3, 1)
    assert committed_place(queue, 2, 10_004) == (2, 4)
    assert committed_place(queue, 2, 7) is None
    assert committed_place(logical_queue(table, "Plain", 1), 1, 7) == (1, 7)


def test_an_undecided_link_holds_no_offset() -> None:
    table = TopicQueueMappingTable(mappings={TOPIC: led(CHAIN[0], replace(CHAIN[1], logic_offset=-1))})
    assert link_place(logical_queue(table, TOPIC, 3), 2**62).item == CHAIN[0]


@pytest.mark.parametrize(
    ("ends", "kept"),
    [(None, 3), ((0, 4), 3), ((4, 4), 2), ((0, 0), 2)],
    ids=["not known", "messages", "all expired", "never any"],
)
def test_only_a_first_link_whose_messages_have_expired_is_cleaned_away(ends: tuple[int, int] | None, kept: int) -> None:
    """TopicQueueMappingCleanService.cleanItemExpired."""
    found = {} if ends is None else {(B, 5): QueueEnds(*ends)}
    assert without_expired(led(*CHAIN), found).hosted_queues[3] == CHAIN[-kept:]


def test_a_link_before_an_undecided_one_stays() -> None:
    mapping = led(CHAIN[0], replace(CHAIN[1], logic_offset=-1))
    assert without_expired(mapping, {(B, 5): QueueEnds(0, 0)}) is mapping


@pytest.mark.parametrize(
    ("leader", "is_kept"),
    [
        (led(MappingItem(C, generation=2), name=C), False),
        (led(MappingItem(C, generation=2), name=C, epoch=8), True),
        (led(MappingItem(B, generation=1), name=B), True),
        (led(MappingItem(A, generation=2), name=C), True),
        (None, True),
    ],
    ids=["passed on", "another epoch", "the one that it went to", "who leads does not know it", "not known"],
)
def test_a_queue_that_was_passed_on_is_forgotten_only_if_its_leader_says_so(
    leader: TopicQueueMapping | None, is_kept: bool
) -> None:
    """TopicQueueMappingCleanService.cleanItemListMoreThanSecondGen."""
    mapping = led(MappingItem(A), MappingItem(B, generation=1, logic_offset=10_000))
    found = without_passed_on(mapping, {} if leader is None else {3: leader})
    assert (3 in found.hosted_queues) == is_kept
