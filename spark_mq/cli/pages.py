"""Self-contained pages: one file, no script, nothing from elsewhere; for a mail, a ticket, or a printer.

Jinja2 escapes every value. Characters that a browser does not draw, or that make it draw others elsewhere (controls, the marks of
right-to-left text, blanks without width), are written out before: `␛`, `⟨U+202E⟩`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files
from typing import Any, NamedTuple

from spark_mq import __version__
from spark_mq.cli.output import CommandError

_INSTALL = "pip install 'spark_mq[console]'"
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffc\ufffe\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_SHORT, _FEW_COLUMNS = 40, 6
"""Characters of a text that is not folded in a table of few columns; in others half of it."""
_PICTURES = {**{chr(code): chr(0x2400 + code) for code in range(0x20)}, "\x7f": "\u2421"}


def visible(text: str) -> str:
    """The text with every character that is not drawn, line ends among them, written out."""
    return _HIDDEN.sub(lambda found: _PICTURES.get(found.group()) or f"⟨U+{ord(found.group()):04X}⟩", text)


def print_page(template: str, **values: Any) -> None:
    """Print a page of templates/. Raises CommandError where Jinja2 is not installed."""
    sys.stdout.write(render_page(template, **values))


def render_page(template: str, **values: Any) -> str:
    """The page as text. Raises CommandError where Jinja2 is not installed."""
    try:
        jinja2: Any = import_module("jinja2")
    except ModuleNotFoundError as error:
        raise CommandError("pages are made with Jinja2, which is not installed", _INSTALL) from error
    markup = jinja2.utils.markupsafe.Markup

    def finalized(value: object) -> object:
        """A dash for nothing, thousands apart, visible text; markup is the templates' own."""
        if value is None:
            return "–"
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{value:,}"
        return visible(value) if isinstance(value, str) and not isinstance(value, markup) else value

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return str(environment.get_template(template).render(version=__version__, **values))


def _template(name: str) -> str:
    return (files("spark_mq.cli") / "templates" / name).read_text("utf-8")


class Sheet(NamedTuple):
    """A table of a page. A cell is a text, a number, or None for unknown."""

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    nothing: str = "none"
    """What stands in its place without rows."""
    total: Sequence[object] | None = None

    @property
    def numbers(self) -> frozenset[int]:
        """The columns that hold numbers, which stand to the right."""
        columns = range(len(self.headings))
        return frozenset(column for column in columns if any(isinstance(row[column], int | float) for row in self.rows))

    @property
    def short(self) -> frozenset[int]:
        """The columns whose texts stay in one line; names may be long, and are folded."""
        most = _SHORT if len(self.headings) <= _FEW_COLUMNS else _SHORT // 2
        rows = [self.headings, *self.rows, *([] if self.total is None else [self.total])]
        return frozenset(
            column for column in range(len(self.headings)) if all(len(str(row[column])) <= most for row in rows)
        )
