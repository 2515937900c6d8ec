"""Messages as lines of JSON, whose names are the columns of the Spark source: dump, query, consume and quarantine print them, produce
reads them.

Three things JSON cannot say as Spark does: times are milliseconds since 1970; `properties` is an object; a body that is not UTF-8 is
`body_base64`. `dump --java` has the same messages with the fields and names of Apache's tools, so that the output of two
implementations can be compared line by line.

`dump -f` and `consume -f` print a message in a line of the user's own form, with kcat's words:

    %t topic · %p queue · %o queue offset · %k keys · %s body · %T store time in ms · %h properties (name=value,…)
    %K, %S length of keys and body in bytes, −1 without · %R the body's length, 4 bytes, big-endian
    %% \\n \\r \\t \\xHH as in kcat, and \\\\ a backslash. Nothing is added: a format ends with \\n where it shall be a line

Departures from kcat, whose messages have partitions and one key: %p is RocketMQ's queue id, which each broker counts from 0; %k are all
keys, with blanks between them. Words of our own: %b broker, %g tag, %u unique key, %i message id.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import typer

from spark_mq.source.rows import COLUMN_NAMES, EARLIER_PLACE_COLUMN_NAMES
from spark_mq.terminal import UsageError, print_json
from storage import MessageStore
from storage.epoch_times import other_unit_rule
from storage.errors import CorruptMessageError, StorageError
from storage.format.consume_queue import MAX_EXT_ADDRESS
from storage.format.record import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_ZSTD, Message, host_text
from storage.names import advice

BODY = "body"
BODY_BASE64 = "body_base64"
CORRUPT = "_corrupt"


class Unreadable(NamedTuple):
    """A queue offset that gives no message."""

    topic: str
    queue_id: int
    queue_offset: int
    reason: str

    def describe(self) -> str:
        """In one sentence."""
        return f"{self.topic} queue {self.queue_id} offset {self.queue_offset}: {self.reason}"


def message_line(message: Message, *, broker_name: str | None = None, body: bool = False) -> dict[str, Any]:
    """The message's columns, in their order; without `broker_name` if it is not known; with the body only if `body`."""
    line: dict[str, Any] = {"topic": message.topic}
    if broker_name is not None:
        line["broker_name"] = broker_name
    line |= {
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "unique_key": message.unique_key,
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
    }
    if body:
        line |= _body(message)
    return line | {
        "properties": message.properties,
        "born_timestamp": message.born_time_ms,
        "store_timestamp": message.store_time_ms,
        "born_host": host_text(message.born_host),
        "store_host": host_text(message.store_host),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "body_crc": message.body_crc,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "commitlog_offset": message.commitlog_offset,
        "store_size": message.size_bytes,
    }


def queue_lines(
    store: MessageStore, topic: str, queue_id: int, start: int, end: int, *, broker_name: str, body: bool
) -> Iterator[dict[str, Any] | Unreadable]:
    """`queue_messages` as objects to print."""
    for found in queue_messages(store, topic, queue_id, start, end):
        yield found if isinstance(found, Unreadable) else message_line(found, broker_name=broker_name, body=body)


def queue_messages(
    store: MessageStore, topic: str, queue_id: int, start: int, end: int
) -> Iterator[Message | Unreadable]:
    """The messages at queue offsets [start, end) that are there. An entry that leads to no message of the queue is Unreadable."""
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return
    first, last = max(store.min_offset(topic, queue_id), start), min(end, store.max_offset(topic, queue_id))
    for offset in range(first, last):
        try:
            message = queue.message_at(offset, store.log, store.log_end)
        except StorageError as error:
            yield Unreadable(topic, queue_id, offset, str(error))
            continue
        if (message.topic, message.queue_id, message.queue_offset) == (topic, queue_id, offset):
            yield message
        else:
            of = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
            yield Unreadable(topic, queue_id, offset, f"its entry leads to the message of {of}")


def _body(message: Message) -> dict[str, str | None]:
    """For a body that does not decompress: null and the reason, as the source gives with mode=PERMISSIVE."""
    try:
        body = message.plain_body
    except CorruptMessageError as error:
        return {BODY: None, CORRUPT: error.reason}
    try:
        return {BODY: body.decode()}
    except UnicodeDecodeError:
        return {BODY_BASE64: b64encode(body).decode()}


# As Apache's tools have it

_COMPRESSION_NAMES = {COMPRESSION_LZ4: "LZ4", COMPRESSION_ZSTD: "ZSTD"}


