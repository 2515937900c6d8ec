"""One connection, as handlers see it: the peer, how to send to it, and how many bytes wait to be written. For any thread.

For the loop's thread alone: answers that wait for a disk or a replica without holding a thread, and requests that are not supported.

Java: Channel and its attributes (RemotingHelper, AttributeKeys).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from spark_mq.client.errors import request_text
from spark_mq.remoting import RemotingCommand, make_response
from spark_mq.remoting.codes import LanguageCode
from storage.pending import Pending
from storage.rules.response_codes import ResponseCode

_LOG = logging.getLogger(__name__)
OF_ONE_BYTES = 32 << 20
"""Limit of one connection's unwritten bytes: above it, requests get SYSTEM_BUSY."""
OF_ALL_BYTES = 256 << 20
"""Limit of all unwritten bytes: above it, the same for a connection with more than a little."""
LITTLE_BYTES = 1 << 20


def is_this_host(host: str) -> bool:
    """Whether an IP address is a loopback one."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """The remark about an unknown code, in Java's words."""
    remark = f" request type {request.code} not supported"
    return make_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


class Caller(NamedTuple):
    """The caller, without sockets: the connection, which equals only itself, and the peer's IP address."""

    channel: Hashable
    host: str


class Line(Protocol):
    """Carries a peer's messages, on the event loop's thread."""

    thread_id: int
    """The loop's thread."""
    outbox: Outbox
    """Where other threads leave work for the loop."""
    unwritten: Unwritten
    """Unwritten bytes."""

    def respond(self, request: RemotingCommand, response: RemotingCommand, *, was_suspended: bool = False) -> None:
        """Writes an answer."""

    def request(self, command: RemotingCommand, timeout_ms: int, waiter: Future[RemotingCommand]) -> None:
        """Asks the peer."""

    def send_oneway(self, command: RemotingCommand) -> None:
        """Send to the peer."""

    def close(self, reason: str) -> None:
        """Hangs up."""


class Outbox:
    """Work of other threads for the loop: one wake-up for everything that comes before the loop looks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []

    def put(self, call: Callable[[], None]) -> None:
        """A call to be made on the loop's thread, in its turn; from any thread. Nothing happens once the loop is closed."""
        with self._lock:
            is_first = not self._waiting
            self._waiting.append(call)
        if is_first:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        with self._lock:
            taken, self._waiting = self._waiting, []
        for call in taken:
            try:
                call()
            except Exception:  # the others' turn comes all the same
                _LOG.exception("a call on the loop failed")


class Peer:
    """A client, or a server that has connected. Equal to nothing but itself."""

    def __init__(self, line: Line, address: str, host: str) -> None:
        self._line = line
        self.address = address
        """`host:port` of the other end; an IPv6 host in brackets."""
        self.host = host
        """Its IP address."""
        self.client_id: str | None = None
        """The id that its heartbeats give; set by the broker."""
        self.language = LanguageCode.OTHER
        self.version = 0
        """The version in its last request."""
        self.attributes: dict[str, object] = {}
        """Other values that handlers keep for the peer."""
        self.is_open = True
        self.is_writable = True
        """Whether it takes what it is sent. While it does not, nothing is read from it."""

    def __repr__(self) -> str:
        return f"Peer({self.address!r}, client_id={self.client_id!r})"

    @property
    def is_full(self) -> bool:
        """Whether so many bytes wait for the peer to read that no more may be sent."""
        return self._line.unwritten.is_too_much

    def respond(self, request: RemotingCommand, response: RemotingCommand, *, was_suspended: bool = False) -> None:
        """Answers a request of it; a one-way request, or one of a peer that has gone, is not answered.

        `was_suspended`: a pull that has waited for messages, for figures. Java: RemotingCommand.isSuspended.
        """
        if not request.is_oneway and self.is_open:
            line, size = self._line, len(response.body)
            line.unwritten.change(size)

            def respond() -> None:
                line.unwritten.change(-size)
                line.respond(request, response, was_suspended=was_suspended)

            self._on_loop(respond)

    def request(self, command: RemotingCommand, timeout_ms: int) -> Future[RemotingCommand]:
        """Asks it something; the answer, whatever its code, TimeoutError, or an error of the remoting room.

        On the loop's thread the future must not be waited for: `asyncio.wrap_future` makes one that can be.
        """
        waiter: Future[RemotingCommand] = Future()
        self._on_loop(lambda: self._line.request(command, timeout_ms, waiter))
        return waiter

    def send_oneway(self, command: RemotingCommand) -> None:
        """Send a one-way request; lost silently if the peer has gone."""
        self._on_loop(lambda: self._line.send_oneway(command))

    def close(self, reason: str) -> None:
        """Hangs up."""
        self._on_loop(lambda: self._line.close(reason))

    def _on_loop(self, call: Callable[[], None]) -> None:
        line = self._line
        if threading.get_ident() == line.thread_id:
            call()
        else:
            line.outbox.put(call)


