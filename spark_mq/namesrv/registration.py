"""Brokers register at a name server, and leave it.

It registers itself and its topics (103) at its start, each 30 s, and when a topic changes. It leaves (104), is silent for too long, or
its connection closes.

Steps of a registration, in Java's order:

    1  the cluster has the broker's name, the name has a group; both stay, unless 4 refuses the first broker of the name
    2  the same address under another id is removed
    3  if the id belongs to another address with newer tables, the registration is dropped, and answered as if it were taken
    4  an unknown id with exactly one topic is refused: a new topic came before its broker
    5  the address gets the id; topics count from a master, and from the slave with the lowest id if it supports acting masters
    6  the time, the time-out and the connection of the registration are noted

Java: RouteInfoManager. Departure: in Java the name of a refused broker stays for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_mq.namesrv.tables import (
    DEFAULT_TIMEOUT_MS,
    BrokerAddress,
    BrokerGroup,
    LiveBroker,
    MinBrokerIdNotice,
    RouteTables,
    drop_name,
    min_id_notice,
)
from spark_mq.remoting import Body
from spark_mq.remoting.routes import (
    BrokerAddressRequest,
    QueueData,
    RegisterBrokerRequest,
    TopicConfigTable,
    TopicQueueMappingInfo,
)
from storage.format.typed_json import DataVersion, TopicConfig
from storage.names import MASTER_ID
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.tables.topics import PERM_WRITE

# Limits for processes that the name server does not know. Java sets none. A registration beyond them is refused whole.


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """Limits: characters of names, and how many of everything else."""

    name_length: int = 1_024
    """Characters of a topic, broker, cluster or address. The longest legal topic, of a consumer's retries, has less than half of it."""
    brokers: int = 10_000
    """Broker names."""
    brokers_of_a_name: int = 1_000
    topics: int = 1_000_000
    static_topics: int = 100_000
    brokers_of_a_connection: int = 100
    """Addresses that have registered over one. A broker has a connection of its own; those of one process may share it."""
    topics_of_a_connection: int = 1_000_000
    """That the brokers of one connection have together: no fewer than one broker alone may have."""


DEFAULT_ROUTE_LIMITS = RouteLimits()


def check_name(kind: str, name: str, limits: RouteLimits = DEFAULT_ROUTE_LIMITS) -> None:
    """Raises RequestRefusedError for an empty name, or one that is too long."""
    if not name:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"the {kind} has no name")
    if len(name) > limits.name_length:
        rule = f"it has {len(name)} characters, the limit is {limits.name_length}"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"the {kind} {name[:32]!r}… is refused: {rule}")


def check_registration(
    tables: RouteTables,
    header: RegisterBrokerRequest,
    topics: TopicConfigTable,
    channel: Hashable,
    limits: RouteLimits,
) -> None:
    """Raises RequestRefusedError for a registration beyond the limits."""
    named = (("cluster", header.cluster_name), ("broker", header.broker_name), ("address", header.broker_address))
    for kind, name in (*named, ("address", header.ha_server_address)):
        check_name(kind, name, limits)
    group = tables.groups.get(header.broker_name)
    if group is None:
        _check_count("brokers", len(tables.groups) + 1, limits.brokers)
    elif header.broker_id not in group.addresses:
        _check_count("brokers of a name", len(group.addresses) + 1, limits.brokers_of_a_name)
    names = [config.topic or key for key, config in topics.topic_config_table.items()]
    mappings = topics.topic_queue_mapping_info_map or {}
    check_topics(tables, [*names, *mappings], limits)
    _check_count("static topics", len(tables.mappings.keys() | mappings.keys()), limits.static_topics)
    _check_connection(tables, header, names, channel, limits)


def _check_connection(
    tables: RouteTables, header: RegisterBrokerRequest, topics: Iterable[str], channel: Hashable, limits: RouteLimits
) -> None:
    who = BrokerAddress(header.cluster_name, header.broker_address)
    others = {
        other: live.broker_name for other, live in tables.live.items() if live.channel == channel and other != who
    }
    _check_count("brokers over one connection", len(others) + 1, limits.brokers_of_a_connection)
    name = header.broker_name
    new = sum(name not in tables.topics.get(topic, ()) for topic in set(topics))
    count = new + sum(tables.topic_counts.get(each, 0) for each in {name, *others.values()})
    _check_count("topics over one connection", count, limits.topics_of_a_connection)


