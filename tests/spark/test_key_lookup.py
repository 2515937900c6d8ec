"""Messages by key: through the index where it covers the log, by scan where not, always all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spark_mq.conditions import ConvertedError
from spark_mq.spark_api import EqualTo
from storage.format.keys import HEADER_SIZE, ITEM, SLOT
from tests.support.fixture_stores import Fixture, golden_lines
from tests.support.store_builder import StoreBuilder

from .conftest import ReadStore
from .golden_rows import Row, golden_rows
from .in_process import bodies, plan_batch, planned_size, read_batch, rows_of

pytestmark = pytest.mark.slow


def with_key(rows: list[Row], key: str) -> set[int]:
    return {r["commitlog_offset"] for r in rows if key == r["unique_key"] or key in (r["keys"] or "").split(" ")}


def some_keys(rows: list[Row]) -> list[str]:
    keys = sorted({key for row in rows for key in (row["keys"] or "").split(" ") if key})
    return [*keys[:: max(1, len(keys) // 6)], rows[0]["unique_key"], rows[-1]["unique_key"], "no such key"]


def complete(root: Path) -> None:
    pass


def without_index(root: Path) -> None:
    shutil.rmtree(root / "index")


def without_newest_files(root: Path) -> None:
    for file in sorted((root / "index").iterdir())[4:]:
        file.unlink()


def without_oldest_files(root: Path) -> None:
    for file in sorted((root / "index").iterdir())[:-4]:
        file.unlink()


def without_middle_files(root: Path) -> None:
    for file in sorted((root / "index").iterdir())[3:-3]:
        file.unlink()


def without_items_amid_files(root: Path) -> None:
    """As of a broker that has run for a while with messageIndexEnable=false: the file goes on behind the gap."""
    for file in sorted((root / "index").iterdir())[3:-3]:
        content = bytearray(file.read_bytes())
        items = np.frombuffer(content, ITEM, offset=HEADER_SIZE + 50 * SLOT.itemsize)[1:]
        items["commitlog_offset"][5:-5] = items["commitlog_offset"][4]
        file.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "looked_at"),
    [
        (complete, (0.0, 0.1)),
        (without_newest_files, (0.3, 0.9)),
        (without_oldest_files, (0.3, 0.9)),
        (without_middle_files, (0.2, 0.8)),
        (without_items_amid_files, (0.2, 0.8)),
        (without_index, (1.0, 1.0)),
    ],
)
def test_option_key_finds_all_messages_whatever_the_index_covers(
    spoil: Callable[[Path], None], looked_at: tuple[float, float], fixture_store: Callable[[str], Fixture]
) -> None:
    store = fixture_store("roll")
    spoil(store.root)
    golden = golden_rows(store)
    for key in some_keys(golden):
        splits = plan_batch(store.root, subscribePattern=".*", key=key)
        rows = rows_of(splits)
        assert {row["commitlog_offset"] for row in rows} == with_key(golden, key), key
        assert len(rows) == len(with_key(golden, key))
        low, high = looked_at
        assert low * len(golden) <= planned_size(splits) <= high * len(golden), key


def test_option_key_finds_at_least_what_apaches_query_finds(pristine_store: Callable[[str], Fixture]) -> None:
    store = pristine_store("clean")
    asked = [line for line in golden_lines(store.golden, "query") if line["topic"] == "TopicA" and line["begin"] == 0]
    for line in asked[::29]:
        rows = read_batch(store.root, topic="TopicA", key=line["key"], columns="commitlog_offset")
        assert set(line["physicalOffsets"]) <= {row["commitlog_offset"] for row in rows}, line["key"]
    assert len(asked) > 100


def test_keys_equal_compares_the_whole_column_and_option_key_one_key(pristine_store: Callable[[str], Fixture]) -> None:
    store = pristine_store("clean")
    golden = golden_rows(store, "TopicA")
    both = next(row["keys"] for row in golden if row["keys"] and row["keys"].count(" ") == 1)
    first = both.split(" ")[0]
    pushed = EqualTo(("keys",), both)
    splits = plan_batch(store.root, topic="TopicA", filters=[pushed])
    assert planned_size(splits) < len(golden) / 4, "the index is asked for the first of the keys"
    found = [row for row in rows_of(splits) if row["keys"] == both]
    assert len(found) == sum(row["keys"] == both for row in golden) > 0
    assert read_batch(store.root, topic="TopicA", key=both) == []
    assert len(read_batch(store.root, topic="TopicA", key=first)) == len(with_key(golden, first))


def test_the_key_goes_together_with_ranges_and_tags(pristine_store: Callable[[str], Fixture]) -> None:
    store = pristine_store("clean")
    golden = [row for row in golden_rows(store, "TopicA") if row["tags"] == "TagA" and row["queue_id"] == 1]
    key = next(key for row in golden for key in (row["keys"] or "").split(" ") if key)
    rows = read_batch(store.root, topic="TopicA", key=key, tags="TagA", queueId="1")
    assert {row["commitlog_offset"] for row in rows} == with_key(golden, key) != set()


def test_option_key_scans_what_a_broker_has_entered_into_rocksdb_alone(fixture_store: Callable[[str], Fixture]) -> None:
    store = fixture_store("roll")
    without_newest_files(store.root)
    conf = store.conf.read_text("utf-8")
    store.conf.write_text(f"{conf}\nindexRocksDBEnable=true\nindexFileWriteEnable=false\n")
    golden = golden_rows(store)
    for key in some_keys(golden)[::3]:
        rows = read_batch(store.root, subscribePattern=".*", key=key)
        assert {row["commitlog_offset"] for row in rows} == with_key(golden, key), key


def test_keys_without_an_index_are_compared_one_by_one(tmp_path: Path) -> None:
    store = StoreBuilder(tmp_path / "broker-a")
    for keys, unique_key in (("a b", "u1"), ("ab", "u2"), (None, "u3"), ("b  a", None), ("", "a"), ("A", "u6")):
        store.send("Topic", f"{keys}/{unique_key}", keys=keys, unique_key=unique_key)
    assert bodies(read_batch(store.root, topic="Topic", key="a")) == ["a b/u1", "b  a/None", "/a"]
    assert bodies(read_batch(store.root, topic="Topic", key="u2")) == ["ab/u2"]


def test_without_the_indexs_geometry_a_key_is_refused_and_a_filter_scans(
    fixture_store: Callable[[str], Fixture],
) -> None:
    store = fixture_store("roll")
    store.conf.unlink()
    golden = golden_rows(store, "TopicOne")
    with pytest.raises(ConvertedError) as caught:
        plan_batch(store.root, topic="TopicOne", key="key0")
    text = str(caught.value)
    assert text.startswith("[SPARK_MQ_INDEX_GEOMETRY_UNKNOWN]")
    for advice in ("maxHashSlotNum", "maxIndexNum", "option conf", "without the option key"):
        assert advice in text
    splits = plan_batch(store.root, topic="TopicOne", filters=[EqualTo(("keys",), "key0")])
    assert planned_size(splits) == len(golden)
    assert len(rows_of(splits)) == len(golden)


@pytest.mark.spark
def test_spark_reads_one_key(read_store: ReadStore, pristine_store: Callable[[str], Fixture]) -> None:
    store = pristine_store("roll")
    golden = golden_rows(store, "TopicOne")
    rows = read_store(store.root, topic="TopicOne", key="key1").select("commitlog_offset").collect()
    assert {row.commitlog_offset for row in rows} == with_key(golden, "key1") != set()
