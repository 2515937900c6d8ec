"""How long puts took, in the classes and shares that Java's StoreStatsService tells."""

from __future__ import annotations

import re

from storage.pending import PutStatus
from storage.tables.put_statistics import PutTimes

NOW_MS = 1_800_000_000_000


def classes(times: PutTimes) -> list[int]:
    return [int(count) for count in re.findall(r":(\d+) ", times.texts()["putMessageDistributeTime"])]


def test_nothing_is_told_of_the_first_minute_before_it_is_over() -> None:
    times = PutTimes()
    times.look(NOW_MS)
    times.add(7)
    assert times.texts() == {
        "putMessageEntireTimeMax": "7",
        "putMessageFailedTimes": "0",
        "putMessageDistributeTime": "null",
        "putLatency99": "0.00",
        "putLatency999": "0.00",
    }


def test_each_time_is_in_one_class_and_the_last_minute_counts() -> None:
    times = PutTimes()
    times.look(NOW_MS)
    for took_ms in (0, 1, 9, 10, 49, 50, 99, 100, 199, 200, 499, 500, 999, 1_000, 4_999, 5_000, 9_999, 10_000, 70_000):
        times.add(took_ms)
    times.look(NOW_MS + 60_000)
    assert times.texts()["putMessageDistributeTime"].startswith("[<=0ms]:1 [0~10ms]:2 [10~50ms]:2 ")
    assert classes(times) == [1, 2, 2, 2, 2, 2, 2, 1, 0, 0, 1, 2, 2]
    times.look(NOW_MS + 120_000)
    assert sum(classes(times)) == 0
    assert times.texts()["putMessageEntireTimeMax"] == "70000"


def test_the_time_of_a_share_lies_within_its_bucket() -> None:
    """findPutMessageEntireTimePX: 100 puts, 90 of them within 1 ms, 10 within 55 ms."""
    times = PutTimes()
    times.look(NOW_MS)
    times.add(0, 90)
    times.add(53, 10)
    times.look(NOW_MS + 60_000)
    assert times.texts()["putLatency99"] == "54.50", "50 + 5 · 9 / 10"
    assert times.texts()["putLatency999"] == "54.50", "of the 99th: the index is whole"


def test_a_put_counts_as_failed_where_javas_commit_log_refuses_it() -> None:
    times = PutTimes()
    times.add(3, failed=True)
    for status in PutStatus:
        times.refused(status)
    assert times.texts()["putMessageFailedTimes"] == "5", "none that a hook refuses, as OS_PAGE_CACHE_BUSY"
