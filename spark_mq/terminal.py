"""A process and its terminal, for commands and jobs: exit codes, signals, and what people see while something takes long.

Users read the exit codes in docs/command-line.md. Apache's tools end with 0 or −1 (255), whatever went wrong.

SIGINT and SIGTERM end what runs until it is ended, whatever the process has inherited: a shell starts background jobs with SIGINT
ignored, and Python keeps it so; `kill -INT` would do nothing.

A bar shows how much is done and left where that is known; a sign of life shows how long it has run. Nothing is shown where stderr is
no terminal, nor in the first two seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Literal

from spark_mq.conditions import OptionError
from storage.errors import StoreLockedError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


DONE = 0
FAILED = 1
"""Refused or failed; or something was found that an operator must look at."""
USAGE = 2
"""The command line is not right: click's code."""
BUSY = 75
"""A broker or another process holds the store: the same command may succeed later. sysexits.h: EX_TEMPFAIL."""
INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as shells have it."""
NOBODY_READS = 141
"""The reader of standard output has gone, as `head` does: 128 + SIGPIPE, as shells have it."""


def exit_code_of(error: BaseException) -> int:
    """FAILED, unless the error is one of those that have a code of their own."""
    if isinstance(error, StoreLockedError):
        return BUSY
    is_of_the_command_line = isinstance(error, OptionError) and error.option.startswith("--")  # else Spark's, as path
    return USAGE if is_of_the_command_line else FAILED


def drop_stdout() -> None:
    """What is left to be written to standard output goes nowhere, also when Python ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@contextmanager
def also_unread() -> Iterator[None]:
    """In the block, and from then on, it is no error that standard output has no reader: a server runs on."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()


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


PATIENCE_S = 2.0
"""Operations that take less time show nothing."""

OnProgress = Callable[[int, int], None]
"""Called with how much is done, of how much."""


@contextmanager
def progress_bar(
    text: str,
    unit: Literal["bytes", "messages"] = "bytes",
    *,
    terminal: Console | None = None,
    patience_s: float = PATIENCE_S,
) -> Iterator[OnProgress]:
    """A bar while the block runs, with how much is done, the rate and the time left; the block reports (done, all)."""
    if (shown := terminal or _terminal()) is None:
        yield lambda done, total: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        Task,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.text import Text

    class Messages(ProgressColumn):
        def render(self, task: Task) -> Text:
            total = "?" if task.total is None else f"{task.total:,.0f}"
            rate = task.finished_speed or task.speed
            return Text(f"{task.completed:,.0f}/{total}" + ("" if rate is None else f" {rate:,.0f}/s"))

    amounts = [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [Messages()]
    begin = TextColumn("{task.description}"), BarColumn(bar_width=16), TaskProgressColumn()
    bar = Progress(
        *begin, *amounts, TimeRemainingColumn(), console=shown, transient=True, redirect_stdout=_is_shown_too()
    )
    task = bar.add_task(text, total=None)
    with _started_after(patience_s, bar):
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def busy(text: str, *, terminal: Console | None = None, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """A sign of life while something runs that cannot say how far it is."""
    if (shown := terminal or _terminal()) is None:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    sign = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=shown,
        transient=True,
        redirect_stdout=_is_shown_too(),
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


def _is_shown_too() -> bool:
    """Whether lines on stdout must be printed around the bar. Those that go into a file or a pipe must not go through rich."""
    return sys.stdout.isatty()


def _terminal() -> Console | None:
    """The stream that people see; None if stderr is a file or a pipe."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    return Console(stderr=True)
