"""A RocketMQ store on disk, the facade: open it, read it, put messages, let go of it. Java: DefaultMessageStore.

Reading takes no lock, changes no file and works beside a running writer. Writing holds the store's lock from opening to closing.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa

from storage.batch.commit import finish_open_intents, forget_open_intents, leave_open_intents, settle
from storage.batch.intent import load_torn_rows
from storage.dispatch.queue_ends import QueueEnds
from storage.dispatch.recovery_plan import LoweredOffset, RecoveryPlan, RecoveryReport
from storage.epoch_times import current_time_ms, other_unit_rule
from storage.errors import (
    OffsetOutOfRangeError,
    StateFileError,
    StoreNotFoundError,
    StoreNotWritableError,
    StoreRefusedError,
    TopicNotFoundError,
)
from storage.failpoints import reach
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem, write_with_backup
from storage.files.lock import Holder
from storage.files.remote import file_system_of, only_for_reading, plain_path, unexpanded_home
from storage.format.record import Message
from storage.format.typed_json import SubscriptionGroupConfig
from storage.index.store import LONG_MAX, IndexStore, has_key, messages_with_key
from storage.log.commit_log import LOOKS, boot_left, read_checkpoint
from storage.log.damage import warning_of
from storage.log.fingerprint import LogFingerprint, take_fingerprint
from storage.log.group_log import GroupLog
from storage.names import is_system_topic, nearest
from storage.put.put import InnerPut, PutResult, Putter
from storage.put.settings import PutOptions, PutSettings, put_settings
from storage.put.store_writer import StoreWriter
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.get import MAX_TRANSFER_BYTES, Get, GetResult, GetStatus, get_messages
from storage.queues.scan import SLICE_ROWS
from storage.queues.store import ConsumeQueueStore, QueuePosition, offset_by_time, read_positions
from storage.queues.tiered_queue import TieredConsumeQueue
from storage.recovery.offsets_ahead import lower_for_cut, lower_offsets
from storage.recovery.opening import (
    close_cleanly,
    create_store,
    open_for_writing,
    prove_binding,
    release,
    sync_new_store,
)
from storage.recovery.passes import StoreParts, read_plan
from storage.recovery.topics_behind import make_missing_topics, unserved_queues
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.message_rows import one_batch, one_row
from storage.settings.load import (
    ConfigurationWarning,
    StoreConfig,
    load_config,
    warn_of_unread,
)
from storage.tables.consumer_groups import ConsumerOffsets, GroupEntries
from storage.tables.document import OFFSETS_FILE, TOPICS_FILE, read_state
from storage.tables.masters import copied_topics_end, forget_copied_topics
from storage.tables.moved import MovedRange, MovedRanges, load_moved, moved_warning
from storage.tables.surroundings import StoreLayout, Writer, find_log
from storage.tables.topics import TopicConfig, TopicTable, broker_names

WritesAs = Literal["owner", "follower", "controlled", "candidate", "rebuilder"]
"""Why the store may be written: it is the caller's own, the caller copies its master, or a controller has decided."""


