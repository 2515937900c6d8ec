"""Which files of the product a deed enters: `sys.setprofile` on all threads, while it runs.

A trace counts a file when one of its functions is called. Code that runs at import, and tests, do not count.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tests.support.places import PROJECT

PRODUCT = tuple(f"{PROJECT}/{name}" for name in ("storage/", "spark_mq/", "jobs/", "pyspark_spark_mq.py"))


class Trace:
    """Files in the order in which they are entered, and how many of the functions of each."""

    def __init__(self) -> None:
        self._functions: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    @property
    def files(self) -> list[str]:
        """Paths from the project's root."""
        return [path.removeprefix(f"{PROJECT}/") for path in self._functions]

    @property
    def functions(self) -> int:
        """How many functions were called."""
        return sum(len(names) for names in self._functions.values())

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        """As a profile function."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PRODUCT) and code.co_name != "<module>":
            with self._lock:
                self._functions.setdefault(code.co_filename, set()).add(code.co_qualname)


_running: list[Trace] = []


def _record(frame: FrameType, event: str, argument: Any) -> None:
    for trace in _running:
        trace.record(frame, event, argument)


@contextmanager
def seen_by_threads() -> Iterator[None]:
    """Threads that start within can be traced: a server's, which run longer than one trace."""
    threading.setprofile(_record)
    try:
        yield
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]


@contextmanager
def traced() -> Iterator[Trace]:
    """What this thread, and those of `seen_by_threads`, enter within."""
    trace, before = Trace(), sys.getprofile()
    _running.append(trace)
    sys.setprofile(_record)
    try:
        yield trace
    finally:
        sys.setprofile(before)
        _running.remove(trace)
