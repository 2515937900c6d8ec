"""What a disk was told to do, in words, so that a test can say in which order.

A word is the operation and the place: `write commitlog/0`, `sync consumequeue/A/0`, `rename config/topics.json`; a run of the same word
counts as one. Writes to an index file say which part of it they touch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.support.crash_disk import Operation
from tests.support.crash_file_system import CrashFileSystem

_INDEX_HEADER, _INDEX_SLOTS = 40, 10
"""Bytes, and how many slots a tiny store has."""


class ToldDisk(CrashFileSystem):
    """A disk that notes down what an operation told it, from `begin` on."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        super().__init__(str(root))
        self._begun = 0

    def begin(self) -> None:
        """What came before is no part of the operation."""
        self._begun = len(self.operations)

    def told(self, *, replaced: bool = True) -> list[str]:
        """The words since `begin`. With `replaced` a file that is replaced whole and durably is one word."""
        words = (self._word(operation) for operation in self.operations[self._begun :])
        found = [word for word, _ in groupby(filter(None, words))]
        return _with_replaced(found) if replaced else found

    @contextmanager
    def locked(self, path: str, timeout_ms: int = 0, **turns: Any) -> Iterator[None]:
        with super().locked(path, timeout_ms, **turns):
            self.mark("lock taken")
            try:
                yield
            finally:
                self.mark("lock given back")

    @contextmanager
    def left_alone(self, path: str) -> Iterator[bool]:
        with super().left_alone(path) as is_there:
            self.mark("lock shared")
            yield is_there

    def _word(self, operation: Operation) -> str:
        if operation.kind in ("resize", "make-directory"):
            return ""
        if operation.kind == "mark":
            return operation.path
        path = (operation.new_path or operation.path).removeprefix(self.root).removeprefix("/") or "ROOT"
        part = _part_of_index(operation.position) if operation.kind == "write" and path.startswith("index/") else ""
        return f"{operation.kind} {_short(path)}{part}"


def _with_replaced(words: list[str]) -> list[str]:
    """Where a step of replacing a file is missing, or comes late, its words stay."""
    found, at = list[str](), 0
    while at < len(words):
        name = words[at].removeprefix("make ").removesuffix(".tmp")
        replaced = [f"{step} {name}.tmp" for step in ("make", "write", "sync")] + [f"rename {name}"]
        directory = f"sync {name.rpartition('/')[0] or 'ROOT'}"
        if words[at : at + 5] == [*replaced, directory]:
            found.append(f"replace {name}")
            at += 5
        else:
            found.append(words[at])
            at += 1
    return found


def _part_of_index(position: int) -> str:
    if not position:
        return " header"
    return " slots" if position < _INDEX_HEADER + 4 * _INDEX_SLOTS else " items"


def _short(path: str) -> str:
    path = re.sub(r"index/\d{17}", "index/FILE", path)
    path = re.sub(r"[0-9a-f]{16}-(\d+)", r"BATCH-\1", path)
    path = re.sub(r"staged/[0-9a-f]{16}/.*", "staged/SEGMENT", path)
    path = re.sub(r"staged/pool/.*", "staged/pool/SEGMENT", path)
    path = re.sub(r"staged/[0-9a-f]{16}$", "staged/SINK", path)
    path = re.sub(r"quarantine/\d{8}T\d{9}-\d{20}", "quarantine/ONE", path)
    return re.sub(r"\d{20}(?=$|\.)", lambda found: str(int(found[0])), path)
