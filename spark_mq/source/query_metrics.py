"""Figures of a session's streaming queries: as a DataFrame, and as a page for Prometheus.

    spark_mq.metrics(spark).show()
    served = spark_mq.serve_metrics(spark, port=9108)        # http://127.0.0.1:9108/metrics

The first call of a session adds a listener to it, which keeps the last progress of each query, and how it ended. What ended before that
is not known. Rates are those of the last batch; a query that waits for messages has rates of 0. How far a query is behind is looked at
in its store or cluster when the figures are requested, by the options of its sources (`query_looks.py`); so it grows while a batch
hangs. With Spark Connect, where the options are not at hand, the lag is that of the last batch, and the age and the bytes are unknown.

An unknown value is null, never 0: the lag of a query that has ended, and the lag where a broker or a queue is missing, or a broker has
not answered in time. A query over other sources has its rates, and no lag.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from spark_mq.prometheus import queries as names
from spark_mq.prometheus.metric import Family, family
from spark_mq.prometheus.page import Page, ServedPage
from spark_mq.source.lag import total_lag
from spark_mq.source.listener import LagListener, LagReport, source_options
from spark_mq.source.query_looks import UNKNOWN, Behind, QueryLooks
from spark_mq.spark_versions import SparkNotFoundError, not_installed

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
ENDED_KEPT = 100
"""So many queries that have ended are shown; of more, those that ended last."""
WAIT_S = 5.0
"""So long the figures wait for all looks together."""
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
        self.looks: QueryLooks | None = None
        """At its run that is active."""

    def end_run(self) -> None:
        """Its looks are over."""
        if self.looks is not None:
            self.looks.end()
        self.in_jvm = self.looks = None


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
            query.end_run()
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
            query.end_run()
            if event.exception is not None:
                query.failures += 1
                query.last_failure = _Failure(event.exception, getattr(event, "errorClassOnException", None))
            self._forget_ended(query)

    def take_running(self, active: Iterable[Any]) -> None:
        """Note queries that were started before this listener was added."""
        for running in active:
            ids = UUID(str(running.id)), UUID(str(running.runId))
            name, in_jvm = running.name, getattr(running, "_jsq", None)
            found = None if in_jvm is None else in_jvm.lastProgress()
            with self._lock:
                query = self._query(*ids, name)
                if query.run_id != ids[1] or not query.is_active:  # it has ended meanwhile
                    continue
                query.in_jvm = query.in_jvm or in_jvm
                if query.progress is None and found is not None:
                    query.progress = StreamingQueryProgress.fromJObject(found)

    def _query(self, query_id: UUID, run_id: UUID, name: str | None) -> _Query:
        query = self._known.setdefault(query_id, _Query(query_id, run_id, name))
        query.name = query.name or name
        return query

    def _forget_ended(self, ended: _Query) -> None:
        """Forget those that ended first, where there are too many."""
        self._known[ended.query_id] = self._known.pop(ended.query_id)  # they stand in the order of their ends
        all_ended = [each.query_id for each in self._known.values() if not each.is_active]
        for query_id in all_ended[:-ENDED_KEPT]:
            del self._known[query_id]
            self.reports.pop(query_id, None)

    # What is asked for

    def figures(self) -> list[QueryFigures]:
        """All queries that are known, by name. Waits `WAIT_S` at most; the lag of a query that is still looked at then is unknown."""
        with self._lock:
            queries = [copy.copy(query) for query in self._known.values()]
        looks = [self._begin(query) for query in queries]
        until_s = time.monotonic() + WAIT_S
        found = [
            _figures_of(query, _of_last_batch(query) if look is None else self._result(query, look, until_s))
            for query, look in zip(queries, looks, strict=True)
        ]
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

    # Looks

    def _begin(self, query: _Query) -> Future[Behind] | None:
        """The look at a query; None where none is possible. `query` is a copy."""
        if query.progress is None or query.in_jvm is None:
            return None
        try:
            return self._looks_of(query).begin(query.progress)
        except Exception as error:  # of py4j
            failed: Future[Behind] = Future()
            failed.set_exception(error)
            return failed

    def _looks_of(self, query: _Query) -> QueryLooks:
        if query.looks is not None:
            return query.looks
        made = QueryLooks(source_options(query.in_jvm))
        with self._lock:
            known = self._known.get(query.query_id)
            if known is None or known.run_id != query.run_id or not known.is_active:
                made.end()
                return made
            known.looks = known.looks or made
            return known.looks

    def _result(self, query: _Query, look: Future[Behind], until_s: float) -> Behind:
        trouble, found = None, UNKNOWN
        try:
            found = look.result(max(0.0, until_s - time.monotonic()))
        except TimeoutError:
            trouble = "no answer in time"
        except Exception as error:  # the other figures are shown all the same
            trouble = str(error)
        with self._lock:
            known = self._known.get(query.query_id)
            is_new = trouble is not None and known is not None and known.trouble != trouble
            if known is not None:
                known.trouble = trouble
        if is_new:
            _LOG.warning("query %s: its lag is unknown: %s", query.name or query.query_id, trouble)
        return found


def _figures_of(query: _Query, behind: Behind) -> QueryFigures:
    progress, failure = query.progress, query.last_failure
    rates: tuple[float | None, float | None, float | None] = (None, None, None)
    if progress is not None:
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


def _of_last_batch(query: _Query) -> Behind:
    """Of a query that runs and cannot be looked at: what its source said when its last batch was planned."""
    if query.progress is None or not query.is_active:
        return UNKNOWN
    return UNKNOWN._replace(**_told(LagReport.of(query.progress)))


def _told(report: LagReport) -> dict[str, int | None]:
    if not report.lags:
        return {}
    total = total_lag(report.lags)
    return {"rows": total.rows, "bytes": total.bytes, "oldest_ms": 0 if total.rows == 0 else None}


def _rate(value: float | None) -> float | None:
    """Spark has NaN for a rate over no time."""
    return None if value is None or value != value else value


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
