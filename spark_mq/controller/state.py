"""A controller's state. Durable: the brokers of each name, the master, the brokers in sync. In memory: the living brokers.

    groups     broker name → Group

The durable state changes by events alone (`apply`), and has neither times nor connections. Epochs never fall while a group exists.
Java: ReplicasInfoManager, BrokerReplicaInfo, SyncStateInfo. Departures: the next id skips ids that are taken; if a cleaning removes the
last broker in sync, the whole group is removed, where Java keeps its ids and starts its epochs again.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from spark_mq.remoting import BodyError, WireBody, read_body, write_body
from spark_mq.remoting.command import Buffer
from spark_mq.remoting.routes import BrokerHeartbeatRequest
from storage.format.typed_json import Int, Long, wire

# Events: what a controller has decided, as values and as bytes.
#
#     0      2
#     | type | JSON |        Java's events, with the numbers and names of its own
#
#     1 AlterSyncStateSet   2 ApplyBrokerId   3 ElectMaster   5 CleanBrokerData   6 UpdateBrokerAddress   0x7001 WholeState
#
# fastjson writes each getter, so each of Java's has its type's name, too, which no reader looks at.
#
# Choice, time and liveness are in the event: the same events in the same order give the same state. WholeState is this package's own; a
# journal begins with one. Java: EventSerializer, controller.impl.event; 4 is a read event that is never written.


_TYPE = struct.Struct(">h")
_ESCAPED = str.maketrans({each: f"\\u{ord(each):04X}" for each in "()<>"})
"""Of strings. Java: FastJsonConfig's BrowserSecure."""
_BYTES_MOST = 64 << 20
"""Of one event: a whole state at the limits has less (`ControllerLimits`)."""


class AlterSyncStateSet(WireBody):
    """Others are in sync with the master than before."""

    broker_name: str
    new_sync_state_set: tuple[Long, ...]
    event_type: str = "ALTER_SYNC_STATE_SET_EVENT"


class ApplyBrokerId(WireBody):
    """A broker has an id; the first one of its name makes the group."""

    cluster_name: str
    broker_name: str
    broker_address: str
    new_broker_id: Long
    register_check_code: str
    is_pending: bool | None = wire("pending", default=None)
    """It has yet to register (UpdateBrokerAddress). This package's own, of a single node; journals of before do not have it."""
    event_type: str = "APPLY_BROKER_ID_EVENT"


class ElectMaster(WireBody):
    """There is another master, who alone is in sync; or none, and the set stays as it is."""

    broker_name: str
    new_master_elected: bool
    new_master_broker_id: Long | None = None
    event_type: str = "ELECT_MASTER_EVENT"


class CleanBrokerData(WireBody):
    """Brokers are forgotten: these ids, or without any the whole group."""

    broker_name: str
    broker_ids: tuple[Long, ...] | None = wire("brokerIdSetToClean", default=None)
    event_type: str = "CLEAN_BROKER_DATA_EVENT"


class UpdateBrokerAddress(WireBody):
    """A broker has registered: it is at this address from now on."""

    cluster_name: str
    broker_name: str
    broker_address: str
    broker_id: Long
    event_type: str = "UPDATE_BROKER_ADDRESS"


class ReplicaState(WireBody):
    """A broker within a whole state."""

    broker_id: Long
    address: str
    register_check_code: str
    is_pending: bool | None = wire("pending", default=None)


class GroupState(WireBody):
    """The brokers of one name within a whole state."""

    cluster_name: str
    broker_name: str
    next_broker_id: Long
    master_epoch: Int
    sync_state_set_epoch: Int
    sync_state_set: tuple[Long, ...]
    master_broker_id: Long | None = None
    replicas: tuple[ReplicaState, ...]


class WholeState(WireBody):
    """All that was known before, in place of the events that led to it."""

    groups: tuple[GroupState, ...]


Event: TypeAlias = AlterSyncStateSet | ApplyBrokerId | ElectMaster | CleanBrokerData | UpdateBrokerAddress | WholeState
EVENT_TYPES: Mapping[int, type[Event]] = MappingProxyType(
    {
        1: AlterSyncStateSet,
        2: ApplyBrokerId,
        3: ElectMaster,
        5: CleanBrokerData,
        6: UpdateBrokerAddress,
        0x7001: WholeState,
    }
)
_NUMBERS = {event_class: number for number, event_class in EVENT_TYPES.items()}


