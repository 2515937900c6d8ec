"""Figures of what was put and pulled, when the clock is set back: the next samples count, as Java's, which are taken by a clock that
nobody sets.
"""

from __future__ import annotations

from spark_mq.broker.traffic import DayTotals, Traffic
from storage.tables.put_statistics import PutStatistics

NOW_MS = 1_800_000_000_000
HOUR_MS, DAY_MS = 3_600_000, 24 * 3_600_000


def sampled(traffic: Traffic, begin_ms: int, *, seconds: int) -> int:
    """A message is put in each second, and samples are taken; when it is then."""
    for now_ms in range(begin_ms, begin_ms + seconds * 1_000, 1_000):
        traffic.puts.put("T", 0, 1, 100)
        traffic.sample(now_ms, traffic.puts.broker_put_nums)
    return begin_ms + seconds * 1_000


def test_rates_are_those_of_the_last_minute_also_after_the_clock_was_set_back() -> None:
    traffic = Traffic(PutStatistics("b", "c"), "c")
    now_ms = sampled(traffic, NOW_MS, seconds=61)
    assert traffic.per_second("TOPIC_PUT_NUMS", "T") == 1
    now_ms = sampled(traffic, now_ms - HOUR_MS, seconds=1)
    assert traffic.per_second("TOPIC_PUT_NUMS", "T") <= 1
    for _ in range(120):  # nothing more is put
        now_ms += 1_000
        traffic.sample(now_ms, traffic.puts.broker_put_nums)
    assert traffic.per_second("TOPIC_PUT_NUMS", "T") == 0
    found = traffic.stats("TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert found.minute is not None
    assert found.minute.sum == 0
    assert traffic.rates.texts()["putTps"].split()[0] == "0.0"


def test_a_rate_over_the_moment_when_the_clock_was_set_back_is_no_other() -> None:
    traffic = Traffic(PutStatistics("b", "c"), "c")
    now_ms = sampled(traffic, NOW_MS, seconds=61)
    now_ms = sampled(traffic, now_ms - 25_000, seconds=61)
    assert abs(traffic.per_second("TOPIC_PUT_NUMS", "T") - 1) < 0.1
    assert traffic.rates.texts()["putTps"].split()[0] == "1.0"


def test_a_day_that_a_wrong_clock_has_put_off_ends_with_the_next_morning() -> None:
    traffic = Traffic(PutStatistics("b", "c"), "c")
    now_ms = sampled(traffic, NOW_MS + 300 * DAY_MS, seconds=2) - 300 * DAY_MS
    traffic.sample(now_ms, traffic.puts.broker_put_nums)
    traffic.sample(now_ms + 2 * DAY_MS, traffic.puts.broker_put_nums)
    assert traffic.totals[0] == DayTotals(0, 2, 2)
