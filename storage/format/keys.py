"""A message's keys: its new unique key, its keys in the index, and the index file's layout.

    unique key   | 20 hex digits: who writes | 12 hex digits: rank |     32 characters, as long as the Java client's

    index file   0       40             40 + 4·S                  40 + 4·S + 20·N
                 | header | S slots (4) | N items (20)            |   big-endian

A slot holds the number of its newest item, an item the number of the one before. Items count from 1; item 0 stays unused, so the
header's count starts at 1 and the file is full at count ≥ N. S and N stand nowhere in the file.

An item is |"TOPIC#KEY".hashCode()|: of the unique key, then of those that KEYS holds between blanks, each once. From 5.4 on a tagged
message has one more, |"TOPIC#T#TAGS".hashCode()|, the last of its items. Of two joined strings,
hash(a + b) = hash(a)·31^length(b) + hash(b) modulo 2^32, so that nothing is put together to be hashed.

Java: MessageClientIDSetter; IndexHeader, IndexFile; IndexService.buildKey, and buildIndex, which enters a key twice that a message
names twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.arrays import (
    bytes_and_offsets,
    hashes_of,
    is_valid,
    sizes_of,
    string_hash,
    string_hashes,
    struct_of,
)

HEADER = np.dtype(
    [
        ("begin_time_ms", ">i8"),
        ("end_time_ms", ">i8"),
        ("begin_commitlog_offset", ">i8"),
        ("end_commitlog_offset", ">i8"),
        ("used_slot_count", ">i4"),
        ("index_count", ">i4"),  # next item to write; 1 in an empty file, 0 in one never flushed
    ]
)
HEADER_SIZE = HEADER.itemsize
HEADER_STRUCT = struct_of(HEADER)
SLOT = np.dtype(">i4")
ITEM = np.dtype(
    [
        ("key_hash", ">i4"),
        ("commitlog_offset", ">i8"),
        ("time_difference_s", ">i4"),  # store time − begin time of the file
        ("previous_item", ">i4"),  # of the same slot; 0 = none
    ]
)
ITEM_STRUCT = struct_of(ITEM)
assert (HEADER_SIZE, ITEM.itemsize) == (40, 20)


def index_file_size(slot_count: int, item_count: int) -> int:
    """Length in bytes of an index file of that geometry."""
    return HEADER_SIZE + SLOT.itemsize * slot_count + ITEM.itemsize * item_count


TAG_TYPE = "T"
"""The type of the items that name a tag. Java: MessageConst.INDEX_TAG_TYPE."""


def index_key(topic: str, key: str, index_type: str | None = None) -> str:
    """The text whose hash is entered. Every type but `TAG_TYPE` means a key. Java: IndexService.buildKey, queryOffset."""
    return f"{topic}#{TAG_TYPE}#{key}" if index_type == TAG_TYPE else f"{topic}#{key}"


PREFIX_BYTES = 10
RANK_BYTES = 6
FIRST_RANKS = 1 << 16
"""A new writer starts at one of so many ranks, at random."""
UNIQUE_KEY_LENGTH = 2 * (PREFIX_BYTES + RANK_BYTES)
RANK_DIGITS = 2 * RANK_BYTES
_PROCESS_BYTES = 4
_TAIL_BITS = 16
_TAIL_DIGITS = 4
"""A rank's last digits come from a table. Those before are the same in 65,536 keys."""
_FOUR_DIGITS = np.dtype(np.uint32)


def _power(length: int) -> np.uint32:
    """What the hash of a text is multiplied by, where so many characters follow."""
    return np.uint32(pow(31, length, 1 << 32))


@cache
def _tails() -> tuple[np.ndarray, np.ndarray]:
    """The last four digits of every rank, as `_FOUR_DIGITS`, and their hashes (uint32)."""
    digits, tails = np.frombuffer(b"0123456789ABCDEF", np.uint8), np.arange(1 << _TAIL_BITS, dtype=np.uint16)
    characters = np.stack([digits[tails >> shift & 15] for shift in (12, 8, 4, 0)], axis=1)
    hashes = np.zeros(len(tails), np.uint32)
    for digit in characters.T:
        hashes = hashes * np.uint32(31) + digit
    return characters.view(_FOUR_DIGITS)[:, 0], hashes


def new_prefix(process_id: int, random_bytes: Callable[[int], bytes]) -> bytes:
    """The prefix of a new writer: the process, and as many random bytes as it lacks."""
    process = process_id.to_bytes(_PROCESS_BYTES, "big")
    return process + random_bytes(PREFIX_BYTES - _PROCESS_BYTES)


