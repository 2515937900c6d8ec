"""A local disk of which a test stalls, fails and watches what is done to the commit log, and counts all syncs."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np

from storage.files.file_system import LocalWriter
from storage.files.local_file_system import LocalFileSystem

PATIENCE_S = 120
"""How long a test waits for what must come; it is no measure of anything."""


class Gate:
    """Open, or closed: then who comes to it waits, and the test can wait until somebody does."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()

    def close(self) -> None:
        self._reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        if not self._open.is_set():
            self._reached.set()
            assert self._open.wait(PATIENCE_S), "nobody has opened the gate"

    def wait_for_somebody(self) -> None:
        assert self._reached.wait(PATIENCE_S), "nobody came to the gate"


class _Writer(LocalWriter):
    def __init__(self, path: str, disk: GatedDisk) -> None:
        super().__init__(path)
        self._disk = disk

    def write(self, position: int, data: bytes | memoryview | np.ndarray) -> None:
        self._disk.note("write", self.path)
        super().write(position, data)

    def sync(self) -> None:
        self._disk.sync_of(self.path)


class GatedDisk(LocalFileSystem):
    """Syncs are counted, not done. Writes to the log, and syncs of what was written there, pass a gate; the latter can fail."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        """("write" or "sync", path), in the order in which they were begun."""
        self.syncs = Gate()
        self.writes = Gate()
        self.fails = False
        """Whether the next sync of the log fails; the one after it says that all is well."""
        self.durable: dict[str, bytes] = {}
        """Of each file of the log, what it held when a sync of it that was done began."""
        self.log_syncs = 0
        """How many syncs of what was written to the log have begun."""
        self._dirty: set[str] = set()

    def note(self, verb: str, path: str) -> None:
        self.steps.append((verb, path))
        if verb == "write" and _is_of_log(path):
            self.writes.pass_through()
            self._dirty.add(path)

    def sync_of(self, path: str) -> None:
        self.steps.append(("sync", path))
        if path not in self._dirty:
            return
        self.log_syncs += 1
        self._dirty.discard(path)
        content = Path(path).read_bytes()
        self.syncs.pass_through()
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self.durable[path] = content

    def open_for_writing(self, path: str) -> LocalWriter:
        return _Writer(path, self)

    def sync(self, path: str) -> None:
        os.stat(path)
        self.sync_of(path)


def _is_of_log(path: str) -> bool:
    return "/commitlog/" in path
