"""The page of a broker's metrics: what is counted where metricsExporterType=PROM, and the server for Prometheus.

Java: BrokerMetricsManager.init and shutdown.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_mq.broker.broker import Broker
from spark_mq.broker.broker_metrics import BrokerMetrics, TimerState
from spark_mq.broker.gauges import BrokerGauges
from spark_mq.broker_server.settings import Configuration
from spark_mq.prometheus.metric import Family
from spark_mq.prometheus.page import Page, PrometheusNotFoundError, require_prometheus
from spark_mq.prometheus.rocketmq import SCOPE
from spark_mq.remoting_server.channel import Answered
from spark_mq.remoting_server.server import ListenError
from storage.errors import ConfigurationError
from storage.names import address_text

_LOG = logging.getLogger(__name__)


class MetricsPage:
    """A process' page, from now until `close`. It stays at its address while the broker behind it changes its role.

    So an address that is taken ends the start of a process, as in Java, and never the opening of a store later. The counters go on over
    changes of role; gauges are shown from `show` to `hide`. Thread-safe: the broker is looked at once at a time, and reads of the page
    that come meanwhile share the next look.
    """

    def __init__(self, configuration: Configuration) -> None:
        """Raises ConfigurationError without prometheus_client, ListenError."""
        settings = configuration.metrics
        try:
            require_prometheus()
        except PrometheusNotFoundError as error:
            raise ConfigurationError(configuration.store.file, None, "metricsExporterType", str(error)) from None
        self.metrics = BrokerMetrics(
            broker_name=configuration.broker_name,
            cluster_name=configuration.store.identity.broker_cluster_name,
            series_most=settings.series_most,
        )
        """What the broker counts for the page."""
        self._shown: tuple[BrokerGauges, Callable[[], int]] | None = None
        self._requests = threading.Lock()
        self._requested = 0
        self._looking = threading.Lock()
        self._seen = 0
        """How many requests of the page had come when `_families` was begun."""
        self._families: list[Family] = []
        page = Page(self.families, common_labels(configuration), scope=SCOPE)
        host = settings.host.strip() or configuration.own_identity.broker_ip1 or configuration.server.bind_address
        try:
            self._served = page.serve(host, settings.port)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ListenError(host, settings.port, f"{reason} (metricsPromExporterPort)") from None
        self.address = self._served.address
        """Where Prometheus reads it."""
        _LOG.info("metrics: http://%s/metrics", address_text(*self.address))

    @classmethod
    def of(cls, configuration: Configuration) -> MetricsPage | None:
        """The page, if the configuration has one. Raises as `__init__`."""
        return cls(configuration) if configuration.metrics.is_on else None

    def show(self, broker: Broker, clock: Callable[[], int]) -> None:
        """Show this broker's gauges from now on. `clock` gives milliseconds."""
        self.metrics.timer = TimerState()
        self._shown = broker.gauges(self.metrics), clock

    def hide(self) -> None:
        """Show counters alone: the broker closes. On return its store is read no more."""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown[0].end()
            with self._looking:
                pass

    def close(self) -> None:
        """Serve no more."""
        self.hide()
        self._served.close()

    def families(self) -> list[Family]:
        """What the page shows now."""
        with self._requests:
            self._requested += 1
            own = self._requested
        with self._looking:
            if self._seen < own:
                requested = self._requested
                self._families = self._look()
                self._seen = requested
            return self._families

    def _look(self) -> list[Family]:
        shown = self._shown
        if shown is None:
            return list(self.metrics.counters.families())
        gauges, clock = shown
        return list(gauges.families(clock()))


def answers_of(metrics: BrokerMetrics | None) -> Answered | None:
    """A callable that counts each answer of a broker's server in `metrics`; None without metrics."""
    if metrics is None:
        return None

    def note(code: int, answer: int, result: str, seconds: float, times: int, was_suspended: bool) -> None:
        metrics.answered(code, answer, result, seconds * 1_000, times, was_suspended=was_suspended)

    return note


def common_labels(configuration: Configuration) -> dict[str, str]:
    """Labels of all series of a broker. Java: BrokerMetricsManager.LABEL_MAP."""
    delta = {"aggregation": "delta"} if configuration.metrics.in_delta else {}
    own = {
        "node_type": "broker",
        "cluster": configuration.store.identity.broker_cluster_name,
        "node_id": configuration.broker_name,
    }
    return {**configuration.metrics.labels, **delta, **own}
