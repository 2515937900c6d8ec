"""Arrays of values: one layout declaration for many values and for one, reusable memory, Arrow columns of text, Java's hashes.

A column of text from outside becomes Arrow `large_string` without a copy and without a check: a caller that needs well-formed text
calls `malformed_rows`.

Hashes are those that RocketMQ stores: String.hashCode, the index's key hash, the body CRC. `String.hashCode` is
s[0]·31^(n-1) + … + s[n-1] over UTF-16 units, modulo 2^32. For many strings at once the sum is a difference of prefix sums of
s[i]·31^-i: 31 is odd, so it has an inverse modulo 2^32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from storage.compiler import COMPILED

_STRUCT_CODES = {
    ("i", 1): "b",
    ("u", 1): "B",
    ("i", 2): "h",
    ("u", 2): "H",
    ("i", 4): "i",
    ("u", 4): "I",
    ("i", 8): "q",
}


def struct_of(layout: np.dtype) -> struct.Struct:
    """The scalar `struct.Struct` of a packed big-endian NumPy structure; `V` fields become `bytes`."""
    codes = [">"]
    for name in layout.names or ():
        field = layout[name]
        codes.append(f"{field.itemsize}s" if field.kind == "V" else _STRUCT_CODES[field.kind, field.itemsize])
    scalar = struct.Struct("".join(codes))
    if scalar.size != layout.itemsize:
        raise ValueError(f"the layout {layout} is not packed and big-endian")
    return scalar


def view_at(buffer: np.ndarray, positions: np.ndarray, layout: np.dtype) -> np.ndarray:
    """The structures that begin at the given byte positions of a `uint8` buffer, gathered.

    Every position must be within `len(buffer) - layout.itemsize`. A view of stride 1 makes the gather one
    memory copy a row, several times cheaper than an index matrix.
    """
    if not len(positions):
        return np.empty(0, layout)
    void = np.dtype((np.void, layout.itemsize))
    rows = np.ndarray((len(buffer) - layout.itemsize + 1,), void, buffer, strides=(1,))
    return rows[positions].view(layout)


def as_int64(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers as kernels read them."""
    return sealed(numbers.astype(np.int64, copy=False))


def sealed(array: np.ndarray) -> np.ndarray:
    """The same array, read-only and contiguous: the type that kernels' signatures have for read-only arguments."""
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = array.copy()
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def words_of(text: bytes) -> list[tuple[int, np.ndarray]]:
    """A text as machine words, for comparing it with many places at once: (position, word), the last overlapping if need be."""
    if not text:
        return []
    width = next(width for width in (8, 4, 2, 1) if width <= len(text))
    starts = [*range(0, len(text) - width, width), len(text) - width]
    return [(at, np.frombuffer(text[at : at + width], f"u{width}")[0]) for at in starts]


def sorted_by_code(codes: np.ndarray, count: int) -> np.ndarray:
    """Row numbers sorted by code, equal codes in their order. Small codes are sorted by radix, in linear time."""
    small = next((kind for kind in (np.uint8, np.uint16) if count <= 1 << 8 * np.dtype(kind).itemsize), codes.dtype)
    return np.argsort(codes.astype(small), kind="stable")


def row_windows(places: np.ndarray, sizes: np.ndarray, window_bytes: int) -> Iterator[tuple[slice, int]]:
    """Groups of ranges of a buffer (`places` ascend), each of about `window_bytes` or one range: the ranges, and the end."""
    ends = np.maximum.accumulate(places + sizes)
    first = 0
    while first < len(places):
        last = max(first + 1, int(np.searchsorted(ends, places[first] + window_bytes, side="right")))
        yield slice(first, last), int(ends[last - 1])
        first = last


FEW_ROWS = 64


def is_few(count: int) -> bool:
    """Whether so many rows are processed one by one."""
    return count <= FEW_ROWS


class Memory:
    """Reusable memory of one reader, for data that is gathered before it is copied into arrays of its size."""

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray] = {}

    def take(self, name: str, size_bytes: int) -> np.ndarray:
        """`size_bytes` bytes with any content, in the memory of this name."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < size_bytes:
            kept = self._kept[name] = np.empty(size_bytes + size_bytes // 4, np.uint8)
        return kept[:size_bytes]

    def longs(self, name: str, count: int) -> np.ndarray:
        """Like `take`, as int64."""
        return self.take(name, 8 * count).view(np.int64)

    def ints(self, name: str, *shape: int) -> np.ndarray:
        """Like `take`, as int32."""
        return self.take(name, 4 * int(np.prod(shape))).view(np.int32).reshape(shape)


SEPARATORS = b"\x01\x02"
"""The separators between and within properties."""
CONTROL_CHARACTERS = bytes(range(0x20)) + b"\x7f"
_DELETE = 0x7F


def as_texts(column: pa.Array) -> pa.Array:
    """A string, binary or null column as large_string; binary is assumed to be UTF-8, without a check."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.large_binary()).view(pa.large_string())
    return column if pa.types.is_large_string(column.type) else column.cast(pa.large_string())


