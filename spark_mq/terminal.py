"""A process and its terminal, for commands and jobs: exit codes, signals, what people see while something takes long, and
output: tables for people, JSON for machines, times in words, errors.

Users read the exit codes in docs/command-line.md. Apache's tools end with 0 or −1 (255), whatever went wrong.

SIGINT and SIGTERM end what runs until it is ended, whatever the process has inherited: a shell starts background jobs with SIGINT
ignored, and Python keeps it so; `kill -INT` would do nothing.

A bar shows how much is done and left where that is known; a sign of life shows how long it has run. Nothing is shown where stderr is
no terminal, nor in the first two seconds.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_mq.client.errors import ClientError, ClientSettingError, TlsError
from spark_mq.conditions import OptionError, SparkMqError
from spark_mq.session import SESSION_ERRORS
from storage.errors import StorageError, StoreLockedError
from storage.files.os_errors import from_os_error

if TYPE_CHECKING:
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

    return Console(stderr=True)


_WIDTH_OF_A_FILE = 200
_LEAST_COLUMN = 14
"""A folded column of texts keeps so many characters. If they do not fit, each row is printed by itself."""
_WHOLE_WORD = 48
"""Words up to this length are not folded, so that a name can be copied."""
_GAP = 2
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""JSON escapes the others by itself."""
_AGES = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


class CommandError(Exception):
    """A command cannot do what the user wants; `hint` says what it can."""

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text, hint)
        self.text = text
        self.hint = hint


class UsageError(CommandError):
    """The command line is not right."""


def print_json(document: Any) -> None:
    """One line of JSON, also for programs that take other characters as the end of a line."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    sys.stdout.write(text.translate(_LINE_ENDS) + "\n")


def print_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Lines of CSV, with a head. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    for row in (columns, *rows):
        line = io.StringIO()
        csv.writer(line, lineterminator="\r\n").writerow([_harmless(cell) for cell in row])  # so it quotes both
        sys.stdout.write(line.getvalue().removesuffix("\r\n") + "\n")


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def _harmless(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


class _Shown(Console):
    """Ends like other output where its reader has gone; rich would end the process with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "standard output has no reader")


def console() -> Console:
    """The terminal in its width (or COLUMNS); a file in a fixed width."""
    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return _Shown(width=None if is_known else _WIDTH_OF_A_FILE, highlight=False)


