"""Bodies of what brokers and operators ask a controller.

Java: SyncStateSet, ElectMasterResponseBody, BrokerReplicasInfo, EpochEntryCache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from spark_mq.remoting.body_fields import WireBody
from spark_mq.remoting.route_bodies import BrokerMemberGroup
from spark_mq.remoting.wire_class import Int, Long, wire


class SyncStateSet(WireBody):
    """The brokers of a name that hold all that is acknowledged, the master among them."""

    broker_ids: tuple[Long, ...] = wire("syncStateSet", default=())
    epoch: Int = wire("syncStateSetEpoch", default=0)


class ElectedMasterBody(WireBody):
    """Who is in sync after an election, and all brokers of the name; answers 1002."""

    group: BrokerMemberGroup | None = wire("brokerMemberGroup", default=None)
    broker_ids: tuple[Long, ...] | None = wire("syncStateSet", default=None)


class ReplicaIdentity(WireBody):
    """One broker as a controller sees it."""

    broker_name: str | None = None
    broker_id: Long | None = None
    broker_address: str | None = None
    alive: bool | None = None


class ReplicasInfo(WireBody):
    """The brokers of one name."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None
    in_sync_replicas: tuple[ReplicaIdentity, ...] | None = None
    not_in_sync_replicas: tuple[ReplicaIdentity, ...] | None = None


class BrokerReplicasInfo(WireBody):
    """Which brokers are in sync, by name; answers 1006."""

    replicas_info_table: Mapping[str, ReplicasInfo] = field(default_factory=dict)


class EpochEntry(WireBody):
    """Where in a broker's log an epoch begins and ends."""

    epoch: Int = 0
    start_offset: Long = 0
    end_offset: Long = 0


class EpochEntryCache(WireBody):
    """All epochs of a broker's log; answers 1007."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Long = 0
    epochs: tuple[EpochEntry, ...] | None = wire("epochList", default=None)
    max_offset: Long = 0
