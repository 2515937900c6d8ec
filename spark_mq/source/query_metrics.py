"""Figures of a session's streaming queries: as a DataFrame, and as a page for Prometheus.

    spark_mq.metrics(spark).show()
    served = spark_mq.serve_metrics(spark, port=9108)        # http://127.0.0.1:9108/metrics

The first call of a session adds a listener to it, which keeps the last progress of each query, and how it ended. What ended before that
is not known. Rates are those of the last batch; a query that waits for messages has rates of 0. How far a query is behind is looked at
in its store or cluster when the figures are requested, by the options of its sources; so it grows while a batch hangs. With Spark
Connect, where the options are not at hand, the lag is that of the last batch, and the age and the bytes are unknown.

An unknown value is null, never 0. A query over other sources has its rates, and no lag.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from spark_mq.prometheus import queries as names
from spark_mq.prometheus.metric import Family, family
from spark_mq.prometheus.page import Page, ServedPage
from spark_mq.source.lag import ENTRIES_A_LOOK, position_of, total_lag
from spark_mq.source.listener import LagListener, LagReport, source_options
from spark_mq.source.offsets import QueueId, QueueOffsets
from spark_mq.source.options import SourceOptions
from spark_mq.source.query_cluster import QueryCluster
from spark_mq.source.stream_reader import StreamReader
from spark_mq.spark_versions import SparkNotFoundError, not_installed
from storage.epoch_times import current_time_ms

try:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )
except ImportError as error:
    raise SparkNotFoundError(not_installed(error), name=error.name) from error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = (
    "name STRING, query_id STRING, run_id STRING, is_active BOOLEAN, batch_id BIGINT, progress_time TIMESTAMP, "
    "num_input_rows BIGINT, input_rows_per_second DOUBLE, processed_rows_per_second DOUBLE, "
    "processed_bytes_per_second DOUBLE, lag_rows BIGINT, lag_bytes BIGINT, oldest_unread_ms BIGINT, "
    "last_error STRING, last_error_condition STRING, failures BIGINT"
)
_LOG = logging.getLogger(__name__)


class QueryFigures(NamedTuple):
    """One query; a row of `metrics`. None = unknown."""

    name: str | None
    query_id: str
    run_id: str
    is_active: bool
    batch_id: int | None
    """None before the first batch."""
    progress_time: datetime | None
    """When the last batch's trigger began."""
    num_input_rows: int | None
    input_rows_per_second: float | None
    processed_rows_per_second: float | None
    processed_bytes_per_second: float | None
    """Bytes of the last batch's records, by its duration. Of stores; a running cluster does not say sizes. None for the first batch."""
    lag_rows: int | None
    lag_bytes: int | None
    oldest_unread_ms: int | None
    """Age of the oldest unread message; 0 where nothing is unread."""
    last_error: str | None
    """Why the query ended last; it stays when the query is started again."""
    last_error_condition: str | None
    failures: int
    """How often it ended by an error since the listener was added."""


class _Behind(NamedTuple):
    """A source's lag now, and the bytes of its last batch."""

    rows: int | None
    bytes: int | None
    oldest_ms: int | None
    batch_bytes: int | None


_UNKNOWN = _Behind(None, None, None, None)


class _Failure(NamedTuple):
    text: str
    condition: str | None


class _Query:
    """What is known of one query."""

    def __init__(self, query_id: UUID, run_id: UUID, name: str | None) -> None:
        self.query_id = query_id
        self.run_id = run_id
        self.name = name
        self.in_jvm: Any = None
        self.is_active = True
        self.is_idle = False
        self.progress: StreamingQueryProgress | None = None
        self.failures = 0
        self.last_failure: _Failure | None = None
        self.trouble: str | None = None
        """Why its lag could not be looked at last."""
        self.readers: list[StreamReader | None] | None = None
        """Of each source, to look with; None of one that is not ours, and in place of all where they cannot be made."""

    def close(self) -> None:
        """Close what it looks with."""
        for reader in self.readers or ():
            if reader is not None:
                reader.stop()
        self.readers = None


