"""Decoders of what another process says: frames in pieces, the headers in them, and bodies."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from random import Random

from spark_mq.access.acls import AclTable
from spark_mq.access.users import UserTable
from spark_mq.remoting import (
    ANSWER_BODIES,
    ANSWER_HEADERS,
    REQUEST_BODIES,
    REQUEST_HEADERS,
    Broken,
    Connection,
    Event,
    FrameError,
    HeaderEncoding,
    HeaderError,
    RemotingCommand,
    RemotingError,
    Request,
    decode_frame,
    encode_frame,
    read_body,
    read_body_list,
    read_header,
    write_body,
    write_body_list,
    write_header,
)
from spark_mq.remoting.administration import UserInfo
from spark_mq.remoting.routes import (
    RegisterBrokerBody,
    read_compressed,
)
from storage.errors import StateFileError
from tests.support.captures import captured_frames, captured_streams
from tests.support.declared import declared
from tests.support.registrations import write_compressed
from tests.torture.decoders import JSON_BOMBS, JSON_TOWERS, Decoder, nested
from tests.torture.mutations import JSON_WORDS
from tests.torture.samples import Samples

_HEADERS = (REQUEST_HEADERS, ANSWER_HEADERS)
_BODIES = sorted({*REQUEST_BODIES.values(), *ANSWER_BODIES.values()}, key=lambda found: found.__name__)
_NUMBERS = {found.__name__: number for number, found in enumerate(_BODIES)}
_QUEUE = b'{"brokerName":"b","queueId":0,"topic":"T"}'


def _has_surrogates(text: str) -> bool:
    """Whether it is written with "?" in places, as Java does."""
    return any(0xD800 <= ord(unit) < 0xE000 for unit in text)


# Frames


def _read_frames(content: bytes, directory: Path) -> bool:
    """The same events in one piece and in many; what was read is read again from what it is written as."""
    whole = Connection[None]().feed(content)
    random = Random(content)
    connection: Connection[None] = Connection()
    events: list[Event[None]] = []
    at = 0
    while at < len(content):
        size = random.choice((1, 3, 8, 50, 1_000))
        events += connection.feed(content[at : at + size])
        at += size
    assert [_said(event) for event in events] == [_said(event) for event in whole]
    read = [event.command for event in whole if not isinstance(event, Broken)]
    with suppress(FrameError):
        assert [decode_frame(content)] == read
    for command in read:
        _write_again(command)
    return bool(read)


def _said(event: Event[None]) -> object:
    return str(event.error) if isinstance(event, Broken) else event


def _write_again(command: RemotingCommand) -> None:
    texts = chain((command.remark or "",), *(command.ext_fields or {}).items())
    if any(map(_has_surrogates, texts)):
        return
    if command.encoding is HeaderEncoding.ROCKETMQ and not command.ext_fields:
        command = command._replace(ext_fields=None)
    (event,) = Connection[None]().feed(b"".join(encode_frame(command)))
    assert not isinstance(event, Broken)
    assert event.command == command


def _frames(samples: Samples) -> list[bytes]:
    streams = [stream for stream in captured_streams().values() if len(stream) < 6_000]
    loose = b"{code:105,'opaque':7,flag:0,extFields:{topic:'Orders',},}"  # fastjson's liberties
    return [
        *streams,
        *(one.data for one in captured_frames()[::40] if len(one.data) < 4_000),
        struct.pack(">ii", 4 + len(loose), len(loose)) + loose,
    ]


def _frame_bombs() -> Sequence[bytes]:
    """Headers that are towers, and sizes that nothing follows."""
    towers = [struct.pack(">ii", 4 + len(tower), len(tower)) + tower for tower in JSON_TOWERS]
    claims = [struct.pack(">ii", 16_777_212, size) + b"{" * 100 for size in (1, 1_048_576, 1 << 24 | 1_000_000)]
    empty = struct.pack(">ii", 25, 21) + b'{"code":0,"opaque":1}'
    return [*towers, *claims, empty * 3_000]


# Headers


def _read_headers(content: bytes, directory: Path) -> bool:
    """Every frame's extFields as its code's header, as an answer's, and written again."""
    read = 0
    for event in Connection[None]().feed(content):
        if not isinstance(event, Broken):
            read += sum(_read_header(event.command, number) for number in (0, 1))
            assert isinstance(event, Request) == (not event.command.is_response)
    return bool(read)


def _read_header(command: RemotingCommand, number: int) -> bool:
    header_class = _HEADERS[number].get(command.code)
    if header_class is None:
        return False
    try:
        header = read_header(header_class, command)
    except HeaderError:
        return False
    code = None if command.is_response else command.code
    again = command._replace(ext_fields=write_header(header, code))
    assert read_header(header_class, again) == header
    return True


