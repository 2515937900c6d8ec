"""Frames: a command as bytes, and bytes as commands; and one connection without its socket, which matches answers to requests.

    0        4                          8        8 + n         4 + length
    | length | type << 24 | header size | header | body        |    big-endian; length counts from byte 4

Type 0 is JSON, 1 ROCKETMQ (both in `command.py`). Each frame has its own type.
Java: RemotingCommand.encode and decode, NettyDecoder. Departure: a header with bytes left over is refused; Java reads them as the
begin of the body.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from spark_mq.remoting.command import (
    ONEWAY_FLAG,
    Body,
    HeaderEncoding,
    RemotingCommand,
    decode_binary_header,
    decode_json_header,
    encode_binary_header,
    encode_json_header,
)
from spark_mq.remoting.errors import ConnectionClosedError, FrameError, FrameIllegalError
from spark_mq.remoting.request_runs import LEAST, RequestRun, RunReader

_PREFIX = struct.Struct(">iI")
_HEADER_BYTES_MOST = 0xFF_FFFF
_COPIED_BODY_BYTES = 4_096
_ENCODERS = {HeaderEncoding.JSON: encode_json_header, HeaderEncoding.ROCKETMQ: encode_binary_header}
_DECODERS = {HeaderEncoding.JSON: decode_json_header, HeaderEncoding.ROCKETMQ: decode_binary_header}
_OTHER_PROTOCOLS = {
    b"HTTP": "an HTTP server answers there: RocketMQ's remoting ports are 9876 (name server) and 10911 (broker) by default",
    b"\x15\x03": "the peer speaks TLS: switch TLS on",
    b"\x16\x03": "the peer speaks TLS: switch TLS on",
}

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits that are checked before memory is allocated."""

    frame_bytes: int = 16_777_216
    """Most bytes of a whole frame. Java: com.rocketmq.remoting.frameMaxLength."""
    header_bytes: int = _HEADER_BYTES_MOST
    """Most bytes of its header. As in Java only the 24 bits of its size limit it: a batch's answer has 33 bytes a message."""


DEFAULT_LIMITS = FrameLimits()
MOST_BODY_BYTES = DEFAULT_LIMITS.frame_bytes - (256 << 10)
"""The largest body that a message may have: a frame carries it beside the longest header that a message has, and its record back."""


def encode_frame(command: RemotingCommand, limits: FrameLimits = DEFAULT_LIMITS) -> tuple[Body, ...]:
    """The pieces of a frame, to be written one behind the other: all but the body, and the body as it is, if there is one.

    Raises FrameIllegalError where a peer of the same limits would close the connection.
    """
    header = _ENCODERS[command.encoding](command)
    body = command.body
    length = 4 + len(header) + len(body)
    if len(header) > limits.header_bytes:
        raise FrameIllegalError(command.code, "header size", len(header), f"the limit is {limits.header_bytes} bytes")
    if 4 + length > limits.frame_bytes:
        raise FrameIllegalError(command.code, "frame size", 4 + length, f"the limit is {limits.frame_bytes} bytes")
    head = _PREFIX.pack(length, command.encoding << 24 | len(header)) + header
    return (head, body) if body else (head,)


def decode_frame(frame: Buffer, limits: FrameLimits = DEFAULT_LIMITS) -> RemotingCommand:
    """The command of exactly one frame. Raises FrameError."""
    reader = FrameReader(limits)
    commands = reader.feed(frame)
    if reader.error is not None:
        raise reader.error
    if len(commands) != 1 or reader.pending_bytes:
        raise FrameError(0, "frame size", len(frame), "it is not one whole frame")
    return commands[0]


