"""One connection to one server: the socket around the codec's `Connection`, on the event loop.

Frames that are sent in one turn of the loop leave in one write. Each request has a deadline; one timer for each connection
watches the nearest. Answers that come after their deadline are dropped. When the connection ends, all waiting requests
fail at once with the reason.

Java: NettyRemotingAbstract, NettyConnectManageHandler. Departure: a time-out closes the connection only if nothing
at all came over it since a request that was sent `silent_ms` ago or earlier and has timed out (Java closes it after each
synchronous time-out, and fails what else waits).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from spark_mq.client.blocking_connection import TLS_RECORDS, answered_with_tls
from spark_mq.client.errors import (
    BrokerUnreachableError,
    ClientError,
    FrameRefusedError,
    RequestIllegalError,
    RequestTimeoutError,
    request_text,
)
from spark_mq.remoting import (
    Answer,
    Body,
    Broken,
    Connection,
    ConnectionClosedError,
    FrameIllegalError,
    RemotingCommand,
    Request,
)
from storage.rules.response_codes import ResponseCode

WRITE_BUFFER_BYTES = 1 << 20
"""Above this many unsent bytes, callers wait until the socket has taken half of them."""


class Promise(Protocol):
    """The receiver of a result or an error, on the loop's thread: a future, or a lighter object."""

    def done(self) -> bool:
        """Whether it has one already, or its caller has gone."""

    def set_result(self, answer: Any, /) -> None:
        """The result: for a request its answer, whatever the code."""

    def set_exception(self, error: Exception, /) -> None:
        """Why there is none."""


class Waiter(NamedTuple):
    """A request in flight: what gets its answer, until when (the loop's clock), and with which time-out."""

    future: Promise
    request: RemotingCommand
    deadline: float
    timeout_ms: int
    was_sent_away: bool = False
    """Whether a server that is going away has refused it once already."""

    def fail(self, error: Exception) -> None:
        """Give the error to the caller, unless it has gone."""
        if not self.future.done():
            self.future.set_exception(error)


class Owner(Protocol):
    """A transport's notices to its client."""

    def handle_request(self, transport: Transport, command: RemotingCommand) -> None:
        """The server asks for something."""

    def handle_go_away(self, transport: Transport, waiter: Waiter) -> None:
        """The server refused a request unread because it shuts down."""

    def handle_lost(self, transport: Transport) -> None:
        """The connection has ended."""