# How much of what is said waits to be written, of one connection and of all: no more answers are made for a peer that does not read.
#
# An answer counts from the moment at which it is made, in any thread, until the system has taken it.
# Departure: Java makes every answer, and keeps it for as long as the connection lasts.


class UnwrittenOfAll:
    """Unwritten bytes of all connections of a server. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.size_bytes = 0


class Unwritten:
    """Unwritten bytes of one connection. Thread-safe."""

    def __init__(self, of_all: UnwrittenOfAll) -> None:
        self._of_all = of_all
        self.size_bytes = 0

    def change(self, size_bytes: int) -> None:
        """Add to the unwritten bytes; a negative change subtracts."""
        if size_bytes:
            with self._of_all.lock:
                self.size_bytes += size_bytes
                self._of_all.size_bytes += size_bytes

    @property
    def is_too_much(self) -> bool:
        """Whether to refuse the peer's requests until it has read."""
        return self.size_bytes > OF_ONE_BYTES or (
            self.size_bytes > LITTLE_BYTES and self._of_all.size_bytes > OF_ALL_BYTES
        )


_LOOK_SECONDS = 0.01
_NAMED_MOST = 256
_CODES_MOST = 64
_OTHERS = -1
"""Stands for all codes behind the first ones."""
_MINUTE_SECONDS = 60
_GROUPS = ("consumerGroup", "producerGroup", "group", "groupName")
_GROUP_CHARACTERS = 127


class _Held:
    """An answer that waits; it goes on once."""

    def __init__(self, pending: Pending[Any], go_on: Callable[[], None]) -> None:
        self.pending: Pending[Any] | None = pending
        self.go_on: Callable[[], None] | None = go_on
        self.deadline: float | None = None

    def end(self) -> Callable[[], None]:
        """It goes on, by this call, and leads to nothing more.

        What it waited for keeps the call back, and so this: with the request behind it that would be a circle, and the request's body
        would stay until the garbage collector looks.
        """
        assert self.go_on is not None, "it goes on once"
        go_on, self.go_on, self.pending = self.go_on, None, None
        return go_on


