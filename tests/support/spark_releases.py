"""The tests of Spark in the release that is installed, and their column in docs/tables/spark-releases.md.

    python -m tests.support.spark_releases docs/tables/spark-releases.md [arguments of pytest]

`make test-spark SPARK=4.1.4` runs it in an environment with that release. Columns of other releases stay,
and of this one the rows of features that were not run. Exit code: pytest's.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.support.places import PROJECT

FEATURES = PROJECT / "tests" / "spark" / "test_releases.py"
NOT_RUN = "not run"
PASSED, SKIPPED, FAILED = "tests passed", "tests left out, by name of what the release lacks", "tests failed"
HEAD = """\
# Features and Spark releases

`make test-spark SPARK=4.1.4` runs the tests of Spark in an environment with that release, and writes its column here. `works`: its
test passed. `needs 4.2`: the release cannot do it, and the query is refused at planning, with that release in the text.
The numbers count all tests of the column's last run with every feature, which may have been given more files than these features' own.

"""

Column = dict[str, str]


def features() -> dict[str, str]:
    """The row of each test: the first line of its docstring, by the test's name."""
    tree = ast.parse(FEATURES.read_text("utf-8"))
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {test.name: (ast.get_docstring(test) or test.name).splitlines()[0] for test in tests}


def column_of(report: Path) -> Column:
    """What pytest's JUnit XML says of each feature, and how many tests passed."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    rows: dict[str, set[str]] = {row: set() for row in features().values()}
    for case in cases:
        name = case.get("name", "").partition("[")[0]
        if case.get("classname", "").endswith(FEATURES.stem) and name in features():
            rows[features()[name]].add(_outcome(case))
    counts = {
        PASSED: sum(_outcome(case) not in ("fails", "skipped") for case in cases),
        SKIPPED: sum(_outcome(case) == "skipped" for case in cases),
        FAILED: sum(_outcome(case) == "fails" for case in cases),
    }
    outcomes = {row: ", ".join(sorted(found)) or NOT_RUN for row, found in rows.items()}
    return outcomes | {row: str(count) for row, count in counts.items()}


def merged(before: Column, found: Column) -> Column:
    """The column after a run. One of a part of the features changes their rows alone: its numbers would not be the column's."""
    rows = {row: found[row] for row in features().values() if found[row] != NOT_RUN}
    return before | rows if before and len(rows) < len(features()) else found


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "fails"
    if case.find("skipped") is not None:
        return "skipped"
    refused = [one.get("value", "") for one in case.iter("property") if one.get("name") == "refused"]
    return refused[0] if refused else "works"


def columns_of(page: str) -> dict[str, Column]:
    """The columns that a page has, by release."""
    lines = [_cells(line) for line in page.splitlines() if line.startswith("|")]
    if not lines:
        return {}
    head, _, *rows = lines
    return {release: {row[0]: row[number] for row in rows} for number, release in enumerate(head[1:], 1)}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def page_of(columns: Mapping[str, Column]) -> str:
    releases = sorted(columns, key=lambda release: [int(number) for number in re.findall(r"\d+", release)])
    rows = [*features().values(), PASSED, SKIPPED, FAILED]
    table = [["feature", *releases], ["---"] * (len(releases) + 1)]
    table += [[row, *(columns[release].get(row, NOT_RUN) for release in releases)] for row in rows]
    return HEAD + "".join(_line(cells) for cells in table)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def main(arguments: Sequence[str]) -> int:
    from pyspark import __version__

    page, *others = arguments
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", f"--junitxml={report}", *others], cwd=PROJECT, check=False
        )
        if not report.exists():
            return done.returncode or 1
        place = PROJECT / page
        columns = columns_of(place.read_text("utf-8")) if place.exists() else {}
        columns[__version__] = merged(columns.get(__version__, {}), column_of(report))
    place.write_text(page_of(columns), encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
