"""Look-up of messages by key, and entering of keys: the files under ROOT/index. Java: IndexService (buildIndex), IndexFile (putKey).

A file gives log offsets at which a message with this key may lie: hashes collide, so the caller compares the key with the record.
Reading needs the geometry (slots and items), which is in no file.

ROOT/spark_mq/index_synced.json, which only this package reads, says how much of the index is known to be on the disk. Before a
commit's first index write the checkpoint's `indexMsgTimestamp` is raised to the store time of that commit, because a broker
deletes, on an unclean start, every index file that ends later. So that field is ahead of what is synced. After a killed
process it is right, as the system still has every byte. After a power loss it is not: then this file's time counts, and younger keys
are entered again from the log. That holds after a clean stop too, as a broker that started and stopped in between has trusted
the checkpoint.

Keys are entered many at once, in new files as old ones fill up. Items are written as they come; header and slots at `flush`, or when
the file is full. Until then a reader sees the old file. The header is written first: if slots pointed beyond its count, Apache's
classes would lose the older keys of these slots, while items that no slot points to are only not found. A broker that goes on with such
a file skips them, so only `mend_chains` restores them, together with keys entered later. Of existing slots and items only the changed
pages are written.

The slots of the growing file stay in memory (`OpenSlots`): pages are read when keys fall into them, and kept from one opening to
the next. A broker's index file has 5 million slots, 20 MB, and the keys of a small commit touch some of their pages. A process that
commits batch after batch releases the store in between; when it reopens the store, and no other process has had it since (`Hint.name`),
its slots are still valid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import chain, repeat
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from storage.errors import CorruptRecordError, IndexElsewhereError, IndexGeometryUnknownError, OffsetOutOfRangeError
from storage.failpoints import reach
from storage.files.file_system import FileSystem, ReadableFile
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import index_key_hash, is_few
from storage.format.keys import (
    HEADER,
    HEADER_SIZE,
    HEADER_STRUCT,
    ITEM,
    ITEM_STRUCT,
    SLOT,
    TAG_TYPE,
    index_file_size,
    index_key,
)
from storage.format.record import Message
from storage.log.commit_log import CommitLog
from storage.log.dispatch import IndexKeys

NAME_DIGITS = 17
_BLOCK = 1 << 18
LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The header of one index file. `index_count` is the number of the next item: 1 in an empty file."""

    begin_time_ms: int
    end_time_ms: int
    begin_commitlog_offset: int
    end_commitlog_offset: int
    used_slot_count: int
    index_count: int


@dataclass(frozen=True, slots=True)
class IndexHit:
    """The log offset of an item, and the second of its store time."""

    commitlog_offset: int
    store_second_ms: int


