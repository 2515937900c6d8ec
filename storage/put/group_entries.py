"""The entries of an open store's subscriptionGroup.json: read by whoever asks, made and changed by one at a time.

The table in memory is a frozen value, replaced when the file holds the new one. Java: SubscriptionGroupManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from storage.tables.subscription_groups import SubscriptionGroupConfig, SubscriptionGroupTable


class GroupEntries:
    """The consumer groups of one store, read when first asked for. Thread-safe."""

    def __init__(
        self,
        lock: AbstractContextManager[object],
        load: Callable[[], SubscriptionGroupTable | None],
        save: Callable[[str], None],
    ) -> None:
        """`lock` can be taken again by the thread that has it; `load` reads the file, `save` makes it hold a text."""
        self._lock = lock
        self._load = load
        self._save_text = save
        self._table: SubscriptionGroupTable | None = None

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """As they are now. Raises StateFileError."""
        return self._known().groups

    def save(self, group: SubscriptionGroupConfig, now_ms: int) -> None:
        """The group's entry, new or in place of the old one. Raises OSError."""
        with self._lock:
            table = self._known().with_group(group, now_ms=now_ms)
            self._save_text(table.to_text())
            self._table = table

    def make(self, group: SubscriptionGroupConfig, now_ms: int) -> SubscriptionGroupConfig:
        """The group's entry: this one where there was none, else the one that somebody else has made meanwhile. Raises OSError."""
        with self._lock:
            present = self._known().groups.get(group.group)
            if present is None:
                self.save(group, now_ms)
            return present or group

    def _known(self) -> SubscriptionGroupTable:
        if (table := self._table) is not None:
            return table
        with self._lock:
            if self._table is None:
                self._table = self._load() or SubscriptionGroupTable()
            return self._table
