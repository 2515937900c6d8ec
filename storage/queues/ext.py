"""Extension units of a consume queue: tags code, store time and filter bit map of an entry. Java: ConsumeQueueExt.

| unit | unit | … | unit | ff ff | zeros |     a file: the mark says that the next unit did not fit before the last four bytes
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from storage.errors import StoreRefusedError
from storage.failpoints import reach
from storage.files.file_system import DirectoryEntry, FileSystem, ReadableFile, end_of_data
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import struct_of, view_at
from storage.format.bloom_filter import BitTest
from storage.format.consume_queue import (
    EXT_UNIT,
    MAX_EXT_ADDRESS,
    MAX_EXT_POSITION,
    ext_address,
    ext_position,
    is_ext_address,
)
from storage.format.delay import SCHEDULE_TOPIC
from storage.log.dispatch import QueueEntries
from storage.queues.consume_queue import ConsumeQueue

_UNIT = struct_of(EXT_UNIT)


class ExtUnit(NamedTuple):
    size_bytes: int
    tags_code: int
    store_time_ms: int
    bit_map: bytes


class ConsumeQueueExt:
    """The extension files of one queue."""

    def __init__(self, file_system: FileSystem, directory: str, file_size_bytes: int | None = None) -> None:
        found = [
            entry for entry in file_system.list_directory(directory) if entry.name.isascii() and entry.name.isdigit()
        ]
        self._files: list[ReadableFile] = []
        self._starts: list[int] = []
        for entry in found:
            if entry.size_bytes:
                with suppress(FileNotFoundError):  # it expired since it was listed
                    self._files.append(file_system.open_file(f"{directory}/{entry.name}"))
                    self._starts.append(int(entry.name))

    def unit(self, address: int) -> ExtUnit | None:
        """The unit at an address; None if there is none."""
        position = ext_position(address)
        number = bisect_right(self._starts, position) - 1
        if number < 0:
            return None
        position -= self._starts[number]
        head = self._files[number].view(position, _UNIT.size)
        if len(head) < _UNIT.size:
            return None
        size, tags_code, store_time, bit_map_size = _UNIT.unpack(head.data)
        if size < _UNIT.size or bit_map_size < 0 or size != _UNIT.size + bit_map_size:
            return None
        return ExtUnit(
            size, tags_code, store_time, self._files[number].view(position + _UNIT.size, bit_map_size).tobytes()
        )

    def tags_codes(self, codes: np.ndarray) -> np.ndarray:
        """Tags codes with addresses replaced by the units' own codes; an address without a unit becomes 0."""
        codes = codes.astype(np.int64)
        rows = np.flatnonzero(is_ext_address(codes))
        if len(rows):
            units = self.units(codes[rows])
            codes[rows] = np.where(units["size_bytes"] >= EXT_UNIT.itemsize, units["tags_code"], 0)
        return codes

    def units(self, addresses: np.ndarray) -> np.ndarray:
        """The units at ascending addresses, without bit maps, as EXT_UNIT; zeros where there is none."""
        return self._found(addresses, EXT_UNIT)

    def _found(self, addresses: np.ndarray, layout: np.dtype) -> np.ndarray:
        positions = addresses - np.int64(-(2**63))
        numbers = np.searchsorted(np.array(self._starts, np.int64), positions, side="right") - 1
        found = np.zeros(len(addresses), layout)
        for number, file in enumerate(self._files):
            here = np.flatnonzero(numbers == number)
            buffer, places = file.gather(positions[here] - self._starts[number], np.full(len(here), layout.itemsize))
            inside = places + layout.itemsize <= len(buffer)
            found[here[inside]] = view_at(buffer, places[inside], layout)
        return found

    def passes(self, codes: np.ndarray, wanted: BitTest) -> np.ndarray:
        """Which entries a group may want, by their tags codes in order: all except those whose bit maps exclude the group.

        Java: ExpressionMessageFilter.isMatchedByConsumeQueue.
        """
        passes = np.ones(len(codes), bool)
        rows = np.flatnonzero(is_ext_address(codes))
        width = wanted.shape.bit_count // 8
        units = self._found(codes[rows].astype(np.int64), np.dtype([*EXT_UNIT.descr, ("bit_map", "u1", (width,))]))
        is_said = (units["bit_map_size_bytes"] == width) & (units["store_time_ms"] > wanted.born_ms)
        passes[rows] = ~is_said | wanted.shape.has(units["bit_map"], wanted.positions)
        return passes

    def close(self) -> None:
        for file in self._files:
            file.close()


DEFAULT_EXT_FILE_SIZE = 48 << 20
"""Java: MessageStoreConfig.mappedFileSizeConsumeQueueExt."""
END_MARK = b"\xff\xff"
_END_BLANK = 4  # Java: END_BLANK_DATA_LENGTH
_SECTOR_BYTES = 512
_MOST_MAP_BYTES = 2**15 - 1 - EXT_UNIT.itemsize  # Java: MAX_EXT_UNIT_SIZE
_BLOCK_ENTRIES = 4_096
_MOST_LOOKED_AT = 64


