"""Calls about one queue at brokers that do not know all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from spark_mq.client.admin import AsyncAdmin
from spark_mq.client.consumer_calls import ConsumerCalls, QueueCalls
from spark_mq.client.errors import BrokerUnreachableError
from spark_mq.client.event_loop import run
from spark_mq.client.instance import ClientInstance
from spark_mq.client.pulls import Pull, PullStatus, subscription
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, make_response
from tests.support.planned_server import Peer

from .planned_cluster import PlannedBroker, PlannedCluster

QUEUE = MessageQueue("T", "b", 0)
LITE, PLAIN = RequestCode.LITE_PULL_MESSAGE, RequestCode.PULL_MESSAGE


class OldBroker(PlannedBroker):
    """Knows lite pulls only where it is told to. Every pull finds the queue's end."""

    knows_lite = False

    def serve(self, peer: Peer, command: RemotingCommand) -> None:
        if command.code == LITE and not self.knows_lite:
            peer.send(make_response(command, 3, " request type 361 not supported"))
        elif command.code in (LITE, PLAIN):
            fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "7", "minOffset": "0", "maxOffset": "7"}
            peer.send(make_response(command, 19, "OFFSET_OVERFLOW_ONE", fields))
        else:
            super().serve(peer, command)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlannedCluster]:
    monkeypatch.setattr("tests.client.planned_cluster.PlannedBroker", OldBroker)
    with ExitStack() as stack:
        yield PlannedCluster(stack, "b")


def test_a_broker_that_does_not_know_lite_pulls_is_asked_so_once_a_connection(cluster: PlannedCluster) -> None:
    (broker,) = cluster.brokers.values()
    assert isinstance(broker, OldBroker)
    instance = ClientInstance.of(cluster.settings)
    calls = QueueCalls(instance)
    pull = Pull(QUEUE, 7, subscription("T", "*", 1), suspend_ms=0, is_lite=True)

    def pulls(count: int) -> list[int]:
        before = len(broker.server.commands)
        for _ in range(count):
            result = run(calls.pull(pull, "g"), 10_000)
            assert (result.status, result.next_offset) == (PullStatus.NO_NEW_MESSAGE, 7)
        return [command.code for command in broker.server.commands[before:] if command.code in (LITE, PLAIN)]

    try:
        assert pulls(3) == [LITE, PLAIN, PLAIN, PLAIN]
        broker.knows_lite = True  # another release behind the same address
        assert pulls(1) == [PLAIN]
        run(_hang_up(instance, broker.server.address), 10_000)
        assert pulls(2) == [LITE, LITE]
    finally:
        instance.release()


async def _hang_up(instance: ClientInstance, address: str) -> None:
    instance.remoting._open[address].close(BrokerUnreachableError(address, "the test says so"))


def test_an_offset_whose_answer_is_waited_for_is_no_one_way_request(cluster: PlannedCluster) -> None:
    (broker,) = cluster.brokers.values()
    instance = ClientInstance.of(cluster.settings)
    calls = ConsumerCalls(instance, "g")

    try:
        run(instance.route(QUEUE.topic), 10_000)
        run(calls.store_offset(QUEUE, 5), 10_000)
        run(calls.store_offset(QUEUE, 6, wait=True), 10_000)
        found = [each for each in broker.server.commands if each.code == RequestCode.UPDATE_CONSUMER_OFFSET]
        told = [((each.ext_fields or {})["commitOffset"], each.is_oneway) for each in found]
        assert told == [("5", True), ("6", False)]
    finally:
        instance.release()


def test_questions_get_twice_the_time_of_a_request_as_javas(
    cluster: PlannedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MQAdminImpl has 6 s where mqClientApiTimeout is 3 s. Three were too short on a busy machine."""
    given: dict[int, int | None] = {}

    async def answered(
        client: RemotingClient, address: str, command: RemotingCommand, timeout_ms: int | None = None
    ) -> RemotingCommand:
        given[command.code] = timeout_ms
        return make_response(command, 0, None, {"offset": "7", "timestamp": "7"})

    calls, code = AsyncAdmin(replace(cluster.settings, request_timeout_ms=4_000)), RequestCode
    try:
        run(calls.route("T"), 10_000)
        monkeypatch.setattr(RemotingClient, "invoke", answered)
        for call in (
            *(calls.min_offset(QUEUE), calls.max_offset(QUEUE), calls.earliest_time_ms(QUEUE)),
            *(calls.search_offset(QUEUE, 1), calls.group_offset("g", QUEUE), calls.store_group_offset("g", QUEUE, 1)),
            calls.consumer_ids("g", "T"),
        ):
            run(call, 10_000)
    finally:
        monkeypatch.undo()
        calls.release()
    asked = (code.GET_MIN_OFFSET, code.GET_MAX_OFFSET, code.GET_EARLIEST_MSG_STORETIME, code.SEARCH_OFFSET_BY_TIMESTAMP)
    more = (code.QUERY_CONSUMER_OFFSET, code.UPDATE_CONSUMER_OFFSET, code.GET_CONSUMER_LIST_BY_GROUP)
    assert given == dict.fromkeys((*asked, *more), 8_000)
