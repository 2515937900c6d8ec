"""Puts that arrive together and are appended as one: one lock, one pass of the vectorised path, one write, one dispatch.

A thread that handles a request is on its way to a put (`PutService.at_work`). A put joins the group; the last thread on its way appends
it together with all that have joined. A full group is appended at once, and so is one that has waited a moment. So a single put does
not wait, and under load the cost of a message falls. Java: the group commit of its flushing, and its put lock with a cheap put.

Then a put may wait until replicas hold it (`ReplicaAcks`), which knows how far each replica is. An acknowledgement means what the
replica means by it: a Java slave has the bytes in its page cache. Java: HAService, GroupTransferService.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from storage.dispatch.writer import EVERYTHING, NOTHING_NEW
from storage.errors import StorageError
from storage.pending import Pending, PutStatus
from storage.put.put import NO_RESULTS, Places, table_of
from storage.rules.inner_messages import EncodedMessage, InnerMessages, columns_of, is_wait
from storage.rules.put_guards import ALL_IN_SET, NO_COPIES, copies_needed, copies_of_batch, is_in_sync, may_wait
from storage.settings.nouns import ReplicationConfig, StoreModeConfig

GROUP_MESSAGES = 64
GROUP_BYTES = 4 << 20
PATIENCE_SECONDS = 0.05
"""How long to wait for threads on their way; one of them may wait for a disk."""

Rows: TypeAlias = InnerMessages | tuple[EncodedMessage, ...]
"""The messages of one or several puts: columns, or a few messages."""
Append: TypeAlias = Callable[[Rows], Places]


class PutMessageResult(NamedTuple):
    """The result of a put, with the places of its messages. Java: PutMessageResult, with AppendMessageResult."""

    status: PutStatus
    rows: Places = NO_RESULTS
    """Row by row; empty if nothing was stored."""
    reason: str | None = None
    """The reason of a failure, for logs; clients get Java's remark."""

    @property
    def places(self) -> pa.RecordBatch:
        """The places as a table."""
        return table_of(self.rows)

    @property
    def message_count(self) -> int:
        """How many messages it has stored."""
        return len(self.rows)

    @property
    def msg_id(self) -> str:
        """The offset message id of the stored message; the ids of several messages, joined by commas."""
        rows = self.rows
        return ",".join([row.msg_id for row in rows] if isinstance(rows, list) else rows.column("msg_id").to_pylist())

    @property
    def queue_offset(self) -> int:
        """Queue offset of the first stored message."""
        rows = self.rows
        return int(rows[0].queue_offset if isinstance(rows, list) else rows.column("queue_offset")[0].as_py())


class JoinedPut:
    """One put, until it is in the log or refused."""

    def __init__(self, messages: Rows, waits: bool, copies: int) -> None:
        self.messages = messages
        self.waits = waits
        """Whether it is acknowledged only after it is on the disk."""
        self.copies = copies
        """How many copies it needs to be acknowledged (`rules/put_guards.py`)."""
        self.is_done = False
        """Whether it is in the log, or refused."""
        self.acknowledged: Pending[PutStatus] = ACKNOWLEDGED
        """What it waits for after the append."""
        self._places: Places | None = None
        self._error: BaseException | None = None

    @property
    def row_count(self) -> int:
        """How many messages."""
        return self.messages.row_count if isinstance(self.messages, InnerMessages) else len(self.messages)

    @property
    def size_bytes(self) -> int:
        """Size of the bodies."""
        if isinstance(self.messages, InnerMessages):
            return int(self.messages.bodies.nbytes)
        return sum(len(message.body) for message in self.messages)

    @property
    def says_where_born(self) -> bool:
        """Whether its messages have a born host; all do, or none."""
        if isinstance(self.messages, InnerMessages):
            return self.messages.born_hosts is not None
        return any(message.born_host is not None for message in self.messages)

    def places(self) -> Places:
        """The places of its messages, when it is done. Raises what the append raised."""
        if self._error is not None:
            raise self._error
        assert self._places is not None, "it is done"
        return self._places

    @property
    def is_stored(self) -> bool:
        """Whether messages of it are in the log."""
        return self._error is None and self._places is not None and len(self._places) > 0

    def append(self, append: Append) -> None:
        """Append it alone."""
        try:
            self._places = append(self.messages)
        except (StorageError, OSError, ValueError, OverflowError) as error:
            self._error = error

    def give(self, places: Places) -> None:
        """Set its places after an append together with others."""
        self._places = places

    def fail(self, error: BaseException) -> None:
        """Set an error after which it is unknown what of it is in the log."""
        self._error = error


