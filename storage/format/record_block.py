"""Records made from columns, many at once: Arrow and NumPy columns in, one run of log bytes out. No Python loop over messages.

    outgoing columns ─encode_block─▶ records back to back, with the columns for placing and dispatching ─stamp─▶ log bytes

What is not known before a record has its place stays zero until `stamp` writes it: queue offset, place in the log, store time. The sum
over all of it comes last, where records have room for it (`stamp_crcs`).

    a record: header · body CRC in it · body · length of the topic · topic · length of the properties · properties

Records are joined from these parts: of columns, all at once or by pieces; of a few messages; commits of their halves' records.
Java: MessageExtEncoder; EndTransactionProcessor.endMessageTransaction, which makes a commit of the half that it reads from the log;
CommitLog.DefaultAppendMessageCallback. A topic of more than 127 bytes makes a V2 record
(autoMessageVersionOnTopicLen).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from storage.compiler import COMPILED
from storage.format.arrays import (
    CRC_MASK,
    Stretches,
    as_large_binary,
    bytes_and_offsets,
    crcs_between,
    is_few,
    row_windows,
    sealed,
    sizes_of,
    struct_of,
    view_at,
)
from storage.format.properties import CRC_DIGITS, CRC_SIZE, CRC_TENS, decode_properties, with_crc_room
from storage.format.record import (
    BORN_HOST_V6,
    HEADER_STRUCTS,
    HEADERS,
    HOST_FLAGS,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    SYS_FLAG_POSITION,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    V4_HOST_SIZE,
    V6_HOST_SIZE,
    committed_flags,
)
from storage.format.record_batch import Records

_NOTHING = pa.scalar(b"", pa.large_binary())
_V1_TOPIC_LIMIT = 127
PIECE_BYTES = 1 << 20
"""Of a piece, unless one record is larger. Half costs a twentieth more, a quarter a tenth, where a core has 2 MiB of second cache."""


class RecordParts(NamedTuple):
    """n records; columns of equal length."""

    header: np.ndarray
    """One of `record.HEADERS`, complete but for the bodies' CRCs."""
    bodies: pa.Array
    """binary or large_binary, as they will be stored; no nulls."""
    names: list[bytes]
    """The distinct topics, each with its length before it."""
    name_codes: np.ndarray
    """int32, into `names`."""
    properties: pa.Array
    """binary or large_binary: the encoded property strings; no nulls."""

    def joined(self) -> np.ndarray:
        """All records back to back: `uint8`."""
        size = int(self.header["size_bytes"].sum(dtype=np.int64))
        return self._joined(
            slice(0, len(self.header)), np.empty(size, np.uint8), CompiledJoin.of(self) or Join.of(self)
        )

    def pieces(self) -> Iterator[np.ndarray]:
        """The same, piece after piece, of whole records each. A piece is valid until the next one is requested.

        A piece that has just been made is still in the processor's cache when it is summed up and written, and no memory of the size
        of them all is touched.
        """
        sizes, join = self.header["size_bytes"].astype(np.int64), CompiledJoin.of(self) or Join.of(self)
        begins, memory = np.cumsum(sizes) - sizes, np.empty(0, np.uint8)
        for rows, end in row_windows(begins, sizes, PIECE_BYTES):
            size = end - int(begins[rows.start])
            if len(memory) < size:
                memory = np.empty(max(size, min(PIECE_BYTES, int(sizes.sum()))), np.uint8)
            yield self._joined(rows, memory[:size], join)

    def _joined(self, rows: slice, out: np.ndarray, join: CompiledJoin | Join) -> np.ndarray:
        """Records of some rows, with their bodies' sums; in `out`, or elsewhere."""
        if isinstance(join, CompiledJoin):
            if join.fills(out, rows.start, rows.stop, sums=True):
                return out
            join = Join.of(self)  # the exact path raises what is wrong
        self.header["body_crc"][rows] = body_crcs(self.bodies[rows])
        return join.rows(rows.start, rows.stop)

    def unique_key(self, row: int) -> str:
        """That of one record; empty where it has none."""
        return decode_properties(self.properties[row].as_py()).get("UNIQ_KEY", "")