class FrameReader:
    """Bytes in, in pieces of any size; commands out, as soon as they are whole.

    Takes time and memory in proportion to what it is fed. A body above 4 KiB that is most of the piece that it came in, or that was
    gathered from several, is a read-only view, so it is copied at most once; others are bytes, and keep no piece in memory. So does
    what is unread, once it is the lesser part of its piece: nothing keeps more than twice its size. Not for several threads at once.
    """

    def __init__(self, limits: FrameLimits = DEFAULT_LIMITS, runs: RunReader | None = None) -> None:
        self._limits = limits
        self._runs = runs
        self._pending = bytearray()  # the beginning of a frame that has not come to its end
        self._wanted = 4  # how many bytes the pending frame needs before more can be said of it
        self._unread = memoryview(b"")  # what was fed and not looked at; nothing is pending then
        self._position = 0  # of the pending frame within all that was fed
        self.error: FrameError | None = None
        """The bad frame that ended the reading. Later bytes are dropped; the commands before it were returned."""

    @property
    def pending_bytes(self) -> int:
        """Number of bytes of an unfinished frame."""
        return len(self._pending)

    @property
    def unread_bytes(self) -> int:
        """Number of bytes not decoded yet, because `feed` has returned as many commands as it may."""
        return len(self._unread)

    def forget_pending(self) -> None:
        """Lets go of an unfinished frame; what is unread stays."""
        self._pending = bytearray()
        self._wanted = 4

    def feed(self, data: Buffer, most: int | None = None) -> list[RemotingCommand]:
        """The commands that end within these bytes, in their order. `data` may be reused afterwards unless it is bytes.

        With `most` they are no more than that, and what follows them stays unread until the next call, which may be fed nothing.
        Raises nothing: look at `error` afterwards.
        """
        return [found for found in self.feed_runs(data, most) if isinstance(found, RemotingCommand)]

    def feed_runs(self, data: Buffer, most: int | None = None) -> list[RemotingCommand | RequestRun]:
        """As `feed`, with runs where the reader was given `runs`: behind a run all that follows stays unread."""
        commands: list[RemotingCommand | RequestRun] = []
        if self.error is not None:
            return commands
        view, is_kept = memoryview(data), isinstance(data, bytes)
        if self._unread:
            view, is_kept = (memoryview(bytes(self._unread) + data) if data else self._unread), True
            self._unread = memoryview(b"")
        try:
            self._read(view, commands, most, is_kept=is_kept)
        except FrameError as error:
            self.error = error
            self._pending = bytearray()
        return commands

    def _read(
        self, view: memoryview, commands: list[RemotingCommand | RequestRun], most: int | None, *, is_kept: bool
    ) -> None:
        start = self._finish_pending(view, commands) if self._pending else 0
        if not is_kept:  # bodies are views, and what was handed in may change
            view, start = memoryview(bytes(view[start:])), 0
        end = len(view)
        is_full = len(commands) == most
        while not is_full and (size := self._frame_size(view, start, end)) and start + size <= end:
            if (run := self._run(view, start, end)) is not None:
                commands.append(run)
                size, is_full = len(run.frames), True
                self._position += size
            else:
                commands.append(self._decode(view, start, size))
                is_full = len(commands) == most
            start += size
        if is_full:
            rest = view[start:]
            self._unread = memoryview(bytes(rest)) if _is_lesser_part(rest) else rest
        elif start < end:
            self._pending += view[start:]
            self._wanted = size or (8 if end - start >= 4 else 4)

    def _run(self, view: memoryview, start: int, end: int) -> RequestRun | None:
        if self._runs is None:
            return None
        return self._runs.read(view, start, end, self._limits.frame_bytes, self._position)

    def _finish_pending(self, data: memoryview, commands: list[RemotingCommand | RequestRun]) -> int:
        """Completes the pending frame as far as the data goes; where in the data the next one begins."""
        taken = 0
        while len(self._pending) < self._wanted:
            missing = self._wanted - len(self._pending)
            self._pending += data[taken : taken + missing]
            taken = min(taken + missing, len(data))
            if len(self._pending) < self._wanted:
                return taken
            if self._wanted <= 8:
                self._wanted = self._frame_size(memoryview(bytes(self._pending)), 0, self._wanted) or 8
        whole = memoryview(self._pending).toreadonly()
        self._pending = bytearray()
        commands.append(self._decode(whole, 0, len(whole)))
        return taken

    def _frame_size(self, data: memoryview, start: int, end: int) -> int:
        """The size of the frame that begins there, 0 while its first eight bytes are not whole. FrameError as soon as it is none."""
        if end - start < 4:
            return 0
        if end - start < 8:
            length = int.from_bytes(data[start : start + 4], "big", signed=True)
            word = 0
        else:
            length, word = _PREFIX.unpack_from(data, start)
        if length < 4 or 4 + length > self._limits.frame_bytes:
            hint = next((h for key, h in _OTHER_PROTOCOLS.items() if bytes(data[start:end]).startswith(key)), None)
            rule = f"it must be between 4 and {self._limits.frame_bytes - 4} bytes"
            raise FrameError(self._position, "length", length, rule, hint)
        if end - start < 8:
            return 0
        header_size = word & _HEADER_BYTES_MOST
        if word >> 24 not in _DECODERS:
            raise FrameError(self._position, "type of header", word >> 24, "0 is JSON, 1 is ROCKETMQ")
        if header_size > length - 4:
            raise FrameError(self._position, "header size", header_size, f"the frame has {length - 4} bytes for it")
        most = self._limits.header_bytes
        if header_size > most:
            raise FrameError(self._position, "header size", header_size, f"the limit is {most} bytes")
        return 4 + length

    def _decode(self, data: memoryview, start: int, size: int) -> RemotingCommand:
        _, word = _PREFIX.unpack_from(data, start)
        body_start = start + 8 + (word & _HEADER_BYTES_MOST)
        encoding = HeaderEncoding(word >> 24)
        view = data[body_start : start + size]
        body: Body = bytes(view) if len(view) <= _COPIED_BODY_BYTES or _is_lesser_part(view) else view
        header = bytes(data[start + 8 : body_start])
        command = _DECODERS[encoding](header, body, self._position)
        self._position += size
        if self._runs is not None and len(data) - start >= LEAST * size:
            self._runs.learn(header, command)
        return command


