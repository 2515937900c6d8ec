"""The README says what the code does: its tables are the code's, its links exist, its first example runs as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import typer.main

from jobs.run import job_description, job_parser
from spark_mq.cli import app
from spark_mq.cli.jobs import job_names, load_job
from spark_mq.option_table import OptionRow
from spark_mq.sink.columns import KAFKA_SINK_COLUMNS, SEND_BACK_COLUMNS, SINK_COLUMNS, SinkColumn
from spark_mq.sink.options import sink_option_rows
from spark_mq.source.options import option_rows
from spark_mq.source.rows import COLUMNS, KAFKA_COLUMNS, Column
from tests.support.places import PROJECT
from tests.support.python_script import run_script

README = (PROJECT / "README.md").read_text(encoding="utf-8")
SOURCES = ("storage", "spark_mq", "jobs")
PAGES = sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "docs").glob("*.md"))
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "storage/README.md", *PAGES)


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
    for name in job_names():
        module = load_job(name)
        parser = job_parser(module.run)
        common = len(parser._actions)
        getattr(module, "add_options", lambda parser: None)(parser)
        own = [f"`{action.option_strings[0]}`" for action in parser._actions[common:]]
        rows.append([f"`{name}`", f"{job_description(module.__doc__)}", ", ".join(own) or "–"])
    return table(["job", "what it does", "its own options"], rows)


def marked(name: str) -> str:
    """What stands between `<!-- NAME -->` and `<!-- /NAME -->`."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", README, re.DOTALL)
    assert found is not None, f"README.md has no part marked {name}"
    return found[1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("options", option_table(option_rows())),
        ("jobs", job_table()),
        ("columns", column_table(COLUMNS.values())),
        ("kafka-columns", column_table(KAFKA_COLUMNS.values())),
        ("sink-options", option_table(sink_option_rows())),
        ("sink-columns", sink_column_table(SINK_COLUMNS.values())),
        ("send-back-columns", sink_column_table(SEND_BACK_COLUMNS.values())),
        ("kafka-sink-columns", sink_column_table(KAFKA_SINK_COLUMNS.values())),
    ],
)
def test_the_tables_are_the_codes(name: str, expected: str) -> None:
    assert marked(name) == expected


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_and_headings_that_are_there(document: str) -> None:
    text = (PROJECT / document).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    for target in targets:
        place, _, heading = target.partition("#")
        file = (PROJECT / document).parent / place if place else PROJECT / document
        assert file.exists(), f"{document} links to {target}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {anchor(title) for title in titles}, f"{document} links to {target}"


def anchor(title: str) -> str:
    """The name that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_are_there(document: str) -> None:
    text = (PROJECT / document).read_text(encoding="utf-8")
    for name in re.findall(r"`((?:\w+/)*\w+\.(?:py|sh|md|ipynb))`", text):
        places = [PROJECT / name, *(place for root in SOURCES for place in (PROJECT / root).rglob(Path(name).name))]
        assert any(str(place).endswith(f"/{name}") and place.is_file() for place in places), f"{document} names {name}"


def test_the_command_table_names_every_command_and_no_other() -> None:
    named = set(re.findall(r"^\| `([a-z-]+)(?: [^`]*)?` \|", marked("commands"), re.MULTILINE))
    assert named == set(typer.main.get_command(app).commands)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("names", "shows"),
    [
        ("startingOffsets", ["|queue_id|queue_offset|", "Batch: 0"]),
        ("own-checkpoint", ["|TopicA|  600|", "|orders|    2|"]),
    ],
)
def test_the_first_examples_run_as_they_stand(names: str, shows: list[str], tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    ran = run_script(next(example for example in examples if names in example), tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert all(text in ran.stdout for text in shows)
    assert "Traceback" not in ran.stderr, ran.stderr