class Join(NamedTuple):
    """The columns of n records, to be joined by Arrow; each is read when rows are joined."""

    columns: tuple[pa.Array | pa.Scalar, ...]

    @classmethod
    def of(cls, parts: RecordParts) -> Join:
        """Those of records in their parts."""
        count, names = len(parts.header), pa.array(parts.names, pa.large_binary())
        property_sizes = pc.binary_length(parts.properties).to_numpy().astype(">u2")
        return cls(
            (
                _fixed_binary(parts.header.view(np.uint8), count, parts.header.itemsize),
                as_large_binary(parts.bodies),
                names[0] if len(set(parts.names)) == 1 else names.take(pa.array(parts.name_codes)),
                _fixed_binary(property_sizes.view(np.uint8), count, 2),
                as_large_binary(parts.properties),
            )
        )

    def rows(self, first: int, last: int) -> np.ndarray:
        """Records [first, last) back to back."""
        columns = (column[first:last] if isinstance(column, pa.Array) else column for column in self.columns)
        data, _ = bytes_and_offsets(pc.binary_join_element_wise(*columns, _NOTHING))
        return data


class CompiledJoin(NamedTuple):
    """The same by a compiled loop, which can make the bodies' sums, too."""

    kernels: ModuleType
    parts: NamedTuple

    @classmethod
    def of(cls, parts: RecordParts) -> CompiledJoin | None:
        """That of records in their parts; None where no kernel is there."""
        kernels = COMPILED.for_rows()  # where none are loaded, `body_crcs` counts the rows
        if kernels is None or not kernels.HAS_CRC:
            return None
        bodies, properties = Stretches.of(parts.bodies), Stretches.of(parts.properties)
        return cls.over(kernels, parts.header, bodies, parts.names, parts.name_codes, properties)

    @classmethod
    def over(
        cls,
        kernels: ModuleType,
        header: np.ndarray,
        bodies: Stretches,
        names: list[bytes],
        name_codes: np.ndarray,
        properties: Stretches,
    ) -> CompiledJoin:
        """The same, of bodies and properties wherever they lie."""
        ends = np.cumsum([len(name) for name in names], dtype=np.int64)
        begins = ends - np.array([len(name) for name in names], np.int64)
        named = Stretches(np.frombuffer(b"".join(names), np.uint8), begins[name_codes], ends[name_codes])
        return cls(
            kernels,
            kernels.Parts(sealed(header.view(np.uint8)), *(part.sealed() for part in (bodies, named, properties))),
        )

    def fills(self, out: np.ndarray, first: int, last: int, *, sums: bool) -> bool:
        """Write records [first, last) to `out`, with `sums` their bodies' sums, too. False where they do not fill it, or one does
        not lie in its data.
        """
        return bool(self.kernels.join_records(out, first, last, self.parts, sums))


def body_crcs(bodies: pa.Array) -> np.ndarray:
    """`body_crc` of each body, int32."""
    data, offsets = bytes_and_offsets(as_large_binary(bodies))
    return crcs_between(data, offsets[:-1], offsets[1:]).astype(np.int32)


def _fixed_binary(data: np.ndarray, count: int, width: int) -> pa.Array:
    offsets = np.arange(0, count * width + 1, width, dtype=np.int64)
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


class QueueFields(NamedTuple):
    """What records of each of n queues hold of it."""

    names: list[bytes]
    """The topic, its length before it."""
    magics: np.ndarray
    """int64."""
    queue_ids: np.ndarray
    """int32."""

    @classmethod
    def of(cls, queues: Sequence[tuple[str, int]]) -> QueueFields:
        """Those of these queues."""
        topics = [topic.encode() for topic, _ in queues]
        magics = [MAGIC_V1 if len(topic) <= _V1_TOPIC_LIMIT else MAGIC_V2 for topic in topics]
        queue_ids = np.array([queue_id for _, queue_id in queues], np.int32)
        return cls([encoded_name(topic) for topic in topics], np.array(magics, np.int64), queue_ids)


