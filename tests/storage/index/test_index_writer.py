"""Entering keys: found again, file by file as Java lays them out, and whole after a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import FEW_ROWS
from storage.index import store
from storage.index.store import IndexStore, IndexWriter, mend_chains
from storage.log.commit_log import CommitLog
from storage.log.dispatch import IndexKeys, dispatch, index_keys
from tests.support.broker_index import lose_slots, put_keys
from tests.support.fixture_stores import Fixture, golden_lines

FILES = LocalFileSystem()
NOW_MS = 1_700_000_000_000


def store_in(directory: Path, slots: int = 10, items: int = 20) -> IndexStore:
    (directory / "index").mkdir(exist_ok=True)
    return IndexStore(FILES, str(directory), slots, items)


def keys(hashes: list[int], first_place: int = 0) -> IndexKeys:
    places = first_place + np.arange(len(hashes), dtype=np.int64) * 100
    return IndexKeys(np.array(hashes, np.int32), places, NOW_MS + 1_000 * places)


def held(index: IndexStore) -> list[tuple[int, int]]:
    return [(int(item["key_hash"]), int(item["commitlog_offset"])) for file in index.files() for item in file.items()]


@given(batches=st.lists(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 30), max_size=25), max_size=5))
def test_every_key_entered_is_found(batches: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    index = store_in(tmp_path_factory.mktemp("keys"))
    expected: dict[int, list[int]] = {}
    place = 0
    for batch in batches:
        writer = IndexWriter(FILES, index, lambda: NOW_MS)
        taken = keys(batch, place)
        writer.append(taken)
        writer.finish()
        assert writer.key_count == len(batch)
        for key_hash, offset in zip(batch, taken.commitlog_offsets.tolist(), strict=True):
            expected.setdefault(key_hash, []).append(offset)
        place += 100 * len(batch)
    for key_hash, places in expected.items():
        hits = list(index.lookup(key_hash, 0, 2**62))
        assert [hit.commitlog_offset for hit in hits] == places[::-1]
        for hit in hits:
            assert hit.store_second_ms <= NOW_MS + 1_000 * hit.commitlog_offset < hit.store_second_ms + 1_000
    assert sum(map(len, expected.values())) == len(held(index))
    for file in index.files():
        assert file.reachable_items().all()
    names = [file.name for file in index.files()]
    assert names == sorted(set(names))


@pytest.mark.parametrize("name", ["roll", "clean", "syncflush"])
def test_files_are_laid_out_as_the_broker_lays_them_out(
    name: str, pristine_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    """The same keys in the same order give the same bytes. Java enters a key twice that a message names twice, so the
    comparison ends at the first file with such a key, if any."""
    fixture = pristine_store(name)
    (config,) = golden_lines(fixture.golden, "config")
    theirs = IndexStore(FILES, str(fixture.root), config["maxHashSlotNum"], config["maxIndexNum"])
    ours = store_in(tmp_path, config["maxHashSlotNum"], config["maxIndexNum"])
    log = CommitLog(FILES, (f"{fixture.root}/commitlog",))
    writer = IndexWriter(FILES, ours, lambda: NOW_MS)
    for offsets, records in log.walk(log.minimum):
        writer.append(index_keys(dispatch(offsets, records, (1_000,))))
    writer.finish()
    same = 0
    for their_file, our_file in zip(theirs.files(), ours.files(), strict=False):
        pairs = their_file.items()[["key_hash", "commitlog_offset"]].tolist()
        if len(set(pairs)) < len(pairs):
            break
        assert Path(our_file.path).read_bytes() == Path(their_file.path).read_bytes()
        same += 1
    assert same >= (3 if name == "roll" else 0)


def test_a_file_is_gone_on_with_where_it_ended(tmp_path: Path) -> None:
    index = store_in(tmp_path)
    for number in range(4):
        writer = IndexWriter(FILES, index, lambda: NOW_MS)
        assert writer.end_commitlog_offset == (100 * (3 * number - 1) if number else -1)
        writer.append(keys([5, 15, 6], 300 * number))
        writer.finish()
    assert len(index.files()) == 1
    assert [hit.commitlog_offset for hit in index.lookup(15, 0, 2**62)] == [1_000, 700, 400, 100]


def test_a_full_file_is_followed_by_one_with_a_greater_name(tmp_path: Path) -> None:
    index = store_in(tmp_path)
    for clock in (NOW_MS, NOW_MS, NOW_MS - 10**9):  # a clock may stand still or go back
        writer = IndexWriter(FILES, index, lambda clock=clock: clock)
        writer.append(keys(list(range(19))))
        writer.finish()
    names = [file.name for file in index.files()]
    assert len(names) == 3
    assert names == sorted(set(names))
    assert all(file.is_full for file in index.files())


def test_until_it_is_finished_a_reader_sees_what_was_there_before(tmp_path: Path) -> None:
    index = store_in(tmp_path)
    first = IndexWriter(FILES, index, lambda: NOW_MS)
    first.append(keys([5, 6]))
    first.finish()
    second = IndexWriter(FILES, index, lambda: NOW_MS)
    second.append(keys([5, 7], 1_000))
    assert held(index) == [(5, 0), (6, 100)]
    assert [hit.commitlog_offset for hit in index.lookup(5, 0, 2**62)] == [0]
    second.finish()
    assert [hit.commitlog_offset for hit in index.lookup(5, 0, 2**62)] == [1_000, 0]


def test_nothing_entered_makes_no_file(tmp_path: Path) -> None:
    index = store_in(tmp_path)
    writer = IndexWriter(FILES, index, lambda: NOW_MS)
    writer.append(keys([]))
    writer.finish()
    assert index.files() == []


class PieceByPiece(LocalFileSystem):
    """Every write goes through `write`."""

    def write_pieces(self, path: str, pieces: Iterable[tuple[int, bytes | memoryview | np.ndarray]]) -> None:
        for position, data in pieces:
            self.write(path, position, data)


class DyingFileSystem(PieceByPiece):
    """Fails at its nth write."""

    def __init__(self, writes: int) -> None:
        self.left = writes

    def write(self, path: str, position: int, data: bytes | memoryview | np.ndarray) -> None:
        if self.left == 0:
            raise OSError(28, "No space left on device")
        self.left -= 1
        super().write(path, position, data)


@pytest.mark.crash
@pytest.mark.parametrize("writes", range(9))
def test_keys_that_were_there_are_found_after_a_crash_and_a_second_try(tmp_path: Path, writes: int) -> None:
    index = store_in(tmp_path)
    before = IndexWriter(FILES, index, lambda: NOW_MS)
    before.append(keys([5, 15, 25, 6]))
    before.finish()
    dying = IndexWriter(DyingFileSystem(writes), index, lambda: NOW_MS)
    try:
        dying.append(keys([15, 35, 6, 7] * 6, 400))
        dying.finish()
    except OSError:
        pass
    for key_hash, place in [(5, 0), (15, 100), (25, 200), (6, 300)]:
        assert place in [hit.commitlog_offset for hit in index.lookup(key_hash, 0, 2**62)]
    again = IndexWriter(FILES, store_in(tmp_path), lambda: NOW_MS)
    again.append(keys([15, 8], 10_000))
    again.finish()
    found = store_in(tmp_path)
    for key_hash, place in [(5, 0), (15, 100), (25, 200), (6, 300), (15, 10_000), (8, 10_100)]:
        assert place in [hit.commitlog_offset for hit in found.lookup(key_hash, 0, 2**62)]


class Killed(BaseException):
    """The process ends here."""


class NoSlots(PieceByPiece):
    """Ends the process before it writes a slot, behind the header's bytes and before the items'."""

    def write(self, path: str, position: int, data: bytes | memoryview | np.ndarray) -> None:
        if 40 <= position < 40 + 4 * 10:
            raise Killed
        super().write(path, position, data)


def test_the_header_goes_to_the_disk_before_the_slots(tmp_path: Path) -> None:
    """Apache's classes would lose the older keys of a slot that points behind the header's count."""
    places: list[int] = []

    class Watched(PieceByPiece):
        def write(self, path: str, position: int, data: bytes | memoryview | np.ndarray) -> None:
            places.append(position)
            super().write(path, position, data)

    index = store_in(tmp_path)
    first = IndexWriter(FILES, index, lambda: NOW_MS)
    first.append(keys([5, 6]))
    first.finish()
    second = IndexWriter(Watched(), index, lambda: NOW_MS)
    second.append(keys([15, 7], 1_000))
    second.flush()
    items, header, *slots = places
    assert (items, header, slots) == (40 + 4 * 10 + 20 * 3, 0, [40 + 4 * 5, 40 + 4 * 7])


@pytest.mark.crash
@pytest.mark.parametrize("count", [4, 19], ids=["partly filled", "full"])
def test_a_file_whose_slots_were_not_written_gets_them(count: int, tmp_path: Path) -> None:
    index = store_in(tmp_path)
    hashes = [number % 7 for number in range(count)]
    dying = IndexWriter(NoSlots(), index, lambda: NOW_MS)

    def enter() -> None:
        dying.append(keys(hashes))
        dying.flush()

    with pytest.raises(Killed):
        enter()
    (file,) = index.files()
    assert len(file.items()) == count
    assert not file.reachable_items().any()
    if file.is_full:
        mend_chains(FILES, file)
    else:
        IndexWriter(FILES, store_in(tmp_path), lambda: NOW_MS).finish()
    found = store_in(tmp_path)
    assert found.files()[0].reachable_items().all()
    for key_hash in range(7):
        places = [100 * number for number, hash_ in enumerate(hashes) if hash_ == key_hash]
        assert [hit.commitlog_offset for hit in found.lookup(key_hash, 0, 2**62)] == places[::-1]


def killed_behind_its_header(index: IndexStore, before: list[int], lost: list[int]) -> Path:
    """A file with keys that are found, and behind them keys that have items and are counted, but have no slots."""
    writer = IndexWriter(FILES, index, lambda: NOW_MS)
    writer.append(keys(before))
    writer.flush()
    found = [file.slots().astype(">i4").tobytes() for file in index.files()]
    writer.append(keys(lost, 100 * len(before)))
    writer.flush()
    path = Path(index.files()[0].path)
    lose_slots(path, found[0] if found else bytes(4 * index.slot_count))
    return path


def timed(hashes: list[int], first_place: int) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in keys(hashes, first_place)), strict=True))


def test_a_broker_enters_keys_as_it_is_played_here(pristine_store: Callable[[str], Fixture], tmp_path: Path) -> None:
    """The items of a real broker's file, entered again into an empty one of that beginning, give its bytes."""
    fixture = pristine_store("roll")
    (config,) = golden_lines(fixture.golden, "config")
    files = IndexStore(FILES, str(fixture.root), config["maxHashSlotNum"], config["maxIndexNum"]).files()
    assert files[0].is_full
    header, items = files[0].header(), files[0].items()
    times = header.begin_time_ms + items["time_difference_s"].astype(np.int64) * 1_000
    times[-1] = header.end_time_ms
    path = tmp_path / "played"
    path.write_bytes(bytes(Path(files[0].path).stat().st_size))
    columns = items["key_hash"], items["commitlog_offset"], times
    put_keys(path, config["maxHashSlotNum"], list(zip(*(column.tolist() for column in columns), strict=True)))
    assert path.read_bytes() == Path(files[0].path).read_bytes()


