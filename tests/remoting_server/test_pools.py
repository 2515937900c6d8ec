"""Requests that wait are taken together, each is run once, and what they have left for later is done behind them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from spark_mq.remoting_server.pools import PoolSettings, RequestPool

LIMIT_SECONDS = 30


def refuse(remark: str) -> None:
    raise AssertionError(remark)


def in_a_loop(act: Callable[[], None]) -> None:
    async def run() -> None:
        act()

    asyncio.run(run())


@pytest.fixture
def busy() -> tuple[threading.Event, threading.Event]:
    """Set when a request runs; set to let it end."""
    return threading.Event(), threading.Event()


def test_what_waits_is_taken_together_and_done_later_in_order(busy: tuple[threading.Event, threading.Event]) -> None:
    said: list[str] = []
    runs, ends = busy
    done = threading.Event()
    pool = RequestPool(PoolSettings("Send", 100, 2, together=3), lambda: said.append("gather"))

    def request(name: str) -> Callable[[], None]:
        def run() -> None:
            said.append(name)
            pool.afterwards(lambda: said.append(f"{name} later"))

        return run

    def first() -> None:
        runs.set()
        assert ends.wait(LIMIT_SECONDS)
        request("a")()

    def last() -> None:
        request("e")()
        pool.afterwards(done.set)

    def submit() -> None:
        assert pool.submit(first, refuse)
        assert runs.wait(LIMIT_SECONDS)
        for run in (request("b"), request("c"), request("d"), last):
            assert pool.submit(run, refuse)
        ends.set()

    in_a_loop(submit)
    assert done.wait(LIMIT_SECONDS)
    pool.close()
    assert [word for word in said if len(word) == 1] == ["a", "b", "c", "d", "e"]
    assert said[:4] == ["a", "b", "c", "gather"]
    assert [word for word in said if word.endswith("later")].index("a later") == 0
    assert said.count("gather") == 2
    assert said.index("d") < said.index("gather", 4) < said.index("d later")


def test_one_that_fails_later_keeps_none_from_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    def gather() -> None:
        raise OSError("gathering")

    def fails() -> None:
        raise OSError("answering")

    pool = RequestPool(PoolSettings("Send", 100, 1, together=8), gather)
    in_a_loop(
        lambda: [pool.submit(lambda call=call: pool.afterwards(call), refuse) for call in (fails, done.set)] and None
    )
    assert done.wait(LIMIT_SECONDS)
    pool.close()
    assert {"gathering", "answering"} == {
        str(record.exc_info[1]) for record in caplog.records if record.exc_info is not None
    }


def test_without_taking_together_later_is_at_once() -> None:
    said: list[str] = []
    done = threading.Event()
    pool = RequestPool(PoolSettings("Pull", 100, 1))

    def run() -> None:
        pool.afterwards(lambda: said.append("later"))
        said.append("run")
        done.set()

    in_a_loop(lambda: pool.submit(run, refuse) and None)
    assert done.wait(LIMIT_SECONDS)
    assert said == ["later", "run"]


def test_every_request_is_run_once_however_they_come() -> None:
    count = 3_000
    ran: list[int] = []
    done = threading.Event()
    pool = RequestPool(PoolSettings("Send", 10 * count, 4, together=16), lambda: None)

    def run(number: int) -> None:
        def later() -> None:
            ran.append(number)
            if len(ran) == count:
                done.set()

        pool.afterwards(later)

    async def submit() -> None:
        for number in range(count):
            assert pool.submit(lambda number=number: run(number), refuse)
            if number % 7 == 0:
                await asyncio.sleep(0)

    asyncio.run(submit())
    assert done.wait(LIMIT_SECONDS)
    pool.close()
    assert sorted(ran) == list(range(count))


def test_quick_requests_run_on_the_loop_and_behind_a_slow_one_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_mq.remoting_server.pools._SLOW_SECONDS", 0.3)
    pool = RequestPool(PoolSettings("Pull", 100, 2, quick_seconds=0.1))
    ran: list[tuple[str, bool]] = []
    loops_thread = threading.get_ident()

    def request(name: str, seconds: float = 0.0) -> Callable[[], None]:
        def run() -> None:
            time.sleep(seconds)
            ran.append((name, threading.get_ident() == loops_thread))

        return run

    async def until(count: int) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(ran) < count and time.monotonic() < deadline:
            await asyncio.sleep(0.005)

    async def ask() -> None:
        for run in (request("quick"), request("slow", 0.2), request("behind it"), request("and it")):
            assert pool.submit(run, refuse)
        await until(4)
        assert pool.submit(request("soon after"), refuse)
        await until(5)
        await asyncio.sleep(0.4)
        assert pool.submit(request("later"), refuse)
        await until(6)

    asyncio.run(ask())
    pool.close()
    on_loop = dict(ran)
    assert on_loop == {
        "quick": True,
        "slow": True,
        "behind it": False,
        "and it": False,
        "soon after": False,
        "later": True,
    }


def test_while_a_request_runs_in_a_thread_all_do(busy: tuple[threading.Event, threading.Event]) -> None:
    runs, ends = busy
    pool = RequestPool(PoolSettings("Pull", 100, 2, quick_seconds=0.0))
    threads: list[int] = []
    done = threading.Event()

    def slow() -> None:
        time.sleep(0.01)

    def waiting() -> None:
        runs.set()
        assert ends.wait(LIMIT_SECONDS)
        done.set()

    async def ask() -> None:
        assert pool.submit(slow, refuse)
        await asyncio.sleep(0.05)
        assert pool.submit(waiting, refuse)
        assert await asyncio.to_thread(runs.wait, LIMIT_SECONDS)
        pool._slow_until = 0.0
        assert pool.submit(lambda: threads.append(threading.get_ident()), refuse)
        while not threads:
            await asyncio.sleep(0.005)
        ends.set()

    asyncio.run(ask())
    assert done.wait(LIMIT_SECONDS)
    pool.close()
    assert threads != [threading.get_ident()]


@pytest.mark.parametrize("together", [1, 4])
def test_a_pool_is_busy_until_what_it_has_taken_is_answered(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    """A server that ends hangs up when no pool is busy any more."""
    pool = RequestPool(PoolSettings("Send", 10, 1, together=together), lambda: None)
    done, taken, seen = threading.Event(), pool._taken, []

    def look() -> object:
        found = taken()
        if not done.is_set():
            seen.append(pool.is_busy)
        return found

    monkeypatch.setattr(pool, "_taken", look)
    in_a_loop(lambda: assert_taken(pool.submit(lambda: pool.afterwards(done.set), refuse)))
    assert done.wait(LIMIT_SECONDS)
    pool.close()
    assert seen
    assert all(seen)


def assert_taken(is_taken: bool) -> None:
    assert is_taken


@pytest.mark.parametrize("together", [1, 16])
def test_while_no_thread_can_be_started_requests_wait_for_one(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    start, refused = threading.Thread.start, [3]

    def start_later(self: threading.Thread) -> None:
        if self.name.startswith("Send-") and refused[0]:
            refused[0] -= 1
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    monkeypatch.setattr("spark_mq.remoting_server.pools._STARTING_SECONDS", 0.001)
    pool = RequestPool(PoolSettings("Send", 100, 2, together=together))
    ran: list[int] = []

    async def submit() -> None:
        for number in range(10):
            assert pool.submit(lambda number=number: ran.append(number), refuse)  # type: ignore[misc]
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(ran) < 10 and time.monotonic() < deadline:
            await asyncio.sleep(0.005)

    asyncio.run(submit())
    pool.close()
    assert (sorted(ran), refused) == (list(range(10)), [0])


@pytest.mark.parametrize("together", [1, 16])
@pytest.mark.parametrize("by", ["cleaning", "emptying"])
def test_a_late_one_that_cannot_be_refused_is_asked_once_and_wakes_no_thread_twice(
    busy: tuple[threading.Event, threading.Event], together: int, by: str
) -> None:
    runs, ends = busy
    pool = RequestPool(PoolSettings("Send", 1_000, 2, wait_limit_ms=-1, together=together))
    asked: list[int] = []
    ran: list[int] = []
    count, done = 200, threading.Event()

    def waiting() -> None:
        runs.set()
        assert ends.wait(LIMIT_SECONDS)

    def cannot(number: int) -> bool:
        asked.append(number)
        return False

    def run(number: int) -> None:
        ran.append(number)
        if len(ran) == count:
            done.set()

    def submit() -> None:
        for _ in range(2):
            runs.clear()
            assert pool.submit(waiting, lambda remark: False)
            if together == 1 or not runs.is_set():
                assert runs.wait(LIMIT_SECONDS)
            if together > 1:
                break
        for number in range(count):
            assert pool.submit(lambda number=number: run(number), lambda remark, number=number: cannot(number))  # type: ignore[misc]
        tokens = pool._may_take.qsize()
        for _ in range(20):
            if by == "cleaning":
                pool._clean()
            else:
                assert pool.refuse_all(lambda waited, size: "") == 0
        assert asked == list(range(count))
        assert pool._may_take.qsize() <= max(tokens, 2)
        assert pool.size == count

    in_a_loop(submit)
    ends.set()
    assert done.wait(LIMIT_SECONDS)
    pool.close()
    assert sorted(ran) == list(range(count))


def test_a_refusal_that_fails_keeps_none_from_its_turn(busy: tuple[threading.Event, threading.Event]) -> None:
    runs, ends = busy
    pool = RequestPool(PoolSettings("Send", 100, 1, wait_limit_ms=-1))
    done = threading.Event()

    def waiting() -> None:
        runs.set()
        assert ends.wait(LIMIT_SECONDS)

    def submit() -> None:
        assert pool.submit(waiting, lambda remark: False)
        assert runs.wait(LIMIT_SECONDS)
        assert pool.submit(waiting, refuse)
        assert pool.submit(done.set, lambda remark: False)
        ends.set()

    in_a_loop(submit)
    assert done.wait(LIMIT_SECONDS)
    pool.close()


def test_what_waits_while_the_process_does_not_run_is_not_late(
    busy: tuple[threading.Event, threading.Event],
) -> None:
    """The loop stands for longer than the limit, as on a machine that is busy with others; then a request waits for a thread."""
    runs, ends = busy
    done, refused = threading.Event(), threading.Event()
    pool = RequestPool(PoolSettings("Send", 100, 1, wait_limit_ms=200))

    def first() -> None:
        runs.set()
        assert ends.wait(LIMIT_SECONDS)

    def refuse_it(remark: str) -> bool:
        refused.set()
        return True

    async def run() -> None:
        assert pool.submit(first, refuse_it)
        assert runs.wait(LIMIT_SECONDS)
        assert pool.submit(done.set, refuse_it)
        await asyncio.sleep(0.03)
        time.sleep(0.5)  # nothing of this process runs
        assert pool.head_wait_ms() < 200
        ends.set()
        assert await asyncio.to_thread(done.wait, LIMIT_SECONDS)
        assert not refused.is_set()
        ends.clear()
        runs.clear()
        assert pool.submit(first, refuse_it)
        assert await asyncio.to_thread(runs.wait, LIMIT_SECONDS)
        assert pool.submit(done.set, refuse_it)
        assert await asyncio.to_thread(refused.wait, LIMIT_SECONDS), "the loop runs, and the thread is busy"
        ends.set()

    asyncio.run(run())
    pool.close()


def test_what_waits_while_the_loop_computes_is_late(busy: tuple[threading.Event, threading.Event]) -> None:
    runs, ends = busy
    refused = threading.Event()
    pool = RequestPool(PoolSettings("Send", 100, 1, wait_limit_ms=200))

    def first() -> None:
        runs.set()
        assert ends.wait(LIMIT_SECONDS)

    def refuse_it(remark: str) -> bool:
        refused.set()
        return True

    async def run() -> None:
        assert pool.submit(first, refuse_it)
        assert runs.wait(LIMIT_SECONDS)
        assert pool.submit(lambda: None, refuse_it)
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
        assert pool.head_wait_ms() > 200
        assert await asyncio.to_thread(refused.wait, LIMIT_SECONDS)
        ends.set()

    asyncio.run(run())
    pool.close()