class PutGroup:
    """Puts that have joined and are not appended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[JoinedPut] = deque()
        self._on_the_way = 0
        self._finished = threading.Condition()

    def come(self) -> None:
        """A thread starts to handle a request, and may join."""
        with self._lock:
            self._on_the_way += 1

    def leave(self) -> None:
        """The thread has joined, or will not."""
        with self._lock:
            self._on_the_way -= 1

    def join(self, messages: Rows, waits: bool, copies: int) -> JoinedPut:
        """Add a put, which waits from now on."""
        joined = JoinedPut(messages, waits, copies)
        with self._lock:
            self._waiting.append(joined)
        return joined

    def wait_for(self, joined: JoinedPut, seconds: float) -> bool:
        """Wait at most so long; returns whether that put is done."""
        with self._finished:
            if not joined.is_done:
                self._finished.wait(seconds)
            return joined.is_done

    def finish(self, taken: Sequence[JoinedPut]) -> None:
        """Mark these puts as done, and wake the threads that wait for them."""
        with self._finished:
            for put in taken:
                put.is_done = True
            self._finished.notify_all()

    @property
    def is_waiting(self) -> bool:
        """Whether any put waits to be appended."""
        return bool(self._waiting)

    @property
    def is_due(self) -> bool:
        """Whether the waiting puts must be appended now: no other thread is on its way, or they are many."""
        return bool(self._waiting) and (self._on_the_way <= 0 or len(self._waiting) >= GROUP_MESSAGES)

    def take(self) -> list[JoinedPut]:
        """Remove the first puts, as many as fit into one append."""
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
    """Append them as one; if that is refused with nothing stored, each by itself."""
    try:
        if len(taken) > 1 and (rows := _rows_if_all_are_sound(taken)) is not None:
            places = append(rows)
            start = 0
            for put in taken:
                put.give(places[start : start + put.row_count])
                start += put.row_count
            return
    except (StorageError, ValueError, OverflowError):  # nothing was stored: the fault may be in one of them
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
    """Whether both have born hosts, or neither."""
    return first.says_where_born == other.says_where_born


def _rows(puts: Sequence[JoinedPut]) -> Rows:
    """The messages of all, in order. Raises ValueError or OverflowError for a value that no column holds."""
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
    """Like `_rows`; None if one has a value that no column holds."""
    try:
        return _rows(puts)
    except (ValueError, OverflowError):
        return None


def wait_for_disk(messages: Rows) -> bool:
    """Whether a put is acknowledged only when it is on the disk: if any of its messages requires it."""
    if isinstance(messages, InnerMessages):
        return messages.wait_for_disk
    return any(is_wait(message.properties.get("WAIT")) for message in messages)


class Work:
    """The turns of all threads that use one store: which one computes now, and which are on their way to a put.

    Python runs one thread at a time anyway, and Arrow's kernels release the interpreter at each call. If eight threads compute
    at once, each call wakes another one, and a message costs twice the processor time. So one computes, and a thread that waits for a
    disk lets others compute.
    """

    def __init__(self, group: PutGroup) -> None:
        self.processor = threading.Lock()
        """Held by the computing thread; taken before the put lock."""
        self._group = group
        self._own = threading.local()

    def turn(self, *, is_waited_for: bool = True) -> AbstractContextManager[None]:
        """Compute; with `is_waited_for` also count as on the way to a put. A thread must not enter it twice."""
        return _Turn(self, is_waited_for)

    def begin(self, *, is_waited_for: bool) -> None:
        """The start of `turn`."""
        if is_waited_for:
            self._group.come()
            self._own.is_coming = True
        self._take()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Within `turn`: other threads may compute meanwhile, and do not wait for this one. For waiting for a disk."""
        was_mine = self.end()
        try:
            yield
        finally:
            if was_mine:
                self._take()

    def end(self) -> bool:
        """The end of `turn`; returns whether this thread was computing."""
        was_mine = getattr(self._own, "is_mine", False)
        if was_mine:
            self._own.is_mine = False
            self.processor.release()
        if getattr(self._own, "is_coming", False):
            self._own.is_coming = False
            self._group.leave()
        return was_mine

    def _take(self) -> None:
        self.processor.acquire()
        self._own.is_mine = True