def encoded_name(topic: bytes) -> bytes:
    """The topic as it stands in a record, its length before it."""
    return len(topic).to_bytes(1 if len(topic) <= _V1_TOPIC_LIMIT else 2, "big") + topic


def write_commits(
    out: np.ndarray, halves: np.ndarray, positions: np.ndarray, queues: Sequence[tuple[str, int]], codes: np.ndarray
) -> None:
    """Fill `out` with the commits of whole records that begin at `positions` of `halves` (both `uint8`), in their order.

    `codes` says which of the queues each is for. All halves have hosts of the same kinds. A commit has the body's sum of its half.
    Where a half lies is not said yet (`record_block.stamp_halves`). Raises ValueError where the commits take more bytes or fewer.
    """
    made = np.empty(0, np.uint8)
    if len(positions):
        fields, records = QueueFields.of(queues), Records(halves, positions)
        begins, ends = records.property_bounds()
        header = _headers_of_commits(records, fields, codes, ends - begins)
        if (kernels := COMPILED.for_rows(len(positions))) is not None and kernels.HAS_CRC:
            bodies = Stretches(halves, records.body_starts, records.body_ends)
            properties = Stretches(halves, begins, ends)
            join = CompiledJoin.over(kernels, header, bodies, fields.names, codes, properties)
            if join.fills(out, 0, len(header), sums=False):
                return
        exact = RecordParts(header, records.bodies(), fields.names, codes, records.raw_properties())
        made = Join.of(exact).rows(0, len(header))
    if len(made) != len(out):
        raise ValueError(f"the commits of {len(positions)} halves take {len(made)} bytes, not {len(out)}")
    out[:] = made


def _headers_of_commits(
    records: Records, fields: QueueFields, codes: np.ndarray, property_sizes: np.ndarray
) -> np.ndarray:
    flags = records.column("sys_flag")
    layout = HEADERS[int(flags[0]) & HOST_FLAGS]
    header = view_at(records.buffer, records.positions, layout)
    names = np.array([len(name) for name in fields.names], np.int64)[codes]
    header["size_bytes"] = layout.itemsize + records.column("body_size_bytes") + names + 2 + property_sizes
    header["magic"] = fields.magics[codes]
    header["queue_id"] = fields.queue_ids[codes]
    header["sys_flag"] = committed_flags(flags)
    return header


_HEADER = HEADER_STRUCTS[0]


class Described(Protocol):
    """What a record holds, but for places and store time."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def raw_properties(self) -> bytes: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_time_ms(self) -> int: ...
    @property
    def born_host(self) -> bytes | None: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_transaction_offset(self) -> int: ...


def join_records(messages: Iterable[Described], host: bytes) -> tuple[bytes, list[int]]:
    """The records of a store at `host`, and the size of each."""
    pieces: list[bytes] = []
    sizes: list[int] = []
    names: dict[str, tuple[int, bytes]] = {}
    for message in messages:
        topic, body, properties = message.topic, message.body, message.raw_properties
        if (named := names.get(topic)) is None:
            encoded = topic.encode()
            name = encoded_name(encoded)
            named = names[topic] = MAGIC_V1 if len(name) == len(encoded) + 1 else MAGIC_V2, name
        magic, name = named
        size = _HEADER.size + len(body) + len(name) + 2 + len(properties)
        sizes.append(size)
        header = _HEADER.pack(
            size,
            magic,
            isal_zlib.crc32(body) & CRC_MASK,
            message.queue_id,
            message.flag,
            0,
            0,
            message.sys_flag,
            message.born_time_ms,
            message.born_host or host,
            0,
            host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            len(body),
        )
        pieces += (header, body, name, len(properties).to_bytes(2, "big"), properties)
    return b"".join(pieces), sizes


_PLACE = np.dtype([("queue_offset", ">i8"), ("commitlog_offset", ">i8")])
_PLACE_STRUCT = struct_of(_PLACE)
_PLACE_POSITION = 20
_STORE_TIME_POSITIONS = {V4_HOST_SIZE: 56, V6_HOST_SIZE: 68}  # by the size of the born host
_HALF_POSITION = 76
_V6_LONGER = V6_HOST_SIZE - V4_HOST_SIZE
_FLAGS = np.dtype(">i4")
DUE_IN = 1 << 62
"""A tags code of DUE_IN + n stands for "due n ms after the store time", which the schedule topic's queue entries hold."""
_TIME = np.dtype(">i8")
_TIME_SIZE = _TIME.itemsize


