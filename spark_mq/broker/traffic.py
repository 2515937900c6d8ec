"""What was put and pulled lately: sums, sampled every 10 seconds, 10 minutes and hour. Java: BrokerStatsManager, StatsItem.

Of a span the oldest and the newest sample count. What is put is summed up by `PutStatistics`, what is pulled here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from spark_mq.remoting.admin_bodies import BrokerStats, StatsItem
from storage.tables.put_statistics import PutStatistics, Sum

SPANS_MS = (10_000, 600_000, 3_600_000)
"""How far samples are apart: of a minute's, an hour's and a day's rate."""
_SAMPLES = (7, 7, 25)
_Name = tuple[str, str]


class _Sample(NamedTuple):
    time_ms: int
    value: int
    times: int


class Traffic:
    """The figures of one broker by name and key, as TOPIC_PUT_NUMS of a topic. For one thread at a time; times are ms."""

    def __init__(self, puts: PutStatistics, cluster: str) -> None:
        self._puts = puts
        self._cluster = cluster
        self._pulled: dict[str, defaultdict[str, Sum]] = {
            name: defaultdict(Sum)
            for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_LATENCY", "BROKER_GET_NUMS")
        }
        self._samples: tuple[dict[_Name, deque[_Sample]], ...] = ({}, {}, {})
        self._next_ms = [0, 0, 0]

    def pulled(self, group: str, topic: str, queue_id: int, messages: int, size_bytes: int, latency_ms: int) -> None:
        """Count one pull that found something."""
        key = f"{topic}@{group}"
        self._pulled["GROUP_GET_NUMS"][key].add(messages)
        self._pulled["GROUP_GET_SIZE"][key].add(size_bytes)
        self._pulled["GROUP_GET_LATENCY"][f"{queue_id}@{key}"].add(latency_ms)
        self._pulled["BROKER_GET_NUMS"][self._cluster].add(messages)

    @property
    def pulled_messages(self) -> int:
        """All that were pulled since the broker began."""
        return self._pulled["BROKER_GET_NUMS"][self._cluster].value

    def sample(self, now_ms: int) -> None:
        """Take the samples that are due."""
        for number, span_ms in enumerate(SPANS_MS):
            if now_ms < self._next_ms[number]:
                continue
            self._next_ms[number] = now_ms + span_ms
            samples = self._samples[number]
            for name, value, times in self._sums():
                of_name = samples.setdefault(name, deque([_Sample(now_ms - span_ms, 0, 0)], _SAMPLES[number]))
                of_name.append(_Sample(now_ms, value, times))

    def per_second(self, name: str, key: str) -> float:
        """The rate of the last minute; 0 of what was never counted."""
        return _rate(self._samples[0].get((name, key))).tps

    def stats(self, name: str, key: str) -> BrokerStats | None:
        """A figure over minute, hour and day; None of what was never counted."""
        if not any(found == (name, key) for found, _, _ in self._sums()):
            return None
        minute, hour, day = (_rate(samples.get((name, key))) for samples in self._samples)
        return BrokerStats(minute=minute, hour=hour, day=day)

    def _sums(self) -> Iterator[tuple[_Name, int, int]]:
        puts = self._puts
        tables: dict[str, Mapping[str, Sum]] = {
            "TOPIC_PUT_NUMS": puts.topic_put_nums,
            "TOPIC_PUT_SIZE": puts.topic_put_size,
            "TOPIC_PUT_LATENCY": puts.topic_put_latency,
            "SNDBCK_PUT_NUMS": puts.send_back_nums,
            **self._pulled,
        }
        for name, table in tables.items():
            for key, found in list(table.items()):
                yield (name, key), found.value, found.times
        yield ("BROKER_PUT_NUMS", self._cluster), puts.broker_put_nums, puts.broker_put_nums


def _rate(samples: deque[_Sample] | None) -> StatsItem:
    if not samples:
        return StatsItem()
    first, last = samples[0], samples[-1]
    total, times = last.value - first.value, last.times - first.times
    return StatsItem(
        sum=total,
        tps=total * 1000.0 / max(1, last.time_ms - first.time_ms),
        average_per_time=total / times if times > 0 else 0.0,
    )