class _Turn(AbstractContextManager[None]):
    """From `begin` to `end`; each send uses one, so for speed it is no generator."""

    __slots__ = ("_is_waited_for", "_work")

    def __init__(self, work: Work, is_waited_for: bool) -> None:
        self._work = work
        self._is_waited_for = is_waited_for

    def __enter__(self) -> None:
        self._work.begin(is_waited_for=self._is_waited_for)

    def __exit__(self, *_: object) -> None:
        self._work.end()


class GroupCommit:
    """Puts that wait until a sync covers them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    def request(self, end: int) -> Future[None]:
        """Done when everything before `end` is on the disk; fails with a sync's error. Ends must ascend."""
        waiting: Future[None] = Future()
        with self._lock:
            self._waiting.append((end, waiting))
        return waiting

    def complete(self, synced_end: int) -> None:
        """Everything before that log offset is on the disk."""
        with self._lock:
            done = []
            while self._waiting and self._waiting[0][0] <= synced_end:
                done.append(self._waiting.popleft()[1])
        for waiting in done:
            waiting.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Fail all waiting puts with the error."""
        with self._lock:
            failed, self._waiting = self._waiting, deque()
        for _, waiting in failed:
            waiting.set_exception(error)


class Acknowledgement(Pending[PutStatus]):
    """What an appended put still waits for: its log's sync, then its copies; None = it does not wait for that."""

    __slots__ = ("_acks", "_late", "_made_s", "_root", "_timeouts_ms", "copies", "flush")

    def __init__(
        self,
        flush: Future[None] | None,
        copies: CopiesWanted | None,
        acks: ReplicaAcks,
        root: str,
        timeouts_ms: tuple[int, int],
        late: PutStatus = PutStatus.FLUSH_DISK_TIMEOUT,
    ) -> None:
        """`timeouts_ms` are those of the disk and of replicas; both start now. `late` is the status where the disk takes longer."""
        self.flush = flush
        self.copies = copies
        self._acks = acks
        self._root = root
        self._timeouts_ms = timeouts_ms
        self._late = late
        self._made_s = time.monotonic()

    def __call__(self) -> PutStatus:
        """The status; the result of the replicas overrides that of the disk, as in Java.

        Raises OSError if the sync failed: it is unknown what the disk holds.
        """
        status, (flush_timeout_ms, slave_timeout_ms) = PutStatus.PUT_OK, self._timeouts_ms
        if self.flush is not None:
            try:
                error = self.flush.exception(self._left_ms(flush_timeout_ms) / 1_000)
            except TimeoutError:
                status = self._late
            else:
                if error is not None:
                    is_of_group = self._late is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
                    what = "it is not known whether the group keeps it" if is_of_group else "the log was not synced"
                    raise OSError(errno.EIO, f"{what} ({error})", self._root) from error
        if self.copies is not None:
            copied = self._acks.wait(self.copies, self._left_ms(slave_timeout_ms))
            status = status if copied is PutStatus.PUT_OK else copied
        return status

    def when_settled(self, call: Callable[[], None]) -> float | None:
        """`Pending.when_settled` for the first of them that is not done."""
        copied = None if self.copies is None else self.copies.done
        for future, timeout_ms in zip((self.flush, copied), self._timeouts_ms, strict=True):
            left_ms = self._left_ms(timeout_ms)
            if future is not None and left_ms and not future.done():
                future.add_done_callback(lambda _: call())
                return left_ms / 1_000
        return None

    def _left_ms(self, timeout_ms: int) -> int:
        gone_ms = round((time.monotonic() - self._made_s) * 1_000)
        return max(timeout_ms - gone_ms, 0)


ACKNOWLEDGED: Pending[PutStatus] = Pending.done(PutStatus.PUT_OK)
"""Of a put that waits for nothing."""


