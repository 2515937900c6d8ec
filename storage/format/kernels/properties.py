"""Property strings of records into columns, compiled.

A string is regular if it is `name 0x01 value 0x02` throughout, well-formed UTF-8, with at most MAX_ENTRIES properties; the last 0x02
may be missing. Java: MessageDecoder.string2messageProperties.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from storage.format.kernels.ground import (
    BLOCK,
    BYTE_ROWS,
    BYTES,
    INT_ROWS,
    INTS,
    LONG,
    LONGS,
    READ,
    READ_INT64,
    copy16,
    high_bytes,
    inline,
    kernel,
    le_i64,
    low_bits,
    lowest_bit,
    memcpy,
    same,
    separators,
    u8,
    without_low_bits,
)

MAX_ENTRIES = 64
"""Properties of a record; one that has more is not regular."""
_WORD = 8
_FOUND = 2 * MAX_ENTRIES + BLOCK + 2


class Rows(NamedTuple):
    """Records in a buffer. All arrays but the last are read only."""

    buffer: Any
    """uint8, at least BLOCK bytes."""
    positions: Any
    """Where each record begins, int64."""
    sizes: Any
    """What each is said to take, int64."""
    places: Any
    """Where in the log each is said to lie, int64; empty = anywhere."""
    properties: Any
    """Where the properties of each begin, int64: `check` writes it."""


class Strings(NamedTuple):
    """A column of byte strings that grows."""

    offsets: Any
    """int32, one more than rows; the first is set."""
    data: Any
    """uint8, with room for all."""


ROWS = types.NamedTuple((READ, READ_INT64, READ_INT64, READ_INT64, LONGS), Rows)
STRINGS = types.NamedTuple((INTS, BYTES), Strings)


class Texts(NamedTuple):
    """Single properties that are wanted, a column each."""

    names: Any
    name_offsets: Any
    offsets: Any
    """int32, a row for each column."""
    valid: Any
    """uint8, a row for each column: 1 = there is a value."""
    data: Any
    """uint8; column i begins at i × `room`."""
    room: int
    has_null: Any
    """uint8 for each column."""


class Sequence(NamedTuple):
    """The names of the record before, which the next one has too, nearly always."""

    numbers: Any
    """int64: how many names, or −1 of none yet; how many are kept; bytes of those."""
    names: Any
    name_offsets: Any
    words: Any
    """int64, five for each name: its size; a mask of its first eight bytes, and these; the same of the next eight."""
    is_kept: Any
    """uint8: the last of equal names."""
    kept: Any
    kept_offsets: Any
    found: Any
    """int64: room for the places of a record's separators."""
    entries: Any
    """Which of them is each single property that is wanted, −1 = none."""


class Maps(NamedTuple):
    """All properties; no arrays but empty ones where they are not wanted."""

    offsets: Any
    """int32, one more than rows; the first is set."""
    names: Strings
    values: Strings
    sequence: Sequence


_TEXTS = types.NamedTuple((READ, LONGS, INT_ROWS, BYTE_ROWS, BYTES, LONG, BYTES), Texts)
_SEQUENCE = types.NamedTuple((LONGS, BYTES, LONGS, LONGS, BYTES, BYTES, LONGS, LONGS, LONGS), Sequence)
_MAPS = types.NamedTuple((INTS, STRINGS, STRINGS, _SEQUENCE), Maps)


def new_sequence(texts: int) -> Sequence:
    """That of no record."""
    return Sequence(
        np.array([-1, 0, 0]),
        np.empty(1 << 15, np.uint8),
        np.zeros(MAX_ENTRIES + 1, np.int64),
        np.empty(5 * MAX_ENTRIES, np.int64),
        np.empty(MAX_ENTRIES, np.uint8),
        np.empty(1 << 15, np.uint8),
        np.zeros(MAX_ENTRIES + 1, np.int64),
        np.empty(_FOUND, np.int64),
        np.empty(texts, np.int64),
    )


@inline
def _gather(target: Any, at: Any, source: Any, begin: Any, count: Any) -> Any:
    """Copy a short string in words of 16 bytes. Up to 15 bytes behind it in `target`, where nothing stands yet, hold anything then."""
    rounded = (count + 15) & -16
    if begin + rounded > len(source) or at + rounded > len(target):
        memcpy(target, at, source, begin, count)
        return
    done = 0
    while done < count:
        copy16(target, at + done, source, begin + done)
        done += 16