class QueryMetrics(LagListener):
    """A session's queries. Thread-safe."""

    def __init__(self) -> None:
        super().__init__(lambda report: None)
        self._lock = threading.Lock()
        self._known: dict[UUID, _Query] = {}

    # What Spark says

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        super().onQueryStarted(event)
        with self._lock:
            query = self._query(event.id, event.runId, event.name)
            query.close()
            query.run_id, query.is_active, query.is_idle = event.runId, True, False
            query.in_jvm = self._queries.get(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        super().onQueryProgress(event)
        progress = event.progress
        with self._lock:
            query = self._query(progress.id, progress.runId, progress.name)
            query.progress, query.is_idle = progress, False

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        with self._lock:
            if (query := self._known.get(event.id)) is not None:
                query.is_idle = True

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        super().onQueryTerminated(event)
        with self._lock:
            query = self._query(event.id, event.runId, None)
            if event.runId != query.run_id:  # Spark may report the end of a run after the start of the next
                return
            query.is_active = False
            query.in_jvm = None
            query.close()
            if event.exception is not None:
                query.failures += 1
                query.last_failure = _Failure(event.exception, getattr(event, "errorClassOnException", None))

    def take_running(self, active: Iterable[Any]) -> None:
        """Note queries that were started before this listener was added."""
        with self._lock:
            for running in active:
                query = self._query(UUID(str(running.id)), UUID(str(running.runId)), running.name)
                query.in_jvm = query.in_jvm or getattr(running, "_jsq", None)
                if query.progress is None and query.in_jvm is not None:
                    found = query.in_jvm.lastProgress()
                    query.progress = None if found is None else StreamingQueryProgress.fromJObject(found)

    def _query(self, query_id: UUID, run_id: UUID, name: str | None) -> _Query:
        query = self._known.setdefault(query_id, _Query(query_id, run_id, name))
        query.name = query.name or name
        return query

    # What is asked for

    def figures(self) -> list[QueryFigures]:
        """All queries that are known, by name."""
        with self._lock:
            found = [self._figures_of(query) for query in self._known.values()]
        return sorted(found, key=lambda each: (each.name or "", each.query_id))

    def families(self) -> Iterator[Family]:
        """The same as metrics."""
        found = self.figures()
        of_query = [((each.name or each.query_id, each.query_id), each) for each in found]
        values: Mapping[Any, list[tuple[tuple[str, str], float | None]]] = {
            names.QUERY_ACTIVE: [(labels, int(each.is_active)) for labels, each in of_query],
            names.QUERY_BATCH_ID: [(labels, each.batch_id) for labels, each in of_query],
            names.QUERY_INPUT_RATE: [(labels, each.input_rows_per_second) for labels, each in of_query],
            names.QUERY_ROW_RATE: [(labels, each.processed_rows_per_second) for labels, each in of_query],
            names.QUERY_BYTE_RATE: [(labels, each.processed_bytes_per_second) for labels, each in of_query],
            names.QUERY_LAG_ROWS: [(labels, each.lag_rows) for labels, each in of_query],
            names.QUERY_LAG_BYTES: [(labels, each.lag_bytes) for labels, each in of_query],
            names.QUERY_OLDEST: [
                (labels, None if each.oldest_unread_ms is None else each.oldest_unread_ms / 1_000)
                for labels, each in of_query
            ],
        }
        for metric, series in values.items():
            yield family(metric, ((labels, value) for labels, value in series if value is not None))
        failed = (
            ((*labels, each.last_error_condition or ""), each.failures) for labels, each in of_query if each.failures
        )
        yield family(names.QUERY_FAILURES, failed)

    def _figures_of(self, query: _Query) -> QueryFigures:
        progress, failure = query.progress, query.last_failure
        behind = _UNKNOWN
        rates: tuple[float | None, float | None, float | None] = (None, None, None)
        if progress is not None:
            behind = self._behind(query, progress)
            duration_s = max(1, progress.batchDuration) / 1_000
            bytes_rate = None if behind.batch_bytes is None else behind.batch_bytes / duration_s
            rates = _rate(progress.inputRowsPerSecond), _rate(progress.processedRowsPerSecond), bytes_rate
            if query.is_idle or not query.is_active:
                rates = 0.0, 0.0, None if bytes_rate is None else 0.0
        return QueryFigures(
            name=query.name,
            query_id=str(query.query_id),
            run_id=str(query.run_id),
            is_active=query.is_active,
            batch_id=None if progress is None else progress.batchId,
            progress_time=None if progress is None else datetime.fromisoformat(progress.timestamp),
            num_input_rows=None if progress is None else progress.numInputRows,
            input_rows_per_second=rates[0],
            processed_rows_per_second=rates[1],
            processed_bytes_per_second=rates[2],
            lag_rows=behind.rows,
            lag_bytes=behind.bytes,
            oldest_unread_ms=behind.oldest_ms,
            last_error=None if failure is None else failure.text,
            last_error_condition=None if failure is None else failure.condition,
            failures=query.failures,
        )

    def _behind(self, query: _Query, progress: StreamingQueryProgress) -> _Behind:
        """Of all its sources together."""
        known = [_UNKNOWN._replace(**_told(LagReport.of(progress)))]
        if query.is_active and query.in_jvm is not None:
            try:
                readers = _readers(query, len(progress.sources))
                looked = [
                    _look(reader, source.startOffset, source.endOffset)
                    for reader, source in zip(readers, progress.sources, strict=True)
                    if reader is not None
                ]
                known = looked or [_UNKNOWN]
            except Exception as error:  # the other figures are shown all the same
                if query.trouble != (text := str(error)):
                    _LOG.warning("query %s: its lag is that of its last batch: %s", query.name or query.query_id, text)
                query.trouble = text
                query.close()
        columns = zip(*known, strict=True)
        rows, sizes, ages, of_batch = (list(column) for column in columns)
        return _Behind(_sum(rows), _sum(sizes), None if None in ages else max(ages), _sum(of_batch))


def _told(report: LagReport) -> dict[str, int | None]:
    if not report.lags:
        return {}
    total = total_lag(report.lags)
    return {"rows": total.rows, "bytes": total.bytes, "oldest_ms": 0 if total.rows == 0 else None}


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _rate(value: float | None) -> float | None:
    """Spark has NaN for a rate over no time."""
    return None if value is None or value != value else value


def _readers(query: _Query, source_count: int) -> list[StreamReader | None]:
    """Of each source one to look with; None of a source that is not ours. Raises the named conditions, and what py4j raises."""
    if query.readers is None:
        made: list[StreamReader | None] = []
        for options in source_options(query.in_jvm):
            own = {name: value for name, value in options.items() if name.lower() != "commitoffsets"}
            is_ours = any(name.lower() in ("path", "nameserver") for name in own)
            made.append(StreamReader(SourceOptions.parse(own, "streaming"), ()) if is_ours else None)
        query.readers = made
    if len(query.readers) != source_count:
        raise ValueError(f"its plan has {len(query.readers)} sources, and its progress {source_count}")
    return query.readers


def _look(reader: StreamReader, start_text: str | None, end_text: str | None) -> _Behind:
    """One source, by what its store or cluster has now. Raises the named conditions."""
    cluster = reader.cluster
    cluster.refresh()
    end = position_of(end_text)
    ends = {} if end is None else end.next_offsets()
    unread = {queue: (ends[queue], most) for queue in ends if (most := cluster.bounds(queue)[1]) > ends[queue]}
    rows = sum(most - first for first, most in unread.values())
    size = None
    if cluster.tells_sizes and rows <= ENTRIES_A_LOOK:
        size = sum(cluster.bytes_between(queue, first, most) for queue, (first, most) in unread.items())
    return _Behind(rows, size, _oldest_ms(cluster, unread), _batch_bytes(cluster, position_of(start_text), ends))


def _oldest_ms(cluster: QueryCluster, unread: Mapping[QueueId, tuple[int, int]]) -> int | None:
    if not unread:
        return 0
    behind_first = {queue: max(first, cluster.bounds(queue)[0]) + 1 for queue, (first, _) in unread.items()}
    cluster.look_up(behind_first)
    places = [cluster.record_before(queue, offset) for queue, offset in behind_first.items()]
    times = [place[1] for place in places if place is not None]
    return max(0, current_time_ms() - min(times)) if times else None


def _batch_bytes(cluster: QueryCluster, start: QueueOffsets | None, ends: Mapping[QueueId, int]) -> int | None:
    if not cluster.tells_sizes or start is None:
        return None
    starts = start.next_offsets()
    ranges = {queue: (starts.get(queue, cluster.bounds(queue)[0]), stop) for queue, stop in ends.items()}
    if sum(stop - first for first, stop in ranges.values()) > ENTRIES_A_LOOK:
        return None
    return sum(cluster.bytes_between(queue, first, stop) for queue, (first, stop) in ranges.items() if stop > first)


_OF_SESSION: WeakKeyDictionary[Any, QueryMetrics] = WeakKeyDictionary()
_ADDING = threading.Lock()


def query_metrics(spark: SparkSession) -> QueryMetrics:
    """The session's listener, which is added at the first call."""
    with _ADDING:
        found = _OF_SESSION.get(spark)
        if found is None:
            found = _OF_SESSION[spark] = QueryMetrics()
            spark.streams.addListener(found)
    found.take_running(spark.streams.active)
    return found


def metrics(spark: SparkSession) -> DataFrame:
    """A row for each streaming query of the session: rates, lag in rows and bytes, age of the oldest unread message, last error.

    Columns: those of `QueryFigures`. The values are those of this moment; call it again for later ones. Call it once where the session
    starts, so that errors of queries that end early are kept.
    """
    return spark.createDataFrame([tuple(each) for each in query_metrics(spark).figures()], _SCHEMA)


def serve_metrics(spark: SparkSession, port: int = 9_108, host: str = "127.0.0.1") -> ServedPage:
    """Serve the same to Prometheus, at http://HOST:PORT/metrics, until the returned page is closed; port 0 = any that is free.

    Raises PrometheusNotFoundError without prometheus_client (`pip install 'spark_mq[metrics]'`), OSError for an address that cannot be
    used.
    """
    found = query_metrics(spark)

    def families() -> Iterator[Family]:
        found.take_running(spark.streams.active)
        return found.families()

    return Page(families).serve(host, port)
