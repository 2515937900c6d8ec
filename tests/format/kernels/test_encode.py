"""Kernels that make records and hashes, held against the exact path: of any rows, and of arguments that do not fit."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format import record_block
from storage.format.arrays import sealed, string_hash, string_hashes
from storage.format.record import HOST_FLAGS
from storage.format.record_block import (
    CompiledJoin,
    OutgoingMessages,
    encode_block,
    encode_parts,
    encoded_name,
    write_commits,
)
from tests.format.test_record_parts import arrays, outgoing
from tests.support.kernels import ON, both, kernels, loaded

pytestmark = pytest.mark.slow  # they are compiled first, where they are not in the user's cache


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return loaded()


@pytest.fixture(scope="module", autouse=True)
def _kernels(compiled: ModuleType) -> None:
    if not compiled.HAS_CRC:
        pytest.skip("the isal package does not show its sum; Arrow joins records")


@given(outgoing(), st.sampled_from([1, 200, 1_000, 10_000]))
def test_records_are_the_same(case: tuple[OutgoingMessages, bytes], piece_bytes: int) -> None:
    with mock.patch.object(record_block, "PIECE_BYTES", piece_bytes):
        exact, fast = both(lambda: [piece.tobytes() for piece in encode_parts(*case)[1].pieces()])
    assert fast == exact
    whole, fast_whole = both(lambda: encode_block(*case).data.tobytes())
    assert fast_whole == whole == b"".join(exact)


@given(outgoing())
def test_the_kernel_joins_what_the_exact_path_joins(case: tuple[OutgoingMessages, bytes]) -> None:
    """Else the comparison above could hold because no kernel ever ran."""
    parts = encode_parts(*case)[1]
    sizes = parts.header["size_bytes"].astype(np.int64)
    with kernels("off"):
        exact = parts.joined().tobytes()
    with kernels(ON):
        join = CompiledJoin.of(parts)
        assert join is not None
        made = join.rows(0, len(sizes), int(sizes.sum()))
        assert made is None if not len(sizes) else made is not None and made.tobytes() == exact
        for row, end in enumerate(np.cumsum(sizes).tolist()):
            one = join.rows(row, row + 1, int(sizes[row]))
            assert one is not None
            assert one.tobytes() == exact[end - int(sizes[row]) : end]


BOUNDS = ("body_begins", "body_ends", "name_begins", "name_ends", "property_begins", "property_ends")


@given(outgoing().filter(lambda case: len(case[0].queue_codes) > 1), st.data())
def test_parts_that_do_not_lie_in_their_data_are_not_joined(
    case: tuple[OutgoingMessages, bytes], data: st.DataObject
) -> None:
    parts = encode_parts(*case)[1]
    size = int(parts.header["size_bytes"].sum())
    with kernels(ON):
        join = CompiledJoin.of(parts)
        assert join is not None
        count = len(parts.header)
        assert join.rows(0, count, size - 1) is None
        assert join.rows(0, count, size + 1) is None
        assert join.rows(-1, count, size) is None
        assert join.rows(0, count + 1, size) is None
        given_parts: Any = join.parts
        name = data.draw(st.sampled_from(BOUNDS))
        wrong = getattr(given_parts, name).copy()
        wrong[data.draw(st.integers(0, len(wrong) - 1))] = data.draw(st.sampled_from([-1, -(2**40), 2**40]))
        assert join._replace(parts=given_parts._replace(**{name: sealed(wrong)})).rows(0, count, size) is None
        for name in BOUNDS:
            short = sealed(getattr(given_parts, name)[:-1])
            assert join._replace(parts=given_parts._replace(**{name: short})).rows(0, count, size) is None


@given(outgoing(), st.data())
def test_commits_of_halves_are_the_same(case: tuple[OutgoingMessages, bytes], data: st.DataObject) -> None:
    messages, host = case
    block = encode_block(messages._replace(sys_flags=messages.sys_flags & ~HOST_FLAGS), host)  # hosts say their kind
    count = block.columns.row_count
    queues = (("T", 3), ("V2" * 70, 1))
    codes = np.array(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)), np.int32)
    names = np.array([len(encoded_name(topic.encode())) for topic, _ in queues])
    halves = np.array([len(encoded_name(topic.encode())) for topic, _ in block.columns.queues])
    sizes = block.columns.sizes_bytes.astype(np.int64)
    size = int((sizes - halves[block.columns.queue_codes] + names[codes]).sum())

    def written() -> bytes:
        out = np.empty(size, np.uint8)
        write_commits(out, block.data, np.cumsum(sizes) - sizes, queues, codes)
        return out.tobytes()

    exact, fast = both(written)
    assert fast == exact


TEXTS = st.text(st.characters(codec="ascii"), max_size=40) | st.text(st.characters(codec="utf-8"), max_size=9)


@given(st.data())
def test_hashes_of_texts_are_the_same(data: st.DataObject) -> None:
    kinds = (pa.string(), pa.large_string())
    texts = data.draw(arrays(TEXTS, kinds, count=data.draw(st.integers(0, 12)), nulls=True))
    exact, fast = both(lambda: string_hashes(texts).tolist())
    assert fast == exact == [string_hash(text or "") for text in texts.to_pylist()]


@pytest.mark.parametrize("offsets", [[0, 3, 2], [0, 2, 9], [-1, 2, 4], [0, 2]])
def test_texts_that_do_not_lie_in_their_data_are_not_hashed(compiled: ModuleType, offsets: list[int]) -> None:
    data = np.frombuffer(b"abcd", np.uint8)
    assert compiled.hash_texts(np.empty(2, np.int32), sealed(data), sealed(np.array([0, 2, 4], np.int64)))
    assert not compiled.hash_texts(np.empty(2, np.int32), sealed(data), sealed(np.array(offsets, np.int64)))