def check_topics(tables: RouteTables, topics: Iterable[str], limits: RouteLimits = DEFAULT_ROUTE_LIMITS) -> None:
    """Raises RequestRefusedError where a name is none, or the topics become too many."""
    new = {topic for topic in topics if topic not in tables.topics}
    for topic in new:
        check_name("topic", topic, limits)
    if new:
        _check_count("topics", len(tables.topics) + len(new), limits.topics)


def check_queues(queues: Iterable[QueueData], limits: RouteLimits = DEFAULT_ROUTE_LIMITS) -> None:
    """Raises RequestRefusedError where a broker's name is none."""
    for data in queues:
        check_name("broker", data.broker_name, limits)


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"this name server takes at most {most} {what}")


class Registration(NamedTuple):
    """A broker's registration."""

    header: RegisterBrokerRequest
    topics: TopicConfigTable
    channel: Hashable
    filter_servers: tuple[str, ...] | None = None
    """None where it says nothing of them (a broker before 3.0.11); an empty one takes them away."""
    zone_name: str | None = None
    sign: bytes = b""
    """Changes with any part, and with what was lost before (`sign_of`)."""


class Registered(NamedTuple):
    """The answer: a slave's master. And the notice to other brokers."""

    master_address: str | None = None
    ha_server_address: str | None = None
    notice: MinBrokerIdNotice | None = None
    other_address: str | None = None
    """The address of a living broker that had this name and id already."""


@dataclass(frozen=True, slots=True)
class RegistrationRules:
    """The settings of the name server that bear on it, all off by default."""

    deletes_topics: bool = False
    """A topic that a broker no longer registers is no more (deleteTopicWithBrokerRegistration)."""
    notifies_min_id: bool = False
    """Notify brokers when another one of their name has the lowest id (notifyMinBrokerIdChanged)."""
    limits: RouteLimits = DEFAULT_ROUTE_LIMITS


DEFAULT_RULES = RegistrationRules()


def sign_of(tables: RouteTables, fields: Mapping[str, str], body: Body) -> bytes:
    """Equal for two registrations with the same content, if nothing was lost in between that the second would restore."""
    digest = hashlib.blake2b(body, digest_size=32)
    digest.update(repr((sorted(fields.items()), tables.loss_count)).encode("utf-8", "replace"))
    return digest.digest()


def renew(tables: RouteTables, registration: Registration, now_ms: int) -> Registered | None:
    """Take a registration with the same content as the broker's last one, without reading its topics, which may be absent.

    None if its content differs, or if other registrations have conflicted with it since: then all of it must be registered.
    """
    header = registration.header
    live = tables.live.get(BrokerAddress(header.cluster_name, header.broker_address))
    group = tables.groups.get(header.broker_name)
    if live is None or group is None or live.sign != registration.sign:
        return None
    has_its_id = group.addresses.get(header.broker_id) == header.broker_address
    is_unchanged = (group.has_acting_master, group.zone_name) == (
        bool(header.enable_acting_master),
        registration.zone_name,
    )
    if not has_its_id or not is_unchanged:
        return None
    live.last_update_ms = now_ms
    live.channel = registration.channel
    return _with_master(tables, group, header)


def register(
    tables: RouteTables, registration: Registration, now_ms: int, rules: RegistrationRules = DEFAULT_RULES
) -> Registered | None:
    """Takes a registration; None where it is refused because its broker is not known yet.

    Raises RequestRefusedError, and changes nothing, where names are too long or too many.
    """
    header = registration.header
    check_registration(tables, header, registration.topics, registration.channel, rules.limits)
    who = BrokerAddress(header.cluster_name, header.broker_address)
    version = registration.topics.data_version or DataVersion()
    tables.clusters.setdefault(header.cluster_name, {})[header.broker_name] = None
    group = tables.groups.get(header.broker_name)
    is_first = group is None
    if group is None:
        group = tables.groups[header.broker_name] = BrokerGroup(header.cluster_name, header.broker_name)
    group.has_acting_master = bool(header.enable_acting_master)
    group.zone_name = registration.zone_name
    is_min_id_lower = header.broker_id < min(group.addresses, default=MASTER_ID)
    _forget_other_ids(tables, group, header)
    if _is_older_than_another(tables, group, header, version):
        tables.live.pop(who, None)
        return Registered(other_address=group.addresses[header.broker_id])
    if header.broker_id not in group.addresses and len(registration.topics.topic_config_table) == 1:
        if is_first:
            drop_name(tables, header.cluster_name, header.broker_name)
        return None
    other_address = _living_other(tables, group, header)
    is_first = is_first or not group.addresses.get(header.broker_id)
    group.addresses[header.broker_id] = header.broker_address
    _take_topics(tables, group, registration, rules, is_first=is_first)
    _keep_live(tables, who, registration, version, now_ms)
    notice = None
    if is_min_id_lower and rules.notifies_min_id:
        notice = min_id_notice(group.addresses, ha_address=header.ha_server_address)
    return _with_master(tables, group, header)._replace(notice=notice, other_address=other_address)


