"""What a controller has decided, as values and as bytes.

    0      2
    | type | JSON |        Java's events, with the numbers and names of its own

    1 AlterSyncStateSet   2 ApplyBrokerId   3 ElectMaster   5 CleanBrokerData   6 UpdateBrokerAddress   0x7001 WholeState

Choice, time and liveness are in the event: who applies the same events in the same order has the same state. WholeState is this
package's own; a journal begins with one. Java: EventSerializer, controller.impl.event; 4 is a read event that is never written.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from spark_mq.remoting import BodyError, WireBody, read_body, write_body
from spark_mq.remoting.frames import Buffer
from spark_mq.remoting.wire_class import Int, Long, wire

_TYPE = struct.Struct(">h")
_BYTES_MOST = 64 << 20
"""Of one event: a whole state at the limits has less (`ControllerLimits`)."""


class AlterSyncStateSet(WireBody):
    """Others are in sync with the master than before."""

    broker_name: str
    new_sync_state_set: tuple[Long, ...]


class ApplyBrokerId(WireBody):
    """A broker has an id; the first one of its name makes the group."""

    cluster_name: str
    broker_name: str
    broker_address: str
    new_broker_id: Long
    register_check_code: str
    is_pending: bool | None = wire("pending", default=None)
    """It has yet to register (UpdateBrokerAddress). This package's own; journals of before do not have it."""


class ElectMaster(WireBody):
    """There is another master, who alone is in sync; or none, and the set stays as it is."""

    broker_name: str
    new_master_elected: bool
    new_master_broker_id: Long | None = None


class CleanBrokerData(WireBody):
    """Brokers are forgotten: these ids, or without any the whole group."""

    broker_name: str
    broker_ids: tuple[Long, ...] | None = wire("brokerIdSetToClean", default=None)


class UpdateBrokerAddress(WireBody):
    """A broker has registered: it is at this address from now on."""

    cluster_name: str
    broker_name: str
    broker_address: str
    broker_id: Long


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
    return _TYPE.pack(_NUMBERS[type(event)]) + write_body(event)


def decode_event(content: Buffer) -> Event:
    """The event of bytes. Raises BodyError for an unknown type or bad fields."""
    if len(content) < _TYPE.size:
        raise BodyError("event", "type", bytes(content), "it has two bytes")
    (number,) = _TYPE.unpack_from(content)
    event_class = EVENT_TYPES.get(number)
    if event_class is None:
        raise BodyError("event", "type", number, f"it is none of {', '.join(map(str, EVENT_TYPES))}")
    return read_body(event_class, content[_TYPE.size :], _BYTES_MOST)
