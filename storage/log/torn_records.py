"""Records that a crash may have left without bytes that no checksum covers: those of topic and properties, zeros then.

    a process that died    its last write has no end: the log's last record ends in zeros (`is_unfinished`)
    a machine that died    any sector that was not synced may be zeros (`first_torn`)

Recovery keeps such a record, as Java does: it may be the only copy. A follower has another one with its master, and must not go on
behind bytes that the master does not have.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from storage.format.record_batch import Records

_SECTOR_BYTES = 512


class Crash(Enum):
    """What has died with the store open."""

    PROCESS = auto()
    MACHINE = auto()


def first_torn(offsets: np.ndarray, records: Records, vouched: int = 0) -> int | None:
    """The row of the first record of which something may be lost: what lies in one sector of the disk, or its end. None if none is.

    The first `vouched` rows are known to be on the disk. A property that holds a NUL of its own is no sign.
    """
    has_nul = pc.match_substring(records.raw_properties(), b"\0").to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(has_nul[vouched:]) + vouched
    ends = records.body_ends[rows]
    for row, start in zip(rows.tolist(), ends.tolist(), strict=True):
        position = int(records.positions[row])
        size = int(records.column("size_bytes")[row])
        if _is_torn(records.buffer[start : position + size], int(offsets[row]) + start - position):
            return int(row)
    return None


def is_unfinished(records: Records) -> bool:
    """Whether the last of these, which is a log's last, may lack its end."""
    position = int(records.positions[-1])
    return bool(records.buffer[position + int(records.column("size_bytes")[-1]) - 1] == 0)


def _is_torn(unchecked: np.ndarray, place: int) -> bool:
    """Whether of these bytes, which stand at a place of the log, the last one is zero, or all that lie in one sector."""
    if unchecked[-1] == 0:
        return True
    first = -place % _SECTOR_BYTES
    starts = [0, *range(first or _SECTOR_BYTES, len(unchecked), _SECTOR_BYTES)]
    return bool((np.maximum.reduceat(unchecked, starts) == 0).any())


class TornRow(NamedTuple):
    """Where it stands. What queue and index should know of it its record tells when it is whole again."""

    commitlog_offset: int
    size_bytes: int
