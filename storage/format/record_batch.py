"""Many commit log records at once: positions in, NumPy and Arrow columns out. No Python loop over messages.

How (measured on one core, 1 KiB bodies): fixed headers by a void view of stride 1 (40 ns a row); bodies and properties as one Arrow
binary array laid over the buffer and one C++ gather of its even elements. Rows of one buffer may mix V1, V2, IPv4 and IPv6 records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import CorruptMessageError, CorruptRecordError
from storage.format.arrays import crcs_between, view_at, words_of
from storage.format.properties import (
    CRC_DIGITS,
    CRC_NAME,
    CRC_SIZE,
    CRC_TENS,
    PROPERTY_SEPARATOR,
    PropertyMaps,
    RegularProperties,
    decode_properties,
    decode_property_maps,
    stated_crc,
)
from storage.format.record import (
    BORN_HOST_V6,
    COMPRESSED,
    HEADER_SIZE,
    HEADERS,
    HOST_FLAGS,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    V4_HOST_SIZE,
    decompress,
    hex_strings,
    host_text,
)
from storage.format.window_decoder import Decoded, NumberedTopics

_LENGTH: dict[int, np.dtype] = {1: np.dtype(">i1"), 2: np.dtype(">i2")}
_PLAIN_HEADER = HEADERS[0]
_CRC_BEGIN = CRC_NAME.encode() + b"\x01"
_HOST_FIELDS = {"born_host", "store_host"}
_HEADER_SIZES = np.zeros(HOST_FLAGS + 1, np.int64)
for _flags, _layout in HEADERS.items():
    _HEADER_SIZES[_flags] = _layout.itemsize
_VIEW = np.dtype([("size_bytes", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("start", "<i4")])
_INLINE_VIEW = np.dtype([("size_bytes", "<i4"), ("text", "V12")])
_INLINE_BYTES = 12  # shorter strings stand in the view itself


class _Extent(NamedTuple):
    """Which rows are whole records, and start and end of their topics (meaningless in other rows)."""

    whole: np.ndarray
    topic_starts: np.ndarray
    topic_ends: np.ndarray


def fail(row: int, error: CorruptMessageError) -> None:
    """The default for corrupt rows: raise the error."""
    raise error


class Records:
    """The fixed and variable parts of the records at `positions` of a `uint8` buffer.

    Every position must leave at least MINIMUM_RECORD_SIZE bytes. Nothing else is assumed: `is_whole` tells which rows are records with
    consistent lengths inside the buffer, and variable parts may be read only for those. Parts that are already `decoded` for all
    rows are returned as they are.
    """

    def __init__(self, buffer: np.ndarray, positions: np.ndarray, decoded: Decoded | None = None) -> None:
        self._start(len(positions), lambda: (buffer, positions), decoded)

    @classmethod
    def of_decoded(cls, decoded: Decoded, count: int, read: Callable[[], tuple[np.ndarray, np.ndarray]]) -> Records:
        """`count` decoded records; their buffer and positions are read only if other parts are needed."""
        records = cls.__new__(cls)
        records._start(count, read, decoded)
        return records

    def _start(self, count: int, read: Callable[[], tuple[np.ndarray, np.ndarray]], decoded: Decoded | None) -> None:
        self._count = count
        self._read = read
        self.decoded = decoded
        self._columns: dict[str, np.ndarray] = {} if decoded is None else dict(decoded.columns)

    @cached_property
    def _bytes(self) -> tuple[np.ndarray, np.ndarray]:
        return self._read()

    @property
    def buffer(self) -> np.ndarray:
        return self._bytes[0]

    @property
    def positions(self) -> np.ndarray:
        return self._bytes[1]

    @cached_property
    def _headers(self) -> np.ndarray:
        return view_at(self.buffer, self.positions, _PLAIN_HEADER)

    @cached_property
    def _host_flags(self) -> np.ndarray | None:
        """None if all hosts are IPv4; those of decoded rows always are."""
        if self.decoded is not None:
            return None
        host_flags = self._headers["sys_flag"] & HOST_FLAGS
        return host_flags if host_flags.any() else None

    def __len__(self) -> int:
        return self._count

    def take(self, rows: np.ndarray | slice) -> Records:
        """Some of the rows, by a mask, by numbers or by a range; known parts are kept."""
        if isinstance(rows, slice) and rows == slice(0, len(self)):
            return self
        taken = Records(self.buffer, self.positions[rows])
        if "_headers" in self.__dict__:
            taken.__dict__["_headers"] = self._headers[rows]
        taken.__dict__["_host_flags"] = None if self._host_flags is None else self._host_flags[rows]
        taken._columns = {name: column[rows] for name, column in self._columns.items()}
        if "_extent" in self.__dict__:
            taken.__dict__["_extent"] = _Extent(*(part[rows] for part in self._extent))
        return taken

    def column(self, name: str) -> np.ndarray:
        """One fixed header field of all rows, in native byte order; hosts as `V8` or, if any is IPv6, `V20`."""
        if name not in self._columns:
            plain = self._headers[name]
            if self._host_flags is not None:
                plain = self._column_of_mixed_hosts(name, self._host_flags)
            self._columns[name] = plain if plain.dtype.kind == "V" else plain.astype(plain.dtype.newbyteorder("="))
        return self._columns[name]

    def _column_of_mixed_hosts(self, name: str, host_flags: np.ndarray) -> np.ndarray:
        column = np.zeros(len(self), "V20" if name in _HOST_FIELDS else _PLAIN_HEADER[name])
        for flags in HEADERS:
            layout = HEADERS[flags]
            rows = np.flatnonzero(host_flags == flags)
            rows = rows[self.positions[rows] + layout.itemsize <= len(self.buffer)]
            part = view_at(self.buffer, self.positions[rows], layout)[name]
            if name in _HOST_FIELDS and part.dtype.itemsize == 8:
                part = np.pad(np.ascontiguousarray(part).view(np.uint8).reshape(-1, 8), ((0, 0), (0, 12))).view("V20")[
                    :, 0
                ]
            column[rows] = part
        return column

    @property
    def body_starts(self) -> np.ndarray:
        if self._host_flags is None:
            return self.positions + HEADER_SIZE
        return self.positions + _HEADER_SIZES[self._host_flags]

    @property
    def body_ends(self) -> np.ndarray:
        return self.body_starts + self.column("body_size_bytes")

    @property
    def is_whole(self) -> np.ndarray:
        """Which rows are records: magic known, no length negative, lengths adding up to the size, all in the buffer."""
        return self._extent.whole

    @cached_property
    def _extent(self) -> _Extent:
        ends = self.positions + self.column("size_bytes")
        magic = self.column("magic")
        length_sizes = np.where(magic == MAGIC_V2, 2, 1)
        body_ends = self.body_ends
        whole = ((magic == MAGIC_V1) | (magic == MAGIC_V2)) & (ends <= len(self.buffer))
        whole &= (self.column("body_size_bytes") >= 0) & (body_ends + length_sizes + 2 <= ends)
        topic_starts = body_ends + length_sizes
        topic_sizes = self._lengths(body_ends, length_sizes, whole)
        topic_ends = topic_starts + topic_sizes
        whole &= (topic_sizes >= 0) & (topic_ends + 2 <= ends)
        properties_sizes = self._lengths(topic_ends, np.full(len(self), 2), whole)
        whole &= topic_ends + 2 + np.maximum(properties_sizes, 0) == ends
        return _Extent(whole, topic_starts, topic_ends)

    def _lengths(self, positions: np.ndarray, length_sizes: np.ndarray, valid: np.ndarray) -> np.ndarray:
        lengths = np.full(len(positions), -1, np.int64)
        for length_size, layout in _LENGTH.items():
            rows = valid & (length_sizes == length_size)
            if rows.all():
                return view_at(self.buffer, positions, layout).astype(np.int64)
            lengths[rows] = view_at(self.buffer, positions[rows], layout)
        return lengths

    def topics(self) -> pa.Array:
        """Topics as stored, a binary array."""
        return gather_bytes(self.buffer, self._extent.topic_starts, self._extent.topic_ends)

    def numbered_topics(self) -> NumberedTopics:
        """The distinct topics, in the order of their first records, and each record's index in them."""
        if self.decoded is not None and self.decoded.topics is not None:
            return self.decoded.topics
        topics = self.topics().dictionary_encode()
        return NumberedTopics(tuple(topics.dictionary.to_pylist()), topics.indices.to_numpy())

    def agree(self, commitlog_offsets: np.ndarray, sizes: np.ndarray, topic: bytes, queue_id: int) -> np.ndarray:
        """Which rows are the records that a queue's entries claim: whole, of that place and size, topic and queue id."""
        return self._have_topic(topic, self._agree_but_for_topic(commitlog_offsets, sizes, queue_id))

    def agree_each(
        self, commitlog_offsets: np.ndarray, sizes: np.ndarray, topics: pa.Array, queue_ids: np.ndarray
    ) -> np.ndarray:
        """`agree` with entries of many queues: `topics` is a binary array, row i's queue is topics[i], queue_ids[i]."""
        agrees = self._agree_but_for_topic(commitlog_offsets, sizes, queue_ids)
        rows = np.flatnonzero(agrees)
        found = self.take(rows).topics()
        agrees[rows] = pc.equal(found, topics.take(pa.array(rows))).to_numpy(zero_copy_only=False)
        return agrees

    def _agree_but_for_topic(
        self, commitlog_offsets: np.ndarray, sizes: np.ndarray, queue_ids: int | np.ndarray
    ) -> np.ndarray:
        agrees = self.is_whole & (self.column("size_bytes") == sizes)
        agrees &= self.column("commitlog_offset") == commitlog_offsets
        return agrees & (self.column("queue_id") == queue_ids)

    def _have_topic(self, topic: bytes, rows: np.ndarray) -> np.ndarray:
        """Which of the rows (a mask, all of them whole) have this topic. Compares eight bytes at a time."""
        starts, ends = self._extent.topic_starts, self._extent.topic_ends
        equal = rows & (ends - starts == len(topic))
        found = np.flatnonzero(equal)
        starts = starts if len(found) == len(self) else starts[found]
        agrees = np.ones(len(found), bool)
        for at, word in words_of(topic):
            agrees &= view_at(self.buffer, starts + at, word.dtype) == word
        equal[found] = agrees
        return equal

    def property_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the properties of each row begin and end in the buffer."""
        return self._extent.topic_ends + 2, self.positions + self.column("size_bytes")

    def raw_properties(self) -> pa.Array:
        """Properties as stored, a binary array."""
        return gather_bytes(self.buffer, *self.property_bounds())

    def single_properties(self, names: frozenset[str]) -> PropertyMaps | RegularProperties | Decoded:
        """Properties for reading these by name."""
        if self.decoded is not None and names <= self.decoded.properties.keys():
            return self.decoded
        return self.properties()

    def properties(self) -> PropertyMaps | RegularProperties:
        if self.decoded is not None and self.decoded.maps is not None:
            return self.decoded.maps
        return decode_property_maps(self.raw_properties())

    def property(self, name: str) -> pa.Array | None:
        """One property of all rows, null if a row has none; None if it is not decoded yet."""
        return None if self.decoded is None else self.decoded.properties.get(name)

    def bodies(self) -> pa.Array:
        """Bodies as stored, a binary array."""
        if self.decoded is not None and self.decoded.bodies is not None:
            return self.decoded.bodies
        return gather_bytes(self.buffer, self.body_starts, self.body_ends)

    def plain_bodies(self) -> pa.Array:
        """Bodies decompressed. Raises CorruptMessageError where one does not decompress."""
        ((_, bodies),) = self.plain_parts(sys.maxsize)
        return bodies

    def plain_parts(
        self, most_bytes: int, corrupt: Callable[[int, CorruptMessageError], None] = fail
    ) -> Iterator[tuple[slice, pa.Array]]:
        """The rows in parts, each with its bodies decompressed. The compressed bodies of a part have together at most so many bytes
        decompressed, or are one body.

        `corrupt` is called for each row whose body does not decompress, before the row's part is given; if it does not raise, the
        body is null.
        """
        bodies, sys_flags = self.bodies(), self.column("sys_flag")
        are_compressed = sys_flags & COMPRESSED != 0
        if are_compressed.any():
            are_compressed &= self.column("body_size_bytes") > 0
        compressed = np.flatnonzero(are_compressed)
        if not len(compressed):
            yield slice(0, len(self)), bodies
            return
        stored = bodies.take(pa.array(compressed)).to_pylist()
        start, plain_bytes, plain = 0, 0, dict[int, bytes | None]()
        for row, body, flags in zip(compressed.tolist(), stored, sys_flags[compressed].tolist(), strict=True):
            try:
                found = decompress(body, flags)
            except CorruptRecordError as error:
                corrupt(row, self.corrupt_message(row, error))
                plain[row - start] = None
                continue
            if plain_bytes and plain_bytes + len(found) > most_bytes:
                yield slice(start, row), _replaced(bodies[start:row], plain)
                start, plain_bytes, plain = row, 0, {}
            plain[row - start] = found
            plain_bytes += len(found)
        yield slice(start, len(self)), _replaced(bodies[start:], plain)

    def corrupt_message(self, row: int, error: CorruptRecordError) -> CorruptMessageError:
        """The error of a whole row's body or checksums, with the message's topic and places."""
        topic = self.take(slice(row, row + 1)).topics()[0].as_py().decode(errors="replace")
        queue_id, queue_offset, place = (
            int(self.column(name)[row]) for name in ("queue_id", "queue_offset", "commitlog_offset")
        )
        return CorruptMessageError(topic, queue_id, queue_offset, place, error.field, error.expected, error.found)

    def corrupt_sums(self, *, force_property_crc: bool) -> Iterator[tuple[int, CorruptMessageError]]:
        """The rows, all of them whole records, whose body or record has another sum than they state; a row with two faults comes twice.

        See `crc_agrees` and `property_crc_agrees`.
        """
        stated = self.column("body_crc")
        for row in np.flatnonzero(~self.crc_agrees()).tolist():
            yield row, self.corrupt_message(row, CorruptRecordError("body CRC", 0, int(stated[row]), "another"))
        for row in np.flatnonzero(~self.property_crc_agrees(required=force_property_crc)).tolist():
            stated_one = CorruptRecordError("property CRC", 0, "as the record states it", "another")
            yield row, self.corrupt_message(row, stated_one)

    def crc_agrees(self) -> np.ndarray:
        """Which rows' bodies have the CRC that their header says; an empty body is not checked."""
        found = crcs_between(self.buffer, self.body_starts, self.body_ends)
        return (found == self.column("body_crc")) | (self.column("body_size_bytes") == 0)

    def property_crc_agrees(self, *, required: bool) -> np.ndarray:
        """Which rows, all of them whole records, have the sum that their property `__CRC32#` states.

        `required`: as a broker with forceVerifyPropCRC judges, to which a record without the property is none. Else only records are
        held to it that end in it, as a broker writes it, and the others agree. Java: CommitLog.checkMessageAndReturnSize.
        """
        ends = self.positions + self.column("size_bytes")
        starts = self._extent.topic_ends + 2
        last = self._end_in_crc(starts, ends)
        judged = np.flatnonzero(last | required)
        stated = np.full(len(self), -1, np.int64)
        stated[last] = _crc_digits(self.buffer, ends[last])
        for row in judged[stated[judged] < 0].tolist():  # none, or one that no broker wrote
            value = stated_crc(decode_properties(self.buffer[starts[row] : ends[row]].data))
            stated[row] = -1 if value is None else value
        agrees = np.ones(len(self), bool)
        agrees[judged] = stated[judged] == crcs_between(self.buffer, self.positions[judged], ends[judged] - CRC_SIZE)
        return agrees

    def _end_in_crc(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Which rows' properties, between these places, end in one that begins as `__CRC32#` and is as long."""
        found = ends - starts >= CRC_SIZE
        for at, word in words_of(_CRC_BEGIN):
            rows = np.flatnonzero(found)
            found[rows] = view_at(self.buffer, ends[rows] - CRC_SIZE + at, word.dtype) == word
        before = self.buffer[ends - CRC_SIZE - 1] == PROPERTY_SEPARATOR
        return np.asarray(found & (before | (ends - starts == CRC_SIZE)))

    def host_texts(self, name: str) -> pa.Array:
        """`born_host` or `store_host` as text. Distinct addresses are few, so each is formatted once."""
        column = self.column(name)
        if self._host_flags is None and len(self) and (column.view(np.int64) == column.view(np.int64)[0]).all():
            return pa.repeat(pa.scalar(host_text(column[0].tobytes())), len(self))
        hosts = _byte_rows(column)
        is_v6 = np.zeros((len(self), 1), np.uint8)
        if self._host_flags is not None:
            is_v6[:, 0] = self._host_flags & (BORN_HOST_V6 if name == "born_host" else STORE_HOST_V6) != 0
        keys = np.hstack((is_v6, hosts))
        distinct = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(keys.shape[1]), len(self), [None, pa.py_buffer(keys)]
        ).dictionary_encode()
        texts = [host_text(key[1:] if key[0] else key[1:9]) for key in distinct.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(distinct.indices)

    def message_ids(self) -> pa.Array:
        """The offset message ids. Java: MessageDecoder.createMessageId."""
        if self.decoded is not None and self.decoded.message_ids is not None:
            return self.decoded.message_ids
        offsets = self.column("commitlog_offset").astype(">i8").view(np.uint8).reshape(-1, 8)
        hosts = _byte_rows(self.column("store_host"))
        if hosts.shape[1] == V4_HOST_SIZE:
            return hex_strings(np.hstack((hosts, offsets)))
        assert self._host_flags is not None
        is_v6 = self._host_flags & STORE_HOST_V6 != 0
        v4 = hex_strings(np.hstack((hosts[~is_v6, :V4_HOST_SIZE], offsets[~is_v6])))
        v6 = hex_strings(np.hstack((hosts[is_v6], offsets[is_v6])))
        order = np.empty(len(self), np.int64)
        order[~is_v6] = np.arange(len(v4))
        order[is_v6] = len(v4) + np.arange(len(v6))
        return pa.concat_arrays([v4, v6]).take(pa.array(order))


def _replaced(array: pa.Array, values: Mapping[int, bytes | None]) -> pa.Array:
    """A binary array with other values in some rows."""
    if not values:
        return array
    order = np.arange(len(array))
    order[list(values)] = len(array) + np.arange(len(values))
    return pa.concat_arrays([array, pa.array(values.values(), pa.binary())]).take(pa.array(order))


def _crc_digits(buffer: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The number, least digit first, before the separators that precede these places; −1 if there is none."""
    digits = _byte_rows(view_at(buffer, ends - CRC_DIGITS - 1, np.dtype(f"V{CRC_DIGITS + 1}"))).astype(np.int64)
    digits[:, :CRC_DIGITS] -= ord("0")
    plain = (digits[:, CRC_DIGITS] == PROPERTY_SEPARATOR) & ((digits >= 0) & (digits <= 9)).all(axis=1)
    sums = digits[:, :CRC_DIGITS] @ CRC_TENS
    return np.where(plain & (sums < 1 << 31), sums, -1)


def _byte_rows(column: np.ndarray) -> np.ndarray:
    """A column of fixed-size bytes as a matrix."""
    return np.ascontiguousarray(column).view(np.uint8).reshape(len(column), column.dtype.itemsize)


def gather_bytes(buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
    """The byte strings buffer[starts[i]:ends[i]] as a binary array: Arrow string views over the buffer, then one copy.

    Half the time of `take` over an offsets array. The buffer is smaller than 2 GiB, as a log file is. Raises ValueError for a
    string that lies outside of it: Arrow would read whatever memory is there.
    """
    sizes = ends - starts
    if len(sizes) and (starts.min() < 0 or sizes.min() < 0 or ends.max() > len(buffer)):
        raise ValueError(f"a byte string lies outside of the buffer of {len(buffer)} bytes")
    views = np.zeros(len(starts), _VIEW)
    views["size_bytes"] = sizes
    short = sizes <= _INLINE_BYTES
    is_long = ~short
    if is_long.all():
        views["start"] = starts
        views["prefix"] = view_at(buffer, starts, np.dtype("<u4"))
    else:
        views["start"][is_long] = starts[is_long]
        views["prefix"][is_long] = view_at(buffer, starts[is_long], np.dtype("<u4"))
        views.view(_INLINE_VIEW)["text"][short] = _inlined(buffer, starts[short], sizes[short])
    buffers = [None, pa.py_buffer(views), pa.py_buffer(buffer)]
    return pa.Array.from_buffers(pa.binary_view(), len(views), buffers).cast(pa.binary())


def _inlined(buffer: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Strings of at most 12 bytes, each padded to 12 with zeros."""
    columns = np.arange(_INLINE_BYTES)
    places = np.minimum(starts[:, None] + columns, len(buffer) - 1)
    texts = np.where(columns < sizes[:, None], buffer[places], 0).astype(np.uint8)
    return texts.view("V12")[:, 0]
