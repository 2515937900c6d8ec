"""Where the parts of a store lie and how large their files are: enough to open one queue without opening the store.

A value that can be sent to another process; a reading task opens from it just what it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.files.file_system import FileSystem, Scratch
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.ext import ConsumeQueueExt
from storage.queues.store import ConsumeQueueStore
from storage.settings.load import StoreConfig


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Directories and file sizes of one store; a size of None is found from the files."""

    root: str
    log_directories: tuple[str, ...]
    log_file_size_bytes: int | None = None
    queue_file_size_bytes: int | None = None
    ext_file_size_bytes: int | None = None
    force_property_crc: bool = False

    @classmethod
    def of(cls, root: str, log_directories: tuple[str, ...], config: StoreConfig) -> StoreLayout:
        """As the configuration says."""
        return cls(
            root,
            log_directories,
            config.commit_log.mapped_file_size_commit_log,
            config.consume_queue.mapped_file_size_consume_queue,
            config.consume_queue.mapped_file_size_consume_queue_ext,
            config.commit_log.force_verify_prop_crc,
        )

    def commit_log(self, file_system: FileSystem, scratch: Scratch | None = None) -> CommitLog:
        """The log. With `scratch`, records lie in that memory until the next ones are asked for."""
        return CommitLog(
            file_system,
            self.log_directories,
            self.log_file_size_bytes,
            scratch,
            force_property_crc=self.force_property_crc,
        )

    def consume_queues(self, file_system: FileSystem, *, writes_ext: bool = False) -> ConsumeQueueStore:
        return ConsumeQueueStore(
            file_system,
            self.root,
            file_size_bytes=self.queue_file_size_bytes,
            ext_file_size_bytes=self.ext_file_size_bytes,
            writes_ext=writes_ext,
        )

    def consume_queue(self, file_system: FileSystem, topic: str, queue_id: int) -> ConsumeQueue:
        directory = f"{self.root}/consumequeue/{topic}/{queue_id}"
        return ConsumeQueue(file_system, directory, topic, queue_id, self.queue_file_size_bytes)

    def consume_queue_ext(self, file_system: FileSystem, topic: str, queue_id: int) -> ConsumeQueueExt:
        directory = f"{self.root}/consumequeue_ext/{topic}/{queue_id}"
        return ConsumeQueueExt(file_system, directory, self.ext_file_size_bytes)
