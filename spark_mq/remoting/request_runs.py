"""Successive requests that differ in a few values only: read as columns, and answered as columns.

A client with many sends in flight writes the same JSON header again and again, with other numbers and texts. So the header of the
first request becomes a pattern, and the following headers are matched, not parsed:

    {"code":310,"extFields":{"b":"…","e":"…",…},…,"opaque":…,…}      … = what may differ; all else is equal, byte by byte

A header that matches has the same meaning as its JSON. Another header is parsed (`frames.py`): runs only affect speed.
"""

from __future__ import annotations

import json
import re
import secrets
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spark_mq.remoting.command import HeaderEncoding, RemotingCommand, decode_json_header, encode_json_header
from spark_mq.remoting.errors import FrameError

LEAST = 16
"""Fewer requests cost less one by one than as columns."""
MOST = 256
_PREFIX = struct.Struct(">iI")
_HEADER_BYTES_MOST = 0xFF_FFFF
_OPAQUE_VALUE = rb"(0|[1-9]\d{0,9})"
_OPAQUE = re.compile(rb'"opaque":' + _OPAQUE_VALUE)
_OPAQUE_MOST = 0x7FFF_FFFF
_PATTERNS_MOST = 4
_PATTERN_BYTES_MOST = 2_048
"""Of what is equal: to make a pattern takes time by its length, and all connections wait for it."""
_VAIN_MOST = 8
NUMBER = rb"(\d{1,9})"
LONG_NUMBER = rb"(\d{1,18})"
TEXT = rb'([^"\\]*(?:\\u000[12][^"\\]*)*)'
"""With the characters that stand between properties, and no other escape."""
_SENTINEL = secrets.token_hex(8)


class RunFields(NamedTuple):
    """For one request code: the extFields that may differ, each with what its value looks like."""

    patterns: Mapping[str, bytes]


class RequestRun(NamedTuple):
    """Requests of one connection, at least `LEAST`, with equal headers but for `columns` and their numbers."""

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
            header = self.frames[start + 8 : start + 8 + (word & _HEADER_BYTES_MOST)]
            found.append(decode_json_header(bytes(header), bytes(body), self.position + start))
        return found


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
        if end - start < LEAST * length:
            return None
        header = view[start + 8 : start + 8 + (word & _HEADER_BYTES_MOST)]
        pattern = next((known for known in self._known if known.regex.fullmatch(header) is not None), None)
        if pattern is None:
            return None
        match, at = pattern.regex.fullmatch, start
        found: list[tuple[bytes, ...]] = []
        starts: list[int] = []
        bodies: list[tuple[int, int]] = []
        while at + 8 <= end and len(found) < MOST:
            length, word = _PREFIX.unpack_from(view, at)
            behind, body = at + 4 + length, at + 8 + (word & _HEADER_BYTES_MOST)
            if word >> 24 or length < 4 or behind > end or body > behind or 4 + length > frame_bytes_most:
                break
            matched = match(view, at + 8, body)
            if matched is None:
                break
            found.append(matched.groups())
            starts.append(at - start)
            bodies.append((body - start, behind - start))
            at = behind
        if len(found) < LEAST:
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
    """A value that matches TEXT, without its escapes."""
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