def writer_of(writes_as: WritesAs, holder: Holder) -> Writer:
    """The writer that the store's settings are asked about."""
    return Writer(
        follows=writes_as == "follower",
        asks_replicas=holder in ("broker", "sink"),
        is_controlled=writes_as in ("controlled", "candidate"),
    )


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
    group: GroupLog | None = None,
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
    not configured are read off the files. `clock` gives milliseconds.

    Opening for writing takes the store's lock and waits for it up to `lock_timeout_ms`, in the order of those that wait (`holder` says
    for which other holders it does not wait). Then it recovers the store (`recovery/passes.py`) and finishes batches that were decided
    before a crash (`batch/commit.py`). `truncate_damage` cuts a damaged log where Java would, and copies the cut part first
    (`recovery/quarantine.py`). `create` makes an empty store if there is none.

    `store_host` (address:port) is the address that new records name. `broker_name` and `flush_disk_type` override the configuration.
    `rocketmq_version` names the release of the store's broker (`4.9.7`; `Release` says what each reads and writes).
    With `holds_back` only confirmed messages become readable (`storage/put/store_writer.py`).
    `group` is the log of a DLedger group, from its member, for that member's store alone.
    `prepare` gets the store that is opened for writing, recovered, before a batch appends to it.
    `on_progress` gets, during a recovery, how many bytes of how many are dispatched.

    `writes_as` says why a store of a follower or a controller may be written. None = a follower for the holder "follower", else an
    owner. A follower finishes no batch: its log gets what the master's has. A candidate, whose role the controller has not decided yet,
    finishes none either. Nor does a rebuilder, an owner that is about to rebuild lost queues: until then it would count their rows as
    missing, and the groups' offsets there as too high.

    Raises StoreNotFoundError, StoreRefusedError (what this package must not open), ForeignLogError (for writing: the log may be another
    store's, `log_place.py`), StoreLockedError, StoreDamagedError, and StoreNotWritableError for writing to a file system that is not
    local; the file system is not accessed then.
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
        group=group,
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


_ENTRIES_LOOKED_AT = 64
_T = TypeVar("_T")
_P = ParamSpec("_P")


def _outliving_expiry(
    look: Callable[Concatenate[MessageStore, _P], _T],
) -> Callable[Concatenate[MessageStore, _P], _T]:
    """Run a look, and again if files expired since they were listed: each time there are fewer."""

    @wraps(look)
    def repeated(store: MessageStore, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        while True:
            try:
                return look(store, *args, **kwargs)
            except OffsetOutOfRangeError as error:
                if not store._list_again(error):
                    raise

    return repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """How a store is opened: the arguments of `open_store`, under the same names."""

    read_only: bool
    truncate_damage: bool
    on_progress: Callable[[int, int], None] | None
    create: bool
    lock_timeout_ms: int
    holder: Holder
    writes_as: WritesAs
    holds_back: bool
    group: GroupLog | None
    prepare: Callable[[MessageStore], None] | None
    store_host: str | None
    broker_name: str | None
    flush_disk_type: str | None


class MessageStore:
    """One open store; make it with `open_store`. Not thread-safe. A context manager that closes it."""

    plan: RecoveryPlan
    _queue_ends: QueueEnds | None = None
    _has_had_files = False
    _followed_end = 0
    """Up to where `_queue_ends` has followed the own writer."""

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
        """What opening for writing mended; None for a read-only store, and if there was nothing to look for."""
        self.finished_batches = 0
        """How many decided but unfinished batches the opening has appended."""
        self.lowered: tuple[LoweredOffset, ...] = ()
        """Offsets of groups, delay levels and timer that were ahead of the log when the store was opened for writing."""
        self._file_system = file_system
        self._clock = clock
        self._resources = ExitStack()
        self._writer: StoreWriter | None = None
        self._putter: Putter | None = None
        self.tables_lock = threading.RLock()
        """Held while a table under config/, other than topics.json, is read, changed and saved."""
        self._groups: GroupEntries | None = None
        self._moved: tuple[int, MovedRanges] | None = None
        try:
            writable = None if options.read_only else _local(file_system, root)
            writer = None if options.read_only else writer_of(options.writes_as, options.holder)
            if writer is not None and options.group is not None:
                writer = writer._replace(is_member=True)
            self.place = find_log(root, config, file_system, may_be_empty=options.create, writer=writer)
            if writable is not None:
                if options.create and not writable.exists(root):
                    writable.make_directories(root)
                # Only now read anything for writing: the store may have changed while we waited.
                has_changed = self._take_lock(writable, options)
                if options.create:
                    create_store(root, self.place.directories, writable)
                if has_changed or self.place.missing:
                    self.place = find_log(root, config, writable, writer=writer)
            self.layout = StoreLayout.of(root, self.place, config, file_system)
            self.log = self.layout.commit_log(file_system)
            self._resources.callback(self.log.close)
            settings = None
            if writable is not None:
                settings = put_settings(
                    root, config, writable, options.store_host, options.broker_name, options.flush_disk_type, self.log
                )
            writes_ext = not options.read_only and config.consume_queue.enable_consume_queue_ext
            self.queues = self.layout.consume_queues(
                file_system,
                writes_ext=writes_ext,
                reads_moved=options.read_only,
            )
            self._resources.callback(_close_queues_of, weakref.ref(self))
            if not options.read_only:
                prove_binding(root, self.place, self.log, self.queues)
            if self.place.note is not None:
                warnings.warn(self.place.note, ConfigurationWarning, stacklevel=3)
            self.index = self.new_index()
            self._resources.callback(self.index.close)
            if writable is None or settings is None:
                self._look_at_all()
                if self.log.minimum:  # else nothing has left the log
                    self._look_for_moved()
            else:
                self._open_for_writing(writable, settings, options)
        except BaseException:
            try:
                self._let_go()
            finally:
                self._resources.close()
            raise

    # Opening and closing

    def _take_lock(self, files: LocalFileSystem, options: OpenOptions) -> bool:
        """Take the store's lock in the order of those that wait for it; returns whether we waited."""
        lock, turns = f"{self.root}/lock", f"{self.root}/spark_mq/turns"
        taken = files.locked(lock, options.lock_timeout_ms, turns=turns, holder=options.holder)
        has_waited = self._resources.enter_context(taken)
        files.write(lock, 0, b"lock")
        return has_waited

    def _open_for_writing(self, file_system: LocalFileSystem, settings: PutSettings, options: OpenOptions) -> None:
        if options.holder != "broker":  # a broker follows more settings, and itself warns of the others
            warn_of_unread(self.config.file, self.config.settings)
        index = self.index if self.config.index.has_files else None
        if options.group is not None:
            self.log.committed_end = options.group.committed_end
            self.log.has_own_queues = options.group.has_own_queues
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
        if options.group is not None:
            self._writer.join(options.group)
        self.lowered = () if opening.report is None else opening.report.lowered
        if is_own:
            self.lower_offsets()
            if (since := copied_topics_end(file_system, self.root)) is not None:  # it was a slave
                self.make_missing_topics(since)
                forget_copied_topics(file_system, self.root)
        else:
            opening.ends.compared_tables = None  # a master's may say more than the log has
        if options.prepare is not None:
            options.prepare(self)
        self.finished_batches, torn = 0, load_torn_rows(file_system, self.root)
        if not follows and (settings.topics.topics or options.holder == "broker"):
            # In a new store the first topic does so; a follower has its master's topics.
            self._writer.topic_entries.tell_names()
        if options.writes_as in ("candidate", "rebuilder"):
            leave_open_intents(self._writer)
            return
        if follows:
            forget_open_intents(self._writer, torn)
            return
        self.finished_batches = finish_open_intents(self._writer, torn)
        if self.recovery is not None:  # what recovery has found and synced needs no second decision
            settle(self._writer)

    def lower_offsets(self) -> None:
        """Lower every offset that is ahead of the log (`storage/recovery/offsets_ahead.py`); `lowered` lists them.

        Each opening for writing does so, except a follower's; a follower does it when it stops following. Raises OSError.
        """
        writer = self.writer
        with self.tables_lock:
            self.lowered += lower_offsets(
                self.root,
                writer.file_system,
                self.log,
                writer.ends,
                apart=writer.settings.mappings.mappings.keys(),
                now_ms=self._clock(),
            )

    def make_missing_topics(self, since: int = 0) -> tuple[str, ...]:
        """Make entries for topics with messages behind the log offset `since` that have none, or too few queues
        (`storage/recovery/topics_behind.py`); returns these topics. A slave does so while its master does not answer, and each opening
        of a store that was a slave's. Raises OSError.
        """
        return make_missing_topics(self.writer, since)

    def unserved_queues(self) -> set[tuple[str, int]]:
        """Queues with messages that no entry of topics.json covers, those of deleted topics too. For any thread."""
        return unserved_queues(self.writer)

    def lower_for_cut(self, place: int) -> None:
        """Before this store's log is cut at a place: deliver again what the log after it has delivered.

        Raises StateFileError, OSError.
        """
        behind = (records for _, records in self.log.walk(place, check_crc=False))
        with self.tables_lock:
            self.lowered += lower_for_cut(self.root, self.writer.file_system, behind, now_ms=self._clock())

    def new_index(self) -> IndexStore:
        """Another object for the index files, for a caller that keeps files of its own open."""
        index = self.config.index
        return IndexStore(
            self._file_system,
            self.root,
            index.max_hash_slot_num,
            index.max_index_num,
            is_elsewhere=index.is_elsewhere,
        )

    # Following a writer, another process or its own: the ends move from look to look. Changes no file.

    @property
    def _own_end(self) -> int:
        """Up to where the own writer has dispatched; 0 without one."""
        return 0 if self._writer is None else self._writer.dispatched_end

    @property
    def log_end(self) -> int:
        """End of the validated log. With an own writer nothing is read for it."""
        return self._own_end or self._ends.log_end

    def refresh(self) -> bool:
        """Follow a running writer: new records, queues and topics. Returns whether anything changed.

        Cheap when nothing did, and otherwise in proportion to the queues that got messages. A log that was cut below the known end (by
        a broker's recovery) is opened anew. Raises StoreNotFoundError if all files of the log are gone: its last file never expires, so
        the store is not mounted any more.
        """
        self._has_had_files |= bool(self.log.files)
        self.log.list_files()
        if self._has_had_files and not self.log.files:
            raise StoreNotFoundError(self.root, "the log, which was there before,")
        if not self._ends.log_was_cut():
            return self._ends.follow()
        self.log.close()
        self.queues.close()
        self.queues = self._queues_again()
        self._look_at_all()
        return True

    def _look_at_all(self) -> None:
        """Find the ends of log and queues from scratch; repeat if files expired meanwhile."""
        for left in reversed(range(LOOKS)):
            try:
                files, checkpoint = self._file_system, read_checkpoint(self._file_system, self.root)
                was_clean = boot_left(files, self.root) is None
                self.plan = read_plan(self.config, files, self.log, self.queues, checkpoint, was_clean=was_clean)
                self._queue_ends = self._ends_of_plan()
                if (text := warning_of(self.root, self.plan.gaps)) is not None:
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
                return
            except OffsetOutOfRangeError:
                if not left:
                    raise
                self.log.list_files()
                self.queues.close()
                self.queues = self._queues_again()

    def _queues_again(self) -> ConsumeQueueStore:
        return self.layout.consume_queues(self._file_system, reads_moved=self.read_only)

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

    # What there is

    @_outliving_expiry
    def fingerprint(self) -> LogFingerprint | None:
        """Identifies this store's log for a process that opens the store later; None if the log is empty."""
        return take_fingerprint(self.log, self.log_end, self._ends.last_record)

    @_outliving_expiry
    def last_message_end(self, topic: str, queue_id: int, end: int) -> tuple[int, int] | None:
        """The last of the few offsets before `end` that has an entry, and the log offset where its message ends. Reads nothing if `end`
        is the queue's own end.
        """
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return None
        known = self._ends.last_message_end(topic, queue_id) if end == self.max_offset(topic, queue_id) else None
        return (end - 1, known) if known is not None else queue.last_message_end(max(0, end - _ENTRIES_LOOKED_AT), end)

    def topics(self) -> list[str]:
        """Topics that have a queue, sorted."""
        return self.queues.topics()

    def queue_ids(self, topic: str) -> list[int]:
        """Queue ids of a topic, sorted; empty if there is none."""
        return self.queues.queue_ids(topic)

    @_outliving_expiry
    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset whose message the log still holds; the maximum if it holds none."""
        queue = self.queues.get(topic, queue_id)
        return 0 if queue is None else self._ends.minimum(queue)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset behind the last message."""
        return self._ends.maximum(topic, queue_id)

    @_outliving_expiry
    def bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """`min_offset` and `max_offset`; None if the queue does not exist."""
        ends = self._ends
        known = ends.known_bounds((topic, queue_id))
        if known is not None:
            return known
        queue = self.queues.get(topic, queue_id)
        return None if queue is None else (ends.minimum(queue), ends.maximum(topic, queue_id))

    @property
    def has_moved_messages(self) -> bool:
        """Whether tiered storage has, or had, messages of this store."""
        return bool(self._moved_now)

    def moved_away(self, topic: str, queue_id: int) -> MovedRange | None:
        """What tiered storage has of a queue before its `min_offset`, and cannot be read here; None if nothing.

        Of a queue without messages here that is all that tiered storage has.
        """
        found = self._moved_now.get((topic, queue_id))
        if found is not None and self.max_offset(topic, queue_id):
            found = found._replace(end=min(found.end, self.min_offset(topic, queue_id)))
        return found if found is not None and found.start < found.end else None

    @property
    def _moved_now(self) -> MovedRanges:
        """What the broker's table says, looked at again when the log has lost a file. A warning, once, for an unreadable one."""
        if self._moved is None or self._moved[0] != self.log.minimum:
            found: MovedRanges = {}
            try:
                found = load_moved(self.root, self._file_system)
            except StateFileError as error:
                if self._moved is None:
                    text = f"store {self.root}: which messages lie in tiered storage is not known: {error}"
                    warnings.warn(text, ConfigurationWarning, stacklevel=5)
            self._moved = self.log.minimum, found
        return self._moved[1]

    def _look_for_moved(self) -> None:
        """Say in a warning which messages of the store's broker lie where they cannot be read."""
        away = [(name, found) for name in sorted(self._moved_now) if (found := self.moved_away(*name)) is not None]
        if away:
            text = moved_warning(self.root, away, in_rocksdb=self.layout.rocksdb is not None)
            warnings.warn(text, ConfigurationWarning, stacklevel=4)

    @property
    def undispatched_bytes(self) -> int:
        """Valid records at the log's end that no queue names yet. Java: dispatchBehindBytes."""
        return max(0, self.log_end - max(self._ends.dispatched_end, self.log.minimum)) if self.log.files else 0

    def _list_again(self, error: OffsetOutOfRangeError) -> bool:
        """List the files of the log and of the error's queue again; returns whether they changed."""
        files = self.log.files
        self.log.list_files()
        queue = None if error.queue_id is None else self.queues.get(error.topic, error.queue_id)
        if queue is None:
            return self.log.files != files
        starts = queue.file_starts
        queue.list_files()
        if self.log.files != files or queue.file_starts != starts:
            return True
        if not isinstance(queue, TieredConsumeQueue):
            return False
        minimum = self._ends.forget_minimum((queue.topic, queue.queue_id))
        return minimum is not None and self._ends.minimum(queue) != minimum  # tiered storage expires by itself

    # Reading

    @_outliving_expiry
    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        *,
        tags: str | None = None,
        max_bytes: int = MAX_TRANSFER_BYTES,
    ) -> GetResult:
        """Messages from a queue offset on, at most `max_count` and (but for the first) `max_bytes`. Java: getMessage.

        `tags` is "TagA || TagB"; None or "*" is all. `next_begin_offset` is where to go on, whatever the status. Like Java's,
        one call reads from one queue file and, with a filter, looks at 800 entries at most.
        """
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        minimum, maximum = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        if maximum == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, minimum, maximum)
        if offset < minimum:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum)
        if offset >= maximum:
            status = GetStatus.OFFSET_OVERFLOW_ONE if offset == maximum else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetResult(status, maximum, minimum, maximum)
        ext = self.queues.ext(topic, queue_id)
        wanted = Get(offset, max_count, tags, max_bytes)
        return get_messages(queue, ext, self.log, self.log_end, (minimum, maximum), wanted)

    def message_by_commitlog_offset(self, commitlog_offset: int) -> Message:
        """The message whose record begins at this offset. Java: lookMessageByOffset.

        Raises OffsetOutOfRangeError outside the validated log, CorruptRecordError where no record begins.
        """
        return self.log.message_at(commitlog_offset, self.log_end)

    def query(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int = LONG_MAX
    ) -> list[Message]:
        """Like `messages_by_key`, but raises TopicNotFoundError if it finds nothing and the store does not know the topic.

        Raises ValueError for times that look like seconds, microseconds or nanoseconds.
        """
        _refuse_other_unit(begin_ms)
        _refuse_other_unit(end_ms)
        found = self.messages_by_key(topic, key, max_count, begin_ms=begin_ms, end_ms=end_ms)
        if not found:
            self._refuse_unknown_topic(topic)
        return found

    def messages_by_key(
        self,
        topic: str,
        key: str,
        max_count: int = 32,
        *,
        index_type: str | None = None,
        begin_ms: int = 0,
        end_ms: int = LONG_MAX,
    ) -> list[Message]:
        """The newest `max_count` messages of a topic with that key or unique key, by place in the log. Java: queryMessage.

        Where fewer are in the log, those that are read from tiered storage are looked through.

        With `index_type="T"` the key is their tags, as stored, if the index has them (RocketMQ 5.4; `rocketmqVersion` for our own).
        The key is compared with the record's. The time range is Java's: by whole seconds of the store time.
        Raises IndexGeometryUnknownError where the index files do not have the configured or default geometry, IndexElsewhereError where
        the index lies in RocksDB.
        """
        found = messages_with_key(
            self.index,
            self.log,
            self.log_end,
            topic,
            key,
            index_type=index_type,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )
        newest = list(islice(found, max_count))
        if len(newest) < max_count:
            times = range(begin_ms // 1_000, end_ms // 1_000 + 1)
            moved = [
                each for each in self._moved_with_key(topic, key, index_type) if each.store_time_ms // 1_000 in times
            ]
            moved.sort(key=lambda message: message.store_time_ms, reverse=True)
            newest += moved[: max_count - len(newest)]
        return sorted(newest, key=lambda message: message.commitlog_offset)

    @_outliving_expiry
    def _moved_with_key(self, topic: str, key: str, index_type: str | None) -> list[Message]:
        """The messages in tiered storage with the key: all that lie there are looked at, as its index is not read."""
        found: dict[tuple[int, int], Message] = {}
        for queue_id in self.queues.queue_ids(topic):
            queue = self.queues.get(topic, queue_id)
            if isinstance(queue, TieredConsumeQueue):
                start, end = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
                for message in queue.moved.having(key, start, queue.border(self.log, end)):
                    found[queue_id, message.queue_offset] = message
        return [message for message in found.values() if has_key(message, key, index_type)]

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Like `offset_in_queue_by_time`, but checks the topic and the unit of the time.

        Raises TopicNotFoundError for an unknown topic, and ValueError for a time that looks like seconds, microseconds or nanoseconds.
        """
        _refuse_other_unit(timestamp_ms)
        if self.queues.get(topic, queue_id) is None:
            self._refuse_unknown_topic(topic)
        return self.offset_in_queue_by_time(topic, queue_id, timestamp_ms, upper=upper)

    @_outliving_expiry
    def offset_in_queue_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """The first offset whose store time is not before `timestamp_ms`, or the maximum (Java: BoundaryType.LOWER).

        With `upper` the last offset whose store time is not after it, or the minimum. 0 if the queue does not exist.
        Java: getOffsetInQueueByTime.
        """
        queue = self.queues.get(topic, queue_id)
        if queue is None:
            return 0
        bounds = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        return offset_by_time(queue, self.log, self.log_end, bounds, timestamp_ms, upper=upper)

    def _refuse_unknown_topic(self, topic: str) -> None:
        """Raises TopicNotFoundError for a topic without a queue that topics.json does not name either."""
        table = self.state(TOPICS_FILE, TopicTable.load)
        known = {*self.topics(), *(table.topics if table is not None else ())}
        if topic not in known:
            names = broker_names(self.config, table or TopicTable())
            own = partial(is_system_topic, broker_name=names.broker, cluster_name=names.cluster)
            raise TopicNotFoundError(self.root, topic, nearest(topic, [name for name in known if not own(name)]))

    def store_time(self, queue: ConsumeQueue, offset: int) -> int:
        """Store time of the message at a queue offset; −1 where none is."""
        position = self.position(queue.topic, queue.queue_id, offset)
        return -1 if position is None else position.store_time_ms

    @_outliving_expiry
    def position(self, topic: str, queue_id: int, offset: int) -> QueuePosition | None:
        """Place and store time of the message at a queue offset; None if no message is visible there."""
        return self._positions([(topic, queue_id, offset)])[0]

    def positions(self, asked: Sequence[tuple[str, int, int]]) -> list[QueuePosition | None]:
        """`position` for many (topic, queue id, queue offset): much cheaper than one call for each."""
        try:
            return self._positions(asked)
        except OffsetOutOfRangeError:  # one of them has expired meanwhile
            return [self.position(*one) for one in asked]

    def _positions(self, places: Sequence[tuple[str, int, int]]) -> list[QueuePosition | None]:
        ends = self._ends
        found = [ends.position((topic, queue_id), offset) for topic, queue_id, offset in places]
        queues: list[ConsumeQueue] = []
        rows, offsets = [], []
        for row, (topic, queue_id, offset) in enumerate(places):
            queue = self.queues.get(topic, queue_id) if found[row] is None else None
            if queue is not None and 0 <= offset < ends.maximum(topic, queue_id):
                rows.append(row)
                queues.append(queue)
                offsets.append(offset)
        for row, position in zip(rows, read_positions(queues, offsets, self.log, self.log_end), strict=True):
            found[row] = position
            if position is not None:
                ends.note_position(places[row][:2], places[row][2], position)
        return found

    @_outliving_expiry
    def size_between(self, topic: str, queue_id: int, start: int, end: int) -> int:
        """Bytes of the records at queue offsets [start, end), as the queue's entries say."""
        queue = self.queues.get(topic, queue_id)
        blocks = range(start, end, SLICE_ROWS) if queue is not None else ()
        return sum(int(queue.sizes(at, min(end, at + SLICE_ROWS)).sum()) for at in blocks if queue)

    @_outliving_expiry
    def offset_at_size(self, topic: str, queue_id: int, start: int, size_bytes: int) -> int:
        """The greatest offset up to which the records from `start` on have at most `size_bytes`; the maximum if all fit."""
        queue, end = self.queues.get(topic, queue_id), self.max_offset(topic, queue_id)
        while queue is not None and start < end:
            sizes = np.cumsum(queue.sizes(start, min(end, start + SLICE_ROWS)))
            fitting = int(np.searchsorted(sizes, size_bytes, side="right"))
            if fitting < len(sizes):
                return start + fitting
            start, size_bytes = start + fitting, size_bytes - int(sizes[-1])
        return end

    def state(self, name: str, parse: Callable[[str, str], _T]) -> _T | None:
        """A table of config/NAME, or of its `.bak` (Java: ConfigManager.load), or of RocksDB (`read_state`); None where there is none.

        Raises StateFileError if it cannot be read: the content is unknown then, not empty.
        """
        return read_state(self._file_system, self.root, self.config, name, parse)

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

        Without `queue_id` and `sharding_key` the topic's write queues take turns. `create_topic` (None: `autoCreateTopicEnable`) says
        whether a missing topic is created, with `queue_count` queues (None: `defaultTopicQueueNums`), or with as many as `queue_id`
        needs. For a static topic `queue_id` is a logical queue, and the result has its physical one. Raises ColumnIllegalError for a
        value of another type, RowIllegalError, StoreNotWritableError, OSError.
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
        """Append messages unchanged, checked only for what a record can hold; returns the fields of `PutResult`, row by row.

        Makes no topic: `save_topic` does. Raises MessageIllegalError, StoreNotWritableError, OSError.
        """
        writer = self.writer
        return InnerPut(writer.settings, messages, self.config.delay.delays_ms).append_to(writer)

    def save_topic(self, topic: TopicConfig) -> None:
        """Give a topic its entry in topics.json, new or in place of the old one. Thread-safe. Java: updateTopicConfig."""
        self.writer.topic_entries.save(topic)

    def make_topic(self, topic: TopicConfig) -> TopicConfig:
        """Give a topic its entry if it has none; returns the present entry. Thread-safe. Java: createTopicInSendMessageMethod."""
        return self.writer.topic_entries.make(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete the topic's entry, its queues, and the offsets of all groups in it; the records stay in the log until they expire.

        The offsets go last. After a crash before that, the next opening for writing lowers them to what the queues have.
        Java: AdminBrokerProcessor.deleteTopic. Raises NameIllegalError, OSError.
        """
        self.writer.delete_topic(topic)
        self.forget_offsets({topic})

    def forget_offsets(self, topics: Set[str]) -> None:
        """Drop the offsets in deleted topics: a topic of the same name begins anew, and offsets never decrease. Thread-safe."""
        with self.tables_lock:
            known = self.state(OFFSETS_FILE, ConsumerOffsets.load) if topics else None
            if known is not None and (kept := known.without_topics(topics, now_ms=self.writer.clock())) is not known:
                self.save_state(OFFSETS_FILE, kept.to_text())

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """The consumer groups of subscriptionGroup.json, as they are now. Thread-safe."""
        return self.group_entries.groups

    @property
    def group_entries(self) -> GroupEntries:
        """The table behind `groups`, for rare operations on it. Thread-safe."""
        if self._groups is None:
            with self.tables_lock:
                self._groups = self._groups or GroupEntries(self.root, self._file_system, self.tables_lock)
        return self._groups

    def save_group(self, group: SubscriptionGroupConfig) -> None:
        """Give a group its entry in subscriptionGroup.json, new or in place of the old one. Thread-safe. Raises OSError."""
        self.group_entries.save(group, self.writer.file_system, self.writer.clock())

    def make_group(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Give a group its entry if it has none; returns the present entry. Thread-safe. Raises OSError."""
        return self.group_entries.make(group, self.writer.file_system, self.writer.clock())

    def save_state(self, name: str, text: str, *, is_private: bool = False) -> None:
        """Write config/NAME durably, its old content to NAME.bak. Hold `tables_lock` from reading on. `is_private`: for the owner
        alone. Java: ConfigManager.persist.
        """
        with self.tables_lock:
            write_with_backup(f"{self.root}/config/{name}", text, self.writer.file_system, is_private=is_private)

    def flush(self) -> None:
        """Everything put so far onto the disk. Java: DefaultMessageStore.flush."""
        self.writer.sync_log()

    @property
    def settings(self) -> PutSettings:
        """The current settings of puts, including topics. Raises StoreNotWritableError, as `writer` does."""
        return self.writer.settings

    @property
    def writer(self) -> StoreWriter:
        """The writer. Raises StoreNotWritableError if the store was opened for reading, or is closed."""
        if self._writer is None:
            raise StoreNotWritableError(self.root, "it is not open for writing", "open it with read_only=False")
        return self._writer

    def release(self) -> None:
        """Release a store that was opened for writing without closing it: `abort` stays, and the next opening is cheap.

        Messages appended under ASYNC_FLUSH may not be on the disk yet.
        """
        try:
            if self._writer is not None:
                self._writer.checkpoint_if_due()
                reach("before-release")
                self._let_go()
        finally:
            self._give_back()

    def close(self) -> None:
        """Release everything. After writing, the store is cleanly closed: all on the disk, no `abort`, lock free.

        If that fails, everything is released all the same, and the next opening recovers.
        """
        try:
            if self._writer is not None:
                if self._writer.failure is None:
                    settle(self._writer)
                close_cleanly(self._writer)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        """Release descriptors, maps and the lock."""
        if self._writer is not None:
            self._writer.close()
            self._writer = self._putter = None
        self._resources.close()

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the store; during an exception only let go of it, so that closing raises no second error."""
        if kind is None:
            self.close()
            return
        try:
            self._let_go()
        finally:
            self._give_back()

    def _let_go(self) -> None:
        """Stop appending, and leave the rest to the next opening."""
        if self._writer is not None:
            release(self._writer, self.index if self.config.index.has_files else None)
            self._writer = self._putter = None


def _close_queues_of(store: weakref.ref[MessageStore]) -> None:
    """Those that it has by now. The reference is weak, so a store that is dropped unclosed gives its lock back at once."""
    if (found := store()) is not None:
        found.queues.close()


def _refuse_other_unit(time_ms: int) -> None:
    if rule := other_unit_rule(time_ms):
        raise ValueError(rule)
