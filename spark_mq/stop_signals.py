"""SIGINT and SIGTERM for what runs until somebody ends it, whatever the process has inherited.

A shell starts background jobs with SIGINT ignored, and Python keeps it so: `kill -INT` would do nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_Handler = Callable[[int, FrameType | None], object] | int | None


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """In the block the first SIGTERM or SIGINT only sets what the callable returns; the second raises KeyboardInterrupt."""
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping:
            raise KeyboardInterrupt
        stopping = True

    with _handled_by(stop):
        yield lambda: stopping


@contextmanager
def interrupt_on_signal() -> Iterator[None]:
    """In the block SIGTERM and SIGINT raise KeyboardInterrupt."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before: dict[signal.Signals, _Handler] = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, signal.SIG_DFL if one is None else one)
