"""Sums that many threads add to, and the page that shows them."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from spark_mq.prometheus.metric import Counters, Distribution, Kind, Metric, family
from spark_mq.prometheus.page import Page
from tests.support.metric_pages import MetricPage

SENT = Metric("t_sent_total", Kind.COUNTER, "Messages", ("topic",))
SIZE = Metric("t_size", Kind.HISTOGRAM, "Sizes", ("topic",), (10.0, 100.0))
LAG = Metric("t_lag", Kind.GAUGE, "Lag", ("topic",), fixed=(("medium", "disk"),))


def shown(counters: Counters) -> MetricPage:
    return MetricPage.of(Page(counters.families, {"node_id": "b"}).text())


def test_a_counter_adds_up_by_its_labels() -> None:
    counters = Counters()
    counters.add(SENT, ("A",), 3)
    counters.add(SENT, ("A",))
    counters.add(SENT, ("B",), 7)
    page = shown(counters)
    assert page.types["t_sent_total"] == "counter"
    assert page.values("t_sent_total") == {(("topic", "A"),): 4, (("topic", "B"),): 7}


def test_a_value_at_a_bound_belongs_to_its_bucket_and_many_values_count_as_each_of_them() -> None:
    one, many = Counters(), Counters()
    values = [0, 10, 11, 100, 101]
    for value in values:
        one.observe(SIZE, ("A",), value)
    many.observe_all(SIZE, ("A",), np.array(values))
    page = shown(one)
    buckets = {sample.labels["le"]: sample.value for sample in page.samples if sample.name == "t_size_bucket"}
    assert buckets == {"10.0": 2, "100.0": 4, "+Inf": 5}
    assert page.value("t_size_sum") == sum(values)
    assert page.value("t_size_count") == 5
    assert shown(many) == page


def test_nothing_is_lost_between_threads() -> None:
    counters = Counters()

    def count() -> None:
        for _ in range(2_000):
            counters.add(SENT, ("A",), 2)
            counters.observe(SIZE, ("A",), 50, 3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    page = shown(counters)
    assert page.value("t_sent_total") == 16_000
    assert page.value("t_size_count") == 24_000


def test_further_series_than_the_limit_are_not_counted_and_the_known_ones_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counters = Counters(series_most=2)
    for topic in "ABCDA":
        counters.add(SENT, (topic,))
        counters.observe(SIZE, (topic,), 1)
    page = shown(counters)
    assert page.values("t_sent_total") == {(("topic", "A"),): 2, (("topic", "B"),): 1}
    assert page.value("t_size_count") == 3
    assert [record.getMessage() for record in caplog.records] == [
        "t_sent_total has 2 series: further ones are not counted",
        "t_size has 2 series: further ones are not counted",
    ]


def test_families_of_one_metric_become_one_and_those_without_series_are_not_named() -> None:
    def families() -> list[object]:
        return [
            family(LAG, [(("A",), 1)]),
            family(SENT, []),
            family(LAG, [(("B",), 2)]),
        ]

    text = Page(families).text()  # type: ignore[arg-type]
    assert text.count("# TYPE t_lag gauge") == 1
    assert "t_sent" not in text
    assert 't_lag{medium="disk",topic="B"} 2.0' in text


def test_a_label_holds_any_text() -> None:
    name = 'a"b\\c\nd<script>é'
    counters = Counters()
    counters.add(SENT, (name,))
    text = Page(counters.families).text()
    assert 'topic="a\\"b\\\\c\\nd<script>é"' in text
    assert len([line for line in text.splitlines() if line.startswith("t_sent_total{")]) == 1


def test_a_label_that_utf_8_cannot_hold_spoils_no_page_and_stays_apart_from_others() -> None:
    r"""Any client can put "\ud800" into a header or a body in JSON."""
    counters = Counters()
    for name in ("\ud800", "\udfff", "?", "a\U0001f600"):
        counters.add(SENT, (name,))
        counters.observe(SIZE, (name,), 1)
    page = MetricPage.of(Page(counters.families, {"zone": "\udc00"}).text())
    shown = {sample.labels["topic"] for sample in page.samples if sample.name == "t_sent_total"}
    assert shown == {r"\\ud800", r"\\udfff", "?", "a\U0001f600"}, "backslashes are escaped on the page"
    assert page.value("t_size_count", zone=r"\\udc00") == 4


def test_the_page_is_served_and_what_it_shows_is_of_the_moment() -> None:
    counters = Counters()
    with Page(counters.families, scope="meter").serve("127.0.0.1", 0) as served:
        address = "{}:{}".format(*served.address)
        counters.add(SENT, ("A",))
        first = MetricPage.at(address)
        counters.add(SENT, ("A",))
        second = MetricPage.at(address)
    assert (first.value("t_sent_total"), second.value("t_sent_total")) == (1, 2)
    assert first.value("target_info") == 1
    assert {sample.labels.get("otel_scope_name") for sample in first.samples if sample.name != "target_info"} == {
        "meter"
    }
    with pytest.raises(OSError, match="refused"):
        MetricPage.at(address)


def test_a_distribution_says_how_many_values_are_at_most_each_bound() -> None:
    assert Distribution((1, 0, 4), 9.0).cumulative == [1, 1, 5]


def test_prometheus_client_is_loaded_for_a_page_alone() -> None:
    program = (
        "import sys, spark_mq, storage, spark_mq.broker.broker, spark_mq.cli.app, spark_mq.prometheus.page as page\n"
        "assert 'prometheus_client' not in sys.modules\n"
        "sys.modules['prometheus_client'] = None\n"
        "try:\n    page.Page(lambda: [])\nexcept page.PrometheusNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "prometheus_client is not installed: pip install 'spark_mq[metrics]'\n"
