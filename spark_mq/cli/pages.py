"""Self-contained pages: one file, no script, nothing from elsewhere; for a mail, a ticket, or a printer.

Jinja2 escapes every value, and `visible_text.py` writes out before what a browser does not draw.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files
from typing import Any, NamedTuple

from spark_mq import __version__
from spark_mq.cli.visible_text import visible
from spark_mq.terminal import CommandError

INSTALL = "pip install 'spark_mq[console]'"
"""What brings Jinja2 and the console's server."""
_SHORT, _FEW_COLUMNS = 40, 6
"""Characters of a text that is not folded in a table of few columns; in others half of it."""


def print_page(template: str, **values: Any) -> None:
    """Print a page of templates/. Raises CommandError where Jinja2 is not installed."""
    sys.stdout.write(render_page(template, **values))


def render_page(template: str, **values: Any) -> str:
    """The page as text. Raises CommandError where Jinja2 is not installed."""
    found = page_environment("spark_mq.cli", thousands=True)
    return str(found.get_template(template).render(version=__version__, **values))


def page_environment(package: str, *, thousands: bool) -> Any:
    """The templates of a package: values are escaped and visible, None is a dash, a name without a value is an error.

    With `thousands` whole numbers have separators. Raises CommandError where Jinja2 is not installed.
    """
    try:
        jinja2: Any = import_module("jinja2")
    except ModuleNotFoundError as error:
        raise CommandError("pages are made with Jinja2, which is not installed", INSTALL) from error
    markup = jinja2.utils.markupsafe.Markup

    def finalized(value: object) -> object:
        """What is printed of a value; markup is the templates' own."""
        if value is None:
            return "–"
        if thousands and isinstance(value, int) and not isinstance(value, bool):
            return f"{value:,}"
        return visible(value) if isinstance(value, str) and not isinstance(value, markup) else value

    def template(name: str) -> str:
        return (files(package) / "templates" / name).read_text("utf-8")

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )


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
