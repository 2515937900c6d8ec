"""The page of a running broker's metrics: what is counted where metricsExporterType=PROM, and the server for Prometheus.

Java: BrokerMetricsManager.init and shutdown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from spark_mq.broker.broker import Broker
from spark_mq.broker.broker_metrics import BrokerMetrics
from spark_mq.broker_server.settings import Configuration
from spark_mq.prometheus.metric import Family
from spark_mq.prometheus.page import Page, PrometheusNotFoundError, ServedPage, require_prometheus
from spark_mq.prometheus.rocketmq import SCOPE
from spark_mq.remoting_server.channel import Answered
from spark_mq.remoting_server.server import ListenError
from storage.epoch_times import current_time_ms
from storage.errors import ConfigurationError
from storage.names import address_text

_LOG = logging.getLogger(__name__)


def new_metrics(configuration: Configuration) -> BrokerMetrics | None:
    """What the broker counts for its page; None if it has no page. Raises ConfigurationError without prometheus_client."""
    if not configuration.metrics.is_on:
        return None
    try:
        require_prometheus()
    except PrometheusNotFoundError as error:
        raise ConfigurationError(configuration.store.file, None, "metricsExporterType", str(error)) from None
    return BrokerMetrics(
        broker_name=configuration.broker_name,
        cluster_name=configuration.store.identity.broker_cluster_name,
        series_most=configuration.metrics.series_most,
    )


def answers_of(metrics: BrokerMetrics | None) -> Answered | None:
    """What notes the answers of a broker's server; None if nothing does."""
    if metrics is None:
        return None

    def note(code: int, answer: int, result: str, seconds: float, times: int, is_late: bool) -> None:
        metrics.answered(code, answer, result, seconds * 1_000, times, has_waited=is_late)

    return note


def serve_metrics(
    broker: Broker, metrics: BrokerMetrics, configuration: Configuration, clock: Callable[[], int] = current_time_ms
) -> ServedPage:
    """The page of that broker, from now on until it is closed. Raises ListenError."""
    settings, gauges = configuration.metrics, broker.gauges(metrics)

    def families() -> Iterator[Family]:
        return gauges.families(clock())

    page = Page(families, common_labels(configuration), scope=SCOPE)
    host = settings.host.strip() or configuration.own_identity.broker_ip1 or configuration.server.bind_address
    try:
        served = page.serve(host, settings.port)
    except OSError as error:
        raise ListenError(host, settings.port, error.strerror or str(error)) from None
    _LOG.info("metrics: http://%s/metrics", address_text(*served.address))
    return served


def common_labels(configuration: Configuration) -> dict[str, str]:
    """Labels of all series of a broker. Java: BrokerMetricsManager.LABEL_MAP."""
    delta = {"aggregation": "delta"} if configuration.metrics.in_delta else {}
    own = {
        "node_type": "broker",
        "cluster": configuration.store.identity.broker_cluster_name,
        "node_id": configuration.broker_name,
    }
    return {**configuration.metrics.labels, **delta, **own}
