"""Looks in memory: rates of topics, unread messages over time, and what a failing look leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_mq.client.errors import NameServerUnreachableError
from spark_mq.console.samples import KEPT, Samples
from spark_mq.console.views import BusyError
from spark_mq.lag.figures import LagReport, Look, Looks, Reader
from spark_mq.source.lag import Position
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
        self.errors: tuple[Exception, ...] = ()
        self.queues_error: Exception | None = None
        self.incomplete: set[str] = set()
        self.looks = 0
        self.place = self
        self._looks = Looks()

    @contextmanager
    def opened(self, wait_s: float | None = None) -> Iterator[Any]:
        yield self

    def queues(self, topic: str | None) -> list[QueueId]:
        if self.queues_error is not None:
            raise self.queues_error
        return list(self.ends)

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        return 0, self.ends[queue]

    def lags(self) -> LagReport:
        self.looks += 1
        if self.error is not None:
            raise self.error
        positions = {
            (GROUP, queue): Position(end, None if queue.topic == "B" else 0) for queue, end in self.ends.items()
        }
        return self._looks.report(Look(self.now_ms, positions, {}, {}))._replace(errors=self.errors)

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


def test_a_report_stays_where_the_ends_of_topics_cannot_be_read(views: PlannedViews, samples: Samples) -> None:
    look(views, samples, 1_000, 1, 1, 1)
    views.queues_error = NameServerUnreachableError([("127.0.0.1:1", "no connection")])
    look(views, samples, 2_000, 5, 5, 5)
    assert samples.report().time_ms == 2_000
    assert samples.series(GROUP)["series"][0]["values"] == [2, 10]
    assert "no name server answers" in str(samples.trouble)
    views.queues_error = None
    look(views, samples, 3_000, 5, 5, 5)
    assert samples.trouble is None
    assert samples.rates() == {"A": 4.0, "B": 2.0}


def test_a_topic_that_misses_queues_has_no_rate_and_none_against_that_look(
    views: PlannedViews, samples: Samples
) -> None:
    views.incomplete = {"A"}
    look(views, samples, 0, 100, 0, 0)
    look(views, samples, 500, 150, 0, 0)
    assert samples.rates() == {"B": 0.0}
    views.incomplete = set()
    look(views, samples, 1_000, 100, 100, 5)
    assert samples.rates() == {"B": 5.0}
    look(views, samples, 70_000, 100, 100, 5)
    look(views, samples, 80_000, 110, 110, 5)
    assert samples.rates() == {"A": 2.0, "B": 0.0}


def test_the_lag_of_some_queues_of_a_topic_is_unknown_while_a_broker_is_missing(
    views: PlannedViews, samples: Samples
) -> None:
    look(views, samples, 0, 10, 10, 1)
    views.errors = (NameServerUnreachableError([("127.0.0.1:1", "no connection")]),)
    views.now_ms, views.ends = 1_000, {QUEUES[0]: 12, QUEUES[2]: 1}
    samples.take()
    views.errors = ()
    look(views, samples, 2_000, 14, 10, 1)
    assert samples.series(GROUP)["series"][0] == {"label": "A", "values": [20, None, 24]}


def test_many_groups_and_topics_keep_fewer_looks(
    views: PlannedViews, samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_mq.console.samples.VALUES_KEPT", 20)
    for number in range(30):
        look(views, samples, number * 1_000, number, 0, 0)
    series = samples.series(GROUP)
    assert series["times"] == [float(number) for number in range(20, 30)]
    assert series["series"][0]["values"] == list(range(20, 30))
    assert sum(len(each) for each in samples._unread.values()) == 20


def test_a_reader_that_is_gone_is_forgotten(
    views: PlannedViews, samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_mq.console.samples.KEPT", 5)
    look(views, samples, 0, 1, 1, 1)
    for number in range(1, 10):
        views.now_ms, views.ends = number * 1_000, {QUEUES[2]: 1}
        samples.take()
    assert {topic for _, topic in samples._unread} == {"B"}


def test_a_first_look_that_takes_long_is_no_reason_to_hold_a_page(
    views: PlannedViews, samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_mq.console.samples.LONGEST_WAIT_S", 0.01)
    with pytest.raises(BusyError) as caught:
        samples.report()
    assert "the first look at who is behind takes long" in caught.value.text
    assert views.looks == 0, "the thread looks, not the page"
    samples.start()
    monkeypatch.setattr("spark_mq.console.samples.LONGEST_WAIT_S", 20)
    assert samples.report().groups
    samples.close()


def test_requests_do_not_repeat_a_look_that_has_failed(views: PlannedViews, samples: Samples) -> None:
    views.error = NameServerUnreachableError([("127.0.0.1:1", "no connection")])
    samples._note(views.error)
    for _ in range(3):
        with pytest.raises(NameServerUnreachableError):
            samples.report()
    assert views.looks == 0
    views.error = None
    look(views, samples, 0, 1, 1, 1)
    assert samples.report().groups
