"""The one asyncio loop of the process, in a daemon thread: made at first use, and made anew after a fork.

All sockets of the client belong to this loop. Synchronous callers pass coroutines to `run`; user code never runs on the loop's thread:
a `ListenerPool` calls it in threads. A forked child has the memory of the parent's loop but not its thread: the child drops the loop,
and closes its copies of the sockets without a shutdown, so that the parent's connections end when the parent closes them.

Java: NettyRemotingClient's event loop groups.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import queue
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from spark_mq.client.errors import RequestTimeoutError

T = TypeVar("T")
Work = Callable[[], Any]
"""The function that a thread calls. It should not raise: that gives the result None, and a log line."""
Done = Callable[[Any], None]
"""The function that the loop's thread calls with the result."""

THREAD_NAME = "spark-mq-client"
TAKEN_AT_ONCE = 128
_LOG = logging.getLogger(__name__)


class _OwnLoop:
    """The loop's state that belongs to one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None
        self.sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


_own = _OwnLoop()
_inherited: list[_OwnLoop] = []  # kept: collecting a loop of the parent would close and unregister what is its
_forgetting: list[Callable[[], None]] = []


def event_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process, running."""
    own = _own
    loop = own.loop
    if loop is not None:
        return loop
    with own.lock:
        if own.loop is None:
            loop = asyncio.new_event_loop()
            started = threading.Event()
            loop.call_soon(started.set)
            own.thread = threading.Thread(target=_run_forever, args=(loop,), name=THREAD_NAME, daemon=True)
            own.thread.start()
            started.wait()
            own.loop = loop
        return own.loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def is_loop_thread() -> bool:
    """Whether the caller runs on the loop's thread, where waiting would never end."""
    return threading.current_thread() is _own.thread


def spawn(coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Start a coroutine on the loop, from any thread; the future gives its result."""
    return asyncio.run_coroutine_threadsafe(coroutine, event_loop())


def run(coroutine: Coroutine[Any, Any, T], timeout_ms: int | None = None, what: str = "a call of the client") -> T:
    """The coroutine's result, waited for by a thread that is not the loop's.

    Raises RequestTimeoutError after `timeout_ms`, and cancels the coroutine then and on KeyboardInterrupt.
    """
    if is_loop_thread():
        coroutine.close()
        raise RuntimeError(
            "the client's own thread cannot wait for itself: await the coroutine, or call from another thread"
        )
    future = spawn(coroutine)
    try:
        return future.result(None if timeout_ms is None else timeout_ms / 1000)
    except concurrent.futures.TimeoutError:
        if future.done():  # the coroutine's own
            raise
        future.cancel()
        raise RequestTimeoutError(what, timeout_ms or 0) from None
    except BaseException:
        future.cancel()
        raise


def own_socket(sock: socket.socket) -> None:
    """Remember a socket of the loop, so that a forked child closes its copy."""
    _own.sockets.add(sock)


def when_forked(forget: Callable[[], None]) -> None:
    """Call `forget` in each child that this process forks, before anything else runs there."""
    _forgetting.append(forget)


def _forget_the_parents() -> None:
    global _own
    before, _own = _own, _OwnLoop()
    _inherited.append(before)
    for sock in list(before.sockets):
        descriptor = sock.detach()  # no shutdown, and nothing is said to the parent's selector
        if descriptor >= 0:
            os.close(descriptor)
    for forget in _forgetting:
        forget()


os.register_at_fork(after_in_child=_forget_the_parents)


class HandOver(Generic[T]):
    """A way from any thread to the loop's for items, in their order: many by one wake-up.

    While the loop has not yet looked, further items need no call of their own. It takes a limited number in one turn, so that answers
    are read in between.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], object]) -> None:
        """`take` is called on the loop's thread. What it raises is logged, and the next item taken."""
        self._loop = loop
        self._take = take
        self._items: deque[T] = deque()
        self._is_woken = False

    def put(self, item: T) -> None:
        """Hand one over, from any thread."""
        self._items.append(item)
        if not self._is_woken:  # two threads may both see this: a wake-up too many does no harm
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._take_some)

    def _take_some(self) -> None:
        self._is_woken = False  # before looking: what comes from now on wakes again
        items = self._items
        for _ in range(min(len(items), TAKEN_AT_ONCE)):
            try:
                self._take(items.popleft())
            except Exception:
                _LOG.exception("what another thread handed over was not taken")
        if items and not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._take_some)


class ListenerPool:
    """A fixed number of daemon threads that call listeners or hooks, each started when there is work for it. Made on the loop's thread.

    Java: the consumeExecutor of the consume services.
    """

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
        """`stop`, and wait for what runs; False where it still runs after the time."""
        self.stop()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_ms / 1000)
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_closed = True
        with contextlib.suppress(queue.Empty):
            while (given := self._waiting.get_nowait()) is not None:
                self._is_back()
                self._loop.call_soon(given[1], None)
        for _ in self._threads:
            self._waiting.put(None)

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