def encode_event(event: Event) -> bytes:
    """The event as bytes."""
    return _TYPE.pack(_NUMBERS[type(event)]) + write_body(event).decode().translate(_ESCAPED).encode()


def event_class_of(content: Buffer) -> type[Event] | None:
    """What the bytes are; None for a number that is no event's here. Raises BodyError where no number stands."""
    if len(content) < _TYPE.size:
        raise BodyError("event", "type", bytes(content), "it has two bytes")
    return EVENT_TYPES.get(_TYPE.unpack_from(content)[0])


def decode_event(content: Buffer) -> Event:
    """The event of bytes. Raises BodyError for an unknown type or bad fields."""
    event_class = event_class_of(content)
    if event_class is None:
        (number,) = _TYPE.unpack_from(content)
        raise BodyError("event", "type", number, f"it is none of {', '.join(map(str, EVENT_TYPES))}")
    return read_body(event_class, content[_TYPE.size :], _BYTES_MOST)


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
        """The master's address; None without a master, and for one that was removed."""
        return None if self.master_id is None else self.address(self.master_id)

    def address(self, broker_id: int) -> str | None:
        """A broker's address."""
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
    """Replicas of all groups together."""
    pending: dict[tuple[str, int], None] = field(default_factory=dict)
    """Names and ids of brokers that have yet to register, in the order in which they applied."""

    @property
    def registered_count(self) -> int:
        """Number of registered brokers."""
        return self.replica_count - len(self.pending)

    def apply(self, event: Event) -> None:
        """Apply an event. An event of a missing group changes nothing."""
        if isinstance(event, WholeState):
            self.groups = {each.broker_name: _group_of(each) for each in event.groups}
            self.replica_count = sum(len(group.replicas) for group in self.groups.values())
            self.pending = {(name, each): None for name, group in self.groups.items() for each in _pending(group)}
            return
        before = self.groups.get(event.broker_name)
        after = _changed(before, event)
        if after is None or not after.replicas or _is_emptied(before, event, after):
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


def events_of(state: ControllerState) -> list[Event]:
    """Java's events that lead to this state from nothing: for the log of several controllers that take over from a single node.

    Ids that are not to be given again are applied for, and cleaned. An application without a registration counts as the broker's.
    """
    return [event for group in state.groups.values() for event in _events_of(group)]


def _events_of(group: Group) -> Iterator[Event]:
    name, replicas = group.broker_name, group.replicas
    used = range(FIRST_BROKER_ID, group.next_broker_id) if group.master_epoch else ()
    for each in sorted({*used, *replicas}):
        found = replicas.get(each, Replica("", ""))
        yield ApplyBrokerId(
            cluster_name=group.cluster,
            broker_name=name,
            broker_address=found.address,
            new_broker_id=each,
            register_check_code=found.register_check_code,
        )
    if not group.master_epoch:
        return
    gone = ElectMaster(broker_name=name, new_master_elected=False)
    master, is_gone = group.master_id, group.master_id is None
    yield from [gone] * (group.master_epoch - 1 - is_gone)
    elected = min(group.sync_state_set) if master is None else master
    yield ElectMaster(broker_name=name, new_master_elected=True, new_master_broker_id=elected)
    members = tuple(sorted(group.sync_state_set))
    yield from [AlterSyncStateSet(broker_name=name, new_sync_state_set=members)] * (group.sync_state_set_epoch - 1)
    if is_gone:
        yield gone
    if cleaned := tuple(each for each in used if each not in replicas):
        yield CleanBrokerData(broker_name=name, broker_ids=cleaned)


def _is_emptied(before: Group | None, event: Event, after: Group) -> bool:
    """Whether a cleaning leaves no broker in sync. Applications that lapse in a group that never had a master are no such cleaning."""
    if not isinstance(event, CleanBrokerData) or after.sync_state_set or before is None:
        return False
    cleaned = [before.replicas.get(each) for each in event.broker_ids or ()]
    return bool(before.sync_state_set) or any(found is None or not found.is_pending for found in cleaned)


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


