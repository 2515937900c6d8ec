"""Looks in memory: rates of topics, unread messages over time, and what a failing look leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_mq.client.errors import NameServerUnreachableError
from spark_mq.console.samples import KEPT, Samples
from spark_mq.lag.figures import LagReport, Look, Looks, Position, Reader
from spark_mq.source.offsets import QueueId

QUEUES = [QueueId("A", "b", 0), QueueId("A", "b", 1), QueueId("B", "b", 0)]
GROUP = Reader("g")


class PlannedViews:
    """Views whose queues end where a test says; the group has read nothing of A, and is unknown in B."""

    name = "planned"
    is_cluster = False

    def __init__(self) -> None:
        self.ends = dict.fromkeys(QUEUES, 0)
        self.now_ms = 0
        self.error: Exception | None = None
        self.place = self
        self._looks = Looks()

    @contextmanager
    def opened(self) -> Iterator[Any]:
        yield self

    def queues(self, topic: str | None) -> list[QueueId]:
        return list(self.ends)

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        return 0, self.ends[queue]

    def lags(self) -> LagReport:
        if self.error is not None:
            raise self.error
        positions = {
            (GROUP, queue): Position(end, None if queue.topic == "B" else 0) for queue, end in self.ends.items()
        }
        return self._looks.report(Look(self.now_ms, positions, {}, {}))

    def close(self) -> None: ...


@pytest.fixture
def views() -> PlannedViews:
    return PlannedViews()


@pytest.fixture
def samples(views: PlannedViews) -> Samples:
    return Samples(views, interval_s=3_600, clock=lambda: views.now_ms)


def look(views: PlannedViews, samples: Samples, at_ms: int, *ends: int) -> None:
    views.now_ms, views.ends = at_ms, dict(zip(QUEUES, ends, strict=True))
    samples.take()


def test_one_look_gives_no_rate(views: PlannedViews, samples: Samples) -> None:
    look(views, samples, 1_000, 5, 5, 5)
    assert samples.rates() == {}


def test_rates_are_of_the_last_minute(views: PlannedViews, samples: Samples) -> None:
    look(views, samples, 0, 0, 0, 0)
    look(views, samples, 100_000, 900, 900, 0)
    look(views, samples, 110_000, 950, 900, 1)
    assert samples.rates() == {"A": 5.0, "B": 0.1}


def test_rare_looks_give_the_rate_between_the_last_two(views: PlannedViews, samples: Samples) -> None:
    look(views, samples, 0, 0, 0, 0)
    look(views, samples, 200_000, 100, 100, 0)
    assert samples.rates() == {"A": 1.0, "B": 0.0}


def test_a_topic_that_was_made_again_has_no_rate(views: PlannedViews, samples: Samples) -> None:
    look(views, samples, 0, 10, 10, 10)
    look(views, samples, 10_000, 3, 3, 20)
    assert samples.rates() == {"B": 1.0}


def test_a_series_has_a_value_at_each_time_and_null_for_what_is_unknown(views: PlannedViews, samples: Samples) -> None:
    look(views, samples, 1_000, 1, 2, 3)
    look(views, samples, 2_000, 2, 2, 3)
    assert samples.series(GROUP) == {
        "times": [1.0, 2.0],
        "series": [{"label": "A", "values": [3, 4]}, {"label": "B", "values": [None, None]}],
    }
    assert samples.series(Reader("other")) == {"times": [1.0, 2.0], "series": []}


def test_memory_is_bounded(views: PlannedViews, samples: Samples) -> None:
    for number in range(KEPT + 10):
        look(views, samples, number * 1_000, 0, 0, 0)
    assert len(samples.series(GROUP)["times"]) == KEPT


def test_a_look_that_fails_is_said_until_one_succeeds(
    views: PlannedViews, samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    views.error = NameServerUnreachableError([("127.0.0.1:1", "no connection")])
    samples.start()
    for _ in range(1_000):
        if samples.trouble is not None:
            break
        samples._thread.join(0.01)
    samples.close()
    assert "no name server answers" in str(samples.trouble)
    assert len(caplog.records) == 1
    views.error = None
    look(views, samples, 1, 0, 0, 0)
    assert samples.trouble is None
