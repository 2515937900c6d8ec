"""One request or answer, as a value; its header in both encodings; the signature of a request. Typed headers and bodies of commands.

Headers and bodies are declared as `storage/format/typed_json.py` says; one declaration serves writing and reading. A body is that JSON.
A header stands in a command's extFields, in both encodings:

    class SearchOffsetRequest(TopicHeader):
        topic: str                              # required; "topic" on the wire
        queue_id: Int                           # 32 bits, "queueId"
        time_ms: Long = wire("timestamp")       # 64 bits, another name on the wire
        boundary_type: str | None = None        # left out where it is None

`short` is the name in a send request of the V2 form.
A class's own fields come first, then those of its bases: so the fast headers of the ROCKETMQ encoding are written in Java's order.

Java: RemotingCommand (makeCustomHeaderToNet, decodeCommandCustomHeader), CommandCustomHeader, FastCodesHeader. Values are Java's
toString; a boolean is "true" in any case, else false. Departure: a missing field or a bad number raises HeaderError for every header.
Java raises for the fast ones (sends of V2, pulls) and leaves the field null for the rest.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from enum import IntEnum
from functools import cache, lru_cache
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar, get_args, get_type_hints

from spark_mq.remoting.codes import LanguageCode, ProtocolVersion, RequestCode
from spark_mq.remoting.errors import BodyError, FrameError, FrameIllegalError, HeaderError
from storage.errors import StateFileError
from storage.format.fastjson import parse_sent, quoted
from storage.format.typed_json import (
    TEXT,
    BadValueError,
    LikeNames,
    WireBody,
    WireType,
    codec_of,
    fits,
    is_required,
    list_codec,
    standard_json,
    wire,
    wire_name,
)

Body: TypeAlias = bytes | memoryview
"""A read-only view, or bytes. Both compare and have a length; a view lives on what was received."""

HEADER_BYTES_MOST = 0xFF_FFFF

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits that are checked before memory is allocated."""

    frame_bytes: int = 16_777_216
    """Most bytes of a whole frame. Java: com.rocketmq.remoting.frameMaxLength."""
    header_bytes: int = HEADER_BYTES_MOST
    """Most bytes of its header. As in Java only the 24 bits of its size limit it: a batch's answer has 33 bytes a message."""


DEFAULT_LIMITS = FrameLimits()

_VALUE_BYTES = 256
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
CREDENTIALS = frozenset({ACCESS_KEY, SIGNATURE, SECURITY_TOKEN})
"""extFields by which access control goes."""


class HeaderEncoding(IntEnum):
    """The encoding of a frame's header. Java: SerializeType."""

    JSON = 0
    ROCKETMQ = 1


class RemotingCommand(NamedTuple):
    """A command as it stands in a frame. Codes are plain numbers, so unknown ones pass through.

    `opaque` is the sender's number of the request; an answer repeats it. `ext_fields` keep the order in which they are written and were
    read; in JSON, None (not there) and {} differ. In the ROCKETMQ encoding a value of no length stands for null: it is "" here,
    and typed headers read it as None.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    ext_fields: Mapping[str, str] | None = None
    body: Body = b""
    remark: str | None = None
    language: LanguageCode = LanguageCode.PYTHON
    version: int = ProtocolVersion.V5_3_3
    encoding: HeaderEncoding = HeaderEncoding.JSON

    def __repr__(self) -> str:
        """Without the body and without what access control goes by."""
        fields = self.ext_fields and {n: "…" if n in CREDENTIALS else text for n, text in self.ext_fields.items()}
        return (
            f"RemotingCommand(code={self.code}, opaque={self.opaque}, flag={self.flag}, ext_fields={fields}, remark={self.remark!r}, "
            f"language={self.language.name}, version={self.version}, encoding={self.encoding.name}, body of {len(self.body)} bytes)"
        )

    @property
    def is_response(self) -> bool:
        """Whether it answers a request."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether it is a request without an answer, even after an error."""
        return bool(self.flag & ONEWAY_FLAG)

    @property
    def size_bytes(self) -> int:
        """Approximate memory, in bytes."""
        texts = [] if self.ext_fields is None else [*self.ext_fields, *self.ext_fields.values()]
        body = self.body
        kept = memoryview(body.obj).nbytes if isinstance(body, memoryview) else len(body)
        return _VALUE_BYTES + kept + len(self.remark or "") + sum(map(len, texts))


