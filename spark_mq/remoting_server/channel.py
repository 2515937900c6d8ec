"""One connection, as the event loop sees it: bytes in, requests to their pools, answers out.

    socket ─▶ one piece ─▶ a few requests a turn (`Turns`) ─▶ pools ─▶ answers, in one write a turn

**A share.** A piece is at most 256 KiB. A few of its requests start at a time, so that no request waits for everything that another
connection has sent; the next piece is read when all have started. No request starts while the peer does not read its answers, or while
1,024 requests or 32 MiB of it wait or run: then its data waits in the socket, and the sender with it. While too many bytes wait to be
written (`peer.py`), a request that has started is refused, not answered. Departure: Java reads everything that comes.

**Every request that was read is run**, whatever happens to the connection and the answer: a client may send and hang up. After the
connection's end the rest of its last piece is handled as before. If the connection breaks during an answer, the bytes that the system
has received are still read (not with TLS). This is bounded by:

- memory: the rests of pieces of all ended connections together may hold `serverMaxUnfinishedBytes`; more is dropped, with a line in
  the log. Requests that wait or run count into `serverMaxRequestBytes` like any others.
- refusals: a full queue, a rejecting processor, fast failure and GO_AWAY refuse only requests whose peer gets the refusal. A request
  that is one-way, or whose peer has gone, is run: if a queue or memory is full, it waits in its piece. The handler gets both kinds as
  one-way, and their puts wait for the log. Departure: Java drops them.
- the server's end (`RemotingServer.close`), which reads no more and waits for the requests that were read.

`on_close` is called at the connection's end, and again when the last of these requests is done, which may have noted its peer again.

Java: NettyRemotingAbstract.processRequestCommand, NettyServerHandler, NettyConnectManageHandler.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import NoReturn

from spark_mq.remoting import (
    Answer,
    Body,
    Broken,
    Connection,
    ConnectionClosedError,
    FrameIllegalError,
    FrameLimits,
    ProtocolVersion,
    RemotingCommand,
    Request,
    make_response,
)
from spark_mq.remoting.command import ONEWAY_FLAG
from spark_mq.remoting.frames import RequestRun, RunAnswers, RunReader, encode_answers
from spark_mq.remoting_server.peer import (
    LITTLE_BYTES,
    Outbox,
    Peer,
    Unsupported,
    Unwritten,
    UnwrittenOfAll,
    WaitingAnswers,
    not_supported,
)
from spark_mq.remoting_server.pools import PendingAnswer, PendingAnswers, Processor, Processors, RequestPool
from spark_mq.remoting_server.settings import ServerSettings
from storage.names import address_text, peer_host
from storage.pending import Pending
from storage.rules.response_codes import REJECTED, RequestRefusedError, ResponseCode

OVERLOADED = "[OVERLOAD]system busy, start flow control for a while"
GOING_AWAY = "please go away"
_UNANSWERED_MOST = 1_024
_UNANSWERED_BYTES_MOST = 1 << 25
_SHARE = 16
"""Requests of a connection's turn."""
_LOOK_SECONDS = 0.01
_GATHER_SECONDS = 0.02
_WRITE_BYTES = 1 << 16
_PROGRESS_BYTES = 4_096
_LAST_SECONDS = 1
_LOG = logging.getLogger(__name__)
_TURN_SECONDS = 0.005
_PIECE_BYTES = 256 << 10
_SMALL_PIECE_BYTES = 16 << 10
_PIECES_MOST = 64
_BURST_BYTES = 16 << 20


Answered = Callable[[int, int, str, float, int, bool], None]
"""Notes requests that were answered: code, the answer's code, what became of it, seconds since the request came, number of requests,
and whether the request was suspended (`Peer.respond`). Called on the loop's thread; for runs, on a pool's thread.
"""
_ONEWAY, _SUCCESS, _NOT_WRITTEN = "oneway", "success", "write_channel_failed"
"""Java: RemotingMetricsConstant."""
_COME_MOST = 4 * _UNANSWERED_MOST


