"""Which keys of a message the index holds: the unique key, then those that KEYS holds between blanks, each once.

    |"TOPIC#KEY".hashCode()|   one item a key

Java: IndexService.buildIndex, which enters a key twice that a message names twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.index import index_key
from storage.format.java_hash import hashes_of
from storage.format.kernels.compiled import ENCODE, as_int32, sealed, strings_of
from storage.format.texts import bytes_and_offsets, is_valid
from storage.format.unique_key import hashes_behind, index_hashes

NO_KEY = -1
"""Stands for the hash of a unique key that a message does not have; no hash of the index is negative."""


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
    kernels = ENCODE.for_rows()
    if kernels is not None and keys.type == pa.large_string():
        counts, found = np.empty(count, np.int32), np.empty(2 * count + len(bytes_and_offsets(keys)[0]) // 2, np.int32)
        strings = strings_of(kernels, keys)
        total = kernels.hash_keys(counts, found, sealed(prefixes), as_int32(unique_hashes), *strings)
        if total >= 0:
            return counts, found[:total].copy()
    rows, texts = _single_keys(keys)
    hashes = index_hashes(hashes_behind(prefixes if len(prefixes) == 1 else prefixes[rows], texts))
    new = hashes != unique_hashes[rows]
    if len(rows) > 1 and (rows[1:] == rows[:-1]).any():
        _, first = np.unique(rows << 32 | hashes, return_index=True)
        is_first = np.zeros(len(rows), bool)
        is_first[first] = True
        new &= is_first
    rows, hashes = rows[new], hashes[new]
    counts = has_unique + np.bincount(rows, minlength=count)
    found = np.empty(int(counts.sum()), np.int32)
    is_unique = np.zeros(len(found), bool)
    is_unique[(np.cumsum(counts) - counts)[has_unique]] = True
    found[is_unique] = unique_hashes[has_unique]
    found[~is_unique] = hashes
    return counts.astype(np.int32), found


def _single_keys(keys: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """The keys that the texts hold between their blanks, and the row of each."""
    present = np.flatnonzero(is_valid(keys))
    texts = keys if len(present) == len(keys) else keys.take(pa.array(present))
    if not pc.any(pc.match_substring(texts, " ")).as_py():
        filled = pc.greater(pc.binary_length(texts), 0)
        return present[filled.to_numpy(zero_copy_only=False)], texts.filter(filled)
    lists = pc.split_pattern(texts, " ")
    rows = np.repeat(present, pc.list_value_length(lists).to_numpy())
    singles = lists.flatten()
    filled = pc.greater(pc.binary_length(singles), 0)
    return rows[filled.to_numpy(zero_copy_only=False)], singles.filter(filled)


def few_message_keys(topics: Sequence[str], properties: Sequence[Mapping[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """The same of a few messages, by their topics and properties."""
    texts: list[str] = []
    ends: list[int] = []
    for topic, own in zip(topics, properties, strict=True):
        if unique := own.get("UNIQ_KEY"):
            texts.append(index_key(topic, unique))
        if keys := own.get("KEYS"):
            texts += [index_key(topic, key) for key in keys.split(" ") if key]
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
