"""Processor seconds by process, from Linux's /proc.

They hold still where the clock's figures move with whatever else the machine does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> dict[int, float]:
    """User and system time of each process that is there."""
    return {pid: sum(map(int, fields[11:13])) / TICKS_PER_SECOND for pid in pids if (fields := _stat(pid))}


def cpu_seconds_between(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """What the processes of `after` took since `before`. A process that ended meanwhile is not counted."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, at any depth."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    below = list(children.get(pid, ()))
    for child in below:  # grows while it is walked
        below.extend(children.get(child, ()))
    return below


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on (proc(5)): state, parent, …; none if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()  # a command's name, the second field, may hold spaces
