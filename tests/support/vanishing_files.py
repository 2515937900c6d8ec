"""Files that another process unlinks right before this one looks at the disk for the n-th time.

Every way to the disk that a reader has leads through these two modules; here their `os` is replaced by one that counts
the looks. Nothing is really deleted, so one store serves for all n: files are gone for who opens or lists, and maps stay.
"""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from storage.files import local_file_system, local_files


class _CountingOs:
    """`os`, but for the functions through which a reader meets a name."""

    def __init__(self, is_gone: Callable[[str], bool], looks: int) -> None:
        self._is_gone = is_gone
        self.left = looks

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def look(self, path: str) -> None:
        self.left -= 1
        if self.left < 0 and self._is_gone(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def open(self, path: str, *rest: Any) -> int:
        self.look(path)
        return os.open(path, *rest)

    def stat(self, path: str) -> os.stat_result:
        self.look(path)
        return os.stat(path)

    @contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        self.look(path)
        with os.scandir(path) as entries:
            yield (entry for entry in entries if self.left >= 0 or not self._is_gone(entry.path))


@contextmanager
def vanishing(is_gone: Callable[[str], bool], looks: int) -> Iterator[_CountingOs]:
    """Within it the paths are gone after so many looks; `left` is below zero if it came to that."""
    counting = _CountingOs(is_gone, looks)

    def counted_open(path: str, *rest: Any) -> Any:
        counting.look(path)
        return builtins.open(path, *rest)

    with pytest.MonkeyPatch.context() as patch:
        for module in (local_files, local_file_system):
            patch.setattr(module, "os", counting)
        patch.setattr(local_file_system, "open", counted_open, raising=False)
        yield counting
