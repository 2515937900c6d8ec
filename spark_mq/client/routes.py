"""A topic's route: queues to send to, queues to read, addresses of brokers. Pure.

A static topic has logical queues of no broker's: their broker name is `__syslo__global__`, and the route says which broker leads each.
Java: MQClientInstance (topicRouteData2TopicPublishInfo, topicRouteData2TopicSubscribeInfo, findBrokerAddressInSubscribe),
ClientMetadata.topicRouteData2EndpointsForStaticTopic, TopicRouteData, BrokerData.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from spark_mq.client.errors import MalformedResponseError, MessageQueueNotFoundError
from spark_mq.client.settings import split_address
from spark_mq.remoting import MessageQueue
from spark_mq.remoting.routes import QueueData, TopicQueueMappingInfo, TopicRouteData
from storage.names import MASTER_ID, address_text

READABLE = 4
WRITABLE = 2
QUEUES_MOST = 100_000
"""Most queues of a topic; a route with more is refused, before memory is taken for them."""
LOGICAL_PREFIX, NO_LEADER = "__syslo__", "__syslo__none__"
"""Of the name in place of a logical queue's broker, and the broker of a logical queue that none leads. Java: MixAll."""
GLOBAL_SCOPE = "__global__"
_VIP_STEP = 2
_QUEUE_COUNT = re.compile("[0-9]{1,6}")


@dataclass(frozen=True)
class TopicRoute:
    """The route of one topic, as a name server gave it."""

    topic: str
    data: TopicRouteData

    @property
    def is_ordered(self) -> bool:
        """Whether an order configuration names the queues to send to, also those of brokers that are away."""
        return bool(self.data.order_topic_conf)

    @cached_property
    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Addresses by broker name and id."""
        return {each.broker_name: dict(each.broker_addresses) for each in self.data.broker_datas}

    @cached_property
    def clusters(self) -> Mapping[str, str | None]:
        """The cluster of each broker."""
        return {each.broker_name: each.cluster for each in self.data.broker_datas}

    @cached_property
    def leaders(self) -> Mapping[MessageQueue, str]:
        """The broker that leads each logical queue of a static topic (`__syslo__none__`: none does); empty for another topic."""
        return leaders(self.topic, self.data)

    def broker_name_of(self, queue: MessageQueue) -> str:
        """The broker to ask about a queue: of a logical one its leader. Java: getBrokerNameFromMessageQueue."""
        return self.leaders.get(queue, queue.broker_name)

    @cached_property
    def publish_queues(self) -> tuple[MessageQueue, ...]:
        """Queues to send to: by broker name, then by number."""
        if self.data.order_topic_conf:
            return ordered_queues(self.topic, self.data.order_topic_conf)
        if self.leaders:
            return tuple(sorted(self.leaders))
        return tuple(
            MessageQueue(self.topic, each.broker_name, queue_id)
            for each in sorted(self.data.queue_datas, key=_by_name)
            if each.perm & WRITABLE and MASTER_ID in self.brokers.get(each.broker_name, {})
            for queue_id in range(each.write_queue_count)
        )

    @cached_property
    def subscribe_queues(self) -> tuple[MessageQueue, ...]:
        """Queues to read: by broker name, then by number; also of brokers whose master is away."""
        if self.leaders:
            return tuple(sorted(self.leaders))
        return tuple(
            MessageQueue(self.topic, each.broker_name, queue_id)
            for each in sorted(self.data.queue_datas, key=_by_name)
            if each.perm & READABLE
            for queue_id in range(each.read_queue_count)
        )

    @property
    def master_addresses(self) -> tuple[str, ...]:
        """The masters' addresses, by broker name."""
        return tuple(addresses[MASTER_ID] for _, addresses in sorted(self.brokers.items()) if MASTER_ID in addresses)

    @property
    def read_addresses(self) -> tuple[str, ...]:
        """One address for each broker: its master's, else that of the lowest id. Java: BrokerData.selectBrokerAddr."""
        return tuple(read_address(addresses) for _, addresses in sorted(self.brokers.items()) if addresses)