def make_request(
    code: int,
    ext_fields: Mapping[str, str] | None = None,
    body: Body = b"",
    *,
    is_oneway: bool = False,
    encoding: HeaderEncoding = HeaderEncoding.JSON,
) -> RemotingCommand:
    """A request of this package's language and version; the connection gives it its number."""
    return RemotingCommand(code, 0, ONEWAY_FLAG if is_oneway else 0, ext_fields, body, encoding=encoding)


def make_response(
    request: RemotingCommand,
    code: int,
    remark: str | None = None,
    ext_fields: Mapping[str, str] | None = None,
    body: Body = b"",
) -> RemotingCommand:
    """The answer to a request, in its encoding. Departure: a Java peer answers in the encoding that itself is set to."""
    return RemotingCommand(code, request.opaque, RESPONSE_FLAG, ext_fields, body, remark, encoding=request.encoding)


# A frame's header as JSON: keys in alphabetical order, no blanks, extFields a flat object of strings.
#
#     {"code":0,"extFields":{…},"flag":1,"language":"JAVA","opaque":7,"remark":"…","serializeTypeCurrentRPC":"JSON","version":479}
#
# Java: RemotingSerializable, fastjson 1.2.83. As there, numbers and booleans among the extFields read as their text, nulls as absent,
# bytes that are no UTF-8 as U+FFFD, numbers in quotes or with a fraction of zeros as numbers, a language by its name or its number;
# what is not there is 0, as some serializers leave zeros out. Names may be spelt as `LikeNames` says, and the whole in the dialect
# of `storage/format/fastjson.py`. Departures: a request without opaque has the number 0, and its answer, too, where Java makes a new
# number; an answer without opaque is refused, because it matches no request; a header in the dialect has 64 KiB at most.


_LANGUAGE_NAMES = {code: code.name for code in LanguageCode}
_LANGUAGES = {code.name: code for code in LanguageCode}
_BY_NUMBER = {code.value: code for code in LanguageCode}
_QUOTED_NUMBER = re.compile(r"(-?[0-9]{1,10})(?:\.0+)?", re.ASCII)
_DIALECT_BYTES_MOST = 65_536
"""Of a header that is no plain JSON: what is read token by token takes its time, and all connections wait for it."""
_NAMES = LikeNames(("code", "extFields", "flag", "language", "opaque", "remark", "serializeTypeCurrentRPC", "version"))
_name = lru_cache(1_024)(quoted)


def encode_json_header(command: RemotingCommand) -> bytes:
    """The header without what stands before it."""
    code, opaque, flag, fields, _, remark, language, version, _ = command
    fields_text = remark_text = ""
    if fields is not None:
        parts = [
            f'{_name(name)}:"{value}"' if value.isalnum() and value.isascii() else f"{_name(name)}:{quoted(value)}"
            for name, value in fields.items()
        ]
        fields_text = '"extFields":{' + ",".join(parts) + "},"
    if remark is not None:
        remark_text = f'"remark":{quoted(remark)},'
    text = (
        f'{{"code":{code:d},{fields_text}"flag":{flag:d},"language":"{_LANGUAGE_NAMES[language]}","opaque":{opaque:d},'
        f'{remark_text}"serializeTypeCurrentRPC":"JSON","version":{version:d}}}'
    )
    return text.encode("utf-8", "replace")