class UniqueKeys:
    """The keys of ranks `first_rank` to `first_rank + count` under a prefix of 10 bytes."""

    def __init__(self, prefix: bytes, first_rank: int, count: int) -> None:
        if len(prefix) != PREFIX_BYTES:
            raise ValueError(f"a unique key's prefix has {PREFIX_BYTES} bytes, not {len(prefix)}")
        if first_rank + count > 1 << 8 * RANK_BYTES:
            raise OverflowError(f"rank {first_rank + count} needs more than {RANK_BYTES} bytes")
        digits, hashes = _tails()
        self._digits = np.empty((count, UNIQUE_KEY_LENGTH // _TAIL_DIGITS), _FOUR_DIGITS)
        self._hashes = np.empty(count, np.uint32)
        start = 0
        while start < count:  # a turn a head
            head, tail = divmod(first_rank + start, len(digits))
            rows = slice(start, min(start + len(digits) - tail, count))
            tails = slice(tail, tail + rows.stop - start)
            text = f"{prefix.hex().upper()}{head:0{RANK_DIGITS - _TAIL_DIGITS}X}"
            self._digits[rows, :-1] = np.frombuffer(text.encode(), _FOUR_DIGITS)
            self._digits[rows, -1] = digits[tails]
            before = string_hash(text) * int(_power(_TAIL_DIGITS)) & 0xFFFFFFFF
            self._hashes[rows] = np.uint32(before) + hashes[tails]
            start = rows.stop

    def texts(self) -> pa.Array:
        """The keys, large_string."""
        count = len(self._digits)
        offsets = np.arange(0, (count + 1) * UNIQUE_KEY_LENGTH, UNIQUE_KEY_LENGTH, dtype=np.int64)
        return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(self._digits))

    def marked(self, prefix: str) -> pa.Array:
        """Another text followed by the ranks in RANK_DIGITS hex digits, large_string."""
        ranks = np.ascontiguousarray(self._digits.view(np.uint8)[:, -RANK_DIGITS:])
        count, begin = len(ranks), np.frombuffer(prefix.encode(), np.uint8)
        texts = np.empty((count, len(begin) + RANK_DIGITS), np.uint8)
        texts[:, : len(begin)] = begin
        texts[:, len(begin) :] = ranks
        offsets = np.arange(0, (count + 1) * texts.shape[1], texts.shape[1], dtype=np.int64)
        return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(texts))

    def hashes_behind(self, hashes: np.ndarray) -> np.ndarray:
        """`String.hashCode` of a text, given by its hash (a uint32 array of one or n), followed by each key; uint32."""
        return hashes * _power(UNIQUE_KEY_LENGTH) + self._hashes


class HashedTexts(NamedTuple):
    """Texts of n messages, hashed by themselves. So they can be behind other texts, and be read once for several of these."""

    rows: np.ndarray
    """int64: the message of each text, ascending."""
    hashes: np.ndarray
    """uint32: `String.hashCode`."""
    powers: np.ndarray
    """uint32: what the hash of the text before is multiplied by."""

    @classmethod
    def of(cls, rows: np.ndarray, texts: pa.Array) -> HashedTexts:
        """Those of large_strings without nulls, one a row."""
        lengths = _utf16_lengths(texts)
        powers = np.full(int(lengths.max(initial=0)) + 1, 31, np.uint32)
        powers[0] = 1
        return cls(rows, string_hashes(texts).view(np.uint32), np.cumprod(powers, dtype=np.uint32)[lengths])

    @classmethod
    def of_keys(cls, keys: pa.Array | None) -> HashedTexts:
        """The keys that KEYS (large_string) of n messages holds between blanks."""
        if keys is None or keys.null_count == len(keys):
            return cls(np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32))
        return cls.of(*_single_keys(keys))

    def behind(self, prefixes: np.ndarray) -> np.ndarray:
        """The hashes (uint32) where each text follows one whose hash (uint32) is given: one, or one a message."""
        return (prefixes if len(prefixes) == 1 else prefixes[self.rows]) * self.powers + self.hashes


def hashes_behind(hashes: np.ndarray, texts: pa.Array) -> np.ndarray:
    """`String.hashCode` of each text behind another one with the given hash (uint32), uint32. Texts are large_string without nulls."""
    return HashedTexts.of(np.arange(len(texts)), texts).behind(hashes)


def _utf16_lengths(texts: pa.Array) -> np.ndarray:
    """Java's `String.length` of each."""
    data, offsets = bytes_and_offsets(texts)
    if not len(data) or data.max() < 0x80:
        return np.diff(offsets)
    units = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
    return np.diff(np.concatenate(([0], np.cumsum(units)))[offsets])


def index_hashes(hashes: np.ndarray) -> np.ndarray:
    """From `String.hashCode` (uint32) to what the index holds: the absolute value, 0 for the one that has none. int32.

    Java: IndexFile.indexKeyHashMethod.
    """
    values = np.abs(hashes.view(np.int32))
    values[values < 0] = 0
    return values


