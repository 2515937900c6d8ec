"""README.md is short; it and the pages under docs/ say what the code does: their tables are the code's, their links exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from jobs import JOBS
from jobs.run import Shared
from spark_mq.cli.app import COMMANDS, load_job
from spark_mq.command_options import Connection
from spark_mq.options import OptionRow
from spark_mq.sink.columns import (
    KAFKA_SINK_COLUMNS,
    LIVE_SEND_BACK_COLUMNS,
    SEND_BACK_COLUMNS,
    SINK_COLUMNS,
    SinkColumn,
)
from spark_mq.sink.options import live_sink_option_rows, sink_option_rows
from spark_mq.source.options import option_rows
from spark_mq.source.rows import COLUMNS, KAFKA_COLUMNS, Column
from tests.support.pages import DEEPER, PAGES, TABLES, marked, page_text, rows
from tests.support.places import PROJECT

SOURCES = ("storage", "spark_mq", "jobs", "bench", "examples")
DOCUMENTS = (
    *PAGES,
    *TABLES,
    *DEEPER,
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/README.md",
    "storage/README.md",
    "bench/README.md",
)

README_LINES = 200
README_WIDTH = 145


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a `|` inside a cell is escaped, in code too."""
    cells = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def column_table(columns: Iterable[Column]) -> str:
    rows = (
        [f"`{column.name}`", f"`{column.sql_type}`", "yes" if column.nullable else "no", column.meaning]
        for column in columns
    )
    return table(["column", "type", "null", "meaning"], rows)


def sink_column_table(columns: Iterable[SinkColumn]) -> str:
    return table(
        ["column", "type", "meaning"],
        ([f"`{column.name}`", f"`{column.sql_type}`", column.meaning] for column in columns),
    )


def option_table(options: Iterable[OptionRow]) -> str:
    rows = ([f"`{row.name}`", row.default, row.mode, row.meaning] for row in options)
    return table(["option", "default", "queries", "meaning"], rows)


def job_table() -> str:
    """Each job with the sentence that it says of itself, and the options that not every job has."""
    rows = []
    shared = {"path", *(each.name for kind in (Shared, Connection) for each in fields(kind))}
    for name, line in JOBS.items():
        own = [f"`{each.opts[0]}`" for each in load_job(name).params if each.name not in shared]
        rows.append([f"`{name}`", line.rstrip("."), ", ".join(own) or "–"])
    return table(["job", "what it does", "its own options"], rows)


def test_the_readme_is_short() -> None:
    lines = page_text("README.md").splitlines()
    assert len(lines) <= README_LINES
    assert [line for line in lines if len(line) > README_WIDTH and not line.startswith("|")] == []


@pytest.mark.parametrize(
    ("page", "name", "expected"),
    [
        ("docs/reading.md", "options", option_table(option_rows())),
        ("docs/reading.md", "columns", column_table(COLUMNS.values())),
        ("docs/reading.md", "kafka-columns", column_table(KAFKA_COLUMNS.values())),
        ("docs/writing.md", "sink-options", option_table(sink_option_rows())),
        ("docs/live.md", "live-sink-options", option_table(live_sink_option_rows())),
        ("docs/live.md", "live-send-back-columns", sink_column_table(LIVE_SEND_BACK_COLUMNS.values())),
        ("docs/writing.md", "sink-columns", sink_column_table(SINK_COLUMNS.values())),
        ("docs/writing.md", "send-back-columns", sink_column_table(SEND_BACK_COLUMNS.values())),
        ("docs/writing.md", "kafka-sink-columns", sink_column_table(KAFKA_SINK_COLUMNS.values())),
        ("docs/jobs.md", "jobs", job_table()),
    ],
    ids=lambda value: value if "\n" not in value else "",
)
def test_the_tables_are_the_codes(page: str, name: str, expected: str) -> None:
    assert marked(name) == (page, expected)


def test_the_command_table_names_every_command_and_no_other() -> None:
    page, commands = marked("commands")
    named = set(re.findall(r"^\| `([a-z-]+)(?: [^`]*)?` \|", commands, re.MULTILINE))
    assert (page, named) == ("docs/command-line.md", set(COMMANDS))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_and_jobs_that_are_named_are_there(document: str) -> None:
    text = page_text(document)
    assert set(re.findall(r"(?:`|^ {4}|bin/)spark-mq ([a-z][a-z-]+)", text, re.MULTILINE)) <= set(COMMANDS)
    assert set(re.findall(r"spark-mq job ([a-z_]+)", text)) <= {*JOBS, "list"}


def test_the_readmes_rates_are_those_of_the_page_of_measurements() -> None:
    """Its short table: k messages/s (the median), x Kafka's, share of the ceiling."""
    measured = {
        ("read", "Kafka's columns"): ("read-rates", ["spark_mq", "Kafka's"]),
        ("read", "all 21 columns"): ("read-rates", ["spark_mq", "all 21"]),
        **{
            (f"write, {flush}", way): ("write-rates", [f"spark_mq, {flush}", way])
            for flush in ("ASYNC_FLUSH", "SYNC_FLUSH")
            for way in ("batch, `writeId`", "one micro-batch")
        },
    }
    shown = {(row[0], row[1]): row[2:] for row in rows(marked("rates")[1])}
    assert shown.keys() == measured.keys()
    for key, (name, labels) in measured.items():
        (figures,) = (row[2:] for row in rows(marked(name)[1]) if row[:2] == labels)
        assert shown[key] == [figures[0].partition(" (")[0], *figures[1:]]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_and_headings_that_are_there(document: str) -> None:
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", page_text(document)) if "://" not in target]
    for target in targets:
        place, _, heading = target.partition("#")
        file = (PROJECT / document).parent / place if place else PROJECT / document
        assert file.exists(), f"{document} links to {target}"
        if heading:
            assert heading in anchors(file.read_text(encoding="utf-8")), f"{document} links to {target}"


def anchors(text: str) -> set[str]:
    """The names that GitHub gives the headings; what is in a block of code is none."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[\w/-]+\.md)", page_text("README.md")))
    assert linked == {*PAGES, *DEEPER} - {"README.md"}


def test_code_and_settings_name_no_heading_of_a_page_that_is_not_there() -> None:
    """Error texts, docstrings and broker.conf name a page by its path, with `#` and a heading or without."""
    places = [path for root in (*SOURCES, "conf", "tests") for path in (PROJECT / root).rglob("*")]
    for path in (path for path in places if path.suffix in {".py", ".conf"} and path.is_file()):
        for page, heading in re.findall(
            r"\b(docs/(?:\w+/)?[\w-]+\.md|README\.md)(?:#([\w-]+))?", path.read_text("utf-8")
        ):
            assert page in (*PAGES, *TABLES, *DEEPER), f"{path} names {page}"
            assert not heading or heading in anchors(page_text(page)), f"{path} names {page}#{heading}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_are_there(document: str) -> None:
    for name in re.findall(r"`((?:\w+/)*\w+\.(?:py|sh|md|ipynb))`", page_text(document)):
        places = [PROJECT / name, *(place for root in SOURCES for place in (PROJECT / root).rglob(Path(name).name))]
        assert any(str(place).endswith(f"/{name}") and place.is_file() for place in places), f"{document} names {name}"
