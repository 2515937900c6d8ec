"""Rows that no broker would take, put aside as Parquet: the columns as they came, and what was wrong with them.

A task writes and syncs a file that Spark and its like do not see; the batch's commit renames it
(`storage/batch/intent.py`). So a dead letter is there exactly once, if and when its batch is.
What a task that died has left stays hidden.

A batch for a store names its files in the intent; one for running brokers, at least once, has none (`publish_dead_letters`). A
repeated batch gives the same names, so it replaces what it has put there before.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from storage.batch.intent import DeadLetterFile, load_intents
from storage.files.local_file_system import LocalFileSystem
from storage.files.remote import plain_path

Rejection = tuple[int, str, str]
"""Row of the task from 0, column, rule."""

ERROR_FIELDS = [
    pa.field("error_column", pa.string(), False),
    pa.field("error_rule", pa.string(), False),
    pa.field("error_partition", pa.int32(), False),
    pa.field("error_row", pa.int64(), False),
]


class DeadLetterWriter:
    """Writes one task's invalid rows. The file appears with the first of them; `finish` or `discard` ends it."""

    def __init__(
        self, file_system: LocalFileSystem, directory: str, *, sink: str, batch_id: int, partition: int, attempt: str
    ) -> None:
        """`sink` is the hex `sink_digest`, `attempt` what no other attempt ever has."""
        self._file_system = file_system
        self._directory = plain_path(directory).rstrip("/") or "/"
        self._partition = partition
        self._file = DeadLetterFile.of(self._directory, sink, batch_id, partition, attempt)
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0

    def append(self, rows: pa.RecordBatch, rejections: Sequence[Rejection]) -> None:
        """Rows as they came, each with why it was rejected."""
        numbers, columns, rules = zip(*rejections, strict=True)
        errors = [columns, rules, [self._partition] * len(rejections), numbers]
        arrays = [
            *rows.columns,
            *(pa.array(values, field.type) for values, field in zip(errors, ERROR_FIELDS, strict=True)),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*rows.schema, *ERROR_FIELDS]))
        if self._writer is None:
            self._file_system.make_directories(self._directory)
            self._file_system.create_file(self._file.staged, 0)
            self._writer = pq.ParquetWriter(self._file.staged, batch.schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def finish(self) -> DeadLetterFile | None:
        """Put the file on the disk; its name, and the one that the commit will give it. None if there was no invalid row."""
        if self._writer is None:
            return None
        self._writer.close()
        self._writer = None
        self._file_system.sync(self._file.staged)
        self._file_system.sync(self._directory)
        return self._file

    def discard(self) -> None:
        """Give up what was written."""
        if self._writer is not None:
            with suppress(
                OSError, pa.ArrowException
            ):  # it writes the file's end, which a full disk does not take either
                self._writer.close()
            self._writer = None
        with suppress(FileNotFoundError):
            self._file_system.unlink(self._file.staged)


def publish_dead_letters(file_system: LocalFileSystem, dead_letters: Iterable[DeadLetterFile]) -> None:
    """Give staged files their names, durably. FileNotFoundError where neither the staged file nor the other is there."""
    for staged, final in dead_letters:
        try:
            file_system.rename(staged, final)
        except FileNotFoundError:
            if not file_system.exists(final):
                raise
        file_system.sync(posixpath.dirname(final))


def drop_dead_letters(file_system: LocalFileSystem, dead_letters: Iterable[DeadLetterFile]) -> None:
    """Delete staged files of a batch for running brokers that failed."""
    for file in dead_letters:
        with suppress(FileNotFoundError):
            file_system.unlink(file.staged)


def discard_staged(file_system: LocalFileSystem, root: str, dead_letters: Iterable[tuple[str, str]]) -> None:
    """Delete what tasks have staged for a batch that failed or was there already, unless an intent has taken it over."""
    staged = {path for path, _ in dead_letters}
    if staged:
        staged -= {path for intent in load_intents(file_system, root) for path, _ in intent.dead_letters}
    for path in staged:
        with suppress(FileNotFoundError):
            file_system.unlink(path)
