"""Entering keys into index files: many at once, new files as old ones fill up. Java: IndexService.buildIndex, IndexFile.putKey.

Items go to the disk as they come; a file's header and then its slots when the file is full or at `finish`. Until then a
reader sees the file as it was before. The header goes first: with slots that point behind the header's count Apache's
classes would lose the older keys of these slots, while items that no slot points to yet are merely not found. The next
recovery drops such a file, or takes its slots from its items.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import numpy as np

from storage.dispatch import IndexKeys
from storage.files.file_system import LocalFileSystem
from storage.format.index import HEADER_SIZE, HEADER_STRUCT, ITEM, SLOT, index_file_size
from storage.index_store import IndexFile, IndexHeader, IndexStore


class IndexWriter:
    """Appends to the last index file of a store, and to new ones behind it."""

    def __init__(self, file_system: LocalFileSystem, store: IndexStore, clock: Callable[[], int]) -> None:
        self._file_system = file_system
        self._store = store
        self._clock = clock
        self.written: list[str] = []
        self.key_count = 0
        self._path: str | None = None
        self._is_changed = False
        self._slots = np.empty(0, np.int32)
        self._header = IndexHeader(0, 0, 0, 0, 0, 1)
        files = store.files()
        self._last_name = files[-1].name if files else ""
        if files:
            self._header = files[-1].header()
            if not files[-1].is_full:
                self._open(files[-1])

    @property
    def end_commitlog_offset(self) -> int:
        """The place of the last record that was entered; −1 if none was."""
        return (
            self._header.end_commitlog_offset
            if self._header.index_count > 1 or (self._path is None and self._last_name)
            else -1
        )

    @property
    def end_time_ms(self) -> int:
        return self._header.end_time_ms

    def append(self, keys: IndexKeys) -> None:
        """Enter keys in log order."""
        start = 0
        while start < len(keys.key_hashes):
            if self._path is None:
                self._create()
            room = self._store.item_count - self._header.index_count
            part = IndexKeys(*(column[start : start + room] for column in keys))
            if len(part.key_hashes):
                self._append_part(part)
            start += len(part.key_hashes)
            if self._header.index_count >= self._store.item_count:
                self._close_file()
        self.key_count += len(keys.key_hashes)

    def finish(self) -> None:
        """Header and slots of the open file onto the disk, and the directory."""
        if self._path is not None:
            self._close_file()
        if self.written:
            self._file_system.sync(self._store.directory)

    def _open(self, file: IndexFile) -> None:
        self._path = file.path
        slots = file.items()["key_hash"] % self._store.slot_count
        self._slots = np.zeros(self._store.slot_count, np.int32)
        self._slots[slots] = np.arange(1, len(slots) + 1, dtype=np.int32)  # of equal slots the newest item stays

    def _create(self) -> None:
        """A new file, which takes over the end of the one before (Java: IndexFile's constructor)."""
        moment = datetime.fromtimestamp(self._clock() / 1_000)
        name = f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1_000:03d}"
        if name <= self._last_name:
            name = str(int(self._last_name) + 1)
        self._path = f"{self._store.directory}/{name}"
        self._last_name = name
        self._file_system.create_file(self._path, index_file_size(self._store.slot_count, self._store.item_count))
        before = self._header
        self._header = IndexHeader(
            before.end_time_ms, before.end_time_ms, before.end_commitlog_offset, before.end_commitlog_offset, 0, 1
        )
        self._slots = np.zeros(self._store.slot_count, np.int32)
        self._write_header(self._path)

    def _append_part(self, keys: IndexKeys) -> None:
        assert self._path is not None
        header, count = self._header, len(keys.key_hashes)
        numbers = header.index_count + np.arange(count, dtype=np.int32)
        slots = keys.key_hashes % self._store.slot_count
        items = np.empty(count, ITEM)
        items["key_hash"] = keys.key_hashes
        items["commitlog_offset"] = keys.commitlog_offsets
        items["previous_item"] = self._previous_items(slots, numbers)
        begin_ms, begin_offset = header.begin_time_ms, header.begin_commitlog_offset
        differences = np.zeros(count, np.int64)
        if header.index_count <= 1:  # the first key counts from the file before, the others from the first key
            if begin_ms > 0:
                differences[0] = (keys.store_times_ms[0] - begin_ms) // 1_000
            begin_ms, begin_offset = int(keys.store_times_ms[0]), int(keys.commitlog_offsets[0])
            differences[1:] = (keys.store_times_ms[1:] - begin_ms) // 1_000
        elif begin_ms > 0:
            differences[:] = (keys.store_times_ms - begin_ms) // 1_000
        items["time_difference_s"] = np.clip(differences, 0, 2**31 - 1)
        position = HEADER_SIZE + SLOT.itemsize * self._store.slot_count + ITEM.itemsize * header.index_count
        self._file_system.write(self._path, position, items.view(np.uint8))
        self._is_changed = True
        self._header = IndexHeader(
            begin_ms,
            int(keys.store_times_ms[-1]),
            begin_offset,
            int(keys.commitlog_offsets[-1]),
            header.used_slot_count + int(np.count_nonzero(items["previous_item"] == 0)),  # its slot was free
            header.index_count + count,
        )

    def _previous_items(self, slots: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """For each new item the one before it in its slot; moves the slots on to the newest."""
        order = np.argsort(slots, kind="stable")
        in_order, numbers_in_order = slots[order], numbers[order]
        follows = np.zeros(len(order), bool)
        follows[1:] = in_order[1:] == in_order[:-1]
        previous = np.empty(len(order), np.int32)
        previous[order] = np.where(follows, np.roll(numbers_in_order, 1), self._slots[in_order])
        self._slots[in_order] = numbers_in_order  # of equal slots the last, the newest item, stays
        return previous

    def _close_file(self) -> None:
        assert self._path is not None
        if self._is_changed:
            self._write_header(self._path)
            self._file_system.write(self._path, HEADER_SIZE, self._slots.astype(SLOT).view(np.uint8))
            self._file_system.sync(self._path)
            self.written.append(self._path)
        self._path, self._is_changed = None, False

    def _write_header(self, path: str) -> None:
        header = self._header
        self._file_system.write(
            path,
            0,
            HEADER_STRUCT.pack(
                header.begin_time_ms,
                header.end_time_ms,
                header.begin_commitlog_offset,
                header.end_commitlog_offset,
                header.used_slot_count,
                header.index_count,
            ),
        )
