"""A disk whose n-th operation of some kind fails, once or from then on; otherwise, and after a power loss, it is a `CrashFileSystem`.

The method is that of SQLite's I/O error tests: n = 1, 2, 3 … until the work is done without meeting the fault. What fails, fails as
Linux does it:

    write     a part of the pages is there, up to a short count; of a `Short` one the rest is asked for again and is written
    sync      the error comes once: the pages that were not written count as clean from now on, and the next sync says that all is well
    create    the name may be there, without a length
    others    nothing has happened

A signal is an InterruptedError here, which real calls never show (PEP 475): it stands for what a signal's handler may raise. A page of
a map that cannot be read ends a process by SIGBUS, and cannot be planted: of mapped files opening fails, and reading by `preadv`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from storage.files.file_system import DirectoryEntry, LocalFile, LocalSmallReads, LocalWriter, Scratch
from tests.support.crash_disk import PAGE_BYTES, Operation
from tests.support.crash_file_system import CrashFileSystem, RecordingWriter


class Step(Enum):
    """What the engine asks of the disk."""

    LOOK = "look"
    """Is it there, which file is it, when was it changed."""
    LIST = "list"
    OPEN = "open"
    READ = "read"
    CREATE = "create"
    RESERVE = "reserve"
    WRITE = "write"
    SYNC = "sync"
    SYNC_DIRECTORY = "sync of a directory"
    RENAME = "rename"
    UNLINK = "unlink"
    LOCK = "lock"


SHORT = 0
"""In place of an error number: pwrite(2) takes fewer bytes than it was given."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The `number`-th of these steps, counted from 1, fails with this error, and with `for_good` all that follow."""

    steps: frozenset[Step]
    error: int
    number: int
    for_good: bool = False

    def __str__(self) -> str:
        what = " or ".join(sorted(step.value for step in self.steps)) if len(self.steps) < len(Step) else "operation"
        how = "writes a part" if self.error == SHORT else f"fails with {errno.errorcode[self.error]}"
        return f"{what} {self.number} {how}{' for good' if self.for_good else ''}"