class Transport(asyncio.Protocol):
    """Requests and answers of one connection. Everything runs on the loop's thread.

    `silent_ms`: how long nothing comes before a time-out closes the connection, also over several time-outs.
    `explain` gives a better error if the server closed the connection without sending a byte.
    """

    def __init__(
        self,
        address: str,
        owner: Owner,
        *,
        silent_ms: int,
        max_idle_ms: int,
        explain: Callable[[], Awaitable[ClientError | None]] | None = None,
    ) -> None:
        self.address = address
        self._owner = owner
        self._silent_seconds = silent_ms / 1000
        self._idle_seconds = max_idle_ms / 1000
        self._explain = explain
        self._loop = asyncio.get_running_loop()
        self._connection: Connection[Waiter] = Connection()
        self._socket: asyncio.Transport | None = None
        self._deadlines: dict[int, tuple[float, float]] = {}  # and when the request was sent
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._idle_timer: asyncio.TimerHandle | None = None
        self._used_at = self._heard_at = self._loop.time()
        self._has_heard = False
        self._mute_since: float | None = None  # when the first was sent that has timed out since anything came
        self._unsent: list[Body] = []
        self._unsent_bytes = 0
        self._writable: asyncio.Future[None] | None = None  # while the socket takes no more
        self._end: ClientError | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._is_leaving = False
        self._explaining: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._end is None and not self._is_leaving

    @property
    def is_writable(self) -> bool:
        """Whether the socket takes more; else wait for `writable`."""
        return self._writable is None

    @property
    def is_mute(self) -> bool:
        """Whether a request has timed out, and nothing at all has come since it was sent."""
        return self._mute_since is not None

    @property
    def waiting_count(self) -> int:
        """Number of requests without an answer yet."""
        return self._connection.waiting_count

    async def writable(self) -> None:
        """Wait until the socket takes more, or the connection has ended."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def request(self, request: RemotingCommand, waiter: Waiter) -> None:
        """Send `request`; the waiter's future gets the answer, or an error of the tree. Raises RequestIllegalError."""
        if self._end is not None:
            waiter.fail(self._end)
            return
        try:
            opaque, pieces = self._connection.send_request(request, waiter)
        except FrameIllegalError as error:
            raise RequestIllegalError(request_text(request.code), error.describe()) from None
        except ConnectionClosedError as error:
            waiter.fail(BrokerUnreachableError(self.address, error.reason))
            return
        deadline = waiter.deadline
        self._deadlines[opaque] = deadline, self._loop.time()
        if deadline < self._timer_at:
            self._watch(deadline)
        self._write(pieces)

    def send_oneway(self, request: RemotingCommand) -> None:
        """Send a request that is never answered. Raises RequestIllegalError, BrokerUnreachableError."""
        try:
            self._write(self._connection.send_oneway(request).pieces)
        except FrameIllegalError as error:
            raise RequestIllegalError(request_text(request.code), error.describe()) from None
        except ConnectionClosedError as error:
            raise BrokerUnreachableError(self.address, error.reason) from None

    def send_response(self, response: RemotingCommand) -> None:
        """Answer a request of the server; nothing happens if the connection has ended meanwhile."""
        if self._end is None:
            self._write(self._connection.send_response(response))

    def leave(self) -> None:
        """Take no new requests, and close when those that wait have their answers."""
        self._is_leaving = True
        self._close_if_left()

    def close(self, error: ClientError) -> None:
        """End the connection now; all who wait fail with the error."""
        self._finish(error)
        if self._socket is not None:
            self._socket.abort()

    async def close_gently(self, error: ClientError, timeout_ms: int) -> None:
        """As `close`, after what was sent has left: at most for the given time."""
        self._flush()
        self._finish(error)
        if self._socket is not None:
            self._socket.close()
            try:
                await asyncio.wait_for(asyncio.shield(self._gone), timeout_ms / 1000)
            except TimeoutError:
                self._socket.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._idle_timer = self._loop.call_later(self._idle_seconds, self._close_if_idle)

    def data_received(self, data: bytes) -> None:
        self._used_at = self._heard_at = self._loop.time()
        self._mute_since = None
        if not self._has_heard:
            self._has_heard = True
            if data.startswith(TLS_RECORDS):
                self.close(answered_with_tls(self.address))
                return
        deadlines = self._deadlines
        for event in self._connection.feed(data):
            if isinstance(event, Answer):
                command, waiter = event
                deadlines.pop(command.opaque, None)
                if command.code == ResponseCode.GO_AWAY:
                    self._owner.handle_go_away(self, waiter)
                elif not waiter.future.done():
                    waiter.future.set_result(command)
            elif isinstance(event, Request):
                self._owner.handle_request(self, event.command)
            elif isinstance(event, Broken):
                self.close(FrameRefusedError(self.address, event.error.describe()))
        if self._is_leaving:
            self._close_if_left()

    def eof_received(self) -> bool:
        return False  # close: a server that sends no more answers no more

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the server closed the connection" if exc is None else f"the connection broke: {exc}"
        self._finish(BrokerUnreachableError(self.address, reason))
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    # Writing.

    def _write(self, pieces: tuple[Body, ...]) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += pieces
        self._unsent_bytes += sum(map(len, pieces))
        if self._unsent_bytes > WRITE_BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._unsent and self._socket is not None and not self._socket.is_closing():
            self._socket.writelines(self._unsent)
            self._used_at = self._loop.time()
        self._unsent = []
        self._unsent_bytes = 0

    # Time.

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = self._loop.time()
        expired = [opaque for opaque, (deadline, _) in self._deadlines.items() if deadline <= now]
        waiters = []
        for opaque in expired:
            _, sent_at = self._deadlines.pop(opaque)
            waiter = self._connection.forget(opaque)
            if waiter is None:
                continue
            waiters.append(waiter)
            if self._heard_at <= sent_at:
                self._mute_since = min(sent_at, self._mute_since or sent_at)
        if self._mute_since is not None and now - self._mute_since >= self._silent_seconds:
            silence = f"nothing came over the connection for {int((now - self._heard_at) * 1000)} ms"
            self.close(BrokerUnreachableError(self.address, silence))
        elif self._deadlines:
            self._watch(min(deadline for deadline, _ in self._deadlines.values()))
        for waiter in waiters:  # now: what is tried again needs a connection that may answer
            waiter.fail(timed_out(self.address, waiter))
        if self._is_leaving:
            self._close_if_left()

    def _close_if_idle(self) -> None:
        left = self._used_at + self._idle_seconds - self._loop.time()
        if left > 0 or self._deadlines:
            self._idle_timer = self._loop.call_later(max(left, 0.01), self._close_if_idle)
        else:
            self.close(BrokerUnreachableError(self.address, "the connection was idle and is closed"))

    def _close_if_left(self) -> None:
        if not self._connection.waiting_count:
            self.close(BrokerUnreachableError(self.address, "the server is going away"))

    # The end.

    def _finish(self, error: ClientError) -> None:
        if self._end is not None:
            return
        self._end = error
        for timer in (self._timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._deadlines.clear()
        self.resume_writing()
        waiters = self._connection.close(error.describe())
        self._owner.handle_lost(self)
        was_mute = type(error) is BrokerUnreachableError and not self._has_heard
        if waiters and was_mute and self._explain is not None:
            self._explaining = self._loop.create_task(self._fail_explained(waiters, error, self._explain))
            return
        for waiter in waiters:
            waiter.fail(error)

    async def _fail_explained(
        self, waiters: list[Waiter], error: ClientError, explain: Callable[[], Awaitable[ClientError | None]]
    ) -> None:
        left = min(waiter.deadline for waiter in waiters) - self._loop.time()
        try:
            found = await asyncio.wait_for(explain(), max(left, 0))
        except (TimeoutError, OSError):
            found = None
        for waiter in waiters:
            waiter.fail(found or error)


def timed_out(address: str, waiter: Waiter) -> RequestTimeoutError:
    """The error of a waiter whose deadline has passed."""
    return RequestTimeoutError(request_text(waiter.request.code), waiter.timeout_ms, address)
