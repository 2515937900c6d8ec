"""Records joined from their parts: of columns, all at once or piece after piece; of a few messages; commits from their halves' records.

    header · body CRC in it · body · length of the topic · topic · length of the properties · properties

Java: MessageExtEncoder; EndTransactionProcessor.endMessageTransaction, which makes a commit of the half that it reads from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from storage.compiler import COMPILED
from storage.format.arrays import as_large_binary, bytes_and_offsets, row_windows, sealed, view_at
from storage.format.java_hash import CRC_MASK, crcs_between
from storage.format.properties import decode_properties
from storage.format.record import HEADER_STRUCTS, HEADERS, HOST_FLAGS, MAGIC_V1, MAGIC_V2, committed_flags
from storage.format.record_batch import Records

_NOTHING = pa.scalar(b"", pa.large_binary())
_V1_TOPIC_LIMIT = 127
PIECE_BYTES = 1 << 20
"""Of a piece, unless one record is larger. Measured where a core's second cache has 1 MiB; a join of fewer rows costs more for each."""


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
        return self._joined(slice(0, len(self.header)), size, CompiledJoin.of(self) or Join.of(self))

    def pieces(self) -> Iterator[np.ndarray]:
        """The same, piece after piece, of whole records each.

        A piece that has just been made is still in the processor's cache when it is summed up and written, and no memory of the size
        of them all is touched.
        """
        sizes, join = self.header["size_bytes"].astype(np.int64), CompiledJoin.of(self) or Join.of(self)
        begins = np.cumsum(sizes) - sizes
        for rows, end in row_windows(begins, sizes, PIECE_BYTES):
            yield self._joined(rows, end - int(begins[rows.start]), join)

    def _joined(self, rows: slice, size_bytes: int, join: CompiledJoin | Join) -> np.ndarray:
        """Records of some rows, with their bodies' sums."""
        if isinstance(join, CompiledJoin):
            if (made := join.rows(rows.start, rows.stop, size_bytes)) is not None:
                return made
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
    """The same by a compiled loop, which makes the bodies' sums, too."""

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
        sizes = np.array([len(name) for name in names], np.int64)
        begins = (np.cumsum(sizes) - sizes)[name_codes]
        named = Stretches(np.frombuffer(b"".join(names), np.uint8), begins, begins + sizes[name_codes])
        arrays = (header.view(np.uint8), *bodies, *named, *properties)
        return cls(kernels, kernels.Parts(*map(sealed, arrays)))

    def rows(self, first: int, last: int, size_bytes: int) -> np.ndarray | None:
        """Records [first, last) back to back; None where they do not take `size_bytes`."""
        out = np.empty(size_bytes, np.uint8)
        return out if self.fills(out, first, last) else None

    def fills(self, out: np.ndarray, first: int, last: int) -> bool:
        """Write records [first, last) to `out`. False where they do not fill it, or one does not lie in its data."""
        return bool(self.kernels.join_records(out, first, last, self.parts))


class Stretches(NamedTuple):
    """n stretches of a buffer: data[begins[i]:ends[i]]."""

    data: np.ndarray
    """uint8."""
    begins: np.ndarray
    """int64."""
    ends: np.ndarray
    """int64."""

    @classmethod
    def of(cls, column: pa.Array) -> Stretches:
        """Those of a binary column without nulls."""
        data, offsets = bytes_and_offsets(as_large_binary(column))
        return cls(data, offsets[:-1], offsets[1:])


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

    `codes` says which of the queues each is for. All halves have hosts of the same kinds. Where a half lies is not said yet
    (`record_block.stamp_halves`). Raises ValueError where the commits take more bytes or fewer.
    """
    made = np.empty(0, np.uint8)
    if len(positions):
        fields, records = QueueFields.of(queues), Records(halves, positions)
        header = _headers_of_commits(records, fields, codes)
        if (kernels := COMPILED.for_rows(len(positions))) is not None and kernels.HAS_CRC:
            bodies = Stretches(halves, records.body_starts, records.body_ends)
            properties = Stretches(halves, *records.property_bounds())
            if CompiledJoin.over(kernels, header, bodies, fields.names, codes, properties).fills(out, 0, len(header)):
                return
        exact = RecordParts(header, records.bodies(), fields.names, codes, records.raw_properties())
        made = Join.of(exact).rows(0, len(header))
    if len(made) != len(out):
        raise ValueError(f"the commits of {len(positions)} halves take {len(made)} bytes, not {len(out)}")
    out[:] = made


def _headers_of_commits(records: Records, fields: QueueFields, codes: np.ndarray) -> np.ndarray:
    flags = records.column("sys_flag")
    layout = HEADERS[int(flags[0]) & HOST_FLAGS]
    header = view_at(records.buffer, records.positions, layout).copy()
    names = np.array([len(name) for name in fields.names], np.int64)[codes]
    begins, ends = records.property_bounds()
    header["size_bytes"] = layout.itemsize + records.column("body_size_bytes") + names + 2 + (ends - begins)
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
