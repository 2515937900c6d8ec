"""A RocketMQ store on disk, the facade: open it, read it (`store_reader.py`), put messages, let go of it. Java: DefaultMessageStore.

Reading takes no lock, changes no file and works beside a running writer. Writing holds the store's lock from opening to closing.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from storage.batch.commit import finish_open_intents, forget_open_intents, leave_open_intents, settle
from storage.batch.redo import load_torn_rows
from storage.dispatch.queue_ends import QueueEnds
from storage.dispatch.recovery_plan import LoweredOffset, RecoveryPlan, RecoveryReport
from storage.epoch_times import current_time_ms
from storage.errors import (
    OffsetOutOfRangeError,
    StoreNotFoundError,
    StoreNotWritableError,
    StoreRefusedError,
)
from storage.failpoints import reach
from storage.files.atomic_file import write_with_backup
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.files.lock_holder import Holder
from storage.files.remote import file_system_of, only_for_reading, plain_path, unexpanded_home
from storage.index.store import IndexStore
from storage.log.commit_log import LOOKS
from storage.log.damage import warning_of
from storage.put.put import InnerPut, PutOptions, PutResult, Putter
from storage.put.settings import PutSettings, put_settings
from storage.put.store_writer import StoreWriter
from storage.recovery.creation import create_store, find_log, sync_new_store
from storage.recovery.log_bind import prove_binding
from storage.recovery.offsets_ahead import lower_for_cut, lower_offsets
from storage.recovery.opening import close_cleanly, open_for_writing, read_plan, release
from storage.recovery.parts import StoreParts
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.message_rows import one_batch, one_row
from storage.settings.load import ConfigurationWarning, StoreConfig, load_config, refuse_for_reading, refuse_for_writing
from storage.settings.unread import warn_of_unread
from storage.store_layout import StoreLayout
from storage.store_reader import StoreReader
from storage.tables.followed_master import followed_master
from storage.tables.subscription_groups import GroupEntries, SubscriptionGroupConfig
from storage.tables.topics import TopicConfig

WritesAs = Literal["owner", "follower", "controlled", "candidate", "rebuilder"]
"""By what right a store is written: it is one's own, its master has written the same, or a controller has said so."""


