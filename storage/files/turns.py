"""A queue before a store's lock: the one that came first gets the lock first.

The lock has no queue of its own, so a sink that commits without pause would get it again and again before a job that looks every 50 ms.
The queue is an empty file beside the lock's users (ROOT/spark_mq/turns), of which each one that waits locks a byte:

    byte 0            the door: held for the moment in which a number is taken
    byte 1, 2, 3, …   ticket 1, 2, 3, … of a process that waits; the next number is one more than the greatest that is held

A ticket is a lock of an open file (F_OFD_SETLK). It ends with its process, so nobody waits for a dead one; nothing is written, and
nothing is left. One that waits and does not take the free lock (a stopped process) is passed over after PATIENCE_S, or after
half of the time that we would wait. A writer that takes no ticket, such as a broker, or one that does not wait, finds the lock as it
always did.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

_FLOCK = struct.Struct("hhqqi4x")
_TO_THE_END = 0
_DOOR_TRIES = 50
_DOOR_INTERVAL_S = 0.001
PATIENCE_S = 1.0
"""How long the lock may be free before one that is due to take it is passed over; it looks twenty times in that."""


class Turn:
    """One writer's place in the queue of the file `path`; a context manager that gives it back.

    Where the file's directory is not there or is a symbolic link, or without the right to write the file, there is no queue, and it is
    always this writer's turn.
    """

    def __init__(
        self, path: str, *, mode: int, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._mode = mode
        self._patience_s = patience_s
        self._clock = clock
        self._descriptor: int | None = None
        self._number = 0
        self._free_since_s: float | None = None

    def has_come(self, lock: int) -> bool:
        """Whether nobody is waiting before us, or whoever is does not take the lock, which `lock` is the open file of."""
        descriptor = self._open(create=False)
        if descriptor is None or not self._is_anybody_before(descriptor):
            return True
        if _held(lock, 0, 1) is not None:
            self._free_since_s = None
            return False
        if self._free_since_s is None:
            self._free_since_s = self._clock()
        return self._clock() - self._free_since_s >= self._patience_s

    def queue_up(self) -> None:
        """Take a ticket, behind all that are held; nothing where we have one."""
        descriptor = None if self._number else self._open(create=True)
        if descriptor is None:
            return
        for _ in range(_DOOR_TRIES):
            if lock_byte(descriptor, 0):
                break
            time.sleep(_DOOR_INTERVAL_S)
        else:
            return  # with the next look
        try:
            number = 1
            while (held := _held(descriptor, number, _TO_THE_END)) is not None:
                number = max(number, held) + 1
            if lock_byte(descriptor, number):
                self._number = number
        finally:
            _unlock(descriptor, 0)

    def _is_anybody_before(self, descriptor: int) -> bool:
        if self._number == 1:
            return False
        return _held(descriptor, 1, self._number - 1 if self._number else _TO_THE_END) is not None

    def _open(self, *, create: bool) -> int | None:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
            with suppress(OSError):
                directory = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    self._descriptor = os.open(os.path.basename(self._path), flags, self._mode, dir_fd=directory)
                finally:
                    os.close(directory)
        return self._descriptor

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            if self._number:
                _unlock(self._descriptor, self._number)  # a child that was forked meanwhile has the open file too
            os.close(self._descriptor)
            self._descriptor, self._number = None, 0


def _held(descriptor: int, start: int, length: int) -> int | None:
    """The first byte of a lock that another open file holds in a range; None if there is none. Length 0 is up to the end."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind, _, found, _, _ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else found


def lock_byte(descriptor: int, byte: int) -> bool:
    """Lock a byte of an open file, for that open file; returns whether nobody else has it."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(descriptor: int, byte: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))
