"""Appending to the log: the broker's own files come out of the broker's records; nothing is written over what somebody else changed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from storage.errors import MessageIllegalError, StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem
from storage.format.record import BLANK_SIZE, Message, encode_record
from storage.format.record_block import BlockColumns
from storage.log import writer as commit_log_writer
from storage.log.commit_log import CommitLog
from storage.log.writer import CommitLogWriter, Placement
from tests.support.fixture_stores import Fixture
from tests.support.message_builder import make_message

FILES = LocalFileSystem()
FILE_SIZE = 4096
NOW_MS = 1_700_000_000_000
NO_KEYS = np.empty(0, np.int32)


class Run(NamedTuple):
    """Records back to back, whatever stands where a stamp belongs."""

    columns: BlockColumns
    data: bytes

    def read(self, start: int, end: int, into: np.ndarray) -> None:
        into[:] = np.frombuffer(self.data, np.uint8)[start:end]


def run_of(records: list[bytes], queues: list[tuple[str, int]]) -> Run:
    distinct = tuple(dict.fromkeys(queues))
    codes = np.array([distinct.index(name) for name in queues], np.int32)
    sizes = np.array([len(record) for record in records], np.int32)
    zeros = np.zeros(len(records), np.int64)
    return Run(BlockColumns(distinct, codes, sizes, zeros, zeros.astype(np.int32), NO_KEYS), b"".join(records))


def records_of(sizes: list[int]) -> Run:
    """Records of so many bytes each, all of one queue."""
    made = [
        encode_record(make_message("T", body=bytes([65 + row % 26]) * (size - 92))) for row, size in enumerate(sizes)
    ]
    return run_of(made, [("T", 0)] * len(made))


def writer_in(
    root: Path,
    *,
    end: int = 0,
    files: LocalFileSystem = FILES,
    directories: tuple[str, ...] = ("commitlog",),
    file_size: int = FILE_SIZE,
) -> CommitLogWriter:
    paths = tuple(f"{root}/{name}" for name in directories)
    return CommitLogWriter(files, CommitLog(files, paths, file_size), end, file_size, paths)


def append(writer: CommitLogWriter, *sizes: int) -> Placement:
    return writer.append(records_of(list(sizes)), np.zeros(1, np.int64), NOW_MS)


def walk(root: Path, start: int = 0, *directories: str) -> Iterator[Message]:
    log = CommitLog(FILES, tuple(f"{root}/{name}" for name in directories or ("commitlog",)))
    for offsets, _ in log.walk(start):
        for place in offsets.tolist():
            yield log.message_at(place, 2**62, check_crc=True)


@pytest.mark.parametrize("slice_bytes", [4 << 20, 3_000])
def test_the_brokers_files_come_out_of_its_records(
    slice_bytes: int, pristine_store: Callable[[str], Fixture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte: queue offsets, places and times, which are destroyed before, and the fillers of all files."""
    monkeypatch.setattr(commit_log_writer, "SLICE_BYTES", slice_bytes)
    fixture = pristine_store("roll")
    theirs = sorted((fixture.root / "commitlog").iterdir())
    size = theirs[0].stat().st_size
    log = CommitLog(FILES, (f"{fixture.root}/commitlog",))
    messages = list(walk(fixture.root))
    writer = writer_in(tmp_path, file_size=size)
    next_offsets: dict[tuple[str, int], int] = {}
    for store_time, group in groupby(messages, lambda message: message.store_time_ms):
        records, queues = [], []
        for message in group:
            record = np.frombuffer(log.bytes_at(message.commitlog_offset, message.size_bytes), np.uint8).copy()
            record[20:36] = record[56:64] = 0xEE
            records.append(record.tobytes())
            queues.append((message.topic, message.queue_id))
        run = run_of(records, queues)
        begin = np.array([next_offsets.get(name, 0) for name in run.columns.queues], np.int64)
        placement = writer.append(run, begin, store_time)
        next_offsets.update(zip(run.columns.queues, placement.next_queue_offsets.tolist(), strict=True))
    assert writer.end == messages[-1].commitlog_offset + messages[-1].size_bytes
    ours = sorted((tmp_path / "commitlog").iterdir())
    assert len(ours) >= 4
    for our_file, their_file in zip(ours, theirs, strict=False):
        assert our_file.name == their_file.name
        assert our_file.read_bytes() == their_file.read_bytes()
    assert not any(any(file.read_bytes()) for file in theirs[len(ours) :]), "at most one more, prepared and empty"


def test_files_appear_at_their_full_length_and_sparse(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, file_size=1 << 30)
    append(writer, 200)
    (file,) = (tmp_path / "commitlog").iterdir()
    assert file.stat().st_size == 1 << 30
    assert file.stat().st_blocks * 512 < 1 << 20


