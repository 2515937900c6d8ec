"""A broker leaves: it says so (104), it is silent for too long, or its connection closes.

All three lead to the same: its address goes at once. With the last address of a name the name goes, from its cluster and from all
topics. Where others are left without a master, and slaves may stand in for one, nothing can be written there.

Java: RouteInfoManager.unRegisterBroker, scanNotActiveBroker, onChannelDestroy. Departure: where several brokers have registered over
one connection, all of them go with it; Java takes the first, and the others when they were silent for too long.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import NamedTuple

from spark_mq.namesrv.tables import BrokerAddress, MinBrokerIdNotice, RouteTables, drop_name, min_id_notice
from spark_mq.remoting.route_headers import BrokerAddressRequest
from storage.tables.topics import PERM_WRITE


class Expired(NamedTuple):
    """A broker that was silent for too long, and its connection, which is to be closed."""

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
    """What the broker would say if it left by itself.

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
    """Takes brokers out of all tables, as one batch; who is to hear of it. Topics are looked through once."""
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
