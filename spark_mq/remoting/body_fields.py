"""How a typed body stands as fastjson's text: one declaration serves writing and reading.

    class TopicStats(WireBody):
        offset_table: Mapping[MessageQueue, TopicOffset]     # {{"brokerName":…,"queueId":…,"topic":…}:{…}}
        topic_put_tps: float = 0.0

Fields are `str`, `bool`, `float`, `Int`, `Long`, `Annotated[str, …]` of an enum, other bodies, `tuple[…, ...]` (lists and sets:
arrays), `Mapping[…]` with keys `str`, `Int`, `Long` or `MessageQueue`, `Any` (whatever JSON it is), each also `| None`. Written are
keys in alphabetical order without blanks, maps in the order that they have, nulls left out, integer keys bare and queues as keys as
objects. Read is the dialect of `storage/format/fastjson.py`; unknown fields are passed over; null counts as absent, and what is
absent has its default. Names may be spelt as `wire_class.py` says.

Clients in other languages send numbers in quotes or with a fraction of zeros, booleans as 0 and 1, enums as their positions. All of
them are read, as fastjson converts them. An unknown name of an enum is null.

Java: RemotingSerializable, TypeUtils.castToLong, castToBoolean, EnumDeserializer. Departure: other conversions of fastjson's (a
fraction to an integer, "Y" to true, a number with commas) raise BodyError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from spark_mq.remoting.errors import BodyError
from spark_mq.remoting.frames import DEFAULT_LIMITS, Buffer
from spark_mq.remoting.wire_class import LikeNames, WireType, fits, is_required, wire_name
from storage.errors import StateFileError
from storage.format.fastjson import double_text, parse_sent, quoted


class WireBody(metaclass=WireType):
    """Base of all typed bodies."""


class MessageQueue(NamedTuple):
    """A queue of a topic at a broker, in Java's order of sorting."""

    topic: str
    broker_name: str
    queue_id: int


B = TypeVar("B", bound=WireBody)
_Reader = Callable[[Any], Any]
_Writer = Callable[[Any], str]
_KEYS = json.JSONDecoder(strict=False)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,19})", re.ASCII)
_BOOLEANS = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
"""1 and 0 are in it: they equal True and False."""
_QUEUE_NAMES = LikeNames(("topic", "brokerName", "queueId"))
_BEYOND_ASCII = re.compile("[^\x00-\x7e]")


class _BadValueError(Exception):
    """Raised where a value is no such value; whoever reads what is around it says where."""

    def __init__(self, found: object, rule: str, place: str = "") -> None:
        super().__init__(found, rule, place)
        self.found = found
        self.rule = rule
        self.place = place

    def within(self, place: str) -> _BadValueError:
        """The same, seen from outside."""
        between = "." if self.place and not self.place.startswith("[") else ""
        return _BadValueError(self.found, self.rule, f"{place}{between}{self.place}")


def read_body(body_class: type[B], body: Buffer, limit_bytes: int = DEFAULT_LIMITS.frame_bytes) -> B:
    """The body as a value. Raises BodyError with the place of what is wrong."""
    read: B = _read(body_class.__name__, _codec(body_class).read, body, limit_bytes)
    return read


def read_body_list(body_class: type[B], body: Buffer, limit_bytes: int = DEFAULT_LIMITS.frame_bytes) -> tuple[B, ...]:
    """A body that is a list of such values, as `read_body`."""
    read: tuple[B, ...] = _read(body_class.__name__, _list_codec(_codec(body_class)).read, body, limit_bytes)
    return read


def read_texts(what: str, body: Buffer, limit_bytes: int = DEFAULT_LIMITS.frame_bytes) -> tuple[str, ...]:
    """A body that is a list of texts, as `read_body`; `what` it is stands in an error."""
    read: tuple[str, ...] = _read(what, _list_codec(_PLAIN[str]).read, body, limit_bytes)
    return read


