"""The one door to the disk: what the engine asks of a file system. The local one: `local_file_system.py`; the others: `remote.py`.

Reading takes `ReadableFile`s: `view` gives a byte range as a `uint8` array (of a local file a slice of its read-only map, of a
remote one and on a tmpfs a copy), `gather` gives one buffer that holds many small ranges. Writing takes `pwrite` at positions, never
a writable map, so that a full disk is an error from a call and not a signal. Tests put a failing disk in this place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from storage.errors import StateFileError
from storage.format.window_decoder import WindowLayout

_LOOKED_AT_BYTES = 1 << 20
SMALL_FILE_LIMIT_BYTES = 64 << 20
"""What a file has at most that is read whole: tables, settings, intents. Those of 100,000 queues have 20 MB."""


class DirectoryEntry(NamedTuple):
    name: str
    is_directory: bool
    size_bytes: int


class GatheredWindow(NamedTuple):
    """A buffer in which some ranges stand."""

    buffer: np.ndarray
    places: np.ndarray
    """Where each of all ranges begins in the buffer of its window."""
    rows: slice
    """Which ranges these are."""
    has_all: bool
    """Whether the buffer is that of all windows, and holds the ranges before these, too."""


class ReadableFile(Protocol):
    """A file opened for reading; it keeps what it mapped even if the file is unlinked."""

    path: str

    @property
    def size_bytes(self) -> int: ...

    def view(self, position: int, length: int) -> np.ndarray:
        """`length` bytes as a `uint8` array, fewer where the file ends."""
        ...

    def gather(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """A buffer that holds all the ranges, and where each begins in it. `positions` ascend.

        With `scratch` the buffer may be that memory, good until the next gather into it.
        """
        ...

    def gather_windows(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch, layout: WindowLayout
    ) -> Iterator[GatheredWindow]:
        """`gather`, a window at a time where the file is read piece by piece.

        Nothing, where bytes could only be given as they lie in the file, and so might change.
        """
        ...

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """The parts [start, end) of the file from `position` on that are not holes."""
        ...

    def give_pages_back(self) -> None:
        """Holds no memory for what was read until it is read again; views that were handed out stay valid."""
        ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """What the engine needs to read a store. Paths are strings with '/'."""

    is_local: bool

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """What lies in a directory, sorted by name; empty if it does not exist."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """A small file whole; None if it does not exist. Raises StateFileError over SMALL_FILE_LIMIT_BYTES, with nothing read."""
        ...

    def open_file(self, path: str) -> ReadableFile:
        """A file to read much of, whatever becomes of its name. FileNotFoundError if it is not there."""
        ...

    def open_small_reads(self, path: str) -> ReadableFile:
        """A file to read a little of now and then; its views raise FileNotFoundError once it is deleted."""
        ...


def check_small(path: str, size_bytes: int) -> None:
    """Raises StateFileError for a file that is too large to be what it is read as."""
    if size_bytes > SMALL_FILE_LIMIT_BYTES:
        rule = f"it has {size_bytes} bytes, and no file of its kind has more than {SMALL_FILE_LIMIT_BYTES}; it was not read"
        raise StateFileError(path, 0, 0, rule)


class Scratch:
    """Memory that one reader uses again and again, so that its pages are touched for the first time only once."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def take(self, size_bytes: int) -> np.ndarray:
        """So many bytes, holding anything. What was taken before is overwritten."""
        if len(self._buffer) < size_bytes:
            self._buffer = np.empty(max(size_bytes, 2 * len(self._buffer)), np.uint8)
        return self._buffer[:size_bytes]


def coalesce(
    positions: np.ndarray, sizes: np.ndarray, limit: int, gap_bytes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs [start, stop) that hold all ranges, gaps up to `gap_bytes` read along, and each range's place in the runs laid end to end.

    `positions` ascend; nothing behind `limit` is in a run.
    """
    if not len(positions):
        return positions, positions, positions
    reach = np.maximum.accumulate(np.minimum(positions + sizes, limit))
    first = np.concatenate(([0], np.flatnonzero(positions[1:] > reach[:-1] + gap_bytes) + 1))
    starts, stops = positions[first], reach[np.append(first[1:], len(positions)) - 1]
    shift = np.concatenate(([0], np.cumsum(stops - starts)[:-1])) - starts
    return starts, stops, positions + np.repeat(shift, np.diff(np.append(first, len(positions))))


def end_of_data(file: ReadableFile, position: int) -> int:
    """Where the last byte from `position` on that is not zero ends; `position` if all are zero."""
    for start, end in reversed(file.data_ranges(position)):
        for at in range(end - (end - start - 1) % _LOOKED_AT_BYTES - 1, start - 1, -_LOOKED_AT_BYTES):
            written = np.flatnonzero(file.view(at, min(_LOOKED_AT_BYTES, end - at)))
            if len(written):
                return at + int(written[-1]) + 1
    return position
