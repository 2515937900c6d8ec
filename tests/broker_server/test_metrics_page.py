"""The page of metrics of a broker that runs, and the settings for it."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_mq.broker_server.controlled import ControlledBroker
from spark_mq.broker_server.grouped import GroupedBroker
from spark_mq.broker_server.metrics_page import MetricsPage
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.settings import Configuration, MetricsSettings, read_configuration
from spark_mq.broker_server.supervised import SupervisedBroker
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.producer import Producer
from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting_server.server import ListenError
from spark_mq.testing.servers import on_own_loop
from storage.epoch_times import current_time_ms
from storage.errors import ConfigurationError
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports, wait_until
from tests.support.metric_pages import MetricPage
from tests.support.own_servers import our_name_server

SETTINGS = "metricsExporterType=PROM\nmetricsPromExporterHost=127.0.0.1\nmetricsPromExporterPort=0\n"
GROUP = "enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerPeers=n0-127.0.0.1:{port};n1-127.0.0.1:2\ndLegerSelfId=n0\n"
KINDS: dict[str, tuple[Any, str]] = {
    "alone": (SupervisedBroker, ""),
    "under a controller": (ControlledBroker, "enableControllerMode=true\ncontrollerAddr=127.0.0.1:9\n"),
    "in a DLedger group": (GroupedBroker, GROUP + "namesrvAddr=127.0.0.1:9\n"),
}


def configured(root: Path, lines: str) -> Configuration:
    text = f"brokerName=b\nlistenPort={free_ports()}\nbrokerIP1=127.0.0.1\nstorePathRootDir={root}\n{lines}"
    return read_configuration(text.format(port=free_ports()).encode(), None, {})


def test_a_broker_shows_what_it_took_and_gave_and_who_is_behind(tmp_path: Path) -> None:
    more = f"{SETTINGS}metricsLabel=zone:a,rack:7\nmetricsInDelta=true\nbrokerClusterName=C\n"
    with our_name_server(tmp_path) as names:
        settings = ClientSettings((names.address,))
        with running(tmp_path / "store", free_ports(), names.address, more) as broker:
            assert broker.metrics_address is not None
            address = "{}:{}".format(*broker.metrics_address)
            with Producer(settings, "P") as producer:
                sent = [producer.send(Message("Topic", b"x" * 200, "a" if n % 3 else "b")) for n in range(30)]
                page = MetricPage.at(address)
                assert page.value("rocketmq_producer_connections", language="python") == 2, (
                    "also of CLIENT_INNER_PRODUCER"
                )
            taken = {"topic": "Topic", "message_type": "normal", "is_system": "false"}
            assert page.value("rocketmq_messages_in_total", **taken) == 30
            assert page.value("rocketmq_message_size_count", **taken) == 30
            assert page.value("rocketmq_throughput_in_total", **taken) == page.value(
                "rocketmq_message_size_sum", **taken
            )
            with PullConsumer(settings, "G") as consumer:
                consumer.subscribe("Topic")
                found: list[MessageExt] = []
                wait_until(lambda: found.extend(consumer.poll(500)) or len(found) == 30, "all are read")
                consumer.commit({result.queue: 0 for result in sent})
                page = MetricPage.at(address)
                assert page.value("rocketmq_messages_out_total", topic="Topic", consumer_group="G") == 30
                assert page.value("rocketmq_consumer_lag_messages", consumer_group="G") == 30
                assert page.value("rocketmq_consumer_inflight_messages", consumer_group="G") == 30
                assert page.value("rocketmq_consumer_ready_messages", consumer_group="G") == 0
                assert 0 < (page.value("rocketmq_consumer_lag_latency_milliseconds", consumer_group="G") or 0) < 600_000
                assert page.value("rocketmq_consumer_connections", consumer_group="G", consume_mode="pull") == 1
            with PullConsumer(settings, "Tagged") as consumer:
                consumer.subscribe("Topic", "b")
                consumer.poll(2_000, 1)
                consumer.commit({result.queue: 0 for result in sent})
                page = MetricPage.at(address)
                assert page.value("rocketmq_consumer_lag_messages", consumer_group="Tagged") == 10, (
                    "the wanted tags alone"
                )
            labels = page.label_names["rocketmq_messages_in_total"]
            assert labels == {
                *("topic", "message_type", "is_system", "cluster", "node_id", "node_type"),
                *("zone", "rack", "aggregation", "otel_scope_name"),
            }
            own = next(sample.labels for sample in page.samples if sample.name == "rocketmq_broker_permission")
            expected = {"cluster": "C", "node_id": "b", "node_type": "broker", "zone": "a", "aggregation": "delta"}
            assert expected.items() <= own.items()
            sends = {"request_code": "send_message_v2", "response_code": "success", "result": "success"}
            assert page.value("rocketmq_rpc_latency_milliseconds_count", **sends) == 30
    with pytest.raises(OSError, match="refused"):
        MetricPage.at(address)


def test_the_page_goes_by_the_brokers_clock(tmp_path: Path) -> None:
    moved_ms = 0
    text = f"brokerName=b\nlistenPort={free_ports()}\nstorePathRootDir={tmp_path / 'store'}\n{SETTINGS}"
    with our_name_server(tmp_path) as names, ExitStack() as opened:
        configuration = read_configuration(f"{text}namesrvAddr={names.address}\n".encode(), None, {})
        start = partial(RunningBroker.start, configuration, clock=lambda: current_time_ms() + moved_ms)
        broker, _ = opened.enter_context(on_own_loop(start, "broker"))
        assert broker.metrics_address is not None
        with Producer(ClientSettings((names.address,)), "P") as producer:
            sent = producer.send(Message("Topic", b"x"))
        with PullConsumer(ClientSettings((names.address,)), "G") as consumer:
            consumer.subscribe("Topic")
            wait_until(lambda: consumer.poll(500), "it is read")
            consumer.commit({sent.queue: 0})
            moved_ms = 7_200_000
            page = MetricPage.at("{}:{}".format(*broker.metrics_address))
        age_ms = page.value("rocketmq_consumer_lag_latency_milliseconds", consumer_group="G") or 0
        assert 7_200_000 <= age_ms < 10_000_000


def test_an_error_of_one_gauge_hides_no_other_and_is_said_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def changed(*_: object) -> int:
        raise RuntimeError("dictionary changed size during iteration")

    with our_name_server(tmp_path) as names:
        settings = ClientSettings((names.address,))
        with running(tmp_path / "store", free_ports(), names.address, SETTINGS) as broker:
            assert broker.metrics_address is not None
            address = "{}:{}".format(*broker.metrics_address)
            with Producer(settings, "P") as producer, PullConsumer(settings, "G") as consumer:
                sent = {topic: producer.send(Message(topic, b"x")) for topic in ("Good", "Bad")}
                for topic in sent:
                    consumer.subscribe(topic)
                found: list[MessageExt] = []
                wait_until(lambda: found.extend(consumer.poll(500)) or len(found) == 2, "both are read")
                consumer.commit({result.queue: 0 for result in sent.values()})
                whole = MetricPage.at(address)
                assert whole.value("spark_mq_broker_gauges_missing") is None
                store = broker.broker.parts.store
                behind = store.served.maximum

                def maximum(topic: str, queue_id: int) -> int:
                    return changed() if topic == "Bad" else behind(topic, queue_id)

                monkeypatch.setattr(store.served, "maximum", maximum)
                monkeypatch.setattr("spark_mq.broker.gauges.disk_room_bytes", changed)
                pages = [MetricPage.at(address) for _ in range(2)]
    for page in pages:
        assert page.value("rocketmq_consumer_lag_messages", topic="Good") == 1
        assert page.value("rocketmq_consumer_lag_messages", topic="Bad") is None
        assert page.value("rocketmq_storage_size_bytes") is None
        assert page.value("spark_mq_broker_gauges_missing", part="disk") == 1
        assert (page.value("spark_mq_broker_gauges_missing", part="lag") or 0) >= 1
        missing = {sample.name for sample in whole.samples} - {sample.name for sample in page.samples}
        assert missing == {"rocketmq_storage_size_bytes"}
    logged = [record.getMessage() for record in caplog.records if "lacks some of disk" in record.getMessage()]
    assert len(logged) == 1, "once, not once a page"


def test_without_the_setting_nothing_is_counted_or_served(tmp_path: Path) -> None:
    with running(tmp_path / "store", free_ports()) as broker:
        assert broker.metrics_address is None
        assert broker.broker.parts.traffic.metrics is None


def test_a_port_that_is_taken_ends_the_start_and_leaves_the_store_free(tmp_path: Path) -> None:
    with running(tmp_path / "one", free_ports(), "", SETTINGS) as first:
        assert first.metrics_address is not None
        taken = SETTINGS.replace("Port=0", f"Port={first.metrics_address[1]}")
        with pytest.raises(ListenError, match="in use"), running(tmp_path / "two", free_ports(), "", taken):
            raise AssertionError("it runs")
    with running(tmp_path / "two", free_ports(), "", SETTINGS):
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_that_cannot_be_served_ends_the_start_of_each_kind_of_broker(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java: BrokerMetricsManager.init at the construction of a BrokerController. Later it would keep a leader from being master."""
    broker, lines = KINDS[kind]
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = SETTINGS.replace("Port=0", f"Port={other.getsockname()[1]}")
        configuration = configured(tmp_path / "store", lines + taken)
        with (
            pytest.raises(ListenError, match=r"in use \(metricsPromExporterPort\)"),
            on_own_loop(lambda: broker.start(configuration), "broker"),
        ):
            raise AssertionError("it runs")
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with (
        pytest.raises(ConfigurationError, match=r"pip install 'spark_mq\[metrics\]'"),
        on_own_loop(lambda: broker.start(configuration), "broker"),
    ):
        raise AssertionError("it runs")
    monkeypatch.undo()
    with on_own_loop(lambda: broker.start(configuration), "broker"):
        pass