_BLANK = ord(" ")
NO_KEY = -1
"""Replaces the hash of a missing unique key; no hash of the index is negative."""


def tag_hashes(prefixes: np.ndarray, tags: pa.Array) -> np.ndarray:
    """What the index holds for each message's tags (large_string), NO_KEY without any; `prefixes` as of `message_keys`. int32."""
    has_tags = pc.fill_null(pc.greater(pc.binary_length(tags), 0), False).to_numpy(zero_copy_only=False)
    behind = prefixes * np.uint32(31 * 31) + np.uint32(string_hash(f"{TAG_TYPE}#"))
    return np.where(has_tags, index_hashes(hashes_behind(behind, tags.fill_null(""))), NO_KEY).astype(np.int32)


def with_tag_hashes(counts: np.ndarray, hashes: np.ndarray, tags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `message_keys` returned, with each message's tag hash, if it has one, behind its keys."""
    has_tags = tags != NO_KEY
    counts = counts + has_tags.astype(np.int32)
    found = np.empty(int(counts.sum()), np.int32)
    is_tag = np.zeros(len(found), bool)
    is_tag[np.cumsum(counts)[has_tags] - 1] = True
    found[is_tag] = tags[has_tags]
    found[~is_tag] = hashes
    return counts, found


def message_keys(prefixes: np.ndarray, unique_hashes: np.ndarray, keys: HashedTexts) -> tuple[np.ndarray, np.ndarray]:
    """How many keys each of n messages has in the index (int32), and the hashes of all (int32), message by message.

    `prefixes` are `String.hashCode` of what precedes each message's keys (uint32, one or n), `unique_hashes` those of the index or
    NO_KEY, `keys` those of KEYS.
    """
    has_unique = unique_hashes != NO_KEY
    count = len(unique_hashes)
    rows, hashes = keys.rows, index_hashes(keys.behind(prefixes))
    if not len(rows):
        return has_unique.astype(np.int32), unique_hashes[has_unique]
    new = hashes != unique_hashes[rows]
    if len(rows) > 1 and (rows[1:] == rows[:-1]).any():
        _, first = np.unique(rows << 32 | hashes, return_index=True)
        is_first = np.zeros(len(rows), bool)
        is_first[first] = True
        new &= is_first
    if np.array_equal(rows, np.arange(count)) and new.all() and has_unique.all():  # one of each in every message
        return np.full(count, 2, np.int32), np.stack((unique_hashes, hashes), axis=1).reshape(-1)
    rows, hashes = rows[new], hashes[new]
    counts = has_unique + np.bincount(rows, minlength=count)
    found = np.empty(int(counts.sum()), np.int32)
    is_unique = np.zeros(len(found), bool)
    is_unique[(np.cumsum(counts) - counts)[has_unique]] = True
    found[is_unique] = unique_hashes[has_unique]
    found[~is_unique] = hashes
    return counts.astype(np.int32), found


def _single_keys(keys: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """The keys in the texts, which are separated by blanks, and the row of each."""
    present = np.flatnonzero(is_valid(keys))
    texts = keys if len(present) == len(keys) else keys.take(pa.array(present))
    rows = present
    if (bytes_and_offsets(texts)[0] == _BLANK).any():
        lists = pc.split_pattern(texts, " ")
        rows = np.repeat(present, pc.list_value_length(lists).to_numpy())
        texts = lists.flatten()
    is_filled = sizes_of(texts) > 0
    return (rows, texts) if is_filled.all() else (rows[is_filled], texts.filter(pa.array(is_filled)))


def few_message_keys(
    topics: Sequence[str], properties: Sequence[Mapping[str, str]], *, indexes_tags: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Like `message_keys`, and with `indexes_tags` `with_tag_hashes`, for a few messages, by their topics and properties."""
    texts: list[str] = []
    ends: list[int] = []
    for topic, own in zip(topics, properties, strict=True):
        if unique := own.get("UNIQ_KEY"):
            texts.append(index_key(topic, unique))
        if keys := own.get("KEYS"):
            texts += [index_key(topic, key) for key in keys.split(" ") if key]
        if indexes_tags and (tags := own.get("TAGS")):
            texts.append(index_key(topic, tags, TAG_TYPE))
        ends.append(len(texts))
    hashes = index_hashes(hashes_of(texts).view(np.uint32)).tolist()
    found: list[int] = []
    counts: list[int] = []
    start = 0
    for end in ends:
        kept = dict.fromkeys(hashes[start:end])  # each once
        found += kept
        counts.append(len(kept))
        start = end
    return np.array(counts, np.int32), np.array(found, np.int32)
