"""Java's objects as fastjson's text: one declaration serves writing and reading, of files under `config/` and of bodies on the wire.

    class TopicStats(WireBody):
        offset_table: Mapping[MessageQueue, TopicOffset]     # {{"brokerName":…,"queueId":…,"topic":…}:{…}}
        topic_put_tps: float = 0.0
        last_ms: Long = wire("lastUpdateTimestamp", default=0)

Fields are `str`, `bool`, `float`, `bytes` (base64), `Int`, `Long`, `Annotated[str, …]` of an enum, other objects, `tuple[…, ...]`
(lists and sets: arrays), `Mapping[…]` with keys `str`, `Int`, `Long` or `MessageQueue`, `Any` (whatever JSON it is), each also
`| None`. Names in the text are the Python names in camelCase unless `wire` says otherwise.

Written are keys in alphabetical order without blanks, maps in their own order, nulls omitted, integer keys bare and queues as
keys as objects. Read is the dialect of `fastjson.py`; unknown fields are ignored; null counts as missing, and a missing field has its
default. Like fastjson, a reader matches names regardless of capitals, `_` and `-` if the exact name is missing: `ClientId` and
`client_id` for `clientID`.

Clients in other languages send numbers in quotes or with a fraction of zeros, booleans as 0 and 1, enums as their positions. All of
them are read, as fastjson converts them. An unknown name of an enum is null.

At the end stand the entries of a broker's tables, which files and wire share: a topic, a group of consumers, a table's version.

Java: RemotingSerializable, TypeUtils.castToLong, castToBoolean, EnumDeserializer. Departure: other conversions of fastjson's (a
fraction to an integer, "Y" to true, a number with commas) raise BadValueError.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import Annotated, Any, NamedTuple, dataclass_transform, get_args, get_origin, get_type_hints

from storage.errors import StateFileError
from storage.format.fastjson import double_text, parse_sent, quoted

_Reader = Callable[[Any], Any]
_Writer = Callable[[Any], str]
_KEYS = json.JSONDecoder(strict=False)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,19})", re.ASCII)
_BOOLEANS = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
"""1 and 0 are in it: they equal True and False."""
_BEYOND_ASCII = re.compile("[^\x00-\x7e]")

Int = Annotated[int, 32]
"""A Java int."""
Long = Annotated[int, 64]
"""A Java long."""


def wire(
    name: str | None = None,
    *,
    short: str | None = None,
    default: Any = MISSING,
    default_factory: Callable[[], Any] | Any = MISSING,
    is_secret: bool = False,
) -> Any:
    """A field of another name in JSON and in headers; `short` is the one in send requests of the V2 form.

    Without a default it is required. A secret one is left out where the value is shown.
    """
    metadata = {"wire": name, "short": short}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata, repr=not is_secret, hash=False)
    return field(default=default, metadata=metadata, repr=not is_secret)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(wire, field))
class WireType(type):
    """Makes each class a frozen dataclass with keyword arguments; with `kw_only=False` they may stand in their order, too."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, kw_only: bool = True) -> Any:
        """The class as a dataclass."""
        made = super().__new__(cls, name, bases, namespace if bases else {**_SHARED, **namespace})
        return dataclass(frozen=True, kw_only=kw_only, repr=False, eq=False)(made)


# What `dataclass` would make for each of hundreds of classes, at the start of every process that speaks the protocol.


@cache
def _values_of(made: type) -> Callable[[Any], Any]:
    """Gives the values of an object's fields."""
    names = [found.name for found in fields(made)]
    return attrgetter(*names) if names else lambda value: ()


def _is_equal(self: Any, other: object) -> Any:
    made: type = type(self)
    values = _values_of(made)
    return values(self) == values(other) if type(other) is made else NotImplemented


def _hash_of(self: Any) -> int:
    return hash(tuple(getattr(self, found.name) for found in fields(self) if found.hash is not False))


@recursive_repr()
def _shown(self: Any) -> str:
    shown = ", ".join(f"{found.name}={getattr(self, found.name)!r}" for found in fields(self) if found.repr)
    return f"{type(self).__qualname__}({shown})"