def test_a_page_stays_where_it_is_and_its_counters_go_on_while_the_broker_is_opened_again(tmp_path: Path) -> None:
    with our_name_server(tmp_path) as names:
        configuration = configured(tmp_path / "store", f"namesrvAddr={names.address}\n{SETTINGS}")
        page = MetricsPage(configuration)
        address = "{}:{}".format(*page.address)
        try:
            for count in (1, 2):
                start = partial(RunningBroker.start, configuration, page=page)
                with (
                    on_own_loop(start, "broker") as (broker, _),
                    Producer(ClientSettings((names.address,)), "P") as producer,
                ):
                    assert broker.metrics_address == page.address
                    producer.send(Message("Topic", b"x"))
                    shown = MetricPage.at(address)
                    assert shown.value("rocketmq_messages_in_total", topic="Topic") == count
                    assert shown.value("rocketmq_broker_permission") == 6
                between = MetricPage.at(address)
                assert between.value("rocketmq_messages_in_total", topic="Topic") == count
                assert between.value("rocketmq_broker_permission") is None, "no broker is behind the page"
        finally:
            page.close()
    with pytest.raises(OSError, match="refused"):
        MetricPage.at(address)


class _Slow:
    """Gauges whose look ends when it may."""

    def __init__(self) -> None:
        self.may_end, self.looks, self.has_ended = threading.Event(), 0, False

    def families(self, now_ms: int) -> list[Any]:
        self.looks += 1
        assert self.may_end.wait(30)
        return []

    def end(self) -> None:
        self.has_ended = True


