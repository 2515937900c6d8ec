"""How a page is made: the console's parts, what a request has asked, addresses, figures as texts, templates.

Every value of a template is escaped, and made visible before (`shown.py`). An address is made by `link`, which encodes every value. A
template that names a value that is not there is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from spark_mq import __version__
from spark_mq.cli.pages import page_environment
from spark_mq.cli.visible_text import shown_place, visible
from spark_mq.console.replays import Replays
from spark_mq.console.samples import Samples
from spark_mq.console.security import Access
from spark_mq.console.shown import compression_of
from spark_mq.console.views import Views
from spark_mq.options import parse_time
from spark_mq.source.archive_table import Place as ArchivePlace
from spark_mq.terminal import UsageError, ago_in_words, span_in_words, time_text, why_missing
from storage import Message
from storage.epoch_times import current_time_ms
from storage.format.record import host_text

LONGEST_TEXT = 4_096
"""Of a value that a request has."""
_GREATEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Console:
    """The parts of the application, which live as long as it."""

    views: Views
    samples: Samples
    replays: Replays
    access: Access
    allows_changes: bool = False
    archive: ArchivePlace | None = None
    clock: Callable[[], int] = current_time_ms


def console_of(request: Request) -> Console:
    found = request.app.state.console
    assert isinstance(found, Console)
    return found


class Asked:
    """The values that a request has, by their names. An empty one counts as missing; a wrong one raises UsageError."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = {name: value for name, value in values.items() if value}
        for name, value in self._values.items():
            if len(value) > LONGEST_TEXT:
                raise UsageError(f"{name} has {len(value):,} characters, the limit is {LONGEST_TEXT:,}")

    @classmethod
    def of(cls, request: Request) -> Asked:
        return cls(dict(request.query_params))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def required(self, name: str) -> str:
        if name not in self._values:
            raise UsageError(f"the address names no {name}")
        return self._values[name]

    def number(self, name: str) -> int | None:
        text = self._values.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > _GREATEST:
            raise UsageError(f"{name} must be a whole number from 0 on, found {visible(text[:40])}")
        return int(text)

    def time_ms(self, name: str, now_ms: int) -> int | None:
        """As options take times. Raises OptionError."""
        text = self._values.get(name)
        return None if text is None else parse_time(text, name).at(now_ms)


def link(path: str, **values: str | int | None) -> str:
    """An address of the console; values that are None are left out."""
    given = {name: value for name, value in values.items() if value is not None}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def message_link(broker_name: str, message: Message) -> str:
    """The page of a message."""
    return link(
        "/message",
        topic=message.topic,
        broker=broker_name,
        queue=message.queue_id,
        offset=message.queue_offset,
    )


def when(time_ms: int | None) -> str | None:
    """A time in UTC; a number that is none is shown as it is."""
    try:
        text = time_text(time_ms)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return None if text is None else text.replace("T", " ").replace("Z", "")


def ago(time_ms: int | None, now_ms: int) -> str | None:
    """How long ago a time is, or in how long it comes."""
    return None if time_ms is None else ago_in_words(time_ms, now_ms)


def number(value: object) -> object:
    """With separators between thousands; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def as_typed(text: str | None) -> Markup:
    """A value of a form's field, which goes back as it came."""
    return escape(text or "")


def lines(text: str) -> Markup:
    """A text of several lines that `shown.py` has made; it is escaped here."""
    return escape(text)


@cache
def _environment() -> Any:
    made = page_environment("spark_mq.console", thousands=False)
    made.globals |= {"link": link, "message_link": message_link, "version": __version__}
    made.filters |= {
        "when": when,
        "ago": ago,
        "duration": span_in_words,
        "why_missing": why_missing,
        "number": number,
        "as_typed": as_typed,
        "lines": lines,
        "compression": compression_of,
        "host": host_text,
        "place": shown_place,
    }
    return made


def page(
    request: Request, template: str, *, status: int = 200, missing: Mapping[str, Exception] | None = None, **values: Any
) -> HTMLResponse:
    """A page by its template; for htmx without what stands around its content. `missing` are a view's troubles."""
    console = console_of(request)
    is_part = "hx-request" in request.headers and "hx-history-restore-request" not in request.headers
    known = {
        "console": console,
        "layout": "part.html" if is_part else "base.html",
        "path": request.url.path,
        "now_ms": console.clock(),
        "form": console.access.form,
        "missing": {name: str(error) for name, error in sorted((missing or {}).items())},
    }
    text = _environment().get_template(template).render(**known, **values)
    return HTMLResponse(text.encode(errors="replace"), status)
