"""Records in their parts, to be joined when they are asked for: all at once, or piece after piece.

    header · body CRC in it · body · length of the topic · topic · length of the properties · properties

Who writes records to a file wants pieces: one that has just been made is still in the processor's cache when it is summed up and
written, and no memory of the size of them all is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from storage.format.java_hash import CRC_MASK
from storage.format.kernels.compiled import ENCODE, as_int32, sealed, strings_of
from storage.format.properties import decode_properties

PIECE_BYTES = 256 << 10
"""Of a piece, unless one record is larger. It was measured where a core's second cache has 1 MiB."""


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
        count, out = len(self.header), np.empty(int(self.header["size_bytes"].sum(dtype=np.int64)), np.uint8)
        join = self._kernel()
        return out if join is not None and join(out, 0) == (count, len(out)) else self._joined(0, count)

    def pieces(self) -> Iterator[np.ndarray]:
        """The same, piece after piece, of whole records each; one without kernels, because Arrow's join is dear to begin.

        A piece is good until the next one is asked for.
        """
        count, join = len(self.header), self._kernel()
        if join is None:
            yield from (self._joined(0, count),) if count else ()
            return
        buffer = np.empty(PIECE_BYTES, np.uint8)
        first = 0
        while first < count:
            out = buffer
            last, size = join(out, first)
            if last == first:  # larger than a piece, or nothing for a kernel
                out = np.empty(int(self.header["size_bytes"][first]), np.uint8)
                last, size = join(out, first)
            yield out[:size] if last > first else self._joined(first, first + 1)
            first = max(last, first + 1)

    def unique_key(self, row: int) -> str:
        """That of one record; empty where it has none."""
        return decode_properties(self.properties[row].as_py()).get("UNIQ_KEY", "")

    def _joined(self, first: int, last: int) -> np.ndarray:
        """Records [first, last), by Arrow's join."""
        header, bodies = self.header[first:last], self.bodies[first:last]
        header["body_crc"] = body_crcs(bodies)
        return joined(header, bodies, self.names, self.name_codes[first:last], self.properties[first:last])

    def _kernel(self) -> Callable[[np.ndarray, int], tuple[int, int]] | None:
        """What fills a buffer with records from a row on: `join_records`. None where kernels know no such columns."""
        kernels = ENCODE.for_rows(len(self.header))
        if kernels is None or self.bodies.null_count or self.properties.null_count:
            return None
        if not kernels.HAS_CRC:
            self.header["body_crc"] = body_crcs(self.bodies)
        name_ends = np.cumsum([0, *map(len, self.names)], dtype=np.int64)
        headers, codes = sealed(self.header.view(np.uint8)), as_int32(self.name_codes)
        names = kernels.Strings(sealed(np.frombuffer(b"".join(self.names), np.uint8)), sealed(name_ends))
        (bodies, _), (properties, _) = (
            strings_of(kernels, column.cast(pa.large_binary())) for column in (self.bodies, self.properties)
        )

        def join(out: np.ndarray, first: int) -> tuple[int, int]:
            last, size = kernels.join_records(out, first, headers, bodies, names, codes, properties)
            return last, size

        return join


def joined(
    header: np.ndarray, bodies: pa.Array, names: list[bytes], name_codes: np.ndarray, properties: pa.Array
) -> np.ndarray:
    """Records back to back: n headers, complete; n bodies; of each its name, by number; n properties."""
    count = len(header)
    encoded = pa.array(names, pa.large_binary())
    named: pa.Array | pa.Scalar = encoded[0] if len(set(names)) == 1 else encoded.take(pa.array(name_codes))
    property_sizes = pc.binary_length(properties).to_numpy().astype(">u2")
    records = pc.binary_join_element_wise(
        _fixed_binary(header.view(np.uint8), count, header.itemsize),
        bodies.cast(pa.large_binary()),
        named,
        _fixed_binary(property_sizes.view(np.uint8), count, 2),
        properties.cast(pa.large_binary()),
        pa.scalar(b"", pa.large_binary()),
    )
    size = int(header["size_bytes"].astype(np.int64).sum())
    return np.frombuffer(records.buffers()[2], np.uint8)[:size]


def body_crcs(bodies: pa.Array) -> np.ndarray:
    """`body_crc` of each body, int32."""
    offset_type = np.int64 if pa.types.is_large_binary(bodies.type) else np.int32
    _, offsets_buffer, data_buffer = bodies.buffers()
    width = np.dtype(offset_type).itemsize
    offsets = np.frombuffer(offsets_buffer, offset_type, len(bodies) + 1, offset=width * bodies.offset).tolist()
    data = memoryview(data_buffer) if data_buffer is not None else memoryview(b"")
    parts = map(data.__getitem__, map(slice, offsets, islice(offsets, 1, None)))
    return (np.fromiter(map(isal_zlib.crc32, parts), np.uint32, len(bodies)) & CRC_MASK).astype(np.int32)


def _fixed_binary(data: np.ndarray, count: int, width: int) -> pa.Array:
    offsets = np.arange(0, count * width + 1, width, dtype=np.int64)
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
