"""The batch sink, `df.write.format("spark_mq").mode("append")`: a commit of its own, exactly once if the write is given a name.

Spark gives a batch write no id, so a job that is run again is a new write, unless option `writeId` says which one it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import abort_rows, commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from spark_mq.sink.place import SeenStore
from spark_mq.sink.writing_task import begin_task
from spark_mq.worker_errors import named_for_spark
from storage.batch.ledger import UNNAMED_PREFIX, Batch


class BatchWriter(DataSourceArrowWriter):
    """One write. Spark builds it once and sends copies to the tasks and to the commit, so that all of them know its id."""

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