_SHARED: Mapping[str, Any] = {"__eq__": _is_equal, "__hash__": _hash_of, "__repr__": _shown}


class LikeNames:
    """The names of an object's fields, for objects from clients that spell them in their own way.

    Java: JavaBeanDeserializer.smartMatch.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._by_letters = {_letters(name): name for name in self._names}

    def spelt(self, found: dict[str, Any]) -> dict[str, Any]:
        """The object with its fields under their names; the same one where nothing is spelt differently."""
        if found.keys() <= self._names:
            return found
        like = {self._by_letters.get(_letters(name), name): value for name, value in found.items()}
        return like | {name: value for name, value in found.items() if name in self._names}


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def wire_name(found: Field[Any]) -> str:
    """The name of a field in JSON and in headers."""
    first, *rest = found.name.split("_")
    return found.metadata.get("wire") or first + "".join(part.capitalize() for part in rest)


def is_required(found: Field[Any]) -> bool:
    """Whether a field has no default."""
    return found.default is MISSING and found.default_factory is MISSING


def fits(value: int, bits: int) -> bool:
    """Whether a signed number of that many bits holds the value."""
    return -(1 << bits - 1) <= value < 1 << bits - 1


class WireBody(metaclass=WireType):
    """Base of all objects that stand as JSON: bodies on the wire, entries of the tables under `config/`."""


class MessageQueue(NamedTuple):
    """A queue of a topic at a broker, in Java's order of sorting."""

    topic: str
    broker_name: str
    queue_id: int


class BadValueError(Exception):
    """A value is none of its type. What reads the object around it adds the place."""

    def __init__(self, found: object, rule: str, place: str = "") -> None:
        super().__init__(found, rule, place)
        self.found = found
        self.rule = rule
        self.place = place

    def within(self, place: str) -> BadValueError:
        """The same, seen from outside."""
        between = "." if self.place and not self.place.startswith("[") else ""
        return BadValueError(self.found, self.rule, f"{place}{between}{self.place}")


class JsonCodec(NamedTuple):
    """How values of one type are read from parsed JSON, and written."""

    read: _Reader
    """Raises BadValueError."""
    write: _Writer


@cache
def codec_of(body_class: type[WireBody]) -> JsonCodec:
    """The codec of a class of objects."""
    hints = get_type_hints(body_class, include_extras=True)
    table = sorted(((wire_name(found), found) for found in fields(body_class)), key=lambda row: row[0])
    codecs = [(name, found, _codec_of(hints[found.name])) for name, found in table]
    return JsonCodec(_object_reader(body_class, codecs), _object_writer(codecs))


def _object_reader(body_class: type[WireBody], codecs: list[tuple[str, Field[Any], JsonCodec]]) -> _Reader:
    rows = [(name, found.name, codec.read, is_required(found)) for name, found, codec in codecs]
    names = LikeNames(name for name, *_ in rows)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise BadValueError(value, "it must be an object")
        value = names.spelt(value)
        values = {}
        for name, attribute, read_value, is_needed in rows:
            found = value.get(name)
            if found is None:
                if is_needed:
                    raise BadValueError(None, "it is required", name)
                continue
            try:
                value_read = read_value(found)
            except BadValueError as error:
                raise error.within(name) from None
            if value_read is not None:
                values[attribute] = value_read
        return body_class(**values)

    return read


def _object_writer(codecs: list[tuple[str, Field[Any], JsonCodec]]) -> _Writer:
    rows = [(f"{quoted(name)}:", found.name, codec.write) for name, found, codec in codecs]

    def write(value: Any) -> str:
        pieces = [
            key + write_value(found)
            for key, attribute, write_value in rows
            if (found := getattr(value, attribute)) is not None
        ]
        return f"{{{','.join(pieces)}}}"

    return write


