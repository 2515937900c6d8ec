"""The task of Spark's that a writer runs in, and the micro-batch that it is of."""

from __future__ import annotations

from pyspark import TaskContext

from spark_mq.conditions import WriteFailedError
from spark_mq.source.garbage import leave_modules_alone
from storage.batch.ledger import Batch


def begin_task() -> TaskContext:
    """What Spark says of the task that begins to write here."""
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
