"""The tables of a name server. `registration.py` changes them; `name_server.py` reads them.

    topics     topic → broker name → QueueData
    groups     broker name → the brokers of that name: id → address; 0 is the master
    clusters   cluster → broker names
    live       (cluster, address) → time and connection of the last registration or heartbeat
    texts      namespace → key → text of operators (`KvConfig`)

No clock and no sockets here: times are arguments, and a connection is any object of the caller.
Java: RouteInfoManager, KVConfigManager. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spark_mq.remoting.administration import MinBrokerIdRequest
from spark_mq.remoting.command import read_body, write_body
from spark_mq.remoting.errors import BodyError
from spark_mq.remoting.routes import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicQueueMappingInfo,
)
from storage.errors import StateFileError
from storage.format.typed_json import DataVersion, WireBody
from storage.names import MASTER_ID
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.tables.topics import PERM_READ, PERM_WRITE

DEFAULT_TIMEOUT_MS = 120_000
"""Time-out for a broker whose registration names none."""


class BrokerAddress(NamedTuple):
    """The identity of a broker process. Java: BrokerAddrInfo."""

    cluster: str
    address: str


@dataclass(slots=True)
class LiveBroker:
    """The data of a broker's last registration. Java: BrokerLiveInfo."""

    last_update_ms: int
    timeout_ms: int
    data_version: DataVersion
    channel: Hashable
    """The connection that it came over; equal to nothing but itself."""
    ha_server_address: str
    broker_name: str
    sign: bytes = b""
    """Changes with any part of the registration; see `registration.renew`."""

    def is_expired(self, now_ms: int) -> bool:
        """Whether it was silent for too long."""
        return self.last_update_ms + self.timeout_ms < now_ms


@dataclass(slots=True)
class BrokerGroup:
    """The brokers of one name. Java: BrokerData."""

    cluster: str
    broker_name: str
    addresses: dict[int, str] = field(default_factory=dict)
    has_acting_master: bool = False
    """Whether a slave stands in for a master that is gone (enableActingMaster)."""
    zone_name: str | None = None

    @property
    def has_master(self) -> bool:
        """Whether one of them has the id 0. An id below counts too, as in Java."""
        return bool(self.addresses) and min(self.addresses) <= MASTER_ID

    def as_body(self) -> BrokerData:
        """As it is sent; ids in their order."""
        return BrokerData(
            cluster=self.cluster,
            broker_name=self.broker_name,
            broker_addresses=dict(sorted(self.addresses.items())),
            zone_name=self.zone_name,
            enable_acting_master=self.has_acting_master,
        )


class MinBrokerIdNotice(NamedTuple):
    """A notice to brokers that another one of their name has the lowest id now (905, one-way)."""

    addresses: tuple[str, ...]
    header: MinBrokerIdRequest


@dataclass(slots=True)
class RouteTables:
    """All tables."""

    topics: dict[str, dict[str, QueueData]] = field(default_factory=dict)
    topic_counts: dict[str, int] = field(default_factory=dict)
    """Number of topics with queues at each broker name."""
    groups: dict[str, BrokerGroup] = field(default_factory=dict)
    clusters: dict[str, dict[str, None]] = field(default_factory=dict)
    """The names of a cluster's brokers are the keys, so that they keep their order."""
    live: dict[BrokerAddress, LiveBroker] = field(default_factory=dict)
    filter_servers: dict[BrokerAddress, tuple[str, ...]] = field(default_factory=dict)
    mappings: dict[str, dict[str, TopicQueueMappingInfo]] = field(default_factory=dict)
    """Static topics: topic → broker name. As in Java an entry stays when the topic or the broker goes."""
    loss_count: int = 0
    """How often something was changed that a repeated registration would undo, or whether its topics count: as what is taken out of
    `topics`.
    """

    # Who is there.

    def data_version(self, who: BrokerAddress) -> DataVersion | None:
        """The version of the broker's topics in these tables; None for an unknown broker."""
        found = self.live.get(who)
        return None if found is None else found.data_version

    def is_changed(self, who: BrokerAddress, version: DataVersion | None) -> bool:
        """Whether the broker's topics are another state of them than the known one. Java: isBrokerTopicConfigChanged."""
        known = self.data_version(who)
        return known is None or known != version

    def hear_of(self, who: BrokerAddress, now_ms: int) -> None:
        """The broker is alive; one that is not there stays unknown. Java: updateBrokerInfoUpdateTimestamp."""
        found = self.live.get(who)
        if found is not None:
            found.last_update_ms = now_ms

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters; answers 106."""
        return ClusterInfo(
            broker_address_table={name: group.as_body() for name, group in self.groups.items()},
            cluster_address_table={cluster: tuple(names) for cluster, names in self.clusters.items()},
        )

    def member_group(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        """The addresses of the brokers of one name, whatever their cluster; answers 901."""
        group = self.groups.get(broker_name)
        addresses = {} if group is None else dict(sorted(group.addresses.items()))
        return BrokerMemberGroup(cluster=cluster, broker_name=broker_name, broker_addresses=addresses)

    # Topics.

    def put_queues(self, topic: str, data: QueueData) -> None:
        """A topic's queues at the brokers of one name."""
        queues, name = self.topics.setdefault(topic, {}), data.broker_name
        if name not in queues:
            self.topic_counts[name] = self.topic_counts.get(name, 0) + 1
        queues[name] = data

    def drop_queues(self, topic: str, broker_names: Iterable[str]) -> None:
        """A topic's queues at these brokers are no more; without any left the topic is none."""
        queues = self.topics.get(topic)
        if queues is not None:
            for name in broker_names:
                if queues.pop(name, None) is not None:
                    self.loss_count += 1
                    self._count_out(name)
            if not queues:
                del self.topics[topic]

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Delete a topic in one cluster, or in all. Brokers are not notified. Java: deleteTopic."""
        if not cluster:
            queues = self.topics.pop(topic, None)
            if queues is not None:
                self.loss_count += 1
                for name in queues:
                    self._count_out(name)
        elif names := self.clusters.get(cluster):
            self.drop_queues(topic, names)

    def _count_out(self, broker_name: str) -> None:
        self.topic_counts[broker_name] -= 1
        if not self.topic_counts[broker_name]:
            del self.topic_counts[broker_name]

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """Adds a topic by an operator's word; False, and nothing is done, where one of its brokers is unknown.

        Java: registerTopic. Departure: of a known topic Java takes the queues that stand before the unknown broker's.
        """
        given = tuple(queues)
        if not given or any(data.broker_name not in self.groups for data in given):
            return False
        for data in given:
            self.put_queues(topic, data)
        self.loss_count += 1
        return True

    def wipe_write_permission(self, broker_name: str) -> int:
        """No client shall write to these brokers; how many topics that changed. Their next changed registration undoes it."""
        return self._change_permissions(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """All topics of these brokers may be read and written, whatever was before; how many there are."""
        return self._change_permissions(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    def _change_permissions(self, broker_name: str, changed: Callable[[int], int]) -> int:
        count = 0
        for queues in self.topics.values():
            data = queues.get(broker_name)
            if data is not None:
                queues[broker_name] = replace(data, perm=changed(data.perm))
                count += 1
        return count


def drop_name(tables: RouteTables, cluster: str, broker_name: str) -> None:
    """A broker's name is no more, and its cluster neither without another one."""
    tables.groups.pop(broker_name, None)
    names = tables.clusters.get(cluster)
    if names is not None:
        names.pop(broker_name, None)
        if not names:
            del tables.clusters[cluster]


