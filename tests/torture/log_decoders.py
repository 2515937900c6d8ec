"""Decoders of what lies in the log and beside it: records, walks, queues, index, timer. Where there are two, they must agree."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from storage import commit_log, consume_queue, consume_queue_ext, index_store, index_writer
from storage.delay import timer_log
from storage.errors import CorruptRecordError, StorageError
from storage.files.file_system import LocalFileSystem
from storage.format import checkpoint, compression, record, record_batch, timer
from storage.format import consume_queue as entries_format
from storage.format.index import index_file_size
from storage.format.record import Message
from tests.support.message_builder import make_message
from tests.torture.decoders import Decoder
from tests.torture.samples import Samples

_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (record.MAGIC_V1, record.MAGIC_V2))
_FILE_BYTES = 4096
_SLOTS, _ITEMS = 10, 20
_FILES = LocalFileSystem()


class _Unsynced(LocalFileSystem):
    """A sync takes longer than all the rest."""

    def sync(self, path: str) -> None:
        """Nothing here outlives its round."""


def write_over(path: Path, content: bytes) -> None:
    """Make or change a file; one of the same length keeps its pages."""
    if not path.exists() or path.stat().st_size != len(content):
        path.write_bytes(content)
        return
    with path.open("r+b") as file:
        file.write(content)


def _records(samples: Samples) -> list[bytes]:
    return [record.encode_record(message) for message in samples.messages]


# One record, one by one and in columns


def _read_record(content: bytes, directory: Path) -> bool:
    """The one-record decoder beside the one for many, at every place where one may begin; what is read can be written again."""
    found = 0
    buffer = np.frombuffer(content, np.uint8)
    candidates = record_batch.find_candidates(buffer, 0, len(buffer))
    places = [place for place in range(max(0, len(content) - 7)) if content[place + 4 : place + 8] in _MAGICS]
    assert candidates.tolist() == places, "candidates are where a magic number stands four bytes on"
    positions = [place for place in places if place + record.MINIMUM_RECORD_SIZE <= len(content)]
    if positions:
        records = record_batch.Records(buffer, np.array(positions, np.int64))
        whole = records.is_whole.tolist()
        for position, is_whole in zip(positions, whole, strict=True):
            message = _decoded(content, position)
            assert is_whole == (message is not None), f"at {position} one decoder sees a record, the other none"
            found += is_whole
            if message is not None:
                _write_again(message, content[position : position + message.size_bytes])
        _compare(content, records.take(np.array(whole)))
    record.decode_record(content)
    return bool(found)


def _decoded(content: bytes, position: int) -> Message | None:
    try:
        outcome = record.decode_record(content, position, check_crc=False)
    except CorruptRecordError:
        return None
    return outcome if isinstance(outcome, Message) else None


def _write_again(message: Message, raw: bytes) -> None:
    if "\ufffd" not in message.topic and raw[-2:] != b"\xff\xff":  # a negative length reads as nothing
        again = record.encode_record(message)
        is_negative = not message.raw_properties and raw[-2] >= 0x80
        assert again == raw or is_negative, "a record that was read is written otherwise"


def _compare(content: bytes, records: record_batch.Records) -> None:
    """Columns of whole records beside their one-by-one values."""
    if not len(records):
        return
    messages = [_decoded(content, position) for position in records.positions.tolist()]
    rows = [message for message in messages if message is not None]
    for name in ("queue_id", "queue_offset", "commitlog_offset", "sys_flag", "born_time_ms", "store_time_ms", "body_crc"):
        assert records.column(name).tolist() == [getattr(row, name) for row in rows], name
    assert records.bodies().to_pylist() == [row.body for row in rows]
    assert records.raw_properties().to_pylist() == [row.raw_properties for row in rows]
    assert [topic.decode(errors="replace") for topic in records.topics().to_pylist()] == [row.topic for row in rows]
    assert records.host_texts("born_host").to_pylist() == [record.host_text(row.born_host) for row in rows]
    assert records.message_ids().to_pylist() == [row.msg_id for row in rows]
    crcs = [not row.body or record.body_crc(row.body) == row.body_crc for row in rows]
    assert records.crc_agrees().tolist() == crcs
    try:
        plain: list[bytes] | None = [row.plain_body for row in rows]
    except CorruptRecordError:
        plain = None
    try:
        assert records.plain_bodies().to_pylist() == plain
    except CorruptRecordError:
        assert plain is None


def _read_chain(content: bytes, directory: Path) -> bool:
    """`chain` beside a walk from candidate to candidate; the input gives starts and sizes."""
    numbers = np.frombuffer(content[: len(content) // 2 * 2], np.uint8).reshape(-1, 2).astype(np.int64)
    starts = np.cumsum(numbers[:, 0] % 7 + 1) - 1
    sizes = numbers[:, 1] % 9 + 1
    by_start = dict(zip(starts.tolist(), enumerate(sizes.tolist()), strict=True))
    begin = int(starts[0]) if len(starts) else 0
    expected, position = [], begin
    while position in by_start:
        number, size = by_start[position]
        expected.append(number)
        position += size
    rows, end = record_batch.chain(starts, sizes, begin)
    assert (rows.tolist(), end) == (expected, position)
    return bool(expected)


def _read_compressed(content: bytes, directory: Path) -> bool:
    for kind in (0, 0x100, 0x200, 0x300, 0x400):
        try:
            compression.decompress(content, kind)
        except CorruptRecordError:
            continue
        return True
    return False


def _compressed(samples: Samples) -> list[bytes]:
    return [message.body for message in samples.messages if message.sys_flag & 1] + list(_compression_bombs()[:3])


def _compression_bombs() -> list[bytes]:
    """Bodies of the size that a broker takes, which grow a thousandfold; a frame that lies about what it holds."""
    import zlib

    import lz4.frame
    import zstandard

    zeros = bytes(1 << 16)
    small = [zlib.compress(zeros), lz4.frame.compress(zeros), zstandard.compress(zeros)]
    stream = zlib.compressobj()
    great = b"".join(stream.compress(bytes(1 << 20)) for _ in range(1_024)) + stream.flush()
    return [*small, great, lz4.frame.compress(bytes(1 << 28)), zstandard.compress(bytes(1 << 29))]


# A log of garbage


def _read_log(content: bytes, directory: Path) -> bool:
    """A walk over two files of a log beside one record after the other; a look at every place that the walk gives."""
    folder = directory / "commitlog"
    folder.mkdir(exist_ok=True)
    padded = content[: 2 * _FILE_BYTES].ljust(2 * _FILE_BYTES, b"\0")
    for start in (0, _FILE_BYTES):
        write_over(folder / f"{start:020d}", padded[start : start + _FILE_BYTES])
    with closing(commit_log.CommitLog(_FILES, (str(folder),))) as log, _windows(256 if len(content) % 2 else 1 << 12):
        walk = log.walk(0)
        offsets = [place for window, _ in walk for place in window.tolist()]
        expected = _Walked(padded)
        assert (offsets, walk.end) == (list(expected), expected.end), "the walk beside one record after the other"
        assert (walk.failure is None) == expected.is_free, f"the walk ends with {walk.failure}"
        for place in offsets[:2]:
            try:
                log.message_at(place, 2 * _FILE_BYTES)
            except CorruptRecordError as error:
                assert error.field == "physical offset"  # the walk does not look at it, as Java's does not
    return bool(offsets)


@contextmanager
def _windows(size_bytes: int) -> Iterator[None]:
    """Let walks go in steps that records cross."""
    before, commit_log.WINDOW_BYTES = commit_log.WINDOW_BYTES, size_bytes
    try:
        yield
    finally:
        commit_log.WINDOW_BYTES = before


class _Walked:
    """The places of records that follow each other, by the decoder of one."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.end = 0
        self.is_free = False

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self._content), _FILE_BYTES):
            self.end = start
            file = self._content[start : start + _FILE_BYTES]
            at = 0
            while True:
                try:
                    outcome = record.decode_record(file, at)
                except CorruptRecordError:
                    self.is_free = file[at : at + 8] == bytes(8)
                    return
                if not isinstance(outcome, Message):
                    break
                yield start + at
                at += outcome.size_bytes
                self.end = start + at
            self.is_free = True
            if not isinstance(outcome, record.EndOfFile):
                self.is_free = False
                return


