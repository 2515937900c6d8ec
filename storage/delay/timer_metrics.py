"""How many messages of each topic wait in the timer: `config/timermetrics`. Java: TimerMetrics."""

from __future__ import annotations

from storage.tables.counted_topics import CountedTopics

FILE_NAME = "timermetrics"


class TimerMetrics(CountedTopics):
    """Messages that wait, less deletions that wait for theirs."""

    __slots__ = ()
    table = "timingCount"
