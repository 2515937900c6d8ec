"""One connection, as the event loop sees it: bytes in, requests to their pools, answers out.

Nothing is read while the peer does not take what it is sent, or while too much of what it has sent waits to be answered. What it has
sent before is refused, not answered, while too much waits to be written (`unwritten.py`). What is said within one turn of the loop
leaves in one write.

Java: NettyRemotingAbstract.processRequestCommand, NettyServerHandler, NettyConnectManageHandler.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from spark_mq.remoting import (
    Answer,
    Body,
    Broken,
    Connection,
    ConnectionClosedError,
    FrameIllegalError,
    ProtocolVersion,
    RemotingCommand,
    Request,
    make_response,
)
from spark_mq.remoting_server.peer import Peer
from spark_mq.remoting_server.pools import RequestPool
from spark_mq.remoting_server.processors import Later, Processor, Processors
from spark_mq.remoting_server.shared import Shared
from spark_mq.remoting_server.unwritten import Unwritten
from storage.rules.response_codes import REJECTED, RequestRefusedError, ResponseCode

OVERLOADED = "[OVERLOAD]system busy, start flow control for a while"
GOING_AWAY = "please go away"
_UNANSWERED_BYTES_MOST = 1 << 25
_WRITE_BYTES = 1 << 16
_PROGRESS_BYTES = 4_096
_LAST_SECONDS = 1
_LOG = logging.getLogger(__name__)


class Channel(asyncio.Protocol):
    """Everything runs on the loop's thread, but for `peer`."""

    def __init__(self, shared: Shared, processors: Processors) -> None:
        self._loop = asyncio.get_running_loop()
        self.outbox = shared.outbox
        self.thread_id = threading.get_ident()
        self.unwritten = Unwritten(shared.unwritten)
        self._counted_bytes = 0  # of what is unsent, or in the transport
        self.peer = Peer(self, "", "")
        self._shared = shared
        self._processors = processors
        self._connection: Connection[Future[RemotingCommand]] = Connection(shared.frame_limits)
        self._transport: asyncio.Transport | None = None
        self._unsent: list[Body] = []
        self._unanswered_bytes = 0  # of requests that wait or run
        self._unfinished_bytes = 0  # of a frame that has begun
        self._is_paused = False
        self._used_at = self._loop.time()
        self._frame_began_at: float | None = None
        self._received_bytes = 0  # of that frame
        self._buffered_bytes = 0  # when they were looked at last

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        settings = self._shared.settings
        transport.set_write_buffer_limits(settings.high_water_bytes or _WRITE_BYTES, settings.low_water_bytes or None)
        name = transport.get_extra_info("peername") or ("", 0)
        host, port = name[0], name[1]
        self.peer.host = host
        self.peer.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._shared.channels.add(self)

    def data_received(self, data: bytes) -> None:
        self._used_at = self._loop.time()
        for event in self._connection.feed(data):
            if isinstance(event, Request):
                self._receive(event.command)
            elif isinstance(event, Answer):
                if not event.waiter.done():
                    event.waiter.set_result(event.command)
            elif isinstance(event, Broken):
                self.close(event.error.describe())
                return
        self._count_unfinished(len(data))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish("the peer hung up" if exc is None else f"the connection broke: {exc}")

    def pause_writing(self) -> None:
        self.peer.is_writable = False
        self._read_or_pause()

    def resume_writing(self) -> None:
        self.peer.is_writable = True
        self._count_unwritten()
        self._read_or_pause()

    # Requests.

    def _receive(self, command: RemotingCommand) -> None:
        peer = self.peer
        peer.language, peer.version = command.language, command.version
        processor = self._processors.find(command.code)
        if processor is None:
            remark = f" request type {command.code} not supported"
            self.respond(command, make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
        elif self._shared.is_going_away and command.version > ProtocolVersion.V5_3_1:
            self.respond(command, make_response(command, ResponseCode.GO_AWAY, GOING_AWAY))
        elif processor.rejects():
            self._refuse(command, REJECTED)
        else:
            self._submit(command, processor)

    def _submit(self, command: RemotingCommand, processor: Processor) -> None:
        size = len(command.body) + 256
        is_taken = self._shared.take_bytes(size) and processor.pool.submit(
            lambda: self._answer(command, processor, size), lambda remark: self._refuse_late(command, remark, size)
        )
        if is_taken:
            self._unanswered_bytes += size
            self._read_or_pause()
        else:
            self._shared.give_bytes(size)
            self._refuse(command, OVERLOADED)

    def _answer(self, command: RemotingCommand, processor: Processor, size: int) -> None:
        """On the thread of the pool."""
        peer = self.peer

        def answer() -> RemotingCommand | Later | None:
            if peer.is_full and not command.is_oneway:
                return make_response(command, ResponseCode.SYSTEM_BUSY, OVERLOADED)
            return processor.answer(command, peer) if peer.is_open else None

        self._settle(command, processor.pool, size, answer)

    def _settle(
        self,
        command: RemotingCommand,
        pool: RequestPool,
        size: int,
        answer: Callable[[], RemotingCommand | Later | None],
    ) -> None:
        response: RemotingCommand | Later | None
        try:
            response = answer()
        except RequestRefusedError as refusal:
            response = make_response(command, refusal.code, refusal.remark)
        except Exception as error:
            _LOG.exception("request %d of %s failed", command.code, self.peer.address)
            response = make_response(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if isinstance(response, Later):
            later = response
            pool.afterwards(lambda: self._settle_later(command, pool, size, later))
        else:
            self._done(command, response, size)

    def _settle_later(self, command: RemotingCommand, pool: RequestPool, size: int, later: Later) -> None:
        def settle() -> None:
            self._settle(command, pool, size, later.answer)

        if later.settling is None or not self._shared.unsettled.hold(later.settling, settle):
            settle()

    def _refuse_late(self, command: RemotingCommand, remark: str, size: int) -> None:
        """On the thread that has found it too old."""
        self._done(command, make_response(command, ResponseCode.SYSTEM_BUSY, remark), size)

    def _refuse(self, command: RemotingCommand, remark: str) -> None:
        self.respond(command, make_response(command, ResponseCode.SYSTEM_BUSY, remark))

    def _done(self, command: RemotingCommand, response: RemotingCommand | None, size: int) -> None:
        if threading.get_ident() == self.thread_id:
            self._end(command, response, size)
            return
        answer_bytes = 0 if response is None else len(response.body)

        def end() -> None:
            self.unwritten.change(-answer_bytes)
            self._end(command, response, size)

        self.unwritten.change(answer_bytes)
        self.outbox.put(end)

    def _end(self, command: RemotingCommand, response: RemotingCommand | None, size: int) -> None:
        self._shared.give_bytes(size)
        self._unanswered_bytes -= size
        if response is not None:
            self.respond(command, response)
        self._read_or_pause()

    # What is said to the peer.

    def respond(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """An answer; nothing for a one-way request. One that fits no frame becomes SYSTEM_ERROR."""
        if request.is_oneway or not self.peer.is_open:
            return
        if response.opaque != request.opaque:
            response = response._replace(opaque=request.opaque)
        try:
            pieces = self._connection.send_response(response)
        except FrameIllegalError as error:
            _LOG.error("the answer to request %d of %s is dropped: %s", request.code, self.peer.address, error)
            refusal = make_response(request, ResponseCode.SYSTEM_ERROR, error.describe()[:1_024])
            pieces = self._connection.send_response(refusal)
        self._write(pieces)

    def request(self, command: RemotingCommand, timeout_ms: int, waiter: Future[RemotingCommand]) -> None:
        """Asks the peer; the waiter gets the answer, TimeoutError, ConnectionClosedError or FrameIllegalError."""
        try:
            opaque, pieces = self._connection.send_request(command, waiter)
        except (ConnectionClosedError, FrameIllegalError) as error:
            waiter.set_exception(error)
            return
        timer = self._loop.call_later(timeout_ms / 1_000, self._time_out, opaque, timeout_ms)
        waiter.add_done_callback(lambda _: timer.cancel())
        self._write(pieces)

    def _time_out(self, opaque: int, timeout_ms: int) -> None:
        waiter = self._connection.forget(opaque)
        if waiter is not None and not waiter.done():
            waiter.set_exception(TimeoutError(f"{self.peer.address} did not answer within {timeout_ms} ms"))

    def send_oneway(self, command: RemotingCommand) -> None:
        """Tells the peer something, if it is still there."""
        try:
            self._write(self._connection.send_oneway(command).pieces)
        except ConnectionClosedError:
            pass
        except FrameIllegalError as error:
            _LOG.error("%s is not told: %s", self.peer.address, error)

    def _write(self, pieces: tuple[Body, ...]) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += pieces
        size = sum(map(len, pieces))
        self._counted_bytes += size
        self.unwritten.change(size)

    def _count_unwritten(self) -> None:
        """What the system has taken does not count any more."""
        if self._transport is None or not self.peer.is_open:
            return
        size = self._transport.get_write_buffer_size() + sum(map(len, self._unsent))
        self.unwritten.change(size - self._counted_bytes)
        self._counted_bytes = size

    def _flush(self) -> None:
        if self._unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(self._unsent)
            self._used_at = self._loop.time()
        self._unsent = []
        self._count_unwritten()

    # Reading, and when it ends.

    def _read_or_pause(self) -> None:
        must_pause = not self.peer.is_writable or self._unanswered_bytes > _UNANSWERED_BYTES_MOST
        if must_pause == self._is_paused or self._transport is None or self._transport.is_closing():
            return
        self._is_paused = must_pause
        if must_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _count_unfinished(self, received: int) -> None:
        pending = self._connection.pending_bytes
        if not self._shared.count_unfinished(pending - self._unfinished_bytes):
            self._unfinished_bytes = pending
            self.close("too much of unfinished frames has come from all connections")
            return
        self._unfinished_bytes = pending
        if not pending:
            self._frame_began_at = None
        elif self._frame_began_at is None or pending < received:  # another frame has begun
            self._frame_began_at, self._received_bytes = self._loop.time(), 0
        self._received_bytes += received

    def close_if_idle(self, now: float, idle_seconds: float) -> None:
        """Hangs up on a peer that has said and taken nothing for so long, or has brought next to nothing of a frame."""
        self._count_unwritten()
        transport = self._transport
        buffered = 0 if transport is None else transport.get_write_buffer_size()
        if buffered < self._buffered_bytes:  # the peer takes what it is sent
            self._used_at = now
        self._buffered_bytes = buffered
        if now - self._used_at > idle_seconds:
            self.close("the connection was idle")
        elif self._frame_began_at is not None and now - self._frame_began_at > idle_seconds:
            if self._received_bytes < _PROGRESS_BYTES:
                self.close("a frame came too slowly")
            self._frame_began_at, self._received_bytes = now, 0

    def close(self, reason: str) -> None:
        """Hangs up: what was said before leaves, if the peer takes it."""
        self._flush()
        self._finish(reason)
        if self._transport is not None:
            self._transport.close()
            self._loop.call_later(_LAST_SECONDS, self._transport.abort)

    def _finish(self, reason: str) -> None:
        if not self.peer.is_open:
            return
        self.peer.is_open = False
        _LOG.debug("connection of %s ends: %s", self.peer.address, reason)
        for waiter in self._connection.close(reason):
            if not waiter.done():
                waiter.set_exception(ConnectionClosedError(reason))
        self._shared.count_unfinished(-self._unfinished_bytes)
        self._unfinished_bytes = 0
        self.unwritten.change(-self._counted_bytes)
        self._counted_bytes = 0
        self._shared.channels.discard(self)
        self._shared.on_close(self.peer)
