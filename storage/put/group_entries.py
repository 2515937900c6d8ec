"""The entries of an open store's subscriptionGroup.json: read by whoever asks, made and changed by one at a time.

The table in memory is a frozen value, replaced when the file holds the new one. Java: SubscriptionGroupManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from storage.files.atomic_file import read_table, write_with_backup
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.tables.subscription_groups import FILE_NAME, SubscriptionGroupConfig, SubscriptionGroupTable


class GroupEntries:
    """The consumer groups of one store, read when first asked for. Thread-safe."""

    def __init__(self, root: str, file_system: FileSystem, lock: AbstractContextManager[object]) -> None:
        """`lock` can be taken again by the thread that has it."""
        self._path = f"{root}/config/{FILE_NAME}"
        self._read = file_system.read_file
        self._lock = lock
        self._table: SubscriptionGroupTable | None = None

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """As they are now. Raises StateFileError."""
        return self._known().groups

    def save(self, group: SubscriptionGroupConfig, file_system: LocalFileSystem, now_ms: int) -> None:
        """The group's entry, new or in place of the old one. Raises OSError."""
        with self._lock:
            table = self._known().with_group(group, now_ms=now_ms)
            write_with_backup(self._path, table.to_text(), file_system)
            self._table = table

    def make(
        self, group: SubscriptionGroupConfig, file_system: LocalFileSystem, now_ms: int
    ) -> SubscriptionGroupConfig:
        """The group's entry: this one where there was none, else the one that somebody else has made meanwhile. Raises OSError."""
        with self._lock:
            present = self._known().groups.get(group.group)
            if present is None:
                self.save(group, file_system, now_ms)
            return present or group

    def _known(self) -> SubscriptionGroupTable:
        if (table := self._table) is not None:
            return table
        with self._lock:
            if self._table is None:
                table = read_table(self._path, SubscriptionGroupTable.load, self._read)
                self._table = table or SubscriptionGroupTable()
            return self._table
