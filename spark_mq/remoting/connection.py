"""One connection, without its socket: bytes in, events out; commands in, bytes out.

Both ends number their own requests, so an answer belongs to the request of its number that this end has sent and that still waits.
Answers may come in any order. What waits is the caller's: a future, a queue, a callback.

    connection: Connection[Future] = Connection()
    transport.writelines(connection.send_request(request, future).pieces)
    for event in connection.feed(data):
        match event:
            case Answer(command, future): ...      # the answer to a request of ours
            case Request(command): ...             # the peer asks; look at command.is_oneway
            case Unawaited(command): ...           # an answer that nobody waits for (any more)
            case RequestRun(): ...                 # the peer asks for many things that look alike; only with `runs`
            case Broken(error): ...                # no frame can be read from here on: close

Java: NettyRemotingAbstract (responseTable). Not for several threads at once. It knows no clock: whoever times out calls `forget`,
and whoever closes the socket calls `close`.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeAlias, TypeVar

from spark_mq.remoting.command import ONEWAY_FLAG, Body, RemotingCommand
from spark_mq.remoting.errors import ConnectionClosedError, FrameError
from spark_mq.remoting.frames import DEFAULT_LIMITS, Buffer, FrameLimits, FrameReader, encode_frame
from spark_mq.remoting.request_runs import RequestRun, RunReader

_OPAQUE_MOST = 0x7FFF_FFFF

T = TypeVar("T")
"""What waits for an answer."""


class Request(NamedTuple):
    """The peer asks for something; one-way requests are not answered."""

    command: RemotingCommand


class Answer(NamedTuple, Generic[T]):
    """The peer answers a request that waited; it waits no more."""

    command: RemotingCommand
    waiter: T


class Unawaited(NamedTuple):
    """The peer answers what nobody waits for: forgotten after a time-out, answered twice, or never asked."""

    command: RemotingCommand


class Broken(NamedTuple):
    """What came is no frame. It is the last event of a connection."""

    error: FrameError


Event: TypeAlias = Request | RequestRun | Answer[T] | Unawaited | Broken


class SentRequest(NamedTuple):
    """The number that a request got, and the bytes to write."""

    opaque: int
    pieces: tuple[Body, ...]


class Connection(Generic[T]):
    """What is under way on one connection, from this end."""

    def __init__(self, limits: FrameLimits = DEFAULT_LIMITS, runs: RunReader | None = None) -> None:
        """With `runs` requests that look alike come together; what follows them stays unread (`feed`)."""
        self._limits = limits
        self._reader = FrameReader(limits, runs)
        self._waiting: dict[int, T] = {}
        self._next_opaque = 0
        self._closed_because: str | None = None
        self._is_broken = False

    @property
    def waiting_count(self) -> int:
        """How many requests wait for their answers."""
        return len(self._waiting)

    @property
    def pending_bytes(self) -> int:
        """How much of an unfinished frame has come."""
        return self._reader.pending_bytes

    @property
    def unread_bytes(self) -> int:
        """How much has come that `feed` has not looked at, because it gave as many events as it was to give."""
        return self._reader.unread_bytes

    def send_request(self, request: RemotingCommand, waiter: T) -> SentRequest:
        """Gives the request the next free number and remembers who waits. Its own `opaque` does not count.

        Raises FrameIllegalError where it does not fit a frame, and ConnectionClosedError after `close`; nobody waits then.
        """
        opaque = self._number()
        pieces = encode_frame(request._replace(opaque=opaque), self._limits)
        self._waiting[opaque] = waiter
        return SentRequest(opaque, pieces)

    def send_oneway(self, request: RemotingCommand) -> SentRequest:
        """As `send_request` for a request that is never answered; the flag is set here."""
        opaque = self._number()
        numbered = request._replace(opaque=opaque, flag=request.flag | ONEWAY_FLAG)
        return SentRequest(opaque, encode_frame(numbered, self._limits))

    def send_response(self, response: RemotingCommand) -> tuple[Body, ...]:
        """The bytes of an answer, which has its request's number already (`make_response`)."""
        self._check_open()
        return encode_frame(response, self._limits)

    def feed(self, data: Buffer, most: int | None = None) -> list[Event[T]]:
        """What the peer says with these bytes and those before; nothing after Broken.

        With `most` no more frames are read than that; what follows them stays unread until the next call, which may be fed nothing.
        After `close` only what was unread then is read.
        """
        if self._is_broken or (self._closed_because is not None and (data or not self.unread_bytes)):
            return []
        events: list[Event[T]] = [self._event(found) for found in self._reader.feed_runs(data, most)]
        if self._closed_because is not None:
            self._reader.forget_pending()
        if self._reader.error is not None:
            self._is_broken = True
            events.append(Broken(self._reader.error))
        return events

    def forget(self, opaque: int) -> T | None:
        """Who waited for that answer, and waits no more; None where nobody did. The answer, should it come, is Unawaited."""
        return self._waiting.pop(opaque, None)

    def close(self, reason: str) -> list[T]:
        """All who still wait, in the order of their requests. None of them can be told whether the peer did what was asked.

        What has come of a frame is let go, however long the connection is still known to somebody.
        """
        if self._closed_because is None:
            self._closed_because = reason
            self._reader.forget_pending()
        waiters = list(self._waiting.values())
        self._waiting.clear()
        return waiters

    def drop_unread(self) -> None:
        """Lets go of what has come, and was not looked at."""
        self._reader = FrameReader(self._limits)

    def _event(self, command: RemotingCommand | RequestRun) -> Event[T]:
        if isinstance(command, RequestRun):
            return command
        if not command.is_response:
            return Request(command)
        if command.opaque in self._waiting:
            return Answer(command, self._waiting.pop(command.opaque))
        return Unawaited(command)

    def _number(self) -> int:
        self._check_open()
        while self._next_opaque in self._waiting:
            self._next_opaque = self._next_opaque + 1 & _OPAQUE_MOST
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 & _OPAQUE_MOST
        return opaque

    def _check_open(self) -> None:
        if self._closed_because is not None:
            raise ConnectionClosedError(self._closed_because)
