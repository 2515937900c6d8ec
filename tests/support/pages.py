"""The pages that users read: README.md and docs/*.md, with their marked tables and their Python examples.

    python -m tests.support.pages PAGE…

runs the examples of pages in one process with one Spark session. Each page has names of its own; its examples run in their order. The
directories of the examples lie in the working directory: `/data` is `data`, `/var/lib/rocketmq` is `broker`, where a store with the
topics orders and payments lies. Queries that a page leaves running are drained and stopped. Behind what a page printed stands the line
`##### PAGE passed` or `##### PAGE failed`.
"""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import spark_mq
from storage import open_store
from tests.support.places import PROJECT

PAGES = ("README.md", *sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "docs").glob("*.md")))
TABLES = tuple(sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "docs" / "tables").glob("*.md")))
"""What long runs wrote, beside the pages of results."""
DEEPER = tuple(
    sorted(
        str(path.relative_to(PROJECT))
        for room in ("api", "platforms")
        for path in (PROJECT / "docs" / room).glob("*.md")
    )
)
"""The reference of public names, and a page for each platform."""

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


# Running the examples

PLACES = {"/var/lib/rocketmq": "broker", "/data": "data"}


def make_broker_store(path: Path) -> None:
    """What the examples read as a broker's own store."""
    path.parent.mkdir()
    with open_store(path, read_only=False, create=True) as store:
        for topic in ("orders", "payments"):
            for number in range(4):
                store.put(topic, b"...", tags="paid", keys=[f"order-471{number}"])


def run(example: Example, names: dict[str, Any]) -> None:
    """Runs it as it stands but for the directories. A traceback names the page and its line."""
    code = "\n" * (example.line - 1) + example.code
    for place, ours in PLACES.items():
        code = code.replace(f'"{place}/', f'"{Path.cwd() / ours}/')
    exec(compile(code, example.page, "exec"), names)


def run_page(page: str) -> str:
    """Whether all of the page ran: `passed` or `failed`."""
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for example in examples(page):
            if example.reason is None:
                run(example, names)
                sys.stdout.flush()  # the console sink writes to the same place
        for query in spark_mq.build_session().streams.active:
            query.processAllAvailable()
            query.stop()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return "failed"
    return "passed"


def main(pages: list[str]) -> None:
    make_broker_store(Path("broker", "store"))
    for page in pages:
        print(f"##### {page} {run_page(page)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