class OutgoingMessages(NamedTuple):
    """n messages that have passed every rule and have their queues; columns of equal length."""

    queues: tuple[tuple[str, int], ...]
    """The distinct (topic, queue id)."""
    queue_codes: np.ndarray
    """int32, into `queues`."""
    bodies: pa.Array
    """binary or large_binary, as they will be stored; no nulls."""
    properties: pa.Array
    """binary or large_binary: the encoded property string of each, UNIQ_KEY and all, CRC_ROOM too if `has_crc`; no nulls."""
    flags: np.ndarray
    """int32."""
    sys_flags: np.ndarray
    """int32, without the bits of hosts."""
    born_times_ms: np.ndarray
    """int64."""
    tags_codes: np.ndarray
    """int64: `string_hash` of TAGS, 0 without; DUE_IN + delay in the schedule topic."""
    key_counts: np.ndarray
    """int32: how many index keys each message has."""
    key_hashes: np.ndarray
    """int32: `index_key_hash` of all keys, message after message."""
    born_hosts: np.ndarray | None = None
    """`V8` or `V20`: where each was born; None = where it is stored."""
    reconsume_times: np.ndarray | int = 0
    """int32."""
    prepared_transaction_offsets: np.ndarray | int = 0
    """int64: of committed messages, where their half lies in the log."""
    is_queued: bool = True
    """Whether they enter consume queues: not if their flags say prepared or rolled back."""
    has_crc: bool = False
    """Whether each has room for the checksum of its record."""

    def with_crc_room(self) -> OutgoingMessages:
        """The messages as a store with `enabledAppendPropCRC` takes them."""
        return self if self.has_crc else self._replace(properties=with_crc_room(self.properties), has_crc=True)


class BlockColumns(NamedTuple):
    """The columns for placing and dispatching n records; of equal length, except `key_hashes`."""

    queues: tuple[tuple[str, int], ...]
    queue_codes: np.ndarray  # int32
    sizes_bytes: np.ndarray  # int32
    tags_codes: np.ndarray  # int64
    key_counts: np.ndarray  # int32
    key_hashes: np.ndarray  # int32
    host_size: int = V4_HOST_SIZE
    """Bytes of a record's born host, which gives the position of its store time."""
    is_queued: bool = True
    """Whether the records enter consume queues; else their queue offset is 0."""
    transaction_states: np.ndarray | None = None
    """int8, for half messages: the transaction bits of each one's end in the same batch, 0 if it has none."""
    has_crc: bool = False
    """Whether the records have room for the sums that `stamp_crcs` writes."""

    @property
    def row_count(self) -> int:
        return len(self.queue_codes)


class RecordBlock(NamedTuple):
    """Records back to back, not stamped yet."""

    columns: BlockColumns
    data: np.ndarray
    """uint8."""

    def read(self, start: int, end: int, into: np.ndarray) -> None:
        """Copy bytes [start, end) of the records."""
        into[:] = self.data[start:end]


class UnjoinedBlock(NamedTuple):
    """Records in their parts, not stamped yet."""

    columns: BlockColumns
    parts: RecordParts


class OwnBlock(NamedTuple):
    """Records in the appender's own memory: they are stamped in place, without a copy."""

    columns: BlockColumns
    data: np.ndarray
    """uint8, writable."""

    def read(self, start: int, end: int, into: np.ndarray) -> None:
        """Copy bytes [start, end) of the records."""
        into[:] = self.data[start:end]


