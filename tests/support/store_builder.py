"""A small store that a test writes as it goes: records, queue entries, new queues, deletions.

It does to the disk what a broker does, in a broker's order: the record, then its entry; files appear at their full
length, a record that does not fit into a file's rest goes to the next one behind a blank filler. There is no index, no
checkpoint and no recovery. It says nothing of what is right: golden content comes from the fixtures.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from storage.format.arrays import body_crc, string_hash, struct_of
from storage.format.consume_queue import ENTRY, ENTRY_SIZE
from storage.format.record import (
    BLANK,
    BLANK_SIZE,
    HEADER_SIZE,
    MAGIC_BLANK,
    Message,
    encode_record,
    has_queue_entry,
)

HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
START_MS = 1_700_000_000_000  # the store time of the first message; each later one is a second later
PRE_BLANK_SIZE = 2**31 - 1


class StoreBuilder:
    """One store under `root`, which is created; the broker's name is that of the directory."""

    def __init__(self, root: Path, *, log_file_size_bytes: int = 16 << 10, queue_file_entries: int = 1_000) -> None:
        self.root = root
        self._log_file_size = log_file_size_bytes
        self._queue_file_size = queue_file_entries * ENTRY_SIZE
        self._log_end = 0
        self._queue_ends: dict[tuple[str, int], int] = {}
        self._clock_ms = START_MS
        (root / "commitlog").mkdir(parents=True)
        (root / "consumequeue").mkdir()

    def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | None = None,
        unique_key: str | None = None,
        store_time_ms: int | None = None,
        sys_flag: int = 0,
        properties: Mapping[str, str] | None = None,
    ) -> int:
        """Append a message and, unless it is a prepared or rolled back one, its entry. Returns its queue offset."""
        offset = self._queue_ends.get((topic, queue_id), 0)
        named = {"TAGS": tags, "KEYS": keys, "UNIQ_KEY": unique_key, **(properties or {})}
        message = self._message(
            topic, queue_id, offset, body.encode() if isinstance(body, str) else body, named, store_time_ms, sys_flag
        )
        place = self._append_record(message)
        if has_queue_entry(sys_flag):
            self.append_entry(topic, queue_id, place, message.size_bytes, string_hash(tags) if tags else 0)
        return offset

    def send_many(self, topic: str, count: int, *, queue_id: int = 0, prefix: str = "") -> list[str]:
        """Messages with the bodies `prefix` topic/queue/offset; returns the bodies."""
        bodies = []
        for _ in range(count):
            bodies.append(f"{prefix}{topic}/{queue_id}/{self.end(topic, queue_id)}")
            self.send(topic, bodies[-1], queue_id=queue_id)
        return bodies

    def append_entry(self, topic: str, queue_id: int, place: int, size_bytes: int, tags_code: int = 0) -> None:
        """A queue entry, whatever it points to."""
        offset = self._queue_ends.get((topic, queue_id), 0)
        position = offset * ENTRY_SIZE
        file_start = position - position % self._queue_file_size
        path = self.root / "consumequeue" / topic / str(queue_id) / f"{file_start:020d}"
        _write(path, self._queue_file_size, position - file_start, struct_of(ENTRY).pack(place, size_bytes, tags_code))
        self._queue_ends[topic, queue_id] = offset + 1

    def append_pre_blank(self, topic: str, queue_id: int, count: int) -> None:
        """Entries that only fill the room before a queue's first message."""
        for _ in range(count):
            self.append_entry(topic, queue_id, 0, PRE_BLANK_SIZE)

    def end(self, topic: str, queue_id: int = 0) -> int:
        """The offset that the queue's next message gets."""
        return self._queue_ends.get((topic, queue_id), 0)

    @property
    def log_files(self) -> list[Path]:
        return sorted((self.root / "commitlog").iterdir())

    def delete_oldest_log_file(self) -> None:
        """What retention does first; the queues' files stay."""
        self.log_files[0].unlink()

    def delete_topic(self, topic: str) -> None:
        """The topic's queues go, its records stay in the log. The next message makes it again, from offset 0."""
        shutil.rmtree(self.root / "consumequeue" / topic)
        self._queue_ends = {name: end for name, end in self._queue_ends.items() if name[0] != topic}

    def commit_group(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """config/consumerOffset.json with one group's next offsets, topic → queue id → offset."""
        table = {f"{topic}@{group}": {str(k): v for k, v in queues.items()} for topic, queues in offsets.items()}
        path = self.root / "config" / "consumerOffset.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"offsetTable": table}), encoding="utf-8")

    def _message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        body: bytes,
        properties: Mapping[str, str | None],
        store_time_ms: int | None,
        sys_flag: int,
    ) -> Message:
        raw = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value is not None).encode()
        self._clock_ms = self._clock_ms + 1_000 if store_time_ms is None else store_time_ms
        size = HEADER_SIZE + len(body) + 1 + len(topic.encode()) + 2 + len(raw)
        return Message(
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            commitlog_offset=self._room_for(size),
            size_bytes=size,
            flag=0,
            sys_flag=sys_flag,
            born_time_ms=self._clock_ms - 1,
            born_host=HOST,
            store_time_ms=self._clock_ms,
            store_host=HOST,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body_crc=body_crc(body),
            body=body,
            raw_properties=raw,
        )

    def _room_for(self, size_bytes: int) -> int:
        """Where a record of that size goes; fills up the file that it does not fit into."""
        file_end = (self._log_end // self._log_file_size + 1) * self._log_file_size
        if self._log_end + size_bytes + BLANK_SIZE > file_end:
            self._write_log(BLANK.pack(file_end - self._log_end, MAGIC_BLANK))
            self._log_end = file_end
        return self._log_end

    def _append_record(self, message: Message) -> int:
        place = self._log_end
        self._write_log(encode_record(message))
        self._log_end += message.size_bytes
        return place

    def _write_log(self, data: bytes) -> None:
        position = self._log_end % self._log_file_size
        path = self.root / "commitlog" / f"{self._log_end - position:020d}"
        _write(path, self._log_file_size, position, data)


def _write(path: Path, size_bytes: int, position: int, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if os.fstat(descriptor).st_size != size_bytes:
            os.ftruncate(descriptor, size_bytes)
        os.pwrite(descriptor, data, position)
    finally:
        os.close(descriptor)
