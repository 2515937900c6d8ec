"""How far delayed messages are delivered: `config/delayOffset.json` of the delay levels, `config/timercheck` of the timer.

Java: ScheduleMessageService, DelayOffsetSerializeWrapper, TimerCheckpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from storage.errors import StateFileError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format import fastjson
from storage.format.delay import TimerCheckpoint, decode_timer_checkpoint, encode_timer_checkpoint
from storage.format.table_entries import DataVersion
from storage.tables.document import integer, number_of, parse_document, section

DELAYS_FILE = "delayOffset.json"
_TABLE = "offsetTable"


@dataclass(frozen=True, slots=True)
class DelayOffsets:
    """The offsets of all levels, also of those that broker.conf has no more. Every change gives a new table.

    A level's offset is the next one to deliver from its queue, level − 1 of SCHEDULE_TOPIC_XXXX. A broker writes the file every
    ten seconds and overwrites it from memory. For a level that the file does not name it delivers everything that is retained.
    """

    version: DataVersion = field(default_factory=DataVersion)
    offsets: Mapping[int, int] = field(default_factory=dict, hash=False)
    """Level → next offset."""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """The file's content; the other fields are a view of it."""

    @classmethod
    def load(cls, text: str, file: str | None = None) -> DelayOffsets:
        """The offsets that the file's text holds; StateFileError (naming `file`) if it holds none."""
        document = parse_document(text, file)
        offsets = {}
        for level, offset in (table := section(document, _TABLE, file)).items():
            if offset is not None:  # a missing offset, not offset 0
                offsets[number_of(level, f"{_TABLE}: a level", file)] = integer(table, level, 0, file)
        return cls(DataVersion.from_document(document, file), offsets, document)

    def to_text(self) -> str:
        """The text for the file."""
        return fastjson.to_text(self.document)

    def get(self, level: int) -> int | None:
        """The next offset of the level; None if the file does not name it."""
        return self.offsets.get(level)

    def with_offsets(self, offsets: Mapping[int, int], *, now_ms: int) -> DelayOffsets:
        """The table with the offsets of some levels set and its version raised; itself if nothing changes.

        Java raises the version at every 200th change only (delayOffsetUpdateVersionStep).
        """
        changed = {**self.offsets, **offsets}
        if changed == self.offsets:
            return self
        entries = {**(self.document.get(_TABLE) or {}), **{str(level): offsets[level] for level in sorted(offsets)}}
        version = self.version.raised(now_ms)
        document = {**self.document, "dataVersion": version.to_document(), _TABLE: entries}
        return DelayOffsets(version, changed, document)


TIMER_CHECKPOINT_FILE = "timercheck"
"""Name of the timer checkpoint of a master, under config/."""
_READ_TIME, _QUEUE_OFFSET = "readTimeMs", "queueOffset"


def timer_checkpoint_path(root: str) -> str:
    """Java: BrokerPathConfigHelper.getTimerCheckPath."""
    return f"{root}/config/timercheck"


def read_timer_checkpoint(file_system: FileSystem, root: str) -> TimerCheckpoint:
    """The checkpoint of a store; all zero if there is none, as Java reads it."""
    return decode_timer_checkpoint(file_system.read_file(timer_checkpoint_path(root)) or b"")


def write_timer_checkpoint(file_system: LocalFileSystem, root: str, checkpoint: TimerCheckpoint) -> None:
    """Overwrite the page in place and sync it; 56 bytes of one sector, as Java does."""
    path, page = timer_checkpoint_path(root), encode_timer_checkpoint(checkpoint)
    if not file_system.exists(path):
        file_system.replace(path, page)
        return
    file_system.write(path, 0, page)
    file_system.sync(path)


class FollowedTimer(NamedTuple):
    """How far a master's timer has delivered, as its follower last received it.

    ROOT/spark_mq/followed_timer.json: {"readTimeMs": …, "queueOffset": …}.

    A follower delivers nothing, so wheel and log of its own timer do not say what its master has delivered. A timer that runs here
    again rebuilds them from the queue, without what the master had delivered, and deletes the file. Departure: Java keeps both numbers
    in config/timercheck, and delivers all due messages again if wheel and log are missing. Java:
    SlaveSynchronize.syncTimerCheckPoint.
    """

    read_time_ms: int
    """Everything due before it was delivered,"""
    queue_offset: int
    """of the messages of the timer's queue before this one."""

    @classmethod
    def of_answer(cls, page: bytes) -> FollowedTimer:
        """From the answer to request 60."""
        checkpoint = decode_timer_checkpoint(page)
        return cls(checkpoint.last_read_time_ms, checkpoint.queue_offset)

    @classmethod
    def load(cls, text: str, file: str | None) -> FollowedTimer:
        """Raises StateFileError."""
        document = parse_document(text, file)
        return cls(*(integer(document, name, 0, file) for name in (_READ_TIME, _QUEUE_OFFSET)))

    def to_text(self) -> str:
        """The file's content."""
        return fastjson.to_text({_READ_TIME: self.read_time_ms, _QUEUE_OFFSET: self.queue_offset})

    def is_later(self, checkpoint: TimerCheckpoint) -> bool:
        """Whether no timer has run here since, according to this store's own checkpoint."""
        return self.read_time_ms > checkpoint.last_read_time_ms


def followed_timer_path(root: str) -> str:
    """Path of the file."""
    return f"{root}/spark_mq/followed_timer.json"


def read_followed_timer(file_system: FileSystem, root: str) -> FollowedTimer | None:
    """None if the store follows no master, or its own timer has run since. Raises StateFileError."""
    path = followed_timer_path(root)
    content = file_system.read_file(path)
    if content is None:
        return None
    try:
        return FollowedTimer.load(content.decode(), path)
    except UnicodeDecodeError as error:
        raise StateFileError(path, 1, 1, str(error)) from error


def forget_followed_timer(file_system: LocalFileSystem, root: str) -> None:
    """Delete the note: from now on the store's own timer counts. Durable on return. Raises OSError."""
    with suppress(FileNotFoundError):
        file_system.unlink(followed_timer_path(root))
        file_system.sync(f"{root}/spark_mq")
