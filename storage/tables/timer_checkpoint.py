"""The life of `config/timercheck`: read first, written when everything it speaks of is on the disk. Java: TimerCheckpoint."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from storage.errors import StateFileError
from storage.files.file_system import FileSystem
from storage.files.local_file_system import LocalFileSystem
from storage.format import fastjson
from storage.format.delay import TimerCheckpoint, decode_timer_checkpoint, encode_timer_checkpoint
from storage.tables.document import integer, parse_document

TIMER_CHECKPOINT_FILE = "timercheck"
"""What the file of a master is called that says it, under config/."""
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
    """A master's timer.

    How far a master's timer is, as its follower was told last: ROOT/spark_mq/followed_timer.json, {"readTimeMs": …, "queueOffset":
    …}.

    Who follows delivers nothing, so wheel and log of its timer say nothing of what its master has delivered. A timer that runs here
    again makes them anew from the queue, without what the master had delivered by then, and the file goes. Departure: Java keeps
    both numbers in config/timercheck, and delivers all that is due again where wheel and log are missing. Java:
    SlaveSynchronize.syncTimerCheckPoint.
    """

    read_time_ms: int
    """Everything due before it was delivered,"""
    queue_offset: int
    """of the messages of the timer's queue before this one."""

    @classmethod
    def of_answer(cls, page: bytes) -> FollowedTimer:
        """By the answer to request 60."""
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
        """Whether no timer has run here since, as this store's own checkpoint tells."""
        return self.read_time_ms > checkpoint.last_read_time_ms


def followed_timer_path(root: str) -> str:
    """Where it stands."""
    return f"{root}/spark_mq/followed_timer.json"


def read_followed_timer(file_system: FileSystem, root: str) -> FollowedTimer | None:
    """None of a store that follows nobody, or whose own timer has run since. Raises StateFileError."""
    path = followed_timer_path(root)
    content = file_system.read_file(path)
    if content is None:
        return None
    try:
        return FollowedTimer.load(content.decode(), path)
    except UnicodeDecodeError as error:
        raise StateFileError(path, 1, 1, str(error)) from error


def forget_followed_timer(file_system: LocalFileSystem, root: str) -> None:
    """The store's own timer says from now on what was delivered. Durable on return. Raises OSError."""
    with suppress(FileNotFoundError):
        file_system.unlink(followed_timer_path(root))
        file_system.sync(f"{root}/spark_mq")
