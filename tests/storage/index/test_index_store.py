"""Look-up in index files: the broker's own, files in the making, and files that lie."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import IndexGeometryUnknownError
from storage.files.local_file_system import LocalFileSystem
from storage.format.arrays import index_key_hash
from storage.format.keys import HEADER_SIZE, HEADER_STRUCT, ITEM_STRUCT, index_file_size
from storage.index.store import IndexStore
from tests.support.fixture_stores import FIXTURE_NAMES, Fixture, golden_lines
from tests.support.releases import RELEASES

ALWAYS = 0, 2**63 - 1


def index_of(fixture: Fixture) -> IndexStore:
    (config,) = golden_lines(fixture.golden, "config")
    return IndexStore(LocalFileSystem(), str(fixture.root), config["maxHashSlotNum"], config["maxIndexNum"])


KILLED = {"crashed", "torn", "crcflip", *(f"v{release}-killed" for release in RELEASES)}
"""Whose index lacks the newest keys, until it is recovered."""


@pytest.mark.parametrize("name", [name for name in FIXTURE_NAMES if name not in KILLED])
def test_a_look_up_finds_at_least_what_apache_finds(name: str, pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store(name)
    index = index_of(fixture)
    for line in golden_lines(fixture.golden, "query"):
        hits = list(index.lookup(index_key_hash(f"{line['topic']}#{line['key']}"), line["begin"], line["end"]))
        places = [hit.commitlog_offset for hit in hits]
        assert len(set(places)) == len(places)
        assert set(places) >= set(line["physicalOffsets"])
    index.close()


def test_headers_and_items_of_the_brokers_files(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("roll")
    index = index_of(fixture)
    lines = list(golden_lines(fixture.golden, "indexBefore"))
    assert [file.name for file in index.files()] == [line["file"] for line in lines]
    for file, line in zip(index.files(), lines, strict=True):
        header = file.header()
        assert (header.begin_time_ms, header.end_time_ms) == (line["beginTimestamp"], line["endTimestamp"])
        assert (header.begin_commitlog_offset, header.end_commitlog_offset) == (
            line["beginPhyOffset"],
            line["endPhyOffset"],
        )
        assert (header.used_slot_count, header.index_count) == (line["hashSlotCount"], line["indexCount"])
        assert len(file.items()) == header.index_count - 1
        assert file.reachable_items().all()
        assert file.is_full == (header.index_count >= 100)
    assert index.files()[0].is_full


def made(
    directory: Path, slots: list[int], items: list[tuple[int, int, int, int]], count: int | None = None
) -> IndexStore:
    """One index file with 10 slots and room for 20 items, of the first second of 1970."""
    (directory / "index").mkdir(exist_ok=True)
    count = len(items) + 1 if count is None else count
    content = HEADER_STRUCT.pack(1_000, 9_000, 0, 9_999, 1, count)
    content += b"".join(slot.to_bytes(4, "big", signed=True) for slot in slots).ljust(40, b"\0") + bytes(20)
    content += b"".join(ITEM_STRUCT.pack(*item) for item in items)
    path = directory / "index" / "20240101000000000"
    path.write_bytes(content.ljust(index_file_size(10, 20), b"\0"))
    return IndexStore(LocalFileSystem(), str(directory), 10, 20)


def places(index: IndexStore, key_hash: int, begin_ms: int = 0, end_ms: int = 2**62) -> list[int]:
    return [hit.commitlog_offset for hit in index.lookup(key_hash, begin_ms, end_ms)]


def test_items_of_a_slot_are_followed_newest_first_and_others_left_out(tmp_path: Path) -> None:
    index = made(tmp_path, [3], [(20, 100, 0, 0), (30, 200, 1, 1), (20, 300, 5, 2)])
    assert places(index, 20) == [300, 100]
    assert places(index, 30) == [200]
    assert places(index, 40) == places(index, 21) == []


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 10_000, [300, 200, 100]),
        (1_000, 1_000, [100]),
        (1_999, 1_999, [100]),
        (2_000, 5_999, [200]),
        (0, 999, []),
        (6_999, 6_999, [300]),
        (7_000, 9_999, []),
    ],
)
def test_a_time_range_is_one_of_whole_seconds(tmp_path: Path, begin: int, end: int, expected: list[int]) -> None:
    index = made(tmp_path, [3], [(20, 100, 0, 0), (20, 200, 1, 1), (20, 300, 5, 2)])
    assert places(index, 20, begin, end) == expected


def test_the_first_item_of_a_file_is_found_at_its_own_time_and_where_java_finds_it(tmp_path: Path) -> None:
    """Java counts its difference from the file before, though the file begins with its time."""
    index = made(tmp_path, [1], [(20, 100, 500, 0)])
    assert places(index, 20, 1_000, 1_000) == places(index, 20, 501_000, 501_000) == [100]
    assert places(index, 20, 2_000, 500_999) == []
    assert places(index, 20) == [100]


@pytest.mark.parametrize("slot", [-1, 0, 5, 21, 2**31 - 1])
def test_a_slot_that_points_nowhere_is_empty(tmp_path: Path, slot: int) -> None:
    assert places(made(tmp_path, [slot], [(20, 100, 0, 0), (20, 200, 0, 1)]), 20) == []


@pytest.mark.parametrize("previous", [2, 3, 19, -1, 2**31 - 1])
def test_a_chain_never_turns_in_circles(tmp_path: Path, previous: int) -> None:
    index = made(tmp_path, [2], [(20, 100, 0, 0), (20, 200, 0, previous)])
    assert places(index, 20) == [200]


def test_an_empty_file_and_one_never_flushed(tmp_path: Path) -> None:
    for count in (0, 1):
        index = made(tmp_path, [], [], count)
        assert (places(index, 20), len(index.files()[0].items())) == ([], 0)
        assert index.files()[0].header().index_count == 1


def test_a_place_named_twice_is_one_hit(tmp_path: Path) -> None:
    assert places(made(tmp_path, [2], [(20, 100, 0, 0), (20, 100, 0, 1)]), 20) == [100]


def test_files_come_and_go(tmp_path: Path) -> None:
    index = made(tmp_path, [1], [(20, 100, 0, 0)])
    assert places(index, 20) == [100]
    first = tmp_path / "index" / "20240101000000000"
    shutil.copy(first, first.with_name("20240101000000001"))
    first.unlink()
    assert [file.name for file in index.files()] == ["20240101000000001"]
    assert places(index, 20) == [100]
    shutil.rmtree(tmp_path / "index")
    assert places(index, 20) == []


@pytest.mark.parametrize("previous", [-(2**31), -1, 2, 3, 2**31 - 1])
def test_an_item_that_points_nowhere_ends_its_chain(previous: int, tmp_path: Path) -> None:
    index = made(tmp_path, [2], [(20, 100, 0, 0), (20, 200, 0, previous)])
    assert places(index, 20) == [200]
    assert index.files()[0].reachable_items().tolist() == [False, True]


@pytest.mark.parametrize("name", ["x", "2024010100000000", "202401010000000000", "²" * 17, "20240101000000000.bak"])
def test_other_names_are_ignored_as_java_ignores_them(tmp_path: Path, name: str) -> None:
    index = made(tmp_path, [1], [(20, 100, 0, 0)])
    (tmp_path / "index" / name).write_bytes(b"other")
    assert places(index, 20) == [100]


def test_another_geometry_is_an_error_that_says_so(pristine_store: Callable[[str], Fixture]) -> None:
    fixture = pristine_store("roll")
    with pytest.raises(IndexGeometryUnknownError) as raised:
        IndexStore(LocalFileSystem(), str(fixture.root), 5_000_000, 20_000_000).files()
    assert raised.value.path.endswith(min(path.name for path in (fixture.root / "index").iterdir()))
    assert HEADER_SIZE == 40
