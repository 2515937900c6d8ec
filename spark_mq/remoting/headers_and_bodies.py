"""Typed headers and bodies of commands. Both are declared as `storage/format/typed_json.py` says; one declaration serves writing and
reading. A body is that JSON. A header stands in a command's extFields, in both encodings:

    class SearchOffsetRequest(TopicHeader):
        topic: str                              # required; "topic" on the wire
        queue_id: Int                           # 32 bits, "queueId"
        time_ms: Long = wire("timestamp")       # 64 bits, another name on the wire
        boundary_type: str | None = None        # left out where it is None

`short` is the name in a send request of the V2 form.
A class's own fields come first, then those of its bases: so the fast headers of the ROCKETMQ encoding are written in Java's order.

Java: CommandCustomHeader, FastCodesHeader, RemotingCommand.makeCustomHeaderToNet and decodeCommandCustomHeader. Values are Java's
toString; a boolean is "true" in any case, else false. Departure: a missing field or a bad number raises HeaderError for every header.
Java raises for the fast ones (sends of V2, pulls) and leaves the field null for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from spark_mq.remoting.codes import RequestCode
from spark_mq.remoting.command import HeaderEncoding, RemotingCommand
from spark_mq.remoting.errors import BodyError, HeaderError
from spark_mq.remoting.frames import DEFAULT_LIMITS, Buffer
from storage.errors import StateFileError
from storage.format.fastjson import parse_sent
from storage.format.typed_json import (
    TEXT,
    BadValueError,
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
