"""What of a disk is in use, and what uses it. Java: UtilAll.getDiskPartitionSpaceUsedPercent."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache

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


def disk_room_bytes(path: str) -> tuple[int, int]:
    """All of a disk's room, and what of it is free. Raises OSError."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bfree * found.f_frsize


@lru_cache
def is_memory(device: int) -> bool:
    """Whether a device (`st_dev`) is a tmpfs: there even a look at a hole takes a page, if it is through a map, and on a full one it
    ends the process (SIGBUS). read(2) takes none.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), open("/proc/self/mountinfo") as mounts:
        for mount in mounts:
            place, _, kind = mount.partition(" - ")
            if place.split()[2] == number:
                return kind.split()[0] == "tmpfs"
    return False
