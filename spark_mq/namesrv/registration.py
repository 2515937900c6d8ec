"""A broker registers itself and its topics (103): at its start, each 30 s, and when a topic changes.

What a registration changes, in Java's order:

    1  the cluster has the broker's name, the name has a group; both stay, unless 4 refuses the first broker of the name
    2  the same address under another id is no more
    3  the id is another address' whose tables are newer: the registration is dropped, and answered as if it were taken
    4  an id that is not there, with exactly one topic: refused; a new topic came before its broker
    5  the address gets the id; the topics of a master count, and those of the slave with the lowest id, if it speaks of acting masters
    6  when it was heard of, for how long that is good, and over which connection

Java: RouteInfoManager.registerBroker. Departure: in Java the name of a refused broker stays for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spark_mq.namesrv.limits import DEFAULT_ROUTE_LIMITS, RouteLimits, check_registration
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
from spark_mq.remoting.route_bodies import (
    DataVersion,
    QueueData,
    TopicConfigData,
    TopicConfigTable,
    TopicQueueMappingInfo,
)
from spark_mq.remoting.route_headers import RegisterBrokerRequest
from storage.names import MASTER_ID
from storage.tables.topics import PERM_WRITE


class Registration(NamedTuple):
    """What a broker says."""

    header: RegisterBrokerRequest
    topics: TopicConfigTable
    channel: Hashable
    filter_servers: tuple[str, ...] | None = None
    """None where it says nothing of them (a broker before 3.0.11); an empty one takes them away."""
    zone_name: str | None = None
    sign: bytes = b""
    """Of all of it, and of what was lost before (`sign_of`)."""


class Registered(NamedTuple):
    """What it is told: of its master, where it is a slave. And who else is to hear of it."""

    master_address: str | None = None
    ha_server_address: str | None = None
    notice: MinBrokerIdNotice | None = None
    other_address: str | None = None
    """Of a broker that is alive, and had the id of that name when this one came."""


@dataclass(frozen=True, slots=True)
class RegistrationRules:
    """The settings of the name server that bear on it, all off by default."""

    deletes_topics: bool = False
    """A topic that a broker no longer registers is no more (deleteTopicWithBrokerRegistration)."""
    notifies_min_id: bool = False
    """Brokers are told when another one of their name has the lowest id (notifyMinBrokerIdChanged)."""
    limits: RouteLimits = DEFAULT_ROUTE_LIMITS


DEFAULT_RULES = RegistrationRules()


def sign_of(tables: RouteTables, fields: Mapping[str, str], body: Body) -> bytes:
    """Equal for two registrations that say the same, with nothing lost in between that the second would bring back."""
    told = hashlib.blake2b(body, digest_size=32)
    told.update(repr((sorted(fields.items()), tables.loss_count)).encode("utf-8", "replace"))
    return told.digest()


def renew(tables: RouteTables, told: Registration, now_ms: int) -> Registered | None:
    """Takes a registration that says what the broker's last one has said: its topics, which need not be there, are not looked at.

    None where it says something else, or where others have registered against it since: the whole is to be registered.
    """
    header = told.header
    live = tables.live.get(BrokerAddress(header.cluster_name, header.broker_address))
    group = tables.groups.get(header.broker_name)
    if live is None or group is None or live.sign != told.sign:
        return None
    has_its_id = group.addresses.get(header.broker_id) == header.broker_address
    is_as_told = (group.has_acting_master, group.zone_name) == (bool(header.enable_acting_master), told.zone_name)
    if not has_its_id or not is_as_told:
        return None
    live.last_update_ms = now_ms
    live.channel = told.channel
    return _told_of_its_master(tables, group, header)


def register(
    tables: RouteTables, told: Registration, now_ms: int, rules: RegistrationRules = DEFAULT_RULES
) -> Registered | None:
    """Takes a registration; None where it is refused because its broker is not known yet.

    Raises RequestRefusedError, and changes nothing, where names are too long or too many.
    """
    header = told.header
    check_registration(tables, header, told.topics, told.channel, rules.limits)
    who = BrokerAddress(header.cluster_name, header.broker_address)
    version = told.topics.data_version or DataVersion()
    tables.clusters.setdefault(header.cluster_name, {})[header.broker_name] = None
    group = tables.groups.get(header.broker_name)
    is_first = group is None
    if group is None:
        group = tables.groups[header.broker_name] = BrokerGroup(header.cluster_name, header.broker_name)
    group.has_acting_master = bool(header.enable_acting_master)
    group.zone_name = told.zone_name
    is_min_id_lower = header.broker_id < min(group.addresses, default=MASTER_ID)
    _forget_other_ids(tables, group, header)
    if _is_older_than_another(tables, group, header, version):
        tables.live.pop(who, None)
        return Registered(other_address=group.addresses[header.broker_id])
    if header.broker_id not in group.addresses and len(told.topics.topic_config_table) == 1:
        if is_first:
            drop_name(tables, header.cluster_name, header.broker_name)
        return None
    other_address = _living_other(tables, group, header)
    is_first = is_first or not group.addresses.get(header.broker_id)
    group.addresses[header.broker_id] = header.broker_address
    _take_topics(tables, group, told, rules, is_first=is_first)
    _keep_live(tables, who, told, version, now_ms)
    notice = None
    if is_min_id_lower and rules.notifies_min_id:
        notice = min_id_notice(group.addresses, ha_address=header.ha_server_address)
    return _told_of_its_master(tables, group, header)._replace(notice=notice, other_address=other_address)


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
    tables: RouteTables, group: BrokerGroup, told: Registration, rules: RegistrationRules, *, is_first: bool
) -> None:
    header = told.header
    is_master = header.broker_id == MASTER_ID
    is_prime_slave = (
        header.enable_acting_master is not None and not is_master and header.broker_id == min(group.addresses)
    )
    if not is_master and not is_prime_slave:
        return
    name = header.broker_name
    topics = told.topics.topic_config_table
    mappings = told.topics.topic_queue_mapping_info_map or {}
    if rules.deletes_topics and not mappings:
        given = {topic.topic_name or key for key, topic in topics.items()}
        for gone in [topic for topic, queues in tables.topics.items() if name in queues and topic not in given]:
            tables.drop_queues(gone, (name,))
    who = BrokerAddress(header.cluster_name, header.broker_address)
    is_changed = is_first or tables.is_changed(who, told.topics.data_version)
    is_read_only = is_prime_slave and group.has_acting_master
    for key, config in topics.items():
        topic = config.topic_name or key
        if is_changed or name not in tables.topics.get(topic, {}):
            tables.put_queues(topic, _queue_data(name, config, is_read_only=is_read_only))
    if is_changed:
        _take_mappings(tables, mappings)


def _queue_data(broker_name: str, topic: TopicConfigData, *, is_read_only: bool) -> QueueData:
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


def _keep_live(tables: RouteTables, who: BrokerAddress, told: Registration, version: DataVersion, now_ms: int) -> None:
    timeout_ms = told.header.heartbeat_timeout_ms
    tables.live[who] = LiveBroker(
        last_update_ms=now_ms,
        timeout_ms=DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms,
        data_version=version,
        channel=told.channel,
        ha_server_address=told.header.ha_server_address,
        broker_name=told.header.broker_name,
        sign=told.sign,
    )
    if told.filter_servers:
        tables.filter_servers[who] = told.filter_servers
    elif told.filter_servers is not None:
        tables.filter_servers.pop(who, None)


def _told_of_its_master(tables: RouteTables, group: BrokerGroup, header: RegisterBrokerRequest) -> Registered:
    if header.broker_id == MASTER_ID:
        return Registered()
    address = group.addresses.get(MASTER_ID)
    master = None if address is None else tables.live.get(BrokerAddress(header.cluster_name, address))
    return Registered() if master is None else Registered(address, master.ha_server_address)
