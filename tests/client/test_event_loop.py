"""The one loop of the process: waited for by others, never by itself, and left behind at a fork."""

from __future__ import annotations

import asyncio
import os
import socket
import threading

import pytest

from spark_mq.client import event_loop
from spark_mq.client.errors import RequestTimeoutError
from tests.client.conftest import in_a_child


async def here() -> tuple[int, str]:
    return os.getpid(), threading.current_thread().name


def test_coroutines_of_all_threads_run_on_one_daemon_thread() -> None:
    seen: list[tuple[int, str]] = []
    threads = [threading.Thread(target=lambda: seen.append(event_loop.run(here()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {(os.getpid(), event_loop.THREAD_NAME)}
    assert event_loop.event_loop() is event_loop.event_loop()


def test_a_wait_ends_with_its_time_out_and_the_coroutine_is_cancelled() -> None:
    cancelled = threading.Event()

    async def never() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    with pytest.raises(RequestTimeoutError, match="no answer to closing within 30 ms"):
        event_loop.run(never(), 30, "closing")
    assert cancelled.wait(10)


def test_a_time_out_of_the_coroutine_itself_is_handed_on() -> None:
    async def fails() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        event_loop.run(fails(), 10_000)


def test_the_loop_refuses_to_wait_for_itself() -> None:
    async def waits() -> None:
        event_loop.run(here())

    with pytest.raises(RuntimeError, match="cannot wait for itself"):
        event_loop.run(waits(), 10_000)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_a_loop_of_its_own_and_keeps_no_socket_of_the_parent() -> None:
    parent = event_loop.event_loop()
    left, right = socket.socketpair()
    descriptor = left.fileno()
    event_loop.own_socket(left)
    forgotten = threading.Event()
    event_loop.when_forked(forgotten.set)

    def check() -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):  # the parent's socket is not open here
            os.fstat(descriptor)
        assert event_loop.event_loop() is not parent
        assert event_loop.run(here(), 10_000)[0] == os.getpid()
        assert forgotten.is_set()

    in_a_child(check)
    assert not forgotten.is_set()
    assert event_loop.run(here(), 10_000) == (os.getpid(), event_loop.THREAD_NAME)
    left.sendall(b"still mine")
    assert right.recv(10) == b"still mine"
    left.close()
    right.close()
