"""Queues and index as they follow from the log alone, compared with those of a closed or released store.

Read and rebuilt with `struct` and dictionaries, record by record (`raw_log.py`); no code of the engine's dispatch has a part in it.
Compared are sets over the log's range, of each queue its last incarnation.
Java: CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex, IndexService.buildIndex, IndexFile.putKey.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from storage import StoreConfig
from storage.files.local_file_system import LocalFileSystem
from storage.settings.load import load_config
from tests.support.raw_log import RawLog, RawRecord

PREPARED, ROLLED_BACK = 4, 12
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_ENTRY = struct.Struct(">qiq")
_INDEX_HEADER = struct.Struct(">qqqqii")
_ITEM = struct.Struct(">iqii")
_UNIT = struct.Struct(">hqqh")
_FILLED = 2**31 - 1  # ConsumeQueue.fillPreBlank: the size of entries in front of a queue's first one
_SHOWN = 10

Queue = tuple[str, int]


class Entry(NamedTuple):
    """What a queue entry says."""

    commitlog_offset: int
    size_bytes: int
    tags_code: int


def differences_from_rebuild(root: str | Path, config: StoreConfig | None = None) -> list[str]:
    """Where queues or index of the store at `root` say something else than its log does; nobody may be writing.

    Of a record that a power loss tore where no checksum reaches, only the place in its queue is compared. Without `config` the
    store's broker.conf counts, or, where it has none, `StoreConfig.tiny`.
    """
    if config is None:
        config = load_config(str(root), read_bytes=LocalFileSystem().read_file)
        config = config if config.file is not None else StoreConfig.tiny()
    log = RawLog([Path(root, "commitlog")])
    records = list(log.records())
    torn = {record.commitlog_offset for record in records if record.is_torn}
    found = [*_of_queues(Path(root), records, log.minimum, config.delay.delays_ms)]
    if config.index.message_index_enable:
        keys = {key for key in _keys(records) if key[1] not in torn}
        there = _reachable_items(Path(root, "index"), config.index.max_hash_slot_num, config.index.max_index_num)
        in_log = {item for item in there if item[1] >= log.minimum and item[1] not in torn}
        found += _compared("index", dict.fromkeys(keys), dict.fromkeys(in_log))
    return found


# Queues


def _of_queues(root: Path, records: Iterable[RawRecord], log_minimum: int, delays_ms: tuple[int, ...]) -> Iterator[str]:
    expected: dict[Queue, dict[int, Entry]] = defaultdict(dict)
    torn: set[int] = set()
    for record in records:
        if record.transaction_type in (PREPARED, ROLLED_BACK) or "\0" in record.topic:
            continue
        entries = expected[record.topic, record.queue_id]
        if entries and record.queue_offset <= max(entries):  # the topic was deleted and made again
            entries.clear()
        entries[record.queue_offset] = Entry(record.commitlog_offset, record.size_bytes, _tags_code(record, delays_ms))
        if record.is_torn:
            torn.add(record.commitlog_offset)
    there = {
        queue: _entries_of(path, Path(root, "consumequeue_ext", queue[0], str(queue[1])), log_minimum)
        for queue, path in _queue_directories(root / "consumequeue")
    }
    for queue in sorted(expected.keys() | there.keys()):
        topic, queue_id = queue
        pairs = [
            {offset: _without_tags(entry, torn) for offset, entry in entries.items()}
            for entries in (expected.get(queue, {}), there.get(queue, {}))
        ]
        yield from _compared(f"{topic} queue {queue_id}", *pairs)


def _without_tags(entry: Entry, torn: set[int]) -> Entry:
    return entry._replace(tags_code=0) if entry.commitlog_offset in torn else entry


def _tags_code(record: RawRecord, delays_ms: tuple[int, ...]) -> int:
    """Java: MessageExtBrokerInner.tagsString2tagsCode; CommitLog.checkMessageAndReturnSize for delayed messages."""
    level = record.properties.get("DELAY", "")
    if record.topic == SCHEDULE_TOPIC and level.isdigit() and int(level) > 0:
        return record.store_time_ms + delays_ms[min(int(level), len(delays_ms)) - 1]
    return java_hash(record.properties.get("TAGS", ""))


def _queue_directories(directory: Path) -> Iterator[tuple[Queue, Path]]:
    for topic in sorted(directory.iterdir()) if directory.is_dir() else ():
        for queue in sorted(topic.iterdir()):
            yield (topic.name, int(queue.name)), queue


def _entries_of(directory: Path, extension: Path, log_minimum: int) -> dict[int, Entry]:
    """Queue offset → entry, of what points into the log; with the tags code of its unit where it names one."""
    entries = {}
    units = sorted(extension.iterdir()) if extension.is_dir() else []
    for path in sorted(directory.iterdir()):
        first = int(path.name) // _ENTRY.size
        for number, fields in enumerate(_ENTRY.iter_unpack(path.read_bytes())):
            entry = Entry(*fields)
            if entry.size_bytes not in (0, _FILLED) and entry.commitlog_offset >= log_minimum:
                entries[first + number] = entry._replace(tags_code=_code_behind(entry.tags_code, units))
    return entries


def _code_behind(tags_code: int, units: Sequence[Path]) -> int:
    """The tags code itself, or that of the unit at the address that it is. Java: ConsumeQueueExt.isExtAddr, unDecorate, CqExtUnit."""
    if tags_code >= -(2**31):
        return tags_code
    address = tags_code + 2**63
    (path, *_) = [path for path in reversed(units) if int(path.name) <= address] or [None]
    content = b"" if path is None else path.read_bytes()[address - int(path.name) :]
    return _UNIT.unpack_from(content)[1] if len(content) >= _UNIT.size else tags_code


# Index


def _keys(records: Iterable[RawRecord]) -> Iterator[tuple[int, int]]:
    """(hash of the key, place) of every key of every record, as IndexService.buildIndex makes them."""
    for record in records:
        if record.transaction_type != ROLLED_BACK:
            for key in (record.properties.get("UNIQ_KEY", ""), *record.key.split(" ")):
                if key:
                    hash_code = java_hash(f"{record.topic}#{key}")
                    yield abs(hash_code) if hash_code > -(2**31) else 0, record.commitlog_offset


def _reachable_items(directory: Path, slot_count: int, item_count: int) -> set[tuple[int, int]]:
    """(hash, place) of the items that a look-up comes to from their slots, as IndexFile.selectPhyOffset goes."""
    found = set()
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        content = path.read_bytes()
        count = _INDEX_HEADER.unpack_from(content)[5] if len(content) >= _INDEX_HEADER.size else 0
        for slot in range(slot_count if count > 1 else 0):
            (number,) = struct.unpack_from(">i", content, _INDEX_HEADER.size + 4 * slot)
            while 0 < number < min(count, item_count):
                at = _INDEX_HEADER.size + 4 * slot_count + _ITEM.size * number
                key_hash, place, _, previous = _ITEM.unpack_from(content, at)
                if key_hash % slot_count == slot:
                    found.add((key_hash, place))
                number = previous if previous < number else 0
    return found


def java_hash(text: str) -> int:
    """String.hashCode."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _compared(what: str, expected: Mapping[Any, Any], there: Mapping[Any, Any]) -> Iterator[str]:
    """Differences of two mappings, the first few of each sort."""
    missing = [name for name in expected if name not in there]
    extra = [name for name in there if name not in expected]
    other = [name for name in expected if name in there and expected[name] != there[name]]
    for how, names in (("lacks", missing), ("has, and the log has not,", extra), ("has another", other)):
        for name in names[:_SHOWN]:
            says = f", {there[name]} for {expected[name]}" if name in there and name in expected else ""
            yield f"{what} {how} {name}{says}"
        if len(names) > _SHOWN:
            yield f"{what} {how} {len(names) - _SHOWN} more"
