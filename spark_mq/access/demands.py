"""Which resources a request touches, by its code's needs, its header and its body. Java: DefaultAuthorizationContextBuilder.

`%RETRY%` and `%DLQ%` topics count as their group, and who sends to one subscribes. Departures, where Java's rules leave a way around
them: it takes the group for a `%RETRY%` topic from the sender's own words, skips such topics in pulls and heartbeats, and skips names
that are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from spark_mq.access.resources import BODY, MESSAGE, Action, Demand, Need, Resource, ResourceType
from spark_mq.remoting import Header, WireBody
from spark_mq.remoting.admin_bodies import SubscriptionGroupConfig, SubscriptionGroupList, TopicConfigList
from spark_mq.remoting.client_bodies import (
    AssignmentQuestion,
    CheckClientBody,
    HeartbeatData,
    LockBody,
    RequestModeBody,
)
from storage.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP


def demands_of(
    needs: Sequence[Need],
    header: Header,
    body: WireBody | None,
    cluster: str,
    message_topic: Callable[[], str],
) -> tuple[Demand, ...]:
    """What must be allowed, each once. `message_topic` gives that of the message that the header names, or raises."""
    found: dict[Demand, None] = {}
    for need in needs:
        for name in _names(need, header, body, cluster, message_topic):
            if name and name.strip():
                found[_demand(need, name)] = None
    return tuple(found)


def _names(
    need: Need, header: Header, body: WireBody | None, cluster: str, message_topic: Callable[[], str]
) -> Iterator[str | None]:
    if need.field is None:
        yield cluster
    elif need.field == BODY:
        yield from _IN_BODIES[type(body), need.type](body)
    elif need.field == MESSAGE:
        yield message_topic()
    else:
        name: str | None = getattr(header, need.field)
        yield from [name] if need.separator is None else (name or "").split(need.separator)


def _demand(need: Need, name: str) -> Demand:
    if need.type is _TOPIC:
        for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
            if name.startswith(prefix):
                actions = tuple(Action.SUB if action is Action.PUB else action for action in need.actions)
                return Demand(Resource(_GROUP, name.removeprefix(prefix)), actions)
    return Demand(Resource(need.type, name), need.actions)


_IN_BODIES: Mapping[tuple[type[Any], ResourceType], Callable[[Any], Sequence[str | None]]] = {
    (HeartbeatData, _GROUP): lambda body: [consumer.group_name for consumer in body.consumers],
    (HeartbeatData, _TOPIC): lambda body: [
        subscription.topic for consumer in body.consumers for subscription in consumer.subscriptions
    ],
    (CheckClientBody, _GROUP): lambda body: [body.group],
    (LockBody, _GROUP): lambda body: [body.consumer_group],
    (LockBody, _TOPIC): lambda body: [queue.topic for queue in body.queues],
    (AssignmentQuestion, _GROUP): lambda body: [body.consumer_group],
    (RequestModeBody, _GROUP): lambda body: [body.consumer_group],
    (RequestModeBody, _TOPIC): lambda body: [body.topic],
    (TopicConfigList, _TOPIC): lambda body: [topic.topic_name for topic in body.topics],
    (SubscriptionGroupConfig, _GROUP): lambda body: [body.group_name],
    (SubscriptionGroupList, _GROUP): lambda body: [group.group_name for group in body.groups],
}
"""By body and resource, the names in it."""
