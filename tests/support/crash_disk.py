"""What a disk holds, what of it is synced, and what a power loss leaves. `crash_file_system.py` fills it.

The method is that of SQLite's crash tests and of ALICE (OSDI '14). What a power loss may do:

    file content     pages written since the file's sync are there or not, each on its own, in any of the versions it had;
                     the length is an older one or the new one, none at all of a file that is new
    directory        of what was made, renamed and deleted since its sync, in that order, all behind some point is lost.
                     A file's sync does not keep its entry. A renamed file has the old name, the new one or both, never none.
    boot id          is another one

A sync that fails (`fail-sync`, fsync(2)) leaves the pages that it did not write clean: no later sync writes them, only a new write to
them makes them dirty again. Names and lengths, which lie in a journal, stay to be synced.

Parts of a page shorter than its unit are never torn.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = 4096
SECTOR_BYTES = 512
EXTREMES = ("lost", "kept", "first", "last")
"""Of what is not synced nothing is left; all of it; of each file the first page only; the last one only."""


class Operation(NamedTuple):
    """One step that changes the disk, or that makes changes durable."""

    kind: str
    """make, make-directory, write, resize, rename, unlink, sync, fail-sync; or mark, which a test sets."""
    path: str
    position: int = 0
    """Of a resize: the new length; of a failed sync a bit for each page, in turns of eight, that it has written all the same."""
    data: bytes = b""
    new_path: str = ""


class _Change(NamedTuple):
    """Entries of one directory that change together, not synced yet. None as a number: the name is gone."""

    directory: str
    names: dict[str, int | None]
    needs: _Change | None = None
    """Of the removal that belongs to a rename into another directory: the name's appearance there."""


