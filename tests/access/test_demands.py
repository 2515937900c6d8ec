"""Which resources a request touches: each name of header and body, and topics of a group as the group."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_mq.access.acls import BODY, MESSAGE, Action, Demand, Need, Resource, ResourceType
from spark_mq.access.authorization import demands_of
from spark_mq.remoting import Header, MessageQueue, WireBody
from spark_mq.remoting.administration import (
    SubscriptionGroupList,
    TopicConfigList,
)
from spark_mq.remoting.consumers import (
    ConsumerData,
    ConsumeStatsRequest,
    HeartbeatData,
    LockBody,
    QueueRequest,
    SubscriptionData,
)
from storage.format.typed_json import SubscriptionGroupConfig, TopicConfig

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ACTIONS = (Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET, Action.LIST)
NOTHING = QueueRequest(topic="unused", queue_id=0)


def keys(*needs: Need, header: Header = NOTHING, body: WireBody | None = None, message: str = "unused") -> list[str]:
    """Each demand as `Topic:T Sub/Get`."""
    found: Sequence[Demand] = demands_of(needs, header, body, "C", lambda: message)
    return [f"{each.resource.key} {'/'.join(action.value for action in each.actions)}" for each in found]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_a_topic_of_a_group_is_the_groups_whatever_is_done_to_it(prefix: str, action: Action) -> None:
    """`Topic:*` lets nobody read, change or delete the dead letters of a group."""
    wanted = [f"Group:other {'Sub' if action is Action.PUB else action.value}"]
    topic, actions = prefix + "other", (action,)
    assert keys(Need(TOPIC, "topic", actions), header=QueueRequest(topic=topic, queue_id=0)) == wanted
    assert keys(Need(TOPIC, MESSAGE, actions), message=topic) == wanted
    topics = TopicConfigList(topics=(TopicConfig(topic=topic),))
    assert keys(Need(TOPIC, BODY, actions), body=topics) == wanted


def test_a_group_is_never_taken_for_a_topic_of_one() -> None:
    header = QueueRequest(topic="%DLQ%g", queue_id=0)
    assert keys(Need(GROUP, "topic", (Action.GET,)), header=header) == ["Group:%DLQ%g Get"]


def consumer(group: str, *topics: str) -> ConsumerData:
    return ConsumerData(group_name=group, subscriptions=tuple(SubscriptionData(topic=topic) for topic in topics))


HEARTBEAT = HeartbeatData(client_id="c", consumers=(consumer("a", "T", "%DLQ%x"), consumer("b", "U")))
LOCK = LockBody(consumer_group="a", client_id="c", queues=tuple(MessageQueue(topic, "b", 0) for topic in "TUT"))
TOPICS = TopicConfigList(topics=tuple(TopicConfig(topic=topic) for topic in ("T", "U")))
GROUPS = SubscriptionGroupList(groups=tuple(SubscriptionGroupConfig(group=group) for group in ("a", "b")))


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (GROUP, HEARTBEAT, ["Group:a", "Group:b"]),
        (TOPIC, HEARTBEAT, ["Topic:T", "Group:x", "Topic:U"]),
        (GROUP, LOCK, ["Group:a"]),
        (TOPIC, LOCK, ["Topic:T", "Topic:U"]),
        (TOPIC, TOPICS, ["Topic:T", "Topic:U"]),
        (GROUP, GROUPS, ["Group:a", "Group:b"]),
    ],
)
def test_every_name_in_a_body_is_demanded_once(kind: ResourceType, body: WireBody, expected: list[str]) -> None:
    assert keys(Need(kind, BODY, (Action.SUB,)), body=body) == [f"{key} Sub" for key in expected]


def test_every_name_of_a_list_is_demanded_and_what_is_left_out_is_not() -> None:
    needs = Need(TOPIC, "topic_list", (Action.GET,), ";"), Need(TOPIC, "topic", (Action.GET,))
    header = ConsumeStatsRequest(consumer_group="g", topic=None, topic_list="T;;U;%DLQ%x; ")
    assert keys(*needs, header=header) == ["Topic:T Get", "Topic:U Get", "Group:x Get"]


def test_a_need_of_the_type_alone_is_the_clusters() -> None:
    assert keys(Need(ResourceType.CLUSTER, None, (Action.LIST, Action.GET))) == ["Cluster:C List/Get"]


def test_a_resource_covers_what_it_names() -> None:
    literal = Resource(TOPIC, "ord")
    assert literal.covers(Resource(TOPIC, "ord"))
    assert not literal.covers(Resource(TOPIC, "orders"))