class CopiesWanted:
    """One put that waits until enough copies reach its end."""

    __slots__ = ("done", "end", "needed")

    def __init__(self, end: int, needed: int) -> None:
        self.end = end
        """Log offset after its last byte."""
        self.needed = needed
        """Copies, including the master's; or `ALL_IN_SET`."""
        self.done: Future[PutStatus] = Future()
        """PUT_OK, or FLUSH_SLAVE_TIMEOUT. `ReplicaAcks` completes it."""


class ReplicaAcks:
    """What each replica holds of one log, and which puts wait for that. Thread-safe."""

    def __init__(self, mode: StoreModeConfig, replication: ReplicationConfig) -> None:
        self._mode = mode
        self._config = replication
        self._lock = threading.Condition(threading.Lock())
        self._frontier = AckFrontier()
        self._set_size: int | None = None
        self._is_closed = False
        self.alive = replication.total_replicas
        """Brokers of the group, as the name server says. Java: aliveReplicaNumInGroup."""
        self.on_reached: Callable[[float], None] = lambda _: None
        """Called with `reached_by_all` after each change, in the thread that reports it: it must be quick and take no lock of a put."""

    # For puts

    def needed(self, log_end: int) -> int:
        """How many copies a put that starts now must have. Raises PutRefusedError if there are too few replicas."""
        if not may_wait(self._mode):
            return NO_COPIES
        return copies_needed(self._mode, self._config, in_sync=self.in_sync(log_end), alive=self.alive)

    def in_sync(self, log_end: int) -> int:
        """Copies that count as in sync, including the master's. Java: HAService.inSyncReplicasNums.

        Departure: a connection that has acknowledged nothing does not count.
        """
        with self._lock:
            return self._in_sync(log_end)

    def _in_sync(self, log_end: int) -> int:
        if self._set_size is not None:
            return self._set_size
        gap = self._config.ha_max_gap_not_in_sync
        return 1 + sum(is_in_sync(offset, log_end, gap) for offset in self._frontier.acknowledged.values())

    def needed_by_batch(self, requested: int | None) -> int:
        """How many copies a batch must have; `requested` is its writer's option."""
        return copies_of_batch(self._mode, self._config, requested)

    def in_sync_within(self, log_end: int, needed: int, seconds: float) -> int:
        """How many copies are in sync: as soon as they are enough, the time is over, or no replica will report any more."""
        with self._lock:
            self._lock.wait_for(lambda: self._is_closed or self._in_sync(log_end) >= needed, seconds)
            return self._in_sync(log_end)

    def holding_within(self, end: int, needed: int, seconds: float) -> int:
        """How many copies, including the master's, hold the log up to `end`: as soon as they are enough, or after the time."""
        with self._lock:
            self._lock.wait_for(lambda: self._is_closed or self._holding(end) >= needed, seconds)
            return self._holding(end)

    def _holding(self, end: int) -> int:
        return 1 + sum(offset >= end for offset in self._frontier.acknowledged.values())

    def want(self, end: int, needed: int) -> CopiesWanted | None:
        """What a put that ends there must wait for; None = nothing."""
        if needed == NO_COPIES:
            return None
        with self._lock:
            if self._is_closed:
                wanted = CopiesWanted(end, needed)
                wanted.done.set_result(PutStatus.FLUSH_SLAVE_TIMEOUT)
                return wanted
            return self._frontier.ask(end, needed)

    def wait(self, wanted: CopiesWanted, timeout_ms: int) -> PutStatus:
        """PUT_OK, or FLUSH_SLAVE_TIMEOUT: it is in the log, readable, and replicas will have it later. For one thread."""
        try:
            return wanted.done.result(timeout_ms / 1_000)
        except TimeoutError:
            return self.given_up(wanted)

    def given_up(self, wanted: CopiesWanted) -> PutStatus:
        """The status of a put whose time is over; reports that came in between count."""
        with self._lock:
            if self._frontier.give_up(wanted):
                return PutStatus.FLUSH_SLAVE_TIMEOUT
        return wanted.done.result()

    # For reports of replicas

    def see(self, acknowledged: Mapping[Hashable, int]) -> None:
        """Set the acknowledged end of each connected replica; less than 0 = unknown.

        The caller has checked them: only what was sent counts, and each replica once.
        """
        with self._lock:
            self._tell(self._frontier.see({replica: offset for replica, offset in acknowledged.items() if offset >= 0}))

    def set_members(self, others: Iterable[Hashable]) -> None:
        """Set the SyncStateSet without the master; old and new, while it is being changed."""
        members = frozenset(others)
        with self._lock:
            self._set_size = 1 + len(members)
            self._tell(self._frontier.set_members(members))

    @property
    def is_closed(self) -> bool:
        """Whether no replica will report any more."""
        return self._is_closed

    @property
    def reached_by_all(self) -> float:
        """The log offset that all in the SyncStateSet have; `EVERYTHING` if no other must. Java: computeConfirmOffset."""
        if not self._config.all_ack_in_sync_state_set:
            return EVERYTHING
        return NOTHING_NEW if self._set_size is None else self._frontier.reached(ALL_IN_SET)

    def _tell(self, settled: list[CopiesWanted]) -> None:
        self.on_reached(self.reached_by_all)
        for wanted in settled:
            wanted.done.set_result(PutStatus.PUT_OK)
        self._lock.notify_all()

    def close(self) -> None:
        """No replica will report any more: puts that wait, or will wait, end in FLUSH_SLAVE_TIMEOUT now."""
        with self._lock:
            self._is_closed = True
            for wanted in self._frontier.forget():
                wanted.done.set_result(PutStatus.FLUSH_SLAVE_TIMEOUT)
            self._lock.notify_all()


