"""What Spark calls to write into a running cluster: at least once by its tasks alone, exactly once by staging and a commit.

Spark builds a writer anew for tasks and for the commit; what the commit must know of the query, only the tasks see.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_mq.conditions import WriteFailedError
from spark_mq.sink.columns import InputColumns, warn_of_overruled
from spark_mq.sink.dead_letters import drop_dead_letters, publish_dead_letters
from spark_mq.sink.direct_writer import SentRows, send_rows
from spark_mq.sink.exact_writer import abort_staged, commit_to_brokers, stage_for_brokers
from spark_mq.sink.live_options import LiveSinkOptions
from spark_mq.sink.unsafe_answers import statuses_text
from spark_mq.sink.writing_task import begin_task, micro_batch
from spark_mq.worker_errors import named_for_spark
from storage.batch.ledger import UNNAMED_PREFIX, Batch
from storage.files.local_file_system import LocalFileSystem
from storage.files.os_errors import host_name
from storage.rules.response_codes import ResponseCode

_LOG = logging.getLogger("spark_mq.sink")
_KEY_BYTES = 8
_KEEPS_LOGS = "PYSPARK_SPARK_SESSION_UUID"
"""Set in Python workers whose log Spark keeps (spark.sql.pyspark.worker.logging.enabled); what a batch was answered belongs there."""


class LiveBatchWriter(DataSourceArrowWriter):
    """One write, `df.write`."""

    def __init__(self, options: LiveSinkOptions, columns: InputColumns) -> None:
        """Spark builds it once and sends copies to the tasks, so that all of them know the write's name."""
        self.options = options
        self.columns = columns
        name = options.write_id or UNNAMED_PREFIX + uuid.uuid4().hex
        self.batch = Batch(name, name, 0)

    @named_for_spark()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self.options, self.columns, self.batch, begin_task(), iterator)

    @named_for_spark()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self.options, messages, 0)

    @named_for_spark()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self.options, messages)


@dataclass(frozen=True)
class LiveStreamWriter(DataSourceStreamArrowWriter):
    """Micro-batches of a query, `df.writeStream`."""

    options: LiveSinkOptions
    columns: InputColumns

    @named_for_spark()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = begin_task()
        return _write(self.options, self.columns, micro_batch(task, self.options.sink_id), task, iterator)

    @named_for_spark()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self.options, messages, batchId)

    @named_for_spark()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self.options, messages)


def _write(
    options: LiveSinkOptions,
    columns: InputColumns,
    batch: Batch,
    task: TaskContext,
    frames: Iterator[pa.RecordBatch],
) -> WriterCommitMessage:
    partition, attempt = task.partitionId(), task.taskAttemptId()
    if options.is_exact:
        return stage_for_brokers(options, columns, batch, partition, attempt, frames)
    return send_rows(options, columns, partition, os.urandom(_KEY_BYTES), frames, batch, attempt)


def _commit(options: LiveSinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
    if _KEEPS_LOGS in os.environ and _LOG.level == logging.NOTSET:
        _LOG.setLevel(logging.INFO)
    if options.is_exact:
        commit_to_brokers(options, messages, batch_id)
        return
    sent = [message for message in messages if isinstance(message, SentRows)]
    if len(sent) != len(messages):
        raise WriteFailedError("a task handed in nothing of what it has sent")
    publish(sent)
    warn_of_overruled([rows.overruled for rows in sent])
    statuses = sum((Counter(rows.statuses) for rows in sent), Counter[int]())
    is_safe = set(statuses) <= {ResponseCode.SUCCESS}
    count = sum(rows.row_count for rows in sent)
    _LOG.log(
        logging.INFO if is_safe else logging.WARNING,
        *("batch %d: %d rows sent (%s)", batch_id, count, statuses_text(statuses)),
    )


def publish(sent: Sequence[SentRows]) -> None:
    """Give the tasks' dead letters their names. Raises WriteFailedError where this machine does not see a task's file."""
    files = LocalFileSystem()
    for rows in sent:
        try:
            publish_dead_letters(files, [] if rows.dead_letters is None else [rows.dead_letters])
        except FileNotFoundError:
            assert rows.dead_letters is not None
            path, here = rows.dead_letters.staged, host_name()
            rule = f"{here} does not see {path}, which a task wrote on {rows.host}"
            raise WriteFailedError(
                f"{rule}: deadLetterPath must be a directory that driver and workers share"
            ) from None


def _abort(options: LiveSinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """At least once: rows that were sent stay."""
    if options.is_exact:
        abort_staged(options, messages)
        return
    sent = [message.dead_letters for message in messages if isinstance(message, SentRows)]
    drop_dead_letters(LocalFileSystem(), [file for file in sent if file is not None])
