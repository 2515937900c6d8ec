"""The log for reading: which files it has, records at places, and a walk that stops where the records do."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage.errors import CorruptRecordError, OffsetOutOfRangeError, StoreRefusedError
from storage.files.file_system import LocalFile, Scratch
from storage.files.local_file_system import LocalFileSystem
from storage.format.record import encode_record
from storage.log.commit_log import CommitLog
from tests.oracle.damage import files, walk
from tests.support.fixture_stores import FIXTURE_NAMES, Fixture, golden_lines
from tests.support.message_builder import StoreBuilder, make_message


def log_of(*directories: Path, file_size_bytes: int | None = None) -> CommitLog:
    return CommitLog(LocalFileSystem(), tuple(str(directory) for directory in directories), file_size_bytes)


def walked(log: CommitLog, start: int = 0, *, check_crc: bool = True) -> tuple[list[int], int, str | None]:
    """Offsets of the records that a walk finds, its end, and the field that was wrong there."""
    steps = log.walk(start, check_crc=check_crc)
    offsets = [offset for part, _ in steps for offset in part.tolist()]
    return offsets, steps.end, steps.failure.field if steps.failure else None


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_a_walk_finds_the_records_that_apache_finds(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    log = log_of(fixture.root / "commitlog")
    (summary,) = golden_lines(fixture.golden, "summary")
    offsets, end, _ = walked(log, log.minimum)
    assert end == summary["rawEnd"]
    assert len(offsets) == summary["rawMessages"]
    if name not in ("recovered", "revived"):  # intact records stand behind the end there
        assert offsets == [record.commitlog_offset for file in files(fixture.root) for record in walk(file)]


def test_a_walk_may_begin_at_any_record(pristine_store: Callable[[str], Fixture]) -> None:
    log = log_of(pristine_store("roll").root / "commitlog")
    everything, end, _ = walked(log, log.minimum)
    for number in range(0, len(everything), 37):
        assert walked(log, everything[number]) == (everything[number:], end, None)


def test_windows_end_between_records(pristine_store: Callable[[str], Fixture], monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(pristine_store("ipv6").root / "commitlog")
    expected = walked(log, log.minimum)
    for size in (91, 500, 5_000):
        monkeypatch.setattr("storage.log.commit_log.WINDOW_BYTES", size)
        assert walked(log, log.minimum) == expected


@pytest.fixture
def store(tmp_path: Path) -> StoreBuilder:
    return StoreBuilder(tmp_path)


def test_a_walk_goes_over_fillers_and_stops_at_free_space(store: StoreBuilder) -> None:
    messages = [store.put(body=bytes(700)) for _ in range(20)]
    assert len(list((store.root / "commitlog").iterdir())) > 3
    log = log_of(store.root / "commitlog")
    assert walked(log) == ([message.commitlog_offset for message in messages], store.end, None)


def test_a_file_filled_to_its_last_eight_bytes(store: StoreBuilder) -> None:
    first = store.put(body=bytes(4096 - 8 - make_message(body=b"").size_bytes))
    assert store.end == 4088
    log = log_of(store.root / "commitlog")
    assert walked(log) == ([0], 4088, None)
    second = store.put()
    log.list_files()
    assert walked(log, first.size_bytes) == ([second.commitlog_offset], store.end, None)
    assert second.commitlog_offset == 4096


def test_a_filler_that_ends_the_last_file_is_free_space_as_with_java(store: StoreBuilder) -> None:
    store.put()
    end = store.end
    store.write_log(end, (4096 - end).to_bytes(4, "big") + bytes.fromhex("cbd43194"))
    assert walked(log_of(store.root / "commitlog")) == ([0], end, None)


def test_an_empty_file_ahead_is_free_space(store: StoreBuilder) -> None:
    store.put(body=bytes(3900))
    store.next_message(body=bytes(700))  # rolls
    assert walked(log_of(store.root / "commitlog")) == ([0], 4096, None)


@pytest.mark.parametrize(
    ("place", "damage", "field"),
    [
        (4, b"\0", "magic"),
        (4, b"\0\0\0\0", "magic"),
        (0, b"\0\0\0\x01", "size"),
        (0, b"\x00\x10\x00\x00", "size"),
        (0, b"\xff\xff\xff\xff", "size"),
        (84, b"\xff\xff\xff\xff", "body length"),
        (90, b"\x99", "body CRC"),
        (92, b"\x00", "properties length"),
    ],
)
def test_a_walk_stops_at_the_first_bad_record_and_says_why(
    store: StoreBuilder, place: int, damage: bytes, field: str
) -> None:
    messages = [store.put() for _ in range(9)]
    store.write_log(messages[5].commitlog_offset + place, damage)
    log = log_of(store.root / "commitlog")
    expected = [message.commitlog_offset for message in messages[:5]], messages[5].commitlog_offset, field
    assert walked(log) == expected
    assert walked(log, messages[4].commitlog_offset)[1:] == expected[1:]


@pytest.mark.parametrize("size", [120, 60_000, 2_000_000, -1])
@pytest.mark.parametrize("magic", ["daa320a7", "12345678"])
def test_a_bad_record_is_read_no_further_than_it_says_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, magic: str
) -> None:
    store = StoreBuilder(tmp_path, log_file_size=1 << 20)
    store.write_log(0, size.to_bytes(4, "big", signed=True) + bytes.fromhex(magic) + b"\xff" * 80)
    lengths = []

    def counted(file: LocalFile, position: int, length: int) -> np.ndarray:
        lengths.append(min(length, file.size_bytes - position))
        return view(file, position, length)

    view = LocalFile.view
    monkeypatch.setattr("storage.log.commit_log.WINDOW_BYTES", 1_000)
    monkeypatch.setattr(LocalFile, "view", counted)
    assert walked(log_of(tmp_path / "commitlog"))[1] == 0
    assert max(lengths) <= max(16 << 10, size if size < 1 << 20 else 0)


def test_a_body_is_taken_as_it_is_without_the_crc(store: StoreBuilder) -> None:
    messages = [store.put() for _ in range(3)]
    store.write_log(messages[1].commitlog_offset + 90, b"\x99")
    log = log_of(store.root / "commitlog")
    assert len(walked(log, check_crc=False)[0]) == 3
    assert len(walked(log, check_crc=True)[0]) == 1


def test_a_record_cut_short_at_any_byte_ends_the_walk(store: StoreBuilder) -> None:
    for _ in range(3):
        store.put()
    last = store.put(properties={"KEYS": "k"})
    record = encode_record(last)
    log = log_of(store.root / "commitlog")
    for length in range(len(record)):
        store.write_log(last.commitlog_offset, record[:length].ljust(len(record), b"\0"))
        offsets, end, _ = walked(log)
        protected = len(record) - len(last.raw_properties)
        if length < protected:
            assert end == last.commitlog_offset
            assert len(offsets) == 3
        else:  # only properties are lost, which nothing protects
            assert end == store.end


def test_records_inside_bodies_are_not_walked_over(store: StoreBuilder) -> None:
    inner = encode_record(make_message())
    messages = [store.put(body=inner * 4) for _ in range(12)]
    log = log_of(store.root / "commitlog")
    assert walked(log)[0] == [message.commitlog_offset for message in messages]
    # A walk is told where to begin; inside a body it finds the records that stand there and no more.
    assert len(walked(log, messages[0].commitlog_offset + 88)[0]) == 4


def test_a_message_is_found_at_its_place_and_nowhere_else(store: StoreBuilder) -> None:
    messages = [store.put(queue_id=number % 3, body=bytes(300)) for number in range(30)]
    log = log_of(store.root / "commitlog")
    for message in messages:
        assert log.message_at(message.commitlog_offset, store.end) == message
    starts = {message.commitlog_offset for message in messages}
    for place in range(-3, store.end + 200):
        if place not in starts:
            with pytest.raises((CorruptRecordError, OffsetOutOfRangeError)):
                log.message_at(place, store.end)


def test_a_large_record_is_read_whole(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path, log_file_size=1 << 20)
    message = store.put(body=bytes(range(256)) * 1_000)
    assert log_of(tmp_path / "commitlog").message_at(0, store.end) == message


def test_a_record_that_ends_behind_the_validated_end_is_not_there_yet(store: StoreBuilder) -> None:
    message = store.put()
    log = log_of(store.root / "commitlog")
    for end in range(store.end):
        with pytest.raises(OffsetOutOfRangeError):
            log.message_at(0, end)
    assert log.message_at(0, store.end) == message


def test_a_record_that_names_another_place_is_corrupt(store: StoreBuilder) -> None:
    store.write_log(0, encode_record(make_message(commitlog_offset=7)))
    with pytest.raises(CorruptRecordError) as raised:
        log_of(store.root / "commitlog").message_at(0, 4096)
    assert (raised.value.field, raised.value.expected, raised.value.found) == ("physical offset", 0, 7)


def test_a_log_that_lost_its_first_files_begins_later(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path, end=3 * 4096)
    message = store.put()
    log = log_of(tmp_path / "commitlog")
    assert (log.minimum, log.message_at(message.commitlog_offset, store.end)) == (3 * 4096, message)
    with pytest.raises(OffsetOutOfRangeError) as raised:
        log.message_at(0, store.end)
    assert raised.value.minimum == 3 * 4096


def test_several_directories_hold_one_log(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path)
    messages = [store.put(body=bytes(700)) for _ in range(12)]
    other = tmp_path / "elsewhere"
    other.mkdir()
    for path in sorted((tmp_path / "commitlog").iterdir())[::2]:
        path.rename(other / path.name)
    log = log_of(tmp_path / "commitlog", other)
    assert walked(log)[0] == [message.commitlog_offset for message in messages]


def test_batches_of_records_come_file_by_file(store: StoreBuilder) -> None:
    messages = [store.put(body=bytes(500)) for _ in range(20)]
    offsets = np.array([message.commitlog_offset for message in messages])
    sizes = np.array([message.size_bytes for message in messages])
    log = log_of(store.root / "commitlog")
    found: list[int] = []
    for part, records in log.records(offsets, sizes):
        assert records.is_whole.all()
        assert records.column("commitlog_offset").tolist() == offsets[part].tolist()
        assert len({offset // 4096 for offset in offsets[part].tolist()}) == 1
        found += offsets[part].tolist()
    assert found == offsets.tolist()


def test_places_outside_the_files_are_left_out(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path, end=4096)
    message = store.put()
    offsets = np.array([0, 100, 4095, message.commitlog_offset, 2 * 4096 - 90, 2 * 4096, 2**62, 2**63 - 5])
    log = log_of(tmp_path / "commitlog")
    found = [offsets[part].tolist() for part, _ in log.records(offsets, np.full(len(offsets), 125))]
    assert found == [[message.commitlog_offset]]


@pytest.mark.parametrize("read", ["message_at", "bytes_at", "records", "walk"])
def test_a_file_deleted_meanwhile_is_out_of_range(store: StoreBuilder, read: str) -> None:
    messages = [store.put(body=bytes(700)) for _ in range(12)]
    log = log_of(store.root / "commitlog")
    min((store.root / "commitlog").iterdir()).unlink()
    reads: dict[str, Callable[[], object]] = {
        "message_at": lambda: log.message_at(0, store.end),
        "bytes_at": lambda: log.bytes_at(0, 10),
        "records": lambda: list(log.records(np.array([0]), np.array([messages[0].size_bytes]))),
        "walk": lambda: list(log.walk(0)),
    }
    with pytest.raises(OffsetOutOfRangeError) as raised:
        reads[read]()
    assert raised.value.minimum == 4096


def test_a_file_that_is_open_stays_readable_when_it_is_deleted(store: StoreBuilder) -> None:
    message = store.put()
    log = log_of(store.root / "commitlog")
    log.message_at(0, store.end)
    (store.root / "commitlog" / f"{0:020d}").unlink()
    assert log.message_at(0, store.end) == message


def test_a_file_that_is_gone_when_files_are_listed_is_let_go_of(store: StoreBuilder) -> None:
    messages = [store.put(body=bytes(700)) for _ in range(12)]
    log = log_of(store.root / "commitlog")
    assert len(walked(log)[0]) == 12
    first, second, *_ = log.files
    let_go, held, kept = weakref.ref(log.open_file(first)), log.open_file(second), log.open_file(log.files[2])
    os.unlink(first.path)
    os.unlink(second.path)
    assert let_go() is not None
    log.list_files()
    assert let_go() is None
    assert log.open_file(log.files[0]) is kept
    there = next(message for message in messages if message.commitlog_offset == second.start)
    buffer, (at,) = held.gather(np.array([0]), np.array([there.size_bytes]), Scratch())
    assert bytes(buffer[at : at + there.size_bytes]) == encode_record(there)


def test_a_walk_misses_nothing_where_a_file_expires_and_files_are_listed_meanwhile(store: StoreBuilder) -> None:
    messages = [store.put(body=bytes(700)) for _ in range(16)]
    log = log_of(store.root / "commitlog")
    found = []
    for offsets, records in log.walk(0):
        if not found:
            os.unlink(log.files[0].path)
            log.list_files()
        assert records.crc_agrees().all()
        found += offsets.tolist()
    assert found == [message.commitlog_offset for message in messages]


@pytest.mark.parametrize("name", ["0", "x" * 20, "0" * 19 + "x", "00000000000000000000.tmp", "²" * 20])
def test_a_foreign_file_is_refused_as_java_refuses_it(store: StoreBuilder, name: str) -> None:
    (store.root / "commitlog" / name).write_bytes(bytes(4096))
    with pytest.raises(StoreRefusedError, match="not a commit log file"):
        log_of(store.root / "commitlog")


def test_files_of_different_lengths_are_refused(store: StoreBuilder) -> None:
    store.put(body=bytes(3_000))
    store.put(body=bytes(3_000))
    with (store.root / "commitlog" / f"{4096:020d}").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(StoreRefusedError, match="100 bytes"):
        log_of(store.root / "commitlog")
    with pytest.raises(StoreRefusedError, match="100 bytes"):
        log_of(store.root / "commitlog", file_size_bytes=4096)


def test_a_configured_size_that_is_not_the_files_is_refused(store: StoreBuilder) -> None:
    with pytest.raises(StoreRefusedError, match="mappedFileSizeCommitLog"):
        log_of(store.root / "commitlog", file_size_bytes=8192)


def test_empty_files_and_directories_are_passed_over(store: StoreBuilder) -> None:
    message = store.put()
    (store.root / "commitlog" / f"{4096:020d}").touch()
    (store.root / "commitlog" / "lost+found").mkdir()
    log = log_of(store.root / "commitlog")
    assert len(log.files) == 1
    assert log.message_at(0, store.end) == message


def test_a_log_without_files_is_empty(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    assert (log.minimum, log.files, walked(log)) == (0, (), ([], 0, None))
    with pytest.raises(OffsetOutOfRangeError):
        log.message_at(0, 0)


def test_a_file_of_one_name_in_two_directories_is_refused_and_a_directory_named_twice_is_not(tmp_path: Path) -> None:
    own, other = tmp_path / "a", tmp_path / "b"
    for directory, name in (
        (own, "00000000000000000000"),
        (own, "00000000000000004096"),
        (other, "00000000000000004096"),
    ):
        directory.mkdir(exist_ok=True)
        (directory / name).write_bytes(bytes(4_096))
    assert len(log_of(own, own).files) == 2
    with pytest.raises(StoreRefusedError) as raised:
        log_of(own, other)
    assert all(f"{directory}/00000000000000004096" in str(raised.value) for directory in (own, other))
