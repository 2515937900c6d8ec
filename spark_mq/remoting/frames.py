"""Frames: a command as bytes, and bytes as commands; and one connection without its socket, which matches answers to requests.

    0        4                          8        8 + n         4 + length
    | length | type << 24 | header size | header | body        |    big-endian; length counts from byte 4

Type 0 is JSON, 1 ROCKETMQ (both in `command.py`). Each frame has its own type.
Java: RemotingCommand.encode and decode, NettyDecoder. Departure: a header with bytes left over is refused; Java reads them as the
begin of the body.

A client with many sends in flight writes the same JSON header again and again, with other numbers and texts. Such successive requests
are read as columns, and answered as columns. The header of the first request becomes a pattern, and the following headers are matched,
not parsed:

    {"code":310,"extFields":{"b":"…","e":"…",…},…,"opaque":…,…}      … = what may differ; all else is equal, byte by byte

A header that matches has the same meaning as its JSON. Another header is parsed: runs only affect speed.
"""

from __future__ import annotations

import json
import re
import secrets
import struct
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from spark_mq.remoting.command import (
    DEFAULT_LIMITS,
    HEADER_BYTES_MOST,
    ONEWAY_FLAG,
    Body,
    Buffer,
    FrameLimits,
    HeaderEncoding,
    RemotingCommand,
    decode_binary_header,
    decode_json_header,
    encode_binary_header,
    encode_json_header,
)
from spark_mq.remoting.errors import ConnectionClosedError, FrameError, FrameIllegalError

_PREFIX = struct.Struct(">iI")
_COPIED_BODY_BYTES = 4_096
_ENCODERS = {HeaderEncoding.JSON: encode_json_header, HeaderEncoding.ROCKETMQ: encode_binary_header}
_DECODERS = {HeaderEncoding.JSON: decode_json_header, HeaderEncoding.ROCKETMQ: decode_binary_header}
_OTHER_PROTOCOLS = {
    b"HTTP": "an HTTP server answers there: RocketMQ's remoting ports are 9876 (name server) and 10911 (broker) by default",
    b"\x15\x03": "the peer speaks TLS: switch TLS on",
    b"\x16\x03": "the peer speaks TLS: switch TLS on",
}

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
        header_size = word & HEADER_BYTES_MOST
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
        body_start = start + 8 + (word & HEADER_BYTES_MOST)
        encoding = HeaderEncoding(word >> 24)
        view = data[body_start : start + size]
        body: Body = bytes(view) if len(view) <= _COPIED_BODY_BYTES or _is_lesser_part(view) else view
        header = bytes(data[start + 8 : body_start])
        command = _DECODERS[encoding](header, body, self._position)
        self._position += size
        if self._runs is not None and len(data) - start >= RUN_LEAST * size:
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


class RequestRun(NamedTuple):
    """Requests of one connection, at least `RUN_LEAST`, with equal headers but for `columns` and their numbers."""

    like: RemotingCommand
    """A request with such a header, without its body."""
    opaques: Sequence[int]
    columns: Mapping[str, Sequence[bytes]]
    """By the field's name in `RunFields`: of each request the value as it stands in the JSON text."""
    bodies: Sequence[memoryview]
    frames: memoryview
    """All of them."""
    starts: Sequence[int]
    """The begin of each in `frames`."""
    position: int
    """Where `frames` begins in all that the connection has brought."""

    @property
    def size_bytes(self) -> int:
        """Approximate memory, in bytes."""
        return memoryview(self.frames.obj).nbytes + 256 * len(self.opaques)

    def texts(self, name: str) -> list[bytes]:
        """A column's values as UTF-8, without JSON's escapes."""
        return _unescaped(b'"'.join(self.columns[name])).split(b'"')  # which stands in none of them

    def commands(self, rows: Sequence[int] | None = None) -> list[RemotingCommand]:
        """All of them, or these, one by one."""
        found = []
        for row in range(len(self.starts)) if rows is None else rows:
            start, body = self.starts[row], self.bodies[row]
            _, word = _PREFIX.unpack_from(self.frames, start)
            header = self.frames[start + 8 : start + 8 + (word & HEADER_BYTES_MOST)]
            found.append(decode_json_header(bytes(header), bytes(body), self.position + start))
        return found


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


