"""Recent puts and pulls: sums, sampled every 10 seconds, 10 minutes and hour. Java: BrokerStatsManager, StatsItem.

A rate is computed from the oldest and the newest sample of a span. Samples from before the clock was set back are dropped.
`PutStatistics` counts puts, `PutTimes` how long they take; this module counts pulls.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from spark_mq.broker.broker_metrics import BrokerMetrics
from spark_mq.remoting.administration import BrokerStats, StatsItem
from storage.epoch_times import is_time
from storage.names import is_system_topic
from storage.tables.put_statistics import PutStatistics, PutTimes, Sum

SPANS_MS = (10_000, 600_000, 3_600_000)
"""Time between samples, for the rates of a minute, an hour and a day."""
_SAMPLES = (7, 7, 25)
_LONGEST_DAY_MS = 25 * 3_600_000
_Name = tuple[str, str]


class _Sample(NamedTuple):
    time_ms: int
    value: int
    times: int


class DayTotals(NamedTuple):
    """Numbers of messages at the start of the last day and of this one, by the broker's local time, and now."""

    yesterday: int = 0
    today: int = 0
    now: int = 0

    def on_the_next_day(self) -> DayTotals:
        """The day ends now."""
        return DayTotals(self.today, self.now, self.now)


class Traffic:
    """The figures of one broker by name and key, as TOPIC_PUT_NUMS of a topic. For one thread at a time; times are ms."""

    def __init__(
        self,
        puts: PutStatistics,
        cluster: str,
        times: PutTimes | None = None,
        metrics: BrokerMetrics | None = None,
    ) -> None:
        """`metrics` also count what is pulled; None: nothing shows them."""
        self.puts = puts
        self.metrics = metrics
        self.times = times or PutTimes()
        self._cluster = cluster
        self._pulled: dict[str, defaultdict[str, Sum]] = {
            name: defaultdict(Sum)
            for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_LATENCY", "BROKER_GET_NUMS")
        }
        self._got = 0
        self.rates = StoreRates()
        self._mornings = DayTotals(), DayTotals()
        self._next_morning_ms: int | None = None
        self._behind: dict[tuple[str, str, int], int] = {}
        self._samples: tuple[dict[_Name, deque[_Sample]], ...] = ({}, {}, {})
        self._sampled_ms = [-span_ms for span_ms in SPANS_MS]

    def pulled(self, group: str, topic: str, queue_id: int, messages: int, size_bytes: int, latency_ms: int) -> None:
        """Count one pull that found something."""
        if self.metrics is not None:
            self.metrics.pulled(topic, group, messages, size_bytes)
        key = f"{topic}@{group}"
        self.rates.got(messages, latency_ms)
        self._pulled["GROUP_GET_NUMS"][key].add(messages)
        self._pulled["GROUP_GET_SIZE"][key].add(size_bytes)
        self._pulled["GROUP_GET_LATENCY"][f"{queue_id}@{key}"].add(latency_ms)
        self._pulled["BROKER_GET_NUMS"][self._cluster].add(messages, 0)
        if not is_system_topic(topic, broker_name=self.puts.broker_name, cluster_name=self.puts.cluster_name):
            self._got += messages

    def missed(self, latency_ms: int) -> None:
        """Count one pull that found nothing."""
        self.rates.got(0, latency_ms)

    def looked(self, group: str, topic: str, queue_id: int, behind_bytes: int) -> None:
        """Distance from the last message of a pull to the log's end. Java: recordDiskFallBehindSize."""
        self._behind[group, topic, queue_id] = behind_bytes

    def behind(self, most_bytes: int) -> dict[str, int]:
        """The groups that are further behind in some queue, and how far at most."""
        found: dict[str, int] = {}
        for (group, _, _), behind in self._behind.items():
            if behind > most_bytes:
                found[group] = max(behind, found.get(group, 0))
        return found

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """A group or a topic is deleted: how far behind it was counts no more."""
        gone = [name for name in self._behind if name[0] == group or name[1] == topic]
        for name in gone:
            del self._behind[name]

    @property
    def totals(self) -> tuple[DayTotals, DayTotals]:
        """Puts and pulls since the broker's start, without system topics. Java: BrokerStats."""
        puts, gets = self._mornings
        return puts._replace(now=self.puts.broker_put_nums_without_system_topic), gets._replace(now=self._got)

    def _note_morning(self, now_ms: int) -> None:
        morning_ms = self._next_morning_ms
        if morning_ms is not None and now_ms >= morning_ms:
            puts, gets = self.totals
            self._mornings = puts.on_the_next_day(), gets.on_the_next_day()
        if morning_ms is None or not 0 < morning_ms - now_ms <= _LONGEST_DAY_MS:
            self._next_morning_ms = _next_morning_ms(now_ms)

    def sample(self, now_ms: int, put: int) -> None:
        """Take the samples that are due. `put` is how many messages were put since the broker began."""
        self._note_morning(now_ms)
        self.times.look(now_ms)
        self.rates.sample(now_ms, put)
        for number, span_ms in enumerate(SPANS_MS):
            sampled_ms, samples = self._sampled_ms[number], self._samples[number]
            if not is_time(now_ms, sampled_ms, span_ms):
                continue
            self._sampled_ms[number] = now_ms
            if now_ms < sampled_ms:
                for of_name in samples.values():
                    of_name.clear()
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
        puts = self.puts
        tables: dict[str, Mapping[str, Sum]] = {
            "TOPIC_PUT_NUMS": puts.topic_put_nums,
            "TOPIC_PUT_SIZE": puts.topic_put_size,
            "TOPIC_PUT_LATENCY": puts.topic_put_latency,
            "QUEUE_PUT_NUMS": puts.queue_put_nums,
            "QUEUE_PUT_SIZE": puts.queue_put_size,
            "SNDBCK_PUT_NUMS": puts.send_back_nums,
            **self._pulled,
        }
        for name, table in tables.items():
            for key, found in list(table.items()):
                yield (name, key), found.value, found.times
        of_broker = {
            "BROKER_PUT_NUMS": puts.broker_put_nums,
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": puts.broker_put_nums_without_system_topic,
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": self._got,
        }
        for name, count in of_broker.items():
            if count:
                yield (name, self._cluster), count, 0  # as in Java: no average of a put or a get


