"""What Spark calls to write: tasks write or stage rows, one commit a batch makes them count. And `send_back`, which a user calls.

Where the rows go is a `Sink`: a store (`commit.py`) or a cluster of running brokers (`live_sink.py`). This module loads neither.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from spark_mq.conditions import WriteFailedError, named_for_spark
from spark_mq.source.partition_reader import leave_modules_alone
from spark_mq.spark_api import DataSourceArrowWriter, DataSourceStreamArrowWriter, TaskContext, WriterCommitMessage
from storage.batch.ledger import UNNAMED_PREFIX, Batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_mq.sink.columns import InputColumns
    from spark_mq.sink.options import RowOptions


class Sink(Protocol):
    """The target of a write's rows. Spark pickles it; each batch of a query gets a new one."""

    @property
    def options(self) -> RowOptions: ...

    @property
    def columns(self) -> InputColumns: ...

    def write(
        self, batch: Batch, task: TaskContext, frames: Iterator[pa.RecordBatch], *, is_query: bool
    ) -> WriterCommitMessage:
        """What a task does with its rows; returns what the commit must know. `is_query`: of a micro-batch, not of `df.write`."""
        ...

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int, *, is_query: bool) -> None:
        """Make what the tasks have written count, once."""
        ...

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give back what tasks have written for a write that failed."""
        ...


class BatchWriter(DataSourceArrowWriter):
    """The batch sink, `df.write.format("spark_mq").mode("append")`: a commit of its own, exactly once if the write is given a name.

    Spark gives a batch write no id, so a job that is run again is a new write, unless option `writeId` says which one it is. Spark
    builds the writer once and sends copies to the tasks and to the commit, so that all of them know its id.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        name = sink.options.write_id or UNNAMED_PREFIX + uuid.uuid4().hex
        self.batch = Batch(name, name, 0)

    @named_for_spark()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.sink.write(self.batch, begin_task(), iterator, is_query=False)

    @named_for_spark()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.sink.commit(messages, self.batch.batch_id, is_query=False)

    @named_for_spark()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.sink.abort(messages)


@dataclass(frozen=True)
class StreamWriter(DataSourceStreamArrowWriter):
    """The streaming sink, `df.writeStream`: one commit a micro-batch, and a replayed batch is recognised by its id.

    Spark builds this writer anew for every batch, once for the tasks and once for the commit. What the commit must know of the query,
    its id above all, only the tasks see; it travels in their messages. Spark: StreamingWrite, as KafkaStreamingWrite.
    """

    sink: Sink

    @named_for_spark()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = begin_task()
        return self.sink.write(micro_batch(task, self.sink.options.sink_id), task, iterator, is_query=True)

    @named_for_spark()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self.sink.commit(messages, batchId, is_query=True)

    @named_for_spark()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self.sink.abort(messages)


def begin_task() -> TaskContext:
    """Spark's ids of the writing task."""
    task = TaskContext.get()
    assert task is not None, "Spark calls this in a task"
    leave_modules_alone()
    return task


def micro_batch(task: TaskContext, sink_id: str | None) -> Batch:
    """The micro-batch of the task, by the query's own name for the sink if it has none. WriteFailedError where Spark does not say."""
    query_id = task.getLocalProperty("sql.streaming.queryId")
    batch_id = task.getLocalProperty("streaming.sql.batchId")
    if query_id is None or batch_id is None:
        raise WriteFailedError(
            "Spark did not tell the task its query and batch id; without them nothing is written once"
        )
    return Batch(sink_id or query_id, query_id, int(batch_id))


def send_back(
    df: DataFrame, *, path: str | None = None, consumer_group: str, **options: str | int | bool
) -> DataStreamWriter | None:
    """Send the rows of a frame back on behalf of `consumer_group`: rows of this format's source that could not be dealt with.

        failed = spark.read.format("spark_mq").option("topic", "orders").load("/data/store").where("keys IS NULL")
        spark_mq.send_back(failed, path="/data/store", consumer_group="billing", maxReconsumeTimes=5)

    In place of `path`, nameServer="host:9876" asks the running brokers that the rows were read from, at least once.
    Of a batch frame the rows are written, as one batch, when this returns. Of a streaming one the configured writer is returned, to
    which a checkpoint belongs: `.option("checkpointLocation", …).start()`; each micro-batch is then sent back once. `options`
    are the sink's, under their names. Column `delay_level`, where there is one, is the consumer's wish: 0 or null = level
    3 + reconsume_times, negative = a dead letter at once.
    Java: DefaultMQPushConsumer.sendMessageBack.
    """
    given = {name: _text(value) for name, value in options.items()}
    given |= {"sendBack": "true", "consumerGroup": consumer_group}
    if path is None:
        given.setdefault("guarantee", "atLeastOnce")  # the only one that there is for it
    else:
        given["path"] = path
    if df.isStreaming:
        return df.writeStream.format("spark_mq").outputMode("append").options(**given)
    df.write.format("spark_mq").mode("append").options(**given).save()
    return None


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
