"""Lines of standard input become rows for `MessageStore.put_batch`: a body each, or a JSON object with the sink's columns each.

Whatever makes a line unusable is raised with its number, from 1, and, where there is one, the column.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import typer

from spark_mq.message_line import BODY, BODY_BASE64, CORRUPT
from spark_mq.source.column_names import COLUMN_NAMES, EARLIER_PLACE_COLUMN_NAMES
from storage.epoch_times import other_unit_rule
from storage.names import advice

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
    """What is wrong with the value of a column."""


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


def tell_overruled(other: str, topic: str) -> None:
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