def _logs(samples: Samples) -> list[bytes]:
    """Records one behind the other that name their places, a filler between two files."""
    records = [make_message(body=b"b" * (40 * number), properties={"TAGS": "a"}) for number in range(1, 25)]
    content = bytearray()
    for message in records:
        rest = _FILE_BYTES - len(content) % _FILE_BYTES
        if message.size_bytes + record.BLANK_SIZE > rest:
            content += record.BLANK.pack(rest, record.MAGIC_BLANK).ljust(rest, b"\0")
        if len(content) + message.size_bytes <= 2 * _FILE_BYTES:
            content += record.encode_record(message)
    return [bytes(content[: 2 * _FILE_BYTES]), bytes(content[:_FILE_BYTES]), *(samples.files("commitlog/*", 2 * _FILE_BYTES))]


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
            index_writer.IndexWriter(_Unsynced(), store, lambda: 1)
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
    items = [(number * 11 % 50, 100 * number, number, number - _SLOTS if number > _SLOTS else 0) for number in range(1, 15)]
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
    file_bytes = 20 * timer.UNIT_SIZE + timer.FILLER_SIZE
    (directory / "timerlog").mkdir(exist_ok=True)
    padded = content[: 2 * file_bytes].ljust(2 * file_bytes, b"\0")
    for start in (0, file_bytes):
        write_over(directory / "timerlog" / f"{start:020d}", padded[start : start + file_bytes])
    with closing(timer_log.TimerLog(_FILES, str(directory), file_bytes)) as log:
        runs = list(log.walk(0))
        positions = np.concatenate([np.empty(0, np.int64), *(run.positions for run in runs)])
        assert len(positions) <= 40
        units = [run.units for run in runs]
        assert not units or (log.units_at(positions) == np.concatenate(units)).all()
        for places in ([unit["previous_position"].astype(np.int64) for unit in units]):
            log.units_at(places)
        log.last_unit()
        for run in log.units_between(0, 2 * file_bytes):
            timer.due_times_ms(run.units)
    return len(positions) > 0


