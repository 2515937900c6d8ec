"""The page that Prometheus reads, by prometheus_client: text, and an HTTP server. Java: PrometheusHttpServer of OpenTelemetry.

    page = Page(lambda: families, {"cluster": "DefaultCluster", "node_id": "broker-a", "node_type": "broker"})
    with page.serve("127.0.0.1", 5557) as served: ...     # http://127.0.0.1:5557/metrics

prometheus_client is loaded where a page is made; without it `PrometheusNotFoundError` says how to install it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from socket import SHUT_RDWR
from threading import Thread
from typing import TYPE_CHECKING, Any

from spark_mq.prometheus.metric import Distribution, Family, Kind, Metric
from storage.names import plain_host

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

Collect = Callable[[], Iterable[Family]]


class PrometheusNotFoundError(ImportError):
    """prometheus_client is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "prometheus_client is not installed: pip install 'spark_mq[metrics]'", name="prometheus_client"
        )


class Page:
    """What is collected when the page is read. A collector of prometheus_client: any registry takes it, also yours."""

    def __init__(self, collect: Collect, labels: Mapping[str, str] | None = None, *, scope: str | None = None) -> None:
        """`collect` gives the families of the moment, from any thread. `labels` are common to all series.

        With `scope` the page has otel_scope_name on each series, otel_scope_info and target_info, as the page of an Apache broker.
        Raises PrometheusNotFoundError.
        """
        require_prometheus()
        self._collect = collect
        self._labels = dict(labels or {})
        self._scope = scope

    def collect(self) -> Iterator[Any]:
        """The families as prometheus_client takes them."""
        from prometheus_client.core import GaugeMetricFamily

        common = self._labels
        if self._scope is not None:
            target = GaugeMetricFamily("target_info", "Target metadata")
            target.add_metric((), 1)
            scope = GaugeMetricFamily("otel_scope_info", "Scope metadata", labels=("otel_scope_name",))
            scope.add_metric((self._scope,), 1)
            yield from (target, scope)
            common = {"otel_scope_name": self._scope, **common}
        for metric, series in _joined(self._collect()):
            if series:  # as of OpenTelemetry: what has no series is not named
                yield _shown(metric, series, common)

    def text(self) -> str:
        """The page in Prometheus' text format 0.0.4."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry()).decode()

    def serve(self, host: str, port: int) -> ServedPage:
        """Serve it until `close`; port 0 = any that is free. Raises OSError for an address that cannot be used."""
        from prometheus_client import start_http_server

        server, thread = start_http_server(port, plain_host(host), self._registry())
        return ServedPage(server, thread)

    def _registry(self) -> Any:
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry


class ServedPage:
    """A page that is served by threads of its own. A context manager that closes it."""

    def __init__(self, server: Any, thread: Thread) -> None:
        self._server = server
        self._thread = thread
        host, port = server.server_address[:2]
        self.address: tuple[str, int] = (str(host), int(port))

    def close(self) -> None:
        """Serve no more."""
        with suppress(OSError):  # where it does nothing the server's thread looks each half second whether it is to end
            self._server.socket.shutdown(SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()
        with suppress(RuntimeError):
            self._thread.join()

    def __enter__(self) -> ServedPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_prometheus() -> None:
    """Raises PrometheusNotFoundError where prometheus_client cannot be imported."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise PrometheusNotFoundError from None


def _joined(families: Iterable[Family]) -> Iterator[tuple[Metric, list[tuple[tuple[str, ...], float | Distribution]]]]:
    """Families of one metric become one, because a page may name a metric only once."""
    found: dict[str, tuple[Metric, list[tuple[tuple[str, ...], float | Distribution]]]] = {}
    for metric, series in families:
        found.setdefault(metric.name, (metric, []))[1].extend(series)
    yield from found.values()


def _shown(
    metric: Metric, series: Iterable[tuple[tuple[str, ...], float | Distribution]], common: Mapping[str, str]
) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    outer = {**common, **dict(metric.fixed)}
    outer = {name: value for name, value in outer.items() if name not in metric.labels}
    names = (*outer, *metric.labels)
    values = tuple(map(_encodable, outer.values()))
    if metric.kind is Kind.HISTOGRAM:
        shown = HistogramMetricFamily(metric.name, metric.help, labels=names)
        bounds = [*map(str, metric.bounds), "+Inf"]  # as Apache's brokers write them, or queries would not add them up
        for labels, value in series:
            assert isinstance(value, Distribution)
            shown_labels = (*values, *map(_encodable, labels))
            shown.add_metric(shown_labels, list(zip(bounds, value.cumulative, strict=True)), value.sum)
        return shown
    made = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    plain = made(metric.name, metric.help, labels=names)
    for labels, value in series:
        assert not isinstance(value, Distribution)
        plain.add_metric((*values, *map(_encodable, labels)), value)
    return plain


def _encodable(text: str) -> str:
    r"""The text as UTF-8 can hold it: a surrogate without its pair, which any client can send, is shown as \udXXX.

    Departure: Java shows all of them as "?", so that series of different names may be alike.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
