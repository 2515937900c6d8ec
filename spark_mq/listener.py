"""A StreamingQueryListener that tells how far queries are behind.

listener = spark_mq.LagListener()
spark.streams.addListener(listener)
…
listener.lags
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from spark_mq.lag import QueueLag, queue_lags, skipped_commits, total_lag

_LOG = logging.getLogger("spark_mq.lag")


class LagReport(NamedTuple):
    """The lag of one query when one of its batches was done."""

    query_id: UUID
    query_name: str | None
    batch_id: int
    timestamp: str
    """When the batch's trigger began; ISO-8601, UTC."""
    lags: list[QueueLag]
    skipped_commits: dict[str, str]
    """By broker name, why commitOffsets was skipped; empty when it was not."""

    @classmethod
    def of(cls, progress: StreamingQueryProgress) -> LagReport:
        return cls(
            progress.id,
            progress.name,
            progress.batchId,
            progress.timestamp,
            queue_lags(progress),
            skipped_commits(progress),
        )


def log_lag(report: LagReport) -> None:
    """One line a batch at INFO, one a queue at DEBUG, one a broker whose group offsets were skipped at WARNING.

    What is unknown is shown as None. The logger is `spark_mq.lag`.
    """
    query = report.query_name or report.query_id
    rows, size, time_ms = total_lag(report.lags)
    text = "query %s, batch %d: %s rows, %s bytes, %s ms behind in %d queues"
    _LOG.info(text, query, report.batch_id, rows, size, time_ms, len(report.lags))
    for lag in report.lags:
        _LOG.debug("query %s, queue %s/%s/%d: %s rows, %s bytes, %s ms", query, *lag)
    for broker_name, reason in report.skipped_commits.items():
        _LOG.warning("query %s, broker %s: commitOffsets skipped: %s", query, broker_name, reason)


class LagListener(StreamingQueryListener):
    """Hands every progress of a query over `spark_mq` stores to `report`, which logs it by default, and keeps the last.

    Queries over other sources are passed over. Spark calls a listener from one thread of its own, some time after the batch;
    what `report` raises goes to Spark's log and nowhere else.
    """

    def __init__(self, report: Callable[[LagReport], None] = log_lag) -> None:
        self.reports: dict[UUID, LagReport] = {}
        """The last report of each query by query id, ended ones too."""
        self.lags: list[QueueLag] = []
        """The lags of the last report, whichever query it was of."""
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        report = LagReport.of(event.progress)
        if report.lags or report.skipped_commits:
            self.reports[report.query_id] = report
            self.lags = report.lags
            self._report(report)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """An idle query's event says nothing of its offsets."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last report stays."""
