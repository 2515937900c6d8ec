"""Where a topic's queues are (105): the brokers that have it, slaves that stand in for a master, brokers of a client's zone.

Java: RouteInfoManager.pickupTopicRouteData, ZoneRouteRPCHook.
"""

from __future__ import annotations

from dataclasses import replace

from spark_mq.namesrv.tables import BrokerAddress, BrokerGroup, RouteTables
from spark_mq.remoting.route_bodies import BrokerData, QueueData, TopicRouteData
from storage.names import BROKER_MEMBER_TOPIC_PREFIX, MASTER_ID
from storage.tables.topics import PERM_WRITE


def route(tables: RouteTables, topic: str, *, supports_acting_master: bool = False) -> TopicRouteData | None:
    """A topic's route; None where no broker has it.

    With `supports_acting_master` the lowest id of brokers without a master is shown as 0, where nothing can be written to them and
    they allow it. The topics by which brokers find each other show who is really there.
    """
    queues = tables.topics.get(topic)
    if not queues:
        return None
    groups = [group for name in queues if (group := tables.groups.get(name)) is not None]
    if not groups:
        return None
    stands_in = supports_acting_master and not topic.startswith(BROKER_MEMBER_TOPIC_PREFIX)
    return TopicRouteData(
        queue_datas=tuple(queues.values()),
        broker_datas=tuple(_shown(group, queues[group.broker_name], stands_in=stands_in) for group in groups),
        filter_server_table=_filter_servers(tables, groups),
        topic_queue_mapping_by_broker=tables.mappings.get(topic),
    )


def in_zone(found: TopicRouteData, zone_name: str) -> TopicRouteData:
    """Only the brokers of a zone, and those without a master, whose messages are read from slaves anywhere. Case does not count."""
    stays = {
        data.broker_name: MASTER_ID not in data.broker_addresses or (data.zone_name or "").lower() == zone_name.lower()
        for data in found.broker_datas
    }
    gone = {
        address
        for data in found.broker_datas
        if not stays[data.broker_name]
        for address in data.broker_addresses.values()
    }
    servers = {address: names for address, names in found.filter_server_table.items() if address not in gone}
    return replace(
        found,
        broker_datas=tuple(data for data in found.broker_datas if stays[data.broker_name]),
        queue_datas=tuple(data for data in found.queue_datas if stays.get(data.broker_name, True)),
        filter_server_table=servers,
    )


def _shown(group: BrokerGroup, queues: QueueData, *, stands_in: bool) -> BrokerData:
    data = group.as_body()
    addresses = dict(data.broker_addresses)
    needs_one = stands_in and group.has_acting_master and addresses and MASTER_ID not in addresses
    if not needs_one or queues.perm & PERM_WRITE:
        return data
    acting = addresses.pop(min(addresses))
    return replace(data, broker_addresses={MASTER_ID: acting, **addresses})


def _filter_servers(tables: RouteTables, groups: list[BrokerGroup]) -> dict[str, tuple[str, ...]]:
    if not tables.filter_servers:
        return {}
    return {
        address: found
        for group in groups
        for address in group.addresses.values()
        if (found := tables.filter_servers.get(BrokerAddress(group.cluster, address))) is not None
    }