# The living brokers: time and connection of each one's last heartbeat.
#
# In memory alone: after a start no broker is alive before its first heartbeat. Times are of a monotonic clock.
# Java: DefaultBrokerHeartbeatManager. Departures: a broker that the controller does not know is not remembered; all brokers of a closed
# connection are gone, where Java takes the first.


DEFAULT_TIMEOUT_MS = 10_000
"""Time-out for a broker whose heartbeats name none."""
_NOT_SAID = -1
_LAST_PRIORITY = 0x7FFF_FFFF


class BrokerKey(NamedTuple):
    """The identity of a broker."""

    broker_name: str
    broker_id: int


@dataclass(slots=True)
class LiveBroker:
    """The data of a broker's heartbeats. Java: BrokerLiveInfo."""

    channel: Hashable
    """The connection over which the first one came."""
    last_update_ms: int
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    epoch: int = _NOT_SAID
    """The epoch of its log's last entry."""
    max_offset: int = _NOT_SAID
    """The end of its log."""
    confirm_offset: int = _NOT_SAID
    priority: int = _LAST_PRIORITY
    """Among brokers with equal logs, the one with the lowest priority number becomes master."""

    def is_alive(self, now_ms: int) -> bool:
        """Whether it has not been silent for too long."""
        return self.last_update_ms + self.timeout_ms >= now_ms


class Gone(NamedTuple):
    """A broker that was silent for too long, and its connection, for closing."""

    key: BrokerKey
    silent_ms: int
    channel: Hashable


@dataclass(slots=True)
class Liveness:
    """All brokers that have sent heartbeats."""

    live: dict[BrokerKey, LiveBroker] = field(default_factory=dict)

    def hear(self, beat: BrokerHeartbeatRequest, broker_id: int, channel: Hashable, now_ms: int) -> bool:
        """A heartbeat; whether the broker was not alive before. Epoch and offsets of a living one only go up, as in Java.

        Departure: a broker has the connection over which it was heard last, in Java the first one.
        """
        key = BrokerKey(beat.broker_name, broker_id)
        found = self.live.get(key)
        is_new = found is None
        if found is None:
            found = self.live[key] = LiveBroker(channel, now_ms)
        found.channel = channel
        found.last_update_ms = now_ms
        found.timeout_ms = DEFAULT_TIMEOUT_MS if beat.heartbeat_timeout_ms is None else beat.heartbeat_timeout_ms
        found.priority = _LAST_PRIORITY if beat.election_priority is None else beat.election_priority
        epoch = _NOT_SAID if beat.epoch is None else beat.epoch
        max_offset = _NOT_SAID if beat.max_offset is None else beat.max_offset
        if is_new or (epoch, max_offset) > (found.epoch, found.max_offset):
            found.epoch, found.max_offset = epoch, max_offset
            found.confirm_offset = _NOT_SAID if beat.confirm_offset is None else beat.confirm_offset
        return is_new

    def expired(self, now_ms: int) -> list[Gone]:
        """Takes out all that were silent for too long."""
        gone = [
            Gone(key, now_ms - broker.last_update_ms, broker.channel)
            for key, broker in self.live.items()
            if not broker.is_alive(now_ms)
        ]
        for each in gone:
            del self.live[each.key]
        return gone

    def close_channel(self, channel: Hashable) -> list[BrokerKey]:
        """Takes out those whose connection is gone."""
        gone = [key for key, broker in self.live.items() if broker.channel == channel]
        for key in gone:
            del self.live[key]
        return gone

    def at(self, now_ms: int) -> LivingBrokers:
        """The living brokers at a moment."""
        return LivingBrokers(self, now_ms)


class LivingBrokers(NamedTuple):
    """The living brokers at a moment, for decisions."""

    liveness: Liveness
    now_ms: int

    def find(self, group: Group, broker_id: int) -> LiveBroker | None:
        """The data of a living broker; None for one that is not alive."""
        found = self.liveness.live.get(BrokerKey(group.broker_name, broker_id))
        return found if found is not None and found.is_alive(self.now_ms) else None

    def is_alive(self, group: Group, broker_id: int | None) -> bool:
        """Whether the broker is."""
        return broker_id is not None and self.find(group, broker_id) is not None