def _forget_other_ids(tables: RouteTables, group: BrokerGroup, header: RegisterBrokerRequest) -> None:
    """A slave that has become the master had another id before."""
    for broker_id, address in list(group.addresses.items()):
        if address == header.broker_address and broker_id != header.broker_id:
            del group.addresses[broker_id]
            tables.loss_count += 1  # another slave's topics may count now


def _living_other(tables: RouteTables, group: BrokerGroup, header: RegisterBrokerRequest) -> str | None:
    """The address of another broker that is alive and has the id; None where there is none."""
    address = group.addresses.get(header.broker_id)
    if address == header.broker_address or address is None:
        return None
    return address if BrokerAddress(header.cluster_name, address) in tables.live else None


def _is_older_than_another(
    tables: RouteTables, group: BrokerGroup, header: RegisterBrokerRequest, version: DataVersion
) -> bool:
    address = _living_other(tables, group, header)
    if address is None:
        return False
    other = tables.live[BrokerAddress(header.cluster_name, address)]
    return other.data_version.state_version > version.state_version


def _take_topics(
    tables: RouteTables, group: BrokerGroup, registration: Registration, rules: RegistrationRules, *, is_first: bool
) -> None:
    header = registration.header
    is_master = header.broker_id == MASTER_ID
    is_prime_slave = (
        header.enable_acting_master is not None and not is_master and header.broker_id == min(group.addresses)
    )
    if not is_master and not is_prime_slave:
        return
    name = header.broker_name
    topics = registration.topics.topic_config_table
    mappings = registration.topics.topic_queue_mapping_info_map or {}
    if rules.deletes_topics and not mappings:
        given = {topic.topic or key for key, topic in topics.items()}
        for gone in [topic for topic, queues in tables.topics.items() if name in queues and topic not in given]:
            tables.drop_queues(gone, (name,))
    who = BrokerAddress(header.cluster_name, header.broker_address)
    is_changed = is_first or tables.is_changed(who, registration.topics.data_version)
    is_read_only = is_prime_slave and group.has_acting_master
    for key, config in topics.items():
        topic = config.topic or key
        if is_changed or name not in tables.topics.get(topic, {}):
            tables.put_queues(topic, _queue_data(name, config, is_read_only=is_read_only))
    if is_changed:
        _take_mappings(tables, mappings)


def _queue_data(broker_name: str, topic: TopicConfig, *, is_read_only: bool) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queue_count=topic.read_queue_count,
        write_queue_count=topic.write_queue_count,
        perm=topic.perm & ~PERM_WRITE if is_read_only else topic.perm,
        topic_sys_flag=topic.topic_sys_flag,
    )


def _take_mappings(tables: RouteTables, mappings: Mapping[str, TopicQueueMappingInfo]) -> None:
    for topic, mapping in mappings.items():
        tables.mappings.setdefault(topic, {})[mapping.broker_name or ""] = mapping


def _keep_live(
    tables: RouteTables, who: BrokerAddress, registration: Registration, version: DataVersion, now_ms: int
) -> None:
    timeout_ms = registration.header.heartbeat_timeout_ms
    tables.live[who] = LiveBroker(
        last_update_ms=now_ms,
        timeout_ms=DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms,
        data_version=version,
        channel=registration.channel,
        ha_server_address=registration.header.ha_server_address,
        broker_name=registration.header.broker_name,
        sign=registration.sign,
    )
    if registration.filter_servers:
        tables.filter_servers[who] = registration.filter_servers
    elif registration.filter_servers is not None:
        tables.filter_servers.pop(who, None)