def say(text: str) -> None:
    """A sentence for people. Its words are not folded: a path in it can be copied."""
    shown = console()
    folded = textwrap.fill(text, shown.width, break_long_words=False, break_on_hyphens=False)
    shown.print(folded, markup=False, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """A table; numbers stand to the right, None is a dash. Where its columns do not fit side by side, a line for each value."""
    shown = console()
    texts = [["–" if value is None else str(value) for value in row] for row in rows]
    if not _fits(columns, rows, texts, shown.width):
        _print_by_row(shown, columns, texts, title)
        return
    table = Table(
        title=title, title_justify="left", header_style="bold", box=None, pad_edge=False, padding=(0, _GAP, 0, 0)
    )
    for number, column in enumerate(columns):
        is_number = _is_number(rows, number)
        table.add_column(
            column,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,
            min_width=_least_width(column, [row[number] for row in texts], is_number=is_number),
        )
    for row in texts:
        table.add_row(*map(Text, row))
    shown.print(table)


def _is_number(rows: Sequence[Sequence[Any]], column: int) -> bool:
    return any(isinstance(row[column], int) for row in rows)


def _fits(columns: Sequence[str], rows: Sequence[Sequence[Any]], texts: Sequence[Sequence[str]], width: int) -> bool:
    """Whether each column has room for its numbers, or for the least that its texts need."""
    needed = (
        _least_width(column, [row[number] for row in texts], is_number=_is_number(rows, number))
        for number, column in enumerate(columns)
    )
    return sum(needed) + _GAP * (len(columns) - 1) <= width


def _least_width(column: str, texts: Sequence[str], *, is_number: bool) -> int:
    """A column of numbers keeps its whole width; texts get enough for whole words, where these are not very long."""
    lines = [line for text in (column, *texts) for line in text.splitlines()]
    widest = max(map(len, lines), default=0)
    if is_number:
        return widest
    words = max((len(word) for line in lines for word in line.split() if len(word) <= _WHOLE_WORD), default=0)
    return min(widest, max(_LEAST_COLUMN, len(column), words))


def _print_by_row(shown: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None) -> None:
    if title:
        shown.print(title, markup=False, style="italic")
    widest = max(map(len, columns))
    for number, row in enumerate(rows):
        if number:
            shown.print()
        lines = Table.grid(padding=(0, _GAP, 0, 0))
        lines.add_column(width=widest, style="bold")
        lines.add_column(overflow="fold")
        for column, text in zip(columns, row, strict=True):
            lines.add_row(Text(column), Text(text))
        shown.print(lines)


def time_text(time_ms: int | None) -> str | None:
    """A time as ISO-8601 in UTC, as options take it."""
    if time_ms is None:
        return None
    moment = datetime.fromtimestamp(time_ms / 1_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1_000:03d}Z"


def time_in_words(time_ms: int | None, now_ms: int) -> str | None:
    """A time as ISO-8601, and how long ago that is."""
    text = time_text(time_ms)
    if time_ms is None or text is None:
        return None
    return f"{text} ({ago_in_words(time_ms, now_ms)})"


def ago_in_words(time_ms: int, now_ms: int) -> str:
    """How long ago a time is, or in how long it comes."""
    past_ms = now_ms - time_ms
    return f"{duration_in_words(past_ms)} ago" if past_ms >= 0 else f"in {duration_in_words(-past_ms)}"


def span_in_words(duration_ms: float | None) -> str | None:
    """A duration that may be unknown (None), or infinite: `never`."""
    if duration_ms is None:
        return None
    return "never" if math.isinf(duration_ms) else duration_in_words(int(duration_ms))


def duration_in_words(duration_ms: int) -> str:
    """In whole units, the greatest that fits: `3 minutes`, `1 day`, `12 ms`."""
    seconds = duration_ms // 1_000
    for unit, length in _AGES:
        if count := seconds // length:
            return f"{count:,} {unit}{'' if count == 1 else 's'}"
    return f"{duration_ms} ms"


def first_of(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many there are more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return " ".join(names[:most]) + more


def body_text(body: bytes, characters: int = 40) -> str:
    """The beginning of a body that is text, the size of another."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"{len(body)} bytes"
    if not text.isprintable():
        return f"{len(body)} bytes"
    return text if len(text) <= characters else text[:characters] + "…"


_TLS_HINT = (
    "use --tls exactly where the server speaks TLS (tls.server.mode); a self-signed certificate needs --tls-ca-file, or "
    "--tls-no-verify where that risk is taken"
)


class Described(NamedTuple):
    """An error as the user sees it: its cause in one sentence, what to do, and the exit code."""

    text: str
    hint: str | None
    code: int


def describe(error: Exception) -> Described | None:
    """None for an error that a user can do nothing about."""
    if isinstance(error, OSError):
        return describe(from_os_error(error))
    if not isinstance(error, (ClientError, CommandError, SparkMqError, StorageError, *SESSION_ERRORS)):
        return None
    text, hint = _cause_and_cure(error)
    is_usage = isinstance(error, UsageError | ClientSettingError)
    return Described(text, hint, USAGE if is_usage else exit_code_of(error))


def _cause_and_cure(error: Exception) -> tuple[str, str | None]:
    match error:
        case CommandError():
            return error.text, error.hint
        case TlsError():
            return error.describe(), _TLS_HINT
        case ClientError() | StorageError():
            return error.describe(), error.cure()
        case SparkMqError():
            return error.describe(), "\n".join(error.details()) or None
    return str(error), None


def why_missing(error: Exception) -> str:
    """Why figures of others are shown and some are not: a server's silence, or another reason."""
    described = describe(error)
    text = str(error) if described is None else described.text
    return f"no answer: {text}" if isinstance(error, ClientError) else text


def refuse_nothing(found: Sized, errors: Sequence[Exception]) -> None:
    """Where brokers are missing and the others have nothing: raises the first error."""
    if errors and not found:
        raise errors[0]


def end_with(errors: Sequence[Exception], beyond: Sequence[str] = ()) -> None:
    """Say what is missing in what was printed, and what is beyond a bound. Raises typer.Exit(1) where there is anything to say."""
    for text in [*map(why_missing, errors), *beyond]:
        typer.echo(text, err=True)
    if errors or beyond:
        raise typer.Exit(FAILED)


def print_error(text: str, hint: str | None, code: int) -> None:
    """The object in place of a result, or behind those that were printed before."""
    print_json({"error": text, "hint": hint, "exit_code": code})