@dataclass
class _File:
    """Content now, content on the disk, and the writes in between: (position, data), or (length, None) for a new length."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    cached: bytes | None = None
    """After a failed sync the content at that time; None = it is `durable`."""
    stale: set[int] = field(default_factory=set)
    """Pages that are on the disk otherwise than in the page cache, which takes them for clean."""

    def apply(self, position: int, data: bytes | None) -> None:
        self.pending.append((position, data))
        _apply(self.content, position, data)

    def sync(self) -> None:
        self.stale -= self._dirty()
        self.durable = self._without_stale(bytes(self.content))
        self.cached = bytes(self.content) if self.stale else None
        self.pending.clear()

    def fail_sync(self, written: int) -> None:
        dirty = self._dirty()
        done = {page for page in dirty if written >> page % 8 & 1}
        self.stale = (self.stale | dirty) - done
        length = len(self.durable)
        self.durable = self._without_stale(bytes(self.content))[:length]
        self.cached = bytes(self.content)
        self.pending = [(position, data) for position, data in self.pending if data is None]

    def _dirty(self) -> set[int]:
        return {
            page
            for position, data in self.pending
            if data
            for page in range(position // PAGE_BYTES, (position + len(data) - 1) // PAGE_BYTES + 1)
        }

    def _without_stale(self, content: bytes) -> bytes:
        """The content with what the disk holds in place of the pages that it does not hold."""
        if not self.stale:
            return content
        on_disk = bytearray(content)
        for page in self.stale:
            start, end = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(content))
            on_disk[start:end] = self.durable[start:end].ljust(max(0, end - start), b"\0")
        return bytes(on_disk)

    def after_power_loss(self, choice: random.Random, extreme: str = "") -> bytes:
        fate = (extreme or choice.choice(("lost", "kept", "torn"))) if self.pending else "lost"
        if fate in ("first", "last"):
            return self._with_one_page(fate)
        if fate == "kept":
            return self._without_stale(bytes(self.content))
        return self.durable if fate == "lost" else self._torn(choice, choice.choice((PAGE_BYTES, SECTOR_BYTES)))

    def _with_one_page(self, fate: str) -> bytes:
        """The new length, and of the pages that were written only one."""
        left, content = bytearray(self.durable), self._without_stale(bytes(self.content))
        _apply(left, len(content), None)
        for page in sorted(self._dirty(), reverse=fate == "last")[:1]:
            left[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
        return bytes(left)

    def _torn(self, choice: random.Random, unit: int) -> bytes:
        lengths, versions = [len(self.durable)], bytearray(self.durable if self.cached is None else self.cached)
        writes: dict[int, list[bytes]] = {}  # of each page the versions that it had
        for position, data in self.pending:
            _apply(versions, position, data)
            lengths.append(len(versions))
            for page in range(position // unit, (position + len(data or b"") - 1) // unit + 1) if data else ():
                writes.setdefault(page, []).append(bytes(versions[page * unit : (page + 1) * unit]))
        torn = bytearray(self.durable)
        torn.extend(bytes(max(lengths) - len(torn)))
        for page, seen in writes.items():
            version = choice.choice([None, *seen])
            if version is not None:
                torn[page * unit : page * unit + len(version)] = version
        return bytes(torn[: choice.choice(lengths)])


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del content[position:]
        content.extend(bytes(position - len(content)))
    else:
        content.extend(bytes(max(0, position + len(data) - len(content))))
        content[position : position + len(data)] = data


DIRECTORY = -1


class Disk:
    """Files by number and directories by path, as they are and as they are known to be on the disk."""

    def __init__(self) -> None:
        self.files: dict[int, _File] = {}
        self.entries: dict[str, dict[str, int]] = {}
        self._durable_entries: dict[str, dict[str, int]] = {}
        self._changes: list[_Change] = []

    @classmethod
    def of_directory(cls, root: str) -> Disk:
        """What a real directory holds, taken to be on the disk."""
        disk = cls()
        for directory, directories, files in os.walk(root):
            names = disk.entries[directory] = dict.fromkeys(directories, DIRECTORY)
            for name in files:
                content = Path(directory, name).read_bytes()
                names[name] = len(disk.files)
                disk.files[len(disk.files)] = _File(bytearray(content), content)
        disk._durable_entries = deepcopy(disk.entries)
        return disk

    def number(self, path: str) -> int | None:
        directory, name = os.path.split(path)
        return self.entries.get(directory, {}).get(name)

    def length(self, path: str) -> int | None:
        number = self.number(path)
        return None if number is None else len(self.files[number].content)

    def apply(self, operation: Operation) -> None:
        directory, name = os.path.split(operation.path)
        match operation.kind:
            case "make":
                number = max(self.files, default=0) + 1
                self.files[number] = _File()
                self._change(_Change(directory, {name: number}))
            case "make-directory":
                self.entries[operation.path] = {}
                self._durable_entries[operation.path] = {}
                self._change(_Change(directory, {name: DIRECTORY}))
            case "write":
                self.files[self.entries[directory][name]].apply(operation.position, operation.data)
            case "resize":
                self.files[self.entries[directory][name]].apply(operation.position, None)
            case "rename":
                self._rename(directory, name, *os.path.split(operation.new_path))
            case "unlink":
                self._change(_Change(directory, {name: None}))
            case "sync" if operation.path in self.entries:
                self._sync_directory(operation.path)
            case "sync":
                self.files[self.entries[directory][name]].sync()
            case "fail-sync" if operation.path not in self.entries:
                self.files[self.entries[directory][name]].fail_sync(operation.position)

    def _rename(self, directory: str, name: str, new_directory: str, new_name: str) -> None:
        number = self.entries[directory][name]
        if directory == new_directory:
            self._change(_Change(directory, {name: None, new_name: number}))
        else:
            appearance = _Change(new_directory, {new_name: number})
            self._change(appearance)
            self._change(_Change(directory, {name: None}, appearance))

    def _change(self, change: _Change) -> None:
        _enter(self.entries, change)
        self._changes.append(change)

    def _sync_directory(self, path: str) -> None:
        done = [change for change in self._changes if change.directory == path]
        done += [change.needs for change in done if change.needs is not None]
        for change in self._changes:
            if any(change is one for one in done):
                _enter(self._durable_entries, change)
        self._changes = [change for change in self._changes if not any(change is one for one in done)]

    def after_power_loss(self, choice: random.Random, extreme: str = "") -> Disk:
        """What is left, all of it on the disk. An extreme, of `EXTREMES`, leaves no choice for the files' content."""
        left = Disk()
        entries = deepcopy(self._durable_entries)
        counts = Counter(change.directory for change in self._changes)
        cut = {path: _kept_changes(counts[path], choice, extreme) for path in self.entries}
        lost: list[_Change] = []
        for change in self._changes:
            cut[change.directory] -= 1
            needed = change.needs is not None and any(change.needs is one for one in lost)
            if cut[change.directory] < 0 or needed:
                lost.append(change)
            else:
                _enter(entries, change)
        contents = {number: file.after_power_loss(choice, extreme) for number, file in self.files.items()}
        parents = {directory for directory in entries if os.path.dirname(directory) not in entries}
        for directory in sorted(entries):  # a directory whose own entry is lost is lost with all it held
            parent, name = os.path.split(directory)
            if directory in parents or (parent in left.entries and left.entries[parent].get(name) == DIRECTORY):
                left.entries[directory] = entries[directory]
        named = {number for names in left.entries.values() for number in names.values() if number != DIRECTORY}
        left.files = {number: _File(bytearray(contents[number]), contents[number]) for number in named}
        left._durable_entries = deepcopy(left.entries)
        return left

    def write_to(self, root: str) -> None:
        """Make the real directory hold what this disk holds."""
        shutil.rmtree(root, ignore_errors=True)
        for directory in sorted(self.entries):
            os.makedirs(directory, exist_ok=True)
            for name, number in self.entries[directory].items():
                if number != DIRECTORY:
                    Path(directory, name).write_bytes(self.content(f"{directory}/{name}"))

    def content(self, path: str) -> bytes:
        """Of a file, as it is now."""
        directory, name = os.path.split(path)
        return bytes(self.files[self.entries[directory][name]].content)

    def paths(self) -> set[str]:
        """Of all files."""
        return {
            f"{directory}/{name}"
            for directory, names in self.entries.items()
            for name, number in names.items()
            if number != DIRECTORY
        }


def _kept_changes(count: int, choice: random.Random, extreme: str) -> int:
    if extreme in ("lost", "kept"):
        return count if extreme == "kept" else 0
    return choice.randint(0, count)


def _enter(entries: dict[str, dict[str, int]], change: _Change) -> None:
    for name, number in change.names.items():
        if number is None:
            entries[change.directory].pop(name, None)
        else:
            entries[change.directory][name] = number
