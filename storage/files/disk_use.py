"""How full the disk is that a path lies on. Java: UtilAll.getDiskPartitionSpaceUsedPercent."""

from __future__ import annotations

import os

UNKNOWN = -1


def disk_used_percent(path: str) -> int:
    """Whole percent in use, rounded up, of what is open to this user (room that is kept for root counts as neither); UNKNOWN if it
    cannot be told.
    """
    try:
        found = os.statvfs(path)
    except OSError:
        return UNKNOWN
    used = found.f_blocks - found.f_bfree
    whole = used + found.f_bavail
    return -(-used * 100 // whole) if whole > 0 else UNKNOWN
