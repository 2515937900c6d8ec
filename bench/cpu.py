"""Processor seconds by process, from Linux's /proc.

They hold still where the clock's figures move with whatever else the machine does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCHLD
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
LOOK_SECONDS = 0.2


def own_cpu_seconds(pid: int) -> float:
    """User and system time of a process, without its children's."""
    return _seconds(_stat(pid)[11:13])


class _Seen(NamedTuple):
    """A process at the last look."""

    parent: tuple[int, int]
    seconds: float
    """With those of its children that have ended and that it waited for."""
    ignores_children: bool
    """Then the kernel gives the times of its ended children to no process. Spark's daemon of Python workers is such a parent."""


class Below:
    """User and system time of all processes that a process, and those below it, have started. It never falls.

    Of a child that no parent waits for, the time after the last look at it is missing. `watched` looks often.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._living: dict[tuple[int, int], _Seen] = {}
        """By process id and start: ids are used again."""
        self._left_s = 0.0
        """Of processes that ended, and whose time their parents do not have."""
        self._most_s = 0.0
        self._lock = threading.Lock()

    def seconds(self) -> float:
        with self._lock:
            living = self._look()
            for process, seen in self._living.items():
                parent = self._living.get(seen.parent)
                if process not in living and (parent is None or parent.ignores_children):
                    self._left_s += seen.seconds
            self._living = living
            own = sum(seen.seconds for (pid, _), seen in living.items() if pid != self._pid)
            waited_for_s = _seconds(_stat(self._pid)[13:15])
            self._most_s = max(self._most_s, waited_for_s + self._left_s + own)
            return self._most_s

    def _look(self) -> dict[tuple[int, int], _Seen]:
        """The process and those below it, and those that were below it before their parents ended."""
        found: dict[tuple[int, int], _Seen] = {}
        starts: dict[int, int] = {}
        for pid in [self._pid, *below(self._pid), *(pid for pid, _ in self._living)]:
            if pid in starts or not (fields := _stat(pid)):
                continue
            process, parent = (pid, int(fields[19])), int(fields[1])
            known = self._living.get(process)
            if known is not None:
                of = known.parent
            elif pid == self._pid or parent in starts:
                of = parent, starts.get(parent, 0)
            else:
                continue  # the id is another process's by now
            starts[pid] = process[1]
            found[process] = _Seen(of, _seconds(fields[11:15]), _ignores_children(pid))
        return found

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look every `LOOK_SECONDS` while the block runs."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(LOOK_SECONDS):
                self.seconds()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


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


def _ignores_children(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    ignored = next((line for line in lines if line.startswith("SigIgn:")), "SigIgn: 0")
    return bool(int(ignored.split()[1], 16) >> (SIGCHLD - 1) & 1)


def _seconds(ticks: list[str]) -> float:
    return sum(map(int, ticks)) / TICKS_PER_SECOND


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on (proc(5)): state, parent, …; none if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()  # a command's name, the second field, may hold spaces
