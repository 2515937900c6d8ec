"""A failure that repeats is logged once, and then as a number."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from spark_mq.client.failure_log import FailureLog
from spark_mq.client.listeners import ConcurrentContext, ConsumeStatus, answer_of
from spark_mq.remoting import MessageQueue

LOG = logging.getLogger("tests.failures")


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_hundred_failures_are_one_traceback_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(LOG, clock_ms=lambda: 0)
    for number in range(100):
        try:
            raise KeyError(number)
        except KeyError as error:
            failures.note("KeyError", f"the listener failed on message {number}", error)
    assert texts(caplog) == ["the listener failed on message 0"]
    assert caplog.records[0].exc_info is not None
    failures.close()
    assert texts(caplog)[1:] == ["the listener failed on message 99 (the last of 99 more failures like it)"]
    assert caplog.records[1].exc_info is None
    failures.close()
    assert len(caplog.records) == 2, "nothing came since"


def test_counts_come_at_most_once_a_minute_and_kinds_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 0
    failures = FailureLog(LOG, clock_ms=lambda: now_ms)
    for now_ms in range(0, 130_000, 10_000):
        failures.note("A", f"a at {now_ms}")
    failures.note("B", "b")
    assert texts(caplog) == [
        "a at 0",
        "a at 60000 (the last of 6 more failures like it)",
        "a at 120000 (the last of 6 more failures like it)",
        "b",
    ]


def test_threads_lose_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(LOG, clock_ms=lambda: 0)
    threads = [threading.Thread(target=lambda: [failures.note("A", "a") for _ in range(250)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures.close()
    assert texts(caplog) == ["a", "a (the last of 999 more failures like it)"]


def test_a_listener_that_fails_a_hundred_times_is_logged_once_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(LOG, clock_ms=lambda: 0)
    queue = MessageQueue("orders", "broker-a", 3)

    def fail(messages: object, context: object) -> ConsumeStatus:
        raise RuntimeError("the database is away")

    for offset in range(100):
        message: Any = SimpleNamespace(queue_offset=offset, queue=queue)
        assert answer_of(fail, [message], ConcurrentContext(queue), "billing", failures) is ConsumeStatus.LATER
    failures.close()
    first, last = texts(caplog)
    assert first.startswith("the listener of group billing failed on 1 message(s) from offset 0 of ")
    assert last.endswith(" (the last of 99 more failures like it)")
    assert [record.exc_info is not None for record in caplog.records] == [True, False]