class RecordRun(Protocol):
    """Records that lie somewhere back to back: a block in memory, or a staged segment."""

    @property
    def columns(self) -> BlockColumns: ...

    def read(self, start: int, end: int, into: np.ndarray) -> None:
        """Copy bytes [start, end) of the records, not stamped yet."""
        ...


class _Sizes(NamedTuple):
    """Sizes of the parts of n records, in bytes, int64."""

    bodies: np.ndarray
    properties: np.ndarray
    records: np.ndarray


def columns_of(messages: OutgoingMessages, host: bytes) -> BlockColumns:
    """The columns for placing and dispatching the records of these messages, without the records."""
    return _columns(messages, host, _sizes(messages, host, QueueFields.of(messages.queues)))


def encode_block(messages: OutgoingMessages, host: bytes) -> RecordBlock:
    """The records of these messages, stored at `host`: 4 or 16 bytes of address and 4 of port."""
    columns, parts = encode_parts(messages, host)
    return RecordBlock(columns, parts.joined())


def encode_parts(messages: OutgoingMessages, host: bytes) -> UnjoinedBlock:
    """The same records, to be joined piece after piece."""
    queues, host_flags = QueueFields.of(messages.queues), _host_flags(messages, host)
    sizes = _sizes(messages, host, queues)
    stored_at = np.frombuffer(host, f"V{len(host)}")[0]
    header = _headers(
        HEADERS[host_flags],
        len(messages.queue_codes),
        size_bytes=sizes.records,
        magic=_of_rows(queues.magics, messages.queue_codes),
        queue_id=_of_rows(queues.queue_ids, messages.queue_codes),
        flag=messages.flags,
        sys_flag=messages.sys_flags | host_flags,
        born_time_ms=messages.born_times_ms,
        born_host=stored_at if messages.born_hosts is None else messages.born_hosts,
        store_host=stored_at,
        reconsume_times=messages.reconsume_times,
        prepared_transaction_offset=messages.prepared_transaction_offsets,
        body_size_bytes=sizes.bodies,
    )
    parts = RecordParts(header, messages.bodies, queues.names, messages.queue_codes, messages.properties)
    return UnjoinedBlock(_columns(messages, host, sizes), parts)


def _headers(layout: np.dtype, count: int, **fields: Any) -> np.ndarray:
    """Headers of n records, of fields that are one for all or one a record; all others are zero."""
    first = np.zeros(1, layout)
    for name, value in fields.items():
        if np.ndim(value) == 0:
            first[name] = value
    headers, whole = np.empty(count, layout), np.dtype((np.void, layout.itemsize))
    headers.view(whole)[:] = first.view(whole)
    for name, value in fields.items():
        if np.ndim(value):
            headers[name] = value
    return headers


def _of_rows(values: np.ndarray, codes: np.ndarray) -> np.ndarray | np.generic:
    """The value of each row, or the one that all have."""
    return values[0] if len(values) and (values == values[0]).all() else values[codes]


def _born_size(messages: OutgoingMessages, host: bytes) -> int:
    return len(host) if messages.born_hosts is None else messages.born_hosts.itemsize


def _host_flags(messages: OutgoingMessages, host: bytes) -> int:
    born = BORN_HOST_V6 if _born_size(messages, host) == V6_HOST_SIZE else 0
    return born | (STORE_HOST_V6 if len(host) == V6_HOST_SIZE else 0)


def _sizes(messages: OutgoingMessages, host: bytes, queues: QueueFields) -> _Sizes:
    header_size = HEADERS[_host_flags(messages, host)].itemsize
    bodies, properties = sizes_of(messages.bodies), sizes_of(messages.properties)
    names = _of_rows(np.array([len(name) for name in queues.names], np.int64), messages.queue_codes)
    return _Sizes(bodies, properties, header_size + bodies + names + 2 + properties)


def _columns(messages: OutgoingMessages, host: bytes, sizes: _Sizes) -> BlockColumns:
    return BlockColumns(
        messages.queues,
        messages.queue_codes,
        sizes.records.astype(np.int32),
        messages.tags_codes,
        messages.key_counts,
        messages.key_hashes,
        _born_size(messages, host),
        messages.is_queued,
        has_crc=messages.has_crc,
    )