class Channel(asyncio.BufferedProtocol):
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
        runs = RunReader(processors.run_fields) if processors.run_fields else None
        self._connection: Connection[Future[RemotingCommand]] = Connection(shared.frame_limits, runs)
        self._transport: asyncio.Transport | None = None
        self._unsent: list[Body] = []
        self._unsent_bytes = 0
        self._read: deque[RemotingCommand | RequestRun] = deque()  # requests that wait here for room elsewhere
        self._left_bytes = 0  # of a piece that its connection has left behind
        self._is_outlived = False  # by its requests
        self._looking: asyncio.TimerHandle | None = None  # for room
        self._in_pool = 0  # of requests that are better taken together
        self._gathers_until = 0.0
        self._gathering: asyncio.TimerHandle | None = None
        self._buffer = memoryview(b"")
        self._unanswered = 0  # requests that wait or run
        self._unanswered_bytes = 0
        self._unfinished_bytes = 0  # of a frame that has started
        self._is_paused = False
        self._used_at = self._loop.time()
        self._frame_began_at: float | None = None
        self._received_bytes = 0  # of that frame
        self._buffered_bytes = 0  # when they were looked at last
        self._came_at: dict[int, float] = {}  # by number; only if the server notes answers

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        settings = self._shared.settings
        transport.set_write_buffer_limits(settings.high_water_bytes or _WRITE_BYTES, settings.low_water_bytes or None)
        name = transport.get_extra_info("peername") or ("", 0)
        self.peer.host = peer_host(name[0])
        self.peer.address = address_text(self.peer.host, name[1])
        self._shared.channels.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._buffer = self._shared.piece(sizehint)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._used_at = self._loop.time()
        self._take_some(self._buffer[:nbytes])
        if self.peer.is_open:
            self._count_unfinished(nbytes)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._finish("the peer hung up")
        else:
            self._finish(f"the connection broke: {exc}", self._last_pieces())

    def pause_writing(self) -> None:
        self.peer.is_writable = False
        self.go_on()

    def resume_writing(self) -> None:
        self.peer.is_writable = True
        self._count_unwritten()
        self.go_on()

    # What was read, a few requests a turn.

    @property
    def has_more(self) -> bool:
        """Whether there are requests that were read and have not started."""
        return bool(self._read) or self._connection.unread_bytes > 0

    @property
    def is_done(self) -> bool:
        """Whether all requests that were read are done, answered or not."""
        return not self._unanswered and not self.has_more

    @property
    def _may_begin(self) -> bool:
        peer, is_ending = self.peer, self._shared.is_ending
        is_heard_out = not peer.is_open or is_ending or (peer.is_writable and self._unsent_bytes <= LITTLE_BYTES)
        return is_heard_out and self._unanswered < _UNANSWERED_MOST and self._unanswered_bytes <= _UNANSWERED_BYTES_MOST

    def take_turn(self) -> None:
        """Begins a few of the requests that were read."""
        if not self._may_begin:
            self.go_on()
            return
        self._take_some(b"")
        if self.peer.is_open:  # the beginning of a frame may stand behind them
            self._count_unfinished(max(0, self._connection.pending_bytes - self._unfinished_bytes))

    def _take_some(self, data: bytes | memoryview) -> None:
        broken: Broken | None = None
        if not self._read or data:
            for event in self._connection.feed(data, _SHARE):
                if isinstance(event, Request):
                    self._note_arrival(event.command.opaque)
                    self._read.append(event.command)
                elif isinstance(event, RequestRun):
                    self._note_arrival(event.opaques[0])
                    self._read.append(event)
                elif isinstance(event, Answer):
                    if not event.waiter.done():
                        event.waiter.set_result(event.command)
                elif isinstance(event, Broken):
                    broken = event
        while self._read and self._may_begin:
            found = self._read.popleft()  # one that fails is not looked at again
            if isinstance(found, RequestRun):
                self._receive_run(found)
            elif not self._receive(found):
                self._read.appendleft(found)
                self._looking = self._looking or self._loop.call_later(_LOOK_SECONDS, self._look_again)
                break
        if broken is not None:
            self.close(broken.error.describe())
        self.go_on()

    def _look_again(self) -> None:
        """Whether there is room for what waits here."""
        self._looking = None
        self.go_on()

    def go_on(self) -> None:
        """What is left has its turn as soon as it may; the next piece is read when nothing is."""
        if not self.has_more:
            self._shared.behind.discard(self)
        else:
            self._shared.behind.add(self)
            if self._looking is None and self._may_begin:
                self._shared.turns.add(self)
        self._read_or_pause()
        if self._is_outlived and self.is_done:
            self._is_outlived = False
            self._give_left_bytes()
            self._shared.on_close(self.peer)

    def _last_pieces(self) -> bytes:
        """The connection broke, perhaps because the peer had gone before an answer: bytes that came before are still in the system."""
        transport, found = self._transport, bytearray()
        if self.peer.is_open and transport is not None and transport.get_extra_info("sslcontext") is None:
            number = transport.get_extra_info("socket").fileno()
            with suppress(OSError):  # nothing more has come
                while len(found) <= self._shared.settings.unfinished_bytes_most:
                    if not (piece := os.read(number, len(self._shared.piece()))):
                        break
                    found += piece
        return bytes(found)

    # Requests.

    def _is_heard(self, command: RemotingCommand) -> bool:
        """Whether the peer gets an answer."""
        return not command.is_oneway and self.peer.is_open

    def _receive(self, command: RemotingCommand) -> bool:
        """Whether it has started, or was refused; False: there is no room, and the peer would not get a refusal."""
        peer = self.peer
        peer.language, peer.version = command.language, command.version
        processor = self._processors.find(command.code)
        if processor is None:
            self.respond(command, not_supported(command))
            return True
        is_heard = self._is_heard(command)
        if is_heard and self._shared.is_going_away and command.version > ProtocolVersion.V5_3_1:
            self.respond(command, make_response(command, ResponseCode.GO_AWAY, GOING_AWAY))
        elif is_heard and processor.rejects():
            self._refuse(command, REJECTED)
        elif not self._submit(command, processor):
            if not is_heard and not processor.pool.is_closed:
                return False
            self._refuse(command, OVERLOADED)
        return True

    def _receive_run(self, run: RequestRun) -> None:
        """All of it begins, or is refused as too much; where it could be anything else, each of it is received by itself."""
        peer, processor = self.peer, self._processors.find(run.like.code)
        is_plain = processor is not None and processor.answer_run is not None and not processor.rejects()
        # A larger run would never be taken.
        is_plain = is_plain and run.size_bytes <= self._shared.settings.requests_bytes_most
        if processor is None or not is_plain or not peer.is_open or self._shared.is_going_away:
            self._note_singly(run)
            self._read.extendleft(reversed(run.commands()))
            return
        peer.language, peer.version = run.like.language, run.like.version
        if not self._submit(run, processor):
            refused = RunAnswers(make_response(run.like, ResponseCode.SYSTEM_BUSY, OVERLOADED), {})
            self._note_run(run, refused)
            self._write((encode_answers(refused, run.opaques),))

    def _submit(self, request: RemotingCommand | RequestRun, processor: Processor) -> bool:
        size, count = request.size_bytes, _count(request)
        is_heard = isinstance(request, RequestRun) or self._is_heard(request)

        pool = processor.pool
        gathers = pool.settings.together > 1

        def answer() -> None:
            if isinstance(request, RequestRun):
                self._answer_run(request, processor, size)
            else:
                self._answer(request, processor, size)
            if gathers:
                pool.afterwards(self._has_left_pool)

        def refuse(remark: str) -> bool:
            is_refused = self._refuse_late(request, remark, size)
            if is_refused and gathers:
                self._has_left_pool()
            return is_refused

        is_taken = self._shared.has_room(size, is_heard=is_heard) and pool.submit(answer, refuse, count)
        if is_taken:
            if gathers:
                self._begin_gathering()
            self._shared.begin(size, count)
            self._unanswered += count
            self._unanswered_bytes += size
        return is_taken

    def _answer_run(self, run: RequestRun, processor: Processor, size: int) -> None:
        """On the thread of the pool."""
        peer = self.peer
        pending: PendingAnswers | None = None
        commands: list[RemotingCommand] = []
        try:
            if processor.answer_run is not None and peer.is_open and not peer.is_full:
                pending = processor.answer_run(run, peer)
            if pending is None:
                commands = run.commands()
        except Exception as error:
            pending = Pending(partial(_fail, error))
        if pending is not None:
            processor.pool.afterwards(partial(self._settle_later, run, processor.pool, size, pending))
            return
        self._note_singly(run)
        share = size // len(run.opaques)
        for number, command in enumerate(commands):
            self._answer(command, processor, share if number else size - share * (len(run.opaques) - 1))

    def _answer(self, command: RemotingCommand, processor: Processor, size: int) -> None:
        """On the thread of the pool."""
        peer = self.peer

        def answer() -> RemotingCommand | PendingAnswer | None:
            if not self._is_heard(command):  # who answers asks only whether it is one-way
                return processor.answer(command._replace(flag=command.flag | ONEWAY_FLAG), peer)
            if peer.is_full:
                return make_response(command, ResponseCode.SYSTEM_BUSY, OVERLOADED)
            return processor.answer(command, peer)

        self._settle(command, processor.pool, size, answer)

    def _settle(
        self,
        request: RemotingCommand | RequestRun,
        pool: RequestPool,
        size: int,
        answer: Callable[[], RemotingCommand | RunAnswers | PendingAnswer | None],
    ) -> None:
        response: RemotingCommand | RunAnswers | PendingAnswer | None
        try:
            response = answer()
        except RequestRefusedError as refusal:
            response = _refusal(request, refusal.remark, refusal.code)
        except Exception as error:
            _LOG.exception("request %d of %s failed", _like(request).code, self.peer.address)
            response = _refusal(request, f"{type(error).__name__}: {error}", ResponseCode.SYSTEM_ERROR)
        if isinstance(response, Pending):
            later = response
            pool.afterwards(lambda: self._settle_later(request, pool, size, later))
        else:
            self._done(request, response, size)

    def _settle_later(
        self, request: RemotingCommand | RequestRun, pool: RequestPool, size: int, later: PendingAnswer | PendingAnswers
    ) -> None:
        def settle() -> None:
            self._settle(request, pool, size, later)

        if not self._shared.waiting.hold(later, settle):
            settle()

    def _refuse_late(self, request: RemotingCommand | RequestRun, remark: str, size: int) -> bool:
        """On the thread that has found it too old; returns whether the peer gets the refusal."""
        if not self._is_heard(_like(request)):
            return False
        self._done(request, _refusal(request, remark), size)
        return True

    def _refuse(self, command: RemotingCommand, remark: str) -> None:
        self.respond(command, make_response(command, ResponseCode.SYSTEM_BUSY, remark))

    def _done(
        self, request: RemotingCommand | RequestRun, response: RemotingCommand | RunAnswers | None, size: int
    ) -> None:
        answer: RemotingCommand | bytes | None
        if isinstance(response, RunAnswers):
            assert isinstance(request, RequestRun)
            self._note_run(request, response)
            answer, answer_bytes = (text := encode_answers(response, request.opaques)), len(text)
        else:
            answer, answer_bytes = response, 0 if response is None else len(response.body)
        if threading.get_ident() == self.thread_id:
            self._end(request, answer, size)
            return

        def end() -> None:
            self.unwritten.change(-answer_bytes)
            self._end(request, answer, size)

        self.unwritten.change(answer_bytes)
        self.outbox.put(end)

    def _end(self, request: RemotingCommand | RequestRun, answer: RemotingCommand | bytes | None, size: int) -> None:
        """`answer`: a command, or the frames of a run's answers."""
        count = _count(request)
        self._shared.end(size, count)
        self._unanswered -= count
        self._unanswered_bytes -= size
        if isinstance(answer, bytes):
            if self.peer.is_open:
                self._write((answer,))
        elif answer is not None:
            self.respond(_like(request), answer)
        elif _like(request).is_oneway:  # it is done; another one without an answer may get it later
            self._came_at.pop(_like(request).opaque, None)
        self.go_on()

    # What comes while sends are under way to the log is read when they stand there: many at once cost less than each by itself.

    def _begin_gathering(self) -> None:
        self._in_pool += 1
        now = self._loop.time()
        if self._in_pool == 1 or now >= self._gathers_until:
            self._gathers_until = now + _GATHER_SECONDS
            if self._gathering is None:
                self._gathering = self._loop.call_later(_GATHER_SECONDS, self._look_at_gathering)

    def _look_at_gathering(self) -> None:
        """A slow put does not stop reading: the sender must learn that the broker is busy."""
        self._gathering = None
        left = self._gathers_until - self._loop.time()
        if self._in_pool and left > 0:
            self._gathering = self._loop.call_later(left, self._look_at_gathering)
        self.go_on()

    @property
    def _is_gathering(self) -> bool:
        return self._in_pool > 0 and self._loop.time() < self._gathers_until and self.peer.is_open

    def _has_left_pool(self) -> None:
        """For the pool's threads."""
        self.outbox.put(self._left_pool)

    def _left_pool(self) -> None:
        self._in_pool -= 1
        if not self._in_pool:
            self.go_on()

    # What is said to the peer.

    def respond(self, request: RemotingCommand, response: RemotingCommand, *, was_suspended: bool = False) -> None:
        """An answer; nothing for a one-way request. One that fits no frame becomes SYSTEM_ERROR."""
        if self._shared.on_answered is not None:
            self._note_answer(request, response.code, was_suspended=was_suspended)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._shared.unsupported.note(request, self.peer.address, response.remark)
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

    def _note_singly(self, run: RequestRun) -> None:
        """Each of a run is answered by itself."""
        if self._shared.on_answered is not None:
            self._came_at.update(dict.fromkeys(run.opaques, self._came_at.get(run.opaques[0], self._loop.time())))

    def _note_arrival(self, opaque: int) -> None:
        """The request was read; its latency counts from here on. Java: RemotingCommand.processTimer."""
        if self._shared.on_answered is None:
            return
        if len(self._came_at) >= _COME_MOST:  # some are never answered
            with suppress(RuntimeError):  # a pool's thread has changed it meanwhile
                self._came_at.pop(next(iter(self._came_at)), None)
        self._came_at[opaque] = self._loop.time()

    def _note_run(self, run: RequestRun, answers: RunAnswers) -> None:
        came_at = self._came_at.pop(run.opaques[0], None)
        if came_at is not None and self._shared.on_answered is not None:
            result = _SUCCESS if self.peer.is_open else _NOT_WRITTEN
            seconds = self._loop.time() - came_at
            self._shared.on_answered(run.like.code, answers.answer.code, result, seconds, len(run.opaques), False)

    def _note_answer(self, request: RemotingCommand, code: int, *, was_suspended: bool) -> None:
        came_at = self._came_at.pop(request.opaque, None)
        if came_at is None or self._shared.on_answered is None:
            return
        result = _ONEWAY if request.is_oneway else _SUCCESS if self.peer.is_open else _NOT_WRITTEN
        self._shared.on_answered(request.code, code, result, self._loop.time() - came_at, 1, was_suspended)

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
        """Send to the peer, if it is still there."""
        try:
            self._write(self._connection.send_oneway(command).pieces)
        except ConnectionClosedError:
            pass
        except FrameIllegalError as error:
            _LOG.error("%s gets no answer: %s", self.peer.address, error)

    def _write(self, pieces: tuple[Body, ...]) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += pieces
        size = sum(map(len, pieces))
        self._unsent_bytes += size
        self._counted_bytes += size
        self.unwritten.change(size)

    def _count_unwritten(self) -> None:
        """What the system has taken does not count any more."""
        if self._transport is None or not self.peer.is_open:
            return
        size = self._transport.get_write_buffer_size() + self._unsent_bytes
        self.unwritten.change(size - self._counted_bytes)
        self._counted_bytes = size

    def _flush(self) -> None:
        if self._unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(self._unsent)
            self._used_at = self._loop.time()
        self._unsent = []
        self._unsent_bytes = 0
        self._count_unwritten()
        self.go_on()

    # Reading, and when it ends.

    def _read_or_pause(self) -> None:
        has_waiting = self._connection.waiting_count > 0  # a request of another may wait for its answer
        must_pause = (
            self.has_more or not self._may_begin or self._is_gathering or (self._shared.is_ending and not has_waiting)
        )
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
        elif self._frame_began_at is None or pending < received:  # another frame has started
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

    def _finish(self, reason: str, last_pieces: bytes = b"") -> None:
        if not self.peer.is_open:
            return
        self.peer.is_open = False
        if last_pieces:
            try:
                self._take_some(last_pieces)
            except Exception:  # the connection ends all the same
                _LOG.exception("what came last of %s is not wholly done", self.peer)
        _LOG.debug("connection of %s ends: %s", self.peer.address, reason)
        for waiter in self._connection.close(reason):
            if not waiter.done():
                waiter.set_exception(ConnectionClosedError(reason))
        self._shared.count_unfinished(-self._unfinished_bytes)
        self._unfinished_bytes = 0
        self.unwritten.change(-self._counted_bytes)
        self._counted_bytes = 0
        self._shared.channels.discard(self)
        self._leave_the_rest()
        self._shared.on_close(self.peer)
        self.go_on()

    def _leave_the_rest(self) -> None:
        """Requests that were read outlive their connection, as far as there is memory for them."""
        self._left_bytes = self._connection.unread_bytes + sum(command.size_bytes for command in self._read)
        if not self._shared.count_unfinished(self._left_bytes):
            _LOG.error("%d bytes of requests of %s are dropped: too much is left of all", self._left_bytes, self.peer)
            self._connection.drop_unread()
            self._read.clear()
            self._give_left_bytes()
        self._is_outlived = not self.is_done

    def _give_left_bytes(self) -> None:
        self._shared.count_unfinished(-self._left_bytes)
        self._left_bytes = 0