RUN_LEAST = 16
"""Fewer requests cost less one by one than as columns."""
RUN_MOST = 256
_OPAQUE_VALUE = rb"(0|[1-9]\d{0,9})"
_OPAQUE = re.compile(rb'"opaque":' + _OPAQUE_VALUE)
_PATTERNS_MOST = 4
_PATTERN_BYTES_MOST = 2_048
"""Of what is equal: to make a pattern takes time by its length, and all connections wait for it."""
_VAIN_MOST = 8
NUMBER_VALUE = rb"(\d{1,9})"
LONG_NUMBER_VALUE = rb"(\d{1,18})"
TEXT_VALUE = rb'([^"\\]*(?:\\u000[12][^"\\]*)*)'
"""With the characters that stand between properties, and no other escape."""
_SENTINEL = secrets.token_hex(8)


class RunFields(NamedTuple):
    """For one request code: the extFields that may differ, each with what its value looks like."""

    patterns: Mapping[str, bytes]


class RunReader:
    """Finds runs in what one connection brings. `fields` are those of the codes that may come in runs."""

    def __init__(self, fields: Mapping[int, RunFields]) -> None:
        self._fields = fields
        self._known: list[_Pattern] = []
        self._vain = 0  # patterns that were made since the last run
        self._passed = 0  # requests since the last pattern

    def learn(self, header: bytes, command: RemotingCommand) -> None:
        """The next requests may look like this one, which was read by itself.

        To make a pattern takes as long as to read dozens of requests. So the more were made in vain, as where each request is signed,
        the more requests pass before the next.
        """
        fields = self._fields.get(command.code)
        if fields is None or command.flag or command.encoding != HeaderEncoding.JSON:
            return
        self._passed += 1
        if self._passed < 1 << min(self._vain, _VAIN_MOST):
            return
        self._passed = 0
        self._vain += 1
        if (found := _pattern_of(header, command, fields)) is not None:
            self._known = [found, *self._known[: _PATTERNS_MOST - 1]]

    def read(self, view: memoryview, start: int, end: int, frame_bytes_most: int, position: int) -> RequestRun | None:
        """The run that begins with the frame there, which is whole; None = there is none."""
        length, word = _PREFIX.unpack_from(view, start)
        if end - start < RUN_LEAST * length:
            return None
        header = view[start + 8 : start + 8 + (word & HEADER_BYTES_MOST)]
        pattern = next((known for known in self._known if known.regex.fullmatch(header) is not None), None)
        if pattern is None:
            return None
        match, at = pattern.regex.fullmatch, start
        found: list[tuple[bytes, ...]] = []
        starts: list[int] = []
        bodies: list[tuple[int, int]] = []
        while at + 8 <= end and len(found) < RUN_MOST:
            length, word = _PREFIX.unpack_from(view, at)
            behind, body = at + 4 + length, at + 8 + (word & HEADER_BYTES_MOST)
            if word >> 24 or length < 4 or behind > end or body > behind or 4 + length > frame_bytes_most:
                break
            matched = match(view, at + 8, body)
            if matched is None:
                break
            found.append(matched.groups())
            starts.append(at - start)
            bodies.append((body - start, behind - start))
            at = behind
        if len(found) < RUN_LEAST:
            return None
        columns = dict(zip(pattern.names, zip(*found, strict=True), strict=True))
        opaques = list(map(int, columns.pop("opaque")))
        if max(opaques) > _OPAQUE_MOST:
            return None
        self._vain = self._passed = 0
        frames = view[start:at]
        if 2 * len(frames) < memoryview(frames.obj).nbytes:  # nothing keeps more than twice its size
            frames = memoryview(bytes(frames))
        views = [frames[begin:behind] for begin, behind in bodies]
        return RequestRun(pattern.first, opaques, columns, views, frames, starts, position)


class _Pattern(NamedTuple):
    regex: re.Pattern[bytes]
    names: tuple[str, ...]
    """Names of its groups."""
    first: RemotingCommand
    """The request that it was made of, without its body."""


