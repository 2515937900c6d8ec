"""Commits as records, made of the records of their halves: of another queue, with the flags of a commit; all else is the half's.

Java: EndTransactionProcessor.endMessageTransaction, which makes them of the half that it reads from the log.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from storage.format.layout import view_at
from storage.format.record import HEADERS, HOST_FLAGS
from storage.format.record_batch import Records
from storage.format.record_block import QueueFields
from storage.format.record_parts import joined
from storage.format.sys_flag import committed_flags


def write_commits(
    out: np.ndarray, halves: np.ndarray, positions: np.ndarray, queues: Sequence[tuple[str, int]], codes: np.ndarray
) -> None:
    """Fill `out` with the commits of whole records that begin at `positions` of `halves` (both `uint8`), in their order.

    `codes` says which of the queues each is for. All halves have hosts of the same kinds. Where a half lies is not said yet
    (`record_block.stamp_halves`). Raises ValueError where the commits take more bytes or fewer.
    """
    made = _joined(halves, positions, queues, codes) if len(positions) else np.empty(0, np.uint8)
    if len(made) != len(out):
        raise ValueError(f"the commits of {len(positions)} halves take {len(made)} bytes, not {len(out)}")
    out[:] = made


def _joined(
    halves: np.ndarray, positions: np.ndarray, queues: Sequence[tuple[str, int]], codes: np.ndarray
) -> np.ndarray:
    fields, records = QueueFields.of(queues), Records(halves, positions)
    bodies, properties, flags = records.bodies(), records.raw_properties(), records.column("sys_flag")
    layout = HEADERS[int(flags[0]) & HOST_FLAGS]
    header = view_at(halves, positions, layout).copy()
    names = np.array([len(name) for name in fields.names], np.int64)[codes]
    behind = 2 + pc.binary_length(properties).to_numpy()
    header["size_bytes"] = layout.itemsize + records.column("body_size_bytes") + names + behind
    header["magic"] = fields.magics[codes]
    header["queue_id"] = fields.queue_ids[codes]
    header["sys_flag"] = committed_flags(flags)
    return joined(header, bodies, fields.names, codes, properties)
