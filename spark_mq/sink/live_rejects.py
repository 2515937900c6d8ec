"""Rows of a task for running brokers that break a rule: they fail the task, or are put aside for the commit to publish."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_mq.conditions import SENT_ROWS_STAY, TASK_SENT_NONE, InvalidRowError
from spark_mq.sink.dead_letters import DeadLetterWriter, Rejection
from spark_mq.sink.live_options import LiveSinkOptions
from storage.batch.intent import DeadLetterFile
from storage.batch.ledger import Batch
from storage.batch.staged_segment import sink_digest
from storage.files.local_file_system import LocalFileSystem

REJECTIONS_SHOWN = 5


class RejectedRows:
    """What becomes of them in one task; `finish` or `discard` ends it."""

    def __init__(self, options: LiveSinkOptions, partition: int, batch: Batch | None, attempt: int) -> None:
        """`batch` names the file, with `deadLetterPath`."""
        self._partition = partition
        self._writer: DeadLetterWriter | None = None
        if options.dead_letter_path is not None:
            assert batch is not None, "a task's dead letters have the name of its batch"
            self._writer = DeadLetterWriter(
                LocalFileSystem(),
                options.dead_letter_path,
                sink=sink_digest(batch.sink_id, batch.query_id).hex(),
                batch_id=batch.batch_id,
                partition=partition,
                attempt=f"{attempt}-{uuid.uuid4().hex}",
            )

    def take(
        self, frame: pa.RecordBatch, rejected: Sequence[Rejection], indices: np.ndarray, *, were_sent: bool
    ) -> None:
        """Rows of a frame, as they came, at these places in it. Raises InvalidRowError where nothing is put aside; `were_sent` says
        whether the task has sent rows before.
        """
        if not rejected:
            return
        if self._writer is None:
            shown = rejected[:REJECTIONS_SHOWN]
            consequence = SENT_ROWS_STAY if were_sent else TASK_SENT_NONE
            raise InvalidRowError(self._partition, len(rejected), *shown, consequence=consequence)
        self._writer.append(frame.take(pa.array(indices)), rejected)

    def finish(self) -> DeadLetterFile | None:
        """The file, on the disk; None where no row was put aside."""
        return None if self._writer is None else self._writer.finish()

    def discard(self) -> None:
        """Give up what was put aside."""
        if self._writer is not None:
            self._writer.discard()