def min_id_notice(
    addresses: Mapping[int, str], *, offline_address: str | None = None, ha_address: str | None = None
) -> MinBrokerIdNotice | None:
    """The brokers to notify of a new lowest id: all after a departure; after an arrival all except the new one.

    None if no broker is left. Java: notifyMinBrokerIdChanged, chooseBrokerAddrsToNotify.
    """
    if not addresses:
        return None
    lowest = min(addresses)
    is_for_all = offline_address is not None or len(addresses) == 1
    notified = tuple(address for broker_id, address in sorted(addresses.items()) if is_for_all or broker_id != lowest)
    header = MinBrokerIdRequest(
        min_broker_id=lowest,
        min_broker_address=addresses[lowest],
        offline_broker_address=offline_address,
        ha_broker_address=ha_address,
    )
    return MinBrokerIdNotice(notified, header)


# Texts by namespace and key, and their file: `{"configTable":{NAMESPACE:{KEY:VALUE}}}`.
#
# ORDER_TOPIC_CONFIG is the namespace of topics whose messages are ordered over several brokers: topic → `broker:queues;…`. Brokers get
# it when they register, clients with a route. Each change gives a new table; the caller saves it first. Java: KVConfigSerializeWrapper.


ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
_CHARACTERS_MOST = 2 << 20
"""Of all namespaces, keys and values together. Java sets no limit."""


class _KvFile(WireBody):
    config_table: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KvConfig:
    """All texts. A namespace without keys is there all the same, once it had one."""

    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def get(self, namespace: str, key: str) -> str | None:
        """The text; None where there is none."""
        return self.tables.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All texts of a namespace; None for one that never had any."""
        return self.tables.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> KvConfig:
        """With a text more, or another. Raises RequestRefusedError where that is too much."""
        changed = KvConfig({**self.tables, namespace: {**self.tables.get(namespace, {}), key: value}})
        if changed.character_count > _CHARACTERS_MOST:
            rule = f"a name server keeps at most {_CHARACTERS_MOST} characters of namespaces, keys and values"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, rule)
        return changed

    def delete(self, namespace: str, key: str) -> KvConfig:
        """Without that text."""
        if namespace not in self.tables:
            return self
        kept = {name: value for name, value in self.tables[namespace].items() if name != key}
        return KvConfig({**self.tables, namespace: kept})

    @property
    def character_count(self) -> int:
        """Characters of all namespaces, keys and values."""
        return sum(
            len(namespace) + sum(len(key) + len(value) for key, value in table.items())
            for namespace, table in self.tables.items()
        )

    def text(self) -> str:
        """The content of the file."""
        return write_body(_KvFile(config_table=self.tables)).decode()


def parse_kv_config(text: str, file: str) -> KvConfig:
    """The table that a file holds. Raises StateFileError."""
    try:
        return KvConfig(dict(read_body(_KvFile, text.encode()).config_table))
    except BodyError as error:
        raise StateFileError(file, 0, 0, f"{error.place}: {error.rule}") from None
