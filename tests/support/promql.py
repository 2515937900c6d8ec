"""What a question to Prometheus asks for, held against what a page serves: its series, their labels, and what is made of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import promql_parser as promql

_RATES = ("rate", "irate", "increase")
_KEEPS_SERIES = ("topk", "bottomk")
_LABEL_VALUES = re.compile(r"label_values\((?:(?P<selector>.+),)?\s*(?P<label>\w+)\s*\)")
_INTERVAL = re.compile(r"\[\$\{?__\w+\}?\]")
_VARIABLE = re.compile(r"\$\{?\w+(?::\w+)?\}?")
_NAME = "__name__"


class Line(NamedTuple):
    """A line of a page: of a counter, a gauge, or a part of a histogram."""

    grows: bool
    labels: frozenset[str]


class Answer(NamedTuple):
    """What the answer to a question has: the labels of its series. `faults` say why there is none, or a wrong one."""

    labels: frozenset[str]
    faults: tuple[str, ...]


def answer_of(question: str, served: Mapping[str, Line]) -> Answer:
    """The answer to a dashboard's question, where Prometheus has a page with these lines, by their names.

    Grafana's variables stand for any text; its `label_values` is known, which is no function of Prometheus.
    """
    text = _VARIABLE.sub("any", _INTERVAL.sub("[5m]", question))
    asked = _LABEL_VALUES.fullmatch(text.strip())
    reader = _Reader(served, is_of_labels=asked is not None)
    if asked is not None and asked["selector"] is None:
        return Answer(frozenset({asked["label"]}), ())
    try:
        labels = reader.labels_of(promql.parse(text if asked is None else asked["selector"]))
    except ValueError as error:
        return Answer(frozenset(), (f"it is no question to Prometheus: {error}",))
    if asked is not None:
        reader.need(asked["label"], labels, "to choose from")
    return Answer(labels, tuple(reader.faults))


class _Reader:
    """Goes through one question."""

    def __init__(self, served: Mapping[str, Line], *, is_of_labels: bool) -> None:
        self._served = served
        self._is_of_labels = is_of_labels
        """Whether only the labels of the series are wanted, not their values."""
        self.faults: list[str] = []

    def need(self, label: str, labels: frozenset[str], what: str) -> None:
        if label not in labels:
            self.faults.append(f"no label {label} {what}")

    def labels_of(self, found: promql.Expr) -> frozenset[str]:
        """The labels of the series that an expression gives."""
        match found:
            case promql.VectorSelector():
                return self._selected(found, over_time=False)
            case promql.MatrixSelector():
                return self._selected(found.vector_selector, over_time=True)
            case promql.Call():
                return self._called(found)
            case promql.AggregateExpr():
                return self._aggregated(found)
            case promql.BinaryExpr():
                left, right = self.labels_of(found.lhs), self.labels_of(found.rhs)
                matching = None if found.modifier is None else found.modifier.matching
                for label in () if matching is None else matching.labels:
                    self.need(label, left & right, "on both sides")
                return left or right
            case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
                return self.labels_of(found.expr)
        return frozenset()

    def _selected(self, found: promql.VectorSelector, *, over_time: bool) -> frozenset[str]:
        """Labels that all the selected lines have."""
        common: frozenset[str] | None = None
        for name in _names(found):
            line = self._served.get(name)
            if line is None:
                self.faults.append(f"{name} is not served")
                continue
            wrong = [each.name for each in found.matchers.matchers if each.name not in {*line.labels, _NAME}]
            self.faults += [f"{name} has no label {label}" for label in wrong]
            if line.grows and not over_time and not self._is_of_labels:
                self.faults.append(f"{name} only grows: it needs rate or increase")
            common = line.labels if common is None else common & line.labels
        return common or frozenset()

    def _called(self, found: promql.Call) -> frozenset[str]:
        name, labels = found.func.name, frozenset[str]()
        for argument in found.args:
            labels |= self.labels_of(argument)
            selector = argument.vector_selector if isinstance(argument, promql.MatrixSelector) else None
            for line in () if selector is None or name not in _RATES else _names(selector):
                if line in self._served and not self._served[line].grows:
                    self.faults.append(f"{line} goes up and down: {name} of it means nothing")
        if name == "histogram_quantile":
            self.need("le", labels, "of a histogram")
            return labels - {"le"}
        return labels

    def _aggregated(self, found: promql.AggregateExpr) -> frozenset[str]:
        labels = self.labels_of(found.expr)
        modifier = found.modifier
        if modifier is None:
            return labels if found.prettify().lstrip().startswith(_KEEPS_SERIES) else frozenset()
        for label in modifier.labels:
            self.need(label, labels, "to group by")
        named = frozenset(modifier.labels)
        return named if modifier.type == promql.AggModifierType.By else labels - named


def _names(found: promql.VectorSelector) -> Iterator[str]:
    """The lines that a selector names, itself or by a pattern of whole names."""
    if found.name is not None:
        yield found.name
    for each in found.matchers.matchers:
        if each.name == _NAME:
            yield from each.value.split("|")