class AckFrontier:
    """What each replica has acknowledged, and which puts wait for more. Not thread-safe, and without a clock.

    Java: GroupTransferService. Departure: a put that lacks copies delays no other, and one that has its copies is never called late.
    """

    def __init__(self) -> None:
        self._acknowledged: dict[Hashable, int] = {}
        self._others_in_set: frozenset[Hashable] = frozenset()
        self._waiting: dict[int, list[CopiesWanted]] = {}

    @property
    def acknowledged(self) -> Mapping[Hashable, int]:
        """The offset that each replica has reached."""
        return self._acknowledged

    def ask(self, end: int, needed: int) -> CopiesWanted | None:
        """What a put that ends there waits for; None = it has its copies already."""
        if end <= self.reached(needed):
            return None
        wanted = CopiesWanted(end, needed)
        self._waiting.setdefault(needed, []).append(wanted)
        return wanted

    def see(self, acknowledged: Mapping[Hashable, int]) -> list[CopiesWanted]:
        """Set how far each connected replica is; a missing one stops counting. Returns the puts that are done."""
        self._acknowledged = dict(acknowledged)
        return self._settled()

    def set_members(self, others: Iterable[Hashable]) -> list[CopiesWanted]:
        """Set the SyncStateSet without the master (old and new, while it is being changed). Returns the puts that are done."""
        self._others_in_set = frozenset(others)
        return self._settled()

    def give_up(self, wanted: CopiesWanted) -> bool:
        """Stop waiting for the put. False = it was done before."""
        waiting = self._waiting.get(wanted.needed, [])
        if wanted not in waiting:
            return False
        waiting.remove(wanted)
        return True

    def reached(self, needed: int) -> float:
        """The log offset that so many copies have reached; infinity if the master's own is enough."""
        if needed == ALL_IN_SET:
            return min((self._acknowledged.get(other, -1) for other in self._others_in_set), default=float("inf"))
        if needed <= 1:
            return float("inf")
        offsets = sorted(self._acknowledged.values(), reverse=True)
        return offsets[needed - 2] if len(offsets) >= needed - 1 else -1

    def _settled(self) -> list[CopiesWanted]:
        settled: list[CopiesWanted] = []
        for needed, waiting in self._waiting.items():
            reached = self.reached(needed)
            settled += [put for put in waiting if put.end <= reached]
            self._waiting[needed] = [put for put in waiting if put.end > reached]
        return settled

    def forget(self) -> list[CopiesWanted]:
        """All waiting puts, which are dropped here."""
        left = [put for waiting in self._waiting.values() for put in waiting]
        self._waiting.clear()
        return left
