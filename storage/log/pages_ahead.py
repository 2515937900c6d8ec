"""Pages of the page cache for what will be written behind the log's end, made beside the writing. Java: MappedFile.warmMappedFile.

A new page costs more than the copy into it: the kernel has to find it and, on a virtual machine, perhaps the host too. A write does
both, one page after the other; with the pages there it only copies. It is advice: what is never written there costs memory that the
kernel may take back at any time, and the files do not change.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Self

from storage.files.local_file_system import LocalFileSystem

AHEAD_BYTES = 32 << 20


class FileStretch(NamedTuple):
    """A part of a file."""

    path: str
    start: int
    end: int


class PagesAhead:
    """Makes pages in a thread of its own. A context manager; to be used by one thread."""

    def __init__(self, file_system: LocalFileSystem) -> None:
        self._file_system = file_system
        self._making = ThreadPoolExecutor(1)
        self._asked = FileStretch("", 0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._making.shutdown(wait=True)

    def make(self, stretch: FileStretch) -> None:
        """The stretch will be written soon. What was asked for before is not asked for again."""
        start = max(stretch.start, self._asked.end) if stretch.path == self._asked.path else stretch.start
        if start < stretch.end:
            self._asked = stretch
            self._making.submit(self._make, stretch._replace(start=start))

    def _make(self, stretch: FileStretch) -> None:
        with suppress(OSError):  # the write says what is wrong
            self._file_system.make_pages(stretch.path, stretch.start, stretch.end - stretch.start)