def dump_queue(
    store: MessageStore,
    topic: str,
    queue_id: int,
    start: int | None = None,
    end: int | None = None,
    *,
    bodies: bool = False,
) -> Iterator[dict[str, Any]]:
    """The messages at queue offsets [start, end) of one queue, those that are there; `bodies` adds the stored body as text.

    An offset without a visible message gives a line with `error` and the reason.
    """
    first = max(store.min_offset(topic, queue_id), start or 0)
    last = store.max_offset(topic, queue_id) if end is None else min(end, store.max_offset(topic, queue_id))
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return
    ext = store.queues.ext(topic, queue_id)
    for offset in range(first, last):
        commitlog_offset, size, tags_code = queue.entries(offset, offset + 1)[0].tolist()
        line: dict[str, Any] = {
            "type": "message",
            "cqTopic": topic,
            "cqQueueId": queue_id,
            "cqOffset": offset,
            "cqPhysicalOffset": commitlog_offset,
            "cqSize": size,
            "tagsCode": tags_code,
            "tagsCodeRaw": tags_code,
        }
        unit = ext.unit(tags_code) if tags_code <= MAX_EXT_ADDRESS else None
        if unit is not None:
            line["tagsCode"] = unit.tags_code
            line["ext"] = {
                "size": unit.size_bytes,
                "tagsCode": unit.tags_code,
                "msgStoreTime": unit.store_time_ms,
                "bitMap": unit.bit_map.hex() or None,
            }
        try:
            message = queue.message_at(offset, store.log, store.log_end)
        except StorageError as error:
            yield line | {"error": str(error)}
            continue
        line |= describe_message(message, record_of(store, commitlog_offset, size))
        yield line | described_body(message) if bodies else line


def described_body(message: Message) -> dict[str, Any]:
    """The body as text; null where it does not decompress (`describe_message` says so in `error`)."""
    try:
        return {"body": message.plain_body.decode(errors="replace")}
    except CorruptMessageError:
        return {"body": None}


def record_of(store: MessageStore, commitlog_offset: int, size_bytes: int) -> bytes | None:
    """The record's bytes; None of one that has moved into tiered storage."""
    return None if commitlog_offset < store.log.minimum else store.log.bytes_at(commitlog_offset, size_bytes)


def describe_message(message: Message, record: bytes | None) -> dict[str, Any]:
    """The fields of a decoded record; `record` is its bytes. A body that does not decompress gives an `error` with the reason."""
    line = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.commitlog_offset,
        "storeSize": message.size_bytes,
        "bodyCRC": message.body_crc,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_time_ms,
        "bornHost": host_text(message.born_host),
        "storeTimestamp": message.store_time_ms,
        "storeHost": host_text(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "msgId": message.msg_id,
        "properties": dict(sorted(message.properties.items())),
        "bodyLen": len(message.body),
        "bodySha256": _sha256(message.body),
        "recordSha256": None if record is None else _sha256(record),
        "magic": f"{message.magic:08x}",
    }
    if record is None:
        del line["recordSha256"]
    if message.sys_flag & COMPRESSED:
        line["compressType"] = _COMPRESSION_NAMES.get(message.sys_flag & COMPRESSION_MASK, "ZLIB")
        try:
            plain = message.plain_body
        except CorruptMessageError as error:
            return line | {"error": str(error)}
        line |= {"plainBodyLen": len(plain), "plainBodySha256": _sha256(plain)}
    return line


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Read from standard input

BATCH_LINES = 1_000
BATCH_BYTES = 16 << 20
_OF_JAVA = "cqTopic"


class Line(NamedTuple):
    """A line without its end, and which it is."""

    number: int
    content: bytes


class LineError(Exception):
    """A line that is no message; `column` is None where it is not even a row."""

    def __init__(self, number: int, column: str | None, rule: str) -> None:
        super().__init__(number, column, rule)
        self.number = number
        self.column = column
        self.rule = rule

    def describe(self) -> str:
        """In one sentence."""
        return f"line {self.number}{'' if self.column is None else f', column {self.column}'}: {self.rule}"


class _ValueError(Exception):
    """The error about the value of a column."""


def read_lines(stream: Iterable[bytes], *, skip_blank: bool) -> Iterator[list[Line]]:
    """The lines by BATCH_LINES, or by fewer where they have BATCH_BYTES together. A line ends with LF or CR LF."""
    batch: list[Line] = []
    size = 0
    for number, line in enumerate(stream, start=1):
        content = line.removesuffix(b"\n").removesuffix(b"\r")
        if skip_blank and not content.strip():
            continue
        batch.append(Line(number, content))
        size += len(content)
        if len(batch) >= BATCH_LINES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def look_like_objects(lines: Sequence[Line]) -> bool:
    """Whether each line stands in braces and the first is a JSON object: parsing all of them would cost more than a notice is worth."""
    texts = [line.content.strip() for line in lines]
    if not all(text.startswith(b"{") and text.endswith(b"}") for text in texts):
        return False
    try:
        return all(isinstance(json.loads(text), dict) for text in texts[:1])
    except (ValueError, RecursionError):
        return False