class FailingFileSystem(CrashFileSystem):
    """A `CrashFileSystem` with a fault in it until that is taken away."""

    def __init__(self, root: str, fault: Fault | None = None, *, seed: int = 0) -> None:
        """`seed` decides which pages a failed write or sync has written."""
        super().__init__(root)
        self.fault = fault
        self.met: list[str] = []
        """What failed so far: step and path."""
        self.counted = 0
        self._choice = Random(seed)

    def take_away(self) -> None:
        """From now on nothing fails any more; what has been left undone stays so."""
        self.fault = None

    def _fails(self, step: Step, path: str) -> bool:
        fault = self.fault
        if fault is None or step not in fault.steps or not self.holds(path):
            return False
        self.counted += 1
        if self.counted < fault.number or (self.counted > fault.number and not fault.for_good):
            return False
        self.met.append(f"{step.value} of {path.removeprefix(self.root)}")
        return True

    def _error(self, path: str) -> OSError:
        assert self.fault is not None
        return OSError(self.fault.error, os.strerror(self.fault.error), path)

    def check(self, step: Step, path: str) -> None:
        """Raises OSError where this step is the one that fails."""
        if self._fails(step, path) and self.fault is not None and self.fault.error != SHORT:
            raise self._error(path)

    def write_part(self, writer: FailingWriter, position: int, data: bytes) -> bool:
        """Whether this write fails, a part of it done: then raises, or returns True where nothing is left to do."""
        if not data or not self._fails(Step.WRITE, writer.path) or self.fault is None:
            return False
        if self.fault.error == SHORT:
            with _short_pwrites(self._choice):
                writer.write_all(position, data)
            return True
        pages = (position + len(data) - 1) // PAGE_BYTES - position // PAGE_BYTES
        end = (position // PAGE_BYTES + self._choice.randint(0, pages)) * PAGE_BYTES
        writer.write_all(position, data[: max(0, end - position)])
        raise self._error(writer.path)

    # The steps

    def exists(self, path: str) -> bool:
        self.check(Step.LOOK, path)
        return super().exists(path)

    def identity(self, path: str) -> tuple[int, int, int] | None:
        self.check(Step.LOOK, path)
        return super().identity(path)

    def modified_ms(self, path: str) -> int | None:
        self.check(Step.LOOK, path)
        return super().modified_ms(path)

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        self.check(Step.LIST, path)
        return super().list_directory(path)

    def read_file(self, path: str) -> bytes | None:
        self.check(Step.OPEN, path)
        self.check(Step.READ, path)
        return super().read_file(path)

    def open_file(self, path: str) -> LocalFile:
        self.check(Step.OPEN, path)
        return _FailingFile(path, self)

    def open_small_reads(self, path: str) -> LocalSmallReads:
        self.check(Step.LOOK, path)
        return _FailingSmallReads(path, self)

    def open_for_writing(self, path: str) -> LocalWriter:
        self.check(Step.OPEN, path)
        return FailingWriter(path, self)

    def create_file(self, path: str, size_bytes: int) -> None:
        if self._fails(Step.CREATE, path):
            if not os.path.exists(path) and self._choice.random() < 0.5:
                super().create_file(path, 0)
            raise self._error(path)
        super().create_file(path, size_bytes)

    def make_directories(self, path: str) -> None:
        if not os.path.isdir(path):
            self.check(Step.CREATE, path)
        super().make_directories(path)

    def replace(self, path: str, content: bytes, *, is_private: bool = False) -> None:
        self.check(Step.CREATE, path)  # NAME.tmp
        super().replace(path, content, is_private=is_private)

    def reserve(self, path: str, position: int, length: int) -> None:
        self.check(Step.RESERVE, path)
        super().reserve(path, position, length)

    def sync(self, path: str) -> None:
        step = Step.SYNC_DIRECTORY if os.path.isdir(path) else Step.SYNC
        if self._fails(step, path):
            if step is Step.SYNC:
                self.record(Operation("fail-sync", path, self._choice.getrandbits(8)))
            raise self._error(path)
        super().sync(path)

    def rename(self, path: str, new_path: str) -> None:
        self.check(Step.RENAME, path)
        super().rename(path, new_path)

    def unlink(self, path: str) -> None:
        self.check(Step.UNLINK, path)
        super().unlink(path)

    @contextmanager
    def locked(self, path: str, timeout_ms: int = 0, **how: Any) -> Iterator[None]:
        self.check(Step.LOCK, path)
        with super().locked(path, timeout_ms, **how):
            yield


class FailingWriter(RecordingWriter):
    """A file open for writing on a failing disk."""

    def __init__(self, path: str, file_system: FailingFileSystem) -> None:
        super().__init__(path, file_system)
        self._failing = file_system

    def write(self, position: int, data: bytes | memoryview | np.ndarray) -> None:
        if not self._failing.write_part(self, position, bytes(data)):
            super().write(position, data)

    def write_all(self, position: int, data: bytes) -> None:
        """Without a fault."""
        super().write(position, data)


class _FailingFile(LocalFile):
    def __init__(self, path: str, file_system: FailingFileSystem) -> None:
        super().__init__(path)
        self._file_system = file_system

    def gather(
        self, positions: np.ndarray, sizes: np.ndarray, scratch: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        if scratch is not None:
            self._file_system.check(Step.OPEN, self.path)
            self._file_system.check(Step.READ, self.path)
        return super().gather(positions, sizes, scratch)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        self._file_system.check(Step.OPEN, self.path)
        return super().data_ranges(position)


class _FailingSmallReads(LocalSmallReads):
    def __init__(self, path: str, file_system: FailingFileSystem) -> None:
        super().__init__(path)
        self._file_system = file_system

    def view(self, position: int, length: int) -> np.ndarray:
        self._file_system.check(Step.OPEN, self.path)
        self._file_system.check(Step.READ, self.path)
        return super().view(position, length)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        self._file_system.check(Step.OPEN, self.path)
        return super().data_ranges(position)


@contextmanager
def _short_pwrites(choice: Random) -> Iterator[None]:
    """As long as it lasts, pwrite(2) takes any part of what it is given, never nothing."""
    whole = os.pwrite

    def part(descriptor: int, data: memoryview, position: int) -> int:
        return whole(descriptor, data[: choice.randint(1, len(data))], position)

    with mock.patch("os.pwrite", part):
        yield
