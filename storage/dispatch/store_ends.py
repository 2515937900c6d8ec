"""Ends of log, queues and index of an open store: moved on by its writer, and kept in ROOT/spark_mq/hint.json for the next one.

Between two commits the store is not closed: `abort` exists, and without a hint every opening would be a recovery. A hint is valid if
everything around the ends is as it says: `abort` was not written anew, the machine has not started again (so all written data is there,
synced or not), no queue was made or deleted, the last files of log and index are the same, the last record is at its place with free
space after it. The hint is written without a sync: after a power loss it is not valid anyway.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

from storage.errors import StorageError
from storage.files.atomic_file import load_loose, save_loose
from storage.files.local_file_system import LocalFileSystem
from storage.format.record import BLANK_SIZE
from storage.index.store import IndexStore
from storage.index.writer import OpenSlots
from storage.log.commit_log import CommitLog, RecordIdentity
from storage.tables.sink_notes import LedgerNotes

LedgerEnds = dict[str, dict[str, int]]
"""Sink id → query id → its last batch id; the query that wrote last comes first."""
OpenBatches = dict[str, dict[str, int]]
"""Sink id → query id → place of its oldest SLICE after its newest END. Empty unless an intent was lost, as on a replica."""
Tables = dict[str, tuple[int, ...] | None]
"""Path of a file → its `LocalFileSystem.version`."""


@dataclass(frozen=True, slots=True)
class Hint:
    """The ends of a store that no process has open, but that was not closed."""

    abort: str
    """Content of the abort file."""
    boot_id: str
    log_end: int
    last_record: RecordIdentity | None
    log_file: tuple[str, tuple[int, int, int]] | None
    """Path and identity of the last file with records."""
    index_file: tuple[str, int, int] | None
    """Name, item count and end place of the last index file."""
    queue_directories: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """For consumequeue/ ("") and each topic in it: device, number, time of the last change of its entries (ms)."""
    queue_ends: dict[str, dict[int, int]] = field(default_factory=dict)
    unsynced: tuple[str, ...] = ()
    """Paths that a checkpoint must sync first."""
    checkpointed_ms: int = 0
    checkpointed_end: int = 0
    marked_ends: LedgerEnds | None = None
    """The newest END of every sink; None = not looked for yet. The name is new since ENDs have marks: before, a forged one counted."""
    indexed_from: int | None = None
    """The index has every key from this log offset on; None = unknown."""
    open_batches: OpenBatches | None = None
    """None = not looked for yet. The name is new since BEGINs count: before, `open_slices`."""
    compared_tables: Tables | None = None
    """The tables as the releasing process left them; None = the next opening must compare them (`recovery/offsets_ahead.py`)."""
    synced_entries: tuple[str, ...] = ()
    """`StoreEnds.synced_entries`. Without the lock only a task makes ROOT/spark_mq anew; if that was deleted, so was this file. A
    writer that is killed while it makes the directory leaves no hint."""
    finished_intents: tuple[str, ...] = ()
    """`StoreEnds.finished_intents`."""
    name: str = ""
    """Unique for each hint; "" from a version without names."""


def _path(root: str) -> str:
    return f"{root}/spark_mq/hint.json"


def save_hint(file_system: LocalFileSystem, root: str, hint: Hint) -> None:
    """Replace the hint; not durable, and need not be."""
    content = json.dumps({part.name: getattr(hint, part.name) for part in fields(hint)}, separators=(",", ":")).encode()
    if not file_system.exists(f"{root}/spark_mq"):
        file_system.make_directories(f"{root}/spark_mq")
    save_loose(file_system, _path(root), content)


def drop_hint(file_system: LocalFileSystem, root: str) -> None:
    if file_system.exists(_path(root)):
        file_system.unlink(_path(root))


def load_hint(file_system: LocalFileSystem, root: str) -> Hint | None:
    """The hint; None if there is none, only half of one, or one from another version."""
    content = load_loose(file_system, _path(root))
    try:
        return None if content is None else _from_document(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _from_document(document: dict[str, Any]) -> Hint:
    last, log_file, index_file = document["last_record"], document["log_file"], document["index_file"]
    tables = document.get("compared_tables")
    return Hint(
        abort=document["abort"],
        boot_id=document["boot_id"],
        log_end=document["log_end"],
        last_record=None if last is None else RecordIdentity(*last),
        log_file=None if log_file is None else (log_file[0], tuple(log_file[1])),
        index_file=None if index_file is None else tuple(index_file),
        queue_directories={topic: tuple(found) for topic, found in document["queue_directories"].items()},
        queue_ends={
            topic: {int(queue): end for queue, end in ends.items()} for topic, ends in document["queue_ends"].items()
        },
        unsynced=tuple(document["unsynced"]),
        checkpointed_ms=document["checkpointed_ms"],
        checkpointed_end=int(document.get("checkpointed_end", 0)),
        marked_ends=document.get("marked_ends"),
        indexed_from=document.get("indexed_from"),
        open_batches=document.get("open_batches"),
        synced_entries=tuple(map(str, document.get("synced_entries", ()))),
        finished_intents=tuple(map(str, document.get("finished_intents", ()))),
        name=str(document.get("name", "")),
        compared_tables=None if tables is None else {path: found and tuple(found) for path, found in tables.items()},
    )


def index_end(index: IndexStore | None) -> tuple[str, int, int] | None:
    """Name, item count and end place of the last index file."""
    files = index.files() if index is not None else []
    if not files:
        return None
    header = files[-1].header()
    return files[-1].name, header.index_count, header.end_commitlog_offset


def queue_directories(file_system: LocalFileSystem, root: str) -> dict[str, tuple[int, int, int]]:
    """Identities of the queue directories: they show whether queues were made or deleted since."""
    directory = f"{root}/consumequeue"
    names = ["", *(entry.name for entry in file_system.list_directory(directory) if entry.is_directory)]
    found = {}
    for name in names:
        path = f"{directory}/{name}".rstrip("/")
        identity, modified_ms = file_system.identity(path), file_system.modified_ms(path)
        if identity is not None and modified_ms is not None:
            found[name] = identity[0], identity[1], modified_ms
    return found


def holds(hint: Hint, file_system: LocalFileSystem, root: str, log: CommitLog, index: IndexStore | None) -> bool:
    """Whether the store is as the hint says."""
    if (file_system.read_file(f"{root}/abort") or b"").decode(errors="replace") != hint.abort:
        return False
    if hint.boot_id != file_system.boot_id() or not hint.boot_id:
        return False
    if hint.log_file is not None and file_system.identity(hint.log_file[0]) != hint.log_file[1]:
        return False
    if queue_directories(file_system, root) != hint.queue_directories:
        return False
    return index_end(index) == hint.index_file and _ends_there(hint, log)


def _ends_there(hint: Hint, log: CommitLog) -> bool:
    if hint.last_record is not None:
        try:
            message = log.message_at(hint.last_record.commitlog_offset, hint.log_end, check_crc=True)
        except StorageError:
            return False
        if message.store_time_ms != hint.last_record.store_time_ms:
            return False
        if message.commitlog_offset + message.size_bytes != hint.log_end:
            return False
    elif any(log.bytes_at(file.start, BLANK_SIZE).strip(b"\0") for file in log.files):
        return False
    number = log.file_index(hint.log_end)
    if number >= 0 and hint.log_end < log.files[number].end:
        head = log.bytes_at(hint.log_end, min(BLANK_SIZE, log.files[number].end - hint.log_end))
        if head.strip(b"\0"):
            return False
    return not any(log.bytes_at(file.start, BLANK_SIZE).strip(b"\0") for file in log.files[number + 1 :])


QueueName = tuple[str, int]


@dataclass(slots=True)
class StoreEnds:
    """The ends of a store, as recovery or the hint found them."""

    log_end: int
    last_record: RecordIdentity | None
    queue_ends: dict[QueueName, int]
    """The next offset of each queue, after its appended messages."""
    unsynced: set[str] = field(default_factory=set)
    checkpointed_ms: int = 0
    checkpointed_end: int = 0
    """The end of the log when the last checkpoint was written."""
    ledger: LedgerEnds | None = None
    ledger_notes: LedgerNotes | None = None
    """None = not read yet."""
    open_batches: OpenBatches | None = None
    """None = not looked for yet."""
    open_commits: set[str] = field(default_factory=set)
    """Paths of the intents of running commits: other threads, which may put between two slices, must not settle them."""
    finished_intents: set[str] = field(default_factory=set)
    """Paths of intents whose batches were found in the log, with END, mirror and note."""
    index_is_sound: bool = False
    """Whether the slots of the last index file were found complete."""
    indexed_from: int | None = None
    """The index has every key from this log offset on; None if no index is kept."""
    synced_entries: set[str] = field(default_factory=set)
    """Directories of ROOT whose names are known to be on the disk; "" is ROOT and what a new store has in it."""
    index_slots: OpenSlots | None = None
    """The slots of the last index file, if this process has kept them."""
    held_from: int | None = None
    """From this log offset on records wait to be confirmed; None = they never wait."""
    readable_ends: dict[QueueName, int] = field(default_factory=dict)
    """The end of each queue's entries. The writer sets and moves them; other threads may read meanwhile."""
    compared_tables: Tables | None = None
    """The tables that were compared with the queues' ends, if only the ends have grown since; None = not compared."""
    cut_count: int = 0
    """How often a queue was cut to begin anew: its topic was deleted and made again in the store that this log comes from."""

    @property
    def last_store_time_ms(self) -> int:
        """Store time of the last record; 0 if there is none."""
        return self.last_record.store_time_ms if self.last_record else 0


EVERYTHING = float("inf")
NOTHING_NEW = -1
"""A store that must have a copy is not connected."""


class Confirmed:
    """The log offset up to which readers may see a log that other stores must have first. The dispatching thread moves it; any thread
    may set `reached`.

    Java: CommitLog.getConfirmOffset.

        master   the least place that a replica of the SyncStateSet has acknowledged; the log's end if no other replica is in it
        slave    the offset that its master sends, as far as it has the log itself

    Unconfirmed records are in the log, but in no queue and no index: a fail-over may remove them. The offset never decreases.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        """The confirmed offset at the last look."""
        self.reached: float = NOTHING_NEW
        """The offset that all required stores have; `EVERYTHING` if none is required."""

    def within(self, end: int) -> int:
        """The confirmed offset of a log that ends at `end`."""
        return int(min(end, max(self.end, self.reached)))

    def move(self, end: int) -> int:
        """Like `within`, and keep the result. `end` was read before the call, so a store that is added meanwhile misses nothing."""
        self.end = max(self.end, self.within(end))
        return min(self.end, end)