@inline
def _is_utf8(buffer: Any, at: Any, end: Any) -> bool:
    while at < end:
        lead = u8(buffer, at)
        if lead < 0x80:
            at += 1
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        if at + size > end:
            return False
        second = u8(buffer, at + 1)
        low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        if second < low or second > high:
            return False
        for i in range(2, size):
            if u8(buffer, at + i) & 0xC0 != 0x80:
                return False
        at += size
    return True


@inline
def _separate(buffer: Any, begin: Any, end: Any, found: Any) -> Any:
    """How many properties stand between two places, −1 where they are not regular. found[0] is begin − 1, and entry i has its name
    from found[2i] + 1 to found[2i + 1], its value from there + 1 to found[2i + 2].
    """
    found[0] = begin - 1
    count = np.int64(0)
    position = begin
    is_foreign = np.uint64(0)
    most = np.int64(len(buffer)) - BLOCK
    while position < end:
        at = min(position, most)
        mask = without_low_bits(separators(buffer, at), position - at)
        high = without_low_bits(high_bytes(buffer, at), position - at)
        if end - position < BLOCK:
            inside = low_bits(end - position)
            mask &= inside
            high &= inside
        is_foreign |= high
        while mask:
            count += 1
            found[count] = position + lowest_bit(mask)
            mask &= mask - np.uint64(1)
        if count > 2 * MAX_ENTRIES:
            return np.int64(-1)
        position = at + BLOCK
    closed = count
    if end > begin and (count == 0 or found[count] != end - 1):  # the last separator is missing
        count += 1
        found[count] = end
    if count & 1:
        return np.int64(-1)
    wrong = np.int64(0)
    for i in range(0, count, 2):
        equals = found[i + 1]
        wrong |= (u8(buffer, equals) ^ 1) | (equals == found[i] + 1) | (found[i + 2] == equals + 1)
        if i + 2 <= closed:
            wrong |= u8(buffer, found[i + 2]) ^ 2
    if wrong or (is_foreign and not _is_utf8(buffer, begin, end)):
        return np.int64(-1)
    return count >> 1


@inline
def _find(buffer: Any, found: Any, count: Any, texts: Texts, entries: Any) -> None:
    """Which entry each wanted property is, the last of equal names; −1 of one that is not there."""
    for column in range(len(entries)):
        begin = texts.name_offsets[column]
        size = texts.name_offsets[column + 1] - begin
        entries[column] = -1
        for i in range(count):
            if found[2 * i + 1] - found[2 * i] == size + 1 and same(buffer, found[2 * i] + 1, texts.names, begin, size):
                entries[column] = i


@inline
def _has_names(buffer: Any, found: Any, count: Any, sequence: Sequence) -> bool:
    """Whether the names are those of the record before."""
    if count != sequence.numbers[0]:
        return False
    if found[2 * count] + 2 * _WORD > len(buffer):
        return _has_names_at_the_end(buffer, found, count, sequence)
    words, other = sequence.words, np.int64(0)
    for i in range(count):
        begin, word = found[2 * i] + 1, 5 * i
        size = found[2 * i + 1] - begin
        other |= size ^ words[word]
        other |= (le_i64(buffer, begin) & words[word + 1]) ^ words[word + 2]
        other |= (le_i64(buffer, begin + _WORD) & words[word + 3]) ^ words[word + 4]
        if size > 2 * _WORD and other == 0:
            rest = sequence.name_offsets[i] + 2 * _WORD
            other |= not same(buffer, begin + 2 * _WORD, sequence.names, rest, size - 2 * _WORD)
    return other == 0


@inline
def _has_names_at_the_end(buffer: Any, found: Any, count: Any, sequence: Any) -> Any:
    """The same where words of the last name may lie behind the buffer."""
    for i in range(count):
        begin = sequence.name_offsets[i]
        size = sequence.name_offsets[i + 1] - begin
        if found[2 * i + 1] - found[2 * i] != size + 1 or not same(
            buffer, found[2 * i] + 1, sequence.names, begin, size
        ):
            return False
    return True


