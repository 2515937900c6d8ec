"""Listeners run in threads; their results come back on the loop's thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from spark_mq.client.event_loop import HandOver, ListenerPool

PLAY = asyncio.run


async def test_work_runs_in_named_threads_and_results_come_back_to_the_loop() -> None:
    pool, back = ListenerPool("listen", 2), asyncio.Queue[tuple[str, str]]()
    for _ in range(5):
        pool.submit(
            lambda: threading.current_thread().name,
            lambda name: back.put_nowait((name, threading.current_thread().name)),
        )
    got = [await back.get() for _ in range(5)]
    assert {name for name, _ in got} <= {"listen-1", "listen-2"}
    assert {back_in for _, back_in in got} == {threading.current_thread().name}
    assert await pool.close(1_000)


async def test_as_many_run_at_once_as_there_are_threads() -> None:
    pool, meeting = ListenerPool("listen", 3), threading.Barrier(3, timeout=10)
    await asyncio.gather(*(pool.call(meeting.wait) for _ in range(3)))
    assert await pool.close(1_000)


async def test_closing_waits_for_what_runs_and_begins_nothing_more() -> None:
    pool, gate, answers = ListenerPool("listen", 1), threading.Event(), list[Any]()
    begun = threading.Event()

    def work() -> str:
        begun.set()
        gate.wait(10)
        return "done"

    pool.submit(work, answers.append)
    pool.submit(lambda: "never", answers.append)
    await asyncio.to_thread(begun.wait, 10)
    asyncio.get_running_loop().call_later(0.05, gate.set)
    assert await pool.close(10_000)
    assert await pool.call(lambda: "after") is None
    assert sorted(map(str, answers)) == ["None", "done"]


async def test_closing_does_not_wait_for_ever() -> None:
    pool, gate = ListenerPool("listen", 1), threading.Event()
    pool.submit(lambda: gate.wait(10), lambda _: None)
    assert not await pool.close(50)
    gate.set()


async def test_what_fails_in_a_thread_ends_no_thread() -> None:
    def exits() -> None:
        raise SystemExit("a thread")

    pool = ListenerPool("listen", 1)
    assert await asyncio.wait_for(pool.call(exits), 10) is None
    assert await asyncio.wait_for(pool.call(lambda: "next"), 10) == "next"
    assert await pool.close(1_000)


async def test_an_item_that_is_not_taken_keeps_no_other_back() -> None:
    got: list[int] = []

    def take(item: int) -> None:
        if item == 1:
            raise TypeError("the test says so")
        got.append(item)

    way = HandOver(asyncio.get_running_loop(), take)
    for item in range(4):
        way.put(item)
    await asyncio.sleep(0)
    assert got == [0, 2, 3]
