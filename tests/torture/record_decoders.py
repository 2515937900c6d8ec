"""Decoders of the log: records one by one and many at once, walks. What comes in two speeds must give the same twice."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path

import lz4.frame
import numpy as np
import zstandard

from storage.errors import CorruptRecordError
from storage.files.local_file_system import LocalFileSystem
from storage.format import arrays, record, record_batch
from storage.format.record import Message
from storage.log import commit_log
from tests.support.message_builder import make_message
from tests.torture.decoders import Decoder
from tests.torture.samples import Samples, write_over

_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (record.MAGIC_V1, record.MAGIC_V2))
_FILE_BYTES = 4096
_FILES = LocalFileSystem()


def _records(samples: Samples) -> list[bytes]:
    return [record.encode_record(message) for message in samples.messages]


# One record, one by one and in columns


def _read_record(content: bytes, directory: Path) -> bool:
    """The one-record decoder beside the one for many, at every place where one may begin; what is read can be written again."""
    found = 0
    buffer = np.frombuffer(content, np.uint8)
    candidates = record.find_candidates(buffer, 0, len(buffer))
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
    for name in (
        "queue_id",
        "queue_offset",
        "commitlog_offset",
        "sys_flag",
        "born_time_ms",
        "store_time_ms",
        "body_crc",
    ):
        assert records.column(name).tolist() == [getattr(row, name) for row in rows], name
    assert records.bodies().to_pylist() == [row.body for row in rows]
    assert records.raw_properties().to_pylist() == [row.raw_properties for row in rows]
    assert [topic.decode(errors="replace") for topic in records.topics().to_pylist()] == [row.topic for row in rows]
    assert records.host_texts("born_host").to_pylist() == [record.host_text(row.born_host) for row in rows]
    assert records.message_ids().to_pylist() == [row.msg_id for row in rows]
    crcs = [not row.body or arrays.body_crc(row.body) == row.body_crc for row in rows]
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
    rows, end = record.chain(starts, sizes, begin)
    assert (rows.tolist(), end) == (expected, position)
    return bool(expected)


def _read_compressed(content: bytes, directory: Path) -> bool:
    for kind in (0, 0x100, 0x200, 0x300, 0x400):
        try:
            record.decompress(content, kind)
        except CorruptRecordError:
            continue
        return True
    return False


def _compressed(samples: Samples) -> list[bytes]:
    return [message.body for message in samples.messages if message.sys_flag & 1] + list(_compression_bombs()[:3])


@cache
def _compression_bombs() -> tuple[bytes, ...]:
    """Bodies that grow a thousandfold: three to a little, three to more than any may."""
    compressors = zlib.compress, lz4.frame.compress, zstandard.compress
    zeros = bytes(1 << 12), bytes(record.PLAIN_BODY_LIMIT_BYTES + (8 << 20))
    return tuple(compress(plain) for plain in zeros for compress in compressors)


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
            with suppress(
                CorruptRecordError
            ):  # the walk does not look whether a record names its place, as Java's does not
                assert log.message_at(place, 2 * _FILE_BYTES).commitlog_offset == place
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
    return [
        bytes(content[: 2 * _FILE_BYTES]),
        bytes(content[:_FILE_BYTES]),
        *(samples.files("commitlog/*", 2 * _FILE_BYTES)),
    ]


DECODERS: Sequence[Decoder] = (
    Decoder("one record and many", _records, _read_record, (CorruptRecordError,), inputs=2_500),
    Decoder("chains of candidates", lambda samples: [bytes(range(1, 60)), b"\x00\x00" * 40], _read_chain, inputs=500),
    Decoder(
        "compressed bodies",
        _compressed,
        _read_compressed,
        inputs=800,
        bombs=_compression_bombs,
        max_bytes=4 << 20,
        memory_bytes=3 * record.PLAIN_BODY_LIMIT_BYTES,
    ),
    Decoder("walks over a log", _logs, _read_log, inputs=500),
)
