"""The command `exporter`: the lag of a cluster and of stores, as Prometheus reads it."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_mq.cli import app
from spark_mq.cli.exporter import Looks, lag_families
from spark_mq.client.errors import ClientError
from spark_mq.lag.figures import GroupLag, LagReport, QueueLag, Reader
from spark_mq.prometheus.page import Page
from spark_mq.source.offsets import QueueId
from tests.support.fixture_stores import Fixture
from tests.support.metric_pages import MetricPage


def queue_lag(
    group: str,
    broker: str,
    queue_id: int,
    lag: int | None,
    age_ms: int | None,
    *,
    topic: str = "T",
    kind: str = "group",
) -> QueueLag:
    reader = Reader(group, kind)  # type: ignore[arg-type]
    return QueueLag(reader, QueueId(topic, broker, queue_id), 100, None, lag, None, age_ms, None, None, None)


def report(*queues: QueueLag, errors: tuple[Exception, ...] = ()) -> LagReport:
    by_reader: dict[Reader, list[QueueLag]] = {}
    for each in queues:
        by_reader.setdefault(each.reader, []).append(each)
    groups = tuple(
        GroupLag(reader, ("T",), tuple(lags), 0, None, None, None, None, None, None, math.inf)
        for reader, lags in by_reader.items()
    )
    return LagReport(1_000, groups, errors, 7)


def shown(found: LagReport) -> MetricPage:
    return MetricPage.of(Page(lambda: lag_families(found, {"a": "C1", "b": "C2"})).text())


def test_a_series_is_the_sum_of_a_brokers_queues_and_the_oldest_of_their_messages() -> None:
    page = shown(
        report(
            queue_lag("G", "a", 0, 5, 100),
            queue_lag("G", "a", 1, 7, 4_000),
            queue_lag("G", "b", 0, 1, 0),
        )
    )
    name = "rocketmq_consumer_lag_messages"
    assert page.value(name, cluster="C1", node_id="a", consumer_group="G", topic="T", is_retry="false") == 12
    assert page.value(name, cluster="C2", node_id="b", node_type="broker", is_system="false") == 1
    assert page.value("rocketmq_consumer_lag_latency_milliseconds", node_id="a") == 4_000
    assert page.types[name] == "gauge"


def test_what_is_unknown_has_no_series_and_is_counted() -> None:
    page = shown(
        report(queue_lag("G", "a", 0, None, None), queue_lag("H", "a", 0, None, None), queue_lag("H", "a", 1, 3, None))
    )
    name = "rocketmq_consumer_lag_messages"
    assert page.value(name, consumer_group="G") is None
    assert page.value(name, consumer_group="H") == 3
    assert page.value("rocketmq_consumer_lag_latency_milliseconds") is None
    assert page.value("spark_mq_consumer_lag_unknown_queues", consumer_group="G") == 1
    assert page.value("spark_mq_consumer_lag_unknown_queues", consumer_group="H") == 1


def test_a_query_with_an_unknown_queue_has_no_series() -> None:
    """As on the page of its session: the sum of the others would be too small."""
    known, unknown = queue_lag("q", "a", 0, 9, 2_500, kind="query"), queue_lag("q", "b", 0, None, None, kind="query")
    names = "spark_mq_query_lag_rows", "spark_mq_query_oldest_unread_seconds"
    assert [shown(report(known)).value(name, query="q") for name in names] == [9, 2.5]
    assert [shown(report(known, unknown)).value(name, query="q") for name in names] == [None, None]


def test_retries_system_groups_and_queries_are_told_apart() -> None:
    page = shown(
        report(
            queue_lag("G", "a", 0, 2, 0, topic="%RETRY%G"),
            queue_lag("CID_RMQ_SYS_x", "a", 0, 3, 0),
            queue_lag("orders", "a", 0, 9, 2_500, kind="query"),
        )
    )
    assert page.value("rocketmq_consumer_lag_messages", topic="%RETRY%G", is_retry="true") == 2
    assert page.value("rocketmq_consumer_lag_messages", consumer_group="CID_RMQ_SYS_x", is_system="true") == 3
    assert page.value("rocketmq_consumer_lag_messages", consumer_group="orders") is None
    assert page.value("spark_mq_query_lag_rows", query="orders") == 9
    assert page.value("spark_mq_query_oldest_unread_seconds", query="orders") == 2.5


class Answers:
    """Looks that were prepared; an exception is raised."""

    def __init__(self, *looks: LagReport | Exception) -> None:
        self._left = list(looks)

    def look(self) -> LagReport:
        found = self._left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def test_scrapes_that_come_together_share_a_look_and_a_failed_one_says_that_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr("spark_mq.cli.exporter.time.monotonic", lambda: now[0])
    broken = report(queue_lag("G", "a", 0, 4, 0), errors=(ClientError("b is gone"),))
    looks = Looks(
        Answers(report(queue_lag("G", "a", 0, 5, 0)), ClientError("no name server"), broken), lambda: {"a": "C"}
    )

    def scrape() -> MetricPage:
        return MetricPage.of(Page(looks.families).text())

    assert scrape() == scrape()
    assert scrape().value("spark_mq_exporter_up") == 1
    assert scrape().value("spark_mq_exporter_look_requests") == 7
    now[0] += 1
    assert scrape().values("spark_mq_exporter_up") == {(): 0}
    assert scrape().value("rocketmq_consumer_lag_messages") is None
    now[0] += 1
    assert scrape().value("spark_mq_exporter_up") == 0, "a broker is missing"
    assert scrape().value("rocketmq_consumer_lag_messages", cluster="C") == 4
    assert "no name server" in caplog.text


def test_a_stores_page_is_printed_once(fixture_store: Callable[[str], Fixture]) -> None:
    store = fixture_store("clean").root
    done = CliRunner().invoke(app, ["exporter", str(store), "--once"])
    assert done.exit_code == 0, done.output
    page = MetricPage.of(done.stdout)
    assert page.value("spark_mq_exporter_up") == 1
    assert page.value("spark_mq_exporter_look_requests") == 0
    groups = {
        sample.labels["consumer_group"] for sample in page.samples if sample.name == "rocketmq_consumer_lag_messages"
    }
    assert groups


def test_a_page_that_lacks_something_ends_with_1_and_the_reason(
    fixture_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    (tmp_path / "metadata").write_text('{"id": "a"}', "utf-8")  # a query without a batch
    done = CliRunner().invoke(
        app, ["exporter", str(fixture_store("clean").root), "--once", "--checkpoint", str(tmp_path)]
    )
    assert done.exit_code == 1
    page = MetricPage.of(done.stdout)
    assert page.value("spark_mq_exporter_up") == 0
    assert page.value("rocketmq_consumer_lag_messages") is not None, "what is known is there"
    assert done.stderr == f"{tmp_path}: no batch of this query is done, so how much it has not read is unknown\n"


def test_an_error_that_is_not_expected_leaves_a_page_that_says_so(caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks(Answers(RuntimeError("dictionary changed size")), dict)
    assert MetricPage.of(Page(looks.families).text()).values("spark_mq_exporter_up") == {(): 0}
    assert "dictionary changed size" in caplog.text


def test_the_page_of_a_store_is_served_until_a_signal(fixture_store: Callable[[str], Fixture]) -> None:
    store = fixture_store("clean").root
    command = [sys.executable, "-c", "from spark_mq.cli import main; main()", "exporter", str(store), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://(127\.0\.0\.1:\d+)/metrics", line)
        assert found is not None, line
        assert MetricPage.at(found[1]).value("spark_mq_exporter_up") == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_place_that_is_none_ends_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["exporter", str(tmp_path), "--once"])
    assert done.exit_code == 1
    both = CliRunner().invoke(app, ["exporter", str(tmp_path), "-n", "127.0.0.1:1"])
    assert both.exit_code == 2
    assert "not both" in both.stderr


def test_a_port_that_is_taken_is_named(fixture_store: Callable[[str], Fixture]) -> None:
    with Page(list).serve("127.0.0.1", 0) as taken:
        port = str(taken.address[1])
        done = CliRunner().invoke(app, ["exporter", str(fixture_store("clean").root), "--port", port])
    assert done.exit_code == 1
    assert f"127.0.0.1:{port}" in done.stderr
