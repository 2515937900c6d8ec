"""The dashboards of conf/grafana ask only for what is served, by its labels; those of others get what Apache's page gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from spark_mq.prometheus.metric import Kind
from spark_mq.prometheus.queries import EXPORTER_METRICS, QUERY_METRICS
from spark_mq.prometheus.rocketmq import METRICS
from tests.prometheus.test_apaches_names import PAGE
from tests.support.places import PROJECT
from tests.support.promql import Line, answer_of

DASHBOARDS = sorted((PROJECT / "conf" / "grafana").glob("*.json"))
OF_BROKERS = {"cluster", "node_id", "node_type"}
OF_PROMETHEUS = {"job", "instance", "__name__"}


def lines_of(name: str, kind: str, labels: set[str]) -> Iterator[tuple[str, Line]]:
    """The lines of a metric by their names."""
    known = frozenset(labels | OF_PROMETHEUS)
    if kind == Kind.HISTOGRAM.value:
        yield f"{name}_bucket", Line(True, known | {"le"})
        yield f"{name}_sum", Line(True, known)
        yield f"{name}_count", Line(True, known)
    else:
        yield name, Line(kind == Kind.COUNTER.value, known)


def served() -> dict[str, Line]:
    """What the pages of this package have."""
    found: dict[str, Line] = {}
    for metric in (*METRICS, *QUERY_METRICS, *EXPORTER_METRICS):
        is_of_broker = not metric.name.startswith(("spark_mq_query", "spark_mq_exporter"))
        labels = {*metric.labels, *dict(metric.fixed), *(OF_BROKERS if is_of_broker else ())}
        found |= lines_of(metric.name, metric.kind.value, labels)
    return found


def served_by_apache() -> dict[str, Line]:
    """What the page of an Apache broker has."""
    found: dict[str, Line] = {}
    for name, kind in PAGE.shown_types.items():
        found |= lines_of(name, kind, set(PAGE.label_names[name]))
    return found


SERVED = served()


def questions(dashboard: dict[str, Any]) -> Iterator[tuple[str, set[str]]]:
    """Each question, and the labels that the legend shows of its answer."""
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"], set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"], set()


def faults_of(question: str, shown: set[str] | None = None) -> list[str]:
    """What is wrong with a question; none where it can be answered, and the answer has the labels that are shown."""
    labels, faults = answer_of(question, SERVED)
    return [*faults, *(f"no label {label} to show" for label in sorted((shown or set()) - labels))]


def test_there_are_dashboards() -> None:
    assert [path.stem for path in DASHBOARDS] == ["rocketmq-broker", "rocketmq-lag", "spark-mq-queries"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_asks_only_for_what_is_served(path: Any) -> None:
    dashboard = json.loads(path.read_text("utf-8"))
    found = {question: faults for question, shown in questions(dashboard) if (faults := faults_of(question, shown))}
    assert not found


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_its_panels_do_not_overlap_and_its_variables_are_there(path: Any) -> None:
    dashboard = json.loads(path.read_text("utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)\b", json.dumps(dashboard["panels"])))
    assert used <= variables


@pytest.mark.parametrize(
    ("question", "faults"),
    [
        ("sum(rocketmq_consumer_lag)", ["rocketmq_consumer_lag is not served"]),
        ('rocketmq_topic_number{broker="b"}', ["rocketmq_topic_number has no label broker"]),
        ("sum by (group) (rocketmq_topic_number)", ["no label group to group by"]),
        ("sum without (group) (rocketmq_topic_number)", ["no label group to group by"]),
        ("rocketmq_messages_in_total", ["rocketmq_messages_in_total only grows: it needs rate or increase"]),
        ("rate(rocketmq_topic_number[5m])", ["rocketmq_topic_number goes up and down: rate of it means nothing"]),
        (
            "histogram_quantile(0.9, sum by (topic) (rate(rocketmq_message_size_bucket[$__rate_interval])))",
            ["no label le of a histogram"],
        ),
        (
            "rocketmq_topic_number / on (node_id, topic) rocketmq_consumer_group_number",
            ["no label topic on both sides"],
        ),
        ("label_values(rocketmq_topic_number, topic)", ["no label topic to choose from"]),
        ('label_values({__name__=~"rocketmq_topic_number|none"}, cluster)', ["none is not served"]),
        ("topk(3, rocketmq_storage_size_bytes)", []),
        ("-(1 + max_over_time(rocketmq_topic_number[1h]))", []),
        ('sum by (topic) (increase(rocketmq_messages_in_total{topic=~"${topic:regex}"}[1m])) > 3', []),
    ],
)
def test_what_is_wrong_with_a_question_is_named(question: str, faults: list[str]) -> None:
    assert faults_of(question) == faults


def test_what_is_no_question_and_what_a_legend_lacks_is_named() -> None:
    (fault,) = faults_of("sum(rocketmq_topic_number")
    assert fault.startswith("it is no question to Prometheus")
    assert faults_of("sum by (cluster) (rocketmq_topic_number)", {"cluster"}) == []
    assert faults_of("sum(rocketmq_topic_number)", {"cluster"}) == ["no label cluster to show"]


OF_ROCKETMQ_DASHBOARD = {
    "rocketmq_messages_in_total": "cluster broker topic",
    "rocketmq_messages_out_total": "cluster broker topic group",
    "rocketmq_producer_count": "cluster",
    "rocketmq_producer_message_size": "cluster",
    "rocketmq_consumer_count": "cluster",
    "rocketmq_consumer_message_size": "cluster",
    "rocketmq_connection_count": "cluster broker",
    "rocketmq_dispatch_behind_bytes": "cluster broker topic",
    "rocketmq_dispatch_latency_bucket": "cluster le",
    "rocketmq_send_to_client_latency_bucket": "cluster le",
    "rocketmq_threadpool_queue_size": "cluster broker",
    "rocketmq_threadpool_queue_capacity": "cluster broker",
    "rocketmq_threadpool_reject_count": "cluster broker",
    "rocketmq_disk_use_ratio": "cluster broker",
    "rocketmq_dlq_resend_count": "cluster",
    "rocketmq_dlq_resend_latency": "cluster",
}
"""The series that the twelve dashboards of apache/rocketmq-dashboard (2026) ask for, with labels; those of the JVM apart."""


def test_the_dashboards_of_rocketmq_dashboard_get_what_apaches_page_gives_them() -> None:
    """Most of it neither page has. Apache's page is that of 5.3.3; other releases were not looked at."""
    apaches = served_by_apache()
    wanted = [(name, label) for name, labels in OF_ROCKETMQ_DASHBOARD.items() for label in labels.split()]

    def given(lines: dict[str, Line]) -> list[tuple[str, str]]:
        return [(name, label) for name, label in wanted if name in lines and label in lines[name].labels]

    assert given(SERVED) == given(apaches)
    assert given(apaches) == [
        (f"rocketmq_messages_{way}_total", label) for way in ("in", "out") for label in ("cluster", "topic")
    ]
