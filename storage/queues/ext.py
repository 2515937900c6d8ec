"""Extension units of a consume queue: tags code, store time and filter bit map of an entry, for reading. Java: ConsumeQueueExt."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from storage.files.file_system import FileSystem, ReadableFile
from storage.format.arrays import struct_of, view_at
from storage.format.bloom_filter import BitTest
from storage.format.consume_queue import EXT_UNIT, ext_position, is_ext_address

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
        """The unit at an address; None if the files do not hold one there."""
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
        """What stands at ascending addresses, without bit maps, as EXT_UNIT; zeros where the files hold nothing."""
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
        """Which entries, of these tags codes in order, a group may want: all but those whose units' maps say that it does not.

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
