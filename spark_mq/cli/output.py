"""Output of commands: tables for people, JSON for machines, times in words, errors."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import sys
import textwrap
from collections.abc import Sequence, Sized
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_mq.client.errors import ClientError, ClientSettingError, TlsError
from spark_mq.conditions import SparkMqError
from spark_mq.session import SESSION_ERRORS
from spark_mq.terminal import FAILED, USAGE, exit_code_of
from storage.errors import StorageError
from storage.files.os_errors import from_os_error

if TYPE_CHECKING:
    from storage.dispatch.recovery_plan import LoweredOffset  # a server or a client needs no store

_WIDTH_OF_A_FILE = 200
_LEAST_COLUMN = 14
"""A folded column of texts keeps so many characters. If they do not fit, each row is printed by itself."""
_WHOLE_WORD = 48
"""Words up to this length are not folded, so that a name can be copied."""
_GAP = 2
_LOWERED = 20
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


def say_lowered(lowered: Sequence[LoweredOffset]) -> None:
    """The offsets that were ahead of the log, one on a line; of very many, the first ones."""
    for each in lowered[:_LOWERED]:
        say(f"lowered: {each}")
    if len(lowered) > _LOWERED:
        say(f"lowered: {len(lowered) - _LOWERED:,} more; --json lists them")


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
