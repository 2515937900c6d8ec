"""What commands print: tables for people, JSON for machines, progress on a terminal's stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

_WIDTH_OF_A_FILE = 200


def print_json(document: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")


def console() -> Console:
    """Where people read: the terminal in its width, a file in a fixed one."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE, highlight=False)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """A table; numbers stand to the right, None is a dash."""
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        is_number = any(isinstance(row[number], int) for row in rows)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("–" if value is None else str(value)) for value in row))
    console().print(table)


def time_text(time_ms: int | None) -> str | None:
    """A time as ISO-8601 in UTC, as options take it."""
    if time_ms is None:
        return None
    moment = datetime.fromtimestamp(time_ms / 1_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1_000:03d}Z"


def body_text(body: bytes, characters: int = 40) -> str:
    """The beginning of a body that is text, the size of another."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"{len(body)} bytes"
    if not text.isprintable():
        return f"{len(body)} bytes"
    return text if len(text) <= characters else text[:characters] + "…"


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while the block runs, if that is a terminal; the block tells (done, all)."""
    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield lambda done, total: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=terminal, transient=True) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def busy(text: str) -> Iterator[None]:
    """A sign of life on stderr, if that is a terminal, while something runs that cannot say how far it is."""
    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield
        return
    with terminal.status(text):
        yield