def _timer_logs(samples: Samples) -> list[bytes]:
    units = np.zeros(20, timer.UNIT)
    units["size_bytes"], units["magic"], units["previous_position"] = timer.UNIT_SIZE, timer.MAGIC_DEFAULT, -1
    units["write_time_ms"], units["delay_ms"] = 1_700_000_000_000, 1_000 * np.arange(20)
    ours = units.tobytes() + timer.encode_filler(timer.FILLER_SIZE) + units.tobytes()
    return [ours, *samples.files("timerlog/*", 2_200)]


def _read_pages(content: bytes, directory: Path) -> bool:
    """The two checkpoints: any bytes are read, and what was read is written the same."""
    page = checkpoint.encode_checkpoint(checkpoint.decode_checkpoint(content))
    assert len(content) < 40 or page[:40] == content[:40]
    timer_page = timer.encode_timer_checkpoint(timer.decode_timer_checkpoint(content))
    assert timer_page[:56] == content[:56].ljust(56, b"\0")
    timer.is_unit(timer.decode_units(content))
    timer.decode_slots(content[: len(content) // 32 * 32])
    entries_format.decode_entries(content[: len(content) // 20 * 20])
    return len(content) >= 40


LOG_DECODERS: Sequence[Decoder] = (
    Decoder("one record and many", _records, _read_record, (CorruptRecordError,), inputs=2_500),
    Decoder("chains of candidates", lambda samples: [bytes(range(1, 60)), b"\x00\x00" * 40], _read_chain, inputs=500),
    Decoder(
        "compressed bodies",
        _compressed,
        _read_compressed,
        inputs=800,
        bombs=_compression_bombs,
        max_bytes=4 << 20,
        memory_bytes=3 * compression.PLAIN_BODY_LIMIT_BYTES,
    ),
    Decoder("walks over a log", _logs, _read_log, inputs=500),
    Decoder("queue entries over a log", _queues, _read_queue, inputs=300),
    Decoder("queue extensions", lambda samples: samples.files("consumequeue_ext/*/*/*", 300), _read_ext, inputs=300),
    Decoder("index files", _indexes, _read_index, inputs=400),
    Decoder("timer log", _timer_logs, _read_timer_log, inputs=400),
    Decoder("checkpoints and units", lambda samples: samples.files("checkpoint", 120), _read_pages, inputs=500),
)
