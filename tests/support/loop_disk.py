"""A small ext4 of its own on a loop device. It can be full, and it can lose its power: its journal is aborted, nothing more is written.

Needs root, loop devices and mkfs.ext4; `LoopDisk.missing` says what is not there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32)."""
_NO_LOG_FLUSH = 2
"""EXT4_GOING_FLAGS_NOLOGFLUSH: neither data nor journal is written any more."""


class LoopDisk:
    """Mounted at `place` inside the context, or between `mount` and `unmount`."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.place = directory / "disk"
        self.place.mkdir(exist_ok=True)
        self._image = directory / "disk.img"
        self._size_bytes = size_bytes
        self.format()

    @staticmethod
    def missing() -> str | None:
        """Why there can be none here, or None."""
        if os.geteuid() != 0:
            return "an ext4 of its own needs root"
        if lacking := [name for name in ("mkfs.ext4", "mount", "umount") if shutil.which(name) is None]:
            return f"an ext4 of its own needs {', '.join(lacking)}"
        with tempfile.TemporaryDirectory() as directory:
            try:
                with LoopDisk(Path(directory), 16 << 20):
                    return None
            except subprocess.CalledProcessError as error:
                return f"an ext4 cannot be mounted on a loop device here: {error.stderr.decode().strip()}"

    def __enter__(self) -> Self:
        self.mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unmount()

    def format(self) -> None:
        """An empty file system. It is not mounted."""
        with self._image.open("wb") as file:
            file.truncate(self._size_bytes)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))

    def mount(self) -> None:
        """What its journal holds is replayed."""
        _run("mount", "-o", "loop", str(self._image), str(self.place))

    def unmount(self) -> None:
        """Nothing of it may be open."""
        _run("umount", str(self.place))

    def lose_power(self) -> None:
        """From now on nothing reaches the disk. Every later write and sync fails."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def fill(self, *, leave_bytes: int = 0) -> Path:
        """A file that takes all room but so much; delete it to make room."""
        ballast = self.place / "ballast"
        with ballast.open("ab", buffering=0) as file:
            # of the last room the file system takes a part for what it notes of the file
            os.posix_fallocate(file.fileno(), file.tell(), max(1, self._free_bytes - leave_bytes - (64 << 10)))
            with suppress(OSError):
                while self._free_bytes > leave_bytes:
                    file.write(bytes(4096))
        return ballast

    @property
    def _free_bytes(self) -> int:
        found = os.statvfs(self.place)
        return found.f_bavail * found.f_frsize


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
