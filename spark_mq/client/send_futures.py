"""The future of an asynchronous send: a concurrent future whose callbacks run in threads of their own, never on the client's loop."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from spark_mq.client.event_loop import when_forked

T = TypeVar("T")

CALLBACK_THREADS = 4
_LOG = logging.getLogger(__name__)


class SendFuture(concurrent.futures.Future[T]):
    """What a send will end with. What is on its way cannot be called back: `cancel` does nothing."""

    def cancel(self) -> bool:
        """False: the message may be at the broker already."""
        return False

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        """Call `fn` with this future in another thread when it has ended. What it raises is logged."""
        super().add_done_callback(lambda ended: _callbacks.submit(_Call(fn, ended)))


class _Call:
    """A callback with its future, as a call that raises nothing."""

    def __init__(
        self, fn: Callable[[concurrent.futures.Future[T]], object], ended: concurrent.futures.Future[T]
    ) -> None:
        self._fn = fn
        self._ended = ended

    def __call__(self) -> None:
        try:
            self._fn(self._ended)
        except Exception:
            _LOG.exception("a callback of a send raised")


class _Callbacks:
    """The threads of the process, made when a callback is first wanted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def submit(self, call: Callable[[], None]) -> None:
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(CALLBACK_THREADS, "spark-mq-callbacks")
            pool = self._pool
        pool.submit(call)


_callbacks = _Callbacks()


def _forget_the_parents_threads() -> None:
    global _callbacks
    _callbacks = _Callbacks()


when_forked(_forget_the_parents_threads)
