"""Queues are shared among a group's clients as Java's classes share them."""

from __future__ import annotations

from typing import Any

import pytest

from spark_mq.client.allocation import (
    Allocation,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    sorted_client_ids,
)
from spark_mq.client.message import MessageQueue
from tests.client.java_vectors import java_says

QUEUES = [MessageQueue("T", "a", number) for number in range(3)]


def room_of_broker(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_client(client_id: str) -> str:
    return client_id.partition("@")[0]


def named(name: str, queues: list[MessageQueue]) -> Allocation:
    inner: dict[str, Allocation] = {"AVG": Averagely(), "CONSISTENT_HASH": ConsistentHash()}
    near = [MachineRoomNearby(each, room_of_broker, room_of_client) for each in inner.values()]
    rest = [AveragelyByCircle(), ByConfig((queues[0],)), ByMachineRoom(frozenset({"room0"}))]
    return {each.name: each for each in [*inner.values(), *near, *rest]}[name]


def queues_of(line: dict[str, Any]) -> list[MessageQueue]:
    split = [text.split(" ") for text in line["queues"]]
    return [MessageQueue(topic, broker_name, int(queue_id)) for topic, broker_name, queue_id in split]


@pytest.mark.parametrize(
    "name",
    [
        "AVG",
        "AVG_BY_CIRCLE",
        "CONFIG",
        "MACHINE_ROOM",
        "MACHINE_ROOM_NEARBY-AVG",
        "MACHINE_ROOM_NEARBY-CONSISTENT_HASH",
        "CONSISTENT_HASH",
    ],
)
def test_each_client_gets_what_java_gives_it(name: str) -> None:
    lines = [line for line in java_says("allocation") if line["strategy"] == name]
    assert len(lines) == 24
    for line in lines:
        queues = queues_of(line)
        strategy = named(name, queues)
        if name == "CONFIG":  # which asks nobody
            del line["given"]["nobody"]
        assert {
            client: [queues.index(queue) for queue in strategy.allocate(client, queues, line["clients"])]
            for client in line["given"]
        } == line["given"]


@pytest.mark.parametrize("strategy", [Averagely(), AveragelyByCircle(), ConsistentHash()])
def test_the_clients_together_have_each_queue_once(strategy: Allocation) -> None:
    clients = ["c1", "c2"]
    assert sorted(queue for client in clients for queue in strategy.allocate(client, QUEUES, clients)) == QUEUES


def test_a_listed_queue_of_another_topic_is_not_given_for_this_one() -> None:
    listed = (QUEUES[1], MessageQueue("Other", "a", 0))
    assert ByConfig(listed).allocate("c", QUEUES, ["c"]) == [QUEUES[1]]


def test_a_room_that_the_function_does_not_know_is_named_in_the_error() -> None:
    strategy = MachineRoomNearby(Averagely(), lambda queue: "", room_of_client)
    with pytest.raises(ValueError, match="machine room of queue"):
        strategy.allocate("c", QUEUES, ["c"])


def test_the_queues_as_java_sorts_them() -> None:
    lines = java_says("allocation")
    assert all(queues_of(line) == sorted(queues_of(line)) for line in lines)
    assert all(sorted_client_ids(reversed(line["clients"])) == line["clients"] for line in lines)


def test_client_ids_sort_by_utf_16_units() -> None:
    assert sorted_client_ids(["\uff5e", "\U0001f600"]) == ["\U0001f600", "\uff5e"]