class ConsumeQueueExtWriter:
    """Appends units. `settle` finds where to append: call it before the first unit, and after the queue was cut.

    Java: ConsumeQueueExt.put, truncateByMaxAddress. Units are written before the entries that name them. A unit's address is never
    reused while an entry still names it: if the last units are lost, the next unit goes into a new file.

    Departures from Java: data after the last unit is zeroed; Java only moves positions. Java finds the end by walking all units, and
    begins anew at address 0 if the files are gone; here the entries show it.
    """

    def __init__(self, file_system: LocalFileSystem, directory: str, file_size_bytes: int) -> None:
        """Raises StoreRefusedError for files of another length: a broker does not start on them."""
        self._file_system = file_system
        self.directory = directory
        self._file_size = file_size_bytes
        self._starts = set(_file_starts(file_system, directory, file_size_bytes))
        self._end: int | None = None
        self.paths: set[str] = set()
        """Files with unsynced data."""
        self.has_new_file = False
        """Whether the directories of a new file are not synced."""

    @property
    def has_files(self) -> bool:
        return bool(self._starts)

    @property
    def last_path(self) -> str | None:
        """The file of the next unit, or the one before it; None if there is no file."""
        return self._path(max(self._starts)) if self._starts else None

    def settle(self, queue: ConsumeQueue, end: int) -> None:
        """Continue after the last unit that an entry before queue offset `end` names; cut what follows."""
        if end <= queue.first_file_offset or not queue.file_starts:
            self._end = 0
        elif len(addresses := _last_addresses(queue, end)):
            self._end = self._end_behind(addresses)
        else:  # entries further back may name any of the units
            self._end = max(self._starts, default=-self._file_size) + self._file_size
        self._cut(self._end)

    def _end_behind(self, addresses: np.ndarray) -> int:
        """The address after the unit at the greatest address; in a new file if that unit is gone, so no entry gets another's unit."""
        greatest = int(addresses.max())
        ext = ConsumeQueueExt(self._file_system, self.directory)
        try:
            unit = ext.unit(greatest)
        finally:
            ext.close()
        if unit is not None:
            return ext_position(greatest) + unit.size_bytes
        return (ext_position(greatest) // self._file_size + 1) * self._file_size

    def _cut(self, end: int) -> None:
        for start in sorted(self._starts, reverse=True):
            path, position = self._path(start), max(0, end - start)
            if position >= self._file_size:
                break
            if position == 0:
                self._file_system.unlink(path)
                self._starts.discard(start)
                self.paths.discard(path)
                continue
            file = self._file_system.open_small_reads(path)
            last = end_of_data(file, position)
            file.close()
            if last > position:
                self._file_system.zero(path, position, last - position)
                self.paths.add(path)

    def put(self, queue: ConsumeQueue, end: int, new: QueueEntries) -> np.ndarray:
        """Write units for entries at queue offset `end` or later; returns their addresses, which replace the tags codes.

        If no file can hold a unit, or no address is left, the tags codes themselves, as in Java.
        """
        if self._end is None:
            self.settle(queue, end)
        assert self._end is not None
        tags_codes = new.entries["tags_code"]
        units = _units(tags_codes, new.store_times_ms, new.bit_maps)
        count, size = len(units), units.itemsize
        per_file = max(0, self._file_size - _END_BLANK) // size
        if not per_file or self._end > MAX_EXT_POSITION - (count // per_file + 2) * self._file_size:
            return tags_codes
        addresses = np.empty(count, np.int64)
        done = 0
        while done < count:
            start = self._end // self._file_size * self._file_size
            room = max(0, self._file_size - _END_BLANK - (self._end - start)) // size
            part = units[done : done + room]
            addresses[done : done + len(part)] = ext_address(self._end) + size * np.arange(len(part))
            is_full = done + room < count
            self._write(start, part.tobytes() + (END_MARK if is_full else b""))
            done += len(part)
            self._end = start + self._file_size if is_full else self._end + part.nbytes
        return addresses

    def _write(self, start: int, data: bytes) -> None:
        assert self._end is not None
        path = self._path(start)
        if start not in self._starts:
            self._keep_file(start - self._file_size)
            self._file_system.create_file(path, self._file_size)
            reach("ext-file-made")
            self._starts.add(start)
            self.has_new_file = True
        self._file_system.write(path, self._end - start, data)
        self.paths.add(path)

    def _keep_file(self, start: int) -> None:
        """Sync a full file before the next one is made, as the queue does."""
        if start in self._starts:
            path = self._path(start)
            self._file_system.sync(path)
            self._file_system.sync(self.directory)
            self.paths.discard(path)

    def are_units_of(self, records: QueueEntries, addresses: np.ndarray) -> np.ndarray:
        """Whether the unit at each ascending address belongs to the record in the same row.

        In the schedule topic, whose codes depend on a broker's configured delays, only the store time is compared.
        """
        ext = ConsumeQueueExt(self._file_system, self.directory)
        try:
            units = ext.units(addresses)
            is_torn = self._may_be_torn(ext, addresses, units)
        finally:
            ext.close()
        is_whole = (units["size_bytes"] == EXT_UNIT.itemsize + units["bit_map_size_bytes"]) & ~is_torn
        is_code = (units["tags_code"] == records.entries["tags_code"]) | (records.topic == SCHEDULE_TOPIC)
        return np.asarray(is_whole & is_code & (units["store_time_ms"] == records.store_times_ms))

    def _may_be_torn(self, ext: ConsumeQueueExt, addresses: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Which units have a bit map that is zero after a sector boundary, as if a power loss had taken that part."""
        starts = (addresses - np.int64(-(2**63))) % self._file_size
        lasts = (starts + units["size_bytes"] - 1) // _SECTOR_BYTES * _SECTOR_BYTES
        behind = lasts - starts - EXT_UNIT.itemsize
        is_torn = np.zeros(len(units), bool)
        for row in np.flatnonzero((units["bit_map_size_bytes"] > 0) & (behind >= 0)).tolist():
            unit = ext.unit(int(addresses[row]))
            is_torn[row] = unit is not None and not any(unit.bit_map[int(behind[row]) :])
        return is_torn

    def set_tags_code(self, address: int, tags_code: int) -> bool:
        """Set the tags code of the unit at an address; returns whether there is one."""
        ext = ConsumeQueueExt(self._file_system, self.directory)
        try:
            if address > MAX_EXT_ADDRESS or ext.unit(address) is None:
                return False
        finally:
            ext.close()
        start = ext_position(address) // self._file_size * self._file_size
        position = ext_position(address) - start + EXT_UNIT.fields["tags_code"][1]  # type: ignore[index]
        self._file_system.write(self._path(start), position, tags_code.to_bytes(8, "big", signed=True))
        self.paths.add(self._path(start))
        return True

    def _path(self, start: int) -> str:
        return f"{self.directory}/{start:020d}"


def _units(tags_codes: np.ndarray, store_times_ms: np.ndarray, bit_maps: np.ndarray | None) -> np.ndarray:
    """Units of one size; bit maps that are too large for a unit are omitted. Java: CqExtUnit.write."""
    width = 0 if bit_maps is None or bit_maps.shape[1] > _MOST_MAP_BYTES else bit_maps.shape[1]
    layout = np.dtype([*EXT_UNIT.descr, ("bit_map", "u1", (width,))]) if width else EXT_UNIT
    units = np.zeros(len(tags_codes), layout)
    units["size_bytes"] = layout.itemsize
    units["tags_code"] = tags_codes
    units["store_time_ms"] = store_times_ms
    units["bit_map_size_bytes"] = width
    if width:
        units["bit_map"] = bit_maps
    return units


def ext_file_size(file_system: FileSystem, root: str, configured: int | None) -> int:
    """Bytes of a new extension file: the configured size, else that of an existing file, else Java's default.

    Raises StoreRefusedError if existing files have another length than the configured one.
    """
    directory = f"{root}/consumequeue_ext"
    for topic in file_system.list_directory(directory):
        for queue in file_system.list_directory(f"{directory}/{topic.name}") if topic.is_directory else ():
            path = f"{directory}/{topic.name}/{queue.name}"
            for entry in file_system.list_directory(path) if queue.is_directory else ():
                if is_ext_file(entry):
                    _refuse_other_length(path, entry, configured or entry.size_bytes)
                    return entry.size_bytes
    return configured or DEFAULT_EXT_FILE_SIZE


def is_ext_file(entry: DirectoryEntry) -> bool:
    """Whether a directory's entry is an extension file; an empty one is a name that a power loss left."""
    return not entry.is_directory and entry.name.isascii() and entry.name.isdigit() and entry.size_bytes > 0


def _file_starts(file_system: FileSystem, directory: str, file_size_bytes: int) -> list[int]:
    found = [entry for entry in file_system.list_directory(directory) if is_ext_file(entry)]
    for entry in found:
        _refuse_other_length(directory, entry, file_size_bytes)
    return [int(entry.name) for entry in found]


def _refuse_other_length(directory: str, entry: DirectoryEntry, file_size_bytes: int) -> None:
    if entry.size_bytes != file_size_bytes:
        reason = f"{entry.name} with {entry.size_bytes} bytes is not an extension file of {file_size_bytes} bytes"
        hint = "a real broker does not start on such a store either; give the right mappedFileSizeConsumeQueueExt"
        raise StoreRefusedError(directory, reason, hint=hint)


def _last_addresses(queue: ConsumeQueue, end: int) -> np.ndarray:
    """The addresses in a block of entries before `end`: the last block with any.

    Looks back three files, like Java's recovery; empty if no entry there has an address.
    """
    at, least, count = end, min(end, queue.recovery_start), _MOST_LOOKED_AT
    while at > least:
        start = max(least, at - count)
        codes = queue.entries(start, at)["tags_code"].astype(np.int64)
        if len(addresses := codes[is_ext_address(codes)]):
            return addresses
        at, count = start, _BLOCK_ENTRIES
    return np.empty(0, np.int64)
