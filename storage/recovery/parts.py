"""What a store's recovery works on: one value in place of seven that always go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import parse_delay_levels
from storage.index.store import IndexStore
from storage.log.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from storage.log.commit_log import CommitLog
from storage.queues.store import ConsumeQueueStore, queue_file_size
from storage.settings.load import StoreConfig


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of one store, whose lock the caller holds. `index` is None where the store keeps none; `clock` gives milliseconds."""

    root: str
    config: StoreConfig
    file_system: LocalFileSystem
    log: CommitLog
    queues: ConsumeQueueStore
    index: IndexStore | None
    clock: Callable[[], int]

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay of each level, from level 1."""
        return parse_delay_levels(self.config.delay.message_delay_level)

    @property
    def queue_file_size_bytes(self) -> int:
        """As the queues' files say, else as configured."""
        return queue_file_size(self.file_system, self.root, self.config.consume_queue.mapped_file_size_consume_queue)

    def checkpoint(self) -> Checkpoint:
        """What the store's checkpoint says now."""
        return read_checkpoint(self.file_system, self.root)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Durably."""
        write_checkpoint(self.file_system, self.root, checkpoint)
