"""A small store on a disk that notes down what it is told, and what is done with it.

Each story of this folder is one life of an operation. It returns what the disk was told while the operation went on, and looks at what
came of it, too: who leaves a step out does not only change an order.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from storage import MessageStore, StoreConfig, open_store
from storage.log.group_log import GroupLog
from storage.settings.nouns import FlushConfig
from tests.crash.disk_order import ToldDisk
from tests.support.crash_file_system import CrashFileSystem
from tests.support.served import served

START_MS = 1_700_000_000_000


def small_config(log_file_size_bytes: int) -> StoreConfig:
    tiny = StoreConfig.tiny()
    return replace(tiny, commit_log=replace(tiny.commit_log, mapped_file_size_commit_log=log_file_size_bytes))


ROOMY = small_config(1 << 18)
"""A whole batch finds room in the first log file."""


_TINY = small_config(4096)
WITH_UNITS = replace(
    _TINY,
    consume_queue=replace(_TINY.consume_queue, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=100),
)
"""Each queue entry has an extension unit, four of them a file."""


class Life:
    """A small store whose clock goes on with every look, on a disk that notes down what it is told."""

    def __init__(self, directory: Path, *, sync_flush: bool = False, config: StoreConfig | None = None) -> None:
        self.root = directory / "store"
        self.disk = ToldDisk(self.root)
        self.config = replace(config or _TINY, flush=FlushConfig("SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"))
        self._times = itertools.count(START_MS)

    def wait_until(self, now_ms: int) -> None:
        self._times = itertools.count(now_ms)

    def open(
        self,
        *,
        create: bool = True,
        truncate_damage: bool = False,
        files: CrashFileSystem | None = None,
        group: GroupLog | None = None,
    ) -> MessageStore:
        """On its own disk, or on another one that has its root. `group` is the log of a DLedger group."""
        return open_store(
            self.root,
            config=self.config,
            read_only=False,
            create=create,
            file_system=files or self.disk,
            clock=lambda: next(self._times),
            truncate_damage=truncate_damage,
            group=group,
        )


def put(store: MessageStore, first: int, count: int, *, topic: str = "A") -> None:
    numbers = range(first, first + count)
    columns = {
        "topic": [topic] * count,
        "queue_id": pa.array([0] * count, pa.int32()),
        "body": [b"%d" % number * 20 for number in numbers],
        "keys": [f"k{number}" for number in numbers],
    }
    store.put_batch(pa.record_batch(columns), queue_count=1)


def bodies(store: MessageStore, topic: str = "A", queue_id: int = 0) -> list[bytes]:
    """All that a queue shows."""
    return [message.body for message in served(store, topic, queue_id)]


def expected(count: int) -> list[bytes]:
    return [b"%d" % number * 20 for number in range(count)]


def kill(store: MessageStore) -> None:
    """The process is gone, and what it wrote is there."""
    store.writer.close()
    store._writer = None
    store._give_back()