def _pattern_of(header: bytes, command: RemotingCommand, fields: RunFields) -> _Pattern | None:
    """The pattern of headers like this one; None where it is not sure that a header that matches says what it seems to say."""
    holes: list[tuple[int, int, bytes, str]] = []
    for name, pattern in fields.patterns.items():
        key = b'"%b":' % name.encode()
        hole = re.search(b'%b"%b"' % (key, pattern), header)
        text = (command.ext_fields or {}).get(name)
        if hole is None or text is None or _unescaped(hole[1]) != text.encode("utf-8", "replace"):
            return None
        holes.append((*hole.span(1), pattern, name))
    opaque = _OPAQUE.search(header)
    if opaque is None or int(opaque[1]) != command.opaque:
        return None
    holes = sorted([*holes, (*opaque.span(1), _OPAQUE_VALUE, "opaque")])
    equal, at = [], 0
    for begin, end, *_ in holes:
        equal.append(header[at:begin])
        at = end
    equal.append(header[at:])
    names = tuple(name for *_, name in holes)
    if sum(map(len, equal)) > _PATTERN_BYTES_MOST or not _are_decisive(equal, names, command):
        return None
    parts = [part for each, (*_, pattern, _) in zip(equal, holes, strict=False) for part in (re.escape(each), pattern)]
    regex = re.compile(b"".join(parts) + re.escape(equal[-1]), re.DOTALL)
    return _Pattern(regex, names, command._replace(body=b""))


def _are_decisive(equal: Sequence[bytes], names: Sequence[str], command: RemotingCommand) -> bool:
    """Whether JSON reads the values between these parts under the names: a name may come twice, and in any spelling."""
    values = [
        10**8 + secrets.randbelow(10**8) for _ in names
    ]  # unguessable, so no sender can put them into other parts
    texts = [*(b"%d" % value for value in values), b""]
    header = b"".join(part for pair in zip(equal, texts, strict=True) for part in pair)
    expected = dict(zip(names, values, strict=True))
    opaque = expected.pop("opaque")
    fields = {**(command.ext_fields or {}), **{name: str(value) for name, value in expected.items()}}
    try:
        json.loads(header, strict=False)  # of what is no plain JSON it depends on more how it is read
        found = decode_json_header(header, command.body, 0)
    except (ValueError, RecursionError, FrameError):
        return False
    is_like = found == command._replace(opaque=opaque, ext_fields=found.ext_fields)
    return is_like and (found.ext_fields or {}) == fields


def _unescaped(text: bytes) -> bytes:
    """A value that matches TEXT_VALUE, without its escapes."""
    return text.replace(b"\\u0001", b"\x01").replace(b"\\u0002", b"\x02")


class RunAnswers(NamedTuple):
    """The answers to a run: one for all, but for these of its extFields, which stand in it with any text."""

    answer: RemotingCommand
    columns: Mapping[str, Sequence[bytes]]
    """UTF-8 that JSON escapes nothing of."""


def encode_answers(answers: RunAnswers, opaques: Sequence[int]) -> bytes:
    """Their frames, one behind the other. No body goes with them."""
    marks = {name: f"{_SENTINEL}{number:04d}" for number, name in enumerate(answers.columns)}
    opaque_mark = 1_000_000_007
    fields = answers.answer.ext_fields
    marked = None if fields is None else {name: marks.get(name, text) for name, text in fields.items()}
    header = encode_json_header(answers.answer._replace(opaque=opaque_mark, ext_fields=marked))
    text = header.replace(b"%", b"%%")
    places = [(text.index(f'"{mark}"'.encode()) + 1, len(mark), name) for name, mark in marks.items()]
    at = text.rindex(b'"opaque":%d,' % opaque_mark) + len(b'"opaque":')
    places.append((at, len(str(opaque_mark)), ""))
    places.sort()
    for place, size, _ in reversed(places):
        text = text[:place] + b"%b" + text[place + size :]
    numbers = [b"%d" % opaque for opaque in opaques]
    columns = [answers.columns[name] if name else numbers for *_, name in places]
    headers = [text % row for row in zip(*columns, strict=True)]
    pack = _PREFIX.pack
    return b"".join([pack(4 + len(each), len(each)) + each for each in headers])