def _read(what: str, read: _Reader, body: Buffer, limit_bytes: int) -> Any:
    if len(body) > limit_bytes:
        raise BodyError(what, "", f"{len(body)} bytes", f"the limit is {limit_bytes} bytes")
    try:
        value = parse_sent(bytes(body).decode("utf-8", "replace"))
    except StateFileError as error:
        place = f"line {error.line}, column {error.column}"
        raise BodyError(what, place, f"{len(body)} bytes", error.rule) from None
    try:
        return read(value)
    except _BadValueError as error:
        raise BodyError(what, error.place, error.found, error.rule) from None


def write_body_list(bodies: Sequence[WireBody]) -> bytes:
    """The values as one body, a list."""
    return f"[{','.join(_codec(type(body)).write(body) for body in bodies)}]".encode("utf-8", "replace")


def write_texts(texts: Sequence[str]) -> bytes:
    """The texts as one body, a list."""
    return _list_codec(_PLAIN[str]).write(texts).encode("utf-8", "replace")


def write_body(body: WireBody, *, is_standard_json: bool = False) -> bytes:
    """The body as fastjson writes it; as standard JSON only what `standard_json` says of the answer to 105."""
    text = _codec(type(body)).write(body)
    return standard_json(text) if is_standard_json else text.encode("utf-8", "replace")


def standard_json(text: str) -> bytes:
    """fastjson's text with BrowserCompatible, QuoteFieldNames and MapSortField: all keys quoted and sorted, ASCII alone."""
    sorted_text = _write_any(parse_sent(text), is_sorted=True).replace("/", "\\/")  # which stands in strings alone
    return _BEYOND_ASCII.sub(lambda found: _as_units(found.group()), sorted_text).encode("ascii")


def _as_units(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2))


class _Codec(NamedTuple):
    read: _Reader
    write: _Writer


@cache
def _codec(body_class: type[WireBody]) -> _Codec:
    hints = get_type_hints(body_class, include_extras=True)
    table = sorted(((wire_name(found), found) for found in fields(body_class)), key=lambda row: row[0])
    codecs = [(name, found, _codec_of(hints[found.name])) for name, found in table]
    return _Codec(_object_reader(body_class, codecs), _object_writer(codecs))


def _object_reader(body_class: type[WireBody], codecs: list[tuple[str, Field[Any], _Codec]]) -> _Reader:
    rows = [(name, found.name, codec.read, is_required(found)) for name, found, codec in codecs]
    names = LikeNames(name for name, *_ in rows)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _BadValueError(value, "it must be an object")
        value = names.spelt(value)
        values = {}
        for name, attribute, read_value, is_needed in rows:
            found = value.get(name)
            if found is None:
                if is_needed:
                    raise _BadValueError(None, "it is required", name)
                continue
            try:
                value_read = read_value(found)
            except _BadValueError as error:
                raise error.within(name) from None
            if value_read is not None:
                values[attribute] = value_read
        return body_class(**values)

    return read


def _object_writer(codecs: list[tuple[str, Field[Any], _Codec]]) -> _Writer:
    rows = [(f"{quoted(name)}:", found.name, codec.write) for name, found, codec in codecs]

    def write(value: Any) -> str:
        pieces = [
            key + write_value(found)
            for key, attribute, write_value in rows
            if (found := getattr(value, attribute)) is not None
        ]
        return f"{{{','.join(pieces)}}}"

    return write