def decode_json_header(header: bytes, body: Body, position: int) -> RemotingCommand:
    """The command of a header and a body; FrameError, with the frame's position, where it is none."""
    text = header.decode("utf-8", "replace")
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        if len(header) > _DIALECT_BYTES_MOST:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise FrameError(position, "header", header[:16], f"it is no JSON: {reason[:120]}") from None
        found = _of_dialect(text, header, position)
    if not isinstance(found, dict):
        raise FrameError(position, "header", header[:16], "it is no JSON object")
    found = _NAMES.spelt(found)
    remark = found.get("remark")
    if remark is not None and type(remark) is not str:
        remark = _text("remark", remark, position)
    code = _number(found, "code", position)
    opaque = _number(found, "opaque", position)
    flag = _number(found, "flag", position)
    if "opaque" not in found and (code == 0 or flag & RESPONSE_FLAG):
        raise FrameError(position, "opaque", None, "what is no request must have a number")
    version = _number(found, "version", position)
    fields = _fields(found.get("extFields"), position)
    language = _language(found.get("language", "JAVA"))
    return RemotingCommand(code, opaque, flag, fields, body, remark, language, version, HeaderEncoding.JSON)


def _of_dialect(text: str, header: bytes, position: int) -> object:
    try:
        return parse_sent(text)
    except StateFileError as error:
        raise FrameError(position, "header", header[:16], f"it is no JSON: {error.rule[:120]}") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


_DECODER = json.JSONDecoder(strict=False, parse_float=str, parse_constant=_refuse)


def _number(header: dict[str, Any], name: str, position: int) -> int:
    value = header.get(name, 0)
    if type(value) is not int:
        value = _as_number(value)
    if value is None or not -0x8000_0000 <= value <= 0x7FFF_FFFF:
        raise FrameError(position, name, header[name], "it must be a number of 32 bits")
    return value


def _as_number(value: object) -> int | None:
    if value is None:
        return 0
    number = _QUOTED_NUMBER.fullmatch(str(value)) if isinstance(value, str | float) else None
    return int(number.group(1)) if number else None


def _language(name: object) -> LanguageCode:
    if isinstance(name, str):
        return _LANGUAGES.get(name, LanguageCode.OTHER)
    return _BY_NUMBER.get(name, LanguageCode.OTHER) if type(name) is int else LanguageCode.OTHER


def _fields(fields: object, position: int) -> dict[str, str] | None:
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise FrameError(position, "extFields", fields, "it must be an object")
    for value in fields.values():
        if type(value) is not str:
            return {
                name: _text(f"extFields.{name}", value, position) for name, value in fields.items() if value is not None
            }
    return fields


