"""Which queues of a topic each consumer of a group reads. Pure: every client computes its own part from equal lists, or a broker does.

The caller sorts the queues and the client ids as Java does, so all members of a group, Java's included, compute the same
allocation. A client that is not in the list gets nothing.

Java: AllocateMessageQueueAveragely, …AveragelyByCircle, …ByConfig, …ByMachineRoom, AllocateMachineRoomNearby,
AllocateMessageQueueConsistentHash, ConsistentHashRouter.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from spark_mq.remoting import MessageQueue

_ROOM_SEPARATOR = "@"

Placed = TypeVar("Placed")


class Allocation(Protocol):
    """A way to share queues. All members of a group must use the same one."""

    @property
    def name(self) -> str:
        """As Java names it."""

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        """The queues of one client. Raises ValueError where the way does not fit queues or clients."""


@dataclass(frozen=True, slots=True)
class Averagely:
    """Neighbouring queues go to one client; the first clients get one more where they do not share evenly."""

    name: str = "AVG"

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        index = client_ids.index(client_id)
        size, rest = divmod(len(queues), len(client_ids))
        start = index * size + min(index, rest)
        return list(queues[start : start + size + (index < rest)])


@dataclass(frozen=True, slots=True)
class AveragelyByCircle:
    """The queues are dealt out in turn."""

    name: str = "AVG_BY_CIRCLE"

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


@dataclass(frozen=True, slots=True)
class ByConfig:
    """Each client is given its queues; that every queue has a reader is not checked."""

    queues: tuple[MessageQueue, ...]
    name: str = "CONFIG"

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        """Departure: only those of the topic at hand. Java gives the whole list for every topic it reads."""
        return [queue for queue in self.queues if queue in queues]


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """Queues of brokers named `room@name` in the rooms given, shared like `Averagely`, remainders one each."""

    rooms: frozenset[str]
    name: str = "MACHINE_ROOM"

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        index = client_ids.index(client_id)
        near = [queue for queue in queues if self._is_near(queue.broker_name)]
        size, rest = divmod(len(near), len(client_ids))
        chosen = near[index * size : (index + 1) * size]
        return [*chosen, near[size * len(client_ids) + index]] if index < rest else chosen

    def _is_near(self, broker_name: str) -> bool:
        parts = broker_name.rstrip(_ROOM_SEPARATOR).split(_ROOM_SEPARATOR)
        return len(parts) == 2 and parts[0] in self.rooms


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Each room's queues are shared among its own clients; those of rooms without clients among all.

    `room_of_broker` and `room_of_client` name the room of a queue's broker and of a client id.
    """

    inner: Allocation
    room_of_broker: Callable[[MessageQueue], str]
    room_of_client: Callable[[str], str]

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        queues_of = _by_room((self._room("queue", self.room_of_broker(queue), queue), queue) for queue in queues)
        clients_of = _by_room(
            (self._room("client", self.room_of_client(client), client), client) for client in client_ids
        )
        own = self.room_of_client(client_id)
        near = self.inner.allocate(client_id, queues_of.pop(own), clients_of[own]) if own in queues_of else []
        far = [
            queue
            for room, orphans in sorted(queues_of.items())
            if room not in clients_of
            for queue in self.inner.allocate(client_id, orphans, client_ids)
        ]
        return [*near, *far]

    @staticmethod
    def _room(kind: str, room: str, of: object) -> str:
        if not room:
            raise ValueError(f"the machine room of {kind} {of} is empty: the function given for it must name one")
        return room


def _by_room(placed: Iterable[tuple[str, Placed]]) -> dict[str, list[Placed]]:
    rooms: dict[str, list[Placed]] = {}
    for room, each in placed:
        rooms.setdefault(room, []).append(each)
    return rooms


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Queues and clients on a ring of MD5 hashes: a client that comes or goes moves few queues."""

    virtual_nodes: int = 10
    name: str = "CONSISTENT_HASH"

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if client_id not in client_ids or self.virtual_nodes == 0:
            return []
        ring = {
            _ring_hash(f"{client}-{number}"): client for client in client_ids for number in range(self.virtual_nodes)
        }
        places = sorted(ring)
        return [queue for queue in queues if ring[_next_place(places, _ring_hash(_java_text(queue)))] == client_id]


def _next_place(places: Sequence[int], hash_: int) -> int:
    """The first place at or behind a hash; behind the last one the ring begins anew."""
    return places[bisect.bisect_left(places, hash_) % len(places)]


def _ring_hash(key: str) -> int:
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    """Java: MessageQueue.toString, which is what is hashed."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def sorted_client_ids(client_ids: Iterable[str]) -> list[str]:
    """Client ids in the order of Java's strings, which compares UTF-16 units."""
    return sorted(client_ids, key=lambda client_id: client_id.encode("utf-16-be", "surrogatepass"))