def _codec_of(hint: Any) -> JsonCodec:
    if type(None) in get_args(hint):
        (hint,) = (kind for kind in get_args(hint) if kind is not type(None))
    origin, parts = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, WireBody):
        return _nested_codec(hint)
    if origin is tuple:
        return list_codec(_codec_of(parts[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):  # Annotated is no class from Python 3.13 on
        return _map_codec(_key_codec(parts[0]), _codec_of(parts[1]))
    said = hint.__metadata__[0]
    return JsonCodec(_number_reader(said), str) if isinstance(said, int) else JsonCodec(_enum_reader(said), quoted)


def _nested_codec(body_class: type[WireBody]) -> JsonCodec:
    """The codec of a body within a body; it looks at what that holds when it meets one."""
    return JsonCodec(lambda value: codec_of(body_class).read(value), lambda value: codec_of(body_class).write(value))


def list_codec(item: JsonCodec) -> JsonCodec:
    read_item, write_item = item

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise BadValueError(value, "it must be a list")
        items: list[Any] = []
        try:
            for found in value:
                items.append(read_item(found))
        except BadValueError as error:
            raise error.within(f"[{len(items)}]") from None
        return tuple(items)

    return JsonCodec(read, lambda value: f"[{','.join(map(write_item, value))}]")


def _map_codec(key: JsonCodec, item: JsonCodec) -> JsonCodec:
    read_key, write_key = key
    read_item, write_item = item

    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise BadValueError(value, "it must be an object")
        items = {}
        for name, found in value.items():
            try:
                items[read_key(name)] = read_item(found)
            except BadValueError as error:
                raise error.within(f"[{name[:80]}]") from None
        return items

    def write(value: Mapping[Any, Any]) -> str:
        return f"{{{','.join([f'{write_key(name)}:{write_item(found)}' for name, found in value.items()])}}}"

    return JsonCodec(read, write)


def _number_reader(bits: int) -> _Reader:
    def read(value: Any) -> int:
        if (type(value) is str and _NUMBER.fullmatch(value)) or (type(value) is float and value.is_integer()):
            value = int(value)
        if type(value) is not int or not fits(value, bits):
            raise BadValueError(value, f"it must be a number of {bits} bits")
        return value

    return read


def _enum_reader(kind: type[Enum]) -> _Reader:
    names, members = kind.__members__, tuple(kind)

    def read(value: Any) -> Enum | None:
        if type(value) is int and 0 <= value < len(members):
            return members[value]
        if not isinstance(value, str):
            raise BadValueError(value, f"it must be a name of {kind.__name__}, or its position")
        return names.get(value)

    return read


def _key_codec(hint: Any) -> JsonCodec:
    if hint in (str, MessageQueue):
        return JsonCodec(_read_queue_key, _write_queue) if hint is MessageQueue else _PLAIN[str]
    read_number = _number_reader(hint.__metadata__[0])
    return JsonCodec(lambda key: read_number(int(key) if _NUMBER.fullmatch(key) else key), str)


def _read_queue_key(key: str) -> MessageQueue:
    try:
        value = _KEYS.decode(key)
    except (ValueError, RecursionError):
        raise BadValueError(key, "the key must be a queue") from None
    return _read_queue(value)


def _read_queue(value: Any) -> MessageQueue:
    if isinstance(value, dict):
        value = _QUEUE_NAMES.spelt(value)
        topic, broker_name, queue_id = value.get("topic"), value.get("brokerName"), value.get("queueId")
        if isinstance(topic, str) and isinstance(broker_name, str):
            return MessageQueue(topic, broker_name, _read_int(queue_id))
    raise BadValueError(value, "it must be a queue: brokerName, queueId and topic")


def _write_queue(queue: MessageQueue) -> str:
    return f'{{"brokerName":{quoted(queue.broker_name)},"queueId":{queue.queue_id},"topic":{quoted(queue.topic)}}}'


_QUEUE_NAMES = LikeNames(("topic", "brokerName", "queueId"))
_read_int = _number_reader(32)


def _read_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise BadValueError(value, "it must be a string")
    return value


def _read_bool(value: Any) -> bool:
    found = _BOOLEANS.get(value.lower() if isinstance(value, str) else value) if isinstance(value, str | int) else None
    if found is None:
        raise BadValueError(value, "it must be true or false")
    return found


def _read_double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValueError(value, "it must be a number")
    try:
        return float(value)
    except OverflowError:
        raise BadValueError(value, "it must be a number that a double holds") from None


def _read_bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        raise BadValueError(value, "it must be bytes in base64") from None


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


_PLAIN: Mapping[Any, JsonCodec] = {
    str: JsonCodec(_read_text, quoted),
    bool: JsonCodec(_read_bool, lambda value: "true" if value else "false"),
    float: JsonCodec(_read_double, lambda value: double_text(float(value))),
    bytes: JsonCodec(_read_bytes, lambda value: f'"{base64.b64encode(value).decode("ascii")}"'),
    MessageQueue: JsonCodec(_read_queue, _write_queue),
    Any: JsonCodec(lambda value: value, _write_any),
}


TEXT = _PLAIN[str]
"""The codec of plain strings."""


def standard_json(text: str) -> bytes:
    """fastjson's text with BrowserCompatible, QuoteFieldNames and MapSortField: all keys quoted and sorted, ASCII alone."""
    sorted_text = _write_any(parse_sent(text), is_sorted=True).replace("/", "\\/")  # which stands in strings alone
    return _BEYOND_ASCII.sub(lambda found: _as_units(found.group()), sorted_text).encode("ascii")


def _as_units(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2))


PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
BATCH_QUEUES = "BatchCQ"
"""The value of a topic's attribute `queue.type`."""


class DataVersion(WireBody, kw_only=False):
    """The version of a table, by which name servers and slaves notice a change. Java: DataVersion.

    Two tables are the same if all three numbers are. Outside controller mode `state_version` is 0.
    """

    counter: Long = 0
    """How many changes there were."""
    timestamp_ms: Long = wire("timestamp", default=0)
    """When the last one was."""
    state_version: Long = 0

    def raised(self, now_ms: int) -> DataVersion:
        """The version after one more change (Java: nextVersion)."""
        return DataVersion(self.counter + 1, now_ms)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], file: str | None = None) -> DataVersion:
        """The `dataVersion` of a state file's document; a missing one or a missing number is 0. StateFileError if it is none."""
        found = document.get("dataVersion")
        try:
            read: DataVersion = codec_of(cls).read({} if found is None else found)
        except BadValueError as error:
            place = "".join(f".{part}" for part in [error.place] if part)
            raise StateFileError(file, 0, 0, f"dataVersion{place}: {error.rule}, found {error.found!r:.40}") from None
        return read

    def to_document(self) -> dict[str, int]:
        """The fields in the order of a broker's file."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}


class TopicConfig(WireBody, kw_only=False):
    """One topic as a broker holds it. Java: TopicConfig.

    Queue ids run from 0; a client may read the first `read_queue_count`, write to the first `write_queue_count`.
    """

    topic: str = wire("topicName", default="")
    """Empty where a process does not say it: then the name in the table around it counts."""
    read_queue_count: Int = wire("readQueueNums", default=16)
    write_queue_count: Int = wire("writeQueueNums", default=16)
    perm: Int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_batched(self) -> bool:
        """Whether its consume queues are batch queues. Java: QueueTypeUtils.isBatchCq."""
        return self.attributes.get("queue.type") == BATCH_QUEUES

    @property
    def is_compacted(self) -> bool:
        """Whether its broker keeps only the newest message of each key for consumers. Java: CleanupPolicyUtils.isCompaction."""
        return self.attributes.get("cleanup.policy") == "COMPACTION"


class SubscriptionGroupConfig(WireBody, kw_only=False):
    """One consumer group as a broker holds it. Java: SubscriptionGroupConfig."""

    group: str = wire("groupName")
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_count: Int = wire("retryQueueNums", default=1)
    retry_max_times: Int = 16
    group_retry_policy: Mapping[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"}, hash=False)
    broker_id: Long = 0
    which_broker_when_consume_slowly: Long = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int = 0
    consume_timeout_minutes: Int = wire("consumeTimeoutMinute", default=15)
    subscription_data_set: tuple[Mapping[str, Any], ...] | None = field(default=None, hash=False)
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