def with_body(block: RecordBlock, body: bytes, born_time_ms: int) -> RecordBlock:
    """The block's one record with another body and born time; the same as encoding it anew, at a small part of the cost."""
    flags = int(view_at(block.data, np.array([SYS_FLAG_POSITION]), _FLAGS)[0])
    layout = HEADERS[flags & (BORN_HOST_V6 | STORE_HOST_V6)]
    header = block.data[: layout.itemsize].copy().view(layout)
    behind = block.data[layout.itemsize + int(header["body_size_bytes"][0]) :]
    size = layout.itemsize + len(body) + len(behind)
    header["size_bytes"] = size
    header["body_crc"] = isal_zlib.crc32(body) & CRC_MASK
    header["body_size_bytes"] = len(body)
    header["born_time_ms"] = born_time_ms
    data = np.concatenate([header.view(np.uint8), np.frombuffer(body, np.uint8), behind])
    return RecordBlock(block.columns._replace(sizes_bytes=np.array([size], np.int32)), data)


def stamp(
    data: np.ndarray,
    positions: np.ndarray,
    queue_offsets: np.ndarray,
    commitlog_offsets: np.ndarray,
    store_time_ms: int | np.ndarray,
    host_size: int,
) -> None:
    """Write the fields that depend on the place into records at `positions` of a writable `uint8` buffer."""
    if not len(positions):
        return
    if is_few(len(positions)) and isinstance(store_time_ms, int):
        time = store_time_ms.to_bytes(_TIME_SIZE, "big", signed=True)
        _stamp_few(data, positions, queue_offsets, commitlog_offsets, time, _STORE_TIME_POSITIONS[host_size])
        return
    place = np.empty(len(positions), _PLACE)
    place["queue_offset"] = queue_offsets
    place["commitlog_offset"] = commitlog_offsets
    scatter(data, positions + _PLACE_POSITION, place.view("V16"))
    times = np.full(len(positions), store_time_ms, _TIME)
    scatter(data, positions + _STORE_TIME_POSITIONS[host_size], times.view("V8"))


def _stamp_few(
    data: np.ndarray,
    positions: np.ndarray,
    queue_offsets: np.ndarray,
    commitlog_offsets: np.ndarray,
    time: bytes,
    time_position: int,
) -> None:
    memory, starts = data.data, positions.tolist()
    if min(starts) < 0 or max(starts) + time_position + _TIME_SIZE > len(memory):
        raise IndexError(f"records that begin at {min(starts)} to {max(starts)} do not lie in {len(memory)} bytes")
    places = zip(queue_offsets.tolist(), commitlog_offsets.tolist(), strict=True)
    for position, place in zip(starts, places, strict=True):
        _PLACE_STRUCT.pack_into(memory, position + _PLACE_POSITION, *place)
        at = position + time_position
        memory[at : at + _TIME_SIZE] = time