def test_a_log_goes_on_where_it_ended_whatever_its_first_file(tmp_path: Path) -> None:
    """After retention the first file does not begin at 0; the numbers go on by file sizes from it."""
    first = 7 * FILE_SIZE
    FILES.create_file(f"{tmp_path}/commitlog/{first:020d}", FILE_SIZE)
    writer = writer_in(tmp_path, end=first)
    placement = append(writer, 3_000, 1_000, 2_000, 2_000)
    assert placement.commitlog_offsets.tolist() == [first, first + 3_000, first + FILE_SIZE, first + FILE_SIZE + 2_000]
    names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    assert names == [f"{first:020d}", f"{first + FILE_SIZE:020d}"]
    assert [message.commitlog_offset for message in walk(tmp_path, first)] == placement.commitlog_offsets.tolist()


def test_a_second_writer_goes_on_in_the_middle_of_a_file(tmp_path: Path) -> None:
    first = writer_in(tmp_path)
    append(first, 500, 700)
    first.close()
    second = writer_in(tmp_path, end=1_200)
    append(second, 2_000, 900)
    assert [message.commitlog_offset for message in walk(tmp_path)] == [0, 500, 1_200, FILE_SIZE]
    filler = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[3_200:]
    assert filler == (FILE_SIZE - 3_200).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(FILE_SIZE - 3_208)


def test_a_log_that_ends_at_a_files_end_goes_on_in_a_new_file(tmp_path: Path) -> None:
    first = writer_in(tmp_path)
    append(first, 2_000)
    first.close()
    writer = writer_in(tmp_path, end=FILE_SIZE)
    assert append(writer, 100).commitlog_offsets.tolist() == [FILE_SIZE]


def test_files_are_spread_over_directories_by_their_number(tmp_path: Path) -> None:
    """Java: MultiPathMappedFileQueue.tryCreateMappedFile, paths[createOffset / mappedFileSize % paths.length]."""
    directories = ("disk0", "disk1", "disk2")
    writer = writer_in(tmp_path, directories=directories)
    append(writer, *[4_000] * 5)
    placed = {path.name: path.parent.name for path in tmp_path.glob("disk*/*")}
    assert placed == {f"{number * FILE_SIZE:020d}": f"disk{number % 3}" for number in range(5)}
    writer.close()
    fewer = writer_in(tmp_path, end=4 * FILE_SIZE + 4_000, directories=directories)
    append(fewer, 4_000)
    assert (tmp_path / "disk2" / f"{5 * FILE_SIZE:020d}").exists()
    assert len(list(walk(tmp_path, 0, *directories))) == 6


def test_a_file_is_gone_on_with_in_the_directory_where_it_lies(tmp_path: Path) -> None:
    """Where the list of directories has changed since, a file's number no longer says where it lies."""
    FILES.create_file(f"{tmp_path}/disk1/{0:020d}", FILE_SIZE)
    FILES.make_directories(f"{tmp_path}/disk0")
    append(writer_in(tmp_path, directories=("disk0", "disk1")), 500)
    assert [path.parent.name for path in tmp_path.glob("disk*/*")] == ["disk1"]


def test_a_record_too_large_for_a_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    with pytest.raises(MessageIllegalError):
        append(writer, 100, FILE_SIZE - 7)
    assert not (tmp_path / "commitlog").exists()


