"""The entries of an open store's subscriptionGroup.json: read by whoever asks, made and changed by one at a time.

The table in memory is a frozen value, replaced when the file holds the new one. Java: SubscriptionGroupManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

    @property
    def table(self) -> SubscriptionGroupTable:
        """The whole table as it is now. Raises StateFileError."""
        return self._known()

    def remove(self, group: str, file_system: LocalFileSystem, now_ms: int) -> None:
        """No entry for the group; nothing where it has none. Raises OSError."""
        self._replace(lambda table: table.without_group(group, now_ms=now_ms), file_system)

    def forbid(self, group: str, topic: str, bits: int, file_system: LocalFileSystem, now_ms: int) -> None:
        """What is forbidden to the group in the topic, as `SubscriptionGroupTable.with_forbidden`. Raises OSError."""
        self._replace(lambda table: table.with_forbidden(group, topic, bits, now_ms=now_ms), file_system)

    def save(self, group: SubscriptionGroupConfig, file_system: LocalFileSystem, now_ms: int) -> None:
        """The group's entry, new or in place of the old one. Raises OSError."""
        self._replace(lambda table: table.with_group(group, now_ms=now_ms), file_system)

    def make(
        self, group: SubscriptionGroupConfig, file_system: LocalFileSystem, now_ms: int
    ) -> SubscriptionGroupConfig:
        """The group's entry: this one where there was none, else the one that somebody else has made meanwhile. Raises OSError."""
        with self._lock:
            present = self._known().groups.get(group.group)
            if present is None:
                self.save(group, file_system, now_ms)
            return present or group

    def replace(self, table: SubscriptionGroupTable, file_system: LocalFileSystem) -> None:
        """Another table in place of this one. Raises OSError."""
        self._replace(lambda _: table, file_system)

    def _replace(
        self, change: Callable[[SubscriptionGroupTable], SubscriptionGroupTable], file_system: LocalFileSystem
    ) -> None:
        with self._lock:
            known = self._known()
            table = change(known)
            if table is not known:
                write_with_backup(self._path, table.to_text(), file_system)
                self._table = table

    def _known(self) -> SubscriptionGroupTable:
        if (table := self._table) is not None:
            return table
        with self._lock:
            if self._table is None:
                table = read_table(self._path, SubscriptionGroupTable.load, self._read)
                self._table = table or SubscriptionGroupTable()
            return self._table
