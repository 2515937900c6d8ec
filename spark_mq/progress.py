"""What people see on a terminal while something takes long: a bar where it is known how much is left, else how long it has run.

Nothing is shown where stderr is no terminal, nor in the first two seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PATIENCE_S = 2.0
"""What takes no longer shows nothing."""

OnProgress = Callable[[int, int], None]
"""Is told how much is done, of how much."""


@contextmanager
def progress_bar(
    text: str, *, terminal: Console | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[OnProgress]:
    """A bar while the block runs; the block tells (done, all). `clock` is in seconds."""
    if (shown := terminal or _terminal()) is None:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=shown, transient=True)
    task = bar.add_task(text, total=None)
    due = clock() + PATIENCE_S

    def tell(done: int, total: int) -> None:
        if clock() >= due:
            bar.start()
            bar.update(task, completed=done, total=total)

    try:
        yield tell
    finally:
        bar.stop()


@contextmanager
def busy(text: str, *, terminal: Console | None = None, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """A sign of life while something runs that cannot say how far it is."""
    if (shown := terminal or _terminal()) is None:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    sign = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=shown, transient=True
    )
    sign.add_task(text, total=None)
    with _started_after(patience_s, sign):
        yield


@contextmanager
def _started_after(seconds: float, sign: Progress) -> Iterator[None]:
    lock, is_over = threading.Lock(), False

    def start() -> None:
        with lock:
            if not is_over:
                sign.start()

    timer = threading.Timer(seconds, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_over = True
        sign.stop()


def _terminal() -> Console | None:
    """Where people see it; None where stderr is a file or a pipe."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    return Console(stderr=True)
