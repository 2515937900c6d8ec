"""Threads that call listeners, and bring the results back to the event loop's thread.

Java: the consumeExecutor of the consume services.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from spark_mq.client.event_loop import HandOver

_LOG = logging.getLogger(__name__)

Work = Callable[[], Any]
"""What a thread calls. It should not raise: that gives the result None, and a word in the log."""
Done = Callable[[Any], None]
"""What the loop's thread calls with the result."""


class ListenerPool:
    """A fixed number of daemon threads, begun when there is work for them. Made on the loop's thread."""

    def __init__(self, name: str, thread_count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._thread_count = thread_count
        self._threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[tuple[Work, Done] | None] = queue.SimpleQueue()
        self._results: HandOver[tuple[Done, Any]] = HandOver(self._loop, self._bring_back)
        self._at_work = 0  # handed out and not yet back; of the loop's thread
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False

    @property
    def thread_count(self) -> int:
        return self._thread_count

    def submit(self, work: Work, done: Done) -> None:
        """Call `work` in a thread, then `done` with its result on the loop's thread; with None where `close` came first."""
        if self._is_closed:
            self._loop.call_soon(done, None)
            return
        self._at_work += 1
        self._idle.clear()
        self._waiting.put((work, done))
        if len(self._threads) < min(self._thread_count, self._at_work):
            thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()

    async def call(self, work: Work) -> Any:
        """The result of `work`, called in a thread."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.submit(work, lambda result: None if future.done() else future.set_result(result))
        return await future

    async def close(self, timeout_ms: int) -> bool:
        """Begin nothing more, and wait for what runs; False where it still runs after the time."""
        self._is_closed = True
        with contextlib.suppress(queue.Empty):
            while (given := self._waiting.get_nowait()) is not None:
                self._is_back()
                self._loop.call_soon(given[1], None)
        for _ in self._threads:
            self._waiting.put(None)
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_ms / 1000)
        except TimeoutError:
            return False
        return True

    def _is_back(self) -> None:
        self._at_work -= 1
        if self._at_work == 0:
            self._idle.set()

    def _serve(self) -> None:
        while (given := self._waiting.get()) is not None:
            work, done = given
            try:
                result = work()
            except BaseException:  # even an exit: the thread has more to serve
                _LOG.exception("what thread %s was given failed", threading.current_thread().name)
                result = None
            try:
                self._results.put((done, result))
            except RuntimeError:  # the loop is closed: the process ends
                return

    def _bring_back(self, result: tuple[Done, Any]) -> None:
        self._is_back()
        done, answer = result
        done(answer)
