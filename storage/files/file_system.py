"""The only access to the disk: what the engine needs of a file system. The local one: `local_file_system.py`; others: `remote.py`.

Reading takes `ReadableFile`s: `view` gives a byte range as a `uint8` array (for a local file a slice of its read-only map, for a
remote one and on a tmpfs a copy), `gather` gives one buffer with many small ranges. Writing takes `pwrite` at positions, never
a writable map, so that a full disk is an error from a call and not a signal. Tests replace it by a failing disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from storage.errors import StateFileError
from storage.format.window_decoder import WindowLayout

_LOOKED_AT_BYTES = 1 << 20
SMALL_FILE_LIMIT_BYTES = 64 << 20
"""The largest file that is read whole: tables, settings, intents. Those of 100,000 queues have 20 MB."""


class DirectoryEntry(NamedTuple):
    name: str
    is_directory: bool
    size_bytes: int


class GatheredWindow(NamedTuple):
    """A buffer with some of the ranges."""

    buffer: np.ndarray
    places: np.ndarray
    """Start of each of all ranges in the buffer of its window."""
    rows: slice
    """Which ranges these are."""
    has_all: bool
    """Whether the buffer is shared by all windows, and also holds the ranges before these."""


class ReadableFile(Protocol):
    """A file opened for reading; what is mapped stays valid even if the file is unlinked."""

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

        With `scratch` the buffer may use that memory, valid until the next gather into it.
        """
        ...

    def gather_windows(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch, layout: WindowLayout
    ) -> Iterator[GatheredWindow]:
        """`gather`, a window at a time if the file is read piece by piece.

        Yields nothing if the bytes could only be given as a view of the file, which might change.
        """
        ...

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """The parts [start, end) of the file from `position` on that are not holes."""
        ...

    def give_pages_back(self) -> None:
        """Release the memory of what was read; a later read loads it again. Views that were handed out stay valid."""
        ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """What the engine needs to read a store. Paths are strings with '/'."""

    is_local: bool

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """The entries of a directory, sorted by name; empty if it does not exist."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """A small file whole; None if it does not exist. Raises StateFileError above SMALL_FILE_LIMIT_BYTES, with nothing read."""
        ...

    def open_file(self, path: str) -> ReadableFile:
        """A file for reading much of, valid even after its name is gone. FileNotFoundError if it does not exist."""
        ...

    def open_small_reads(self, path: str) -> ReadableFile:
        """A file for small, rare reads; its views raise FileNotFoundError once it is deleted."""
        ...


def check_small(path: str, size_bytes: int) -> None:
    """Raises StateFileError for a file that is too large for its purpose."""
    if size_bytes > SMALL_FILE_LIMIT_BYTES:
        rule = f"it has {size_bytes} bytes, and no file of its kind has more than {SMALL_FILE_LIMIT_BYTES}; it was not read"
        raise StateFileError(path, 0, 0, rule)


class Scratch:
    """Reusable memory of one reader, so that its pages are touched for the first time only once."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def take(self, size_bytes: int) -> np.ndarray:
        """`size_bytes` bytes with any content. Overwrites what was taken before."""
        if len(self._buffer) < size_bytes:
            self._buffer = np.empty(max(size_bytes, 2 * len(self._buffer)), np.uint8)
        return self._buffer[:size_bytes]


def coalesce(
    positions: np.ndarray, sizes: np.ndarray, limit: int, gap_bytes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs [start, stop) that hold all ranges, including gaps up to `gap_bytes`, and each range's place in the concatenated runs.

    `positions` ascend; no run goes beyond `limit`.
    """
    if not len(positions):
        return positions, positions, positions
    reach = np.maximum.accumulate(np.minimum(positions + sizes, limit))
    first = np.concatenate(([0], np.flatnonzero(positions[1:] > reach[:-1] + gap_bytes) + 1))
    starts, stops = positions[first], reach[np.append(first[1:], len(positions)) - 1]
    shift = np.concatenate(([0], np.cumsum(stops - starts)[:-1])) - starts
    return starts, stops, positions + np.repeat(shift, np.diff(np.append(first, len(positions))))


def end_of_data(file: ReadableFile, position: int) -> int:
    """Position after the last nonzero byte from `position` on; `position` if all are zero."""
    for start, end in reversed(file.data_ranges(position)):
        for at in range(end - (end - start - 1) % _LOOKED_AT_BYTES - 1, start - 1, -_LOOKED_AT_BYTES):
            written = np.flatnonzero(file.view(at, min(_LOOKED_AT_BYTES, end - at)))
            if len(written):
                return at + int(written[-1]) + 1
    return position
