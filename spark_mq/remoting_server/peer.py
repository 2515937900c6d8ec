"""One connection, as handlers see it: the peer, how to send to it, and how many bytes wait to be written.

For any thread. Java: Channel and its attributes (RemotingHelper, AttributeKeys).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple, Protocol

from spark_mq.remoting import RemotingCommand, make_response
from spark_mq.remoting.codes import LanguageCode
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
