"""The dashboards of conf/grafana ask only for what is served, by the labels that it has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from spark_mq.prometheus.metric import Kind, Metric
from spark_mq.prometheus.queries import EXPORTER_METRICS, QUERY_METRICS
from spark_mq.prometheus.rocketmq import METRICS
from tests.support.places import PROJECT

DASHBOARDS = sorted((PROJECT / "conf" / "grafana").glob("*.json"))
OF_BROKERS = {"cluster", "node_id", "node_type"}
OF_PROMETHEUS = {"job", "instance", "__name__"}
_NAME = re.compile(r"\b(?:rocketmq|spark_mq)_[a-z0-9_]+")
_SELECTOR = re.compile(r"\b((?:rocketmq|spark_mq)_[a-z0-9_]+)\{([^}]*)\}")
_LABEL = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
_BY = re.compile(r"\bby\s*\(([^)]*)\)")


def served() -> dict[str, tuple[Metric, set[str]]]:
    """The names of lines, each with its metric and the names of its labels."""
    found: dict[str, tuple[Metric, set[str]]] = {}
    for metric in (*METRICS, *QUERY_METRICS, *EXPORTER_METRICS):
        labels = {*metric.labels, *dict(metric.fixed), *OF_PROMETHEUS}
        if not metric.name.startswith(("spark_mq_query", "spark_mq_exporter")):
            labels |= OF_BROKERS
        if metric.kind is Kind.HISTOGRAM:
            found[f"{metric.name}_bucket"] = metric, labels | {"le"}
            found[f"{metric.name}_sum"] = found[f"{metric.name}_count"] = metric, labels
        else:
            found[metric.name] = metric, labels
    return found


def questions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]


def faults_of(question: str) -> list[str]:
    """What is wrong with a question to Prometheus; none where it can be answered."""
    known, faults = served(), []
    for name in _NAME.findall(question):
        if name not in known:
            faults.append(f"{name} is not served")
    for name, selector in _SELECTOR.findall(question):
        if name in known:
            _, labels = known[name]
            faults += [f"{name} has no label {label}" for label in _LABEL.findall(selector) if label not in labels]
    by = {label.strip() for group in _BY.findall(question) for label in group.split(",")}
    of_all = [known[name][1] for name in _NAME.findall(question) if name in known]
    faults += [f"no label {label} to group by" for label in by if not any(label in labels for labels in of_all)]
    for name in _NAME.findall(question):
        if (
            name in known
            and known[name][0].kind is Kind.COUNTER
            and not re.search(r"rate\(|increase\(|label_values\(", question)
        ):
            faults.append(f"{name} only grows: it needs rate or increase")
    return faults


def test_there_are_dashboards() -> None:
    assert [path.stem for path in DASHBOARDS] == ["rocketmq-broker", "rocketmq-lag", "spark-mq-queries"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_asks_only_for_what_is_served(path: Any) -> None:
    dashboard = json.loads(path.read_text("utf-8"))
    found = {question: faults for question in questions(dashboard) if (faults := faults_of(question))}
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


def test_the_check_notices_a_wrong_name_a_wrong_label_and_a_counter_without_a_rate() -> None:
    assert faults_of("sum(rocketmq_consumer_lag)") == ["rocketmq_consumer_lag is not served"]
    assert faults_of('rocketmq_topic_number{broker="b"}') == ["rocketmq_topic_number has no label broker"]
    assert faults_of("sum by (group) (rocketmq_topic_number)") == ["no label group to group by"]
    assert faults_of("rocketmq_messages_in_total") == [
        "rocketmq_messages_in_total only grows: it needs rate or increase"
    ]