def ordered_queues(topic: str, order_conf: str) -> tuple[MessageQueue, ...]:
    """The queues of `broker:count;broker:count`, in that order. Raises MessageQueueNotFoundError where it says something else."""
    queues: list[MessageQueue] = []
    for part in filter(None, order_conf.split(";")):
        broker_name, _, count = part.partition(":")
        if not _QUEUE_COUNT.fullmatch(count) or len(queues) + int(count) > QUEUES_MOST:
            raise MessageQueueNotFoundError(
                topic, f"its order configuration is {order_conf!r:.200}, not broker:count;…"
            )
        queues += [MessageQueue(topic, broker_name, queue_id) for queue_id in range(int(count))]
    return tuple(queues)


def leaders(topic: str, data: TopicRouteData) -> dict[MessageQueue, str]:
    """The broker of each logical queue, by what the brokers of a scope have registered: the one of the latest epoch that names it.

    There are as many as the broker says that says most.
    Java: ClientMetadata.topicRouteData2EndpointsForStaticTopic.
    """
    found: dict[MessageQueue, str] = {}
    by_scope: dict[str, list[TopicQueueMappingInfo]] = {}
    for info in (data.topic_queue_mapping_by_broker or {}).values():
        if info.scope is not None:
            by_scope.setdefault(info.scope, []).append(info)
    for scope, infos in by_scope.items():
        name = LOGICAL_PREFIX + (scope[2:] if scope == GLOBAL_SCOPE else scope)
        led: dict[int, TopicQueueMappingInfo] = {}
        for info in sorted(infos, key=lambda each: -each.epoch):
            for queue_id in info.current_ids:
                if queue_id not in led or led[queue_id].epoch <= info.epoch:
                    led[queue_id] = info
        for queue_id in range(min(max((info.total_queues for info in infos), default=0), QUEUES_MOST)):
            leader = led[queue_id].broker_name if queue_id in led else None
            found[MessageQueue(topic, name, queue_id)] = leader or NO_LEADER
    return found


def check_queue_counts(data: TopicRouteData, address: str, what: str) -> None:
    """Raises MalformedResponseError for the answer to `what` from a name server where it says more queues than a topic may have."""
    count = sum(max(each.read_queue_count, each.write_queue_count, 0) for each in data.queue_datas)
    if count > QUEUES_MOST:
        raise MalformedResponseError(address, what, f"it says {count} queues; a topic may have {QUEUES_MOST}")


def default_route(topic: str, route: TopicRoute, queue_count: int) -> TopicRoute:
    """The route that a topic will have when brokers create it: that of TBW102, with at most `queue_count` queues a broker.

    Departure: a broker makes no more queues than TBW102 has for writing. Java's client goes by those for reading, and where they are
    more its first messages are refused.
    """
    queues = []
    for each in route.data.queue_datas:
        count = min(queue_count, each.read_queue_count, each.write_queue_count)
        queues.append(replace(each, read_queue_count=count, write_queue_count=count))
    return TopicRoute(topic, replace(route.data, queue_datas=tuple(queues)))


def read_address(addresses: Mapping[int, str]) -> str:
    """The master's address, else that of the lowest id."""
    return addresses[MASTER_ID] if MASTER_ID in addresses else addresses[min(addresses)]


def subscribe_address(addresses: Mapping[int, str], broker_id: int, *, only_this: bool = False) -> str | None:
    """The address to pull from, for the wanted broker id: that broker; for a slave also the next one; with `only_this` None, any.

    Java: findBrokerAddressInSubscribe.
    """
    found = addresses.get(broker_id)
    if found is None and broker_id != MASTER_ID:
        found = addresses.get(broker_id + 1)
    if found is None and not only_this and addresses:
        found = read_address(addresses)
    return found


def vip_address(address: str) -> str:
    """The broker's second listener, two ports below, which takes all but pulls. Java: MixAll.brokerVIPChannel."""
    host, port = split_address(address)
    return address_text(host, port - _VIP_STEP)


def _by_name(queues: QueueData) -> str:
    return queues.broker_name