def as_large_binary(column: pa.Array) -> pa.Array:
    """A binary column with offsets of 64 bits."""
    return column if pa.types.is_large_binary(column.type) else column.cast(pa.large_binary())


def empty_as_null(texts: pa.Array) -> pa.Array:
    """The same with null for every empty text: a property without a value does not exist (Java drops it on reading)."""
    sizes = pc.binary_length(texts)
    if (pc.min(sizes).as_py() or 0) > 0 or texts.null_count == len(texts):
        return texts
    return pc.if_else(pc.greater(sizes, 0), texts, pa.scalar(None, pa.large_string()))


def sizes_of(texts: pa.Array) -> np.ndarray:
    """Bytes of each text, int64; 0 for null."""
    sizes = pc.binary_length(texts)
    return np.asarray((sizes.fill_null(0) if texts.null_count else sizes).to_numpy(), np.int64)


def is_valid(column: pa.Array) -> np.ndarray:
    """Which rows are not null."""
    if not column.null_count:
        return np.ones(len(column), bool)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)


def bytes_and_offsets(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a large_string or large_binary array, and the n + 1 offsets of its rows."""
    _, offsets_buffer, data_buffer = texts.buffers()
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int64, len(texts) + 1, offset=8 * texts.offset)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]


class Stretches(NamedTuple):
    """n stretches of a buffer: data[begins[i]:ends[i]]."""

    data: np.ndarray
    """uint8."""
    begins: np.ndarray
    """int64."""
    ends: np.ndarray
    """int64."""

    @classmethod
    def of(cls, texts: pa.Array | str) -> Stretches:
        """Those of a column, empty for null; of a text, one."""
        if isinstance(texts, str):
            data = np.frombuffer(texts.encode(), np.uint8)
            return cls(data, np.zeros(1, np.int64), np.array([len(data)]))
        data, offsets = bytes_and_offsets(texts if pa.types.is_large_string(texts.type) else as_large_binary(texts))
        ends = np.where(is_valid(texts), offsets[1:], offsets[:-1]) if texts.null_count else offsets[1:]
        return cls(data, offsets[:-1], ends)

    def sealed(self) -> Stretches:
        """As kernels read them."""
        return Stretches(*map(sealed, self))


_NOTHING = pa.scalar(b"", pa.large_binary())
_NULL_IS_NOTHING = pc.JoinOptions(null_handling="replace", null_replacement="")


def joined(*pieces: pa.Array | str) -> pa.Array:
    """The pieces one after the other, row by row, large_binary. A `str` is the same in every row, null adds nothing.

    At least one is a column, of texts or binary. Raises pa.ArrowInvalid for columns of several lengths.
    """
    count, *others = {len(piece) for piece in pieces if isinstance(piece, pa.Array)}
    if not others and not is_few(count) and (kernels := COMPILED.for_rows()) is not None:
        stretches = [Stretches.of(piece).sealed() for piece in pieces]
        offsets = np.zeros(count + 1, np.int64)
        for each in stretches:
            offsets[1:] += each.ends - each.begins
        np.cumsum(offsets, out=offsets)
        data, places = np.empty(int(offsets[-1]), np.uint8), offsets[:-1].copy()
        if all(kernels.lay(data, places, each) for each in stretches):
            return pa.LargeBinaryArray.from_buffers(
                pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
            )
    columns = (
        pa.scalar(piece.encode(), pa.large_binary()) if isinstance(piece, str) else piece.cast(pa.large_binary())
        for piece in pieces
    )
    return pc.binary_join_element_wise(*columns, _NOTHING, options=_NULL_IS_NOTHING)


def rows_with(texts: pa.Array, characters: bytes) -> np.ndarray:
    """Which rows, ascending, hold one of these ASCII characters."""
    data, offsets = bytes_and_offsets(texts)
    greatest = max(character for character in characters if character != _DELETE)
    if not len(data) or (data.min() > greatest and not (_DELETE in characters and (data == _DELETE).any())):
        return np.empty(0, np.int64)
    unwanted = np.zeros(256, bool)
    unwanted[list(characters)] = True
    places = np.flatnonzero(unwanted[data])
    return _is_present(texts, np.unique(np.searchsorted(offsets, places, side="right") - 1))


def malformed_rows(texts: pa.Array) -> np.ndarray:
    """Which rows, ascending, are not UTF-8."""
    data, offsets = bytes_and_offsets(texts)
    if not len(data) or data.max() < 0x80:
        return np.empty(0, np.int64)
    try:
        texts.cast(pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        foreign = np.unique(np.searchsorted(offsets, np.flatnonzero(data >= 0x80), side="right") - 1)
        wrong = [row for row in foreign.tolist() if not is_utf8(data[offsets[row] : offsets[row + 1]].tobytes())]
        return _is_present(texts, np.array(wrong, np.int64))
    return np.empty(0, np.int64)


def _is_present(texts: pa.Array, rows: np.ndarray) -> np.ndarray:
    """Those of these rows that are not null: the bytes of a null row are meaningless."""
    return rows[is_valid(texts)[rows]] if texts.null_count else rows


def is_utf8(text: bytes) -> bool:
    """Whether a strict decoder accepts the bytes."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


CRC_MASK = 0x7FFFFFFF
Hashes = TypeVar("Hashes", int, np.ndarray)
_FEW_CHARACTERS = 400
"""Up to so many are added one by one."""
_INVERSE_OF_31 = pow(31, -1, 2**32)


def string_hash(text: str) -> int:
    """Java's `String.hashCode`, a signed 32-bit number."""
    value = 0
    if text.isascii():
        units: Iterable[int] = text.encode("ascii")
    else:
        units = np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2").tolist()
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def string_hashes(texts: pa.Array) -> np.ndarray:
    """`String.hashCode` of every element of a string array, `int32`; null counts as the empty string."""
    texts = as_texts(texts)
    if len(texts) == 0:
        return np.empty(0, np.int32)
    if texts.null_count:
        texts = texts.fill_null("")
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, len(texts) + 1, offset=8 * texts.offset)
    if data_buffer is None or offsets[0] == offsets[-1]:
        return np.zeros(len(texts), np.int32)
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    if (kernels := COMPILED.for_rows()) is not None:  # rows are counted where their bodies are
        hashes = np.empty(len(texts), np.int32)
        if kernels.hash_texts(hashes, sealed(data), sealed(offsets)):
            return hashes
    if data.max() >= 0x80:  # bytes are not UTF-16 units there: hash the distinct values one by one
        distinct = texts.dictionary_encode()
        hashes = np.array([string_hash(text) for text in distinct.dictionary.to_pylist()], np.int32)
        return hashes[distinct.indices.to_numpy()]
    return _ascii_hashes(data, offsets)


