"""A plain store made of a DLedger group's: the way from DLedger to masters and slaves, or to a controller.

    source   ROOT/dledger-n0/data/00000000000000524288   | head | record | head | record | … | filler |
    target   ROOT/commitlog/00000000000000524288         | record | record | …               | filler |

Each file of the log becomes one file of the same name, so that a record's new place follows from its entry's index and that of the
file's first entry: it moves back by one head for each entry up to its own. A record keeps all its bytes but two numbers: its own place,
and the place of the half message that a committed message comes from. So topics, queue offsets, times, bodies and properties stay;
offset message ids, which name a place, do not. Files of the plain log that the broker had before DLedger are copied.

Queues and index are made from the log by the recovery of a store that has none. Tables are copied. Of the timer, wheel and log are
copied, with the places that the log names.

Everything is made in TARGET.converting, which one run holds locked. The commit point is the rename to TARGET. A crash before it leaves
that directory, which the next run makes anew. Nothing is written in the source: its lock is shared, so that no broker takes it.
A source without a lock file (a copy) has no broker; if one has made the file at the end, nothing is renamed.

The whole sound log is taken, also entries that the group had not committed yet: a group that starts with this peer as its leader
commits them as well. Java has no such tool.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from storage.dispatch.recovery_plan import LoweredOffset
from storage.epoch_times import current_time_ms
from storage.errors import CorruptRecordError, StoreLockedError, StoreNotFoundError, StoreRefusedError
from storage.failpoints import reach
from storage.files.file_system import ReadableFile
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import view_at
from storage.format.delay import UNIT, decode_units, is_unit
from storage.format.dledger import ENTRY_HEAD, ENTRY_HEAD_SIZE, committed_index
from storage.format.record import BLANK, HEADERS, HOST_FLAGS, MAGIC_BLANK
from storage.format.record_batch import Records
from storage.log.commit_log import Checkpoint, LogFile, read_checkpoint, write_checkpoint
from storage.names import MULTI_DISPATCH_PREFIX
from storage.queues.store import queue_file_size
from storage.settings.load import (
    BY_ITS_BROKER,
    LITE_QUEUES_RULE,
    READ_SETTINGS,
    StoreConfig,
    load_config,
    refuse_for_writing,
)
from storage.store import MessageStore, open_store
from storage.tables.document import TABLES_IN_ROCKSDB, TOPICS_FILE, tables_directory
from storage.tables.surroundings import own_directory
from storage.tables.topics import TopicTable

_COPIED_BYTES = 8 << 20
_PLACE, _HALF_PLACE = "commitlog_offset", "prepared_transaction_offset"
_TIMER = ("timerlog", "timerwheel")


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was converted."""

    source: str
    target: str
    records: int
    log_start: int
    log_end: int
    """Of the new log."""
    last_index: int
    """Of the group's last entry here; −1 without one."""
    last_term: int
    """In which it was written. The peer with the greatest (term, index) has the newest log."""
    uncommitted: int
    """How many entries come after the last one that this peer knew to be committed (on a majority)."""
    log_file_size_bytes: int
    queue_file_size_bytes: int
    lowered: tuple[LoweredOffset, ...]
    """Offsets in tables that were ahead of the log."""


