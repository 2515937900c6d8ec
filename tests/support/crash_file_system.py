"""A local disk that knows what a power loss would leave of it.

`CrashFileSystem` works on a real directory and keeps a list of everything that was written, synced, made, renamed or deleted.
`states()` goes through that list; from each `Disk` (`crash_disk.py`) a test makes what a power loss or a killed process leaves, and
puts it in the directory's place.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy

import numpy as np

from storage.files.file_system import LocalWriter
from storage.files.local_file_system import LocalFileSystem
from tests.support.crash_disk import DIRECTORY, Disk, Operation


class RecordingWriter(LocalWriter):
    def __init__(self, path: str, file_system: CrashFileSystem) -> None:
        super().__init__(path)
        self._file_system = file_system

    def write(self, position: int, data: bytes | memoryview | np.ndarray) -> None:
        super().write(position, data)
        self._file_system.record(Operation("write", self.path, position, bytes(data)))

    def sync(self) -> None:
        self._file_system.sync(self.path)


class CrashFileSystem(LocalFileSystem):
    """The directory `root` and everything under it; syncs are remembered, not done."""

    def __init__(self, root: str, disk: Disk | None = None, boot: int = 1) -> None:
        """With `disk`, the directory is made to hold what that disk holds."""
        self.root = root
        self.boot = boot
        self.forgets: Callable[[str], bool] = lambda path: False
        """A planted fault: syncs of these paths are left out."""
        self.operations: list[Operation] = []
        self._recording = threading.Lock()
        if disk is None:
            disk = Disk.of_directory(root)
        else:
            disk.write_to(root)
        self._start = deepcopy(disk)
        self.disk = disk

    def holds(self, path: str) -> bool:
        """Whether it lies on this disk."""
        return path == self.root or path.startswith(f"{self.root}/")

    def record(self, operation: Operation) -> None:
        """Remember what was done; what the base class did by the way (files opened to be made, new directories) comes first."""
        if not self.holds(operation.path):
            return
        with self._recording:  # some sync in another thread
            self._notice_directories(os.path.dirname(operation.path))
            self._notice_directories(os.path.dirname(operation.new_path or operation.path))
            if operation.kind in ("write", "sync", "fail-sync"):
                self._notice(operation)
            self._keep(operation)

    def mark(self, text: str) -> None:
        """A note of the test's between two operations."""
        self.operations.append(Operation("mark", text))

    def states(self) -> Iterator[tuple[int, list[str], Disk]]:
        """Number of operations done, the marks before, and the disk then; the disk is good until the next step."""
        disk, marks = deepcopy(self._start), list[str]()
        yield 0, marks, disk
        for count, operation in enumerate(self.operations, 1):
            if operation.kind == "mark":
                marks.append(operation.path)
            else:
                disk.apply(operation)
            yield count, marks, disk

    def _keep(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.disk.apply(operation)

    def _notice_directories(self, path: str) -> None:
        if path not in self.disk.entries and self.holds(path):
            self._notice_directories(os.path.dirname(path))
            self._keep(Operation("make-directory", path))

    def _notice(self, operation: Operation) -> None:
        path = operation.path
        if os.path.isdir(path):
            self._notice_directories(path)
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir():
                        self._notice_directories(entry.path)
            return
        if self.disk.number(path) is None:
            self._keep(Operation("make", path))
        elif operation.kind == "write" and (self.disk.length(path) or 0) > os.path.getsize(path):
            self._keep(Operation("resize", path, 0))  # opened to be written anew

    # What changes the disk

    def create_file(self, path: str, size_bytes: int) -> None:
        super().create_file(path, size_bytes)
        self.record(Operation("make", path))
        self.record(Operation("resize", path, size_bytes))

    def open_for_writing(self, path: str) -> LocalWriter:
        return RecordingWriter(path, self)

    def sync(self, path: str) -> None:
        os.stat(path)
        if self.holds(path) and not self.forgets(path):
            self.record(Operation("sync", path))

    def sync_all(self, paths: Iterable[str]) -> None:
        """Promises no more than what was asked for, however many paths that are."""
        for path in sorted(paths, reverse=True):
            if os.path.exists(path):
                self.sync(path)

    def rename(self, path: str, new_path: str) -> None:
        super().rename(path, new_path)
        self.record(Operation("rename", path, new_path=new_path))

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self.record(Operation("unlink", path))

    def reserve(self, path: str, position: int, length: int) -> None:
        super().reserve(path, position, length)
        if os.path.getsize(path) != self.disk.length(path):
            self.record(Operation("resize", path, os.path.getsize(path)))

    # What a crash changes

    def identity(self, path: str) -> tuple[int, int, int] | None:
        number = self.disk.number(path)
        if number == DIRECTORY or path in self.disk.entries:
            return super().identity(path)
        return None if number is None else (0, number, self.disk.length(path) or 0)

    def boot_id(self) -> str:
        return f"boot {self.boot}"

    def memory_path(self, root: str) -> str | None:
        """Beside the directory: no power loss that is played takes it, and after one it belongs to another boot."""
        return os.path.join(os.path.dirname(self.root), f"memory-of-{os.path.basename(self.root)}")
