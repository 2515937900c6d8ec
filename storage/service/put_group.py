"""Puts that arrive together and are appended as one: one lock, one pass of the vectorised path, one write, one dispatch.

Whoever judges a request counts as on its way (`PutService.at_work`). A put joins the group; it is appended by the last one on the way,
with all that have joined, or when the group is full, or after a moment. So a put that is alone waits for nobody, and under load the
cost of a message falls. Java: the group commit of its flushing, and its put lock with a cheap put.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from storage.errors import StorageError
from storage.put.put import Places, table_of
from storage.put_status import PutStatus
from storage.rules.inner_messages import EncodedMessage, InnerMessages, columns_of, is_wait
from storage.service.replica_acks import CopiesWanted

GROUP_MESSAGES = 64
GROUP_BYTES = 4 << 20
PATIENCE_SECONDS = 0.05
"""For those on the way; one of them may wait for a disk."""

Rows: TypeAlias = InnerMessages | tuple[EncodedMessage, ...]
"""Of one put, or of several: columns, or a few messages."""
Append: TypeAlias = Callable[[Rows], Places]


class PutReceipt(NamedTuple):
    """How a put ended, and where its messages stand: the fields of `PutResult`, row by row; no rows if nothing was stored."""

    status: PutStatus
    rows: Places

    @property
    def places(self) -> pa.RecordBatch:
        """As a table."""
        return table_of(self.rows)


class JoinedPut:
    """One put, until it stands in the log or is refused."""

    def __init__(self, messages: Rows, waits: bool, copies: int) -> None:
        self.messages = messages
        self.waits = waits
        """Whether it is acknowledged when it is on the disk."""
        self.copies = copies
        """How many it needs to be acknowledged (`rules/put_guards.py`)."""
        self.is_done = False
        """Whether it stands in the log, or is refused."""
        self.promise = NOTHING
        """What is to be waited for, once it is appended."""
        self._places: Places | None = None
        self._error: BaseException | None = None

    @property
    def row_count(self) -> int:
        """How many messages."""
        return self.messages.row_count if isinstance(self.messages, InnerMessages) else len(self.messages)

    @property
    def size_bytes(self) -> int:
        """Of the bodies."""
        if isinstance(self.messages, InnerMessages):
            return int(self.messages.bodies.nbytes)
        return sum(len(message.body) for message in self.messages)

    @property
    def says_where_born(self) -> bool:
        """Whether its messages say where they were born; all do, or none."""
        if isinstance(self.messages, InnerMessages):
            return self.messages.born_hosts is not None
        return any(message.born_host is not None for message in self.messages)

    def places(self) -> Places:
        """Where its messages stand, when it is done. Raises what the append raised."""
        if self._error is not None:
            raise self._error
        assert self._places is not None, "it is done"
        return self._places

    @property
    def is_stored(self) -> bool:
        """Whether messages of it stand in the log."""
        return self._error is None and self._places is not None and len(self._places) > 0

    def append(self, append: Append) -> None:
        """Alone."""
        try:
            self._places = append(self.messages)
        except (StorageError, OSError, ValueError, OverflowError) as error:
            self._error = error

    def give(self, places: Places) -> None:
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
        self._told = threading.Condition()

    def come(self) -> None:
        """Somebody begins to judge a request, and may join."""
        with self._lock:
            self._on_the_way += 1

    def leave(self) -> None:
        """It has joined, or will not."""
        with self._lock:
            self._on_the_way -= 1

    def join(self, messages: Rows, waits: bool, copies: int) -> JoinedPut:
        """A put that waits from now on."""
        joined = JoinedPut(messages, waits, copies)
        with self._lock:
            self._waiting.append(joined)
        return joined

    def wait_for(self, joined: JoinedPut, seconds: float) -> bool:
        """Waits for so long, at most; whether that put is done."""
        with self._told:
            if not joined.is_done:
                self._told.wait(seconds)
            return joined.is_done

    def tell(self, taken: Sequence[JoinedPut]) -> None:
        """These are done: whoever waits for them goes on."""
        with self._told:
            for put in taken:
                put.is_done = True
            self._told.notify_all()

    @property
    def is_waiting(self) -> bool:
        """Whether any put waits to be appended."""
        return bool(self._waiting)

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
                rows, size = rows + first.row_count, size + first.size_bytes
                if taken and (rows > GROUP_MESSAGES or size > GROUP_BYTES or not _fit(taken[0], first)):
                    break
                taken.append(self._waiting.popleft())
        return taken


def append_together(taken: list[JoinedPut], append: Append) -> None:
    """Append them as one; where that is refused with nothing stored, each by itself."""
    try:
        if len(taken) > 1 and (rows := _rows_if_all_are_sound(taken)) is not None:
            places = append(rows)
            start = 0
            for put in taken:
                put.give(places[start : start + put.row_count])
                start += put.row_count
            return
    except (StorageError, ValueError, OverflowError):  # nothing was stored: one of them may be what is wrong
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
    return first.says_where_born == other.says_where_born


def _rows(puts: Sequence[JoinedPut]) -> Rows:
    """The messages of all, in their order. Raises ValueError or OverflowError for what no column holds."""
    few: list[EncodedMessage] = []
    for put in puts:
        if isinstance(put.messages, InnerMessages):
            parts = (put.messages for put in puts)
            return InnerMessages.concat(
                [rows if isinstance(rows, InnerMessages) else columns_of(rows) for rows in parts]
            )
        few += put.messages
    return tuple(few)


def _rows_if_all_are_sound(puts: Sequence[JoinedPut]) -> Rows | None:
    """The same; None where one of them holds what no column does."""
    try:
        return _rows(puts)
    except (ValueError, OverflowError):
        return None


def wait_for_disk(messages: Rows) -> bool:
    """Whether a put is acknowledged only when it is on the disk: if any of its messages says so."""
    if isinstance(messages, InnerMessages):
        return messages.wait_for_disk
    return any(is_wait(message.properties.get("WAIT")) for message in messages)


class Promise(NamedTuple):
    """None = it does not wait for that."""

    flush: Future[None] | None
    """Its log's sync."""
    copies: CopiesWanted | None
    """Replicas."""
    made_s: float
    """When it was appended, and both times began."""

    def outcome(self, root: str, flush_timeout_ms: int, slave_timeout_ms: int) -> PutStatus:
        """How it ended; what came of the replicas counts more than what came of the disk, as in Java.

        Raises OSError where the sync failed: nobody knows what the disk holds.
        """
        status = PutStatus.PUT_OK
        if self.flush is not None:
            try:
                error = self.flush.exception(self._left_ms(flush_timeout_ms) / 1_000)
            except TimeoutError:
                status = PutStatus.FLUSH_DISK_TIMEOUT
            else:
                if error is not None:
                    raise OSError(errno.EIO, f"the log was not synced ({error})", root) from error
        if self.copies is not None:
            copied = self.copies.wait(self._left_ms(slave_timeout_ms))
            status = status if copied is PutStatus.PUT_OK else copied
        return status

    def when_settled(self, call: Callable[[], None], flush_timeout_ms: int, slave_timeout_ms: int) -> float | None:
        """The first thing that `outcome` would wait for now: as `Settling`."""
        copied = None if self.copies is None else self.copies.done
        for future, timeout_ms in ((self.flush, flush_timeout_ms), (copied, slave_timeout_ms)):
            left_ms = self._left_ms(timeout_ms)
            if future is not None and left_ms and not future.done():
                future.add_done_callback(lambda _: call())
                return left_ms / 1_000
        return None

    def _left_ms(self, timeout_ms: int) -> int:
        gone_ms = round((time.monotonic() - self.made_s) * 1_000)
        return max(timeout_ms - gone_ms, 0)


NOTHING = Promise(None, None, 0.0)


def promise_of(flush: Future[None] | None, copies: CopiesWanted | None) -> Promise:
    """What a put that was appended now waits for."""
    return NOTHING if flush is None and copies is None else Promise(flush, copies, time.monotonic())
