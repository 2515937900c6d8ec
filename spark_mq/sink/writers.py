"""What Spark calls to write into a store: tasks stage rows, one commit appends them. For a running cluster: `live_writers.py`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import abort_rows, commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from spark_mq.sink.place import SeenStore
from spark_mq.sink.writing_task import begin_task, micro_batch
from spark_mq.worker_errors import named_for_spark
from storage.batch.ledger import UNNAMED_PREFIX, Batch


class BatchWriter(DataSourceArrowWriter):
    """The batch sink, `df.write.format("spark_mq").mode("append")`: a commit of its own, exactly once if the write is given a name.

    Spark gives a batch write no id, so a job that is run again is a new write, unless option `writeId` says which one it is. Spark
    builds the writer once and sends copies to the tasks and to the commit, so that all of them know its id.
    """

    def __init__(self, options: SinkOptions, columns: InputColumns, seen: SeenStore | None = None) -> None:
        """`seen` is the store that is there already, for the tasks to recognise."""
        self.options = options
        self.columns = columns
        self.seen = seen
        name = options.write_id or UNNAMED_PREFIX + uuid.uuid4().hex
        self.batch = Batch(name, name, 0)

    @named_for_spark()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        task = begin_task()
        return stage_rows(
            self.options,
            self.columns,
            self.batch,
            task.partitionId(),
            task.taskAttemptId(),
            iterator,
            is_only=True,
            seen=self.seen,
        )

    @named_for_spark()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit_rows(self.options, messages, self.batch.batch_id, mirrored=self.options.write_id is not None)

    @named_for_spark()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort_rows(self.options, messages)


@dataclass(frozen=True)
class StreamWriter(DataSourceStreamArrowWriter):
    """The streaming sink: tasks stage a micro-batch, one commit per batch id appends it, and a replayed one is recognised.

    Spark builds this writer anew for every batch, once for the tasks and once for the commit. What the commit must know of the query,
    its id above all, only the tasks see; it travels in their messages. Spark: StreamingWrite, as KafkaStreamingWrite.
    """

    options: SinkOptions
    columns: InputColumns
    seen: SeenStore | None = None
    """The store that is there already, for the tasks to recognise."""

    @named_for_spark()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        task = begin_task()
        batch = micro_batch(task, self.options.sink_id)
        return stage_rows(
            self.options, self.columns, batch, task.partitionId(), task.taskAttemptId(), iterator, seen=self.seen
        )

    @named_for_spark()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        commit_rows(self.options, messages, batchId, mirrored=True)

    @named_for_spark()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        abort_rows(self.options, messages)
