"""A query's position as a group's at a running broker: what is made first, and again where somebody has deleted it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, make_response, read_body, write_body
from spark_mq.source.cluster_questions import ClusterQuestions
from spark_mq.source.live_cluster import LiveGroup
from spark_mq.source.live_view import LiveView
from spark_mq.source.ranges import Subscription
from storage.format.typed_json import SubscriptionGroupConfig, TopicConfig
from tests.support.fake_broker import FakeBroker

OFFSETS = {("T", 0): 7, ("T", 1): 9}


class GroupBroker(FakeBroker):
    """Keeps groups, topics and offsets as 5.3.3 does, or as 4.9 (`is_old`)."""

    def __init__(self) -> None:
        super().__init__([])
        self.groups: set[str] = set()
        self.topics: set[str] = set()
        self.stored: dict[tuple[str, int], int] = {}
        self.is_old = False

    @property
    def codes(self) -> list[int]:
        return [request.code for request in self.requests]

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        """Every request, whatever its code."""
        fields = request.ext_fields or {}
        match request.code:
            case RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG | RequestCode.GET_TOPIC_CONFIG if self.is_old:
                return make_response(request, 3, "not supported")
            case RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG if fields["group"] in self.groups:
                body = write_body(SubscriptionGroupConfig(group=fields["group"]))
                return make_response(request, 0, None, None, body)
            case RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
                return make_response(request, 26, "No group in this broker")
            case RequestCode.GET_TOPIC_CONFIG if fields["topic"] in self.topics:
                return make_response(request, 0, None, None, write_body(TopicConfig(topic=fields["topic"])))
            case RequestCode.GET_TOPIC_CONFIG:
                return make_response(request, 17, "No topic in this broker")
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                self.topics.add(fields["topic"])
            case RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
                self.groups.add(read_body(SubscriptionGroupConfig, request.body).group)
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                if fields["consumerGroup"] not in self.groups and not self.is_old:
                    return make_response(request, 26, "Group g not exist!")
                self.stored[fields["topic"], int(fields["queueId"])] = int(fields["commitOffset"])
        return make_response(request, 0, None)


@pytest.fixture
def broker() -> Iterator[GroupBroker]:
    with GroupBroker() as running:
        yield running


def write_twice(broker: GroupBroker) -> None:
    """With the group deleted between the two."""
    questions = ClusterQuestions(ClientSettings((broker.address,)))
    view = LiveView(questions, Subscription(topics=("T",)), 1_000)
    view.brokers = {"broker-a": {0: broker.address}}
    write = LiveGroup(questions, view, "broker-a").write
    write("g", OFFSETS, 0)
    broker.groups.clear()
    broker.topics.clear()
    broker.stored.clear()
    write("g", OFFSETS, 0)
    questions.close()


def test_a_group_that_is_deleted_while_the_query_runs_is_made_again(broker: GroupBroker) -> None:
    write_twice(broker)
    assert (broker.groups, broker.topics, broker.stored) == ({"g"}, {"%RETRY%g"}, OFFSETS)


def test_a_group_that_is_there_is_not_made(broker: GroupBroker) -> None:
    broker.groups, broker.topics = {"g"}, {"%RETRY%g"}
    questions = ClusterQuestions(ClientSettings((broker.address,)))
    view = LiveView(questions, Subscription(topics=("T",)), 1_000)
    view.brokers = {"broker-a": {0: broker.address}}
    for _ in range(2):
        LiveGroup(questions, view, "broker-a").write("g", OFFSETS, 0)
    questions.close()
    made = {RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP}
    assert not made & set(broker.codes)


def test_a_broker_that_cannot_be_asked_gets_the_group_once(broker: GroupBroker) -> None:
    broker.is_old = True
    write_twice(broker)
    assert broker.codes.count(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP) == 1
    assert broker.stored == OFFSETS