def _like(request: RemotingCommand | RequestRun) -> RemotingCommand:
    return request.like if isinstance(request, RequestRun) else request


def _count(request: RemotingCommand | RequestRun) -> int:
    return len(request.opaques) if isinstance(request, RequestRun) else 1


def _refusal(
    request: RemotingCommand | RequestRun, remark: str | None, code: int = ResponseCode.SYSTEM_BUSY
) -> RemotingCommand | RunAnswers:
    """The answer, or those of a run."""
    answer = make_response(_like(request), code, remark)
    return RunAnswers(answer, {}) if isinstance(request, RequestRun) else answer


def _fail(error: Exception) -> NoReturn:
    raise error


class Turns:
    """Connections with requests that have not started: each in its turn, for a few milliseconds of each turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: OrderedDict[Channel, None] = OrderedDict()
        self._is_due = False

    def add(self, channel: Channel) -> None:
        """Its turn comes behind those of the others."""
        self._waiting.setdefault(channel)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        end = self._loop.time() + _TURN_SECONDS
        try:
            while self._waiting and self._loop.time() < end:
                channel, _ = self._waiting.popitem(last=False)
                try:
                    channel.take_turn()
                except Exception as error:  # that one ends, and the others have their turns
                    _LOG.exception("the turn of %s failed", channel.peer)
                    channel.close(f"its turn failed: {type(error).__name__}: {error}")
        finally:
            self._is_due = bool(self._waiting)
            if self._is_due:
                self._loop.call_soon(self._run)


class Shared:
    """Made on the loop. `on_close` is called for each connection that has ended, `on_answered` for each answer."""

    def __init__(
        self, settings: ServerSettings, on_close: Callable[[Peer], None], on_answered: Answered | None = None
    ) -> None:
        self.settings = settings
        self.on_close = on_close
        self.on_answered = on_answered
        self.frame_limits = FrameLimits(settings.frame_bytes_most, min(settings.frame_bytes_most, 0xFF_FFFF))
        self.outbox = Outbox(asyncio.get_running_loop())
        self.waiting = WaitingAnswers(asyncio.get_running_loop(), self.outbox)
        self.unsupported = Unsupported(asyncio.get_running_loop())
        self.turns = Turns(asyncio.get_running_loop())
        self.channels: set[Channel] = set()
        self.behind: set[Channel] = set()
        """Those with requests that have not started, ended ones included."""
        self.is_going_away = False
        self.is_ending = False
        """Whether the server is closing: then no more is read."""
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        self.unwritten = UnwrittenOfAll()
        self._most_bytes = 0  # of requests and unfinished frames together
        self.ended_count = 0
        """Number of requests that have ended."""
        self.request_count = 0
        """Number of requests that wait or run."""
        self._request_bytes = 0
        self._unfinished_bytes = 0

    def piece(self, size: int = -1) -> memoryview:
        """The buffer for one read, shared by all connections; small while many connections have requests that have not started.

        With a size, which TLS asks for, all that it has decrypted: it would lose the rest at the connection's end.
        """
        if size > _PIECE_BYTES:
            return memoryview(bytearray(size))
        is_little = len(self.behind) >= _PIECES_MOST and size < 0
        return self._piece[:_SMALL_PIECE_BYTES] if is_little else self._piece

    def is_over_a_burst(self) -> bool:
        """Whether much was held in memory since the last call, and little is now."""
        held = self._request_bytes + self._unfinished_bytes
        if self._most_bytes < _BURST_BYTES or held > _BURST_BYTES // 4:
            return False
        self._most_bytes = held
        return True

    def has_room(self, size: int, *, is_heard: bool) -> bool:
        """Whether a request of that size may wait or run beside the others. One that cannot be refused has room without others."""
        if not is_heard and not self._request_bytes:
            return True
        return self._request_bytes + size <= self.settings.requests_bytes_most

    def begin(self, size: int, count: int = 1) -> None:
        """Requests wait, or run; of that size together."""
        self._request_bytes += size
        self.request_count += count
        self._most_bytes = max(self._most_bytes, self._request_bytes + self._unfinished_bytes)

    def end(self, size: int, count: int = 1) -> None:
        """They are answered, or refused."""
        self._request_bytes -= size
        self.request_count -= count
        self.ended_count += count

    def count_unfinished(self, change: int) -> bool:
        """An unfinished frame has grown, or ended; the rest of an ended connection counts, too. False: together they are too much."""
        self._unfinished_bytes += change
        self._most_bytes = max(self._most_bytes, self._request_bytes + self._unfinished_bytes)
        return change <= 0 or self._unfinished_bytes <= self.settings.unfinished_bytes_most
