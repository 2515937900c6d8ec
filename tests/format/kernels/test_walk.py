"""Kernels that walk over records, held against the exact path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import open_store
from storage.format.arrays import as_int64, crcs_between, sealed
from storage.format.record import BORN_HOST_V6, COMPRESSED, HEADERS, encode_record
from storage.log.dispatch import DISPATCHED, dispatch, index_keys, queue_entries
from tests.format.kernels.test_decode import property_strings, records
from tests.support.decoded_rows import assert_walked_as_exact
from tests.support.fixture_stores import FIXTURE_NAMES, Fixture
from tests.support.kernels import ON, both, kernels, loaded
from tests.support.message_builder import make_message

pytestmark = pytest.mark.slow  # they are compiled first, where they are not in the user's cache
DELAYS = (1_000, 5_000)


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return loaded()


topics = st.sampled_from(["A", "B", "TopicLonger", "TopicLonges", ""])


@st.composite
def record(draw: st.DrawFn) -> bytes:
    topic, place = draw(topics), draw(st.integers(0, 2**40))
    flags = draw(st.sampled_from([0, 0, 0, 0, 0, COMPRESSED, BORN_HOST_V6]))
    return encode_record(make_message(topic, 0, place, body=draw(st.binary(max_size=9)), sys_flag=flags))


windows = st.one_of(
    st.lists(record(), max_size=12).map(b"".join),
    st.lists(st.one_of(record(), records(property_strings), st.binary(max_size=99)), max_size=6).map(b"".join),
)


@given(content=windows, begin=st.integers(-2, 100), cut=st.integers(0, 120))
@settings(max_examples=300)
def test_walks_find_the_same_records_and_topics(compiled: ModuleType, content: bytes, begin: int, cut: int) -> None:
    buffer = np.frombuffer(content[: len(content) - cut], np.uint8)
    for at in {0, begin}:
        assert_walked_as_exact(compiled, buffer, at)


@pytest.mark.parametrize("size", [1 << 30, -(1 << 31)])
def test_a_length_that_changes_behind_the_check_is_noticed(compiled: ModuleType, size: int) -> None:
    buffer = np.frombuffer(bytearray(encode_record(make_message("A", 0, 0, body=b"body"))), np.uint8)
    positions, sizes, properties = (np.zeros(1, np.int64) for _ in range(3))
    assert compiled.walk(sealed(buffer), 0, positions, sizes, properties) == 1
    at = HEADERS[0].fields["body_size_bytes"][1]
    buffer[at : at + 4] = np.frombuffer(size.to_bytes(4, "big", signed=True), np.uint8)
    rows = compiled.Rows(sealed(buffer), sealed(positions), sealed(sizes), sealed(np.empty(0, np.int64)), properties)
    found = compiled.number_topics(rows, 0, 1, np.empty(1, np.int32), np.empty(1, np.int64), np.empty(1, np.int64))
    assert found == -1
    column = compiled.Strings(np.zeros(2, np.int32), np.empty(100, np.uint8))
    assert not compiled.bodies(rows, 0, 1, column)


@given(st.binary(max_size=400), st.lists(st.tuples(st.integers(-1, 401), st.integers(-1, 401)), max_size=5))
def test_sums_of_stretches_are_the_same(compiled: ModuleType, content: bytes, stretches: list[tuple[int, int]]) -> None:
    if not compiled.HAS_CRC:
        pytest.skip("the isal package does not show its sum; it is called for each stretch")
    data = np.frombuffer(content, np.uint8)
    starts, ends = (np.array([pair[at] for pair in stretches], np.int64) for at in (0, 1))
    sums = np.empty(len(stretches), np.int64)
    are_inside = all(0 <= start <= end <= len(content) for start, end in stretches)
    assert compiled.crcs(sealed(data), as_int64(starts), as_int64(ends), sums) == are_inside
    if are_inside:
        exact, again = both(lambda: crcs_between(data, starts, ends))
        assert sums.tolist() == exact.tolist() == again.tolist()


def dispatched(store: Path) -> list[object]:
    """What queues and index are told of each record of a store's log."""
    found: list[object] = []
    with open_store(store) as opened:
        for offsets, these in opened.log.walk(opened.log.minimum, wanted=DISPATCHED):
            batch = dispatch(offsets, these, DELAYS)
            for new in queue_entries(batch):
                columns = (new.entries.tolist(), new.queue_offsets.tolist(), new.store_times_ms.tolist())
                found.extend((new.topic, new.queue_id, *row) for row in zip(*columns, strict=True))
            found.extend(zip(*(column.tolist() for column in index_keys(batch)), strict=True))
    return sorted(found, key=repr)


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_queues_and_index_are_told_the_same_of_a_golden_store(
    name: str, pristine_store: Callable[[str], Fixture]
) -> None:
    store = pristine_store(name).root
    exact, compiled = both(lambda: dispatched(store))
    assert exact == compiled


def test_a_walk_decodes_on_the_way(pristine_store: Callable[[str], Fixture]) -> None:
    with kernels(ON), open_store(pristine_store("clean").root) as opened:
        walked = [records for _, records in opened.log.walk(opened.log.minimum, wanted=DISPATCHED)]
    assert [len(records) for records in walked if records.decoded is not None]


def test_a_walk_finds_more_records_than_16_bits_count() -> None:
    """With their topics, from the first to the last."""
    count = (1 << 16) + 300
    one, other = (encode_record(make_message(topic, 0, 0, body=b"x")) for topic in ("T", "Other"))
    content = np.frombuffer((one * 999 + other) * (count // 1_000 + 1), np.uint8)
    positions, sizes, properties = (np.zeros(count, np.int64) for _ in range(3))
    walking = loaded()
    assert walking.walk(sealed(content), 0, positions, sizes, properties) == count
    assert np.array_equal(positions[1:], np.cumsum(sizes[:-1]))
    assert sizes[0] == len(one)
    assert sizes[count // 1_000 * 1_000 - 1] == len(other)
    rows = walking.Rows(sealed(content), sealed(positions), sealed(sizes), sealed(np.empty(0, np.int64)), properties)
    codes = np.empty(count, np.int32)
    assert walking.number_topics(rows, 0, count, codes, np.empty(9, np.int64), np.empty(9, np.int64)) == 2
    assert np.flatnonzero(codes).tolist() == list(range(999, count, 1_000))
