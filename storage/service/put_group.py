"""Puts that arrive together and are appended as one: one lock, one pass of the vectorised path, one write, one dispatch.

Whoever judges a request counts as on its way (`PutService.at_work`). A put joins the group; it is appended by the last one on the way,
with all that have joined, or when the group is full, or after a moment. So a put that is alone waits for nobody, and under load the
cost of a message falls. Java: the group commit of its flushing, and its put lock with a cheap put.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

import pyarrow as pa

from storage.errors import StorageError
from storage.messages.inner_messages import InnerMessages

GROUP_MESSAGES = 64
GROUP_BYTES = 4 << 20
PATIENCE_SECONDS = 0.05
"""For those on the way; one of them may wait for a disk."""

Append: TypeAlias = Callable[[InnerMessages], pa.RecordBatch]


class JoinedPut:
    """One put, until it stands in the log or is refused."""

    def __init__(self, messages: InnerMessages, waits: bool) -> None:
        self.messages = messages
        self.waits = waits
        """Whether it is acknowledged when it is on the disk."""
        self.done = threading.Event()
        self.flush: Future[None] | None = None
        """What is to be waited for, once it is appended."""
        self._places: pa.RecordBatch | None = None
        self._error: BaseException | None = None

    @property
    def size_bytes(self) -> int:
        """Of the bodies."""
        return int(self.messages.bodies.nbytes)

    def places(self) -> pa.RecordBatch:
        """Where its messages stand, when it is done. Raises what the append raised."""
        if self._error is not None:
            raise self._error
        assert self._places is not None, "it is done"
        return self._places

    @property
    def is_stored(self) -> bool:
        """Whether messages of it stand in the log."""
        return self._error is None and self._places is not None and self._places.num_rows > 0

    def append(self, append: Append) -> None:
        """Alone."""
        try:
            self._places = append(self.messages)
        except (StorageError, OSError) as error:
            self._error = error

    def give(self, places: pa.RecordBatch) -> None:
        """It was appended with others."""
        self._places = places

    def fail(self, error: BaseException) -> None:
        """Nobody knows what stands of it."""
        self._error = error


class PutGroup:
    """Those that have joined and are not appended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[JoinedPut] = deque()
        self._on_the_way = 0

    def come(self) -> None:
        """Somebody begins to judge a request, and may join."""
        with self._lock:
            self._on_the_way += 1

    def leave(self) -> None:
        """It has joined, or will not."""
        with self._lock:
            self._on_the_way -= 1

    def join(self, messages: InnerMessages, waits: bool) -> JoinedPut:
        """A put that waits from now on."""
        joined = JoinedPut(messages, waits)
        with self._lock:
            self._waiting.append(joined)
        return joined

    @property
    def is_due(self) -> bool:
        """Whether those that wait are to be appended now: nobody else is coming, or they are many."""
        return bool(self._waiting) and (self._on_the_way <= 0 or len(self._waiting) >= GROUP_MESSAGES)

    def take(self) -> list[JoinedPut]:
        """The first of them, as many as go into one append."""
        taken: list[JoinedPut] = []
        rows = size = 0
        with self._lock:
            while self._waiting:
                first = self._waiting[0]
                rows, size = rows + first.messages.row_count, size + first.size_bytes
                if taken and (rows > GROUP_MESSAGES or size > GROUP_BYTES or not _fit(taken[0], first)):
                    break
                taken.append(self._waiting.popleft())
        return taken


def append_together(taken: list[JoinedPut], append: Append) -> None:
    """Append them as one; where that is refused with nothing stored, each by itself."""
    try:
        if len(taken) > 1:
            places = append(InnerMessages.concat([put.messages for put in taken]))
            start = 0
            for put in taken:
                put.give(places.slice(start, put.messages.row_count))
                start += put.messages.row_count
            return
    except StorageError:  # nothing was stored: one of them may be what is wrong
        pass
    except BaseException as error:
        for put in taken:
            put.fail(error)
        if not isinstance(error, OSError):
            raise
        return
    for put in taken:
        put.append(append)


def _fit(first: JoinedPut, other: JoinedPut) -> bool:
    """Whether both say where they were born, or neither."""
    return (first.messages.born_hosts is None) == (other.messages.born_hosts is None)
