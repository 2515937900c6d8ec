"""The log's next file, made ahead beside the puts, so that a roll waits for no sync. Java: AllocateMappedFileService.

It appears at its full length, of zeros, and is synced with its directory: what a broker leaves that dies, and what every recovery
takes for free space behind the log's end. Java makes it when the file before it is begun; here when that one is half full.
"""

from __future__ import annotations

import posixpath
from concurrent.futures import Future

from storage.files.local_file_system import LocalFileSystem


class NextFile:
    """A file that one thread makes and another one may wait for."""

    def __init__(self, file_system: LocalFileSystem, path: str, size_bytes: int) -> None:
        self.path = path
        self._file_system = file_system
        self._size_bytes = size_bytes
        self._made: Future[None] = Future()

    def make(self) -> None:
        """Make it durable with its length. Where none can be made, nothing is: the put that needs it says so.

        Raises OSError where a sync failed: nobody knows then what is on the disk.
        """
        try:
            if self._create():
                self._file_system.sync(self.path)
                self._file_system.sync(posixpath.dirname(self.path))
        except BaseException as error:
            self._made.set_exception(error)
            raise
        self._made.set_result(None)

    def wait(self) -> None:
        """Returns when it is made, or cannot be made. Raises what `make` has raised."""
        self._made.result()

    def _create(self) -> bool:
        try:
            self._file_system.create_file(self.path, self._size_bytes)
        except OSError:
            return False
        return True
