"""Decoders of the files that are derived from the log, and of the timer's: queues, extensions, index, units, checkpoints."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from storage.delay import timer_files
from storage.errors import StorageError
from storage.files.local_file_system import LocalFileSystem
from storage.format import consume_queue as entries_format
from storage.format import delay, record
from storage.format.keys import index_file_size
from storage.index import store as index_store
from storage.log import commit_log
from storage.queues import consume_queue
from storage.queues import ext as consume_queue_ext
from tests.support.message_builder import make_message
from tests.support.unsynced_files import UnsyncedFileSystem
from tests.torture.decoders import Decoder
from tests.torture.samples import Samples, write_over

_FILE_BYTES = 4096
_SLOTS, _ITEMS = 10, 20
_FILES = LocalFileSystem()


# Queues


def _read_queue(content: bytes, directory: Path) -> bool:
    """Entries over a sound log: those that count beside a look at each record."""
    folder = directory / "consumequeue"
    folder.mkdir(exist_ok=True)
    write_over(folder / f"{0:020d}", content[:400].ljust(400, b"\0"))
    log_folder = directory / "sound"
    if not log_folder.exists():
        log_folder.mkdir()
        (log_folder / f"{0:020d}").write_bytes(_SOUND_LOG)
    with (
        closing(commit_log.CommitLog(_FILES, (str(log_folder),))) as log,
        closing(consume_queue.ConsumeQueue(_FILES, str(folder), "TopicA", 0)) as queue,
    ):
        entries = queue.entries(0, 20)
        found = consume_queue.valid_entries(entries, "TopicA", 0, log, _SOUND_END).tolist()
        assert found == [_counts(log, *entry) for entry in entries.tolist()]
        end = queue.written_end()
        assert end <= 20
        assert queue.visible_end(end, log, _SOUND_END) <= end
        queue.greatest_end(end)
        assert queue.first_offset_at(_SOUND_END, end) <= end
    return any(found)


def _counts(log: commit_log.CommitLog, commitlog_offset: int, size_bytes: int, tags_code: int) -> bool:
    try:
        message = log.message_at(commitlog_offset, _SOUND_END)
    except StorageError:
        return False
    return (message.topic, message.queue_id, message.size_bytes) == ("TopicA", 0, size_bytes)


def _sound_log() -> tuple[bytes, list[bytes]]:
    content, entries = b"", []
    for number in range(8):
        message = make_message("TopicA", 0, number, len(content), body=bytes(number * 30))
        entries.append(struct.pack(">qiq", len(content), message.size_bytes, number))
        content += record.encode_record(message)
    return content, entries


_content, _ENTRIES = _sound_log()
_SOUND_END, _SOUND_LOG = len(_content), _content.ljust(_FILE_BYTES, b"\0")


def _queues(samples: Samples) -> list[bytes]:
    pre_blank = struct.pack(">qiq", 0, 2**31 - 1, 0)
    return [b"".join(_ENTRIES), pre_blank * 3 + b"".join(_ENTRIES), *samples.files("consumequeue/TopicA/0/*", 400)]


def _read_ext(content: bytes, directory: Path) -> bool:
    folder = directory / "ext"
    folder.mkdir(exist_ok=True)
    write_over(folder / f"{0:020d}", content)
    places = [0, 20, 32, len(content) // 2, max(0, len(content) - 20), max(0, len(content) - 19), len(content), 1 << 40]
    addresses = [place - 2**63 for place in places] + [entries_format.MAX_EXT_ADDRESS]
    with closing(consume_queue_ext.ConsumeQueueExt(_FILES, str(folder))) as ext:
        units = [ext.unit(address) for address in addresses]
        codes = ext.tags_codes(np.array([*addresses, 7, 0], np.int64)).tolist()
    assert codes[-2:] == [7, 0]
    for unit, code in zip(units, codes, strict=False):
        assert unit is None or unit.tags_code == code
    return any(unit is not None for unit in units)


# Index


def _read_index(content: bytes, directory: Path) -> bool:
    """Look-ups end, and give no item twice; a writer that goes on with the file mends it or leaves it, and look-ups end again."""
    size = index_file_size(_SLOTS, _ITEMS)
    (directory / "index").mkdir(exist_ok=True)
    path = directory / "index" / "20261121000000000"
    write_over(path, content[:size].ljust(size, b"\0"))
    with closing(index_store.IndexStore(_FILES, str(directory), _SLOTS, _ITEMS)) as store:
        (file,) = store.files()
        reachable = int(file.reachable_items().sum())
        hits = _look_up(file)
        if file.header().index_count <= _ITEMS and content[-1:] > b"\x80":
            index_store.IndexWriter(UnsyncedFileSystem(), store, lambda: 1)
            _look_up(file)
    return bool(hits and reachable)


def _look_up(file: index_store.IndexFile) -> int:
    count = 0
    for key_hash in {int(item["key_hash"]) for item in file.items()} | {0, 7, 2**31 - 1}:
        for begin, end in ((0, 2**63 - 1), (1_700_000_000_000, 1_700_000_001_000)):
            hits = sum(1 for _ in file.lookup(key_hash, begin, end))
            assert hits < _ITEMS, "a look-up goes round"
            count += hits
    return count


def _indexes(samples: Samples) -> list[bytes]:
    """Files of the broker are as great as its geometry; one of ours, where chains are short."""
    items = [
        (number * 11 % 50, 100 * number, number, number - _SLOTS if number > _SLOTS else 0) for number in range(1, 15)
    ]
    slots = [0] * _SLOTS
    for number, (key_hash, *_) in enumerate(items, 1):
        slots[key_hash % _SLOTS] = number
    header = struct.pack(">qqqqii", 1_700_000_000_000, 1_700_000_014_000, 100, 1400, _SLOTS, 15)
    body = b"".join(struct.pack(">iqii", *item) for item in [(0, 0, 0, 0), *items])
    whole = (header + struct.pack(f">{_SLOTS}i", *slots) + body).ljust(index_file_size(_SLOTS, _ITEMS), b"\0")
    return [whole, whole[:-1] + b"\xff"]


# The timer


def _read_timer_log(content: bytes, directory: Path) -> bool:
    """Units over two files: those that a walk gives are found at their places, and walks end."""
    file_bytes = 20 * delay.UNIT_SIZE + delay.FILLER_SIZE
    (directory / "timerlog").mkdir(exist_ok=True)
    padded = content[: 2 * file_bytes].ljust(2 * file_bytes, b"\0")
    for start in (0, file_bytes):
        write_over(directory / "timerlog" / f"{start:020d}", padded[start : start + file_bytes])
    with closing(timer_files.TimerLog(_FILES, str(directory), file_bytes)) as log:
        runs = list(log.walk(0))
        positions = np.concatenate([np.empty(0, np.int64), *(run.positions for run in runs)])
        assert len(positions) <= 40
        units = [run.units for run in runs]
        assert not units or (log.units_at(positions) == np.concatenate(units)).all()
        for places in [unit["previous_position"].astype(np.int64) for unit in units]:
            log.units_at(places)
        log.last_unit()
        for run in log.units_between(0, 2 * file_bytes):
            delay.due_times_ms(run.units)
    return len(positions) > 0


def _timer_logs(samples: Samples) -> list[bytes]:
    units = np.zeros(20, delay.UNIT)
    units["size_bytes"], units["magic"], units["previous_position"] = delay.UNIT_SIZE, delay.MAGIC_DEFAULT, -1
    units["write_time_ms"], units["delay_ms"] = 1_700_000_000_000, 1_000 * np.arange(20)
    ours = units.tobytes() + delay.encode_filler(delay.FILLER_SIZE) + units.tobytes()
    return [ours, *samples.files("timerlog/*", 2_200)]


def _read_pages(content: bytes, directory: Path) -> bool:
    """The two checkpoints: any bytes are read, and what was read is written the same."""
    page = commit_log.encode_checkpoint(commit_log.decode_checkpoint(content))
    assert len(content) < 48 or page[:48] == content[:48]
    timer_page = delay.encode_timer_checkpoint(delay.decode_timer_checkpoint(content))
    assert timer_page[:56] == content[:56].ljust(56, b"\0")
    delay.is_unit(delay.decode_units(content))
    delay.decode_slots(content[: len(content) // 32 * 32])
    entries_format.decode_entries(content[: len(content) // 20 * 20])
    return len(content) >= 48


DECODERS: Sequence[Decoder] = (
    Decoder("queue entries over a log", _queues, _read_queue, inputs=300),
    Decoder("queue extensions", lambda samples: samples.files("consumequeue_ext/*/*/*", 300), _read_ext, inputs=300),
    Decoder("index files", _indexes, _read_index, inputs=400),
    Decoder("timer log", _timer_logs, _read_timer_log, inputs=400),
    Decoder("checkpoints and units", lambda samples: samples.files("checkpoint", 120), _read_pages, inputs=500),
)
