"""The command `exporter`: a page for Prometheus about clusters of any release, or about stores on a disk.

A scrape is one look of `spark_mq/lag`: for a cluster of B brokers 2 B + 1 requests, and one for each group and topic that is behind
(`spark_mq/lag/of_cluster.py` has the table). Names are those of a broker's own page, so that one dashboard shows both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Protocol

import typer

from spark_mq.cli.places import Brokers
from spark_mq.cli.stores import ReadPath, open_cluster
from spark_mq.client.errors import ClientError
from spark_mq.command_options import NO_CLUSTER, Conf, Connection
from spark_mq.lag.figures import LagReport, QueueLag, Reader
from spark_mq.prometheus import queries, rocketmq
from spark_mq.prometheus.metric import Family, Metric, family
from spark_mq.prometheus.page import Page, PrometheusNotFoundError, require_prometheus
from spark_mq.terminal import CommandError, also_unread, end_with, say, stop_on_signal
from storage.errors import StorageError
from storage.names import RETRY_PREFIX, is_system_group, is_system_topic

PORT = 5_557
"""Java: metricsPromExporterPort of a broker."""
_LOOK_AGAIN_SECONDS = 1.0
"""Scrapes that come closer together share a look."""
_WAIT_SECONDS = 0.2
_LOG = logging.getLogger(__name__)


class Lag(Protocol):
    """Who is behind: `ClusterLag`, or `StoreLag`."""

    def look(self) -> LagReport: ...


class Looks:
    """One look at a time, shared by scrapes that come together. Thread-safe; a failed look is an error in the log, and `up` is 0."""

    def __init__(self, lag: Lag, clusters: Callable[[], Mapping[str, str]]) -> None:
        """`clusters` says which cluster each broker belongs to."""
        self._lag = lag
        self._clusters = clusters
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._families: list[Family] = []

    def families(self) -> Iterator[Family]:
        """What the page shows."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _LOOK_AGAIN_SECONDS:
                try:
                    self._families = self.look()
                except Exception as error:  # Prometheus gets a page all the same, and it says that nothing is known
                    is_known = isinstance(error, ClientError | StorageError | OSError)
                    trace = None if is_known else error
                    _LOG.error("nothing is known of the lag: %s: %s", type(error).__name__, error, exc_info=trace)
                    self._families = [family(queries.EXPORTER_UP, [((), 0)])]
                self._looked_at = time.monotonic()
            found = self._families
        yield from found

    def look(self) -> list[Family]:
        """Look now; what is missing is said in the log. Raises ClientError, StorageError, OSError."""
        found, errors = self.look_once()
        for error in errors:
            _LOG.error("some lag is missing: %s: %s", type(error).__name__, error)
        return found

    def look_once(self) -> tuple[list[Family], tuple[Exception, ...]]:
        """Look now; and why some lag is missing. Raises ClientError, StorageError, OSError."""
        began = time.monotonic()
        report = self._lag.look()
        brokers = {queue.queue.broker_name for group in report.groups for queue in group.queues}
        if not brokers <= self._known.keys():
            self._known = dict(self._clusters())
        families = [
            *lag_families(report, self._known),
            family(queries.EXPORTER_UP, [((), int(not report.errors))]),
            family(queries.EXPORTER_REQUESTS, [((), report.requests)]),
            family(queries.EXPORTER_SECONDS, [((), time.monotonic() - began)]),
        ]
        return families, report.errors


def lag_families(report: LagReport, clusters: Mapping[str, str]) -> Iterator[Family]:
    """A look as metrics: a series for each group, topic and broker. What is unknown has no series. Pure.

    Groups that are offline are there, and topics of retries (is_retry="true"); a broker's own page has neither.
    """
    of_group: dict[tuple[str, str, str], list[QueueLag]] = {}
    of_query: dict[Reader, list[QueueLag]] = {}
    for group in report.groups:
        for lag in group.queues:
            if group.reader.kind == "group":
                of_group.setdefault((lag.queue.broker_name, group.reader.name, lag.queue.topic), []).append(lag)
            else:
                of_query.setdefault(group.reader, []).append(lag)
    rows = sorted(of_group.items())
    yield _of_groups(rocketmq.LAG_MESSAGES, clusters, rows, lambda lags: _sum(lag.lag for lag in lags))
    yield _of_groups(rocketmq.LAG_LATENCY, clusters, rows, lambda lags: _most(lag.oldest_unread_ms for lag in lags))
    yield _of_groups(queries.LAG_BYTES, clusters, rows, lambda lags: _sum(lag.bytes for lag in lags))
    yield _of_groups(queries.LAG_UNKNOWN, clusters, rows, lambda lags: sum(lag.lag is None for lag in lags))
    yield _of_queries(queries.QUERY_LAG_ROWS, of_query, lambda lags: [lag.lag for lag in lags], _sum)
    yield _of_queries(queries.QUERY_LAG_BYTES, of_query, lambda lags: [lag.bytes for lag in lags], _sum)
    yield _of_queries(
        queries.QUERY_OLDEST,
        of_query,
        lambda lags: [lag.oldest_unread_ms for lag in lags],
        lambda ages: _seconds(_most(ages)),
    )