def _with_master(tables: RouteTables, group: BrokerGroup, header: RegisterBrokerRequest) -> Registered:
    if header.broker_id == MASTER_ID:
        return Registered()
    address = group.addresses.get(MASTER_ID)
    master = None if address is None else tables.live.get(BrokerAddress(header.cluster_name, address))
    return Registered() if master is None else Registered(address, master.ha_server_address)


# A broker leaves. All three ways lead to the same: its address goes at once. With the last address of a name the name goes, from its
# cluster and from all topics. Where others are left without a master, and slaves may stand in for one, nothing can be written there.
#
# Java: unRegisterBroker, scanNotActiveBroker, onChannelDestroy. Departure: where several brokers have registered over one connection,
# all of them go with it; Java takes the first, and the others when they were silent for too long.


class Expired(NamedTuple):
    """A broker that was silent for too long, and its connection, for closing."""

    who: BrokerAddress
    silent_ms: int
    channel: Hashable


def expired(tables: RouteTables, now_ms: int) -> list[Expired]:
    """All that were silent for too long. They stay until they are unregistered."""
    return [
        Expired(who, now_ms - broker.last_update_ms, broker.channel)
        for who, broker in tables.live.items()
        if broker.is_expired(now_ms)
    ]


def registered_over(tables: RouteTables, channel: Hashable) -> list[BrokerAddress]:
    """The brokers whose last registration came over that connection."""
    return [who for who, broker in tables.live.items() if broker.channel == channel]


def departure_of(tables: RouteTables, who: BrokerAddress) -> BrokerAddressRequest | None:
    """The request that the broker would send to leave.

    None where no name has its address, because another address has its id now: it is forgotten here. (Java keeps it for ever.)
    """
    for name, group in tables.groups.items():
        if group.cluster == who.cluster:
            for broker_id, address in group.addresses.items():
                if address == who.address:
                    return BrokerAddressRequest(
                        broker_name=name,
                        broker_address=address,
                        cluster_name=who.cluster,
                        broker_id=broker_id,
                    )
    tables.live.pop(who, None)
    tables.filter_servers.pop(who, None)
    return None


def unregister(
    tables: RouteTables, departures: Iterable[BrokerAddressRequest], *, notifies_min_id: bool = False
) -> list[MinBrokerIdNotice]:
    """Remove brokers from all tables, as one batch; returns the notices to others. Topics are searched once."""
    removed: dict[str, None] = {}
    reduced: dict[str, None] = {}
    lost: dict[str, str] = {}
    for header in dict.fromkeys(departures):
        _take_address(tables, header, lost)
        if header.broker_name in tables.groups:
            reduced[header.broker_name] = None
        else:
            removed[header.broker_name] = None
            drop_name(tables, header.cluster_name, header.broker_name)
    _clean_topics(tables, removed, reduced)
    if not notifies_min_id:
        return []
    found = [
        min_id_notice(group.addresses, offline_address=address)
        for name, address in lost.items()
        if (group := tables.groups.get(name)) is not None and group.has_acting_master
    ]
    return [notice for notice in found if notice is not None]


def _take_address(tables: RouteTables, header: BrokerAddressRequest, lost: dict[str, str]) -> None:
    who = BrokerAddress(header.cluster_name, header.broker_address)
    tables.live.pop(who, None)
    tables.filter_servers.pop(who, None)
    group = tables.groups.get(header.broker_name)
    if group is None:
        return
    had_lowest_id = header.broker_id == min(group.addresses, default=None)
    for broker_id in [each for each, address in group.addresses.items() if address == header.broker_address]:
        del group.addresses[broker_id]
        tables.loss_count += 1  # another slave's topics may count now
    if not group.addresses:
        del tables.groups[header.broker_name]
    elif had_lowest_id:
        lost[header.broker_name] = header.broker_address


def _clean_topics(tables: RouteTables, removed: Iterable[str], reduced: Iterable[str]) -> None:
    gone = tuple(removed)
    read_only = [
        name
        for name in reduced
        if (group := tables.groups.get(name)) is not None and group.has_acting_master and not group.has_master
    ]
    if not gone and not read_only:
        return
    for topic, queues in list(tables.topics.items()):
        tables.drop_queues(topic, gone)
        for name in read_only:
            data = queues.get(name)
            if data is not None:
                queues[name] = replace(data, perm=data.perm & ~PERM_WRITE)
