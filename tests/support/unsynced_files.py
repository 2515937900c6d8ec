"""A disk for tests in which no power is lost: a sync is the dearest of all operations."""

from __future__ import annotations

import os

from storage.files.local_file_system import LocalFileSystem


class UnsyncedFileSystem(LocalFileSystem):
    """Syncs nothing; what is not there cannot be synced either."""

    def sync(self, path: str) -> None:
        os.stat(path)
