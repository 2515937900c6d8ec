"""Message properties: `name 0x01 value 0x02` repeated, UTF-8. Java: MessageDecoder.string2messageProperties, MessageConst.

Reading, as Java does: the last 0x02 may be missing; the first 0x01 of an entry splits it, so a value may contain more;
an entry without 0x01, or with an empty name or value, is dropped; of equal names the last wins; malformed UTF-8
becomes U+FFFD; NUL is an ordinary character.

`decode_property_maps` does it for many messages at once. Its fast path takes rows in which every entry is regular; a
vectorised check finds the others, which go through `decode_properties` one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NAME_VALUE_SEPARATOR = 1
PROPERTY_SEPARATOR = 2
PROPERTIES_LIMIT_BYTES = 32_767


def decode_properties(raw: bytes | memoryview) -> dict[str, str]:
    """The properties of one message."""
    properties: dict[str, str] = {}
    for entry in bytes(raw).split(b"\x02"):
        name, _, value = entry.partition(b"\x01")
        if name and value:
            properties[name.decode(errors="replace")] = value.decode(errors="replace")
    return properties


class PropertyMaps(NamedTuple):
    """The properties of n messages: message i has the names and values `offsets[i]` to `offsets[i + 1]`."""

    offsets: np.ndarray  # int32, n + 1
    names: pa.StringArray
    values: pa.StringArray

    def map_array(self) -> pa.MapArray:
        """As Arrow `map<string, string>`."""
        return pa.MapArray.from_arrays(pa.array(self.offsets), self.names, self.values)

    def values_of(self, name: str) -> pa.StringArray:
        """The value of one property for every message, null where a message has none."""
        found = np.flatnonzero(pc.equal(self.names, name).to_numpy(zero_copy_only=False))
        rows = np.searchsorted(self.offsets, found, side="right") - 1
        taken = np.full(len(self.offsets) - 1, -1, np.int64)
        taken[rows] = found
        return self.values.take(pa.array(taken, mask=taken < 0))


def decode_property_maps(raw: pa.Array) -> PropertyMaps:
    """The properties of many messages, from a binary array without nulls."""
    raw = _closed(raw.cast(pa.binary()))
    data, offsets = _bytes_and_offsets(raw)
    entries = _entries(data, offsets)
    if entries is not None and (len(data) == 0 or data.max() < 0x80 or _is_utf8(data)):
        return _last_of_equal_names(_gather(data, entries))
    return _decode_mixed(raw)


class _Entries(NamedTuple):
    """Where names and values begin and end in the bytes; row i has the entries `offsets[i]` to `offsets[i + 1]`."""

    offsets: np.ndarray
    name_starts: np.ndarray
    name_ends: np.ndarray
    value_ends: np.ndarray


def _closed(raw: pa.Array) -> pa.Array:
    """The same with the last 0x02 in place in every row that is not empty."""
    data, offsets = _bytes_and_offsets(raw)
    if not len(data):
        return raw
    is_open = (data[np.maximum(offsets[1:] - 1, 0)] != PROPERTY_SEPARATOR) & (offsets[1:] > offsets[:-1])
    if not is_open.any():
        return raw
    closing = pa.array([b"", b"\x02"], pa.binary()).take(pa.array(is_open.astype(np.int8)))
    return pc.binary_join_element_wise(raw, closing, b"")


def _bytes_and_offsets(raw: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    _, offsets_buffer, data_buffer = raw.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(raw) + 1, offset=4 * raw.offset)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]


def _entries(data: np.ndarray, offsets: np.ndarray) -> _Entries | None:
    """The entries of all rows, or None where a row is irregular: then the separators do not simply alternate."""
    separators = np.flatnonzero((data - 1) < 2)  # exactly 0x01 and 0x02: NUL wraps to 255
    kinds = data[separators]
    if len(separators) % 2 or (kinds[::2] != NAME_VALUE_SEPARATOR).any() or (kinds[1::2] != PROPERTY_SEPARATOR).any():
        return None
    name_ends, value_ends = separators[::2], separators[1::2]
    name_starts = np.empty_like(value_ends)
    name_starts[:1] = 0
    name_starts[1:] = value_ends[:-1] + 1
    if (name_ends == name_starts).any() or (value_ends == name_ends + 1).any():
        return None
    return _Entries(np.searchsorted(name_starts, offsets).astype(np.int32), name_starts, name_ends, value_ends)


def _is_utf8(data: np.ndarray) -> bool:
    try:
        data.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _gather(data: np.ndarray, entries: _Entries) -> PropertyMaps:
    return PropertyMaps(
        entries.offsets,
        _gather_strings(data, entries.name_starts, entries.name_ends),
        _gather_strings(data, entries.name_ends + 1, entries.value_ends),
    )


def _gather_strings(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.StringArray:
    """The strings data[starts[i]:ends[i]], by one gather in Arrow over the unmoved bytes."""
    bounds = np.zeros(2 * len(starts) + 1, np.int32)
    bounds[0:-1:2] = starts
    bounds[1::2] = ends
    bounds[-1:] = bounds[-2:-1]
    everything = pa.StringArray.from_buffers(2 * len(starts), pa.py_buffer(bounds), pa.py_buffer(data))
    return everything.take(pa.array(np.arange(0, 2 * len(starts), 2, dtype=np.int32)))


def _last_of_equal_names(maps: PropertyMaps) -> PropertyMaps:
    """Without the earlier ones of equal names in a message: a batch's records carry UNIQ_KEY and WAIT twice."""
    if len(maps.names) == 0:
        return maps
    names = maps.names.dictionary_encode()
    counts = np.diff(maps.offsets)
    rows = np.repeat(np.arange(len(counts)), counts)
    cells = rows * len(names.dictionary) + names.indices.to_numpy()
    order = np.argsort(cells, kind="stable") if not _all_distinct(cells, len(counts) * len(names.dictionary)) else None
    if order is None:
        return maps
    is_last = np.ones(len(cells), bool)
    is_last[order[:-1]] = cells[order[1:]] != cells[order[:-1]]
    kept = pa.array(is_last)
    offsets = np.concatenate(([0], np.cumsum(is_last)))[maps.offsets].astype(np.int32)
    return PropertyMaps(offsets, maps.names.filter(kept), maps.values.filter(kept))


