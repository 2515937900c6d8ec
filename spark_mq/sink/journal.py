"""The journal of an exactly-once sink in its staging directory: intent and done, as values and as files.

    STAGING/SINK/lock           held by the process that commits
    STAGING/SINK/intent.json    the one batch that is decided and not done: its staged files, the offset in each queue where the search
                                for its rows begins, and the attempts that may still have requests in flight
    STAGING/SINK/done.json      the last sent batch, and the offsets of its rows in each queue
    STAGING/SINK/….rows         rows staged by tasks (`staged_rows.py`)

SINK is `sink_digest` in hex. Both files are one line of JSON and its CRC-32 in hex, replaced whole and synced. Writing the intent is
the commit point of a batch: before it, nothing of the batch is sent; after it, all of it will be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from isal import isal_zlib

from spark_mq.remoting import MessageQueue
from storage.batch.ledger import Batch
from storage.batch.staged_segment import sink_digest
from storage.errors import CorruptMessageError, StateFileError
from storage.files.local_file_system import LocalFileSystem
from storage.format.record import Message

_PATH = re.compile(r"[0-9]+-[0-9]+-[0-9a-f]{8}-[0-9a-zA-Z-]{1,100}\.rows")
_VERSION = 1


class StagedFile(NamedTuple):
    """The staged file of one task: everything that the commit must know about it."""

    name: str
    """BATCH-PARTITION-NONCE-….rows, in the sink's directory."""
    rows: int
    size_bytes: int
    table_start: int
    """The begin of the table; the bodies of the batches lie before."""
    data_crc: int
    table_crc: int

    @property
    def mark(self) -> str:
        """What the row marks of the file's rows have before their rank, behind the batch's prefix: `NONCE-PARTITION-`."""
        _, partition, nonce, _ = self.name.split("-", 3)
        return f"{nonce}-{partition}-"


class QueueSpan(NamedTuple):
    """Offsets [start, end) of a queue; an intent knows no end and repeats the start."""

    queue: MessageQueue
    start: int
    end: int


class Intent(NamedTuple):
    """A batch that is decided."""

    batch: Batch
    files: tuple[StagedFile, ...]
    """In the order in which their rows go into a queue."""
    spans: tuple[QueueSpan, ...]
    """The target queues, and where each ended before anything was sent."""
    groups: tuple[str, ...]
    """Producer groups of attempts that may have requests on their way; the last is the newest."""
    attempt: int


class Done(NamedTuple):
    """A batch that is sent."""

    batch: Batch
    spans: tuple[QueueSpan, ...]
    rows: int


def batch_prefix(batch: Batch) -> str:
    """The prefix of a batch's row marks, the same in every staging directory."""
    return f"{sink_digest(batch.sink_id, batch.query_id).hex()}-{batch.batch_id}-"


def attempt_group(batch: Batch, attempt: int, nonce: str) -> str:
    """The producer group of one attempt at a batch, which no other attempt ever has."""
    return f"SPARK_MQ_{sink_digest(batch.sink_id, batch.query_id).hex()}_{batch.batch_id}_{attempt}_{nonce}"


def encode(value: Intent | Done) -> bytes:
    """As one line of JSON."""
    document: dict[str, Any] = {"version": _VERSION, **value._asdict(), "batch": list(value.batch)}
    document["spans"] = [[*span.queue, span.start, span.end] for span in value.spans]
    return json.dumps(document, ensure_ascii=True).encode()


def decode_intent(content: bytes) -> Intent:
    """ValueError where it is none of this version."""
    document = _document(content, {"batch", "files", "spans", "groups", "attempt"})
    files = tuple(map(_staged_file, _list(document["files"])))
    groups = tuple(_list(document["groups"]))
    if not files or not groups or type(document["attempt"]) is not int or {*map(type, groups)} != {str}:
        raise ValueError("files, groups or attempt is missing")
    return Intent(_batch(document["batch"]), files, _spans(document["spans"]), groups, document["attempt"])


def decode_done(content: bytes) -> Done:
    """ValueError where it is none of this version."""
    document = _document(content, {"batch", "spans", "rows"})
    if type(document["rows"]) is not int:
        raise ValueError("rows is no number")
    return Done(_batch(document["batch"]), _spans(document["spans"]), document["rows"])


