"""What many threads may ask of one open store beside its puts: its settings, topics and groups, messages by place and by key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from storage.format.record import Message
from storage.message_store import MessageStore
from storage.put.settings import PutSettings
from storage.service.look_ups import LookUps
from storage.settings.load import StoreConfig
from storage.tables.subscription_groups import SubscriptionGroupConfig
from storage.tables.topics import TopicConfig

_T = TypeVar("_T")


class SharedStore(ABC):
    """The half of a `PutService` that waits for no put. Thread-safe. Its names are those of `MessageStore`."""

    def __init__(self, store: MessageStore) -> None:
        """Raises StoreNotWritableError of a store that is open for reading."""
        self._store = store
        self._writer = store.writer
        self._look_ups = LookUps(store, lambda: self._writer.written_end)

    @property
    def store(self) -> MessageStore:
        """For what never changes: its place, its configuration."""
        return self._store

    @property
    def root(self) -> str:
        return self._store.root

    @property
    def config(self) -> StoreConfig:
        return self._store.config

    @property
    def settings(self) -> PutSettings:
        """What puts go by, with the topics as they are now: a frozen value."""
        return self._writer.settings

    @property
    def dispatched_end(self) -> int:
        """Up to where the log can be read by queue and key."""
        return self._writer.dispatched_end

    # Messages

    def message_by_commitlog_offset(self, commitlog_offset: int) -> Message:
        """The message whose record begins there, as soon as it is written.

        Raises OffsetOutOfRangeError, CorruptRecordError where none is.
        """
        return self._look_ups.message_at(commitlog_offset)

    def messages_by_key(self, topic: str, key: str, max_count: int = 32) -> list[Message]:
        """The newest `max_count` dispatched messages with that key or unique key, by place in the log.

        Raises IndexGeometryUnknownError.
        """
        return self._look_ups.messages_by_key(topic, key, max_count)

    # Topics, groups and other tables

    def state(self, name: str, parse: Callable[[str, str], _T]) -> _T | None:
        """As `MessageStore.state`."""
        return self._store.state(name, parse)

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """The consumer groups as they are now. Raises StateFileError."""
        return self._store.groups

    def save_topic(self, topic: TopicConfig) -> None:
        """As `MessageStore.save_topic`. Raises StoreNotWritableError, OSError."""
        with self._telling_of_failure():
            self._store.save_topic(topic)

    def make_topic(self, topic: TopicConfig) -> TopicConfig:
        """As `MessageStore.make_topic`. Raises StoreNotWritableError, OSError."""
        with self._telling_of_failure():
            return self._store.make_topic(topic)

    def make_group(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """As `MessageStore.make_group`. Raises OSError."""
        return self._store.make_group(group)

    @contextmanager
    def _telling_of_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._tell_of_failure()
            raise

    @abstractmethod
    def _tell_of_failure(self) -> None:
        """Whoever waits for the disk hears of it if the writer has failed."""
