"""Other names of a directory: where else a Linux system shows it, by bind mounts and second mounts of one file system.

A directory has one name in its file system, and one for each mount that shows that part of the file system. /proc/self/mountinfo
lists the mounts of this process (proc_pid_mountinfo(5)).
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOUNTS = "/proc/self/mountinfo"
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mount: which part of which file system it shows, and where."""

    device: str
    part: str
    """The directory of the file system that is shown."""
    point: str
    """Where it is shown."""


def parse_mounts(text: str) -> list[Mount]:
    """The mounts of a mountinfo file, in its order: of two at one point the later hides the earlier."""
    lines = (line.split(" ") for line in text.splitlines())
    return [
        Mount(fields[2], _unescape(fields[3]), _unescape(fields[4]).rstrip("/")) for fields in lines if len(fields) > 4
    ]


def other_names(path: str, mounts: list[Mount]) -> list[str]:
    """Other paths at which the directory of an absolute path without links may be seen, too.

    A path may be hidden by another mount; the caller compares device and inode.
    """
    covering = [mount for mount in mounts if _is_below(path, mount.point)]
    if not covering:
        return []
    shown_by = max(reversed(covering), key=lambda mount: len(mount.point))
    place = shown_by.part.rstrip("/") + path[len(shown_by.point) :]
    names = (
        mount.point + place[len(mount.part.rstrip("/")) :]
        for mount in mounts
        if mount.device == shown_by.device and _is_below(place, mount.part.rstrip("/"))
    )
    return [name for name in dict.fromkeys(names) if name != path]


def _is_below(path: str, directory: str) -> bool:
    """Whether a path is a directory or lies in it; "" is the root."""
    return path == directory or path.startswith(directory + "/")


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), text)
