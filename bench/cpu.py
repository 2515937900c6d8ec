"""Processor seconds by process, from Linux's /proc.

They hold still where the clock's figures move with whatever else the machine does.
"""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def own_cpu_seconds(pid: int) -> float:
    """User and system time of a process, without its children's."""
    return _seconds(_stat(pid)[11:13])


def cpu_seconds_below(pid: int) -> float:
    """User and system time of all processes that `pid` and those below it have started and, if they ended, waited for."""
    return _seconds(_stat(pid)[13:15]) + sum(_seconds(_stat(child)[11:15]) for child in below(pid))


def busy_seconds() -> float:
    """User and system time of all processes of the machine."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    idle, waiting_for_disks = fields[3], fields[4]
    return _seconds(fields[:8]) - _seconds([idle, waiting_for_disks])


def below(pid: int) -> list[int]:
    """The processes that `pid` and those below it have started, and that live."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(children.get(pid, ()))
    for child in found:  # grows while it is walked
        found.extend(children.get(child, ()))
    return found


def _seconds(ticks: list[str]) -> float:
    return sum(map(int, ticks)) / TICKS_PER_SECOND


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on (proc(5)): state, parent, …; none if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()  # a command's name, the second field, may hold spaces