_Value = Callable[[list[QueueLag]], float | None]


def _of_groups(
    metric: Metric,
    clusters: Mapping[str, str],
    rows: list[tuple[tuple[str, str, str], list[QueueLag]]],
    value_of: _Value,
) -> Family:
    """With the labels of a broker's page. Labels that name the broker stand at each series here."""
    labelled = Metric(metric.name, metric.kind, metric.help, ("cluster", "node_id", "node_type", *metric.labels))
    found = []
    for (broker, group, topic), lags in rows:
        if (value := value_of(lags)) is None:
            continue
        cluster = clusters.get(broker, "")
        is_system = is_system_group(group) or is_system_topic(topic, broker_name=broker, cluster_name=cluster)
        own = {
            "consumer_group": group,
            "topic": topic,
            "is_retry": _letters(topic.startswith(RETRY_PREFIX)),
            "is_system": _letters(is_system),
        }
        found.append(((cluster, broker, "broker", *(own[name] for name in metric.labels)), value))
    return family(labelled, found)


def _of_queries(
    metric: Metric,
    of_query: Mapping[Reader, list[QueueLag]],
    values_of: Callable[[list[QueueLag]], list[int | None]],
    total: Callable[[list[int | None]], float | None],
) -> Family:
    """A query over all its queues. It has no series while one of them is unknown, as on the page of its session."""
    values = ((reader.name, values_of(lags)) for reader, lags in of_query.items())
    totals = ((name, total(found)) for name, found in values if None not in found)
    return family(metric, (((name, ""), value) for name, value in totals if value is not None))


def _letters(value: bool) -> str:
    return "true" if value else "false"


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _seconds(value_ms: int | None) -> float | None:
    return None if value_ms is None else value_ms / 1_000


def exporter(
    path: ReadPath = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="Its port; 0 = any that is free.")
    ] = PORT,
    once: Annotated[
        bool, typer.Option("--once", help="Print the page once and end, as node_exporter's text files need it.")
    ] = False,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option("--checkpoint", metavar="DIR", help="The checkpoint of a Spark query; may be repeated."),
    ] = None,
    brokers: Brokers = None,
    conf: Conf = None,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Serve the lag of groups and queries to Prometheus.

    Names and labels are those of a broker's own metrics (rocketmq_consumer_lag_messages, rocketmq_consumer_lag_latency_milliseconds).
    The brokers may be Apache's of any release. A scrape looks anew; SIGTERM and Ctrl-C end it. With --once the exit code is 1 where
    something of the page is missing, and a line says why.
    """
    try:
        require_prometheus()
    except PrometheusNotFoundError as error:
        raise CommandError(str(error), None) from None
    directories, expected = checkpoint or (), brokers or ()
    if connection.is_chosen(path):
        from spark_mq.client.admin import Admin  # a store needs no client
        from spark_mq.lag.of_cluster import ClusterLag

        settings = connection.settings()
        with Admin(settings) as admin, ClusterLag(settings, checkpoints=directories, brokers=expected) as lag:

            def clusters() -> Mapping[str, str]:
                table = admin.cluster_info().cluster_address_table
                return {broker: cluster for cluster, brokers in table.items() for broker in brokers}

            _run(Looks(lag, clusters), host, port, once=once)
        return
    from spark_mq.lag.of_stores import StoreLag

    stores = open_cluster(path or "", conf)
    try:
        names = {name: store.config.identity.broker_cluster_name for name, store in stores.stores.items()}
        of_stores = StoreLag(stores, checkpoints=directories, brokers=expected, with_bytes=True)
        _run(Looks(of_stores, lambda: names), host, port, once=once)
    finally:
        stores.close()


def _run(looks: Looks, host: str, port: int, *, once: bool) -> None:
    if once:
        found, errors = looks.look_once()
        typer.echo(Page(lambda: found).text(), nl=False)
        end_with(errors)
        return
    looks.look()  # what is wrong now ends the command; later it is a line of the log
    page = Page(looks.families)
    try:
        served = page.serve(host, port)
    except OSError as error:
        where = "another process may listen there: --host and --port say where"
        raise CommandError(f"it cannot listen at {host}:{port}: {error.strerror or error}", where) from None
    with served, stop_on_signal() as is_stopping:
        with also_unread():
            say(f"metrics: http://{served.address[0]}:{served.address[1]}/metrics")
        while not is_stopping():
            time.sleep(_WAIT_SECONDS)