@given(
    hashes=st.lists(st.integers(0, 40) | st.integers(0, 2**31 - 1), min_size=FEW_ROWS + 1, max_size=300),
    first=st.lists(st.integers(0, 40), max_size=30),
    together=st.sampled_from([1, 7, 100, 1_000]),
)
def test_many_keys_entered_at_once_are_linked_as_a_broker_links_them_one_by_one(
    hashes: list[int], first: list[int], together: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("linked")
    index = store_in(directory, slots=31, items=400)
    writer = IndexWriter(FILES, index, lambda: NOW_MS)
    with mock.patch.object(store, "_LINKED_TOGETHER", together):
        writer.append(keys(first))
        writer.append(keys(hashes, 100 * len(first)))
    writer.finish()
    path = Path(index.files()[0].path)
    alone = directory / "alone"
    alone.write_bytes(bytes(path.stat().st_size))
    put_keys(alone, 31, timed([*first, *hashes], 0))
    assert path.read_bytes() == alone.read_bytes()


@pytest.mark.crash
@pytest.mark.parametrize("before", [[], list(range(20)), [3, 13, 4]], ids=["none", "all slots", "two slots"])
def test_keys_without_slots_are_found_again_behind_a_brokers_keys(before: list[int], tmp_path: Path) -> None:
    """The broker's items name the one that it found in the slot, and so pass over the lost ones."""
    lost, brokers = list(range(100, 120)), list(range(200, 219))
    index = store_in(tmp_path, items=60)
    path = killed_behind_its_header(index, before, lost)
    put_keys(path, 10, timed(brokers, 100 * (len(before) + len(lost))))
    (file,) = index.files()
    entered = before + lost + brokers
    assert [int(item["key_hash"]) for item in file.items()] == entered
    assert [bool(list(index.lookup(key_hash, 0, 2**62))) for key_hash in lost] == [False] * len(lost)
    with mock.patch.object(store, "_LINKED_TOGETHER", 7):
        mend_chains(FILES, file)
    for number, key_hash in enumerate(entered):
        assert [hit.commitlog_offset for hit in index.lookup(key_hash, 0, 2**62)] == [100 * number]
    alone = tmp_path / "alone"
    alone.write_bytes(bytes(path.stat().st_size))
    put_keys(alone, 10, timed(entered, 0))
    assert path.read_bytes() == alone.read_bytes(), "a file as a broker alone would have written it"


@pytest.mark.crash
def test_chains_are_mended_the_same_when_that_is_killed_on_the_way(tmp_path: Path) -> None:
    """And what was found before is found all the time."""
    before, lost, brokers = list(range(2_000)), list(range(5_000, 6_500)), list(range(8_200, 8_700))
    index = store_in(tmp_path, slots=3_000, items=6_000)
    path = killed_behind_its_header(index, before, lost)
    put_keys(path, 3_000, timed(brokers, 350_000))
    killed, found = path.read_bytes(), before + brokers
    mend_chains(FILES, index.files()[0])
    mended = path.read_bytes()
    writes = 0
    while True:
        path.write_bytes(killed)
        dying = DyingFileSystem(writes)
        try:
            mend_chains(dying, index.files()[0])
            break
        except OSError:
            for key_hash in found[:: len(found) // 50]:
                assert any(index.lookup(key_hash, 0, 2**62)), (writes, key_hash)
            mend_chains(FILES, index.files()[0])
            assert path.read_bytes() == mended
            writes += 1
    assert writes >= 3, "items, slots, header"


def test_where_chains_are_whole_nothing_is_written(pristine_store: Callable[[str], Fixture], tmp_path: Path) -> None:
    """A broker's files are so to the byte."""

    class OnlySyncs(PieceByPiece):
        def write(self, path: str, position: int, data: bytes | memoryview | np.ndarray) -> None:
            raise AssertionError(f"{path} {position}")

    fixture = pristine_store("roll")
    (config,) = golden_lines(fixture.golden, "config")
    for file in IndexStore(FILES, str(fixture.root), config["maxHashSlotNum"], config["maxIndexNum"]).files():
        mend_chains(OnlySyncs(), file)


def test_of_a_large_file_only_what_differs_is_mended(tmp_path: Path) -> None:
    written: list[tuple[int, int]] = []

    class Watched(PieceByPiece):
        def write(self, path: str, position: int, data: bytes | memoryview | np.ndarray) -> None:
            written.append((position, len(data)))
            super().write(path, position, data)

    index = store_in(tmp_path, slots=200_001, items=50_000)
    writer = IndexWriter(FILES, index, lambda: NOW_MS)
    writer.append(keys(list(range(100_000, 140_000))))
    writer.flush()
    path = Path(index.files()[0].path)
    whole = bytearray(path.read_bytes())
    item = 40 + 4 * 200_001 + 20 * 30_000  # lies in one page of items
    assert whole[item + 16 : item + 20] == bytes(4)
    torn = bytearray(whole)
    torn[item + 16 : item + 20] = (7).to_bytes(4, "big")
    torn[40 + 4 * 100_500 : 40 + 4 * 100_501] = bytes(4)
    path.write_bytes(torn)
    mend_chains(Watched(), index.files()[0])
    assert path.read_bytes() == whole
    (items, item_bytes), (slots, slot_bytes) = written
    assert items <= item < items + item_bytes <= items + 20 * 1_024
    assert slots <= 40 + 4 * 100_500 < slots + slot_bytes <= slots + 4 * 1_024


def test_keys_of_earlier_records_leave_the_end_of_the_file(tmp_path: Path) -> None:
    """Recovery enters what lies behind that end."""
    index = store_in(tmp_path)
    writer = IndexWriter(FILES, index, lambda: NOW_MS)
    writer.append(keys([5, 6], 1_000))
    writer.append(keys([15, 7], 300))
    writer.finish()
    header = index.files()[0].header()
    assert (header.end_commitlog_offset, header.end_time_ms) == (1_100, NOW_MS + 1_100_000)
    assert [hit.commitlog_offset for hit in index.lookup(15, 0, 2**62)] == [300]
    assert writer.end_commitlog_offset == 1_100


@pytest.mark.parametrize("trust_slots", [True, False])
def test_slots_that_are_whole_are_the_same_trusted_or_made_again(trust_slots: bool, tmp_path: Path) -> None:
    index = store_in(tmp_path)
    expected: dict[int, list[int]] = {}
    for number in range(12):
        writer = IndexWriter(FILES, index, lambda: NOW_MS, trust_slots=trust_slots and number > 0)
        taken = keys([number % 3, number % 3 + 10, 29], 1_000 * number)
        writer.append(taken)
        writer.finish()
        for key_hash, place in zip(taken.key_hashes.tolist(), taken.commitlog_offsets.tolist(), strict=True):
            expected.setdefault(key_hash, []).append(place)
    for key_hash, places in expected.items():
        assert [hit.commitlog_offset for hit in index.lookup(key_hash, 0, 2**62)] == places[::-1]


@pytest.mark.parametrize("batch_size", [1, 500])
def test_of_many_slots_only_the_pages_that_changed_are_written(batch_size: int, tmp_path: Path) -> None:
    """Sparse files stay sparse: a put of one key writes one page of 4 KiB, not 20 MB."""
    written: list[int] = []

    class Watched(PieceByPiece):
        def write(self, path: str, position: int, data: bytes | memoryview | np.ndarray) -> None:
            if 40 <= position < 40 + 4 * 200_001:
                written.append(len(data))
            super().write(path, position, data)

    random = np.random.default_rng(1)
    index = store_in(tmp_path, slots=200_001, items=5_000)
    for number in range(3):
        hashes = random.integers(0, 2**31, batch_size).tolist()
        writer = IndexWriter(Watched(), index, lambda: NOW_MS, trust_slots=True)
        writer.append(keys(hashes, 10**6 * number))
        written.clear()
        writer.flush()
        pages = {hash_ % 200_001 // 1_024 for hash_ in hashes}
        assert 4 * 1_024 * (len(pages) - 1) < sum(written) <= 4 * 1_024 * len(pages)
        writer.sync()
        for row, hash_ in enumerate(hashes):
            assert 10**6 * number + 100 * row in [hit.commitlog_offset for hit in index.lookup(hash_, 0, 2**62)]
    assert index.files()[0].reachable_items().all()


def test_nothing_is_written_where_nothing_changed(tmp_path: Path) -> None:
    index = store_in(tmp_path)
    writer = IndexWriter(FILES, index, lambda: NOW_MS)
    writer.append(keys([5]))
    writer.finish()

    class NoWrites(PieceByPiece):
        def write(self, path: str, position: int, data: bytes | memoryview | np.ndarray) -> None:
            raise AssertionError(f"{path} {position}")

    for trust_slots in (True, False):
        IndexWriter(NoWrites(), index, lambda: NOW_MS, trust_slots=trust_slots).finish()