def replace_file(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    os.replace(path.with_suffix(".copy"), path)


def cut_file(path: Path) -> None:
    os.truncate(path, 2_048)


@pytest.mark.parametrize("change", [Path.unlink, replace_file, cut_file])
def test_a_last_file_that_somebody_else_changed_is_not_written_to(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    """A broker that is started on the store recovers, and may delete files, before it finds the lock held."""
    writer = writer_in(tmp_path)
    append(writer, 200)
    path = tmp_path / "commitlog" / f"{0:020d}"
    change(path)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(StoreNotWritableError, match=f"{path}.*another process"):
        append(writer, 200)
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_file_that_a_broker_prepared_ahead_is_taken(tmp_path: Path) -> None:
    FILES.create_file(f"{tmp_path}/commitlog/{0:020d}", FILE_SIZE)
    FILES.create_file(f"{tmp_path}/commitlog/{FILE_SIZE:020d}", FILE_SIZE)
    writer = writer_in(tmp_path)
    append(writer, 3_000, 3_000, 3_000)
    assert [message.commitlog_offset for message in walk(tmp_path)] == [0, FILE_SIZE, 2 * FILE_SIZE]


class FullDisk(LocalFileSystem):
    """Has room for so many reserved bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.reserved: list[tuple[str, int, int]] = []

    def reserve(self, path: str, position: int, length: int) -> None:
        if length > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= length
        self.reserved.append((Path(path).name, position, length))
        super().reserve(path, position, length)


def test_room_is_reserved_in_every_file_that_is_needed(tmp_path: Path) -> None:
    files = FullDisk(10**9)
    writer = writer_in(tmp_path, files=files)
    append(writer, 1_000)
    writer.reserve(2 * FILE_SIZE, 100)
    assert files.reserved == [
        (f"{0:020d}", 1_000, FILE_SIZE - 1_000),
        (f"{FILE_SIZE:020d}", 0, FILE_SIZE),
        (f"{2 * FILE_SIZE:020d}", 0, 1_000 + 2 * (100 + BLANK_SIZE)),
    ]
    assert sorted(path.stat().st_size for path in (tmp_path / "commitlog").iterdir()) == [FILE_SIZE] * 3
    assert writer.end == 1_000
    assert len(list(walk(tmp_path))) == 1, "what is reserved reads as free space"
    append(writer, 3_000, 2_000, 3_000)
    assert len(list(walk(tmp_path))) == 4


@pytest.mark.parametrize("room", [10**9, 6_000])
def test_of_large_files_room_is_reserved_in_steps_where_there_is_so_much(room: int, tmp_path: Path) -> None:
    size = 4 * commit_log_writer.RESERVE_BYTES
    files = FullDisk(room)
    writer = writer_in(tmp_path, files=files, file_size=size)
    for _ in range(5):
        writer.reserve(1_000, 1_000)
        append(writer, 1_000)
    one = [(f"{0:020d}", 0, commit_log_writer.RESERVE_BYTES)]
    each = [(f"{0:020d}", 1_000 * number, 1_000) for number in range(5)]
    assert files.reserved == (one if room == 10**9 else each)


def test_room_is_reserved_for_what_a_rolled_file_leaves_unused(tmp_path: Path) -> None:
    files = FullDisk(10**9)
    writer = writer_in(tmp_path, files=files)
    append(writer, 2_500)
    writer.reserve(3_000, 3_000)
    append(writer, 3_000)
    assert writer.end == FILE_SIZE + 3_000
    name, start, length = files.reserved[-1]
    assert (name, start) == (f"{FILE_SIZE:020d}", 0)
    assert length >= 3_000


@pytest.mark.parametrize("room", [0, FILE_SIZE, 2 * FILE_SIZE])
def test_a_full_disk_is_told_before_anything_is_written(room: int, tmp_path: Path) -> None:
    writer = writer_in(tmp_path, files=FullDisk(room))
    append(writer, 1_000)
    before = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    with pytest.raises(StoreNotWritableError, match=f"no room for {3 * FILE_SIZE} more bytes.*No space left"):
        writer.reserve(3 * FILE_SIZE, 100)
    assert (tmp_path / "commitlog" / f"{0:020d}").read_bytes() == before
    assert writer.end == 1_000
    append(writer, 1_000)
    assert [message.commitlog_offset for message in walk(tmp_path)] == [0, 1_000]


class Watched(LocalFileSystem):
    """Notes which paths were synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync(self, path: str) -> None:
        self.synced.append(path)
        super().sync(path)

    def open_for_writing(self, path: str):  # type: ignore[no-untyped-def]
        writer = super().open_for_writing(path)
        sync = writer.sync
        writer.sync = lambda: (self.synced.append(path), sync())[1]  # type: ignore[method-assign]
        return writer


def sync(writer: CommitLogWriter) -> None:
    found = writer.begin_sync()
    found.run()
    writer.end_sync(found, is_done=True)


def test_a_sync_reaches_every_file_written(tmp_path: Path) -> None:
    files = Watched()
    writer = writer_in(tmp_path, files=files)
    append(writer, 3_000, 3_000, 3_000)
    names = {f"{tmp_path}/commitlog/{number * FILE_SIZE:020d}" for number in range(3)}
    assert writer.unsynced == names
    files.synced.clear()
    sync(writer)
    assert set(files.synced) == names
    files.synced.clear()
    sync(writer)
    assert files.synced == []
    append(writer, 100)
    sync(writer)
    assert files.synced == [max(names)]


def test_a_new_file_is_durable_before_a_later_one_is_made(tmp_path: Path) -> None:
    """Else a power loss could take a file and leave the one behind it: a gap in the log."""
    files = Watched()
    writer = writer_in(tmp_path, files=files)
    writer.reserve(3_000, 100)
    files.synced.clear()
    append(writer, 3_000, 3_000, 3_000)
    log = f"{tmp_path}/commitlog"
    assert files.synced == [path for number in (1, 2) for path in (f"{log}/{number * FILE_SIZE:020d}", log)]


def test_records_are_read_back_as_they_were_given(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    run = run_of(
        [encode_record(make_message("A", 1, body=b"x")), encode_record(make_message("B", 0, body=b"y" * 50))] * 30,
        [("A", 1), ("B", 0)] * 30,
    )
    placement = writer.append(run, np.array([10, 2**40]), NOW_MS)
    found = list(walk(tmp_path))
    assert [(message.topic, message.queue_offset) for message in found] == [
        (topic, base + row) for row in range(30) for topic, base in (("A", 10), ("B", 2**40))
    ]
    assert {message.store_time_ms for message in found} == {NOW_MS}
    assert [message.commitlog_offset for message in found] == placement.commitlog_offsets.tolist()
    assert placement.next_queue_offsets.tolist() == [40, 2**40 + 30]