def open_store(
    path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | None = None,
    read_only: bool = True,
    truncate_damage: bool = False,
    create: bool = False,
    lock_timeout_ms: int = 0,
    holder: Holder = "writer",
    writes_as: WritesAs | None = None,
    holds_back: bool = False,
    prepare: Callable[[MessageStore], None] | None = None,
    store_host: str | None = None,
    broker_name: str | None = None,
    flush_disk_type: str | None = None,
    rocketmq_version: str | None = None,
    file_system: FileSystem | None = None,
    clock: Callable[[], int] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> MessageStore:
    """Open the store at ROOT = `path`, a directory or (for reading) any fsspec URL.

    `config` is a StoreConfig or the path of a broker.conf; None looks for one in ROOT's parent, then in ROOT. Sizes that are
    not configured are found from the files. `clock` gives milliseconds.

    Opening for writing takes the store's lock, for which it waits `lock_timeout_ms` (in the order of those that wait; `holder` says
    for whom not at all), recovers the store (`recovery/passes.py`)
    and finishes batches that were decided before a crash (`batch/commit.py`); `truncate_damage` cuts a damaged
    log where Java would, after copying what it cuts (`recovery/quarantine.py`); `create` makes an empty store where none is.
    `store_host` (address:port) is where new records say that the store is served; `broker_name` and `flush_disk_type` come before the
    configuration's.
    `writes_as` says by what right it writes what is a follower's or a controller's (None: as the holder "follower" a follower, else
    an owner). Who follows finishes no batch: what its log gets its master says. A candidate, of whom a controller has not said what it
    is, leaves them as they are. So does a rebuilder, an owner that is about to have lost queues made again: until then it would take
    their rows for missing, and what groups count there for too much.
    With `holds_back` nothing becomes readable that is not confirmed (`storage/put/store_writer.py`).
    `prepare` gets the store that is opened for writing, recovered, before a batch appends to it.
    `on_progress` is told of a recovery how many bytes of how many are dispatched.
    `rocketmq_version` names the release of the store's broker (`4.9.7`; `broker_version.py` says what older ones cannot read).
    Raises StoreNotFoundError, StoreRefusedError (what this package must not open), ForeignLogError (for writing: the log may be
    another store's, `log_place.py`), StoreLockedError, StoreDamagedError,
    StoreNotWritableError for writing anywhere but on a local file system, of which nothing is asked then.
    """
    root = plain_path(os.fspath(path)).rstrip("/") or "/"
    if rule := unexpanded_home(root):
        raise StoreRefusedError(root, rule)
    if not read_only and file_system is None and (rule := only_for_reading(root)):
        raise StoreNotWritableError(root, rule)
    files = file_system or file_system_of(root)
    if not read_only:
        _local(files, root)
    if not isinstance(config, StoreConfig):
        settings = load_config(root, config, read_bytes=files.read_file, rocketmq_version=rocketmq_version)
    else:
        settings = config if rocketmq_version is None else config.of_version(rocketmq_version)
    options = OpenOptions(
        read_only=read_only,
        truncate_damage=truncate_damage,
        on_progress=on_progress,
        create=create,
        lock_timeout_ms=lock_timeout_ms,
        holder=holder,
        writes_as=writes_as or ("follower" if holder == "follower" else "owner"),
        holds_back=holds_back,
        prepare=prepare,
        store_host=store_host,
        broker_name=broker_name,
        flush_disk_type=flush_disk_type,
    )
    return MessageStore(root, settings, files, clock or current_time_ms, options)


def _local(files: FileSystem, root: str) -> LocalFileSystem:
    if not isinstance(files, LocalFileSystem):
        raise StoreNotWritableError(root, "it does not lie on a local file system")
    return files


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """How a store is opened: what `open_store` is told, under the same names."""

    read_only: bool
    truncate_damage: bool
    on_progress: Callable[[int, int], None] | None
    create: bool
    lock_timeout_ms: int
    holder: Holder
    writes_as: WritesAs
    holds_back: bool
    prepare: Callable[[MessageStore], None] | None
    store_host: str | None
    broker_name: str | None
    flush_disk_type: str | None


class MessageStore(StoreReader):
    """One open store; make it with `open_store`. Not thread-safe. A context manager that closes it."""

    plan: RecoveryPlan
    _queue_ends: QueueEnds | None = None
    _has_had_files = False
    _followed_end = 0
    """Up to where `_queue_ends` has looked at what the own writer has dispatched."""

    def __init__(
        self,
        root: str,
        config: StoreConfig,
        file_system: FileSystem,
        clock: Callable[[], int],
        options: OpenOptions,
    ) -> None:
        self.root = root
        self.config = config
        self.read_only = options.read_only
        self.recovery: RecoveryReport | None = None
        """What opening for writing mended; None of a read-only store, and where nothing was to be looked for."""
        self.finished_batches = 0
        """How many batches that were decided and not finished opening for writing has appended."""
        self.lowered: tuple[LoweredOffset, ...] = ()
        """Offsets of groups, delay levels and timer that were ahead of the log when the store was opened for writing."""
        self._file_system = file_system
        self._clock = clock
        self._resources = ExitStack()
        self._writer: StoreWriter | None = None
        self._putter: Putter | None = None
        self.tables_lock = threading.RLock()
        """Held while a table under config/, other than topics.json, is read, changed and saved."""
        self._groups = GroupEntries(root, file_system, self.tables_lock)
        try:
            self._refuse_foreign_stores(options)
            writable = None
            if not options.read_only:
                place = find_log(root, config, file_system, may_be_empty=options.create, to_write=True)
                if options.create:
                    self._make_root()
                writable = self._lock(options)
                if options.create:
                    create_store(root, place.directories, writable)
            # Again under the lock, and of a store that is there now.
            self.place = find_log(root, config, file_system, to_write=not options.read_only)
            settings = None
            if writable is not None:
                settings = put_settings(
                    root, config, writable, options.store_host, options.broker_name, options.flush_disk_type, self.place
                )
            self.layout = StoreLayout.of(root, self.place.directories, config)
            self.log = self.layout.commit_log(file_system)
            self._resources.callback(self.log.close)
            writes_ext = not options.read_only and config.consume_queue.enable_consume_queue_ext
            self.queues = self.layout.consume_queues(file_system, writes_ext=writes_ext)
            self._resources.callback(self.queues.close)
            if not options.read_only:
                prove_binding(root, self.place, self.log, self.queues)
            if self.place.note is not None:
                warnings.warn(self.place.note, ConfigurationWarning, stacklevel=3)
            self.index = IndexStore(file_system, root, config.index.max_hash_slot_num, config.index.max_index_num)
            self._resources.callback(self.index.close)
            if writable is None or settings is None:
                self._look_at_all()
            else:
                self._open_for_writing(writable, settings, options)
        except BaseException:
            try:
                self._let_go()
            finally:
                self._resources.close()
            raise

    # Opening and closing

    def _make_root(self) -> None:
        files = _local(self._file_system, self.root)
        if not files.exists(self.root):
            files.make_directories(self.root)

    def _refuse_foreign_stores(self, options: OpenOptions) -> None:
        if self.read_only:
            reasons = refuse_for_reading(self.config)
        else:
            follows = options.writes_as == "follower"
            reasons = refuse_for_writing(
                self.config,
                follows=follows,
                asks_replicas=options.holder in ("broker", "sink"),
                is_controlled=options.writes_as in ("controlled", "candidate"),
            )
            if not follows and (master := followed_master(self._file_system, self.root)) is not None:
                reasons.append(
                    f"it follows {master}: only its follower writes (spark-mq promote makes it a store of its own)"
                )
        names = {entry.name for entry in self._file_system.list_directory(self.root) if entry.is_directory}
        reasons += [f"{name}/: its log is DLedger's" for name in sorted(names) if name.startswith("dledger-")]
        if "consumequeue_r" in names and "consumequeue" not in names:
            reasons.append("consumequeue_r/: its consume queues lie in RocksDB")
        if reasons:
            raise StoreRefusedError(self.root, "; ".join(reasons))

    def _lock(self, options: OpenOptions) -> LocalFileSystem:
        """The store's lock, before anything is read for writing, when it is our turn among those that wait for it."""
        files = _local(self._file_system, self.root)
        self._take_lock(files, options)
        return files

    def _take_lock(self, files: LocalFileSystem, options: OpenOptions) -> None:
        lock, turns = f"{self.root}/lock", f"{self.root}/spark_mq/turns"
        taken = files.locked(lock, options.lock_timeout_ms, turns=turns, holder=options.holder)
        self._resources.enter_context(taken)
        files.write(lock, 0, b"lock")

    def _open_for_writing(self, file_system: LocalFileSystem, settings: PutSettings, options: OpenOptions) -> None:
        if options.holder != "broker":  # it follows more of them, and says itself which it does not
            warn_of_unread(self.config.file, self.config.settings)
        index = self.index if self.config.index.message_index_enable else None
        parts = StoreParts(self.root, self.config, file_system, self.log, self.queues, index, self._clock)
        follows = options.writes_as == "follower" or (
            options.writes_as == "controlled" and self.config.mode.broker_role == "SLAVE"
        )
        is_own = not follows and options.writes_as not in ("candidate", "rebuilder")
        opening = open_for_writing(
            parts,
            truncate_damage=options.truncate_damage,
            on_progress=options.on_progress,
            cuts_torn=options.writes_as not in ("owner", "rebuilder"),
            holds_back=options.holds_back,
            finishes=is_own,
        )
        if options.create and "" not in opening.ends.synced_entries:
            sync_new_store(self.root, file_system)
            opening.ends.synced_entries.add("")
        self.plan, self.recovery = opening.plan, opening.report
        if self.recovery is not None:
            for text in self.recovery.warnings(self.root):
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        self._writer = StoreWriter(
            self.root, file_system, self.log, self.queues, index, opening.ends, settings, self._clock
        )
        self.lowered = () if opening.report is None else opening.report.lowered
        if is_own:
            self.lower_offsets()
        else:
            opening.ends.compared_tables = None  # a master's may say more than the log has
        if options.prepare is not None:
            options.prepare(self)
        self.finished_batches, torn = 0, load_torn_rows(file_system, self.root)
        if not follows and (settings.topics.topics or options.holder == "broker"):
            self._writer.tell_names()  # in a new store its first topic does so; a follower's topics are its master's
        if options.writes_as in ("candidate", "rebuilder"):
            leave_open_intents(self._writer)
            return
        if follows:
            forget_open_intents(self._writer, torn)
            return
        self.finished_batches = finish_open_intents(self._writer, torn)
        if self.recovery is not None:  # what recovery has found and synced need not be decided any longer
            settle(self._writer)

    def lower_offsets(self) -> None:
        """No table counts further than the log goes (`storage/recovery/offsets_ahead.py`); `lowered` says which did.

        Each opening for writing does so, but a follower's: when it follows nobody any more. Raises OSError.
        """
        writer = self.writer
        with self.tables_lock:
            self.lowered += lower_offsets(
                self.root,
                writer.file_system,
                self.log,
                writer.ends,
                batch_topics=self.queues.batch_topics,
                now_ms=self._clock(),
            )

    def lower_for_cut(self, place: int) -> None:
        """Before the log of this store is cut at a place: what the log behind it has delivered is to be delivered again.

        Raises StateFileError, OSError.
        """
        behind = (records for _, records in self.log.walk(place, check_crc=False))
        with self.tables_lock:
            self.lowered += lower_for_cut(self.root, self.writer.file_system, behind, now_ms=self._clock())

    # Following a writer, another process or its own: the ends move from look to look. Changes no file.

    @property
    def _own_end(self) -> int:
        """Up to where the own writer has dispatched; 0 without one."""
        return 0 if self._writer is None else self._writer.dispatched_end

    @property
    def log_end(self) -> int:
        """Where the validated log ends. The own writer knows; nothing is read for it then."""
        return self._own_end or self._ends.log_end

    def refresh(self) -> bool:
        """Look at what a running writer did meanwhile: new records, queues and topics. Returns whether anything changed.

        Cheap when nothing did, and otherwise in proportion to the queues that got messages. A log that was cut below what was
        seen (a broker's recovery) is opened anew. Raises StoreNotFoundError where the log had files and has none: its last file never
        expires, so the store is not mounted any more.
        """
        self._has_had_files |= bool(self.log.files)
        self.log.list_files()
        if self._has_had_files and not self.log.files:
            raise StoreNotFoundError(self.root, "the log, which was there before,")
        if not self._ends.log_was_cut():
            return self._ends.follow()
        self.log.close()
        self.queues.close()
        self.queues = self.layout.consume_queues(self._file_system)
        self._look_at_all()
        return True

    def _look_at_all(self) -> None:
        """Where log and queues end, from the beginning; once more where files expired meanwhile."""
        for left in reversed(range(LOOKS)):
            try:
                self.plan = read_plan(self.root, self.config, self._file_system, self.log, self.queues)
                self._queue_ends = self._ends_of_plan()
                if (text := warning_of(self.root, self.plan.gaps)) is not None:
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
                return
            except OffsetOutOfRangeError:
                if not left:
                    raise
                self.log.list_files()
                self.queues.close()
                self.queues = self.layout.consume_queues(self._file_system)

    @property
    def _ends(self) -> QueueEnds:
        if self._queue_ends is None:
            self._queue_ends = self._ends_of_plan()
            self._followed_end = self.plan.dispatch_end
        if self._followed_end < self._own_end:
            self._followed_end = self._own_end
            self._queue_ends.follow()
        return self._queue_ends

    def _ends_of_plan(self) -> QueueEnds:
        check_crc = self.config.commit_log.check_crc_on_recover
        return QueueEnds(self.log, self.queues, self.plan, self._clock, check_crc=check_crc)

    # Writing

    def put(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        born_time_ms: int | None = None,
        queue_id: int | None = None,
        sharding_key: str | None = None,
        queue_count: int | None = None,
        create_topic: bool | None = None,
    ) -> PutResult:
        """Append one message and dispatch it: readable when this returns, and on the disk under SYNC_FLUSH.

        Without `queue_id` and `sharding_key` the topic's write queues take turns. A topic that is not there is made where
        `create_topic` says so (None: `autoCreateTopicEnable`), with `queue_count` queues (None: `defaultTopicQueueNums`), or with as
        many as `queue_id` needs. Of a static topic `queue_id` is a logical queue, and the result has its physical one. Raises
        ColumnIllegalError for a value of another type, RowIllegalError, StoreNotWritableError, OSError.
        """
        message = {"topic": topic, "body": body, "tags": tags, "flag": flag, "born_timestamp": born_time_ms}
        message |= {"queue_id": queue_id, "sharding_key": sharding_key}
        row = one_row(message, keys=keys, properties=properties)
        results = self.put_batch(row, queue_count=queue_count, create_topic=create_topic)
        return PutResult(**results.to_pylist()[0])

    def put_batch(self, rows: pa.RecordBatch | pa.Table, **options: Any) -> pa.RecordBatch:
        """Append a table of messages; returns their places, the fields of `PutResult`, row by row.

        Columns are those of the Spark sink (`rows.columns.COLUMNS`), `options` the fields of `storage.put.put.PutOptions`.
        Raises ColumnIllegalError, RowIllegalError with nothing appended, StoreNotWritableError, OSError.
        """
        if self._putter is None:
            self._putter = Putter(self.writer)
        if isinstance(rows, pa.Table):
            rows = one_batch(rows)
        return self._putter.put(rows, PutOptions(**options))

    def put_inner(self, messages: InnerMessages | Sequence[InnerMessage]) -> pa.RecordBatch:
        """Append messages as they are, under no rule but what a record can hold; returns the fields of `PutResult`, row by row.

        Makes no topic: `save_topic` does. Raises MessageIllegalError, StoreNotWritableError, OSError.
        """
        writer = self.writer
        return InnerPut(writer.settings, messages, self.config.delay.delays_ms).append_to(writer)

    def save_topic(self, topic: TopicConfig) -> None:
        """Give a topic its entry in topics.json, new or in place of the old one. Thread-safe. Java: updateTopicConfig."""
        self.writer.save_topic(topic)

    def make_topic(self, topic: TopicConfig) -> TopicConfig:
        """Give a topic its entry if it has none; returns what it has then. Thread-safe. Java: createTopicInSendMessageMethod."""
        return self.writer.make_topic(topic)

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """The consumer groups of subscriptionGroup.json, as they are now. Thread-safe."""
        return self._groups.groups

    @property
    def group_entries(self) -> GroupEntries:
        """The table behind `groups`, for what is seldom done with it. Thread-safe."""
        return self._groups

    def save_group(self, group: SubscriptionGroupConfig) -> None:
        """Give a group its entry in subscriptionGroup.json, new or in place of the old one. Thread-safe. Raises OSError."""
        self._groups.save(group, self.writer.file_system, self.writer.clock())

    def make_group(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Give a group its entry if it has none; returns the one that it has then. Thread-safe. Raises OSError."""
        return self._groups.make(group, self.writer.file_system, self.writer.clock())

    def save_state(self, name: str, text: str, *, is_private: bool = False) -> None:
        """Write config/NAME durably, its old content to NAME.bak; hold `tables_lock` from reading on. With `is_private` for the owner
        alone. Java: ConfigManager.persist.
        """
        with self.tables_lock:
            write_with_backup(f"{self.root}/config/{name}", text, self.writer.file_system, is_private=is_private)

    def flush(self) -> None:
        """Everything put so far onto the disk. Java: DefaultMessageStore.flush."""
        self.writer.sync_log()

    @property
    def settings(self) -> PutSettings:
        """What puts go by, topics among it, as it is now. Raises StoreNotWritableError, as `writer` does."""
        return self.writer.settings

    @property
    def writer(self) -> StoreWriter:
        """The writing end. Raises StoreNotWritableError of a store that was opened for reading, or is closed."""
        if self._writer is None:
            raise StoreNotWritableError(self.root, "it is not open for writing", "open it with read_only=False")
        return self._writer

    def release(self) -> None:
        """Give a store that was opened for writing back without closing it: `abort` stays, and the next opening is cheap.

        What was appended under ASYNC_FLUSH may not be on the disk yet.
        """
        try:
            if self._writer is not None:
                self._writer.checkpoint_if_due()
                reach("before-release")
                self._let_go()
        finally:
            self._give_back()

    def close(self) -> None:
        """Give everything back. A store that was opened for writing is then cleanly closed: on the disk, no `abort`, lock free.

        Where that fails, everything is given back all the same, and the next opening recovers.
        """
        try:
            if self._writer is not None:
                if self._writer.failure is None:
                    settle(self._writer)
                close_cleanly(self._writer)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        """Descriptors, maps, the lock."""
        if self._writer is not None:
            self._writer.close()
            self._writer = self._putter = None
        self._resources.close()

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes; where an error is on its way, only lets go, so that it is not hidden by another."""
        if kind is None:
            self.close()
            return
        try:
            self._let_go()
        finally:
            self._give_back()

    def _let_go(self) -> None:
        """Append nothing more, and leave the rest to the next opening."""
        if self._writer is not None:
            release(self._writer, self.index if self.config.index.message_index_enable else None)
            self._writer = self._putter = None
