"""The only access to the disk: what the engine needs of a file system, and local files. The local file system: `local_file_system.py`;
others: `remote.py`.

Reading takes `ReadableFile`s: `view` gives a byte range as a `uint8` array (for a local file a slice of its read-only map, for a
remote one and on a tmpfs a copy), `gather` gives one buffer with many small ranges. Writing takes `pwrite` at positions, never
a writable map, so that a full disk is an error from a call and not a signal. Tests replace it by a failing disk.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


_WHOLE_BYTES = 1 << 20
LOCAL_GAP_BYTES = 16 << 10
_SMALL_BYTES = 16 << 10
"""A view of at most so many bytes is a single look: one record, an item of the index."""
_READ_AROUND_BYTES = 128 << 10
"""How much such a view reads from the disk. A fault in a map reads the disk's read-ahead (/sys/block/DISK/queue/read_ahead_kb): this
much by default, but 8 MiB, 9 ms, on a machine that is set up for large files.
"""
PIECE_BYTES = 128 << 10
"""The largest size of one pwrite(2): the kernel allocates pages as large as the write, and large ones can be expensive
(docs/performance.md, "The size of a write").
"""


class LocalFile:
    """A local file through a read-only map, which stays whole when the file is unlinked. It uses the map's descriptor.

    Small views use a second map, made with the first of them, for which the kernel reads only what is requested.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDONLY)
        try:
            found = os.fstat(descriptor)
            self._identity = found.st_dev, found.st_ino
            self.size_bytes = found.st_size
            self._mapped = mmap.mmap(descriptor, self.size_bytes, access=mmap.ACCESS_READ) if self.size_bytes else None
            self._map = np.frombuffer(self._mapped or b"", np.uint8)
            self._mapped_for_small: mmap.mmap | None = None
            self._small: np.ndarray | None = None
            self._was_read = bytearray()
        finally:
            os.close(descriptor)

    def view(self, position: int, length: int) -> np.ndarray:
        if length > _SMALL_BYTES:
            return self._map[position : position + length]
        if self._small is None:
            self._small = self._map_for_small()
        if self._mapped_for_small is not None and position < self.size_bytes:
            block = position // _READ_AROUND_BYTES
            if not self._was_read[block]:
                self._was_read[block] = 1
                start = block * _READ_AROUND_BYTES
                size = min(_READ_AROUND_BYTES, self.size_bytes - start)
                with suppress(OSError):  # it is only advice
                    self._mapped_for_small.madvise(mmap.MADV_WILLNEED, start, size)
        return self._small[position : position + length]

    def _map_for_small(self) -> np.ndarray:
        try:
            with _opened(self.path) as descriptor:
                found = os.fstat(descriptor)
                is_same = (found.st_dev, found.st_ino) == self._identity
                if not self.size_bytes or not is_same or found.st_size < self.size_bytes:
                    return self._map
                mapped = mmap.mmap(descriptor, self.size_bytes, access=mmap.ACCESS_READ)
                mapped.madvise(mmap.MADV_RANDOM)
        except OSError:  # unlinked since, or too many files are open
            return self._map
        self._mapped_for_small, self._was_read = mapped, bytearray(self.size_bytes // _READ_AROUND_BYTES + 1)
        return np.frombuffer(mapped, np.uint8)

    def gather(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        if scratch is None:
            return self._map, positions
        starts, stops, places = coalesce(positions, sizes, self.size_bytes, LOCAL_GAP_BYTES)
        try:
            with _opened(self.path) as descriptor:
                return _read_runs(descriptor, starts, stops, scratch), places
        except FileNotFoundError:  # unlinked since: the map still holds it
            return self._map, positions

    def gather_windows(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch, layout: WindowLayout
    ) -> Iterator[GatheredWindow]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:  # unlinked since: the map still holds it
            return
        try:
            yield from _read_windows(descriptor, self.size_bytes, positions, sizes, scratch, layout)
        finally:
            os.close(descriptor)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        try:
            with _opened(self.path) as descriptor:
                return _data_ranges(descriptor, position)
        except FileNotFoundError:  # unlinked since: any byte of the map may be one that was written
            return [(position, self.size_bytes)] if position < self.size_bytes else []

    def give_pages_back(self) -> None:
        """They stay in the page cache, but do not count as this process's."""
        for mapped in (self._mapped, self._mapped_for_small):
            if mapped is not None:
                mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Releases the maps; views that were handed out stay valid."""
        self._mapped = self._mapped_for_small = None
        self._map = self._small = np.empty(0, np.uint8)


class LocalFileInMemory:
    """A file on a tmpfs, read through a descriptor of its own: the map of a hole would allocate memory (`is_memory`)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        self.size_bytes = os.fstat(self._descriptor).st_size

    def view(self, position: int, length: int) -> np.ndarray:
        """A copy, except the holes of a long range: they are untouched memory."""
        stop = max(position, min(position + length, self.size_bytes))
        if stop - position <= _WHOLE_BYTES:
            return np.frombuffer(os.pread(self._descriptor, stop - position, position), np.uint8)
        copy, at = np.zeros(stop - position, np.uint8), position
        # To find the end of data the kernel would look at all of it, up to the file's end; its begin is found at once.
        while at < stop and (start := _next_data(self._descriptor, at)) is not None and start < stop:
            at = min(start + _WHOLE_BYTES, stop)
            _read_into(self._descriptor, copy.data[start - position : at - position], start)
        return copy

    def gather(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        starts, stops, places = coalesce(positions, sizes, self.size_bytes, LOCAL_GAP_BYTES)
        return _read_runs(self._descriptor, starts, stops, scratch or Scratch()), places

    def gather_windows(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch, layout: WindowLayout
    ) -> Iterator[GatheredWindow]:
        return _read_windows(self._descriptor, self.size_bytes, positions, sizes, scratch, layout)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        return _data_ranges(self._descriptor, position)

    def give_pages_back(self) -> None:
        """Does nothing: it holds no pages."""

    def close(self) -> None:
        """Close the descriptor; views that were handed out stay valid."""
        self._closing()
        self._descriptor = -1


class LocalSmallReads:
    """A local file for small reads: opened for each read, so that a store of many queues needs no descriptors."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def size_bytes(self) -> int:
        return os.stat(self.path).st_size

    def view(self, position: int, length: int) -> np.ndarray:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            return np.frombuffer(os.pread(descriptor, length, position), np.uint8)
        finally:
            os.close(descriptor)

    def gather(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.view(0, self.size_bytes), positions

    def gather_windows(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch, layout: WindowLayout
    ) -> Iterator[GatheredWindow]:
        yield GatheredWindow(*self.gather(positions, sizes, scratch), slice(0, len(positions)), True)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            return _data_ranges(descriptor, position)
        finally:
            os.close(descriptor)

    def give_pages_back(self) -> None:
        """Does nothing: it holds no pages."""

    def close(self) -> None:
        """Does nothing: it holds nothing."""


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_runs(descriptor: int, starts: np.ndarray, stops: np.ndarray, scratch: Scratch) -> np.ndarray:
    buffer = scratch.take(int((stops - starts).sum()))
    filled = 0
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        _read_into(descriptor, buffer.data[filled : filled + stop - start], start)
        filled += stop - start
    return buffer


def _read_windows(
    descriptor: int,
    size_bytes: int,
    positions: np.ndarray,
    sizes: np.ndarray,
    scratch: Scratch,
    layout: WindowLayout,
) -> Iterator[GatheredWindow]:
    places, windows = layout.of(positions, sizes, size_bytes, LOCAL_GAP_BYTES)
    buffer = scratch.take(max((window.end for window in windows), default=0))
    memory = buffer.data
    for window in windows:
        for position, size, place in window.runs:
            run = memory[place : place + size]
            if os.preadv(descriptor, [run], position) != size:
                _read_into(descriptor, run, position)  # repeat it from the beginning for its error
        yield GatheredWindow(buffer[: window.end], places, window.rows, layout.keep)


def _read_into(descriptor: int, buffer: memoryview, position: int) -> None:
    while buffer:
        count = os.preadv(descriptor, [buffer], position)
        if not count:
            raise OSError(errno.EIO, "the file was cut while it was read")
        buffer, position = buffer[count:], position + count


def _data_ranges(descriptor: int, position: int) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    while (start := _next_data(descriptor, position)) is not None:
        position = os.lseek(descriptor, start, os.SEEK_HOLE)
        ranges.append((start, position))
    return ranges


def _next_data(descriptor: int, position: int) -> int | None:
    """Where the first data from the position on begins; None if there is none."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


class LocalWriter:
    """A file open for writing at positions."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR)

    def write(self, position: int, data: bytes | memoryview | np.ndarray) -> None:
        """Write all of `data` at a position."""
        view = (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")
        while view:
            try:
                written = os.pwrite(self._descriptor, view[:PIECE_BYTES], position)
            except OSError as error:
                error.filename = self.path  # so that the error of a full disk names the file
                raise
            view, position = view[written:], position + written

    def sync(self) -> None:
        """Sync content and length; not the directory's entry."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
