"""What a sink that sends exactly once keeps in its staging directory.

    STAGING/SINK/lock           held by the process that commits
    STAGING/SINK/intent.json    the batch that is decided and not done; there is at most one
    STAGING/SINK/done.json      the last batch that is done
    STAGING/SINK/….rows         what tasks have staged

SINK is `sink_digest` in hex. Both files are one line of JSON and its CRC-32 in hex, replaced whole and synced. Writing the intent is
the commit point of a batch: before it, nothing of the batch is sent; after it, all of it will be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from isal import isal_zlib

from spark_mq.sink.sent_batch import Done, Intent, decode_done, decode_intent, encode
from storage.batch.staged_segment import sink_digest
from storage.errors import StateFileError
from storage.files.local_file_system import LocalFileSystem

ROWS_SUFFIX = ".rows"

T = TypeVar("T")


class Kept(NamedTuple):
    """What the directory says."""

    intent: Intent | None
    done: Done | None


class Journal:
    """The directory of one sink."""

    def __init__(self, files: LocalFileSystem, staging: str, sink_id: str) -> None:
        self.files = files
        self.directory = sink_directory(staging, sink_id)

    @contextmanager
    def locked(self, timeout_ms: int) -> Iterator[None]:
        """Keep other commits of the sink away. Raises StoreLockedError when the time is over."""
        self.files.make_directories(self.directory)
        with self.files.locked(f"{self.directory}/lock", timeout_ms):
            yield

    def load(self) -> Kept:
        """Raises StateFileError for a file that was changed or torn."""
        return Kept(self._read("intent.json", decode_intent), self._read("done.json", decode_done))

    def save_intent(self, intent: Intent) -> None:
        """Durable when this returns."""
        self._write("intent.json", intent)

    def save_done(self, done: Done) -> None:
        """Durable when this returns."""
        self._write("done.json", done)

    def drop_intent(self) -> None:
        """Durable when this returns."""
        self.files.unlink(f"{self.directory}/intent.json")
        self.files.sync(self.directory)

    def drop_rows(self, batch_id: int) -> None:
        """Delete what tasks have staged for this batch and those before."""
        names = [entry.name for entry in self.files.list_directory(self.directory) if entry.name.endswith(ROWS_SUFFIX)]
        numbers = (name.partition("-")[0] for name in names)
        self.drop_files(
            name for name, number in zip(names, numbers, strict=True) if number.isdecimal() and int(number) <= batch_id
        )

    def drop_files(self, names: Iterable[str]) -> None:
        """Delete staged files."""
        for name in names:
            with suppress(FileNotFoundError):
                self.files.unlink(f"{self.directory}/{name}")

    def _read(self, name: str, decode: Callable[[bytes], T]) -> T | None:
        path = f"{self.directory}/{name}"
        content = self.files.read_file(path)
        if content is None:
            return None
        line, _, checksum = content.partition(b"\n")
        if checksum != f"{isal_zlib.crc32(line):08x}\n".encode():
            raise StateFileError(path, 2, 1, "the checksum is not that of the first line; the file was changed or torn")
        try:
            return decode(line)
        except ValueError as error:
            raise StateFileError(path, 1, 1, f"it is not of this version: {error}") from error

    def _write(self, name: str, value: Intent | Done) -> None:
        line = encode(value)
        self.files.replace(f"{self.directory}/{name}", line + b"\n" + f"{isal_zlib.crc32(line):08x}\n".encode())


def sink_directory(staging: str, sink_id: str) -> str:
    """Where a sink's tasks stage."""
    return f"{staging}/{sink_digest(sink_id, sink_id).hex()}"
