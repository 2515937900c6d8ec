"""Many byte ranges of one buffer as an Arrow array, gathered without a loop over them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage.format.layout import view_at

_VIEW = np.dtype([("size_bytes", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("start", "<i4")])
_INLINE_VIEW = np.dtype([("size_bytes", "<i4"), ("text", "V12")])
_INLINE_BYTES = 12  # shorter strings stand in the view itself


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
