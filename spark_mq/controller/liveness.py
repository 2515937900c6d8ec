"""Which brokers are alive: who was heard of last when, and over which connection.

It is in memory alone: after a start nobody is alive until he is heard of. Times are of any clock that goes forward.
Java: DefaultBrokerHeartbeatManager. Departures: a broker that the controller does not know is not remembered; all brokers of a closed
connection are gone, where Java takes the first.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_mq.controller.state import Group
from spark_mq.remoting.route_headers import BrokerHeartbeatRequest

DEFAULT_TIMEOUT_MS = 10_000
"""How long a broker may be silent that does not say how long."""
_NOT_SAID = -1
_LAST_PRIORITY = 0x7FFF_FFFF


class BrokerKey(NamedTuple):
    """Which broker is meant."""

    broker_name: str
    broker_id: int


@dataclass(slots=True)
class LiveBroker:
    """What the heartbeats of a broker have said. Java: BrokerLiveInfo."""

    channel: Hashable
    """The connection over which the first one came."""
    last_update_ms: int
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    epoch: int = _NOT_SAID
    """Of the last entry of its log."""
    max_offset: int = _NOT_SAID
    """Where its log ends."""
    confirm_offset: int = _NOT_SAID
    priority: int = _LAST_PRIORITY
    """Of those that hold as much, the one with the lowest becomes master."""

    def is_alive(self, now_ms: int) -> bool:
        """Whether it has not been silent for too long."""
        return self.last_update_ms + self.timeout_ms >= now_ms


class Gone(NamedTuple):
    """A broker that was silent for too long, and its connection, which is to be closed."""

    key: BrokerKey
    silent_ms: int
    channel: Hashable


@dataclass(slots=True)
class Liveness:
    """All brokers that were heard of."""

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
        """Who is alive at a moment."""
        return LivingBrokers(self, now_ms)


class LivingBrokers(NamedTuple):
    """Who is alive at a moment: what decisions are made by."""

    liveness: Liveness
    now_ms: int

    def find(self, group: Group, broker_id: int) -> LiveBroker | None:
        """What a living broker has said; None for one that is not alive."""
        found = self.liveness.live.get(BrokerKey(group.broker_name, broker_id))
        return found if found is not None and found.is_alive(self.now_ms) else None

    def is_alive(self, group: Group, broker_id: int | None) -> bool:
        """Whether the broker is."""
        return broker_id is not None and self.find(group, broker_id) is not None