class WaitingAnswers:
    """Pending answers that wait for a sync of the disk, or for replicas. Java: the futures of SendMessageProcessor.

    An answer that waits holds no thread, so a request that waits for long keeps no other from its answer. `hold` is for any thread; an
    answer goes on in the loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, outbox: Outbox) -> None:
        self._loop = loop
        self._outbox = outbox
        self._lock = threading.Lock()
        self._held: set[_Held] = set()
        self._is_looking = False

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._held)

    def hold(self, pending: Pending[Any], go_on: Callable[[], None]) -> bool:
        """Call `go_on` when it is settled, or its time is over; False = there is nothing to wait for, and the caller goes on."""
        held = _Held(pending, go_on)
        seconds = self._seconds_left(held)
        if seconds is None:
            held.end()
            return False
        with self._lock:
            # It may have gone on meanwhile, or wait for something else.
            if held.go_on is not None and held.deadline is None:
                held.deadline = self._loop.time() + seconds
                self._held.add(held)
        self._outbox.put(self._look_soon)
        return True

    def _seconds_left(self, held: _Held) -> float | None:
        assert held.pending is not None, "it has not gone on"
        try:
            return held.pending.when_settled(lambda: self._outbox.put(lambda: self._go_on(held)))
        except Exception:  # `go_on` takes the answer, and gets the error, too
            _LOG.debug("a request is ended now", exc_info=True)
            return None

    # On the loop.

    def _go_on(self, held: _Held) -> None:
        """Its wait or its time is over: it goes on, unless it now waits for something else."""
        if held.go_on is None:
            return
        seconds = self._seconds_left(held)
        with self._lock:
            if seconds is not None:
                held.deadline = self._loop.time() + seconds
                self._held.add(held)
                return
            self._held.discard(held)
        held.end()()

    def _look_soon(self) -> None:
        if self._held and not self._is_looking:
            self._is_looking = True
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._is_looking = False
        now = self._loop.time()
        with self._lock:
            late = [held for held in self._held if held.deadline is not None and held.deadline <= now]
        for held in late:
            self._outbox.put(lambda held=held: self._go_on(held))  # type: ignore[misc]
        self._look_soon()


class _Whose(NamedTuple):
    """The sender of a request that is not supported."""

    code: int
    address: str
    group: str | None

    def __str__(self) -> str:
        group = "" if self.group is None else f", group {self.group!r}"
        return f"{request_text(self.code)} of client {self.address}{group}"


class Unsupported:
    """Requests that a server does not support: how many there were, and whose they are. For the loop's thread.

    The first of a code, a client and a group is named in the log at once, those after it once a minute, with their number. So a client
    that goes without something for good is seen, and one that asks each second fills no disk.

    Departure: Java says nothing of them. A consumer that gets nothing because of one is not seen at its broker.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._counts: dict[int, int] = {}
        self._again: dict[_Whose, int] = {}
        """How many have come of those that the log has named since the last minute."""
        self._unnamed = 0

    @property
    def counts(self) -> Mapping[int, int]:
        """How many there were since the start, by code; −1 counts those of all other codes. From any thread."""
        return self._counts.copy()

    def note(self, request: RemotingCommand, address: str, reason: str | None) -> None:
        """One was answered so, or would have been, were it not one-way."""
        code = request.code if request.code in self._counts or len(self._counts) < _CODES_MOST else _OTHERS
        self._counts[code] = self._counts.get(code, 0) + 1
        whose = _Whose(request.code, address, _group(request))
        if whose in self._again:
            self._again[whose] += 1
        elif len(self._again) < _NAMED_MOST:
            self._again[whose] = 0
            by = f"{request.language.name} client of version {request.version}"
            _LOG.warning("%s, a %s, is not supported: %.200s", whose, by, (reason or "").strip())
        else:
            self._unnamed += 1
        if self._timer is None:
            self._timer = self._loop.call_later(_MINUTE_SECONDS, self.tell)

    def tell(self) -> None:
        """A minute is over: how many more have come."""
        again = {whose: count for whose, count in self._again.items() if count}
        for whose, count in again.items():
            _LOG.warning("%s is not supported: %d more within a minute", whose, count)
        if self._unnamed:
            _LOG.warning("requests of others are not supported: %d within a minute", self._unnamed)
        self._unnamed = 0
        self._again = dict.fromkeys(again, 0)
        self._timer = self._loop.call_later(_MINUTE_SECONDS, self.tell) if again else None

    def close(self) -> None:
        """Log no more."""
        if self._timer is not None:
            self._timer.cancel()


def _group(request: RemotingCommand) -> str | None:
    fields = request.ext_fields or {}
    found = next((fields[name] for name in _GROUPS if fields.get(name)), None)
    return None if found is None else found[:_GROUP_CHARACTERS]
