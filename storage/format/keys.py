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
_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_PAIRS = np.stack((np.repeat(_DIGITS, 16), np.tile(_DIGITS, 16)), axis=1).copy().view(np.uint16)[:, 0]
_PAIR_HASHES = np.repeat(31 * _DIGITS.astype(np.uint32), 16) + np.tile(_DIGITS, 16)
_PAIR_POWERS = np.array([pow(31, 2 * (RANK_BYTES - 1 - i), 1 << 32) for i in range(RANK_BYTES)], np.uint32)
_POWER_OF_RANK = np.uint32(pow(31, RANK_DIGITS, 1 << 32))
_POWER_OF_PREFIX = np.uint32(pow(31, 2 * PREFIX_BYTES, 1 << 32))


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
        self._prefix = prefix.hex().upper()
        self._prefix_hash = np.uint32(string_hash(self._prefix) & 0xFFFFFFFF)
        self._digits = np.empty((count, UNIQUE_KEY_LENGTH), np.uint8)
        ranks = np.arange(first_rank, first_rank + count, dtype=">i8").view(np.uint8).reshape(count, 8)
        self._ranks = np.ascontiguousarray(ranks[:, 8 - RANK_BYTES :])
        self._digits[:, : 2 * PREFIX_BYTES] = np.frombuffer(self._prefix.encode(), np.uint8)
        self._digits[:, 2 * PREFIX_BYTES :] = _PAIRS[self._ranks].view(np.uint8)

    def texts(self) -> pa.Array:
        """The keys, large_string."""
        count = len(self._digits)
        offsets = np.arange(0, (count + 1) * UNIQUE_KEY_LENGTH, UNIQUE_KEY_LENGTH, dtype=np.int64)
        return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(self._digits))

    def marked(self, prefix: str) -> pa.Array:
        """Another text followed by the ranks in RANK_DIGITS hex digits, large_string."""
        ranks = np.ascontiguousarray(self._digits[:, 2 * PREFIX_BYTES :])
        count, begin = len(ranks), np.frombuffer(prefix.encode(), np.uint8)
        texts = np.empty((count, len(begin) + RANK_DIGITS), np.uint8)
        texts[:, : len(begin)] = begin
        texts[:, len(begin) :] = ranks
        offsets = np.arange(0, (count + 1) * texts.shape[1], texts.shape[1], dtype=np.int64)
        return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(texts))

    def hashes_behind(self, hashes: np.ndarray) -> np.ndarray:
        """`String.hashCode` of a text, given by its hash (a uint32 array of one or n), followed by each key; uint32."""
        before = hashes * _POWER_OF_PREFIX + self._prefix_hash
        return before * _POWER_OF_RANK + _PAIR_HASHES[self._ranks] @ _PAIR_POWERS


def hashes_behind(hashes: np.ndarray, texts: pa.Array) -> np.ndarray:
    """`String.hashCode` of each text behind another one with the given hash (uint32), uint32. Texts are large_string without nulls."""
    lengths = _utf16_lengths(texts)
    powers = np.full(int(lengths.max(initial=0)) + 1, 31, np.uint32)
    powers[0] = 1
    return hashes * np.cumprod(powers, dtype=np.uint32)[lengths] + string_hashes(texts).view(np.uint32)


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


def message_keys(
    prefixes: np.ndarray, unique_hashes: np.ndarray, keys: pa.Array | None
) -> tuple[np.ndarray, np.ndarray]:
    """How many keys each of n messages has in the index (int32), and the hashes of all (int32), message by message.

    `prefixes` are `String.hashCode` of what precedes each message's keys (uint32, one or n), `unique_hashes` those of the index or
    NO_KEY, `keys` KEYS as large_string.
    """
    has_unique = unique_hashes != NO_KEY
    count = len(unique_hashes)
    if keys is None or keys.null_count == count:
        return has_unique.astype(np.int32), unique_hashes[has_unique]
    rows, texts = _single_keys(keys)
    hashes = index_hashes(hashes_behind(prefixes if len(prefixes) == 1 else prefixes[rows], texts))
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