def convert(
    source: str,
    target: str,
    *,
    config: StoreConfig | str | None = None,
    file_system: LocalFileSystem | None = None,
    clock: Callable[[], int] = current_time_ms,
    on_progress: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Make a plain store at `target` of the DLedger store at `source`, whose broker is stopped. `config` is that of `open_store`.

    `on_progress` gets how many bytes of the log of how many are copied. Raises StoreRefusedError if the source is no DLedger store, or
    something is at the target; StoreNotFoundError; StoreLockedError while a broker or another conversion runs;
    StoreDamagedError and LogFileMissingError for a log with damage in it; OSError.
    """
    files = file_system or LocalFileSystem()
    source, target = source.rstrip("/"), target.rstrip("/")
    settings = config if isinstance(config, StoreConfig) else load_config(source, config, read_bytes=files.read_file)
    _refuse_target(files, source, target)
    if not files.exists(source):
        raise StoreNotFoundError(source, "the store")
    lock = f"{source}/lock"
    with (
        files.left_alone(lock) as has_lock,
        open_store(source, config=settings, file_system=files, clock=clock) as store,
    ):
        _refuse_source(store, files)
        return _Converter(store, target, files, clock, on_progress, None if has_lock else lock).convert()


def _refuse_source(store: MessageStore, files: LocalFileSystem) -> None:
    if not store.log.entry_directories:
        rule = "it has no DLedger log, so there is nothing to convert"
        raise StoreRefusedError(store.root, rule, hint="a plain store is copied as it is, with cp")
    if (directory := tables_directory(files, store.root, store.config)) is not None:
        raise StoreRefusedError(
            store.root, f"{directory}: {TABLES_IN_ROCKSDB}, and a plain store has files", hint=BY_ITS_BROKER
        )
    if any(topic.startswith(MULTI_DISPATCH_PREFIX) for topic in store.topics()):
        raise StoreRefusedError(
            store.root, f"it has {LITE_QUEUES_RULE}; they are not made anew here", hint=BY_ITS_BROKER
        )
    table = store.state(TOPICS_FILE, TopicTable.load) or TopicTable()
    if batched := sorted(store.queues.batch_topics | table.batch_topics):
        rule = (
            f"topics {', '.join(batched)} have batch consume queues (queue.type=BatchCQ), which are not made anew here"
        )
        raise StoreRefusedError(
            store.root, rule, hint="reading needs no conversion; for writing keep the group's brokers"
        )


def _refuse_target(files: LocalFileSystem, source: str, target: str) -> None:
    if files.list_directory(target) or (files.exists(target) and files.directory_number(target) is None):
        raise StoreRefusedError(
            target, "something is there", hint="give a new or empty directory for the converted store"
        )
    if f"{files.real_path(target)}/".startswith(f"{files.real_path(source)}/"):
        raise StoreRefusedError(target, f"it lies in the source, {source}", hint="give a directory outside of it")


class _Converter:
    def __init__(
        self,
        store: MessageStore,
        target: str,
        files: LocalFileSystem,
        clock: Callable[[], int],
        on_progress: Callable[[int, int], None] | None,
        missing_lock: str | None,
    ) -> None:
        """`missing_lock` is the source's lock file where there is none: a broker that starts makes it."""
        self._missing_lock = missing_lock
        self._store, self._log, self._root = store, store.log, store.root
        self._target, self._partial = target, f"{target}.converting"
        self._files, self._clock, self._on_progress = files, clock, on_progress
        self._first_indexes: dict[str, int] = {}
        self._count, self._last_index, self._last_term = 0, -1, -1

    def convert(self) -> Conversion:
        plan, log = self._store.plan, self._log
        if plan.damage is not None:
            raise plan.damage
        for gap in plan.gaps:
            raise gap.error()
        log_size = log.file_size_bytes or self._store.config.commit_log.mapped_file_size_commit_log or 1 << 30
        configured = self._store.config.consume_queue.mapped_file_size_consume_queue
        queue_size = queue_file_size(self._files, self._root, configured)
        config = _plain(self._store.config, log_size, queue_size)
        if reasons := refuse_for_writing(config):
            raise StoreRefusedError(self._root, "; ".join(reasons))
        with self._own_partial():
            end, lowered = self._make(config)
        committed = self._committed()
        return Conversion(
            *(self._root, self._target, self._count, log.minimum, end, self._last_index, self._last_term),
            max(0, self._last_index - max(committed, -1)),
            *(log_size, queue_size, lowered),
        )

    def _make(self, config: StoreConfig) -> tuple[int, tuple[LoweredOffset, ...]]:
        """Make the store; returns the log's end, and the lowered offsets."""
        self._copy_log()
        self._copy_tables()
        known = read_checkpoint(self._files, self._root)
        if known.logics_physical_offset:  # the places are others
            unknown = Checkpoint(logics_physical_offset=known.queue_position(None))
            write_checkpoint(self._files, self._partial, unknown)
        reach("converted-copied")
        partial = open_store(
            self._partial, config=config, read_only=False, create=True, file_system=self._files, clock=self._clock
        )
        with partial as made:
            end, lowered = made.log_end, made.lowered
        self._files.sync(self._partial)
        reach("before-converted")
        if self._missing_lock is not None and self._files.exists(self._missing_lock):
            raise StoreLockedError(self._missing_lock)
        self._files.rename(self._partial, self._target)
        self._files.sync(posixpath.dirname(self._target) or ".")
        return end, lowered

    def _committed(self) -> int:
        directory = posixpath.dirname(self._log.entry_directories[0])
        content = self._files.read_file(f"{directory}/checkpoint")
        found = None if content is None else committed_index(content)
        return -1 if found is None else found

    @contextmanager
    def _own_partial(self) -> Iterator[None]:
        """Make the directory, with a note that says whose it is, and hold it. Without the note one that is there is not ours to delete.

        Raises StoreLockedError while another conversion makes a store there.
        """
        own = own_directory(self._partial)
        note, lock = f"{own}/converted_from.json", f"{own}/converting.lock"
        is_noted = self._files.read_file(note) is not None
        if not is_noted and any(
            entry.name != posixpath.basename(own) for entry in self._files.list_directory(self._partial)
        ):
            rule = f"{self._partial} is there, and no conversion has made it"
            raise StoreRefusedError(
                self._target, rule, hint="move it away: the store is made in a directory of that name"
            )
        self._files.make_directories(own)
        with self._files.locked(lock):
            _refuse_target(self._files, self._root, self._target)  # another conversion may have made it since
            self._clear(self._partial, keep={note, lock})
            self._files.replace(note, json.dumps({"source": self._root, "startedMs": self._clock()}).encode())
            yield

    def _clear(self, directory: str, keep: set[str]) -> None:
        for entry in self._files.list_directory(directory):
            path = f"{directory}/{entry.name}"
            if entry.is_directory:
                self._clear(path, keep)
                if not self._files.list_directory(path):
                    self._files.remove_directory(path)
            elif path not in keep:
                self._files.unlink(path)

    # The log

    def _copy_log(self) -> None:
        end = self._store.log_end
        directory = f"{self._partial}/commitlog"
        self._files.make_directories(directory)
        needed = [file for file in self._log.files if file.start < end]
        for number, file in enumerate(needed):
            path = f"{directory}/{posixpath.basename(file.path)}"
            self._files.create_file(path, file.end - file.start)
            if file.head_size_bytes:
                self._copy_entries(file, path, end, is_last=number == len(needed) - 1)
            else:
                self._count += sum(len(records) for _, records in self._walk(file, end))
                self._copy_file(file.path, path)
            self._files.sync(path)
        self._files.sync(directory)

    def _walk(self, file: LogFile, end: int) -> Iterator[tuple[np.ndarray, Records]]:
        """All records of one file. Raises CorruptRecordError where it holds something else before the log's end."""
        end = min(end, file.end)
        walk = self._log.walk(file.start, limit=end)
        for offsets, records in walk:
            yield offsets, records
            if self._on_progress is not None:
                self._on_progress(int(offsets[-1]) - self._log.minimum, self._store.log_end - self._log.minimum)
        if walk.end < end:
            raise walk.failure or CorruptRecordError(
                "magic", walk.end - file.start, "a record", "zeros", file=file.path
            )

    def _copy_entries(self, file: LogFile, path: str, end: int, *, is_last: bool) -> None:
        """Write the records of one file one after the other, and a filler that leads to the next file."""
        position = 0
        writer = self._files.open_for_writing(path)
        try:
            for offsets, records in self._walk(file, end):
                heads = view_at(records.buffer, records.positions - ENTRY_HEAD_SIZE, ENTRY_HEAD)
                packed, positions = _without_heads(records)
                self._patch(packed, positions, offsets - ENTRY_HEAD_SIZE * self._ranks(file, heads))
                writer.write(position, packed)
                position += len(packed)
                self._count += len(records)
                self._last_index, self._last_term = int(heads["entry_index"][-1]), int(heads["term"][-1])
            if not is_last:
                writer.write(position, BLANK.pack(file.end - file.start - position, MAGIC_BLANK))
        finally:
            writer.close()

    def _ranks(self, file: LogFile, heads: np.ndarray) -> np.ndarray:
        """How many heads lie in the file before the records of these entries."""
        if file.path not in self._first_indexes:
            head = view_at(self._log.open_file(file).view(0, ENTRY_HEAD_SIZE), np.zeros(1, np.int64), ENTRY_HEAD)
            self._first_indexes[file.path] = int(head["entry_index"][0])
        return heads["entry_index"].astype(np.int64) - self._first_indexes[file.path] + 1

    def _patch(self, packed: np.ndarray, positions: np.ndarray, places: np.ndarray) -> None:
        """Set the records' new places, and those of the half messages that they name."""
        records = Records(packed, positions)
        had_sums = records.property_crc_agrees(required=False)
        sys_flags, halves = records.column("sys_flag") & HOST_FLAGS, records.column(_HALF_PLACE).astype(np.int64)
        for flags, layout in HEADERS.items():
            rows = np.flatnonzero(sys_flags == flags)
            _set(packed, positions[rows] + _position(layout, _PLACE), places[rows])
            rows = rows[halves[rows] > 0]
            _set(packed, positions[rows] + _position(layout, _HALF_PLACE), self._moved(halves[rows]))
        if not np.array_equal(Records(packed, positions).property_crc_agrees(required=False), had_sums):
            rule = (
                "its records carry a sum over their place (__CRC32#), which a group of Apache's brokers does not write"
            )
            raise StoreRefusedError(self._root, rule)

    def _moved(self, places: np.ndarray) -> np.ndarray:
        """The new places of records in the source's log. What is no place of a record there, as of an expired file, stays."""
        old, codes = np.unique(places, return_inverse=True)
        new = old.copy()
        starts = np.array([file.start for file in self._log.files], np.int64)
        numbers = np.searchsorted(starts, old, side="right") - 1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            file = self._log.files[number]
            rows = np.flatnonzero((numbers == number) & (old >= file.first_record) & (old < file.end))
            if not file.head_size_bytes or not len(rows):
                continue
            at = old[rows] - file.start - ENTRY_HEAD_SIZE
            heads = view_at(*self._log.open_file(file).gather(at, np.full(len(at), ENTRY_HEAD_SIZE)), ENTRY_HEAD)
            moved = old[rows] - ENTRY_HEAD_SIZE * self._ranks(file, heads)
            new[rows] = np.where(heads["place"] == at + file.start, moved, old[rows])
        return np.asarray(new[codes])

    # What lies beside the log

    def _copy_tables(self) -> None:
        self._copy_tree("config")
        for entry in self._files.list_directory(self._root):
            if entry.name.startswith(_TIMER):
                self._copy_tree(entry.name)

    def _copy_tree(self, name: str) -> None:
        path, made = f"{self._root}/{name}", f"{self._partial}/{name}"
        entries = self._files.list_directory(path)
        if not entries and self._files.directory_number(path) is None and self._files.exists(path):
            self._copy_into(path, made)
        elif self._files.exists(path):
            self._files.make_directories(made)
        for entry in entries:
            if entry.is_directory:
                self._copy_tree(f"{name}/{entry.name}")
            else:
                self._copy_into(f"{path}/{entry.name}", f"{made}/{entry.name}", is_timer_log=name == "timerlog")
        if entries:
            self._files.sync(made)

    def _copy_into(self, path: str, made: str, *, is_timer_log: bool = False) -> None:
        opened = self._files.open_file(path)
        size = opened.size_bytes
        opened.close()
        self._files.create_file(made, size)
        if is_timer_log:
            self._copy_timer_log(path, made)
        else:
            self._copy_file(path, made)
        self._files.sync(made)

    def _copy_file(self, path: str, made: str) -> None:
        """Copy the content into a file of the same length, without the holes."""
        opened = self._files.open_file(path)
        try:
            self._files.write_pieces(made, _pieces(opened))
        finally:
            opened.close()

    def _copy_timer_log(self, path: str, made: str) -> None:
        opened = self._files.open_file(path)
        content = opened.view(0, opened.size_bytes).copy()
        written = max((stop for _, stop in opened.data_ranges(0)), default=0)
        opened.close()
        units = decode_units(content)
        rows = np.flatnonzero(is_unit(units))
        places = self._moved(units[_PLACE][rows].astype(np.int64))
        _set(content, rows * UNIT.itemsize + _position(UNIT, _PLACE), places)
        self._files.write(made, 0, content[:written])


def _plain(config: StoreConfig, log_file_size_bytes: int, queue_file_size_bytes: int) -> StoreConfig:
    """The settings of the plain store. What they say of the broker's peers and of its log's place is left out."""
    mode = replace(
        config.mode,
        enable_dleger_commit_log=False,
        d_leger_self_id=None,
        store_path_dledger_commit_log=None,
        broker_role="ASYNC_MASTER",
        store_type="default",
    )
    log = replace(
        config.commit_log,
        mapped_file_size_commit_log=log_file_size_bytes,
        store_path_commit_log=None,
        read_only_commit_log_store_paths=None,
    )
    queues = replace(config.consume_queue, mapped_file_size_consume_queue=queue_file_size_bytes)
    followed = {name: text for name, text in config.settings.items() if name in READ_SETTINGS}
    return replace(config, mode=mode, commit_log=log, consume_queue=queues, settings=followed)


def _without_heads(records: Records) -> tuple[np.ndarray, np.ndarray]:
    """The records of consecutive entries one after the other, and where each begins."""
    sizes = records.column("size_bytes").astype(np.int64)
    start = int(records.positions[0]) - ENTRY_HEAD_SIZE
    window = records.buffer[start : int(records.positions[-1] + sizes[-1])]
    wanted = np.ones(len(window), bool)
    heads = (records.positions - ENTRY_HEAD_SIZE - start)[:, None] + np.arange(ENTRY_HEAD_SIZE)
    wanted[heads] = False
    return window[wanted], np.concatenate(([0], np.cumsum(sizes)[:-1]))


def _set(buffer: np.ndarray, positions: np.ndarray, numbers: np.ndarray) -> None:
    buffer[positions[:, None] + np.arange(8)] = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)


def _position(layout: np.dtype, name: str) -> int:
    assert layout.fields is not None
    return int(layout.fields[name][1])


def _pieces(opened: ReadableFile) -> Iterator[tuple[int, np.ndarray]]:
    for start, stop in opened.data_ranges(0):
        for at in range(start, stop, _COPIED_BYTES):
            yield at, opened.view(at, min(_COPIED_BYTES, stop - at))
