"""Rows decoded by kernels beside the same rows by the exact path: which windows there are, and what must be equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from storage.format.arrays import Memory, is_utf8, sealed
from storage.format.properties import decode_property_maps
from storage.format.record import HEADERS, HOST_FLAGS, MINIMUM_RECORD_SIZE
from storage.format.record_batch import Records
from storage.format.window_decoder import Claims, Decoded, Decoding, Wanted

MOST_PROPERTIES = 64
"""Of a record, or no kernel does it."""
NAMES = frozenset({"TAGS", "KEYS", "UNIQ_KEY", "名", "a", "a name of more than 16 bytes", "none has it"})
EVERYTHING = Wanted(
    fields=frozenset(HEADERS[0].names or ()) - {"magic"},
    bodies=True,
    properties=NAMES,
    all_properties=True,
    message_ids=True,
)


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes, where records are said to begin in them, and what entries claim of these."""

    content: bytes
    positions: Sequence[int]
    places: Sequence[int]
    sizes: Sequence[int]
    topic: bytes = b"TopicA"
    queue_id: int = 0

    def records(self) -> Records:
        return Records(np.frombuffer(self.content, np.uint8), np.array(self.positions, np.int64))

    @property
    def is_for_the_exact_path(self) -> bool:
        """Whether that may be asked: each position leaves room for a record."""
        return all(0 <= position <= len(self.content) - MINIMUM_RECORD_SIZE for position in self.positions)


def decode(
    kernels: Any,
    window: Window,
    wanted: Wanted,
    bounds: Sequence[int] = (),
    *,
    memory: Memory | None = None,
    buffer: Any = None,
) -> Decoded | None:
    """What kernels make of a window whose rows are given in parts that end at `bounds`."""
    decoding = Decoding(kernels, Claims(window.topic, window.queue_id), wanted, memory or Memory())
    decoder = decoding.decoder(np.array(window.places, np.int64), np.array(window.sizes, np.int64))
    if decoder is None:
        return None
    positions = np.array(window.positions, np.int64)
    content = np.frombuffer(window.content, np.uint8) if buffer is None else buffer
    ends = sorted({min(end, len(positions)) for end in bounds} | {len(positions)})
    for first, last in zip([0, *ends[:-1]], ends, strict=True):
        decoder.add(content, positions, slice(first, last))
    return decoder.finish()


def is_regular(window: Window, wanted: Wanted = EVERYTHING) -> bool:
    """Whether kernels must know all rows: each agrees with its entry, has IPv4 hosts, and regular properties where any are wanted."""
    records = window.records()
    places, sizes = (np.array(column, np.int64) for column in (window.places, window.sizes))
    if not records.agree(places, sizes, window.topic, window.queue_id).all():
        return False
    if (records.column("sys_flag") & HOST_FLAGS).any() or any(_has_negative_length(window)):
        return False
    if not wanted.properties and not wanted.all_properties:
        return True
    return all(map(_has_regular_properties, records.raw_properties().to_pylist()))


def _has_negative_length(window: Window) -> Iterator[bool]:
    """Of properties, which reads as none. Such a record ends in that length."""
    for position, size, raw in zip(
        window.positions, window.sizes, window.records().raw_properties().to_pylist(), strict=True
    ):
        yield not raw and window.content[position + size - 2 : position + size] != b"\0\0"


def _has_regular_properties(raw: bytes) -> bool:
    entries = raw.removesuffix(b"\2").split(b"\2") if raw else []
    parts = [entry.split(b"\1") for entry in entries]
    return len(entries) <= MOST_PROPERTIES and all(len(both) == 2 and all(both) for both in parts) and is_utf8(raw)


def assert_as_exact(window: Window, wanted: Wanted, decoded: Decoded | None) -> None:
    """Kernels know the window if its rows are regular, and then say what the exact path says."""
    assert (decoded is not None) == is_regular(window, wanted), (
        "kernels take rows that are not regular, or leave regular ones"
    )
    if decoded is None:
        return
    records = window.records()
    assert decoded.columns.keys() == wanted.fields
    for name, column in decoded.columns.items():
        expected = records.column(name)
        assert column.dtype == expected.dtype, name
        assert column.tobytes() == expected.tobytes(), name
    if wanted.bodies:
        assert_equal("bodies", decoded.bodies, records.bodies())
    if wanted.message_ids:
        assert_equal("message ids", decoded.message_ids, records.message_ids())
    properties = decode_property_maps(records.raw_properties())
    assert decoded.properties.keys() == wanted.properties
    for name, values in decoded.properties.items():
        assert_equal(name, values, properties.values_of(name))
    assert (decoded.maps is not None) == wanted.all_properties
    if decoded.maps is not None:
        assert_equal("maps", decoded.maps.map_array(), properties.map_array())
    whole = Records(np.frombuffer(window.content, np.uint8), np.array(window.positions, np.int64), decoded)
    for host in ("born_host", "store_host"):
        assert_equal(host, whole.host_texts(host), records.host_texts(host))


def assert_equal(what: str, found: pa.Array | None, expected: pa.Array) -> None:
    assert found is not None, what
    found.validate(full=True)
    assert found.type == expected.type, what
    assert found.equals(expected), f"{what}: {found.to_pylist()} and not {expected.to_pylist()}"


def assert_walked_as_exact(kernels: Any, content: np.ndarray, begin: int) -> int:
    """A walk from there finds the regular records that follow each other, and their topics; how many records."""
    room = len(content) // MINIMUM_RECORD_SIZE + 1
    positions, sizes, properties = (np.full(room, -7, np.int64) for _ in range(3))
    count = kernels.walk(sealed(content), begin, positions, sizes, properties)
    assert positions[:count].tolist() == list(_walked(content, begin))
    records = Records(content, positions[:count])
    assert sizes[:count].tolist() == records.column("size_bytes").tolist()
    raw_sizes = [len(raw) for raw in records.raw_properties().to_pylist()]
    assert (positions + sizes - properties)[:count].tolist() == raw_sizes
    rows = kernels.Rows(sealed(content), sealed(positions), sealed(sizes), sealed(np.empty(0, np.int64)), properties)
    codes, begins, ends = np.empty(count, np.int32), np.empty(3, np.int64), np.empty(3, np.int64)
    topics = kernels.number_topics(rows, 0, count, codes, begins, ends)
    expected = records.numbered_topics()
    assert topics == (len(expected.names) if len(expected.names) <= len(begins) else -1)
    if topics >= 0:
        found = [content[begin:end].tobytes() for begin, end in zip(begins[:topics], ends[:topics], strict=True)]
        assert (found, codes.tolist()) == (list(expected.names), expected.codes.tolist())
    return int(count)


def _walked(content: np.ndarray, begin: int) -> Iterator[int]:
    """The same, record by record."""
    while 0 <= begin <= len(content) - MINIMUM_RECORD_SIZE:
        record = Records(content, np.array([begin]))
        if not record.is_whole[0] or record.column("sys_flag")[0] & HOST_FLAGS:
            return
        end = begin + int(record.column("size_bytes")[0])
        raw = record.raw_properties()[0].as_py()
        if not raw and content[end - 2 : end].any():  # a negative length
            return
        yield begin
        begin = end
