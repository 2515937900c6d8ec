"""Requests of brokers and operators to a controller, its answers and its notices: headers and bodies.

Java: remoting.protocol.header.controller, NotifyBrokerRoleChangedRequestHeader, SyncStateSet, ElectMasterResponseBody,
BrokerReplicasInfo, EpochEntryCache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from spark_mq.remoting.command import Header
from spark_mq.remoting.routes import BrokerMemberGroup
from storage.format.typed_json import Int, Long, WireBody, wire


class ControllerMetadataAnswer(Header):
    """The controllers and their leader; answers 1005."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None
    """`id:host:port;…`"""


class NextBrokerIdRequest(Header):
    """Request for the next free id of a broker name."""

    cluster_name: str
    broker_name: str


class NextBrokerIdAnswer(Header):
    """The next free id."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Long | None = None


class ApplyBrokerIdRequest(Header):
    """A broker wants this id."""

    cluster_name: str
    broker_name: str
    applied_broker_id: Long
    register_check_code: str
    """`address;ms`: who repeats it is the same broker."""


class ApplyBrokerIdAnswer(Header):
    """Whose id it is."""

    cluster_name: str | None = None
    broker_name: str | None = None


class RegisterToControllerRequest(Header):
    """A broker that has its id is at this address."""

    cluster_name: str
    broker_name: str
    broker_id: Long
    broker_address: str
    invoke_time_ms: Long | None = wire("invokeTime", default=None)


class RegisterToControllerAnswer(Header):
    """The master, if one is alive; the set of brokers in sync is the body."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


class ElectMasterRequest(Header):
    """The brokers of this name need a master."""

    cluster_name: str
    broker_name: str
    broker_id: Long
    """The id of the requesting or designated broker; -1 = the controller itself."""
    designate_elect: bool
    """Whether it shall be that one and no other."""
    invoke_time_ms: Long | None = wire("invokeTime", default=None)


class MasterAnswer(Header):
    """The master; answers 1002."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


class ReplicaInfoRequest(Header):
    """Request for the master of this broker name."""

    broker_name: str


class ReplicaInfoAnswer(Header):
    """The master; the set of brokers in sync is the body."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None


class AlterSyncStateSetRequest(Header):
    """A master has found others in sync with it than before; the set, with the epoch of the old one, is the body."""

    broker_name: str
    master_broker_id: Long
    master_epoch: Int
    invoke_time_ms: Long | None = wire("invokeTime", default=None)


class AlterSyncStateSetAnswer(Header):
    """The epoch of the new set; 0 in a refusal."""

    new_sync_state_set_epoch: Int = 0


class RoleChangedRequest(Header):
    """A controller's notice to brokers of the master; the set of brokers in sync is the body."""

    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None
    master_broker_id: Long | None = None


class CleanBrokerDataRequest(Header):
    """Brokers that a controller shall forget."""

    cluster_name: str | None = None
    broker_name: str
    broker_ids_to_clean: str | None = wire("brokerControllerIdsToClean", default=None)
    """`1;2`; without any all of that name."""
    cleans_living: bool = wire("isCleanLivingBroker", default=False)
    invoke_time_ms: Long | None = wire("invokeTime", default=None)


class SyncStateSet(WireBody):
    """The brokers of a name that hold all that is acknowledged, the master among them."""

    broker_ids: tuple[Long, ...] = wire("syncStateSet", default=())
    epoch: Int = wire("syncStateSetEpoch", default=0)


class ElectedMasterBody(WireBody):
    """The brokers in sync after an election, and all brokers of the name; answers 1002."""

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
    """The brokers in sync, by name; answers 1006."""

    replicas_info_table: Mapping[str, ReplicasInfo] = field(default_factory=dict)


class EpochSpan(WireBody):
    """Begin and end of an epoch in a broker's log."""

    epoch: Int = 0
    start_offset: Long = 0
    end_offset: Long = 0


class EpochEntryCache(WireBody):
    """All epochs of a broker's log; answers 1007."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Long = 0
    epochs: tuple[EpochSpan, ...] | None = wire("epochList", default=None)
    max_offset: Long = 0