def hashes_of(texts: Sequence[str]) -> np.ndarray:
    """Like `string_hashes` for a few texts, `int32`, where an array would cost more than the hashes."""
    joined = "".join(texts)
    if len(joined) <= _FEW_CHARACTERS:
        return np.array([string_hash(text) for text in texts], np.int32)
    if not joined.isascii():
        return np.array([string_hash(text) for text in texts], np.int32)
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=offsets[1:])
    return (
        _ascii_hashes(np.frombuffer(joined.encode("ascii"), np.uint8), offsets)
        if joined
        else np.zeros(len(texts), np.int32)
    )


@lru_cache(maxsize=4)
def _power_table(base: int, count: int) -> np.ndarray:
    powers = np.full(count, base, np.uint32)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint32)


def _powers(base: int, count: int) -> np.ndarray:
    """base^0 to base^(count − 1) modulo 2^32."""
    return _power_table(base, max(1 << 18, 1 << (count - 1).bit_length()))[:count]


def _ascii_hashes(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    prefix = np.zeros(len(data) + 1, np.uint32)
    np.cumsum(data * _powers(_INVERSE_OF_31, len(data)), dtype=np.uint32, out=prefix[1:])
    starts, ends = offsets[:-1], offsets[1:]
    sums = prefix[ends] - prefix[starts]
    return (sums * _powers(31, len(data))[np.maximum(ends - 1, 0)]).view(np.int32)


def queue_of_hash(hashes: Hashes, queue_counts: Hashes) -> Hashes:
    """Which of so many queues a hash selects, for one (int) or many (int64). Java: SelectMessageQueueByHash, |remainder|."""
    return abs(hashes) % queue_counts


def index_key_hash(key: str) -> int:
    """Hash of an index key: |String.hashCode|, 0 for the one negative absolute value. Java: IndexFile.indexKeyHashMethod."""
    value = abs(string_hash(key))
    return 0 if value == 1 << 31 else value


def body_crc(body: bytes | memoryview | np.ndarray) -> int:
    """CRC-32 of a stored body as a record holds it: the top bit cleared. Java: UtilAll.crc32."""
    return isal_zlib.crc32(body) & CRC_MASK


def crcs_between(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The same of the bytes [start, end) of a `uint8` buffer, for many at once; int64."""
    if (kernels := COMPILED.for_rows(len(starts))) is not None and kernels.HAS_CRC:
        sums = np.empty(len(starts), np.int64)
        if kernels.crcs(sealed(data), as_int64(starts), as_int64(ends), sums):
            return sums
    parts = map(data.data.__getitem__, map(slice, starts.tolist(), ends.tolist()))
    return np.fromiter(map(isal_zlib.crc32, parts), np.int64, len(starts)) & CRC_MASK
