"""What the faces of the consumers refuse, before and after there is a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import pytest

from spark_mq.client import pull_consumer, push_consumer
from spark_mq.client.errors import (
    AccessDeniedError,
    ClientClosedError,
    ClientSettingError,
    GroupTakenError,
    NameServerUnreachableError,
)
from spark_mq.client.event_loop import run
from spark_mq.client.listeners import ConsumeStatus
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.push_consumer import PushConsumer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, make_response, read_body
from spark_mq.remoting.consumers import HeartbeatData
from storage.errors import NameIllegalError
from storage.format.record import encode_record
from storage.rules.response_codes import ResponseCode
from tests.client.conftest import in_a_child
from tests.client.planned_cluster import PlannedBroker, planned_cluster
from tests.support.message_builder import make_message
from tests.support.planned_server import Peer

NOBODY = ClientSettings(("127.0.0.1:1",), connect_timeout_ms=500, request_timeout_ms=500)


def listen(messages: object, context: object) -> ConsumeStatus:
    return ConsumeStatus.SUCCESS


def test_a_consumer_has_one_listener() -> None:
    for listeners in ({}, {"listener": listen, "orderly_listener": listen}):
        with pytest.raises(ClientSettingError, match="orderly_listener"):
            PushConsumer(NOBODY, "g", **listeners)


def test_names_and_expressions_are_checked_at_once() -> None:
    with pytest.raises(NameIllegalError):
        PushConsumer(NOBODY, "a b", listen)
    consumer = PushConsumer(NOBODY, "g", listen)
    with pytest.raises(NameIllegalError):
        consumer.subscribe("a/b")
    with pytest.raises(ValueError, match="names no tag"):
        consumer.subscribe("T", "||")


def test_a_start_without_a_name_server_says_so_and_can_be_tried_again() -> None:
    consumer = PushConsumer(NOBODY, "g", listen)
    consumer.subscribe("T")
    for _ in range(2):
        with pytest.raises(NameServerUnreachableError):
            consumer.start()


def test_a_pull_consumer_whose_subscription_has_failed_may_still_assign() -> None:
    with PullConsumer(NOBODY, "g") as puller:
        for _ in range(2):
            with pytest.raises(NameServerUnreachableError):
                puller.subscribe("T")
            with pytest.raises(NameServerUnreachableError):
                puller.assign([MessageQueue("T", "b", 0)])


@pytest.mark.parametrize("module", [push_consumer, pull_consumer], ids=["push", "pull"])
def test_brokers_take_another_subscription_of_a_topic_also_where_the_clock_was_set_back(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep the one they have unless the new version is greater. Java: ConsumerGroupInfo.updateSubscription."""
    now_ms = 2_000_000_000_000
    monkeypatch.setattr(module, "current_time_ms", lambda: now_ms)
    with planned_cluster("b-0") as cluster:
        consumer: PushConsumer | PullConsumer = (
            PushConsumer(cluster.settings, "g", listen)
            if module is push_consumer
            else PullConsumer(cluster.settings, "g")
        )
        with consumer:
            consumer.subscribe("T", "A")
            now_ms -= 3_600_000
            consumer.subscribe("T", "B")
        told = [
            (each.sub_version, each.sub_string)
            for command in cluster.commands(RequestCode.HEART_BEAT)
            for data in read_body(HeartbeatData, command.body).consumers
            for each in data.subscriptions
            if each.topic == "T"
        ]
    assert {text for _, text in told} == {"A", "B"}
    assert max(told)[1] == "B"


def test_a_consumer_that_may_not_consume_says_so_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    served = PlannedBroker.serve

    def serve(broker: PlannedBroker, peer: Peer, command: RemotingCommand) -> None:
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            peer.send(make_response(command, ResponseCode.NO_PERMISSION, "no right"))
        else:
            served(broker, peer, command)

    monkeypatch.setattr(PlannedBroker, "serve", serve)
    with planned_cluster("b-0") as cluster:
        consumer = PushConsumer(cluster.settings, "g", listen)
        consumer.subscribe("T")
        with pytest.raises(AccessDeniedError, match="no right"):
            consumer.start()
        with PullConsumer(cluster.settings, "g") as puller, pytest.raises(AccessDeniedError, match="no right"):
            puller.subscribe("T")


def test_calls_before_the_start_and_after_the_end_say_which() -> None:
    consumer = PushConsumer(NOBODY, "g", listen)
    with pytest.raises(ClientClosedError, match="was not started"):
        consumer.assignment()
    assert consumer.close()
    with pytest.raises(ClientClosedError, match="it is closed"):
        consumer.start()
    puller = PullConsumer(NOBODY, "g")
    puller.close()
    puller.close()
    with pytest.raises(ClientClosedError, match="it is closed"):
        puller.poll()


def test_a_group_has_one_consumer_in_a_client() -> None:
    with PullConsumer(NOBODY, "g"), pytest.raises(GroupTakenError):
        PullConsumer(NOBODY, "g")


def test_a_forked_child_does_not_use_its_parents_consumer() -> None:
    def check() -> None:
        consumer.close()
        with pytest.raises(ClientClosedError):
            consumer.poll()

    with PullConsumer(NOBODY, "g") as consumer:
        in_a_child(check)
        assert consumer.poll(10) == []


def test_a_message_at_an_operators_wish_has_the_topic_that_the_program_knows() -> None:
    topics: list[str] = []

    def listen(messages: Sequence[MessageExt], context: object) -> ConsumeStatus:
        topics.extend(message.topic for message in messages)
        return ConsumeStatus.SUCCESS

    first = make_message("ns%T", 0, 0, 0, body=b"x")
    again = make_message("%RETRY%ns%g", 0, 0, 0, body=b"x", properties={"RETRY_TOPIC": "ns%T"})
    with PushConsumer(replace(NOBODY, namespace="ns"), "g", listen) as consumer:
        for message in (first, again):
            run(consumer._running().consume_directly(encode_record(message), "broker-a"))
    assert topics == ["T", "T"]