# Bodies


def _read_body(content: bytes, directory: Path) -> bool:
    """The first line says which body it is to be, or a list of them; what was read is read again from what it is written as."""
    head, _, body = content.partition(b"\n")
    found = _BODIES[sum(head) % len(_BODIES)] if not head.isdigit() else _BODIES[int(head[:9]) % len(_BODIES)]
    may_have_surrogates = b"\\ud" in body.lower()
    if body[:1] == b"[":
        values = read_body_list(found, body)
        written = write_body_list(values)
        assert may_have_surrogates or _has_surrogates(repr(values)) or read_body_list(found, written) == values
        return True
    value = read_body(found, body)
    for is_standard in (False, True):
        written = write_body(value, is_standard_json=is_standard)
        if not may_have_surrogates and not _has_surrogates(repr(value)):
            assert read_body(found, written) == value
    return True


def _bodies(samples: Samples) -> list[bytes]:
    made = {}
    for one in captured_frames():
        table = ANSWER_BODIES if one.is_response else REQUEST_BODIES
        body = one.data[8 + one.said["headerLen"] :]
        if one.asked in table and body[:1] == b"{" and len(body) < 3_000:
            made[one.asked, one.is_response] = b"%d\n%s" % (_NUMBERS[table[one.asked].__name__], body)
    number = _NUMBERS["ConsumerStatus"]
    users = b"%d\n%s" % (_NUMBERS["UserInfo"], write_body_list([declared(UserInfo), UserInfo(username="b")]))
    return [
        users,
        *made.values(),
        *(b"%d\n%s" % (each, write_body(declared(kind))) for each, kind in enumerate(_BODIES)),
        b"%d\n{ messageQueueTable : { {'topic':'T', queueId:0, brokerName:'b'} :7 } }" % number,
    ]


def _body_bombs() -> Sequence[bytes]:
    towers = nested((b"{{", b"}:1}"), (b'{{"a":1}:', b"}"), (b'{{"a":', b"}:1}"))
    keys = b'{"offsetTable":{' + b",".join(_QUEUE + b":%d" % number for number in range(5_000)) + b"}}"
    begun = (b'{{"brokerName":' + b',{"brokerName":"' * 60_000, b'{{"brokerName":"' + b"\\" * 1_000_001)
    number = b"%d\n" % _NUMBERS["OffsetTable"]
    return [number + bomb for bomb in (*JSON_BOMBS, *towers, keys, *begun)]


# Users and what they may do


def _read_access(content: bytes, directory: Path) -> bool:
    """Both tables of one text; what was read is read again from what it is written as."""
    text = content.decode("utf-8", "replace")
    users, acls = UserTable.load(text), AclTable.load(text)
    if "\\ud" not in text.lower():
        assert UserTable.load(users.to_text()) == users
        assert AclTable.load(acls.to_text()) == acls
    return True


def _access(samples: Samples) -> list[bytes]:
    user = b'{"username":"ann","password":"p","userType":"Normal","userStatus":"enable"}'
    entries = b'[{"resource":"Topic:o*","actions":["Pub","All"],"sourceIps":["10.0.0.0/8","::1"],"decision":"Deny"}]'
    acl = b'{"subject":"User:ann","policies":[{"policyType":"Custom","entries":%s},{"policyType":"Default","entries":%s}]}'
    return [b'{"users":[%s],"acls":[%s]}' % (user, acl % (entries, entries)), b"{}"]


# Registrations


def _read_registration(content: bytes, directory: Path) -> bool:
    """What a broker has compressed; the input is what comes out of it. It may lie about every size and count."""
    body = read_compressed(zlib.compress(content, 1))
    assert len(body.topic_config_table.topic_config_table) <= len(content)
    return True


def _registrations(samples: Samples) -> list[bytes]:
    return [zlib.decompress(write_compressed(each)) for each in (declared(RegisterBrokerBody), RegisterBrokerBody())]


_WORDS = (
    *JSON_WORDS,
    _QUEUE + b":",
    b"{{",
    b"}:",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x01\x00\x00",
    b"\x00\x00\x00\x15",
)

DECODERS: tuple[Decoder, ...] = (
    Decoder("remoting frames", _frames, _read_frames, (FrameError,), words=_WORDS, inputs=1_000, bombs=_frame_bombs),
    Decoder("remoting headers", _frames, _read_headers, words=_WORDS, inputs=700),
    Decoder("remoting bodies", _bodies, _read_body, (RemotingError,), words=_WORDS, inputs=1_500, bombs=_body_bombs),
    Decoder("registrations", _registrations, _read_registration, (RemotingError,), words=_WORDS, inputs=500),
    Decoder("users and rights", _access, _read_access, (StateFileError,), words=_WORDS, inputs=300),
)