@inline
def _mask_of(size: Any) -> Any:
    """A mask of the first `size` bytes of a word."""
    if size <= 0:
        return np.int64(0)
    return np.int64(-1) if size >= _WORD else (np.int64(1) << (8 * size)) - 1


@inline
def _word_of(names: Any, at: Any, size: Any) -> Any:
    """The first `size` bytes there, at most eight, as the lowest of a word."""
    word = np.int64(0)
    for i in range(min(size, _WORD)):
        word |= u8(names, at + i) << (8 * i)
    return word


@inline
def _note_names(buffer: Any, found: Any, count: Any, sequence: Sequence) -> None:
    kept, kept_end = np.int64(0), np.int64(0)
    for i in range(count):
        begin, size = found[2 * i] + 1, found[2 * i + 1] - found[2 * i] - 1
        at = sequence.name_offsets[i]
        memcpy(sequence.names, at, buffer, begin, size)
        sequence.name_offsets[i + 1] = at + size
        sequence.words[5 * i] = size
        sequence.words[5 * i + 1] = _mask_of(size)
        sequence.words[5 * i + 2] = _word_of(sequence.names, at, size)
        sequence.words[5 * i + 3] = _mask_of(size - _WORD)
        sequence.words[5 * i + 4] = _word_of(sequence.names, at + _WORD, size - _WORD)
        is_kept = True
        for j in range(i + 1, count):
            if found[2 * j + 1] - found[2 * j] - 1 == size and same(buffer, begin, buffer, found[2 * j] + 1, size):
                is_kept = False
        sequence.is_kept[i] = is_kept
        if is_kept:
            memcpy(sequence.kept, kept_end, buffer, begin, size)
            kept_end += size
            kept += 1
            sequence.kept_offsets[kept] = kept_end
    sequence.numbers[0] = count
    sequence.numbers[1] = kept
    sequence.numbers[2] = kept_end


@kernel(types.boolean(ROWS, LONG, LONG, _TEXTS, _MAPS))
def properties(rows: Rows, first: int, last: int, texts: Texts, maps: Maps) -> bool:
    """The properties of rows that are checked: single ones, and all where `maps` has room for them."""
    columns = np.int64(len(texts.has_null))
    has_maps = len(maps.offsets) > 0
    sequence = maps.sequence
    found = sequence.found
    entry = np.int64(maps.offsets[first]) if has_maps else np.int64(0)
    names_at = np.int64(maps.names.offsets[entry]) if has_maps else np.int64(0)
    values_at = np.int64(maps.values.offsets[entry]) if has_maps else np.int64(0)
    for row in range(first, last):
        count = _separate(rows.buffer, rows.properties[row], rows.positions[row] + rows.sizes[row], found)
        if count < 0:
            return False
        if not _has_names(rows.buffer, found, count, sequence):
            _note_names(rows.buffer, found, count, sequence)
            _find(rows.buffer, found, count, texts, sequence.entries)
        for column in range(columns):
            at = np.int64(texts.offsets[column, row])
            which = sequence.entries[column]
            if which >= 0:
                begin = found[2 * which + 1] + 1
                size = found[2 * which + 2] - begin
                _gather(texts.data, column * texts.room + at, rows.buffer, begin, size)
                at += size
                texts.valid[column, row] = 1
            else:
                texts.valid[column, row] = 0
                texts.has_null[column] = 1
            texts.offsets[column, row + 1] = at
        if not has_maps:
            continue
        _gather(maps.names.data, names_at, sequence.kept, np.int64(0), sequence.numbers[2])
        for i in range(sequence.numbers[1]):
            maps.names.offsets[entry + i + 1] = names_at + sequence.kept_offsets[i + 1]
        names_at += sequence.numbers[2]
        for i in range(count):
            if sequence.is_kept[i]:
                begin = found[2 * i + 1] + 1
                size = found[2 * i + 2] - begin
                _gather(maps.values.data, values_at, rows.buffer, begin, size)
                values_at += size
                entry += 1
                maps.values.offsets[entry] = values_at
        maps.offsets[row + 1] = entry
    return True
