"""Kernels that make records and hashes, held against the exact path: of any rows, and of arguments that do not fit."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import storage.format.arrays
from storage.format import record_block
from storage.format.arrays import Stretches, joined, sealed, string_hash, string_hashes
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
        made = filled(join, 0, len(sizes), int(sizes.sum()))
        assert made is None if not len(sizes) else made == exact
        for row, end in enumerate(np.cumsum(sizes).tolist()):
            assert filled(join, row, row + 1, int(sizes[row])) == exact[end - int(sizes[row]) : end]


def filled(join: CompiledJoin, first: int, last: int, size_bytes: int) -> bytes | None:
    """Records [first, last), if they take so many bytes."""
    out = np.empty(size_bytes, np.uint8)
    return out.tobytes() if join.fills(out, first, last, sums=True) else None


BOUNDS = [(part, bound) for part in ("bodies", "names", "properties") for bound in ("begins", "ends")]


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
        assert filled(join, 0, count, size - 1) is None
        assert filled(join, 0, count, size + 1) is None
        assert filled(join, -1, count, size) is None
        assert filled(join, 0, count + 1, size) is None

        def others(part: str, bound: str, numbers: np.ndarray) -> CompiledJoin:
            parts: Any = join.parts
            changed = getattr(parts, part)._replace(**{bound: sealed(numbers)})
            return join._replace(parts=parts._replace(**{part: changed}))

        part, bound = data.draw(st.sampled_from(BOUNDS))
        wrong = getattr(getattr(join.parts, part), bound).copy()
        wrong[data.draw(st.integers(0, len(wrong) - 1))] = data.draw(st.sampled_from([-1, -(2**40), 2**40]))
        assert filled(others(part, bound, wrong), 0, count, size) is None
        for part, bound in BOUNDS:
            short = getattr(getattr(join.parts, part), bound)[:-1]
            assert filled(others(part, bound, short), 0, count, size) is None


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


BINARY = (pa.binary(), pa.large_binary())
COLUMNS = st.sampled_from(["", "one text \u00fc", *(pa.string(), pa.large_string()), *BINARY])


@given(st.data())
def test_texts_joined_row_by_row_are_the_same(data: st.DataObject) -> None:
    count, pieces, expected = data.draw(st.integers(0, 9)), [], []
    for kind in [pa.large_string(), *data.draw(st.lists(COLUMNS, max_size=4))]:
        piece = kind
        if not isinstance(kind, str):
            values = st.binary(max_size=20) if kind in BINARY else TEXTS
            piece = data.draw(arrays(values, (kind,), count=count, nulls=True))
        pieces.append(piece)
        expected.append([piece] * count if isinstance(piece, str) else piece.to_pylist())
    order = data.draw(st.permutations(range(len(pieces))))

    def join() -> list[bytes]:
        found = joined(*(pieces[number] for number in order))
        assert found.type == pa.large_binary()
        return found.to_pylist()

    with mock.patch.object(storage.format.arrays, "FEW_ROWS", 0):
        exact, fast = both(join)
    texts = [[text.encode() if isinstance(text, str) else text or b"" for text in expected[number]] for number in order]
    assert fast == exact == [b"".join(row) for row in zip(*texts, strict=True)]


@pytest.mark.parametrize("single", [True, False])
def test_the_kernel_lays_texts_itself(single: bool) -> None:
    """Else the comparison above could hold because no kernel ever ran."""
    numbers = pa.array([str(number) for number in range(1_000)])
    with kernels(ON), mock.patch.object(pc, "binary_join_element_wise", side_effect=AssertionError):
        found = joined("<", numbers, ">") if single else joined(numbers, numbers)
    assert found.to_pylist() == [
        f"<{number}>".encode() if single else f"{number}{number}".encode() for number in range(1_000)
    ]


@pytest.mark.parametrize("mode", ["off", ON])
def test_columns_of_two_lengths_are_not_joined(mode: Literal["off", "on", "check"]) -> None:
    with kernels(mode), pytest.raises(pa.ArrowInvalid):
        joined(pa.array(["a"] * 1_000), pa.array(["b"]))


@pytest.mark.parametrize(
    ("places", "begins", "ends"),
    [
        ([0, 9], [0, 2], [2, 4]),
        ([0, -1], [0, 2], [2, 4]),
        ([0, 2], [0, 3], [2, 2]),
        ([0, 2], [0, 2], [2, 5]),
        ([0, 2], [0, -1], [2, 1]),
        ([0, 2], [0, 2], [2]),
        ([0, 2], [], []),
    ],
)
def test_texts_without_room_or_data_are_not_laid(
    compiled: ModuleType, places: list[int], begins: list[int], ends: list[int]
) -> None:
    data = np.frombuffer(b"abcd", np.uint8)

    def lay(places: list[int], begins: list[int], ends: list[int]) -> bool:
        stretches = Stretches(data, np.array(begins, np.int64), np.array(ends, np.int64)).sealed()
        return bool(compiled.lay(np.empty(10, np.uint8), np.array(places, np.int64), stretches))

    assert lay([0, 8], [0, 2], [2, 4])
    assert not lay(places, begins, ends)
