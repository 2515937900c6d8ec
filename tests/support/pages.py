"""The pages that users read: README.md and docs/*.md, with their marked tables and their Python examples."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.places import PROJECT

PAGES = ("README.md", *sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "docs").glob("*.md")))
TABLES = tuple(sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "docs" / "tables").glob("*.md")))
"""What long runs wrote, beside the pages of results."""

_EXAMPLE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)


class Example(NamedTuple):
    """A block of Python on a page."""

    page: str
    line: int
    """Of its first line of code, from 1."""
    code: str
    reason: str | None
    """Why it cannot run, as the comment `<!-- not run: REASON -->` above it says; None = it runs."""


def page_text(page: str) -> str:
    return (PROJECT / page).read_text(encoding="utf-8")


def examples(page: str) -> list[Example]:
    """The Python examples of a page, from its top."""
    text = page_text(page)
    return [
        Example(page, text.count("\n", 0, found.start("code")) + 1, found["code"], found["reason"])
        for found in _EXAMPLE.finditer(text)
    ]


def marked(name: str) -> tuple[str, str]:
    """The page, and what stands there between `<!-- NAME -->` and `<!-- /NAME -->`. AssertionError unless there is one such place."""
    pattern = re.compile(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", re.DOTALL)
    found = [(page, part) for page in PAGES for part in pattern.findall(page_text(page))]
    assert len(found) == 1, f"a part marked {name} stands on {[page for page, _ in found] or 'no page'}"
    return found[0]


def rows(table: str) -> list[list[str]]:
    """The cells of a Markdown table below its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
