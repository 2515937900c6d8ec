"""Rows that break a rule: they fail their task, or are written as Parquet, with their original columns and the reason.

A task writes and syncs a file that is hidden from Spark and similar readers; the commit of the batch renames it
(`storage/batch/intent.py`). So a dead letter exists exactly once, if and when its batch does.
Files of a task that died stay hidden.

A batch for a store names its files in the intent; one for running brokers, at least once, has none (`publish_dead_letters`). A
repeated batch gives the same names, so it replaces what it has put there before.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.conditions import PUT_ASIDE, Consequence, InvalidRowError
from storage.batch.intent import DeadLetterFile, load_intents
from storage.batch.ledger import Batch
from storage.batch.staged_segment import sink_digest
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


REJECTIONS_SHOWN = 5


class RejectedRows:
    """One task's invalid rows. They fail it, or lie in a file that appears with the first of them; `finish` or `discard` ends it."""

    def __init__(self, directory: str | None, batch: Batch | None, partition: int, attempt: str) -> None:
        """`directory` is the option deadLetterPath, `attempt` what no other attempt ever has; `batch` names the file."""
        self._files = LocalFileSystem()
        self._partition = partition
        self._file: DeadLetterFile | None = None
        self._directory = ""
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0
        """Number of rows put aside."""
        if directory is not None:
            assert batch is not None, "a task's dead letters have the name of its batch"
            self._directory = plain_path(directory).rstrip("/") or "/"
            sink = sink_digest(batch.sink_id, batch.query_id).hex()
            self._file = DeadLetterFile.of(self._directory, sink, batch.batch_id, partition, attempt)

    def take(
        self,
        frame: pa.RecordBatch,
        rejected: Sequence[Rejection],
        indices: np.ndarray,
        *,
        passing: Sequence[Rejection] = (),
        consequence: Consequence = PUT_ASIDE,
    ) -> None:
        """Put rows of a frame aside, as they came, each with why it is rejected; `indices` are their places in the frame.

        Raises InvalidRowError where nothing is put aside, and for rows that may be valid later (`passing`): a dead letter stays one,
        and if a repeated batch took the row by then, it would be another batch than the one that is stored.
        """
        failing = rejected if self._file is None else passing
        if failing:
            shown = failing[:REJECTIONS_SHOWN]
            raise InvalidRowError(self._partition, len(failing), *shown, consequence=consequence)
        if self._file is not None and rejected:
            self._append(self._file.staged, frame.take(pa.array(indices)), rejected)

    def _append(self, path: str, rows: pa.RecordBatch, rejected: Sequence[Rejection]) -> None:
        numbers, columns, rules = zip(*rejected, strict=True)
        errors = [columns, rules, [self._partition] * len(rejected), numbers]
        arrays = [
            *rows.columns,
            *(pa.array(values, field.type) for values, field in zip(errors, ERROR_FIELDS, strict=True)),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*rows.schema, *ERROR_FIELDS]))
        if self._writer is None:
            self._files.make_directories(self._directory)
            self._files.create_file(path, 0)
            self._writer = pq.ParquetWriter(path, batch.schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def finish(self) -> DeadLetterFile | None:
        """Put the file on the disk; its name, and the one that the commit will give it. None if there was no invalid row."""
        if self._writer is None or self._file is None:
            return None
        self._writer.close()
        self._writer = None
        self._files.sync(self._file.staged)
        self._files.sync(self._directory)
        return self._file

    def discard(self) -> None:
        """Give up what was put aside."""
        if self._file is None:
            return
        if self._writer is not None:
            # Closing writes the file's end, which a full disk does not take either.
            with suppress(OSError, pa.ArrowException):
                self._writer.close()
            self._writer = None
        with suppress(FileNotFoundError):
            self._files.unlink(self._file.staged)


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