class IndexFile:
    """One index file, read in small pieces."""

    def __init__(self, opened: ReadableFile, slot_count: int, item_count: int) -> None:
        if opened.size_bytes != index_file_size(slot_count, item_count):
            raise IndexGeometryUnknownError(opened.path, opened.size_bytes)
        self.path = opened.path
        self._file = opened
        self._slot_count = slot_count
        self._item_count = item_count
        self._items_start = HEADER_SIZE + SLOT.itemsize * slot_count

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def header(self) -> IndexHeader:
        """The present header: a running broker changes it with each key."""
        fields = np.frombuffer(self._file.view(0, HEADER_SIZE).tobytes(), HEADER)[0]
        begin, end, begin_offset, end_offset, used, count = (int(value) for value in fields.tolist())
        return IndexHeader(begin, end, begin_offset, end_offset, used, max(count, 1))

    @property
    def is_full(self) -> bool:
        return self.header().index_count >= self._item_count

    def lookup(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[IndexHit]:
        """Log offsets whose item has this hash and a second that touches [begin_ms, end_ms], newest first."""
        header = self.header()
        slot = self._file.view(HEADER_SIZE + SLOT.itemsize * (key_hash % self._slot_count), SLOT.itemsize)
        number = int.from_bytes(slot.tobytes(), "big", signed=True)
        while 0 < number <= min(header.index_count, self._item_count - 1):
            item = self._file.view(self._items_start + ITEM.itemsize * number, ITEM.itemsize)
            found_hash, commitlog_offset, difference, previous = ITEM_STRUCT.unpack(item.data)
            if found_hash == key_hash:
                # item 1 was stored at the file's begin time, but Java computes its difference from the file before
                for second_ms in (header.begin_time_ms,) * (number == 1) + (header.begin_time_ms + 1_000 * difference,):
                    if second_ms <= end_ms and second_ms + 999 >= begin_ms:
                        yield IndexHit(commitlog_offset, second_ms)
                        break
            if previous >= number:  # items point to older ones; anything else would be a loop
                return
            number = previous

    def items(self, start: int = 0, end: int | None = None) -> np.ndarray:
        """Written items from `start` to before `end`, without copying; number 0 is item 1, `end` None = all that are written."""
        count = self.header().index_count - 1
        count = (count if end is None else min(count, end)) - start
        view = self._file.view(self._items_start + ITEM.itemsize * (start + 1), ITEM.itemsize * max(0, count))
        return np.frombuffer(view, ITEM)

    def items_between(self, first: int, last: int) -> Iterator[np.ndarray]:
        """The items of records from log offset `first` to `last`, some at a time, where items ascend."""
        count = self.header().index_count - 1
        start, end = self._item_at(first, count), self._item_at(last + 1, count)
        for at in range(start, end, _BLOCK):
            yield self.items(at, min(end, at + _BLOCK))
            self.give_pages_back()

    def _item_at(self, commitlog_offset: int, count: int) -> int:
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self.items(middle, middle + 1)["commitlog_offset"][0] < commitlog_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def slots(self, start: int = 0, end: int | None = None) -> np.ndarray:
        """For the slots from `start` to before `end`, the newest item's number, int32; 0 = none."""
        count = (self._slot_count if end is None else min(self._slot_count, end)) - start
        view = self._file.view(HEADER_SIZE + SLOT.itemsize * start, SLOT.itemsize * count)
        return np.frombuffer(view, SLOT).astype(np.int32)

    def reachable_items(self) -> np.ndarray:
        """Which items a look-up can reach through their slot: a mask over `items()`.

        An item points to an older one, so they are processed from the newest on, a block at a time.
        """
        count = self.header().index_count - 1
        reachable = np.zeros(count + 1, bool)
        for start in range(0, self._slot_count, _BLOCK):
            heads = self.slots(start, start + _BLOCK)
            reachable[heads[(heads > 0) & (heads <= count)]] = True
            self.give_pages_back()
        for start in reversed(range(0, count, _BLOCK)):
            previous = self.items(start, start + _BLOCK)["previous_item"].astype(np.int64)
            numbers = np.arange(start + 1, start + 1 + len(previous))
            current = np.flatnonzero(reachable[numbers])
            while len(current):
                found = previous[current]
                found = found[(found > 0) & (found < numbers[current])]
                found = found[~reachable[found]]
                reachable[found] = True
                current = found[found > start] - start - 1
            self.give_pages_back()
        return reachable[1:]

    def give_pages_back(self) -> None:
        """Release the memory of what was read; a later read loads it again."""
        self._file.give_pages_back()

    def close(self) -> None:
        self._file.close()


class IndexStore:
    """The index files of a store, oldest first."""

    def __init__(
        self, file_system: FileSystem, root: str, slot_count: int, item_count: int, *, is_elsewhere: bool = False
    ) -> None:
        """`is_elsewhere`: keys are entered into RocksDB alone, so an answer of these files would be wrong."""
        self._is_elsewhere = is_elsewhere
        self._file_system = file_system
        self.directory = f"{root}/index"
        self.slot_count = slot_count
        self.item_count = item_count
        self._files: dict[str, IndexFile] = {}

    def files(self) -> list[IndexFile]:
        """The present files, oldest first; names that are no number are ignored, as in Java.

        Raises IndexGeometryUnknownError if a file does not have the length of the configured geometry.
        """
        names = [
            entry.name
            for entry in self._file_system.list_directory(self.directory)
            if is_index_name(entry.name) and entry.size_bytes
        ]
        for gone in self._files.keys() - set(names):
            self._files.pop(gone).close()
        for name in names:
            if name not in self._files:
                with suppress(FileNotFoundError):  # it expired since it was listed
                    opened = self._file_system.open_file(f"{self.directory}/{name}")
                    self._files[name] = IndexFile(opened, self.slot_count, self.item_count)
        return [self._files[name] for name in names if name in self._files]

    def require_files(self) -> None:
        """Raises IndexElsewhereError where the files cannot answer a look-up."""
        if self._is_elsewhere:
            raise IndexElsewhereError(self.directory)

    def lookup(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[IndexHit]:
        """Log offsets that may hold the key, newest first, each once."""
        seen: set[int] = set()
        for file in reversed(self.files()):
            for hit in file.lookup(key_hash, begin_ms, end_ms):
                if hit.commitlog_offset not in seen:
                    seen.add(hit.commitlog_offset)
                    yield hit

    def names(self, commitlog_offsets: np.ndarray) -> np.ndarray:
        """Which of these log offsets an item names; of negative ones none. Reads the items between the least and the greatest.

        Where a file's items do not ascend, as after some recoveries, it may miss one.
        """
        found = np.zeros(len(commitlog_offsets), bool)
        wanted = commitlog_offsets[commitlog_offsets >= 0]
        first, last = int(wanted.min(initial=LONG_MAX)), int(wanted.max(initial=-1))
        for file in self.files() if len(wanted) else ():
            header = file.header()
            if header.end_commitlog_offset < first or header.begin_commitlog_offset > last:
                continue
            for items in file.items_between(first, last):
                found |= np.isin(commitlog_offsets, items["commitlog_offset"].astype(np.int64))
        return found

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def is_index_name(name: str) -> bool:
    """Whether a file in index/ has an index file's name: a time, yyyyMMddHHmmssSSS."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def messages_with_key(
    index: IndexStore,
    log: CommitLog,
    log_end: int,
    topic: str,
    key: str,
    *,
    index_type: str | None = None,
    begin_ms: int = 0,
    end_ms: int = LONG_MAX,
) -> Iterator[Message]:
    """The messages of a topic with that key or unique key before `log_end`, newest first. The key is compared with the record's.

    With `index_type` TAG_TYPE `key` is their tags, as stored; only messages that a broker since 5.4 has indexed are found.
    The time range is Java's: by whole seconds of the store time. Raises IndexGeometryUnknownError if the index files do not have
    the configured or default geometry.
    """
    index.require_files()
    for hit in index.lookup(index_key_hash(index_key(topic, key, index_type)), begin_ms, end_ms):
        try:
            message = log.message_at(hit.commitlog_offset, log_end)
        except (OffsetOutOfRangeError, CorruptRecordError):
            continue  # the message has expired, or the item outlived a cut of the log
        if message.topic == topic and has_key(message, key, index_type):
            yield message


def has_key(message: Message, key: str, index_type: str | None) -> bool:
    """Whether it is one of the message's keys, its unique key or, with TAG_TYPE, its tags."""
    return key == message.tags if index_type == TAG_TYPE else key == message.unique_key or key in message.keys


class IndexTrust(NamedTuple):
    """Which index files are intact; both by their end time in ms."""

    keep_until_ms: int | None
    """Files that end later were partly lost; None = no file was."""
    synced_until_ms: int
    """Files that end at or after this time may have been left between their header and their slots."""

    def keeps(self, end_time_ms: int) -> bool:
        return self.keep_until_ms is None or end_time_ms <= self.keep_until_ms

    def is_synced(self, end_time_ms: int) -> bool:
        return end_time_ms < self.synced_until_ms  # later keys of that same millisecond may not be synced


_ALL = IndexTrust(None, 2**63 - 1)


def _path(root: str) -> str:
    return f"{root}/spark_mq/index_synced.json"


def save_index_trust(file_system: LocalFileSystem, root: str, synced_time_ms: int) -> None:
    """Note that index files that end at or before this store time are on the disk. Durable on return."""
    document = {"bootId": file_system.boot_id(), "indexSyncedTime": synced_time_ms}
    file_system.replace(_path(root), json.dumps(document).encode())


def has_index_trust(file_system: LocalFileSystem, root: str) -> bool:
    """Whether the checkpoint is ahead already. The known synced part changes only when a checkpoint is written."""
    return file_system.exists(_path(root))


def drop_index_trust(file_system: LocalFileSystem, root: str) -> None:
    """Note that all of the index is on the disk, and that the checkpoint says so."""
    if file_system.exists(_path(root)):
        file_system.unlink(_path(root))


def load_index_trust(
    file_system: LocalFileSystem, root: str, index_msg_timestamp: int, *, was_clean: bool = False
) -> IndexTrust:
    """How far to trust the index. If this package never raised the checkpoint ahead: all of it after a clean stop,
    up to the checkpoint's `index_msg_timestamp` after an unclean one.
    """
    content = file_system.read_file(_path(root))
    if content is None:
        return _ALL if was_clean else IndexTrust(index_msg_timestamp, index_msg_timestamp)
    try:
        document = json.loads(content)
        boot_id, synced = document["bootId"], min(int(document["indexSyncedTime"]), index_msg_timestamp)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return IndexTrust(0, 0)
    return IndexTrust(None if boot_id == file_system.boot_id() else synced, synced)


PAGE_ROWS = 1024
MANY_PAGES = 512
"""If more pages than this change, they are read or written as one range, with what lies between them."""


class OpenSlots:
    """For each slot the newest item's number, int32; 0 = none. The caller writes them."""

    def __init__(self, slot_count: int, file: IndexFile | None = None) -> None:
        """The slots of a file, read on demand; without a file those of a new one, all free."""
        self._values = np.zeros(slot_count, np.int32)
        page_count = -(-slot_count // PAGE_ROWS)
        self._unread = np.full(page_count, file is not None)
        self._dirty = np.zeros(page_count, bool)
        self._dirty_slots: set[int] = set()
        """Single dirty slots; their pages may be dirty as a whole, too."""
        self._file = file
        self.name = "" if file is None else file.name
        """Name of the file."""

    @property
    def slot_count(self) -> int:
        return len(self._values)

    @property
    def is_dirty(self) -> bool:
        """Whether slots were given out for change since the last `take_dirty`."""
        return bool(self._dirty_slots) or bool(self._dirty.any())

    def to_change(self, slots: np.ndarray) -> np.ndarray:
        """All slots, for changing `slots`: those hold the file's content and will be written."""
        touched = np.zeros(len(self._dirty), bool)
        touched[slots // PAGE_ROWS] = True
        self._read(touched)
        self._dirty |= touched
        return self._values

    def to_change_few(self, slots: Iterable[int]) -> np.ndarray:
        """Like `to_change`, for a few slots."""
        unread = {page for slot in slots if self._unread[page := slot // PAGE_ROWS]}
        if unread:
            wanted = np.zeros(len(self._dirty), bool)
            wanted[list(unread)] = True
            self._read(wanted)
        self._dirty_slots.update(slots)
        return self._values

    def take_dirty(self) -> tuple[np.ndarray, list[slice]]:
        """All slots, and which of them must be written; then they count as written."""
        few, self._dirty_slots = self._dirty_slots, set()
        if not self._dirty.any() and len(few) <= MANY_PAGES:
            return self._values, [slice(slot, slot + 1) for slot in sorted(few)]
        self._dirty[[slot // PAGE_ROWS for slot in few]] = True
        pages = np.flatnonzero(self._dirty)
        if len(pages) > MANY_PAGES:
            pages = np.arange(len(self._dirty))
            self._read(np.ones(len(pages), bool))
        self._dirty[:] = False
        return self._values, list(runs_of_pages(pages))

    def let_go(self) -> None:
        """Detach from the file, which is closed: unread pages are dropped."""
        self._file = None

    def go_on(self, file: IndexFile) -> bool:
        """Attach to the file again; returns whether these are its slots."""
        self._file = file
        return self.name == file.name and not self.is_dirty

    def _read(self, wanted: np.ndarray) -> None:
        missing = wanted & self._unread
        if not missing.any():
            return
        assert self._file is not None
        if np.count_nonzero(missing) > MANY_PAGES:
            missing = self._unread.copy()
        for rows in runs_of_pages(np.flatnonzero(missing)):
            self._values[rows] = self._file.slots(rows.start, rows.stop)
        self._unread &= ~missing


def runs_of_pages(pages: np.ndarray) -> Iterator[slice]:
    """Runs of neighbouring pages, which ascend, as ranges of rows; a page is that many rows, of any size."""
    first_of_run = np.flatnonzero(np.diff(pages, prepend=-2) > 1)
    for run in np.split(pages, first_of_run[1:]) if len(pages) else ():
        yield slice(int(run[0]) * PAGE_ROWS, (int(run[-1]) + 1) * PAGE_ROWS)


_KEPT: dict[str, tuple[str, OpenSlots]] = {}
"""For the store released last: its path → the name of its hint, and the slots."""


def keep_slots(root: str, hint: str, slots: OpenSlots | None) -> None:
    """Keep slots for this process's next opening of the store, if that hint is still there then. Only one store's slots are kept."""
    _KEPT.clear()
    if slots is not None and not slots.is_dirty:
        slots.let_go()
        _KEPT[root] = hint, slots


def kept_slots(root: str, hint: str) -> OpenSlots | None:
    """The slots kept with that hint, once."""
    name, slots = _KEPT.pop(root, ("", None))
    return slots if hint and name == hint else None


_MOST_SECONDS = 2**31 - 1
_NUMBERS = attrgetter(*(field.name for field in fields(IndexHeader)))


_LINKED_TOGETHER = 1 << 17
"""Items that are linked at once: their numbers stay in the processor's cache, and few of them share a slot."""


def link_items(slot_of_items: np.ndarray, first_number: int, slots: np.ndarray) -> np.ndarray:
    """For each new item, numbered from `first_number` on, the one before it in its slot, 0 = none; updates `slots` to the newest."""
    previous = np.empty(len(slot_of_items), np.int32)
    for start in range(0, len(slot_of_items), _LINKED_TOGETHER):
        rows = slice(start, start + _LINKED_TOGETHER)
        previous[rows] = _link_together(slot_of_items[rows].astype(np.intp), first_number + start, slots)
    return previous


def _link_together(places: np.ndarray, first_number: int, slots: np.ndarray) -> np.ndarray:
    numbers = np.arange(first_number, first_number + len(places), dtype=np.int32)
    previous = slots.take(places, mode="clip")  # no place lies outside, and this mode does not look for one
    slots[places] = numbers  # among equal slots the last one, the newest item, wins
    newest = slots.take(places, mode="clip")
    older = np.flatnonzero(newest != numbers)
    is_shared = np.zeros(len(places), bool)
    is_shared[older] = is_shared[newest[older] - first_number] = True
    shared = np.flatnonzero(is_shared)
    # one sort of (slot, rank) as a number: NumPy sorts numbers several times as fast as it sorts their places
    ranked = np.sort(places[shared] << 32 | shared)
    order = ranked & 0xFFFFFFFF
    in_order = ranked >> 32
    follows = np.flatnonzero(in_order[1:] == in_order[:-1]) + 1
    previous[order[follows]] = numbers[order[follows - 1]]
    return previous


def mend_chains(file_system: LocalFileSystem, file: IndexFile) -> None:
    """Rebuild slots and `previous_item` of a file from the keys of its items, as if one writer had entered them all; sync it.

    Needed after a writer was killed between header and slots, even if a broker has entered keys since.
    If it is killed, or the file is read meanwhile, no key is lost that was found before: items are written before slots.
    """
    header, items, found = file.header(), file.items(), file.slots()
    slots = np.zeros(len(found), np.int32)
    previous = link_items(items["key_hash"] % len(slots), 1, slots)
    differing = np.flatnonzero(previous != items["previous_item"])
    for rows in runs_of_pages(np.unique(differing // PAGE_ROWS)):
        mended = items[rows].copy()
        mended["previous_item"] = previous[rows]
        position = index_file_size(len(slots), 1 + rows.start)
        file_system.write(file.path, position, mended.view(np.uint8))
    pages = np.unique(np.flatnonzero(slots != found) // PAGE_ROWS)
    if len(pages) > MANY_PAGES:
        pages = np.arange(-(-len(slots) // PAGE_ROWS))
    _write_slots(file_system, file.path, slots, runs_of_pages(pages))
    used_slot_count = int(np.count_nonzero(slots))
    if header.used_slot_count != used_slot_count:
        _write_header(file_system, file.path, replace(header, used_slot_count=used_slot_count))
    file_system.sync(file.path)


class IndexWriter:
    """Appends to the last index file of a store, and to new ones behind it."""

    def __init__(
        self,
        file_system: LocalFileSystem,
        store: IndexStore,
        clock: Callable[[], int],
        *,
        trust_slots: bool = False,
        slots: OpenSlots | None = None,
    ) -> None:
        """With `trust_slots` the last file's chains are trusted, else they are mended first. `slots` are the last file's, if known."""
        self._file_system = file_system
        self._store = store
        self._clock = clock
        self.unsynced: set[str] = set()
        """Files with unsynced data."""
        self.has_new_file = False
        self.key_count = 0
        self._path: str | None = None
        self.slots: OpenSlots | None = None
        """The open file's slots."""
        self._header = IndexHeader(0, 0, 0, 0, 0, 1)
        files = store.files()
        self._last_name = files[-1].name if files else ""
        if files:
            if not trust_slots:
                mend_chains(file_system, files[-1])
            self._header = files[-1].header()
            if not files[-1].is_full:
                self._path = files[-1].path
                is_known = slots is not None and trust_slots and slots.go_on(files[-1])
                self.slots = slots if is_known else OpenSlots(store.slot_count, files[-1])

    @property
    def end_commitlog_offset(self) -> int:
        """Log offset of the last entered record; −1 if there is none."""
        return (
            self._header.end_commitlog_offset
            if self._header.index_count > 1 or (self._path is None and self._last_name)
            else -1
        )

    @property
    def end_time_ms(self) -> int:
        return self._header.end_time_ms

    @property
    def unsynced_paths(self) -> set[str]:
        """Files, and the directory of a new one, with unsynced data."""
        return self.unsynced | ({self._store.directory} if self.has_new_file else set())

    def append(self, keys: IndexKeys) -> None:
        """Enter keys in log order. If later records' keys are already in, the file's end does not change."""
        start = 0
        while start < len(keys.key_hashes):
            if self._path is None:
                self._create()
            room = min(self._store.item_count - self._header.index_count, _LINKED_TOGETHER)
            part = IndexKeys(*(column[start : start + room] for column in keys))
            if len(part.key_hashes):
                self._append_part(part)
            start += len(part.key_hashes)
            if self._header.index_count >= self._store.item_count:
                self._close_file()
        self.key_count += len(keys.key_hashes)

    def flush(self) -> None:
        """Write header, then slots, of the open file, which makes the entered keys visible. Syncs nothing."""
        if self._path is None or self.slots is None or not self.slots.is_dirty:
            return
        _write_header(self._file_system, self._path, self._header)
        reach("amid-index")
        _write_slots(self._file_system, self._path, *self.slots.take_dirty())

    def sync(self) -> None:
        """Sync everything flushed, including the directory entries of new files."""
        for path in sorted(self.unsynced):
            self._file_system.sync(path)
        if self.has_new_file:
            self._file_system.sync(self._store.directory)
        self.unsynced.clear()
        self.has_new_file = False

    def finish(self) -> None:
        """Flush and sync."""
        self.flush()
        self.sync()

    def _create(self) -> None:
        """Make a new file, which continues at the end of the one before (Java: IndexFile's constructor)."""
        moment = datetime.fromtimestamp(self._clock() / 1_000)
        name = f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1_000:03d}"
        if name <= self._last_name:
            name = str(int(self._last_name) + 1)
        self._path = f"{self._store.directory}/{name}"
        self._last_name = name
        self._file_system.create_file(self._path, index_file_size(self._store.slot_count, self._store.item_count))
        reach("index-file-made")
        before = self._header
        self._header = IndexHeader(
            before.end_time_ms, before.end_time_ms, before.end_commitlog_offset, before.end_commitlog_offset, 0, 1
        )
        self.slots = OpenSlots(self._store.slot_count)
        self.slots.name = name
        _write_header(self._file_system, self._path, self._header)
        self.unsynced.add(self._path)
        self.has_new_file = True

    def _append_part(self, keys: IndexKeys) -> None:
        assert self._path is not None
        header, count = self._header, len(keys.key_hashes)
        begin_ms, begin_offset = header.begin_time_ms, header.begin_commitlog_offset
        first_begin_ms = begin_ms
        if header.index_count <= 1:  # the first key's time counts from the file before, the others' from the first key
            begin_ms, begin_offset = int(keys.store_times_ms[0]), int(keys.commitlog_offsets[0])
        link = self._linked_few if is_few(count) else self._linked
        items, free_count = link(keys, first_begin_ms, begin_ms)
        position = index_file_size(self._store.slot_count, header.index_count)  # after the existing items
        self._file_system.write(self._path, position, items)
        self.unsynced.add(self._path)
        end_ms, end_offset = int(keys.store_times_ms[-1]), int(keys.commitlog_offsets[-1])
        if end_offset < header.end_commitlog_offset:
            end_ms, end_offset = header.end_time_ms, header.end_commitlog_offset
        self._header = IndexHeader(
            begin_ms,
            end_ms,
            begin_offset,
            end_offset,
            header.used_slot_count + free_count,
            header.index_count + count,
        )

    def _linked(self, keys: IndexKeys, first_begin_ms: int, begin_ms: int) -> tuple[np.ndarray, int]:
        """The items of new keys, linked into their slots; and how many slots were free. Their times count from `begin_ms`, the
        first's from `first_begin_ms`; if that is 0 or less, from nothing.
        """
        assert self.slots is not None
        count, first = len(keys.key_hashes), self._header.index_count
        differences = (keys.store_times_ms - begin_ms) // 1_000 if begin_ms > 0 else np.zeros(count, np.int64)
        differences[0] = _seconds_between(first_begin_ms, int(keys.store_times_ms[0]))
        differences = np.clip(differences, 0, _MOST_SECONDS)
        slots = keys.key_hashes % self._store.slot_count
        newest = self.slots.to_change(slots)
        items = np.empty(count, ITEM)
        items["key_hash"] = keys.key_hashes
        items["commitlog_offset"] = keys.commitlog_offsets
        items["time_difference_s"] = differences
        items["previous_item"] = link_items(slots, first, newest)
        return items.view(np.uint8), int(np.count_nonzero(items["previous_item"] == 0))

    def _linked_few(self, keys: IndexKeys, first_begin_ms: int, begin_ms: int) -> tuple[bytes, int]:
        """Like `_linked`, for a few keys, one by one."""
        assert self.slots is not None
        hashes = keys.key_hashes.tolist()
        slots = [key_hash % self._store.slot_count for key_hash in hashes]
        newest = self.slots.to_change_few(slots)
        number, free_count, items = self._header.index_count, 0, []
        begins_ms = chain((first_begin_ms,), repeat(begin_ms))
        rows = zip(hashes, slots, keys.commitlog_offsets.tolist(), keys.store_times_ms.tolist(), strict=True)
        for (key_hash, slot, place, store_time_ms), since_ms in zip(rows, begins_ms, strict=False):
            previous = int(newest[slot])
            newest[slot] = number
            items.append(ITEM_STRUCT.pack(key_hash, place, _seconds_between(since_ms, store_time_ms), previous))
            free_count += not previous
            number += 1
        return b"".join(items), free_count

    def _close_file(self) -> None:
        """Sync a full file before the next one is made, as in Java."""
        self.finish()
        self._path = self.slots = None


def _seconds_between(begin_ms: int, store_time_ms: int) -> int:
    """The time difference as an item holds it. Java: IndexFile.putKey."""
    return min(max((store_time_ms - begin_ms) // 1_000, 0), _MOST_SECONDS) if begin_ms > 0 else 0


def _write_header(file_system: LocalFileSystem, path: str, header: IndexHeader) -> None:
    file_system.write(path, 0, HEADER_STRUCT.pack(*_NUMBERS(header)))


def _write_slots(file_system: LocalFileSystem, path: str, slots: np.ndarray, stretches: Iterable[slice]) -> None:
    pieces = ((HEADER_SIZE + SLOT.itemsize * rows.start, slots[rows].astype(SLOT).view(np.uint8)) for rows in stretches)
    file_system.write_pieces(path, pieces)