def _text(name: str, value: object, position: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise FrameError(position, name, value, "it must be a string")


# A frame's header in the ROCKETMQ encoding.
#
#     | code:2 | language:1 | version:2 | opaque:4 | flag:4 | remark size:4 | remark | fields size:4 | (size:2 name size:4 value)* |
#
# Strings are UTF-8; one of no length stands for null. Java: RocketMQSerializable. A code of more than 16 bits is refused (departure:
# Java cuts it, so that the peer sees another request), and so are sizes that do not fit the header, and bytes behind the fields.


_HEAD = struct.Struct(">hBhiii")
_SIZE = struct.Struct(">i")
_NAME_SIZE = struct.Struct(">h")
_NAME_BYTES_MOST = 0x7FFF


def encode_binary_header(command: RemotingCommand) -> bytes:
    """The header without what stands before it; FrameIllegalError where a number does not fit its place."""
    code, opaque, flag, fields, _, remark, language, version, _ = command
    pieces: list[bytes] = []
    for name, value in fields.items() if fields else ():
        name_bytes = name.encode("utf-8", "replace")
        value_bytes = value.encode("utf-8", "replace")
        if len(name_bytes) > _NAME_BYTES_MOST:
            raise FrameIllegalError(code, "size of a field's name", len(name_bytes), "a name has at most 32,767 bytes")
        pieces += (
            _NAME_SIZE.pack(len(name_bytes)),
            name_bytes,
            _SIZE.pack(len(value_bytes)),
            value_bytes,
        )
    content = b"".join(pieces)
    remark_bytes = remark.encode("utf-8", "replace") if remark else b""
    try:
        head = _HEAD.pack(code, language, version, opaque, flag, len(remark_bytes))
    except struct.error:
        numbers = f"code {code}, version {version}, opaque {opaque}, flag {flag}"
        rule = "in the ROCKETMQ encoding code and version have 16 bits, opaque and flag 32; use JSON"
        raise FrameIllegalError(code, "a number", numbers, rule) from None
    return b"".join((head, remark_bytes, _SIZE.pack(len(content)), content))


def decode_binary_header(header: bytes, body: Body, position: int) -> RemotingCommand:
    """The command of a header and a body; FrameError, with the frame's position, where it is none."""
    try:
        code, language, version, opaque, flag, remark_size = _HEAD.unpack_from(header)
        fields_at = _end(header, _HEAD.size, remark_size, "remark size", position)
        (fields_size,) = _SIZE.unpack_from(header, fields_at)
    except struct.error:
        raise FrameError(position, "header size", len(header), "the header ends before its fields") from None
    start = fields_at + _SIZE.size
    if _end(header, start, fields_size, "size of the fields", position) != len(header):
        raise FrameError(
            position, "size of the fields", fields_size, f"the header has {len(header) - start} bytes for it"
        )
    remark = header[_HEAD.size : fields_at].decode("utf-8", "replace") if remark_size else None
    fields = _decode_fields(header, start, position) if fields_size else None
    language = _BY_NUMBER.get(language, LanguageCode.OTHER)
    return RemotingCommand(code, opaque, flag, fields, body, remark, language, version, HeaderEncoding.ROCKETMQ)


def _end(header: bytes, start: int, size: int, field: str, position: int) -> int:
    """Where something of that size ends, which must be within the header."""
    if not 0 <= size <= len(header) - start:
        raise FrameError(position, field, size, f"the header has {len(header) - start} bytes for it")
    return start + size


def _decode_fields(header: bytes, start: int, position: int) -> dict[str, str]:
    fields = {}
    try:
        while start < len(header):
            (size,) = _NAME_SIZE.unpack_from(header, start)
            name_end = _end(header, start + 2, size, "size of a field's name", position)
            (value_size,) = _SIZE.unpack_from(header, name_end)
            end = _end(header, name_end + 4, value_size, "size of a field's value", position)
            name = header[start + 2 : name_end].decode("utf-8", "replace")
            fields[name] = header[name_end + 4 : end].decode("utf-8", "replace")
            start = end
    except struct.error:
        raise FrameError(position, "fields", header[start : start + 16], "they end within a field") from None
    return fields


# The signature of a request proves that its sender knows a secret: clients make it, servers compare it.
#
# HMAC-SHA1 over the values of all extFields but the signature, in the order of their names, then the body, as base64.
# Java: AclUtils, AclSigner (ACL 1.0 and 2.0).


UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Says that the key of a query is a unique one; Java: MixAll.UNIQUE_MSG_QUERY_FLAG."""


def signature(fields: Mapping[str, str], body: Body, secret_key: str) -> str:
    """That of these fields and this body."""
    content = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE]).encode("utf-8", "replace")
    digest = hmac.digest(secret_key.encode("utf-8", "replace"), content + body if body else content, "sha1")
    return base64.b64encode(digest).decode("ascii")


def request_signature(command: RemotingCommand, secret_key: str) -> str:
    """That of a request, which has everything in its fields but the signature.

    Servers of 4.9 leave `_UNIQUE_KEY_QUERY` out of what is signed, later ones only for such a request.
    """
    fields = command.ext_fields or {}
    if command.version <= ProtocolVersion.V4_9_3:
        fields = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
    return signature(fields, command.body, secret_key)


def is_signed_by(command: RemotingCommand, secret_key: str) -> bool:
    """Whether the request has the signature that the secret makes; how long it takes says nothing of it.

    Departure: in the ROCKETMQ encoding a field without a value counts as "", which is what clients sign. Java signs "null".
    """
    given = (command.ext_fields or {}).get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(request_signature(command, secret_key).encode(), given)


SHORT_NAMED = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
)
"""The requests whose header has the short names."""

_NUMBER = re.compile(r"[+-]?0*[0-9]{1,20}", re.ASCII)


class Header(metaclass=WireType):
    """Base of all headers."""


class RpcHeader(Header):
    """Further fields of any request of a client. Java: RpcRequestHeader."""

    namespace: str | None = wire("ns", default=None)
    is_namespaced: bool | None = wire("nsd", default=None)
    broker_name: str | None = wire("bname", short="n", default=None)
    """The broker that is meant; static topics go by it."""
    is_oneway: bool | None = wire("oway", default=None)


class TopicHeader(RpcHeader):
    """Further fields of a request about a topic. Java: TopicRequestHeader."""

    is_logical: bool | None = wire("lo", default=None)
    """Whether its queue is one of a static topic, which has physical queues behind it; None counts as true."""


H = TypeVar("H", bound=Header)
B = TypeVar("B", bound=WireBody)


class _Field(NamedTuple):
    name: str
    wire: str
    read: Callable[[str], Any]
    rule: str
    is_required: bool


def write_header(header: Header, code: int | None = None) -> dict[str, str]:
    """The header as extFields; with the code of a V2 send, under short names."""
    written = {}
    for name, key, *_ in _table(type(header), code in SHORT_NAMED):
        value = getattr(header, name)
        if value is None:
            continue
        if value is True or value is False:
            written[key] = "true" if value else "false"
        else:
            written[key] = value if type(value) is str else str(value)
    return written


class HeaderTemplate:
    """extFields of many requests that differ in a few fields: the others are written once.

    template = HeaderTemplate(header, code, ("flag", "properties"))
    fields = template.fill("0", "a\x01b\x02")      # the varying fields, as texts, in that order
    """

    def __init__(self, header: Header, code: int | None, varying: tuple[str, ...]) -> None:
        """The header must have a value in each varying field; it only says where that stands."""
        keys = {found.name: found.wire for found in _table(type(header), code in SHORT_NAMED)}
        self._fields = write_header(header, code)
        self._keys = tuple(keys[name] for name in varying)

    def fill(self, *texts: str) -> dict[str, str]:
        """The extFields with these values of the varying fields."""
        fields = self._fields.copy()
        for key, text in zip(self._keys, texts, strict=True):
            fields[key] = text
        return fields


def read_header(header_class: type[H], command: RemotingCommand) -> H:
    """The command's extFields as a header; those that it does not know are left alone. HeaderError where one is bad or missing.

    A blank where a number may be missing is none: Java's headers that are read by reflection do the same, and 4.9 with all.
    """
    is_short = not command.is_response and command.code in SHORT_NAMED
    is_empty_null = command.encoding is HeaderEncoding.ROCKETMQ
    found: Mapping[str, str] = command.ext_fields or {}
    values: dict[str, Any] = {}
    for name, key, read, rule, is_needed in _table(header_class, is_short):
        text = found.get(key)
        if text is None or (is_empty_null and not text):
            if is_needed:
                raise HeaderError(header_class.__name__, key, None, "it is required")
            continue
        try:
            values[name] = read(text)
        except ValueError:
            if text or is_needed:
                raise HeaderError(header_class.__name__, key, text, rule) from None
    defaults = _defaults(header_class)
    if defaults is None:
        return header_class(**values)
    # A header has no rules of its own, and its constructor sets each field by a call.
    header = object.__new__(header_class)
    header.__dict__.update(defaults)
    header.__dict__.update(values)
    return header


@cache
def _defaults(header_class: type[Header]) -> dict[str, Any] | None:
    """The values of fields that need none; None where they are made by a function, or where the class looks at what it is given."""
    declared = fields(header_class)
    if any(found.default_factory is not MISSING for found in declared) or hasattr(header_class, "__post_init__"):
        return None
    return {found.name: found.default for found in declared if found.default is not MISSING}


def wire_names(header_class: type[Header], code: int | None = None) -> tuple[str, ...]:
    """The names of its fields on the wire, in the order in which they are written."""
    return tuple(found.wire for found in _table(header_class, code in SHORT_NAMED))


@cache
def _table(header_class: type[Header], is_short: bool) -> tuple[_Field, ...]:
    hints = get_type_hints(header_class, include_extras=True)
    by_name = {found.name: found for found in fields(header_class)}
    names = [name for base in header_class.__mro__ for name in vars(base).get("__annotations__", {})]
    made = [_field_of(by_name[name], hints[name], is_short) for name in names]
    return tuple(sorted(made, key=lambda found: len(found.wire) > 1)) if is_short else tuple(made)


def _field_of(found: Field[Any], hint: Any, is_short: bool) -> _Field:
    name = (is_short and found.metadata.get("short")) or wire_name(found)
    read, rule = _reader(hint)
    return _Field(found.name, name, read, rule, is_required(found))


def _reader(hint: Any) -> tuple[Callable[[str], Any], str]:
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if type(None) in get_args(hint) else [hint]
    (kind,) = kinds
    if kind is str:
        return str, "it is a string"
    if kind is bool:
        return _read_bool, "it is true or false"
    bits = get_args(kind)[1]
    return _number_reader(bits), f"it is a number of {bits} bits"


def _read_bool(text: str) -> bool:
    return text == "true" or text.lower() == "true"


def _number_reader(bits: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if len(text) < 10 and text.isdecimal() and text.isascii():
            return int(text)  # as most are
        if not _NUMBER.fullmatch(text):
            raise ValueError(text)
        value = int(text)
        if not fits(value, bits):
            raise ValueError(text)
        return value

    return read


# Bodies


def read_body(body_class: type[B], body: Buffer, limit_bytes: int = DEFAULT_LIMITS.frame_bytes) -> B:
    """The body as a value. Raises BodyError with the place of what is wrong."""
    read: B = _read(body_class.__name__, codec_of(body_class).read, body, limit_bytes)
    return read


def read_body_list(body_class: type[B], body: Buffer, limit_bytes: int = DEFAULT_LIMITS.frame_bytes) -> tuple[B, ...]:
    """A body that is a list of such values, as `read_body`."""
    read: tuple[B, ...] = _read(body_class.__name__, list_codec(codec_of(body_class)).read, body, limit_bytes)
    return read


def read_texts(what: str, body: Buffer, limit_bytes: int = DEFAULT_LIMITS.frame_bytes) -> tuple[str, ...]:
    """A body that is a list of texts, as `read_body`; `what` it is stands in an error."""
    read: tuple[str, ...] = _read(what, list_codec(TEXT).read, body, limit_bytes)
    return read


def _read(what: str, read: Callable[[Any], Any], body: Buffer, limit_bytes: int) -> Any:
    if len(body) > limit_bytes:
        raise BodyError(what, "", f"{len(body)} bytes", f"the limit is {limit_bytes} bytes")
    try:
        value = parse_sent(bytes(body).decode("utf-8", "replace"))
    except StateFileError as error:
        place = f"line {error.line}, column {error.column}"
        raise BodyError(what, place, f"{len(body)} bytes", error.rule) from None
    try:
        return read(value)
    except BadValueError as error:
        raise BodyError(what, error.place, error.found, error.rule) from None


def write_body_list(bodies: Sequence[WireBody]) -> bytes:
    """The values as one body, a list."""
    return f"[{','.join(codec_of(type(body)).write(body) for body in bodies)}]".encode("utf-8", "replace")


def write_texts(texts: Sequence[str]) -> bytes:
    """The texts as one body, a list."""
    return list_codec(TEXT).write(texts).encode("utf-8", "replace")


def write_body(body: WireBody, *, is_standard_json: bool = False) -> bytes:
    """The body as fastjson writes it; as standard JSON only what `standard_json` says of the answer to 105."""
    text = codec_of(type(body)).write(body)
    return standard_json(text) if is_standard_json else text.encode("utf-8", "replace")