def announcement_of(record: Message, sink_id: str) -> Done | None:
    """The batch of that sink that a message of the sinks' topic announces; None if none: any client may send there."""
    try:
        done = decode_done(record.plain_body)
    except (ValueError, CorruptMessageError):
        return None
    # No sink announces an empty batch.
    is_announced = done.batch.sink_id == sink_id and bool(done.spans) and done.rows > 0
    return done if is_announced else None


def _document(content: bytes, names: set[str]) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(document, dict) or set(document) != names | {"version"} or document["version"] != _VERSION:
        raise ValueError("its fields or its version are others")
    return document


def _batch(values: Any) -> Batch:
    _check(values, (str, str, int))
    return Batch(*values)


def _spans(values: Any) -> tuple[QueueSpan, ...]:
    spans = []
    for value in _list(values):
        _check(value, (str, str, int, int, int))
        spans.append(QueueSpan(MessageQueue(*value[:3]), value[3], value[4]))
    return tuple(spans)


def _list(values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise ValueError(f"expected a list, found {values!r:.200}")
    return values


def _staged_file(values: Any) -> StagedFile:
    _check(values, (str, int, int, int, int, int))
    staged = StagedFile(*values)
    if not _PATH.fullmatch(staged.name) or not 0 <= staged.table_start <= staged.size_bytes:
        raise ValueError(f"{staged.name!r:.200} is no staged file")
    return staged


def _check(values: Any, kinds: tuple[type, ...]) -> None:
    if not isinstance(values, list) or [type(value) for value in values] != list(kinds):
        raise ValueError(f"expected a list of {len(kinds)} values, found {values!r:.200}")


ROWS_SUFFIX = ".rows"

T = TypeVar("T")


class Kept(NamedTuple):
    """The content of the directory."""

    intent: Intent | None
    done: Done | None


class Journal:
    """The directory of one sink."""

    def __init__(self, files: LocalFileSystem, staging: str, sink_id: str) -> None:
        self.files = files
        self.directory = sink_directory(staging, sink_id)

    @contextmanager
    def locked(self, timeout_ms: int) -> Iterator[None]:
        """Keep other commits of the sink away. Raises StoreLockedError when the time is over."""
        self.files.make_directories(self.directory)
        with self.files.locked(f"{self.directory}/lock", timeout_ms):
            yield

    def load(self) -> Kept:
        """Raises StateFileError for a file that was changed or torn."""
        return Kept(self._read("intent.json", decode_intent), self._read("done.json", decode_done))

    def save_intent(self, intent: Intent) -> None:
        """Durable when this returns."""
        self._write("intent.json", intent)

    def save_done(self, done: Done) -> None:
        """Durable when this returns."""
        self._write("done.json", done)

    def drop_intent(self) -> None:
        """Durable when this returns."""
        self.files.unlink(f"{self.directory}/intent.json")
        self.files.sync(self.directory)

    def drop_rows(self, batch_id: int) -> None:
        """Delete what tasks have staged for this batch and those before."""
        names = [entry.name for entry in self.files.list_directory(self.directory) if entry.name.endswith(ROWS_SUFFIX)]
        numbers = (name.partition("-")[0] for name in names)
        self.drop_files(
            name for name, number in zip(names, numbers, strict=True) if number.isdecimal() and int(number) <= batch_id
        )

    def drop_files(self, names: Iterable[str]) -> None:
        """Delete staged files."""
        for name in names:
            with suppress(FileNotFoundError):
                self.files.unlink(f"{self.directory}/{name}")

    def _read(self, name: str, decode: Callable[[bytes], T]) -> T | None:
        path = f"{self.directory}/{name}"
        content = self.files.read_file(path)
        if content is None:
            return None
        line, _, checksum = content.partition(b"\n")
        if checksum != f"{isal_zlib.crc32(line):08x}\n".encode():
            raise StateFileError(path, 2, 1, "the checksum is not that of the first line; the file was changed or torn")
        try:
            return decode(line)
        except ValueError as error:
            raise StateFileError(path, 1, 1, f"it is not of this version: {error}") from error

    def _write(self, name: str, value: Intent | Done) -> None:
        line = encode(value)
        self.files.replace(f"{self.directory}/{name}", line + b"\n" + f"{isal_zlib.crc32(line):08x}\n".encode())


def sink_directory(staging: str, sink_id: str) -> str:
    """The staging directory of a sink's tasks."""
    return f"{staging}/{sink_digest(sink_id, sink_id).hex()}"
