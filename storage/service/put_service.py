"""Puts of many threads into one open store, as a broker process has them. Java: CommitLog.asyncPutMessage, DefaultMessageStore.

    put: joins others    ─▶ put lock: appended ─▶ SYNC_FLUSH: waits ◀─ one sync for all that wait, then dispatched
         (put_group.py)                           ASYNC_FLUSH: dispatched, acknowledged; synced in turns
                                                  with a pool: acknowledged; written out and dispatched in turns, synced in turns

Nothing is dispatched, and so readable, that the flush policy does not call readable (apache/rocketmq#8239): under SYNC_FLUSH nothing
that is not synced, with a pool nothing that is not written. A sync is done beside the puts, not in their lock. When one fails, all that
wait fail with it, the store takes nothing more until it is opened again, and no later sync is an acknowledgement (Java 5.3.3 gets
this wrong: apache/rocketmq#2706, #9713).

Some syncs do stand in the put lock, and `syncFlushTimeout` does not bound them: of a log file that is needed before it was made ahead;
of topics.json and its .bak for a topic that a `put_batch` makes; of a queue's or an index file that is full; once a second of the
checkpoint's index time, before the first that of index_synced.json; after each thorough turn of the queues of index_synced.json and
the checkpoint.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from storage.epoch_times import steady_time_ms
from storage.errors import PutRefusedError, StorageError, StoreNotWritableError
from storage.format.record_block import RecordRun
from storage.log.flush import AsyncFlush, SyncFlush, is_page_cache_busy, is_worth_it, queue_flush_rule
from storage.log.writer import Placement
from storage.put.put import NO_RESULTS, InnerPut, Places, PutOptions, Putter, put_few
from storage.put_status import PutStatus
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.put_guards import NOBODY, may_wait
from storage.service.pending import Pending
from storage.service.put_group import (
    NOTHING,
    PATIENCE_SECONDS,
    JoinedPut,
    Promise,
    PutGroup,
    PutReceipt,
    Rows,
    append_together,
    promise_of,
    wait_for_disk,
)
from storage.service.replica_acks import ReplicaAcks
from storage.service.shared_store import SharedStore
from storage.store import MessageStore

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.01


class PutService(SharedStore):
    """The puts and flush duties of one store that is open for writing, from now until `close`, which closes the store too.

    `put_inner` and `put_batch` may be called by any thread, and so may what `SharedStore` has. Whoever wants something else of the
    store meanwhile asks for it within `exclusive`, or opens the store a second time for reading. A context manager that closes it.
    """

    def __init__(
        self, store: MessageStore, *, starts_duties: bool = True, steady: Callable[[], int] = steady_time_ms
    ) -> None:
        """Without `starts_duties` nothing happens by itself: whoever calls does the turns. `steady` is a clock that nobody sets, ms.

        Raises StoreNotWritableError.
        """
        super().__init__(store)
        self._config = store.config.flush
        self._policy = self._writer.settings.flush
        self._putter = Putter(self._writer, self._append)
        self._commits = GroupCommit()
        self.acks = ReplicaAcks(store.config.mode, store.config.replication)
        self._joining = PutGroup()
        self._work = Work(self._joining)
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        self._steady = steady
        self._held_since_ms: int | None = None
        self._is_closed = self._is_refusing = False
        self._log_thorough_ms = self._pool_thorough_ms = self._queues_thorough_ms = 0
        self._queue_rule = queue_flush_rule(self._config)
        flush_timeout_ms = self._policy.timeout_ms if isinstance(self._policy, SyncFlush) else 0
        self._timeouts_ms = flush_timeout_ms, store.config.replication.slave_timeout
        self._pool = self._policy.pool if isinstance(self._policy, AsyncFlush) else None
        if isinstance(self._policy, SyncFlush):
            self._log_duty = self._duty("group commit", None, self.sync_turn)
        else:
            self._log_duty = self._duty("log flush", self._policy.rule.interval_ms, self.log_turn)
        self._duties = [self._log_duty, self._duty("queue flush", self._queue_rule.interval_ms, self.queue_turn)]
        self._ahead_duty = self._duty("next log file", None, self.next_file_turn)
        self._duties.append(self._ahead_duty)
        if self._pool is not None:
            self._duties.append(self._duty("pool commit", self._pool.rule.interval_ms, self.pool_turn))
            self._pool_duty = self._duties[-1]
        if (confirmed := self._writer.confirmed) is not None:
            self._confirm_duty = self._duty("confirmed messages", None, self.confirm_turn)
            self._duties.append(self._confirm_duty)
            if may_wait(store.config.mode):
                confirmed.reached = self.acks.reached_by_all
                self.acks.heed = self.heed_confirmed
        for duty in self._duties if starts_duties else ():
            duty.start()

    def _duty(self, name: str, interval_ms: int | None, turn: Callable[[], None]) -> Duty:
        return Duty(f"{name} of {self._store.root}", interval_ms, partial(self._do, turn))

    def _do(self, turn: Callable[[], None]) -> bool:
        """A turn in its own thread; False = there is nothing more to do, as everybody has been told."""
        try:
            turn()
        except (StorageError, OSError) as error:
            if error is self._writer.failure:  # others fail because of it
                _LOG.exception("%s takes no more messages", self._store.root)
            return False
        return True

    # What others ask

    @property
    def failure(self) -> BaseException | None:
        """Why nothing more is taken until the store is opened again; None = it is."""
        return self._writer.failure

    @property
    def is_closed(self) -> bool:
        """Whether it takes puts no more."""
        return self._is_closed or self._is_refusing

    def refuse_puts(self) -> None:
        """Take no puts any more; when this returns none is appended. What is done within `exclusive` is."""
        with self._lock:
            self._is_refusing = True

    @property
    def is_os_page_cache_busy(self) -> bool:
        """Whether one put has held the log for longer than `osPageCacheBusyTimeOutMills`."""
        since_ms, timeout_ms = self._held_since_ms, self._config.os_page_cache_busy_time_out_mills
        return since_ms is not None and is_page_cache_busy(since_ms, self._steady(), timeout_ms)

    @property
    def is_pool_deficient(self) -> bool:
        """Whether the transient store pool is full. Java: DefaultMessageStore.isTransientStorePoolDeficient."""
        return self._pool is not None and self._writer.held_bytes >= self._pool.room_bytes

    @contextmanager
    def exclusive(self) -> Iterator[MessageStore]:
        """The store, for the caller alone: to read, or to put and flush as its owner does. Puts wait meanwhile."""
        with self._lock:
            self._refuse_if_closed()
            try:
                yield self._store
            finally:
                self._fail_commits()
                self.log_grew()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """What is computed in here is computed by one thread at a time (`put_service.py`), and waited for by puts that go together."""
        try:
            with self._work.begun():
                yield
        finally:
            if self._joining.is_due:
                self._append_joined()

    def at_work_for_later(self) -> AbstractContextManager[None]:
        """As `at_work`, for what ends in `put_later`: nobody waits for it, and nothing is appended behind it."""
        return self._work.begun(is_waited_for=False)

    def off_work(self) -> AbstractContextManager[None]:
        """Within `at_work`: others may compute meanwhile. For what waits for a disk, and not for the put lock."""
        return self._work.left()

    def _fail_commits(self) -> None:
        """Where the store has failed nobody waits for a sync any more. Under the put lock."""
        if (failure := self._writer.failure) is not None:
            self._commits.fail(failure)

    def _tell_of_failure(self) -> None:
        with self._lock:
            self._fail_commits()

    # Putting

    def put_inner(self, messages: InnerMessages | Sequence[InnerMessage], *, waits: bool | None = None) -> PutReceipt:
        """Append messages as they are, as `MessageStore.put_inner` does.

        PUT_OK: on the disk under SYNC_FLUSH, else in the log, or with a pool in memory. FLUSH_DISK_TIMEOUT: in the log, and readable
        as soon as it is synced. FLUSH_SLAVE_TIMEOUT: in the log, readable, and fewer replicas than `inSyncReplicas` have told within
        `slaveTimeout` that they hold it. OS_PAGE_CACHE_BUSY, IN_SYNC_REPLICAS_NOT_ENOUGH: refused, nothing was stored.
        `waits` False waits for neither disk nor replicas; None = not if every message says WAIT=false.
        Raises MessageIllegalError and StoreNotWritableError with nothing stored, OSError where nobody knows.
        """
        inner = messages if isinstance(messages, InnerMessages) else InnerMessages.of(messages)
        return self.put_later(inner, waits=waits)()

    def put_later(
        self, messages: Rows, *, waits: bool | None = None, needs_copies: bool = True, is_heard: bool = True
    ) -> Pending[PutReceipt]:
        """Messages that join the next append. What is returned is to be asked, or settled: it makes the append unless somebody has made
        it, with all that have joined until then. Asked, it returns and raises what `put_inner` does.
        Without `needs_copies` it waits for no replicas. Without `is_heard` nobody would hear of OS_PAGE_CACHE_BUSY: it waits for the
        log, and writes out a pool that is full. Departure: Java drops it.
        """
        waits = wait_for_disk(messages) if waits is None else waits
        copies = self._admitted(waits and needs_copies, is_heard=is_heard)
        if isinstance(copies, PutStatus):
            refused = PutReceipt(copies, NO_RESULTS)
            return Pending(lambda: refused)
        joined = self._joining.join(messages, waits, copies)

        def receipt() -> PutReceipt:
            self._appended(joined)
            places = joined.places()
            return PutReceipt(self._wait(joined.promise), places)

        def settling(call: Callable[[], None]) -> float | None:
            self._appended(joined)
            return joined.promise.when_settled(call, *self._timeouts_ms)

        return Pending(receipt, settling)

    def _appended(self, joined: JoinedPut) -> None:
        """It stands in the log, or is refused."""
        self._work.end()
        while not joined.is_done:
            if self._joining.is_due or not self._joining.wait_for(joined, PATIENCE_SECONDS):
                self._append_joined()

    def _admitted(self, waits: bool, *, is_heard: bool = True) -> int | PutStatus:
        """How many copies a put must have that begins now; or why there will be none."""
        if is_heard and (self.is_os_page_cache_busy or self.is_pool_deficient):
            return PutStatus.OS_PAGE_CACHE_BUSY
        if self.is_pool_deficient:
            self._work.end()
            with self._failing_all():
                self._write_held()
        try:
            return self.acks.needed(self._writer.log_end) if waits else NOBODY
        except PutRefusedError as refused:
            return refused.status

    def append_waiting(self) -> None:
        """Make the appends that `put_later` has left, without waiting for the disk."""
        while self._joining.is_waiting:
            self._append_joined()

    def _append_joined(self) -> None:
        """Append those that have joined, if any still wait, as one; each is told."""
        with self._work.processor, self._lock:
            taken = self._joining.take()
            try:
                with self._holding():
                    append_together(taken, self._append_inner)
                for put in taken:
                    if put.is_stored:
                        put.promise = self._promised(put.waits, put.copies)
            except BaseException as error:  # they may stand in the log, and nobody can read them yet
                for put in taken:
                    put.fail(error)
                if not isinstance(error, OSError):
                    raise
            finally:
                self._joining.tell(taken)
        self._wake_duties()

    def _promised(self, waits: bool, copies: int) -> Promise:
        """What was appended is to be synced, or can be read now, as the flush policy has it; and to be copied. Under the put lock.

        Raises OSError where it cannot be made readable: it stands in the log, and nobody may be told that nothing was stored.
        """
        end = self._writer.log_end
        if isinstance(self._policy, SyncFlush):
            return promise_of(self._commits.request(end) if waits else None, self.acks.want(end, copies))
        if self._pool is None:
            try:
                self._writer.dispatch()
            except StorageError as error:
                raise OSError(errno.EIO, f"stored, and no consumer finds it yet ({error})", self._store.root) from error
        return promise_of(None, self.acks.want(end, copies))

    def _append_inner(self, messages: Rows) -> Places:
        self._refuse_puts_if_closed()
        settings, delays_ms = self._writer.settings, self._store.config.delay.delays_ms
        if isinstance(messages, InnerMessages):
            return InnerPut(settings, messages, delays_ms).append_to(self._writer, self._append)
        return put_few(settings, messages, delays_ms, self._writer, self._append)

    def put_batch(self, rows: pa.RecordBatch, *, waits: bool = True, **options: Any) -> PutReceipt:
        """Append a table of messages, as `MessageStore.put_batch` does. Statuses and errors are `put_inner`'s."""
        copies = self._admitted(waits)
        if isinstance(copies, PutStatus):
            return PutReceipt(copies, NO_RESULTS)
        append = self._putter.prepare(rows, PutOptions(**options))
        with self._lock:
            self._refuse_puts_if_closed()
            with self._holding():
                places = append()
            promise = self._promised(waits, copies) if places.num_rows else NOTHING
        self._wake_duties()
        return PutReceipt(self._wait(promise), places)

    def _append(self, runs: Sequence[RecordRun], *, index_lease_ms: int = 0) -> list[Placement]:
        return self._writer.append_records(runs, index_lease_ms=index_lease_ms, hold=self._pool is not None)

    def _wait(self, promise: Promise) -> PutStatus:
        if promise is NOTHING:
            return PutStatus.PUT_OK
        self._work.end()
        return promise.outcome(self._store.root, *self._timeouts_ms)

    def _wake_duties(self) -> None:
        self.log_grew()
        if self._writer.wants_next_file:
            self._ahead_duty.wake()
        if self._pool is not None:
            if self._pool.is_woken_by_puts:
                self._pool_duty.wake()
        elif isinstance(self._policy, SyncFlush) or self._policy.is_woken_by_puts:
            self._log_duty.wake()

    @contextmanager
    def _holding(self) -> Iterator[None]:
        self._held_since_ms = self._steady()
        try:
            yield
        finally:
            self._held_since_ms = None

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise StoreNotWritableError(self._store.root, "it is shut down")

    def _refuse_puts_if_closed(self) -> None:
        self._refuse_if_closed()
        if self._is_refusing:
            raise StoreNotWritableError(self._store.root, "it takes no more messages")

    # Duties

    def sync_turn(self) -> None:
        """One sync for all that wait; what it brought to the disk is dispatched, and acknowledged. Java: GroupCommitService."""
        with self._failing_all():
            self._sync_log()

    def log_turn(self) -> None:
        """The log's turn under ASYNC_FLUSH: a sync, if it is worth it. Java: FlushRealTimeService."""
        assert isinstance(self._policy, AsyncFlush)
        turn = self._policy.rule.turn(self._log_thorough_ms, self._writer.clock())
        self._log_thorough_ms = turn.thorough_ms
        if self._is_worth_it(self._writer.synced_end, self._writer.written_end, turn.least_pages):
            with self._failing_all():
                self._sync_log()

    def pool_turn(self) -> None:
        """The pool's turn: what is in memory is written out and dispatched, if it is worth it. Java: CommitRealTimeService."""
        assert self._pool is not None
        turn = self._pool.rule.turn(self._pool_thorough_ms, self._writer.clock())
        self._pool_thorough_ms = turn.thorough_ms
        if self._is_worth_it(self._writer.written_end, self._writer.log_end, turn.least_pages):
            with self._failing_all():
                self._write_held()
            self._pool_thorough_ms = self._writer.clock()
            if isinstance(self._policy, AsyncFlush) and self._policy.is_woken_by_puts:
                self._log_duty.wake()

    def queue_turn(self) -> None:
        """The queues' turn: those are synced for which it is worth it. Java: FlushConsumeQueueService.

        In a thorough one all that is derived from the log is, and the checkpoint is written.
        """
        turn = self._queue_rule.turn(self._queues_thorough_ms, self._writer.clock())
        self._queues_thorough_ms = turn.thorough_ms
        with self._failing_all():
            with self._lock:
                sync = self._writer.begin_derived_sync(turn.least_pages)
            error = error_of(sync.run)
            with self._lock:
                self._writer.end_derived_sync(sync, error)
            if error is not None:
                raise error

    def heed_confirmed(self, place: float) -> None:
        """All who must have the log have it up to there: a master's replicas, or a slave's master, say so. For any thread."""
        if (confirmed := self._writer.confirmed) is not None and confirmed.reached != place:
            confirmed.reached = place
            self._confirm_duty.wake()

    def confirm_turn(self) -> None:
        """What is confirmed by now can be read. Java: ReputMessageService."""
        with self._failing_all(), self._lock:
            self._writer.dispatch()
        self.log_grew()

    def readable_within(self, end: int, seconds: float) -> bool:
        """Whether readers see the log up to there, as soon as they do, or then. True where nothing must be confirmed."""
        if self._writer.confirmed is None:
            return True
        deadline_s = time.monotonic() + seconds
        while self._writer.dispatched_end < end and time.monotonic() < deadline_s:
            if self._is_closed or self.acks.is_closed:  # then no replica will tell any more
                break
            time.sleep(_LOOK_SECONDS)
        return self._writer.dispatched_end >= end

    def next_file_turn(self) -> None:
        """The log's next file is made beside the puts, if it will be needed soon. Java: AllocateMappedFileService."""
        with self._lock:
            ahead = self._writer.next_file()
        if ahead is not None:
            with self._failing_all():
                ahead.make()

    def _sync_log(self) -> None:
        with self._syncing:
            with self._lock:
                sync = self._writer.begin_log_sync()
            error = error_of(sync.log.run)
            with self._lock:
                self._writer.end_log_sync(sync, error)
                if error is not None:
                    raise error
                try:
                    self._writer.dispatch()
                finally:  # what is on the disk is acknowledged, be it that a queue's file cannot be written
                    self._commits.complete(sync.log.end)
        self.log_grew()

    def _is_worth_it(self, done: int, until: int, least_pages: int) -> bool:
        size = self._writer.settings.log_file_size_bytes
        start = self._writer.log.file_end(done, size) - size
        return is_worth_it(done, until, least_pages, start, size)

    def _write_held(self) -> None:
        with self._lock:
            self._writer.write_held()
            self._writer.dispatch()
        self.log_grew()

    @contextmanager
    def _failing_all(self) -> Iterator[None]:
        """An error ends the writing: whoever waits hears of it, and so does whoever puts later."""
        try:
            yield
        except BaseException as error:
            with self._lock:
                self._writer.fail(error)
                self._commits.fail(self._writer.failure or error)
            raise

    # Ending

    def flush(self) -> None:
        """Everything put so far onto the disk, and readable; whoever waits is acknowledged. Raises StoreNotWritableError, OSError."""
        with self._failing_all():
            self._write_held()
            self._sync_log()

    def close(self) -> None:
        """Refuse puts from now on, stop the duties, bring all to the disk and close the store cleanly.

        After a failure the next opening recovers. Raises OSError where it fails now.
        """
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self.acks.close()
        for duty in self._duties:
            duty.stop()
        try:
            if (failure := self._writer.failure) is None:
                self.flush()
                self._writer.drop_next_file()
            else:
                self._commits.fail(failure)
        finally:
            self._look_ups.close()
            self._store.close()

    def __enter__(self) -> PutService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Work:
    """The turns of all threads in front of one store.

    Whose turn it is to compute, and who is on the way to a put.

    Python runs one thread at a time anyway, and Arrow's kernels let go of the interpreter at each call: of eight threads that
    compute at once, each call wakes another one, and a message takes twice the processor. So one computes, and whoever waits for a
    disk lets others.
    """

    def __init__(self, group: PutGroup) -> None:
        self.processor = threading.Lock()
        """Held by the one that computes; before the put lock."""
        self._group = group
        self._own = threading.local()

    def begun(self, *, is_waited_for: bool = True) -> AbstractContextManager[None]:
        """Computes, and is on the way if others are to wait for it. Not to be entered twice by a thread."""
        return _Turn(self, is_waited_for)

    def begin(self, *, is_waited_for: bool) -> None:
        """The beginning of `begun`."""
        if is_waited_for:
            self._group.come()
            self._own.is_coming = True
        self._take()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Within `begun`: others may compute meanwhile, and do not wait for this one. For what waits for a disk."""
        was_mine = self.end()
        try:
            yield
        finally:
            if was_mine:
                self._take()

    def end(self) -> bool:
        """Whether this thread computed, which it does no more."""
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
    """From `begin` to `end`; each send takes one, so it is no generator."""

    __slots__ = ("_is_waited_for", "_work")

    def __init__(self, work: Work, is_waited_for: bool) -> None:
        self._work = work
        self._is_waited_for = is_waited_for

    def __enter__(self) -> None:
        self._work.begin(is_waited_for=self._is_waited_for)

    def __exit__(self, *_: object) -> None:
        self._work.end()


class GroupCommit:
    """Puts that wait for a sync to reach behind them, and whoever tells them how it ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    def request(self, end: int) -> Future[None]:
        """Done when everything before `end` is on the disk; fails with what a sync has failed with. Ends must ascend."""
        waiting: Future[None] = Future()
        with self._lock:
            self._waiting.append((end, waiting))
        return waiting

    def complete(self, synced_end: int) -> None:
        """Everything before that place is on the disk."""
        with self._lock:
            done = []
            while self._waiting and self._waiting[0][0] <= synced_end:
                done.append(self._waiting.popleft()[1])
        for waiting in done:
            waiting.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Nobody who waits will ever hear that all is well."""
        with self._lock:
            failed, self._waiting = self._waiting, deque()
        for _, waiting in failed:
            waiting.set_exception(error)


class Duty:
    """A thread that does something in turns: every `interval_ms` (None = never by itself), and when it is woken.

    `turn` says whether another one may follow. The thread ends with the process, as a killed one's does; `stop` ends it in order.
    """

    def __init__(self, name: str, interval_ms: int | None, turn: Callable[[], bool]) -> None:
        self._interval_s = None if interval_ms is None else interval_ms / 1_000
        self._turn = turn
        self._woken = threading.Event()
        self._stops = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """The next turn comes now, or when the present one is done."""
        self._woken.set()

    def stop(self) -> None:
        """Returns when the present turn is done; none follows."""
        self._stops = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._woken.wait(self._interval_s)
            self._woken.clear()
            if self._stops or not self._turn():
                return


def error_of(act: Callable[[], None]) -> OSError | None:
    """What a sync fails with; None where it does not."""
    try:
        act()
    except OSError as error:
        return error
    return None
