"""A client's connection as a value, and what a broker wants done with connections: sent, asked, closed. No sockets.

The server numbers what it sends (`remoting.Connection`), and tells of a connection's end by `Broker.closed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from spark_mq.remoting import RemotingCommand


@dataclass(frozen=True, slots=True, eq=False)
class ClientConnection:
    """One connection of a client. Two are the same only if they are one object. Java: Channel."""

    host: bytes
    """The client's 4 or 16 bytes of address, 4 of port: what its messages say of where they were born."""
    address: str
    """The same as `address:port`."""


class Waiting(Enum):
    """What a request came to that is not answered now."""

    PARKED = "a pull that waits for messages; `Broker` says when to run it again"


@dataclass(frozen=True, slots=True)
class AskClients:
    """Requests of the broker to clients, upon which the asker is answered: each is sent, and waited for so long.

    `answer` makes the asker's answer of theirs, in order; None where one did not answer in time or could not be asked.
    """

    questions: tuple[tuple[ClientConnection, RemotingCommand], ...]
    timeout_ms: int
    answer: Callable[[tuple[RemotingCommand | None, ...]], RemotingCommand]


Outcome: TypeAlias = RemotingCommand | Waiting | AskClients | None
"""An answer; a pull that waits; clients to be asked first; None = never an answer."""


class Tell(NamedTuple):
    """A one-way request to a client."""

    connection: ClientConnection
    command: RemotingCommand


class Close(NamedTuple):
    """A client that was silent for too long: its connection is of no use."""

    connection: ClientConnection


class RunAgain(NamedTuple):
    """A pull that waited is to be answered now: `Broker.answer_again`, in the pool of its row."""

    connection: ClientConnection
    command: RemotingCommand


class RegisterTopics(NamedTuple):
    """Topics are new or changed: name servers are to be told now. No names = all of them, as after a change of permissions."""

    topics: tuple[str, ...]


BrokerEvent: TypeAlias = Tell | Close | RunAgain | RegisterTopics
