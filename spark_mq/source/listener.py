"""A StreamingQueryListener that reports the lag of queries.

listener = spark_mq.LagListener()
spark.streams.addListener(listener)
…
listener.lags
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from spark_mq.client.failure_log import FailureLog
from spark_mq.source.lag import QueueLag, queue_lags, skipped_commits, source_metrics, sources_without_latest, total_lag
from spark_mq.source.options import SourceOptions
from spark_mq.source.stream_reader import StreamReader
from spark_mq.spark_versions import SparkNotFoundError, not_installed

try:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
        StreamingQueryProgress,
    )
except ImportError as error:
    raise SparkNotFoundError(not_installed(error), name=error.name) from error

_SCAN = "StreamingDataSourceV2ScanRelation"
_LOG = logging.getLogger(__name__)


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

    @property
    def metrics(self) -> dict[str, str]:
        """The names and values that Spark's Kafka source has in `sources[].metrics`: min, max and avgOffsetsBehindLatest."""
        return source_metrics(self.lags)

    @classmethod
    def of(cls, progress: StreamingQueryProgress, latest: Mapping[int, str] = MappingProxyType({})) -> LagReport:
        """`latest` are the latest offsets that the progress lacks, by the source's number."""
        return cls(
            progress.id,
            progress.name,
            progress.batchId,
            progress.timestamp,
            queue_lags(progress, latest),
            skipped_commits(progress),
        )


def log_lag(report: LagReport) -> None:
    """One line a batch at INFO, one a queue at DEBUG, one a broker whose group offsets were skipped at WARNING.

    What is unknown is shown as None. The logger is `spark_mq.source.listener`.
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
    what `report` raises is logged, once a kind with a count of those that follow.

    Of a batch that Spark repeats after a restart the progress says no latest offset. The listener then looks into the store, from the
    driver, by the options of the query's sources. With Spark Connect it cannot, and such lags are unknown.
    """

    def __init__(self, report: Callable[[LagReport], None] = log_lag) -> None:
        self.reports: dict[UUID, LagReport] = {}
        """The last report of each query by query id, ended ones too."""
        self.lags: list[QueueLag] = []
        """The lags of the last report, whichever query it was of."""
        self._report = report
        self._failures = FailureLog(_LOG)
        self._queries: dict[UUID, Any] = {}
        """By run: Spark may report the end of a query's earlier run after the start of the next."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Keeps the query at hand: when its last progress comes it may have ended."""
        session = self.spark or SparkSession.getActiveSession()
        query = None if session is None else session.streams.get(str(event.id))
        in_jvm = getattr(query, "_jsq", None)  # not with Spark Connect
        if in_jvm is not None:
            self._queries[event.runId] = in_jvm

    def _latest_of(self, progress: StreamingQueryProgress) -> dict[int, str]:
        """The latest offsets that the progress lacks, by the source's number."""
        missing, query = sources_without_latest(progress), self._queries.get(progress.runId)
        if not missing or query is None:
            return {}
        try:
            options = source_options(query)
            if len(options) != len(progress.sources):
                return {}
            return {number: latest_offset(options[number], progress.sources[number].endOffset) for number in missing}
        except Exception as error:  # a lag that is unknown must not keep the rest from being reported
            text = f"query {progress.id}, batch {progress.batchId}: the lag is unknown: {error}"
            self._failures.note(f"{progress.id} {type(error).__name__}", text)
            return {}

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        report = LagReport.of(event.progress, self._latest_of(event.progress))
        if report.lags or report.skipped_commits:
            self.reports[report.query_id] = report
            self.lags = report.lags
            try:
                self._report(report)
            except Exception as error:  # Spark would log it once more each time
                text = f"query {report.query_id}, batch {report.batch_id}: the report of its lag failed"
                self._failures.note(type(error).__name__, text, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """An idle query's event says nothing of its offsets."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last report stays. What failed and was not logged is counted in the log."""
        self._queries.pop(event.runId, None)
        self._failures.close()


def source_options(query: Any) -> list[dict[str, str]]:
    """The options of each source of a running query, in the order of its progress; `query` is the JVM's StreamingQueryWrapper.

    They stand in its plan, in the driver's JVM; a session of Spark Connect has none at hand. What another kind of source was given
    is {}. Raises what py4j raises.
    """
    leaves = query.streamingQuery().logicalPlan().collectLeaves()
    found: list[dict[str, str]] = []
    seen: list[Any] = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if not leaf.isStreaming():
            continue
        is_scan = leaf.getClass().getSimpleName() == _SCAN
        source = leaf.stream() if is_scan else leaf
        if not any(source.equals(other) for other in seen):  # one stream may stand in the plan twice
            seen.append(source)
            found.append(dict(leaf.relation().options()) if is_scan else {})
    return found


def latest_offset(options: Mapping[str, str], end_offset: str) -> str:
    """The source's latest offset for the plan of the batch that ends there, as of now.

    When Spark repeats a batch after a restart, it does not ask the source for the ends of the queues, so this reads the store.
    Raises the named conditions, among them those of a store that is not there.
    """
    own = {name: value for name, value in options.items() if name.lower() != "commitoffsets"}
    reader = StreamReader(SourceOptions.parse(own, "streaming"), ())
    try:
        return json.dumps(reader.report_behind(json.loads(end_offset)))
    finally:
        reader.stop()
