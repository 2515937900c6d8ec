"""Small stores made by hand: records, queue entries and checkpoints at the places that a test needs them.

Records are put together by `storage.format.record.encode_record`, which tests/format/test_record.py compares with the
broker's bytes; queue entries, fillers and the checkpoint are packed here once more, from the format's description.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from storage import Message, MessageStore, StoreConfig, open_store
from storage.format.record import MAGIC_V1, MAGIC_V2, encode_record

HOST_V4 = bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
HOST_V6 = bytes(15) + b"\x01" + struct.pack(">i", 10911)
FIRST_STORE_TIME_MS = 1_700_000_000_000
ENTRY = struct.Struct(">qiq")
PRE_BLANK = ENTRY.pack(0, 2**31 - 1, 0)


def raw_properties(properties: Mapping[str, str]) -> bytes:
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in properties.items())


def make_message(
    topic: str = "TopicA",
    queue_id: int = 0,
    queue_offset: int = 0,
    commitlog_offset: int = 0,
    *,
    body: bytes = b"body",
    properties: Mapping[str, str] | bytes = b"",
    store_time_ms: int = FIRST_STORE_TIME_MS,
    sys_flag: int = 0,
    magic: int = MAGIC_V1,
) -> Message:
    """A message whose size and body CRC are right; its hosts are of the kind that `sys_flag` says."""
    raw = properties if isinstance(properties, bytes) else raw_properties(properties)
    born_host, store_host = (HOST_V6 if sys_flag & bit else HOST_V4 for bit in (0x10, 0x20))
    topic_length_size = 2 if magic == MAGIC_V2 else 1
    return Message(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        commitlog_offset=commitlog_offset,
        size_bytes=72 + len(born_host) + len(store_host) + len(body) + topic_length_size + len(topic.encode())
        + 2 + len(raw),
        flag=0,
        sys_flag=sys_flag,
        born_time_ms=store_time_ms - 1,
        born_host=born_host,
        store_time_ms=store_time_ms,
        store_host=store_host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_crc=zlib.crc32(body) & 0x7FFFFFFF,
        body=body,
        raw_properties=raw,
        magic=magic,
    )  # fmt: skip


@dataclass(slots=True)
class StoreBuilder:
    """Writes a store as a broker does: a record into the log, then its entry into its queue.

    Log files of 4 KiB and queue files of 20 entries, as `StoreConfig.tiny()` says. `end` is where the next record goes; set
    it before the first one to begin the log elsewhere.
    """

    root: Path
    end: int = 0
    log_file_size: int = 4096
    queue_file_size: int = 400
    store_time_ms: int = FIRST_STORE_TIME_MS
    messages: list[Message] = field(default_factory=list)
    queue_ends: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("commitlog", "consumequeue", "index"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self._log_file(self.end)

    def put(self, topic: str = "TopicA", queue_id: int = 0, *, entered: bool = True, **fields: Any) -> Message:
        """Append one message, with a queue entry unless not `entered`."""
        message = self.next_message(topic, queue_id, **fields)
        self.write_log(message.commitlog_offset, encode_record(message))
        self.count(message)
        if entered:
            self.enter(message)
        return message

    def next_message(self, topic: str = "TopicA", queue_id: int = 0, **fields: Any) -> Message:
        """The message that `put` would write, at its place; rolls to a new log file, but writes no record."""
        fields.setdefault("queue_offset", self.queue_ends.get((topic, queue_id), 0))
        fields.setdefault("store_time_ms", self.store_time_ms)
        message = make_message(topic, queue_id, **fields)
        room = self.log_file_size - self.end % self.log_file_size
        if message.size_bytes + 8 > room:
            self.write_log(self.end, struct.pack(">iI", room, 0xCBD43194))
            self.end += room
            self._log_file(self.end)
        return replace(message, commitlog_offset=self.end)

    def count(self, message: Message) -> None:
        """Go on behind a message that now stands in the log."""
        self.messages.append(message)
        self.end = message.commitlog_offset + message.size_bytes
        self.store_time_ms = message.store_time_ms + 1_000
        self.queue_ends[message.topic, message.queue_id] = message.queue_offset + 1

    def enter(self, message: Message, tags_code: int = 0) -> None:
        self.write_entry(
            message.topic,
            message.queue_id,
            message.queue_offset,
            message.commitlog_offset,
            message.size_bytes,
            tags_code,
        )

    def write_entry(
        self, topic: str, queue_id: int, queue_offset: int, commitlog_offset: int, size_bytes: int, tags_code: int = 0
    ) -> None:
        """A queue entry, whatever it claims; room before the first one of a new queue is pre-blank."""
        self.write_entry_bytes(topic, queue_id, queue_offset, ENTRY.pack(commitlog_offset, size_bytes, tags_code))

    def write_entry_bytes(self, topic: str, queue_id: int, queue_offset: int, entry: bytes) -> None:
        directory = self.queue_directory(topic, queue_id)
        start = queue_offset * 20 // self.queue_file_size * self.queue_file_size
        path = directory / f"{start:020d}"
        if not path.exists():
            is_first = not directory.exists()
            directory.mkdir(parents=True, exist_ok=True)
            _create(path, self.queue_file_size)
            if is_first:
                _write(path, 0, PRE_BLANK * (queue_offset - start // 20))
        _write(path, queue_offset * 20 - start, entry)

    def queue_directory(self, topic: str, queue_id: int) -> Path:
        return self.root / "consumequeue" / topic / str(queue_id)

    def write_log(self, commitlog_offset: int, data: bytes) -> None:
        """Any bytes anywhere in the log, within one file."""
        path = self._log_file(commitlog_offset)
        _write(path, commitlog_offset - int(path.name), data)

    def checkpoint(self, physic_ms: int, logics_ms: int | None = None, index_ms: int = 0) -> None:
        fields = struct.pack(">5q", physic_ms, physic_ms if logics_ms is None else logics_ms, index_ms, 0, 0)
        (self.root / "checkpoint").write_bytes(fields.ljust(4096, b"\0"))

    def abort(self) -> None:
        """The mark of a store that was not closed."""
        (self.root / "abort").touch()

    def open(self, **options: Any) -> MessageStore:
        return open_store(self.root, config=StoreConfig.tiny(), **options)

    def of_queue(self, topic: str = "TopicA", queue_id: int = 0) -> list[Message]:
        return [message for message in self.messages if (message.topic, message.queue_id) == (topic, queue_id)]

    def _log_file(self, commitlog_offset: int) -> Path:
        path = self.root / "commitlog" / f"{commitlog_offset // self.log_file_size * self.log_file_size:020d}"
        if not path.exists():
            _create(path, self.log_file_size)
        return path


def _create(path: Path, size_bytes: int) -> None:
    with path.open("xb") as file:
        file.truncate(size_bytes)


def _write(path: Path, position: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        assert os.pwrite(descriptor, data, position) == len(data)
    finally:
        os.close(descriptor)
