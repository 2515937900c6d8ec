"""What many threads may ask of one open store beside its puts: its settings, topics and groups, messages by place and by key."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import TypeVar

from storage.dispatch.writer import Arrived, BitMaps
from storage.format.bloom_filter import MapRule
from storage.format.record import Message
from storage.index.store import IndexStore, messages_with_key
from storage.log.commit_log import CommitLog
from storage.put.settings import PutSettings
from storage.settings.load import StoreConfig
from storage.store import MessageStore
from storage.tables.consumer_offsets import FILE_NAME as OFFSETS_FILE
from storage.tables.consumer_offsets import ConsumerOffsets
from storage.tables.delay_progress import TIMER_CHECKPOINT_FILE
from storage.tables.masters import place_of_copy
from storage.tables.subscription_groups import FILE_NAME as GROUPS_FILE
from storage.tables.subscription_groups import SubscriptionGroupConfig, SubscriptionGroupTable
from storage.tables.topics import FILE_NAME as TOPICS_FILE
from storage.tables.topics import TopicConfig, TopicTable

_T = TypeVar("_T")


class SharedStore(ABC):
    """The half of a `PutService` that puts nothing: reads, and what is saved beside the log. Thread-safe.

    Its names are those of `MessageStore`. But for deletions, it waits for no put.
    """

    def __init__(self, store: MessageStore) -> None:
        """Raises StoreNotWritableError of a store that is open for reading."""
        self._store = store
        self._writer = store.writer
        self._look_ups = LookUps(store, lambda: self._writer.written_end)
        self.log_grew: Callable[[], None] = lambda: None
        """Called when more of the log may be readable, in the thread that made it so: it must be quick and raise nothing."""

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
    def log_end(self) -> int:
        """Behind the last record, written or held."""
        return self._writer.log_end

    @property
    def dispatched_end(self) -> int:
        """Up to where the log can be read by queue and key."""
        return self._writer.dispatched_end

    @property
    def sendable_end(self) -> int:
        """Up to where the log may be sent to replicas: whole records, under SYNC_FLUSH synced. For any thread."""
        writer = self._writer
        return min(writer.log_end, writer.settings.flush.readable_end(writer.written_end, writer.synced_end))

    @property
    def confirm_offset(self) -> int:
        """Up to where readers may see the log as far as others must have it. Java: CommitLog.getConfirmOffset."""
        confirmed, end = self._writer.confirmed, self.sendable_end
        return end if confirmed is None else confirmed.within(end)

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

    def save_group(self, group: SubscriptionGroupConfig) -> None:
        """As `MessageStore.save_group`. Raises OSError."""
        self._store.save_group(group)

    def delete_group(self, group: str) -> None:
        """No entry in subscriptionGroup.json for the group, nor anything forbidden to it. Raises OSError."""
        self._store.group_entries.remove(group, self._writer.file_system, self._writer.clock())

    @property
    def group_table(self) -> SubscriptionGroupTable:
        """The whole of subscriptionGroup.json as it is now. Raises StateFileError."""
        return self._store.group_entries.table

    def take_over(self, name: str, text: str) -> None:
        """What the master's config/NAME says, in place of what was known, in memory too. Raises StateFileError, OSError."""
        if name == TOPICS_FILE:
            table = TopicTable.load(text, name)
            self._forget_offsets(self.settings.topics.topics.keys() - table.topics.keys())
            self._writer.replace_topics(table)
        elif name == GROUPS_FILE:
            self._store.group_entries.replace(SubscriptionGroupTable.load(text, name), self._writer.file_system)
        elif name == TIMER_CHECKPOINT_FILE:
            self._writer.file_system.replace(place_of_copy(self._store.root, name), text.encode())
        else:
            self._store.save_state(name, text)

    def _forget_offsets(self, topics: Set[str]) -> None:
        """Of topics that the master has deleted: one of the same name begins anew, and an offset of a group is never lowered."""
        with self._store.tables_lock:
            known = self.state(OFFSETS_FILE, ConsumerOffsets.load) if topics else None
            if known is not None and (kept := known.without_topics(topics, now_ms=self._writer.clock())) is not known:
                self._store.save_state(OFFSETS_FILE, kept.to_text())

    @property
    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """By group and topic, what is forbidden: bit 0 reading. Raises StateFileError."""
        return self.group_table.forbidden

    def forbid(self, group: str, topic: str, bits: int) -> None:
        """What is forbidden to the group in the topic; 0 allows it all topics again. Raises OSError."""
        self._store.group_entries.forbid(group, topic, bits, self._writer.file_system, self._writer.clock())

    @abstractmethod
    def exclusive(self) -> AbstractContextManager[MessageStore]:
        """The store, for the caller alone."""

    def delete_topic(self, topic: str) -> None:
        """The topic's entry and queues are gone. Raises NameIllegalError, StoreNotWritableError, OSError."""
        with self.exclusive():
            self._writer.delete_topic(topic)

    def delete_queues(self, topic: str) -> None:
        """The queues of a topic without an entry are gone. Raises NameIllegalError, OSError."""
        with self.exclusive():
            self._writer.delete_queues(topic)

    @contextmanager
    def listening(self, arrived: Arrived) -> Iterator[None]:
        """Told of all entries that can be read from now on, in the thread that put them: it must be quick and raise nothing."""
        self._writer.derived.arrived = arrived
        try:
            yield
        finally:
            self._writer.derived.arrived = None

    @contextmanager
    def mapping(self, rule: MapRule) -> Iterator[None]:
        """Extension units get the bit maps that the rule makes from now on: it is asked in the thread that puts, and must be quick."""
        self._writer.derived.bit_maps = BitMaps(self._writer.log, rule)
        try:
            yield
        finally:
            self._writer.derived.bit_maps = None

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


class LookUps:
    """What has been written of an open store, one look at a time. Thread-safe."""

    def __init__(self, store: MessageStore, written_end: Callable[[], int]) -> None:
        """`written_end` says up to where records are whole in the log's files; the store may be put into meanwhile."""
        files, index = store.writer.file_system, store.config.index
        self._log: CommitLog = store.layout.commit_log(files)
        self._index = IndexStore(files, store.root, index.max_hash_slot_num, index.max_index_num)
        self._written_end = written_end
        self._lock = threading.Lock()

    def message_at(self, commitlog_offset: int) -> Message:
        """The message whose record begins there. Raises OffsetOutOfRangeError, CorruptRecordError where none is."""
        with self._lock:
            end = self._see_end()
            return self._log.message_at(commitlog_offset, end)

    def messages_by_key(self, topic: str, key: str, max_count: int) -> list[Message]:
        """The newest `max_count` messages with that key or unique key, by place in the log. Raises IndexGeometryUnknownError."""
        with self._lock:
            found = messages_with_key(self._index, self._log, self._see_end(), topic, key)
            return sorted(islice(found, max_count), key=lambda message: message.commitlog_offset)

    def close(self) -> None:
        """Let go of files. What is asked later opens them again."""
        with self._lock:
            self._log.close()
            self._index.close()

    def _see_end(self) -> int:
        """Where the log ends now; its files are listed again where it has grown out of those that are known."""
        end = self._written_end()
        self._log.see(end)
        return end
