"""The metrics of our broker beside a page that an Apache broker showed (tests/interop/test_metrics.py renews it)."""

from __future__ import annotations

import pytest

from spark_mq.prometheus.rocketmq import ABSENT, METRICS, SCOPE
from tests.support.metric_pages import MetricPage
from tests.support.places import PROJECT

PAGE = MetricPage.of((PROJECT / "tests" / "vectors" / "broker" / "metrics-5.3.3.txt").read_text("utf-8"))
OF_ALL = {"cluster", "node_id", "node_type", "otel_scope_name", "zone"}
"""Of all its series; the last one by metricsLabel."""


def test_each_metric_of_apaches_page_is_ours_or_known_to_be_absent() -> None:
    ours = {metric.name: metric.kind.value for metric in METRICS}
    apaches = {name: kind for name, kind in PAGE.shown_types.items() if not name.startswith(ABSENT)}
    assert {name: ours.get(name) for name in apaches} == apaches


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_its_labels_and_buckets_are_those_of_apaches_page(metric: object) -> None:
    name, labels = metric.name, {*metric.labels, *dict(metric.fixed)}  # type: ignore[attr-defined]
    assert name in PAGE.shown_types, "the capture's load makes every metric"
    assert PAGE.label_names[name] == labels | OF_ALL
    assert PAGE.bounds.get(name, frozenset()) - {float("inf")} == frozenset(metric.bounds)  # type: ignore[attr-defined]


def test_labels_with_one_value_have_apaches() -> None:
    for metric in METRICS:
        for label, value in metric.fixed:
            found = {sample.labels[label] for sample in PAGE.samples if PAGE.metric_of(sample) == metric.name}
            assert found == {value}, metric.name
    assert {sample.labels["otel_scope_name"] for sample in PAGE.samples if sample.name.startswith("rocketmq_")} == {
        SCOPE
    }
