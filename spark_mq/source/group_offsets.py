"""A query's offsets stored as a consumer group's, for RocketMQ's tools: option commitOffsets.

The stored offset is the `start` argument of `latestOffset`: the end of the last batch that Spark has committed. (Spark's `commit(end)`
comes a batch late, and never for the last batch.) So a stored offset is never ahead of the processed data. It may be behind: by a
second, because there is at most one write a second; after a slow write by ten times its duration, a minute at most; by the last batch
of a query that was stopped or killed, until it starts again; and for as long as another writer or Apache's broker holds the store. If a
spark_mq broker on this machine holds the store, it takes the offsets over. An idle query catches up, because Spark goes on asking it. A
run of Trigger.AvailableNow ends with everything stored; with a Spark before 4.2, which names a start only with a
batch (`partitions`), it stores where its one batch begins.

Offsets follow the query alone: a query that starts lower sets the group back, and overwrites another consumer of the same group.
Give each query its own group.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from spark_mq.conditions import OptionError, as_condition
from spark_mq.hand_over.messages import hand_offsets
from spark_mq.source.offsets import QueueId
from storage.epoch_times import current_time_ms
from storage.errors import (
    DescribedError,
    ForeignLogError,
    NameIllegalError,
    StateFileError,
    StoreLockedError,
    StoreNotFoundError,
    StoreRefusedError,
    StoreServedError,
)
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.files.remote import file_system_of
from storage.names import is_system_group, retry_topic, validate_group, validate_topic
from storage.store import MessageStore
from storage.tables.offline_changes import write_group_offsets
from storage.tables.surroundings import refuse_foreign_log

WRITE_INTERVAL_MS = 1000
_PAUSE_FACTOR = 10
_LONGEST_PAUSE_MS = 60_000
_CURE = (
    "A query that reads the broker itself (option nameServer in place of path) stores its offsets while the broker runs"
)


WriteOffsets = Callable[[str, Mapping[tuple[str, int], int], int], object]
"""Stores a group's next offsets by (topic, queue id) at one broker, at a time in ms.

Raises StorageError, OSError, or the client's errors.
"""


class GroupOffsets:
    """Writes a query's position where the tools of its brokers look, by broker name. Lives as long as the query's run."""

    def __init__(
        self, group: str, writer_of: Callable[[str], WriteOffsets], clock: Callable[[], int] | None = None
    ) -> None:
        """`writer_of` gives the writer of a broker by its name; `clock` gives milliseconds.

        Raises OptionError for a group that takes no offsets.
        """
        _check_group(group)
        self.group = group
        self.skipped: dict[str, str] = {}
        """Why the last write to a broker's store was not done; empty when all is stored."""
        self._writer_of = writer_of
        self._clock = clock or current_time_ms
        self._stored: dict[QueueId, int] = {}
        self._tried_ms: int | None = None
        self._pause_ms = WRITE_INTERVAL_MS

    @classmethod
    def of_stores(
        cls, group: str, stores: Mapping[str, MessageStore], clock: Callable[[], int] | None = None
    ) -> GroupOffsets:
        """Into the tables of the stores. Raises OptionError for a group or a store that takes no offsets."""
        for store in stores.values():
            rule = store.config.release.refusal_of_group(group)
            if rule is not None and group not in store.groups:
                raise OptionError("consumerGroup", rule)
        writers = {name: _into(store, _writable(store)) for name, store in stores.items()}
        return cls(group, writers.__getitem__, clock)

    def store(self, positions: Mapping[QueueId, int], *, at_once: bool = False) -> None:
        """Store the next offset of each queue, unless it is stored already; at most once a second unless `at_once`.

        Where a broker's silence made a try long, the next one waits ten times as long, so that batches go on meanwhile.
        A store that cannot be written now is skipped and tried again at a later call; `skipped` says why.
        """
        changed = {queue: offset for queue, offset in positions.items() if self._stored.get(queue) != offset}
        if not changed or (self._is_early() and not at_once):
            return
        began_ms = self._clock()
        for broker_name in sorted({queue.broker_name for queue in changed}):
            self._write(broker_name, {queue: o for queue, o in changed.items() if queue.broker_name == broker_name})
        self._tried_ms = self._clock()
        took_ms = self._tried_ms - began_ms
        self._pause_ms = min(max(WRITE_INTERVAL_MS, _PAUSE_FACTOR * took_ms), _LONGEST_PAUSE_MS)

    def to_json_dict(self) -> dict[str, Any]:
        """For the query's progress: the group, and by broker name why its offsets are not stored."""
        return {"group": self.group, "skipped": dict(sorted(self.skipped.items()))}

    def _is_early(self) -> bool:
        # A clock that was set back must not silence the writes until it has caught up.
        return self._tried_ms is not None and 0 <= self._clock() - self._tried_ms < self._pause_ms

    def _write(self, broker_name: str, offsets: Mapping[QueueId, int]) -> None:
        by_queue = {(queue.topic, queue.queue_id): offset for queue, offset in offsets.items()}
        try:
            self._writer_of(broker_name)(self.group, by_queue, self._clock())
        except DescribedError as error:
            cure = f"\n{_CURE}" if isinstance(error, StoreLockedError) else ""
            self._skip(broker_name, str(as_condition(error)) + cure)
        except OSError as error:
            self._skip(broker_name, str(error))
        else:
            self._stored.update(offsets)
            self.skipped.pop(broker_name, None)

    def _skip(self, broker_name: str, reason: str) -> None:
        self.skipped[broker_name] = reason
        # Progress is written with a batch: what is skipped behind the last one would show nowhere else.
        warnings.warn(f"commitOffsets skipped at broker {broker_name}: {reason}", RuntimeWarning, stacklevel=2)


def _into(store: MessageStore, file_system: LocalFileSystem) -> WriteOffsets:
    root, longest = store.root, store.config.release.longest_group

    def write(group: str, offsets: Mapping[tuple[str, int], int], now_ms: int) -> None:
        try:
            write_group_offsets(root, group, offsets, now_ms=now_ms, file_system=file_system, longest=longest)
        except StoreServedError as served:
            hand_offsets(root, group, offsets, served.holder)

    return write


def _check_group(group: str) -> None:
    try:
        validate_group(group)
        validate_topic(retry_topic(group))
    except NameIllegalError as error:
        raise OptionError("consumerGroup", str(error)) from error
    if is_system_group(group):
        raise OptionError("consumerGroup", f"{group} is a broker's own group, whose progress no query may change")


def _writable(store: MessageStore) -> LocalFileSystem:
    """The file system of a store that takes offsets. Raises OptionError for one that never will."""
    file_system: FileSystem = file_system_of(store.root)
    if not isinstance(file_system, LocalFileSystem):
        raise OptionError("commitOffsets", f"store {store.root} is remote; offsets go to local stores only")
    try:
        refuse_foreign_log(store.root, store.config, file_system)
    except (StoreRefusedError, ForeignLogError, StoreNotFoundError, StateFileError) as error:
        raise OptionError("commitOffsets", str(error)) from error
    return file_system