def _next_morning_ms(now_ms: int) -> int:
    """Java: UtilAll.computeNextMorningTimeMillis."""
    year, month, day, *_ = time.localtime(now_ms / 1_000)
    return int(time.mktime((year, month, day + 1, 0, 0, 0, 0, 0, -1))) * 1_000


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


_STORE_SAMPLE_MS = 1_000
_STORE_SAMPLES = (10, 60, 600)
"""Numbers of samples that a rate covers."""


class _StoreSample(NamedTuple):
    time_ms: int
    put: int
    found: int
    missed: int
    transferred: int


class StoreRates:
    """Puts and gets of a store per second, by samples of every second. For one thread at a time; times are ms.

    Java: StoreStatsService.
    """

    def __init__(self) -> None:
        self._found = self._missed = self._transferred = self._longest_ms = 0
        self._samples: deque[_StoreSample] = deque(maxlen=_STORE_SAMPLES[-1] + 1)
        self._sampled_ms = -_STORE_SAMPLE_MS

    def got(self, messages: int, took_ms: int) -> None:
        """Count one get and the messages that it found; 0 = it found none."""
        self._longest_ms = max(self._longest_ms, took_ms)
        self._found += messages > 0
        self._missed += messages == 0
        self._transferred += messages

    def sample(self, now_ms: int, put: int) -> None:
        """Take the sample if it is due. `put` is how many messages were put since the broker began."""
        if is_time(now_ms, self._sampled_ms, _STORE_SAMPLE_MS):
            if now_ms < self._sampled_ms:  # what was sampled by another clock tells no rate
                self._samples.clear()
            self._sampled_ms = now_ms
            self._samples.append(_StoreSample(now_ms, put, self._found, self._missed, self._transferred))

    def texts(self) -> dict[str, str]:
        """Each rate over 10, 60 and 600 seconds, by Java's names. What is not sampled long enough is left out; of the total it is 0."""
        put, found, missed, transferred = (
            [self._rate(item, count) for count in _STORE_SAMPLES] for item in range(1, 5)
        )
        total = [(hit or 0.0) + (miss or 0.0) for hit, miss in zip(found, missed, strict=True)]
        rates: dict[str, Sequence[float | None]] = {
            "putTps": put,
            "getFoundTps": found,
            "getMissTps": missed,
            "getTotalTps": total,
            "getTransferredTps": transferred,
        }
        texts = {name: " ".join("" if rate is None else str(rate) for rate in each) for name, each in rates.items()}
        return {"getMessageEntireTimeMax": str(self._longest_ms), **texts}

    def _rate(self, item: int, count: int) -> float | None:
        if len(self._samples) <= count:
            return None
        first, last = self._samples[-count - 1], self._samples[-1]
        return (last[item] - first[item]) * 1_000.0 / max(1, last.time_ms - first.time_ms)