def stamp_crcs(data: np.ndarray, positions: np.ndarray, sizes: np.ndarray) -> None:
    """Write the sums of whole records that begin at `positions` and have room for them; everything else in them is stamped.

    Java: CommitLog.DefaultAppendMessageCallback.doAppend, MessageDecoder.createCrc32.
    """
    if len(positions):
        ends = positions + sizes
        sums = crcs_between(data, positions, ends - CRC_SIZE)
        digits = (sums[:, None] // CRC_TENS % 10 + ord("0")).astype(np.uint8)
        scatter(data, ends - (CRC_DIGITS + 1), digits.view(f"V{CRC_DIGITS}")[:, 0])


def stamp_halves(data: np.ndarray, positions: np.ndarray, half_offsets: np.ndarray) -> None:
    """Write their halves' log offsets into commit records at `positions`."""
    if len(positions):
        scatter(data, half_positions(data, positions), half_offsets.astype(_TIME).view("V8"))


def copy_halves(logged: np.ndarray, staged: np.ndarray, positions: np.ndarray) -> None:
    """Copy the halves' log offsets of logged commits into the same staged ones."""
    commits = commits_among(staged, positions)
    if len(commits):
        stamp_halves(staged, commits, view_at(logged, half_positions(staged, commits), _TIME))


def commits_among(data: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Those of the records' positions at which commits of half messages begin."""
    flags = view_at(data, positions + SYS_FLAG_POSITION, _FLAGS)
    return np.asarray(positions[flags & TRANSACTION_MASK == TRANSACTION_COMMIT])


def half_positions(data: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Positions of the half's log offset in records: after both hosts."""
    flags = view_at(data, positions + SYS_FLAG_POSITION, _FLAGS).astype(np.int64)
    longer = np.where(flags & BORN_HOST_V6, _V6_LONGER, 0) + np.where(flags & STORE_HOST_V6, _V6_LONGER, 0)
    return np.asarray(positions + _HALF_POSITION + longer)


def resolved_tags_codes(tags_codes: np.ndarray, store_time_ms: int) -> np.ndarray:
    """The tags codes of messages with that store time, as queue entries hold them."""
    waiting = tags_codes >= DUE_IN
    return np.where(waiting, tags_codes - DUE_IN + store_time_ms, tags_codes) if waiting.any() else tags_codes


def read_stamps(data: np.ndarray, positions: np.ndarray, host_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Queue offsets and store times of the records that begin at `positions`, as `stamp` wrote them."""
    queue_offsets = view_at(data, positions + _PLACE_POSITION, _TIME)
    times = view_at(data, positions + _STORE_TIME_POSITIONS[host_size], _TIME)
    return queue_offsets.astype(np.int64), times.astype(np.int64)


def scatter(data: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """Write values of one width to the given byte positions of a writable `uint8` buffer."""
    width = values.dtype.itemsize
    rows = np.ndarray((len(data) - width + 1,), values.dtype, data, strides=(1,))
    rows[positions] = values


_ORIGIN_POSITION = 40
_RECONSUME_SIZE = 4
_HALF = np.dtype("V8")


# A record's content: all fields except place, times and hosts. So a row that is staged a second time is
# recognized.
#
#     0   20                       36         40          48          56           64           72
#     | … | queue offset · place   | sysFlag  | born time | born host | store time | store host | reconsume times | half's place | …
#         |---- not counted -------|          |------------------ not counted -----------------|                 |-- commits --|
#
# A task that runs again, in any process on any machine, makes the same content of the same row. Born time and hosts are those of the
# attempt, unless the row names them, so they do not count either. IPv6 hosts are 12 bytes longer.


def content_sum(data: np.ndarray, positions: np.ndarray, start: int = 0) -> int:
    """CRC-32 of the contents of whole records that begin at `positions` of a writable `uint8` buffer and are not stamped yet.

    All have hosts of the same kinds. `start` is the sum of the records before. The buffer is as before when this returns.
    """
    if not len(positions):
        return start
    origins = positions + _ORIGIN_POSITION
    width = _origin_size(data, positions)
    kept = view_at(data, origins, width)
    commits = commits_among(data, positions)
    halves = half_positions(data, commits)
    kept_halves = view_at(data, halves, _HALF)
    scatter(data, origins, np.zeros(len(positions), width))
    scatter(data, halves, np.zeros(len(halves), _HALF))
    found = isal_zlib.crc32(data, start)
    scatter(data, halves, kept_halves)
    scatter(data, origins, kept)
    return int(found)


def copy_origins(logged: np.ndarray, staged: np.ndarray, positions: np.ndarray) -> None:
    """Copy born time, store time and hosts of logged records into the same staged ones."""
    if len(positions):
        origins = positions + _ORIGIN_POSITION
        scatter(staged, origins, view_at(logged, origins, _origin_size(staged, positions)))


def _origin_size(data: np.ndarray, positions: np.ndarray) -> np.dtype:
    """Born time, born host, store time and store host, as bytes."""
    first = positions[:1]
    end = int(half_positions(data, first)[0]) - _RECONSUME_SIZE
    return np.dtype((np.void, end - int(first[0]) - _ORIGIN_POSITION))
