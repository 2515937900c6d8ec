"""Few records go one by one, many by arrays: the same bytes in log, queues and index, whatever rolls in between."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import StoreConfig, open_store
from storage.files.local_file_system import LocalFileSystem
from storage.format import arrays as few
from storage.format.record_block import stamp
from storage.index.store import IndexStore, IndexWriter
from storage.log.dispatch import IndexKeys
from storage.log.writer import place
from storage.rules.inner_messages import InnerMessage
from storage.settings.load import load_config

SETTINGS = """\
brokerName=broker-few
brokerIP1=127.0.0.1
mappedFileSizeCommitLog=8192
mappedFileSizeConsumeQueue=400
maxHashSlotNum=20
maxIndexNum=60
"""
NOW_MS = 1_700_000_000_000
KEPT = ("commitlog", "consumequeue", "index")
INT64 = st.integers(-(2**63), 2**63 - 1)
RECORD = 120
"""Bytes from one record's beginning to the next one's."""


def config_in(directory: Path) -> StoreConfig:
    (directory / "broker.conf").write_text(SETTINGS, encoding="ascii")
    return load_config(str(directory / "store"), read_bytes=lambda path: Path(path).read_bytes())


def puts(seed: int) -> list[list[InnerMessage]]:
    """Of one to a few messages each, for several queues, with and without keys, some delayed."""
    chance = random.Random(seed)
    numbers = itertools.count()

    def message() -> InnerMessage:
        number = next(numbers)
        properties = {"UNIQ_KEY": f"{number:032X}", "TAGS": chance.choice(["", "paid", "größer"])}
        if chance.random() < 0.7:
            properties["KEYS"] = " ".join(f"k{chance.randrange(9)}" for _ in range(chance.randrange(4)))
        topic = "SCHEDULE_TOPIC_XXXX" if chance.random() < 0.1 else chance.choice(["Orders", "Bills"])
        if topic.startswith("SCHEDULE"):
            properties["DELAY"] = "1"
        return InnerMessage(
            topic=topic,
            queue_id=chance.randrange(3),
            body=chance.randbytes(chance.randrange(900)),
            properties=properties,
            born_time_ms=NOW_MS + number,
        )

    return [[message() for _ in range(chance.choice([1, 1, 2, 5]))] for _ in range(60)]


def written(directory: Path, seed: int) -> dict[str, bytes]:
    """What a store's files hold after these puts; the index files by their order, as their names are times."""
    directory.mkdir()
    times = itertools.count(NOW_MS, 700)
    root = directory / "store"
    with open_store(
        root, config=config_in(directory), read_only=False, create=True, clock=lambda: next(times)
    ) as store:
        for messages in puts(seed):
            store.put_inner(messages)
    files = [path for kept in KEPT for path in sorted((root / kept).rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.mark.parametrize("seed", range(6))
def test_few_records_leave_the_bytes_of_many(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = written(tmp_path / "few", seed)
    monkeypatch.setattr(few, "FEW_ROWS", 0)
    many = written(tmp_path / "many", seed)
    assert list(one_by_one) == list(many)
    assert one_by_one == many
    assert len([name for name in one_by_one if name.startswith("commitlog")]) > 3, "the log rolls"
    assert len([name for name in one_by_one if name.startswith("index")]) > 1, "the index rolls"


def both(function: Callable[[], Any]) -> tuple[Any, Any]:
    """What it gives one by one, and by arrays."""
    one_by_one = function()
    with mock.patch.object(few, "FEW_ROWS", 0):
        return one_by_one, function()


def numbers(draw: st.DrawFn, elements: st.SearchStrategy[int], count: int, dtype: str = "int64") -> np.ndarray:
    return np.array(draw(st.lists(elements, min_size=count, max_size=count)), dtype)


@st.composite
def stamps(draw: st.DrawFn) -> tuple[Any, ...]:
    count = draw(st.integers(0, 9))
    positions = RECORD * np.arange(count) + draw(st.integers(0, 7))
    times = numbers(draw, INT64, count) if draw(st.booleans()) else draw(INT64)
    columns = numbers(draw, INT64, count), numbers(draw, INT64, count)
    return positions, *columns, times, draw(st.sampled_from([8, 20]))


@given(stamps(), st.integers(0, 255))
def test_records_get_the_same_stamps(case: tuple[Any, ...], filler: int) -> None:
    def stamped() -> bytes:
        data = np.full(RECORD * 10, filler, np.uint8)
        stamp(data, *case)
        return data.tobytes()

    one_by_one, many = both(stamped)
    assert one_by_one == many


@pytest.mark.parametrize("position", [-200, 1_000, 1_000 - 70])
def test_a_stamp_that_leaves_the_buffer_is_refused_either_way(position: int) -> None:
    """Not by writing elsewhere. A few bytes before the beginning are those at the end, as in NumPy."""

    def attempt() -> str:
        data = np.zeros(100, np.uint8)
        try:
            stamp(data, np.array([0, position]), np.zeros(2, np.int64), np.zeros(2, np.int64), 1, 8)
        except IndexError:
            return "refused"
        return "taken"

    assert both(attempt) == ("refused", "refused")


@given(st.data())
def test_records_get_the_same_places(data: st.DataObject) -> None:
    queues = data.draw(st.integers(1, 5))
    codes = numbers(data.draw, st.integers(0, queues - 1), data.draw(st.integers(1, 20)), "int32")
    sizes = numbers(data.draw, st.integers(91, 200), len(codes), "int32")
    nexts = numbers(data.draw, st.integers(0, 9), queues)

    def placed() -> list[Any]:
        found = place(sizes, codes, nexts, 300, 1_000, 1_000)
        return [*((str(column.dtype), column.tolist()) for column in found[:3]), *found[3:]]

    one_by_one, many = both(placed)
    assert one_by_one == many


@st.composite
def key_parts(draw: st.DrawFn) -> list[IndexKeys]:
    parts, offset, time = [], 0, draw(st.sampled_from([0, 1_700_000_000_000]))
    for count in draw(st.lists(st.integers(0, 25), min_size=1, max_size=3)):
        hashes = numbers(draw, st.integers(0, 12) | st.integers(0, 2**31 - 1), count, "int32")
        steps = np.cumsum(numbers(draw, st.integers(0, 900), count))
        times = time + numbers(draw, st.integers(-5_000, 10**13), count)
        parts.append(IndexKeys(hashes, offset + steps, times))
        offset += int(steps[-1]) if count else 0
    return parts


@given(key_parts(), st.sampled_from([1, 7, 3_000]), st.sampled_from([6, 40]))
def test_index_files_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, parts: list[IndexKeys], slots: int, items: int
) -> None:
    """Over several files, entered and flushed in parts."""

    def entered() -> dict[str, bytes]:
        root = tmp_path_factory.mktemp("index")
        files = LocalFileSystem()
        writer = IndexWriter(files, IndexStore(files, str(root), slots, items), lambda: 1_000)
        for part in parts:
            writer.append(part)
            writer.flush()
        return {path.name: path.read_bytes() for path in root.glob("index/*")}

    one_by_one, many = both(entered)
    assert one_by_one == many
