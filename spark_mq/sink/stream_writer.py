"""The streaming sink: tasks stage a micro-batch, one commit per batch id appends it, and a replayed one is recognised.

Spark builds this writer anew for every batch, once for the tasks and once for the commit. What the commit must know of the query,
its id above all, only the tasks see; it travels in their messages. Spark: StreamingWrite, as KafkaStreamingWrite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from spark_mq.sink.columns import InputColumns
from spark_mq.sink.commit import abort_rows, commit_rows
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from spark_mq.sink.place import SeenStore
from spark_mq.sink.writing_task import begin_task, micro_batch
from spark_mq.worker_errors import named_for_spark


@dataclass(frozen=True)
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches in mode append, each exactly once."""

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
