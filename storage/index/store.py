"""Look-up of messages by key: the files under ROOT/index. Java: IndexService, IndexFile.

A file gives log offsets at which a message with this key may lie: hashes collide, so the caller compares the key with the record.
Reading needs the geometry (slots and items), which is in no file.

ROOT/spark_mq/index_synced.json, which only this package reads, says how much of the index is known to be on the disk. Before a
commit's first index write the checkpoint's `indexMsgTimestamp` is raised to the store time of that commit, because a broker
deletes, on an unclean start, every index file that ends later. So that field is ahead of what is synced. After a killed
process it is right, as the system still has every byte. After a power loss it is not: then this file's time counts, and younger keys
are entered again from the log. That holds after a clean stop too, as a broker that started and stopped in between has trusted
the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from storage.errors import CorruptRecordError, IndexElsewhereError, IndexGeometryUnknownError, OffsetOutOfRangeError
from storage.files.file_system import FileSystem, ReadableFile
from storage.files.local_file_system import LocalFileSystem
from storage.format.java_hash import index_key_hash
from storage.format.keys import HEADER, HEADER_SIZE, ITEM, ITEM_STRUCT, SLOT, TAG_TYPE, index_file_size, index_key
from storage.format.record import Message
from storage.log.commit_log import CommitLog

NAME_DIGITS = 17
_BLOCK = 1 << 18
LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The header of one index file. `index_count` is the number of the next item: 1 in an empty file."""

    begin_time_ms: int
    end_time_ms: int
    begin_commitlog_offset: int
    end_commitlog_offset: int
    used_slot_count: int
    index_count: int


@dataclass(frozen=True, slots=True)
class IndexHit:
    """The log offset of an item, and the second of its store time."""

    commitlog_offset: int
    store_second_ms: int