def rows_of_bodies(lines: Sequence[Line]) -> pa.RecordBatch:
    """A row a line: its bytes are the body, an empty line is an empty body."""
    return pa.record_batch({"body": pa.array([line.content for line in lines], pa.large_binary())})


def rows_of_objects(lines: Sequence[Line]) -> pa.RecordBatch:
    """A row a line, each an object. Columns that a line does not have are null. Raises LineError.

    Other columns of the Spark source are passed over, as the Spark sink does.
    """
    rows = parse_objects(lines)
    columns = {name: pa.array([row.get(name) for row in rows], kind) for name, (kind, _) in _COLUMNS.items()}
    return pa.record_batch(columns)


def say_overruled(other: str, topic: str) -> None:
    """Say on stderr, once a run, that a line names another topic than the command line, which comes before it."""
    typer.echo(f"lines name topic {other}: all are written to {topic}, as --topic says", err=True)


def parse_objects(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The columns that each line has, by their names. Raises LineError."""
    return [_row(line) for line in lines]


def _row(line: Line) -> dict[str, Any]:
    try:
        found = json.loads(line.content)
    except json.JSONDecodeError as error:
        raise LineError(line.number, None, f"it is no JSON: {error.msg} at character {error.colno}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, a number without end, brackets without end
        raise LineError(line.number, None, f"it is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise LineError(line.number, None, f"expected a JSON object, found {_shown(found)}")
    if _OF_JAVA in found:
        raise LineError(line.number, None, "it is a line of `dump --java`, which is for comparing: leave --java away")
    if found.get(CORRUPT) is not None:
        raise LineError(
            line.number, CORRUPT, f"its body is not to be had: {_shown(found[CORRUPT])}; leave the line out"
        )
    if BODY_BASE64 in found and BODY in found:
        raise LineError(line.number, BODY_BASE64, "it is there beside body")
    if BODY_BASE64 not in found and found.get(BODY) is None:
        of_dump = "; dump prints it with --bodies" if "queue_offset" in found else ""
        raise LineError(line.number, BODY, f"it is missing, and body_base64 too{of_dump}")
    row = {}
    for name, value in found.items():
        if name == BODY_BASE64:
            row[BODY] = _checked(line, name, value, _base64)
        elif name not in _COLUMNS and name not in (*COLUMN_NAMES, *EARLIER_PLACE_COLUMN_NAMES, CORRUPT):
            taken = [*_COLUMNS, BODY_BASE64]
            rule = f"there is no such column{advice(name, taken)}; a line may have {', '.join(taken)}"
            raise LineError(line.number, name, rule)
        elif name in _COLUMNS and value is not None:
            row[name] = _checked(line, name, value, _COLUMNS[name][1])
    return row


def _checked(line: Line, column: str, value: object, parse: Callable[[object], object]) -> object:
    try:
        return parse(value)
    except _ValueError as error:
        raise LineError(line.number, column, str(error)) from error


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:40] + "…"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _ValueError(f"expected a text, found {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _ValueError("it holds half of a surrogate pair, which is no character") from error
    return value


def _base64(value: object) -> bytes:
    try:
        return b64decode(_text(value), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _ValueError(f"it is no base64: {error}") from error


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise _ValueError(f"expected a whole number of 64 bits, found {_shown(value)}")
    return value


def _time_ms(value: object) -> int:
    time_ms = _integer(value)
    if rule := other_unit_rule(time_ms):
        raise _ValueError(rule)
    return time_ms


def _keys(value: object) -> str:
    """Property KEYS: a text as it is, in which blanks separate keys; of a list each key that is not empty."""
    if not isinstance(value, str | list):
        raise _ValueError(f"expected a text or a list of texts, found {_shown(value)}")
    if isinstance(value, str):
        return _text(value)
    keys = [_text(key) for key in value]
    if any(" " in key for key in keys):
        raise _ValueError("a key of the list holds a blank: a reader would take it for two keys")
    return " ".join(key for key in keys if key)


def _properties(value: object) -> list[tuple[str, str]]:
    if not isinstance(value, dict):
        raise _ValueError(f"expected an object, found {_shown(value)}")
    return [(_text(name), _text(text)) for name, text in value.items()]


_COLUMNS: dict[str, tuple[pa.DataType, Callable[[Any], Any]]] = {
    "body": (pa.large_binary(), lambda value: _text(value).encode()),
    "topic": (pa.string(), _text),
    "tags": (pa.string(), _text),
    "keys": (pa.string(), _keys),
    "properties": (pa.map_(pa.string(), pa.string()), _properties),
    "flag": (pa.int64(), _integer),
    "born_timestamp": (pa.int64(), _time_ms),
    "queue_id": (pa.int64(), _integer),
    "sharding_key": (pa.string(), _text),
    "delay_level": (pa.int64(), _integer),
    "deliver_at": (pa.int64(), _time_ms),
    "retry_group": (pa.string(), _text),
    "reconsume_times": (pa.int64(), _integer),
    "origin_msg_id": (pa.string(), _text),
    "unique_key": (pa.string(), _text),
}


MessageLine = Mapping[str, Any]

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_TOKEN = re.compile(r"%(?P<word>.?)|\\x(?P<hex>[0-9a-fA-F]{1,2})|\\(?P<escape>.?)", re.DOTALL)


def _as_bytes(value: object) -> bytes:
    return b"" if value is None else str(value).encode(errors="surrogateescape")


def _column(name: str) -> Callable[[MessageLine], bytes]:
    return lambda line: _as_bytes(line.get(name))


def body_of(line: MessageLine) -> bytes | None:
    """The body's bytes; None where it does not decompress."""
    if BODY_BASE64 in line:
        return b64decode(line[BODY_BASE64])
    body: str | None = line.get(BODY)
    return None if body is None else body.encode()


def _keys_of(line: MessageLine) -> bytes | None:
    return None if line.get("keys") is None else _as_bytes(line["keys"])


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)


