"""Pages of metrics in Prometheus' text format, as tests compare them: names, types, labels, values."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: \d+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_PARTS = ("_bucket", "_sum", "_count")
_UNITS = ("_milliseconds", "_seconds", "_bytes")


class Sample(NamedTuple):
    """A line of a page: a bucket, a sum or a count of a histogram is a line of its own."""

    name: str
    labels: Mapping[str, str]
    value: float


class MetricPage(NamedTuple):
    """A page. `types` are by the metric's name, as its lines TYPE say; Apache's lines (5.3.3) leave the unit out of it."""

    types: Mapping[str, str]
    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, text: str) -> MetricPage:
        """Raises ValueError for a line that is none."""
        types, samples = {}, []
        for line in text.splitlines():
            words = line.split(" ")
            if words[:2] == ["#", "TYPE"]:
                types[words[2]] = words[3]
            elif line and not line.startswith("#"):
                if (found := _SAMPLE.fullmatch(line)) is None:
                    raise ValueError(f"no sample: {line}")
                samples.append(Sample(found[1], dict(_LABEL.findall(found[2] or "")), float(found[3])))
        return cls(types, tuple(samples))

    @classmethod
    def at(cls, address: str) -> MetricPage:
        """The page that is served at host:port."""
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            return cls.of(answer.read().decode())

    def type_of(self, metric: str) -> str | None:
        """The type of a metric by the name that its series have."""
        names = (metric, *(metric.removesuffix(unit) for unit in _UNITS))
        return next((self.types[name] for name in names if name in self.types), None)

    def metric_of(self, sample: Sample) -> str:
        """The metric that a line belongs to."""
        for part in _PARTS:
            base = sample.name.removesuffix(part)
            if base != sample.name and self.type_of(base) == "histogram":
                return base
        return sample.name

    @property
    def shown_types(self) -> dict[str, str]:
        """The type of each of RocketMQ's metrics that has a series."""
        shown = sorted({self.metric_of(sample) for sample in self.samples})
        return {name: self.type_of(name) or "untyped" for name in shown if name.startswith("rocketmq_")}

    @property
    def label_names(self) -> dict[str, frozenset[str]]:
        """The names of labels of each metric's series; without that of buckets."""
        found: dict[str, set[str]] = {}
        for sample in self.samples:
            found.setdefault(self.metric_of(sample), set()).update(sample.labels.keys() - {"le"})
        return {name: frozenset(labels) for name, labels in found.items()}

    @property
    def bounds(self) -> dict[str, frozenset[float]]:
        """The upper bounds of each histogram's buckets."""
        found: dict[str, set[float]] = {}
        for sample in self.samples:
            if "le" in sample.labels:
                found.setdefault(self.metric_of(sample), set()).add(float(sample.labels["le"]))
        return {name: frozenset(each) for name, each in found.items()}

    def values(self, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The values of lines with that name and these labels, by their other labels; without those of the broker."""
        return {
            tuple(
                sorted((key, text) for key, text in sample.labels.items() if key not in {*labels, *_OF_BROKER})
            ): sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of these lines; None if there is none."""
        found = self.values(name, **labels)
        return sum(found.values()) if found else None


_OF_BROKER = {"cluster", "node_id", "node_type", "otel_scope_name", "storage_type", "storage_medium", "protocol_type"}
