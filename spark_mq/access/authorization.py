"""The resources of a request, and the check of a user's entries.

Java: DefaultAuthorizationContextBuilder, AclAuthorizationHandler.

The closest of the matching Custom entries decides; among equally close ones, an entry that denies wins. Without a match, the Default
entries decide in the same way; without these, nothing is allowed. Closest: literal names, then prefixes, the longest first, then
`Topic:*`, then `*`. Departure: 5.3.3 sorts shorter prefixes first, and entries that allow before those that deny. Its documentation
describes the rules here, and so do later releases, except the last rule.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from spark_mq.access.acls import (
    BODY,
    MESSAGE,
    Action,
    Decision,
    Demand,
    Entry,
    Need,
    Policies,
    PolicyType,
    Resource,
    ResourceType,
    parse_network,
)
from spark_mq.access.users import refused
from spark_mq.remoting import Header, WireBody
from spark_mq.remoting.administration import (
    SubscriptionGroupList,
    TopicConfigList,
)
from spark_mq.remoting.consumers import (
    AssignmentQuestion,
    CheckClientBody,
    HeartbeatData,
    LockBody,
    RequestModeBody,
)
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP


def check_allowed(subject: str, policies: Policies, demands: Iterable[Demand], host: str) -> None:
    """Raises RequestRefusedError, with Java's remark, unless the subject may do all of it from that address."""
    for demand in demands:
        why = _why_not(policies, demand, host)
        if why is not None:
            raise refused(f"{subject} has no permission to access {demand.resource.key} from {host}, {why}")


def _why_not(policies: Policies, demand: Demand, host: str) -> str | None:
    for kind in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        found = [entry for entry in policies.get(kind, ()) if _matches(entry, demand, host)]
        if found:
            return "the decision is deny." if min(found, key=_rank).decision is Decision.DENY else None
    return "no matched policies."


def _matches(entry: Entry, demand: Demand, host: str) -> bool:
    if not entry.resource.covers(demand.resource):
        return False
    if Action.ALL not in entry.actions and entry.actions.isdisjoint(demand.actions):
        return False
    return not entry.source_ips or any(_is_from(host, source_ip) for source_ip in entry.source_ips)


def _is_from(host: str, source_ip: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    network = parse_network(source_ip)
    return network is not None and (getattr(address, "ipv4_mapped", None) or address) in network


def _rank(entry: Entry) -> tuple[bool, int, int, bool]:
    resource = entry.resource
    is_any = resource.type is ResourceType.ANY
    return is_any, resource.pattern, -len(resource.name), entry.decision is not Decision.DENY


def demands_of(
    needs: Sequence[Need],
    header: Header,
    body: WireBody | None,
    cluster: str,
    message_topic: Callable[[], str],
) -> tuple[Demand, ...]:
    """The demands of a request, each once, from the code's needs, the header and the body.

    `message_topic` gives that of the message that the header names, or raises. `%RETRY%` and `%DLQ%` topics count as their group, and
    who sends to one subscribes. Departures, where Java's rules leave a way around them: it takes the group for a `%RETRY%` topic from
    the sender's own words, skips such topics in pulls and heartbeats, and skips names that are left out.
    """
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
    (TopicConfigList, _TOPIC): lambda body: [topic.topic for topic in body.topics],
    (SubscriptionGroupConfig, _GROUP): lambda body: [body.group],
    (SubscriptionGroupList, _GROUP): lambda body: [group.group for group in body.groups],
}
"""By body and resource, the names in it."""