def _codec_of(hint: Any) -> _Codec:
    if type(None) in get_args(hint):
        (hint,) = (kind for kind in get_args(hint) if kind is not type(None))
    origin, parts = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, WireBody):
        return _body_codec(hint)
    if origin is tuple:
        return _list_codec(_codec_of(parts[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _map_codec(_key_codec(parts[0]), _codec_of(parts[1]))
    said = hint.__metadata__[0]
    return _Codec(_number_reader(said), str) if isinstance(said, int) else _Codec(_enum_reader(said), quoted)


def _body_codec(body_class: type[WireBody]) -> _Codec:
    """Of a body within a body; what it holds is looked at when it is met."""
    return _Codec(lambda value: _codec(body_class).read(value), lambda value: _codec(body_class).write(value))


def _list_codec(item: _Codec) -> _Codec:
    read_item, write_item = item

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _BadValueError(value, "it must be a list")
        items: list[Any] = []
        try:
            for found in value:
                items.append(read_item(found))
        except _BadValueError as error:
            raise error.within(f"[{len(items)}]") from None
        return tuple(items)

    return _Codec(read, lambda value: f"[{','.join(map(write_item, value))}]")


def _map_codec(key: _Codec, item: _Codec) -> _Codec:
    read_key, write_key = key
    read_item, write_item = item

    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _BadValueError(value, "it must be an object")
        items = {}
        for name, found in value.items():
            try:
                items[read_key(name)] = read_item(found)
            except _BadValueError as error:
                raise error.within(f"[{name[:80]}]") from None
        return items

    def write(value: Mapping[Any, Any]) -> str:
        return f"{{{','.join([f'{write_key(name)}:{write_item(found)}' for name, found in value.items()])}}}"

    return _Codec(read, write)


def _number_reader(bits: int) -> _Reader:
    def read(value: Any) -> int:
        if (type(value) is str and _NUMBER.fullmatch(value)) or (type(value) is float and value.is_integer()):
            value = int(value)
        if type(value) is not int or not fits(value, bits):
            raise _BadValueError(value, f"it must be a number of {bits} bits")
        return value

    return read


def _enum_reader(kind: type[Enum]) -> _Reader:
    names, members = kind.__members__, tuple(kind)

    def read(value: Any) -> Enum | None:
        if type(value) is int and 0 <= value < len(members):
            return members[value]
        if not isinstance(value, str):
            raise _BadValueError(value, f"it must be a name of {kind.__name__}, or its position")
        return names.get(value)

    return read


def _key_codec(hint: Any) -> _Codec:
    if hint in (str, MessageQueue):
        return _Codec(_read_queue_key, _write_queue) if hint is MessageQueue else _PLAIN[str]
    read_number = _number_reader(hint.__metadata__[0])
    return _Codec(lambda key: read_number(int(key) if _NUMBER.fullmatch(key) else key), str)


def _read_queue_key(key: str) -> MessageQueue:
    try:
        value = _KEYS.decode(key)
    except (ValueError, RecursionError):
        raise _BadValueError(key, "the key must be a queue") from None
    return _read_queue(value)


def _read_queue(value: Any) -> MessageQueue:
    if isinstance(value, dict):
        value = _QUEUE_NAMES.spelt(value)
        topic, broker_name, queue_id = value.get("topic"), value.get("brokerName"), value.get("queueId")
        if isinstance(topic, str) and isinstance(broker_name, str):
            return MessageQueue(topic, broker_name, _read_int(queue_id))
    raise _BadValueError(value, "it must be a queue: brokerName, queueId and topic")


def _write_queue(queue: MessageQueue) -> str:
    return f'{{"brokerName":{quoted(queue.broker_name)},"queueId":{queue.queue_id},"topic":{quoted(queue.topic)}}}'


_read_int = _number_reader(32)


def _read_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise _BadValueError(value, "it must be a string")
    return value


def _read_bool(value: Any) -> bool:
    found = _BOOLEANS.get(value.lower() if isinstance(value, str) else value) if isinstance(value, str | int) else None
    if found is None:
        raise _BadValueError(value, "it must be true or false")
    return found


def _read_double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _BadValueError(value, "it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise _BadValueError(value, "it must be a number that a double holds") from None


def _write_any(value: Any, *, is_sorted: bool = False) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        rows = sorted(value.items()) if is_sorted else value.items()
        entries = [
            f"{quoted(name)}:{_write_any(found, is_sorted=is_sorted)}" for name, found in rows if found is not None
        ]
        return f"{{{','.join(entries)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(_write_any(found, is_sorted=is_sorted) for found in value)}]"
    if isinstance(value, float):
        return double_text(value)
    return "null" if value is None else json.dumps(value)


_PLAIN: Mapping[Any, _Codec] = {
    str: _Codec(_read_text, quoted),
    bool: _Codec(_read_bool, lambda value: "true" if value else "false"),
    float: _Codec(_read_double, lambda value: double_text(float(value))),
    MessageQueue: _Codec(_read_queue, _write_queue),
    Any: _Codec(lambda value: value, _write_any),
}