def _is_lesser_part(view: memoryview) -> bool:
    """Whether the view is less than half of what it keeps in memory."""
    return 2 * len(view) < memoryview(view.obj).nbytes


_OPAQUE_MOST = 0x7FFF_FFFF

T = TypeVar("T")
"""The caller's value for a request, returned with the answer."""


class Request(NamedTuple):
    """The peer asks for something; one-way requests are not answered."""

    command: RemotingCommand


class Answer(NamedTuple, Generic[T]):
    """The peer answers a request that waited; it waits no more."""

    command: RemotingCommand
    waiter: T


class Unawaited(NamedTuple):
    """An answer without a waiting request: forgotten after a time-out, answered twice, or never sent."""

    command: RemotingCommand


class Broken(NamedTuple):
    """The received bytes are no frame. It is the last event of a connection."""

    error: FrameError


Event: TypeAlias = Request | RequestRun | Answer[T] | Unawaited | Broken


class SentRequest(NamedTuple):
    """The number that a request got, and the bytes to write."""

    opaque: int
    pieces: tuple[Body, ...]


class Connection(Generic[T]):
    """The state of one connection at this end: bytes in, events out; commands in, bytes out.

    Both ends number their own requests, so an answer belongs to the request of its number that this end has sent and that still waits.
    Answers may come in any order. What waits is the caller's: a future, a queue, a callback.

        connection: Connection[Future] = Connection()
        transport.writelines(connection.send_request(request, future).pieces)
        for event in connection.feed(data):
            match event:
                case Answer(command, future): ...      # the answer to a request of ours
                case Request(command): ...             # the peer's request; look at command.is_oneway
                case Unawaited(command): ...           # an answer that nothing waits for (any more)
                case RequestRun(): ...                 # many requests of the peer that look alike; only with `runs`
                case Broken(error): ...                # no frame can be read from here on: close

    Java: NettyRemotingAbstract (responseTable). Not for several threads at once. It knows no clock: the caller calls `forget` after a
    time-out, and `close` when it closes the socket.
    """

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
        """Number of requests without an answer yet."""
        return len(self._waiting)

    @property
    def pending_bytes(self) -> int:
        """Number of bytes of an unfinished frame."""
        return self._reader.pending_bytes

    @property
    def unread_bytes(self) -> int:
        """Number of bytes not decoded yet, because `feed` has returned as many events as it may."""
        return self._reader.unread_bytes

    def send_request(self, request: RemotingCommand, waiter: T) -> SentRequest:
        """Gives the request the next free number and remembers who waits. Its own `opaque` does not count.

        Raises FrameIllegalError if it does not fit a frame, and ConnectionClosedError after `close`; then no answer is awaited.
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
        """The events in these bytes and the bytes before; none after Broken.

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
        """Remove and return the waiter for that answer; None if there is none. A later answer is Unawaited."""
        return self._waiting.pop(opaque, None)

    def close(self, reason: str) -> list[T]:
        """All remaining waiters, in the order of their requests. It is unknown whether the peer has run these requests.

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
