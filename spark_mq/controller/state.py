"""What a controller knows for good: which brokers a name has, who is master, who is in sync.

    groups     broker name → Group

It changes by events alone (`apply`), and knows neither time nor connections. Epochs never fall while a group is there.
Java: ReplicasInfoManager, BrokerReplicaInfo, SyncStateInfo. Departures: ids that are taken are passed over when the next one is counted
up; a group that loses its last one in sync by a cleaning is forgotten whole, where Java keeps its ids and begins its epochs anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spark_mq.controller.events import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    Event,
    GroupState,
    ReplicaState,
    UpdateBrokerAddress,
    WholeState,
)

FIRST_BROKER_ID = 1


class Replica(NamedTuple):
    """One broker of a group."""

    address: str
    register_check_code: str
    is_pending: bool = False
    """It has applied for its id, and has not registered."""


@dataclass(frozen=True, slots=True)
class Group:
    """The brokers of one name."""

    cluster: str
    broker_name: str
    next_broker_id: int = FIRST_BROKER_ID
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    master_id: int | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0

    @property
    def master_address(self) -> str | None:
        """Where the master is; None without one, and for one that was forgotten."""
        return None if self.master_id is None else self.address(self.master_id)

    def address(self, broker_id: int) -> str | None:
        """Where a broker is."""
        found = self.replicas.get(broker_id)
        return None if found is None else found.address

    def with_replica(self, broker_id: int, replica: Replica) -> Group:
        """With a broker more. An id that is taken stays whose it is."""
        if broker_id in self.replicas:
            return self
        replicas = {**self.replicas, broker_id: replica}
        following = self.next_broker_id + 1
        while following in replicas:
            following += 1
        return replace(self, replicas=replicas, next_broker_id=following)

    def with_address(self, broker_id: int, address: str) -> Group:
        """With a broker that has registered, at an address."""
        found = self.replicas.get(broker_id)
        if found is None:
            return self
        registered = found._replace(address=address, is_pending=False)
        return replace(self, replicas={**self.replicas, broker_id: registered})

    def with_set(self, broker_ids: Iterable[int]) -> Group:
        """With another set of those in sync, who count as registered from then on: none of them is forgotten by itself."""
        members = frozenset(broker_ids)
        replicas = {
            each: found._replace(is_pending=False) if each in members else found
            for each, found in self.replicas.items()
        }
        epoch = self.sync_state_set_epoch + 1
        return replace(self, replicas=replicas, sync_state_set=members, sync_state_set_epoch=epoch)

    def with_master(self, broker_id: int | None) -> Group:
        """With another master, or with none."""
        return replace(self, master_id=broker_id, master_epoch=self.master_epoch + 1)

    def without(self, broker_ids: Iterable[int]) -> Group:
        """Without these brokers. Who was master stays written down until another one is elected, as in Java."""
        gone = frozenset(broker_ids)
        replicas = {each: replica for each, replica in self.replicas.items() if each not in gone}
        return replace(self, replicas=replicas, sync_state_set=self.sync_state_set - gone)


@dataclass(slots=True)
class ControllerState:
    """All groups. Not for several threads at once."""

    groups: dict[str, Group] = field(default_factory=dict)
    replica_count: int = 0
    """Of all groups together."""
    pending: dict[tuple[str, int], None] = field(default_factory=dict)
    """Names and ids of brokers that have yet to register, in the order in which they applied."""

    @property
    def registered_count(self) -> int:
        """How many brokers have registered."""
        return self.replica_count - len(self.pending)

    def apply(self, event: Event) -> None:
        """What the event says holds from now on. One of a group that is not there changes nothing."""
        if isinstance(event, WholeState):
            self.groups = {each.broker_name: _group_of(each) for each in event.groups}
            self.replica_count = sum(len(group.replicas) for group in self.groups.values())
            self.pending = {(name, each): None for name, group in self.groups.items() for each in _pending(group)}
            return
        before = self.groups.get(event.broker_name)
        after = _changed(before, event)
        had_synced = before is not None and bool(before.sync_state_set)
        is_last_cleaned = (
            isinstance(event, CleanBrokerData) and had_synced and after is not None and not after.sync_state_set
        )
        if after is None or not after.replicas or is_last_cleaned:
            self.groups.pop(event.broker_name, None)
            after = None
        else:
            self.groups[event.broker_name] = after
        self.replica_count += _count(after) - _count(before)
        for each in _pending(before) - _pending(after):
            del self.pending[event.broker_name, each]
        for each in sorted(_pending(after) - _pending(before)):
            self.pending[event.broker_name, each] = None

    def whole(self) -> WholeState:
        """All of it as one event."""
        return WholeState(groups=tuple(_state_of(group) for group in self.groups.values()))


def _pending(group: Group | None) -> frozenset[int]:
    return (
        frozenset() if group is None else frozenset(each for each, found in group.replicas.items() if found.is_pending)
    )


def _count(group: Group | None) -> int:
    return 0 if group is None else len(group.replicas)


def _changed(group: Group | None, event: Event) -> Group | None:
    """The group after the event; None where there is none."""
    if isinstance(event, ApplyBrokerId):
        known = group or Group(event.cluster_name, event.broker_name)
        replica = Replica(event.broker_address, event.register_check_code, bool(event.is_pending))
        return known.with_replica(event.new_broker_id, replica)
    if group is None:
        return None
    if isinstance(event, AlterSyncStateSet):
        return group.with_set(event.new_sync_state_set)
    if isinstance(event, ElectMaster):
        master = event.new_master_broker_id
        if not event.new_master_elected or master is None:
            return group.with_master(None)
        return group.with_master(master).with_set((master,))
    if isinstance(event, UpdateBrokerAddress):
        return group.with_address(event.broker_id, event.broker_address)
    if isinstance(event, CleanBrokerData):
        return group.without(event.broker_ids) if event.broker_ids else None
    return group


def _group_of(state: GroupState) -> Group:
    return Group(
        cluster=state.cluster_name,
        broker_name=state.broker_name,
        next_broker_id=state.next_broker_id,
        replicas={
            each.broker_id: Replica(each.address, each.register_check_code, bool(each.is_pending))
            for each in state.replicas
        },
        master_id=state.master_broker_id,
        master_epoch=state.master_epoch,
        sync_state_set=frozenset(state.sync_state_set),
        sync_state_set_epoch=state.sync_state_set_epoch,
    )


def _state_of(group: Group) -> GroupState:
    return GroupState(
        cluster_name=group.cluster,
        broker_name=group.broker_name,
        next_broker_id=group.next_broker_id,
        master_epoch=group.master_epoch,
        sync_state_set_epoch=group.sync_state_set_epoch,
        sync_state_set=tuple(sorted(group.sync_state_set)),
        master_broker_id=group.master_id,
        replicas=tuple(
            ReplicaState(
                broker_id=each,
                address=found.address,
                register_check_code=found.register_check_code,
                is_pending=found.is_pending or None,
            )
            for each, found in sorted(group.replicas.items())
        ),
    )
