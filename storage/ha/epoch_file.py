"""The life of ROOT/epochFileCheckpoint: read first, written before its epoch's first byte, cut after the log. Java: EpochFileCache."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from storage.errors import CorruptRecordError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format.epoch import EpochEntry, decode_epochs, encode_epochs
from storage.format.replication import MOST_EPOCHS
from storage.ha.epochs import cut_at, followed, with_entry

_NAME = "epochFileCheckpoint"


def load_epochs(file_system: FileSystem, root: str) -> tuple[EpochEntry, ...]:
    """The entries of a store, of the file or of its .bak, as Java reads them; none where neither is there.

    Raises CorruptRecordError where one is there and none is whole.
    """
    error: CorruptRecordError | None = None
    for name in (_NAME, f"{_NAME}.bak"):
        content = file_system.read_file(f"{root}/{name}")
        if content is not None:
            try:
                if found := decode_epochs(content):
                    return found
            except CorruptRecordError as spoilt:
                error = error or spoilt
    if error is not None:
        raise error
    return ()


def save_epochs(file_system: LocalFileSystem, root: str, entries: Sequence[EpochEntry]) -> None:
    """Durable on return; a crash leaves the old content or the new one. Raises OSError.

    Departure: Java overwrites the file in place, and writes none without entries. Without entries both files go.
    """
    path = f"{root}/{_NAME}"
    if entries:
        before = file_system.read_file(path)
        if before is not None:
            file_system.replace(f"{path}.bak", before)
        file_system.replace(path, encode_epochs(entries))
        return
    for name in (f"{path}.bak", path):
        with suppress(FileNotFoundError):
            file_system.unlink(name)
    file_system.sync(root)


class EpochFile:
    """Those of the store at ROOT. Thread-safe; `entries` is a value that is replaced when the file holds the new one."""

    def __init__(self, file_system: LocalFileSystem, root: str) -> None:
        """Raises CorruptRecordError for a file that is not whole, OSError."""
        self._files = file_system
        self.root = root
        self._lock = threading.Lock()
        self.entries = load_epochs(file_system, root)

    @property
    def last_epoch(self) -> int:
        """The newest epoch; −1 of none."""
        entries = self.entries  # others may replace them meanwhile
        return entries[-1].epoch if entries else -1

    def add(self, entries: Sequence[EpochEntry], end: int) -> None:
        """Later epochs that begin no further than `end`; as many are kept as a handshake has room for.

        Durable on return. Raises OSError.
        """
        with self._lock:
            found = self.entries
            for entry in entries:
                if entry.start_offset <= end:
                    found = with_entry(found, entry)
            self._save(found[-MOST_EPOCHS:])

    def follow(self, masters: Sequence[EpochEntry], end: int) -> None:
        """The log is a master's up to its end: what the master does not have there goes. Durable on return. Raises OSError."""
        with self._lock:
            self._save(followed(self.entries, end, masters)[-MOST_EPOCHS:])

    def cut(self, end: int) -> None:
        """The log ends there now: epochs that begin behind it go. Durable on return. Raises OSError."""
        with self._lock:
            self._save(cut_at(self.entries, end))

    def _save(self, entries: tuple[EpochEntry, ...]) -> None:
        if entries != self.entries:
            save_epochs(self._files, self.root, entries)
            self.entries = entries