_WORDS: dict[str, Callable[[MessageLine], bytes]] = {
    "t": _column("topic"),
    "p": _column("queue_id"),
    "o": _column("queue_offset"),
    "T": _column("store_timestamp"),
    "b": _column("broker_name"),
    "g": _column("tags"),
    "u": _column("unique_key"),
    "i": _column("msg_id"),
    "k": lambda line: _keys_of(line) or b"",
    "K": lambda line: _as_bytes(_length(_keys_of(line))),
    "s": lambda line: body_of(line) or b"",
    "S": lambda line: _as_bytes(_length(body_of(line))),
    "R": lambda line: _length(body_of(line)).to_bytes(4, "big", signed=True),
    "h": lambda line: ",".join(f"{name}={text}" for name, text in line["properties"].items()).encode(
        errors="surrogateescape"
    ),
    "%": lambda _: b"%",
}


class LineFormat:
    """A form of messages. Raises UsageError for a word that is none."""

    def __init__(self, text: str) -> None:
        self._parts: list[bytes | Callable[[MessageLine], bytes]] = []
        end = 0
        for found in _TOKEN.finditer(text):
            self._parts.append(_as_bytes(text[end : found.start()]))
            self._parts.append(_part(found))
            end = found.end()
        self._parts.append(_as_bytes(text[end:]))

    def render(self, line: MessageLine) -> bytes:
        """A message, given as an object of dump with its body."""
        return b"".join(part if isinstance(part, bytes) else part(line) for part in self._parts)


def _part(found: re.Match[str]) -> bytes | Callable[[MessageLine], bytes]:
    if found["hex"] is not None:
        return bytes([int(found["hex"], 16)])
    if (escape := found["escape"]) is not None:
        if escape not in _ESCAPES:
            raise UsageError(f"-f: \\{escape} is no character; there are \\n \\r \\t \\xHH and \\\\")
        return _ESCAPES[escape]
    word = found["word"]
    if word not in _WORDS:
        known = " ".join(f"%{each}" for each in _WORDS)
        raise UsageError(f"-f: %{word} is no word of a format; there are {known}")
    return _WORDS[word]


Format = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--format",
        metavar="FORMAT",
        help="A message's form in kcat's words: %t topic, %p queue, %o offset, %k keys, %s body, %T time, %h properties, \\n, \\t.",
    ),
]


class Printer:
    """Writes messages to stdout, as JSON or in a form."""

    def __init__(self, form: LineFormat | None) -> None:
        self._form = form
        self.hidden = 0
        """How many bodies were unreadable, and the form did not show it, as JSON does. Each was named on stderr."""

    def print(self, line: dict[str, Any]) -> None:
        """Raises what stdout raises."""
        if self._form is None:
            print_json(line)
            return
        sys.stdout.buffer.write(self._form.render(line))
        if line.get(CORRUPT) is not None:
            self.hidden += 1
            where = f"{line['topic']} queue {line['queue_id']} offset {line['queue_offset']}"
            typer.echo(f"no body: {where}: {line[CORRUPT]}", err=True)


def printer_of(form: str | None) -> Printer:
    """Of the option --format. Raises UsageError."""
    return Printer(None if form is None else LineFormat(form))