def _all_distinct(cells: np.ndarray, cell_count: int) -> bool:
    if cell_count <= 16 * len(cells):
        return bool(np.bincount(cells).max() == 1)
    return len(np.unique(cells)) == len(cells)


def _decode_mixed(raw: pa.Array) -> PropertyMaps:
    """Rows that have an irregular entry go through `decode_properties`, the others through the fast path."""
    irregular = np.array([_is_irregular(row) for row in raw.to_pylist()])
    data, offsets = _bytes_and_offsets(raw.filter(pa.array(~irregular)))
    entries = _entries(data, offsets)
    assert entries is not None
    fast = _last_of_equal_names(_gather(data, entries))
    slow = [decode_properties(row) for row in raw.filter(pa.array(irregular)).to_pylist()]
    counts = np.empty(len(raw), np.int64)
    counts[~irregular] = np.diff(fast.offsets)
    counts[irregular] = [len(properties) for properties in slow]
    is_slow = np.repeat(irregular, counts)
    order = np.empty(len(is_slow), np.int64)
    order[~is_slow] = np.arange(len(fast.names))
    order[is_slow] = len(fast.names) + np.arange(np.count_nonzero(is_slow))
    names = pa.array([name for properties in slow for name in properties], pa.string())
    values = pa.array([value for properties in slow for value in properties.values()], pa.string())
    return PropertyMaps(
        np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        pa.concat_arrays([fast.names, names]).take(pa.array(order)),
        pa.concat_arrays([fast.values, values]).take(pa.array(order)),
    )


def _is_irregular(row: bytes) -> bool:
    try:
        row.decode()
    except UnicodeDecodeError:
        return True
    entries = [entry.split(b"\x01") for entry in row.removesuffix(b"\x02").split(b"\x02")] if row else []
    return not all(len(parts) == 2 and parts[0] and parts[1] for parts in entries)
