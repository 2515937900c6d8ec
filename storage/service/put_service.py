"""Puts of many threads into one open store, as a broker process has them. Java: CommitLog.asyncPutMessage, DefaultMessageStore.

    put: joins others    ─▶ put lock: appended ─▶ SYNC_FLUSH: waits ◀─ one sync for all that wait, then dispatched
         (put_group.py)                           ASYNC_FLUSH: dispatched, acknowledged; synced in turns
                                                  with a pool: acknowledged; written out and dispatched in turns, synced in turns

Only what the flush policy calls readable is dispatched, and so readable (apache/rocketmq#8239): under SYNC_FLUSH synced messages, with
a pool written ones. A sync runs beside the puts, not in their lock. If one fails, all waiting puts fail, the store accepts nothing more
until it is opened again, and no later sync is an acknowledgement (Java 5.3.3 gets this wrong: apache/rocketmq#2706, #9713).

Some syncs do run in the put lock, and `syncFlushTimeout` does not limit them: of a log file that is needed before it was made ahead;
of topics.json and its .bak for a topic that a `put_batch` makes; of a full queue or index file; once a second of the
checkpoint's index time, before the first that of index_synced.json; after each thorough turn of the queues of index_synced.json and
the checkpoint.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from storage.dispatch.writer import Arrived, BitMaps
from storage.epoch_times import steady_time_ms
from storage.errors import ConfigurationError, PutRefusedError, StorageError, StoreNotWritableError
from storage.format.bloom_filter import MapRule
from storage.format.record import Message
from storage.format.record_block import RecordRun
from storage.format.typed_json import SubscriptionGroupConfig
from storage.log.flush import AsyncFlush, SyncFlush, is_page_cache_busy, is_worth_it, queue_flush_rule
from storage.log.writer import Placement
from storage.pending import Pending, PutStatus
from storage.put.put import InnerPut, Places, Putter, put_few
from storage.put.settings import MappingChange, PutOptions, PutSettings
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.put_guards import NO_COPIES, may_wait
from storage.service.put_group import (
    ACKNOWLEDGED,
    PATIENCE_SECONDS,
    Acknowledgement,
    CopiesWanted,
    GroupCommit,
    JoinedPut,
    PutGroup,
    PutMessageResult,
    ReplicaAcks,
    Rows,
    Work,
    append_together,
    wait_for_disk,
)
from storage.service.served_store import LookUps
from storage.settings.load import StoreConfig
from storage.store import MessageStore
from storage.tables.consumer_groups import SubscriptionGroupTable
from storage.tables.document import GROUPS_FILE, TOPICS_FILE
from storage.tables.masters import TIMER_CHECKPOINT_FILE, place_of_copy
from storage.tables.put_statistics import PutTimes, Sum
from storage.tables.topics import MAPPINGS_FILE, TopicConfig, TopicQueueMapping, TopicQueueMappingTable, TopicTable

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.01
_MAJORITY_MS = 2_500
"""For a majority of a DLedger group to have a put. Java: DLedgerConfig.maxWaitAckTimeMs."""
_MOVED_SECONDS = 10.0
"""For replicas to confirm what a queue has, before it may go on at another broker."""
_T = TypeVar("_T")


class PutService:
    """The puts and flush duties of one store that is open for writing, from now until `close`, which also closes the store.

    Thread-safe. Methods named as in `MessageStore` do the same; except deletions, they wait for no put. For all else use
    `exclusive`, or open the store a second time for reading. A context manager that closes it.
    """

    def __init__(
        self, store: MessageStore, *, starts_duties: bool = True, steady: Callable[[], int] = steady_time_ms
    ) -> None:
        """Without `starts_duties` the caller runs the duties' turns. `steady` is a monotonic clock, ms.

        Raises StoreNotWritableError if the store is open for reading.
        """
        self._store = store
        self._writer = store.writer
        self._look_ups = LookUps(store, lambda: self._writer.written_end)
        self.times = PutTimes()
        """How long puts took."""
        self.log_grew: Callable[[], None] = lambda: None
        """Called when more of the log may be readable, in the thread that made it so: it must be quick and raise nothing."""
        self._config = store.config.flush
        self._policy = self._writer.settings.flush
        self._putter = Putter(self._writer, self._append_records)
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
        if self._writer.is_of_group:
            flush_timeout_ms = _MAJORITY_MS
        self._timeouts_ms = flush_timeout_ms, store.config.replication.slave_timeout
        self._pool = self._policy.pool if isinstance(self._policy, AsyncFlush) else None
        self._keep_in_memory()
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
                self.acks.on_reached = self.on_confirmed
        for duty in self._duties if starts_duties else ():
            duty.start()

    def _keep_in_memory(self) -> None:
        """Lock the memory of the pool, and warm next log files, if configured. Raises ConfigurationError if it cannot be locked."""
        config, pool = self._config, self._pool
        if pool is not None:
            try:
                self._writer.hold_in_locked_memory(pool.room_bytes)
            except OSError as error:
                size = self._writer.settings.log_file_size_bytes
                rule = (
                    f"the pool of {config.transient_store_pool_size} log files of {size} bytes: {error.strerror}. Raise that limit, "
                    "lower transientStorePoolSize or mappedFileSizeCommitLog, or switch the pool off"
                )
                raise ConfigurationError(self._store.config.file, None, "transientStorePoolEnable", rule) from error
        if config.warm_maped_file_enable:
            is_sync = isinstance(self._policy, SyncFlush)
            self._writer.warm_next_files(config.flush_least_pages_when_warm_maped_file if is_sync else None)

    def _duty(self, name: str, interval_ms: int | None, turn: Callable[[], None]) -> Duty:
        return Duty(f"{name} of {self._store.root}", interval_ms, partial(self._do, turn))

    def _do(self, turn: Callable[[], None]) -> bool:
        """Run a turn in its own thread; False = no more turns: all waiting puts have failed."""
        try:
            turn()
        except (StorageError, OSError) as error:
            if error is self._writer.failure:  # then other puts fail because of it
                _LOG.exception("%s takes no more messages", self._store.root)
            return False
        return True

    # State

    @property
    def store(self) -> MessageStore:
        """The store, for what never changes: its place, its configuration."""
        return self._store

    @property
    def root(self) -> str:
        return self._store.root

    @property
    def config(self) -> StoreConfig:
        return self._store.config

    @property
    def settings(self) -> PutSettings:
        """The current settings of puts, including topics: a frozen value."""
        return self._writer.settings

    @property
    def log_end(self) -> int:
        """The end of the last record, written or held."""
        return self._writer.log_end

    @property
    def dispatched_end(self) -> int:
        """The log offset up to which the log is readable by queue and key."""
        return self._writer.dispatched_end

    @property
    def sendable_end(self) -> int:
        """The log offset up to which replicas may be sent the log: whole records, synced under SYNC_FLUSH. For any thread."""
        writer = self._writer
        return min(writer.log_end, writer.settings.flush.readable_end(writer.written_end, writer.synced_end))

    @property
    def appended(self) -> Sum:
        """Bytes and number of all records since the opening."""
        return self._writer.appended

    @property
    def held_bytes(self) -> int | None:
        """Bytes of records that wait in the pool; None without a pool. Java: remainHowManyDataToCommit."""
        return None if self._pool is None else self._writer.held_bytes

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of records in the log's files that are not synced; those in the pool do not count. Java: remainHowManyDataToFlush."""
        writer = self._writer
        return max(0, writer.log_end - writer.held_bytes - writer.synced_end)

    @property
    def free_buffers(self) -> int:
        """How many log files' worth of the pool is free, as Java counts buffers; the greatest int without a pool.

        Departure: Java's are in use for the whole life of a log file.
        """
        if self._pool is None:
            return 2**31 - 1
        return self._config.transient_store_pool_size - -(
            -self._writer.held_bytes // self._writer.settings.log_file_size_bytes
        )

    @property
    def held_ms(self) -> int:
        """How long the present put has held the log; 0 = none does. Java: CommitLog.lockTimeMills."""
        since_ms = self._held_since_ms
        return 0 if since_ms is None else max(0, self._steady() - since_ms)

    @property
    def confirm_offset(self) -> int:
        """The log offset up to which readers may see the log, as far as replicas must have it. Java: CommitLog.getConfirmOffset."""
        confirmed, end = self._writer.confirmed, self.sendable_end
        return end if confirmed is None else confirmed.within(end)

    # Messages

    def message_by_commitlog_offset(self, commitlog_offset: int) -> Message:
        """The message whose record begins at this offset, as soon as it is written.

        Raises OffsetOutOfRangeError, CorruptRecordError if there is none.
        """
        return self._look_ups.message_at(commitlog_offset)

    def messages_by_key(self, topic: str, key: str, max_count: int = 32) -> list[Message]:
        """The newest `max_count` dispatched messages with that key or unique key, by log offset.

        Raises IndexGeometryUnknownError.
        """
        return self._look_ups.messages_by_key(topic, key, max_count)

    # Topics, groups and other tables

    def state(self, name: str, parse: Callable[[str, str], _T]) -> _T | None:
        """Like `MessageStore.state`."""
        return self._store.state(name, parse)

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """The current consumer groups. Raises StateFileError."""
        return self._store.groups

    def save_topic(self, topic: TopicConfig) -> None:
        """Like `MessageStore.save_topic`. Raises StoreNotWritableError, OSError."""
        with self._telling_of_failure():
            self._store.save_topic(topic)

    def save_static_topic(self, topic: TopicConfig, change: MappingChange) -> None:
        """Write the mapping and the entry of a static topic. On return all puts that were judged by the mapping before are readable, so
        that the end of a queue which moved to another broker does not rise any more.

        Raises ValueError where `change` refuses, StoreNotWritableError, OSError; TimeoutError if the mapping is written, and some of
        those puts are not readable yet: then the same call waits for them again.
        """
        with self._telling_of_failure(), self.at_work():
            self._writer.topic_entries.save_static(topic, change)
        self.append_waiting()
        self.flush()
        if not self.readable_within(self.log_end, _MOVED_SECONDS):
            raise TimeoutError(
                f"the mapping of topic {topic.topic!r} is saved, and in {_MOVED_SECONDS:g} s in-sync replicas have not confirmed"
                " what its queues hold; until then no queue may go on at another broker: send the request again"
            )

    def change_mapping(self, topic: str, change: Callable[[TopicQueueMapping], TopicQueueMapping]) -> None:
        """Replace the mapping of a static topic by what `change` makes of it. Raises ValueError, StoreNotWritableError, OSError."""
        with self._telling_of_failure():
            self._writer.topic_entries.change_mapping(topic, change)

    def make_topic(self, topic: TopicConfig) -> TopicConfig:
        """Like `MessageStore.make_topic`. Raises StoreNotWritableError, OSError."""
        with self._telling_of_failure():
            return self._store.make_topic(topic)

    def make_group(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Like `MessageStore.make_group`. Raises OSError."""
        return self._store.make_group(group)

    def save_group(self, group: SubscriptionGroupConfig) -> None:
        """Like `MessageStore.save_group`. Raises OSError."""
        self._store.save_group(group)

    def delete_group(self, group: str) -> None:
        """Remove the group's entry and forbidden bits from subscriptionGroup.json. Raises OSError."""
        self._store.group_entries.remove(group, self._writer.file_system, self._writer.clock())

    @property
    def group_table(self) -> SubscriptionGroupTable:
        """The current subscriptionGroup.json. Raises StateFileError."""
        return self._store.group_entries.table

    def take_over(self, name: str, text: str) -> None:
        """Replace a table, on disk and in memory, by the master's config/NAME. Raises StateFileError, OSError."""
        if name == TOPICS_FILE:
            table = TopicTable.load(text, name)
            self._store.forget_offsets(self.settings.topics.topics.keys() - table.topics.keys())
            self._writer.topic_entries.replace(table)
        elif name == MAPPINGS_FILE:
            self._writer.topic_entries.replace_mappings(TopicQueueMappingTable.load(text, name))
        elif name == GROUPS_FILE:
            self._store.group_entries.replace(SubscriptionGroupTable.load(text, name), self._writer.file_system)
        elif name == TIMER_CHECKPOINT_FILE:
            self._writer.file_system.replace(place_of_copy(self._store.root, name), text.encode())
        else:
            self._store.save_state(name, text)

    @property
    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """Group → topic → forbidden permissions: bit 0 is reading. Raises StateFileError."""
        return self.group_table.forbidden

    def forbid(self, group: str, topic: str, bits: int) -> None:
        """Set the group's forbidden bits in the topic; 0 allows it all topics again. Raises OSError."""
        self._store.group_entries.forbid(group, topic, bits, self._writer.file_system, self._writer.clock())

    def delete_topic(self, topic: str) -> None:
        """Delete the topic's entry and queues. Raises NameIllegalError, StoreNotWritableError, OSError."""
        with self.exclusive():
            self._writer.delete_topic(topic)

    def delete_queues(self, topic: str) -> None:
        """Delete the queues of a topic without an entry. Raises NameIllegalError, OSError."""
        with self.exclusive():
            self._writer.delete_queues(topic)

    @contextmanager
    def listening(self, arrived: Arrived) -> Iterator[None]:
        """Call `arrived` with all newly readable entries, in the thread that put them: it must be quick and raise nothing."""
        self._writer.derived.arrived = arrived
        try:
            yield
        finally:
            self._writer.derived.arrived = None

    @contextmanager
    def mapping(self, rule: MapRule) -> Iterator[None]:
        """Give new extension units the bit maps that `rule` makes. It runs in the thread that puts, and must be quick."""
        self._writer.derived.bit_maps = BitMaps(self._writer.log, rule)
        try:
            yield
        finally:
            self._writer.derived.bit_maps = None

    @contextmanager
    def _telling_of_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._tell_of_failure()
            raise

    # Health

    @property
    def failure(self) -> BaseException | None:
        """Why nothing is accepted until the store is opened again; None = it is healthy."""
        return self._writer.failure

    @property
    def is_closed(self) -> bool:
        """Whether it refuses puts."""
        return self._is_closed or self._is_refusing

    def refuse_puts(self) -> None:
        """Refuse puts from now on; on return none is being appended. Puts within `exclusive` still work."""
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
        """The store, for the caller alone: to read, or to put and flush as its owner. Puts wait meanwhile.

        Raises StoreNotWritableError if it is closed, or no majority of its DLedger group has what was put here last.
        """
        with self._lock:
            self._refuse_if_closed()
            try:
                self._writer.refuse_while_late()
                yield self._store
            finally:
                self._fail_commits()
                self.log_grew()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Code inside runs in one thread at a time (`Work`), and puts that are appended together wait for it."""
        try:
            with self._work.turn():
                yield
        finally:
            if self._joining.is_due:
                self._append_joined()

    def at_work_for_later(self) -> AbstractContextManager[None]:
        """Like `at_work`, for code that ends in `put_later`: no put waits for it, and nothing is appended at its end."""
        return self._work.turn(is_waited_for=False)

    def off_work(self) -> AbstractContextManager[None]:
        """Within `at_work`: other threads may compute meanwhile. For waiting for a disk, but not for the put lock."""
        return self._work.left()

    def _fail_commits(self) -> None:
        """If the store has failed, fail the puts that wait for a sync. Under the put lock."""
        if (failure := self._writer.failure) is not None:
            self._commits.fail(failure)

    def _tell_of_failure(self) -> None:
        with self._lock:
            self._fail_commits()

    # Putting

    def put_inner(
        self, messages: InnerMessages | Sequence[InnerMessage], *, waits: bool | None = None
    ) -> PutMessageResult:
        """Append messages unchanged, as `MessageStore.put_inner` does.

        PUT_OK: on the disk under SYNC_FLUSH, else in the log, or with a pool in memory. FLUSH_DISK_TIMEOUT: in the log, and readable
        as soon as it is synced. FLUSH_SLAVE_TIMEOUT: in the log, readable, but fewer replicas than `inSyncReplicas` have
        reported within `slaveTimeout` that they hold it. OS_PAGE_CACHE_BUSY, IN_SYNC_REPLICAS_NOT_ENOUGH: refused, nothing was stored.
        In a DLedger group PUT_OK means that a majority has it on disk; IN_SYNC_REPLICAS_NOT_ENOUGH also that none has had it in time,
        and that it may come to be readable.
        `waits` False waits for neither disk nor replicas; None = not if every message says WAIT=false.
        Raises MessageIllegalError and StoreNotWritableError with nothing stored, OSError if that is unknown. In a DLedger group that
        is unknown after a StoreNotWritableError, too, if the append has begun: leadership may end amid it.
        """
        inner = messages if isinstance(messages, InnerMessages) else InnerMessages.of(messages)
        return self.put_later(inner, waits=waits)()

    def put_later(
        self,
        messages: Rows,
        *,
        waits: bool | None = None,
        needs_copies: bool = True,
        is_heard: bool = True,
        puts: int = 1,
    ) -> Pending[PutMessageResult]:
        """Messages that join the next append. The caller must call or settle the result: that makes the append, with all messages that
        have joined until then, unless another put has made it. It returns and raises what `put_inner` does.
        Without `needs_copies` it waits for no replicas. Without `is_heard` no client would receive OS_PAGE_CACHE_BUSY: the put waits
        for the log, and writes out a full pool. Departure: Java drops it. `puts` is how many puts of clients these messages are.
        """
        waits = self._waits(wait_for_disk(messages) if waits is None else waits)
        copies = self._admitted(waits and needs_copies, is_heard=is_heard)
        if isinstance(copies, PutStatus):
            self.times.refused(copies, puts)
            return Pending.done(PutMessageResult(copies))
        joined, begun_ms = self._joining.join(messages, waits, copies), self._steady()

        def result() -> PutMessageResult:
            is_stored = False
            try:
                self._append(joined)
                places = joined.places()
                put = PutMessageResult(self._wait(joined.acknowledged), places)
                is_stored = True
            finally:
                self.times.add(self._steady() - begun_ms, puts, failed=not is_stored)
            return put

        def when_settled(call: Callable[[], None]) -> float | None:
            self._append(joined)
            return joined.acknowledged.when_settled(call)

        return Pending(result, when_settled)

    def _waits(self, waits: bool) -> bool:
        """Whether a put waits. In a DLedger group all do, as in Java: what no majority has may be gone."""
        return waits or self._writer.is_of_group

    def _append(self, joined: JoinedPut) -> None:
        """On return the put is in the log, or refused."""
        self._work.end()
        while not joined.is_done:
            if self._joining.is_due or not self._joining.wait_for(joined, PATIENCE_SECONDS):
                self._append_joined()

    def _admitted(self, waits: bool, *, is_heard: bool = True) -> int | PutStatus:
        """How many copies a put that starts now must have; or why it is refused."""
        if is_heard and (self.is_os_page_cache_busy or self.is_pool_deficient or self._writer.is_full):
            return PutStatus.OS_PAGE_CACHE_BUSY
        if self.is_pool_deficient:
            self._work.end()
            with self._failing_all():
                self._write_held()
        try:
            return self.acks.needed(self._writer.log_end) if waits else NO_COPIES
        except PutRefusedError as refused:
            return refused.status

    def append_waiting(self) -> None:
        """Make the appends that `put_later` has left, without waiting for the disk."""
        while self._joining.is_waiting:
            self._append_joined()

    def _append_joined(self) -> None:
        """Append the joined puts, if any still wait, as one."""
        with self._work.processor, self._lock:
            taken = self._joining.take()
            try:
                with self._holding():
                    append_together(taken, self._append_inner)
                for put in taken:
                    if put.is_stored:
                        put.acknowledged = self._acknowledged(put.waits, put.copies)
            except BaseException as error:  # they may be in the log, where no reader sees them yet
                for put in taken:
                    put.fail(error)
                if not isinstance(error, OSError):
                    raise
            finally:
                self._joining.finish(taken)
        self._wake_duties()

    def _acknowledged(self, waits: bool, copies: int) -> Pending[PutStatus]:
        """What an appended put waits for by the flush policy: a sync, or nothing if it is readable now; and copies. Under the put lock.

        Raises OSError if it cannot be made readable: it is in the log, so no caller may count it as not stored.
        """
        end = self._writer.log_end
        if isinstance(self._policy, SyncFlush):
            return self._waiting(self._commits.request(end) if waits else None, self.acks.want(end, copies))
        if self._pool is None:
            try:
                self._writer.dispatch()
            except StorageError as error:
                raise OSError(errno.EIO, f"stored, and no consumer finds it yet ({error})", self._store.root) from error
        return self._waiting(None, self.acks.want(end, copies))

    def _waiting(self, flush: Future[None] | None, copies: CopiesWanted | None) -> Pending[PutStatus]:
        if flush is None and copies is None:
            return ACKNOWLEDGED
        late = PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH if self._writer.is_of_group else PutStatus.FLUSH_DISK_TIMEOUT
        return Acknowledgement(flush, copies, self.acks, self._store.root, self._timeouts_ms, late)

    def _append_inner(self, messages: Rows) -> Places:
        self._refuse_puts_if_closed()
        settings, delays_ms = self._writer.settings, self._store.config.delay.delays_ms
        if isinstance(messages, InnerMessages):
            return InnerPut(settings, messages, delays_ms).append_to(self._writer, self._append_records)
        return put_few(settings, messages, delays_ms, self._writer, self._append_records)

    def put_batch(self, rows: pa.RecordBatch, *, waits: bool = True, **options: Any) -> PutMessageResult:
        """Append a table of messages, as `MessageStore.put_batch` does. Statuses and errors are those of `put_inner`."""
        waits = self._waits(waits)
        copies = self._admitted(waits)
        if isinstance(copies, PutStatus):
            return PutMessageResult(copies)
        append = self._putter.prepare(rows, PutOptions(**options))
        with self._lock:
            self._refuse_puts_if_closed()
            with self._holding():
                places = append()
            acknowledged = self._acknowledged(waits, copies) if places.num_rows else ACKNOWLEDGED
        self._wake_duties()
        return PutMessageResult(self._wait(acknowledged), places)

    def _append_records(self, runs: Sequence[RecordRun], *, index_lease_ms: int = 0) -> list[Placement]:
        return self._writer.append_records(runs, index_lease_ms=index_lease_ms, hold=self._pool is not None)

    def _wait(self, acknowledged: Pending[PutStatus]) -> PutStatus:
        if acknowledged is ACKNOWLEDGED:
            return PutStatus.PUT_OK
        self._work.end()
        return acknowledged()

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
        """One sync for all waiting puts; then dispatch and acknowledge what it covers. Java: GroupCommitService."""
        with self._failing_all():
            self._sync_log()

    def log_turn(self) -> None:
        """The log's turn under ASYNC_FLUSH: sync it if enough is dirty. Java: FlushRealTimeService."""
        assert isinstance(self._policy, AsyncFlush)
        turn = self._policy.rule.turn(self._log_thorough_ms, self._writer.clock())
        self._log_thorough_ms = turn.thorough_ms
        if self._is_worth_it(self._writer.synced_end, self._writer.written_end, turn.least_pages):
            with self._failing_all():
                self._sync_log()

    def pool_turn(self) -> None:
        """The pool's turn: write out and dispatch its content if there is enough. Java: CommitRealTimeService."""
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
        """The queues' turn: sync those with enough dirty pages. Java: FlushConsumeQueueService.

        A thorough turn syncs everything that is derived from the log, and writes the checkpoint.
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

    def on_confirmed(self, place: float) -> None:
        """All required replicas (or a slave's master) have the log up to `place`. For any thread."""
        if (confirmed := self._writer.confirmed) is not None and confirmed.reached != place:
            confirmed.reached = place
            self._confirm_duty.wake()

    def committed(self) -> None:
        """More of a DLedger group's log is committed. For any thread."""
        self._confirm_duty.wake()

    def confirm_turn(self) -> None:
        """Make confirmed messages readable. Java: ReputMessageService."""
        is_left = True
        while is_left:  # puts have their turn in between
            with self._failing_all(), self._lock:
                is_left = self._writer.dispatch()
            self.log_grew()

    def readable_within(self, end: int, seconds: float) -> bool:
        """Wait until readers see the log up to `end`; returns whether they do. True if nothing must be confirmed."""
        if self._writer.confirmed is None:
            return True
        deadline_s = time.monotonic() + seconds
        while self._writer.dispatched_end < end and time.monotonic() < deadline_s:
            if self._is_closed or self.acks.is_closed:  # then no replica will report any more
                break
            time.sleep(_LOOK_SECONDS)
        return self._writer.dispatched_end >= end

    def next_file_turn(self) -> None:
        """Make the log's next file beside the puts, if it will be needed soon. Java: AllocateMappedFileService."""
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
                finally:  # synced puts are acknowledged even if a queue's file cannot be written
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
        """An error ends all writing: waiting and later puts fail with it."""
        try:
            yield
        except BaseException as error:
            with self._lock:
                self._writer.fail(error)
                self._commits.fail(self._writer.failure or error)
            raise

    # Ending

    def flush(self) -> None:
        """Sync everything put so far and make it readable; waiting puts are acknowledged. Raises StoreNotWritableError, OSError."""
        with self._failing_all():
            self._write_held()
            self._sync_log()

    def close(self) -> None:
        """Refuse puts from now on, stop the duties, sync everything and close the store cleanly.

        After a failure the next opening recovers. Raises OSError if it fails now.
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


class DirectService(PutService):
    """Puts of one thread into a store that its caller closes: each is appended, synced and readable on return, as with the store
    itself. It starts no threads, keeps no files open and waits for no replicas, so it need not be closed.
    """

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store, starts_duties=False)

    def _keep_in_memory(self) -> None:
        """Nothing: it holds nothing back."""

    def message_by_commitlog_offset(self, commitlog_offset: int) -> Message:
        """Like `MessageStore.message_by_commitlog_offset`."""
        return self._store.message_by_commitlog_offset(commitlog_offset)

    def messages_by_key(self, topic: str, key: str, max_count: int = 32) -> list[Message]:
        """Like `PutService.messages_by_key`."""
        return self._store.messages_by_key(topic, key, max_count)

    def _append_records(self, runs: Sequence[RecordRun], *, index_lease_ms: int = 0) -> list[Placement]:
        return self._writer.append(runs, index_lease_ms=index_lease_ms)

    def _acknowledged(self, waits: bool, copies: int) -> Pending[PutStatus]:
        return ACKNOWLEDGED


class Duty:
    """A thread that calls `turn` every `interval_ms` (None = only when woken), and when it is woken.

    `turn` returns whether another one may follow. The thread is a daemon; `stop` ends it in order.
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
        """Start the next turn now, or when the present one is done."""
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
    """The OSError of a sync; None if it succeeds."""
    try:
        act()
    except OSError as error:
        return error
    return None
