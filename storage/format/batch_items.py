"""The items of a send batch made from columns, many at once: Arrow and NumPy columns in, one run of bytes out. No loop over messages.

    0      4     8     12     16            20       20 + n              22 + n
    | size | (0) | (0) | flag | body length | body n | properties length | properties |

The fields in parentheses stay zero, as in Java's producer; a broker ignores them. Concatenated items are a batch's body, so any run of
them is a batch. Java: MessageDecoder.encodeMessage; the inverse is `spark_mq/remoting/messages.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.arrays import sizes_of, view_at

HEAD = np.dtype([("size_bytes", ">i4"), ("unread", "V8"), ("flag", ">i4"), ("body_size_bytes", ">i4")])
"""The part before the body."""
_LENGTH = np.dtype(">i2")
ITEM_OVERHEAD = HEAD.itemsize + _LENGTH.itemsize
"""Bytes of an item without its body and properties."""


class BatchItems(NamedTuple):
    """Items back to back: item i is `data[ends[i - 1]:ends[i]]`."""

    data: np.ndarray
    """uint8."""
    ends: np.ndarray
    """int64."""

    def __len__(self) -> int:
        return len(self.ends)


def encode_items(bodies: pa.Array, properties: pa.Array, flags: np.ndarray) -> BatchItems:
    """The items of n messages: `bodies` and `properties` are binary or large_binary without nulls, `flags` are int32."""
    count = len(flags)
    body_sizes, property_sizes = sizes_of(bodies), sizes_of(properties)
    sizes = body_sizes + property_sizes + ITEM_OVERHEAD
    head = np.zeros(count, HEAD)
    head["size_bytes"] = sizes
    head["flag"] = flags
    head["body_size_bytes"] = body_sizes
    joined = pc.binary_join_element_wise(
        _fixed(head),
        bodies.cast(pa.large_binary()),
        _fixed(property_sizes.astype(_LENGTH)),
        properties.cast(pa.large_binary()),
        pa.scalar(b"", pa.large_binary()),
    )
    ends = np.cumsum(sizes)
    data = joined.buffers()[2] if count else None
    return BatchItems(np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[: int(ends[-1])], ends)


def item_ends(body: bytes | memoryview) -> list[int]:
    """Where the items of a batch's body end. ValueError where their sizes do not add up."""
    data, ends, position = np.frombuffer(body, np.uint8), [], 0
    while position < len(data):
        size = int(view_at(data, np.array([position]), HEAD)["size_bytes"][0]) if len(data) - position >= 22 else 0
        if size < ITEM_OVERHEAD or position + size > len(data):
            raise ValueError(f"the item at byte {position} does not end within the batch")
        position += size
        ends.append(position)
    return ends


def _fixed(values: np.ndarray) -> pa.Array:
    """Each value's bytes, as large_binary."""
    count, width = len(values), values.dtype.itemsize
    offsets = np.arange(0, count * width + 1, width, dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values.view(np.uint8))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers)
