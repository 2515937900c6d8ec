"""Which clients produce in which group: whom a transaction check or a reply goes to. Java: ProducerManager.

Departure: a client that leaves a group, or whose old connection ends, is found by its id while it is in another group or has another
connection. Java forgets the id then, and replies to the client fail.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from spark_mq.broker.connections import ClientConnection

PRODUCER_EXPIRES_MS = 120_000


@dataclass(slots=True)
class KnownClient:
    """A client of a group, on one connection. Java: ClientChannelInfo."""

    connection: ClientConnection
    client_id: str
    language: str
    version: int
    seen_ms: int


class ProducerTable:
    """All groups of producers. For one thread at a time. Times are ms of a clock that nobody sets."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[ClientConnection, KnownClient]] = {}
        self._by_client_id: dict[str, ClientConnection] = {}
        self._turn = itertools.count(1)

    def register(self, group: str, client: KnownClient) -> None:
        """A client is there, or there still."""
        known = self.groups.setdefault(group, {}).get(client.connection)
        if known is None:
            self.groups[group][client.connection] = client
            self._by_client_id[client.client_id] = client.connection
        else:
            known.seen_ms = client.seen_ms

    def unregister(self, group: str, connection: ClientConnection, client_id: str) -> None:
        """A client leaves one group."""
        clients = self.groups.get(group)
        if not clients:
            return
        clients.pop(connection, None)
        if not clients:
            del self.groups[group]
        self._left(connection, client_id)

    def closed(self, connection: ClientConnection) -> None:
        """A connection is gone: its client leaves all groups."""
        for group, clients in list(self.groups.items()):
            if (client := clients.pop(connection, None)) is not None:
                if not clients:
                    del self.groups[group]
                self._left(connection, client.client_id)

    def expire(self, now_ms: int) -> list[ClientConnection]:
        """Drop the clients that were silent for 120 s; their connections, to be closed."""
        silent = []
        for group, clients in list(self.groups.items()):
            for connection, client in list(clients.items()):
                if now_ms - client.seen_ms > PRODUCER_EXPIRES_MS:
                    del clients[connection]
                    self._left(connection, client.client_id)
                    silent.append(connection)
            if not clients:
                del self.groups[group]
        return silent

    def _left(self, connection: ClientConnection, client_id: str) -> None:
        """A client has left a group on this connection."""
        is_known = self._by_client_id.get(client_id) is connection
        if is_known and not any(connection in clients for clients in self.groups.values()):
            del self._by_client_id[client_id]

    def any_of(self, group: str) -> ClientConnection | None:
        """A client of the group, by turns. Java: getAvailableChannel."""
        connections = list(self.groups.get(group, ()))
        return connections[next(self._turn) % len(connections)] if connections else None

    def of_client(self, client_id: str) -> ClientConnection | None:
        """The connection of a client by its id."""
        return self._by_client_id.get(client_id)