def test_reads_that_come_during_a_look_share_the_next_one_and_a_broker_that_closes_waits_for_its_end(
    tmp_path: Path,
) -> None:
    page, slow = MetricsPage(configured(tmp_path / "store", SETTINGS)), _Slow()
    try:
        page.show(SimpleNamespace(gauges=lambda metrics: slow), lambda: 0)  # type: ignore[arg-type]
        with ThreadPoolExecutor(9) as pool:
            first = pool.submit(page.families)
            wait_until(lambda: slow.looks == 1, "it looks")
            others = [pool.submit(page.families) for _ in range(7)]
            wait_until(lambda: page._requested == 8, "they wait")
            slow.may_end.set()
            for each in (first, *others):
                each.result(30)
            assert slow.looks == 2
            slow.may_end.clear()
            pool.submit(page.families)
            wait_until(lambda: slow.looks == 3, "it looks")
            hidden = pool.submit(page.hide)
            wait_until(lambda: slow.has_ended, "the look is told to end")
            assert not hidden.done()
            slow.may_end.set()
            hidden.result(30)
    finally:
        page.close()


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("metricsExporterType=OTLP_GRPC", "OTLP_GRPC and LOG are not supported"),
        ("metricsExporterType=3", "OTLP_GRPC and LOG are not supported"),
        ("metricsExporterType=prom", "metricsExporterType: 'prom': this broker serves metrics with PROM"),
        ("metricsPromExporterPort=70000", "a port is 0 to 65535"),
        ("metricsLabel=zone", "labels are name:value,name:value"),
        ("metricsLabel=zo-ne:a", "labels are name:value,name:value"),
        ("metricsOtelCardinalityLimit=0", "it must be greater than 0"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_refused_by_its_name(line: str, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule) as refused:
        read_configuration(f"{line}\n".encode(), "broker.conf", {})
    assert refused.value.key == line.partition("=")[0]


@pytest.mark.parametrize(("text", "is_on"), [("PROM", True), ("2", True), ("DISABLE", False), ("0", False)])
def test_javas_names_and_numbers_of_exporters_are_taken(text: str, is_on: bool) -> None:
    found = read_configuration(f"metricsExporterType={text}\n".encode(), None, {})
    assert found.metrics.is_on is is_on


def test_the_defaults_are_javas() -> None:
    assert MetricsSettings() == MetricsSettings("DISABLE", "", 5_557, "", False, 50_000)