class IndexFile:
    """One index file, read in small pieces."""

    def __init__(self, opened: ReadableFile, slot_count: int, item_count: int) -> None:
        if opened.size_bytes != index_file_size(slot_count, item_count):
            raise IndexGeometryUnknownError(opened.path, opened.size_bytes)
        self.path = opened.path
        self._file = opened
        self._slot_count = slot_count
        self._item_count = item_count
        self._items_start = HEADER_SIZE + SLOT.itemsize * slot_count

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def header(self) -> IndexHeader:
        """The present header: a running broker changes it with each key."""
        fields = np.frombuffer(self._file.view(0, HEADER_SIZE).tobytes(), HEADER)[0]
        begin, end, begin_offset, end_offset, used, count = (int(value) for value in fields.tolist())
        return IndexHeader(begin, end, begin_offset, end_offset, used, max(count, 1))

    @property
    def is_full(self) -> bool:
        return self.header().index_count >= self._item_count

    def lookup(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[IndexHit]:
        """Log offsets whose item has this hash and a second that touches [begin_ms, end_ms], newest first."""
        header = self.header()
        slot = self._file.view(HEADER_SIZE + SLOT.itemsize * (key_hash % self._slot_count), SLOT.itemsize)
        number = int.from_bytes(slot.tobytes(), "big", signed=True)
        while 0 < number <= min(header.index_count, self._item_count - 1):
            item = self._file.view(self._items_start + ITEM.itemsize * number, ITEM.itemsize)
            found_hash, commitlog_offset, difference, previous = ITEM_STRUCT.unpack(item.data)
            if found_hash == key_hash:
                # item 1 was stored at the file's begin time, but Java computes its difference from the file before
                for second_ms in (header.begin_time_ms,) * (number == 1) + (header.begin_time_ms + 1_000 * difference,):
                    if second_ms <= end_ms and second_ms + 999 >= begin_ms:
                        yield IndexHit(commitlog_offset, second_ms)
                        break
            if previous >= number:  # items point to older ones; anything else would be a loop
                return
            number = previous

    def items(self, start: int = 0, end: int | None = None) -> np.ndarray:
        """Written items from `start` to before `end`, without copying; number 0 is item 1, `end` None = all that are written."""
        count = self.header().index_count - 1
        count = (count if end is None else min(count, end)) - start
        view = self._file.view(self._items_start + ITEM.itemsize * (start + 1), ITEM.itemsize * max(0, count))
        return np.frombuffer(view, ITEM)

    def items_between(self, first: int, last: int) -> Iterator[np.ndarray]:
        """The items of records from log offset `first` to `last`, some at a time, where items ascend."""
        count = self.header().index_count - 1
        start, end = self._item_at(first, count), self._item_at(last + 1, count)
        for at in range(start, end, _BLOCK):
            yield self.items(at, min(end, at + _BLOCK))
            self.give_pages_back()

    def _item_at(self, commitlog_offset: int, count: int) -> int:
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self.items(middle, middle + 1)["commitlog_offset"][0] < commitlog_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def slots(self, start: int = 0, end: int | None = None) -> np.ndarray:
        """For the slots from `start` to before `end`, the newest item's number, int32; 0 = none."""
        count = (self._slot_count if end is None else min(self._slot_count, end)) - start
        view = self._file.view(HEADER_SIZE + SLOT.itemsize * start, SLOT.itemsize * count)
        return np.frombuffer(view, SLOT).astype(np.int32)

    def reachable_items(self) -> np.ndarray:
        """Which items a look-up can reach through their slot: a mask over `items()`.

        An item points to an older one, so they are processed from the newest on, a block at a time.
        """
        count = self.header().index_count - 1
        reachable = np.zeros(count + 1, bool)
        for start in range(0, self._slot_count, _BLOCK):
            heads = self.slots(start, start + _BLOCK)
            reachable[heads[(heads > 0) & (heads <= count)]] = True
            self.give_pages_back()
        for start in reversed(range(0, count, _BLOCK)):
            previous = self.items(start, start + _BLOCK)["previous_item"].astype(np.int64)
            numbers = np.arange(start + 1, start + 1 + len(previous))
            current = np.flatnonzero(reachable[numbers])
            while len(current):
                found = previous[current]
                found = found[(found > 0) & (found < numbers[current])]
                found = found[~reachable[found]]
                reachable[found] = True
                current = found[found > start] - start - 1
            self.give_pages_back()
        return reachable[1:]

    def give_pages_back(self) -> None:
        """Release the memory of what was read; a later read loads it again."""
        self._file.give_pages_back()

    def close(self) -> None:
        self._file.close()


class IndexStore:
    """The index files of a store, oldest first."""

    def __init__(
        self, file_system: FileSystem, root: str, slot_count: int, item_count: int, *, is_elsewhere: bool = False
    ) -> None:
        """`is_elsewhere`: keys are entered into RocksDB alone, so an answer of these files would be wrong."""
        self._is_elsewhere = is_elsewhere
        self._file_system = file_system
        self.directory = f"{root}/index"
        self.slot_count = slot_count
        self.item_count = item_count
        self._files: dict[str, IndexFile] = {}

    def files(self) -> list[IndexFile]:
        """The present files, oldest first; names that are no number are ignored, as in Java.

        Raises IndexGeometryUnknownError if a file does not have the length of the configured geometry.
        """
        names = [
            entry.name
            for entry in self._file_system.list_directory(self.directory)
            if is_index_name(entry.name) and entry.size_bytes
        ]
        for gone in self._files.keys() - set(names):
            self._files.pop(gone).close()
        for name in names:
            if name not in self._files:
                with suppress(FileNotFoundError):  # it expired since it was listed
                    opened = self._file_system.open_file(f"{self.directory}/{name}")
                    self._files[name] = IndexFile(opened, self.slot_count, self.item_count)
        return [self._files[name] for name in names if name in self._files]

    def require_files(self) -> None:
        """Raises IndexElsewhereError where the files cannot answer a look-up."""
        if self._is_elsewhere:
            raise IndexElsewhereError(self.directory)

    def lookup(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[IndexHit]:
        """Log offsets that may hold the key, newest first, each once."""
        seen: set[int] = set()
        for file in reversed(self.files()):
            for hit in file.lookup(key_hash, begin_ms, end_ms):
                if hit.commitlog_offset not in seen:
                    seen.add(hit.commitlog_offset)
                    yield hit

    def names(self, commitlog_offsets: np.ndarray) -> np.ndarray:
        """Which of these log offsets an item names; of negative ones none. Reads the items between the least and the greatest.

        Where a file's items do not ascend, as after some recoveries, it may miss one.
        """
        found = np.zeros(len(commitlog_offsets), bool)
        wanted = commitlog_offsets[commitlog_offsets >= 0]
        first, last = int(wanted.min(initial=LONG_MAX)), int(wanted.max(initial=-1))
        for file in self.files() if len(wanted) else ():
            header = file.header()
            if header.end_commitlog_offset < first or header.begin_commitlog_offset > last:
                continue
            for items in file.items_between(first, last):
                found |= np.isin(commitlog_offsets, items["commitlog_offset"].astype(np.int64))
        return found

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def is_index_name(name: str) -> bool:
    """Whether a file in index/ has an index file's name: a time, yyyyMMddHHmmssSSS."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def messages_with_key(
    index: IndexStore,
    log: CommitLog,
    log_end: int,
    topic: str,
    key: str,
    *,
    index_type: str | None = None,
    begin_ms: int = 0,
    end_ms: int = LONG_MAX,
) -> Iterator[Message]:
    """The messages of a topic with that key or unique key before `log_end`, newest first. The key is compared with the record's.

    With `index_type` TAG_TYPE `key` is their tags, as stored; only messages that a broker since 5.4 has indexed are found.
    The time range is Java's: by whole seconds of the store time. Raises IndexGeometryUnknownError if the index files do not have
    the configured or default geometry.
    """
    index.require_files()
    for hit in index.lookup(index_key_hash(index_key(topic, key, index_type)), begin_ms, end_ms):
        try:
            message = log.message_at(hit.commitlog_offset, log_end)
        except (OffsetOutOfRangeError, CorruptRecordError):
            continue  # the message has expired, or the item outlived a cut of the log
        if message.topic == topic and has_key(message, key, index_type):
            yield message


def has_key(message: Message, key: str, index_type: str | None) -> bool:
    """Whether it is one of the message's keys, its unique key or, with TAG_TYPE, its tags."""
    return key == message.tags if index_type == TAG_TYPE else key == message.unique_key or key in message.keys


class IndexTrust(NamedTuple):
    """Which index files are intact; both by their end time in ms."""

    keep_until_ms: int | None
    """Files that end later were partly lost; None = no file was."""
    synced_until_ms: int
    """Files that end at or after this time may have been left between their header and their slots."""

    def keeps(self, end_time_ms: int) -> bool:
        return self.keep_until_ms is None or end_time_ms <= self.keep_until_ms

    def is_synced(self, end_time_ms: int) -> bool:
        return end_time_ms < self.synced_until_ms  # later keys of that same millisecond may not be synced


_ALL = IndexTrust(None, 2**63 - 1)


def _path(root: str) -> str:
    return f"{root}/spark_mq/index_synced.json"


def save_index_trust(file_system: LocalFileSystem, root: str, synced_time_ms: int) -> None:
    """Note that index files that end at or before this store time are on the disk. Durable on return."""
    document = {"bootId": file_system.boot_id(), "indexSyncedTime": synced_time_ms}
    file_system.replace(_path(root), json.dumps(document).encode())


def has_index_trust(file_system: LocalFileSystem, root: str) -> bool:
    """Whether the checkpoint is ahead already. The known synced part changes only when a checkpoint is written."""
    return file_system.exists(_path(root))


def drop_index_trust(file_system: LocalFileSystem, root: str) -> None:
    """Note that all of the index is on the disk, and that the checkpoint says so."""
    if file_system.exists(_path(root)):
        file_system.unlink(_path(root))


def load_index_trust(
    file_system: LocalFileSystem, root: str, index_msg_timestamp: int, *, was_clean: bool = False
) -> IndexTrust:
    """How far to trust the index. If this package never raised the checkpoint ahead: all of it after a clean stop,
    up to the checkpoint's `index_msg_timestamp` after an unclean one.
    """
    content = file_system.read_file(_path(root))
    if content is None:
        return _ALL if was_clean else IndexTrust(index_msg_timestamp, index_msg_timestamp)
    try:
        document = json.loads(content)
        boot_id, synced = document["bootId"], min(int(document["indexSyncedTime"]), index_msg_timestamp)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return IndexTrust(0, 0)
    return IndexTrust(None if boot_id == file_system.boot_id() else synced, synced)
