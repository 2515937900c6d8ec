"""Every Python example of README.md and docs/*.md runs as it stands; pages and notebooks import public names only."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.dataset
import pytest

import spark_mq
import spark_mq.client
import spark_mq.testing
import spark_mq.values
import storage
from storage import errors
from tests.support.pages import PAGES, Example, examples
from tests.support.places import PROJECT
from tests.support.python_script import run_script

NOT_RUN: Mapping[tuple[str, int], str] = {
    ("docs/archive.md", 1): "it needs a store whose topic is archived",
    ("docs/consumers.md", 1): "it needs a running cluster",
    ("docs/consumers.md", 2): "it needs a running cluster",
    ("docs/producers.md", 1): "it needs a running cluster",
    ("docs/producers.md", 2): "it needs a running cluster",
    ("docs/producers.md", 3): "it needs a running cluster",
    ("docs/producers.md", 4): "it needs a running cluster",
}
"""Examples that cannot run, by page and number (from 1), with the reason that the page gives above them."""

RECIPES = "docs/recipes.md"
TESTING = "docs/testing.md"
"""Its examples are tests; `tests/testing/test_recipes.py` runs them."""
RUN_TOGETHER = tuple(
    page for page in PAGES if page not in (RECIPES, TESTING) and any(each.reason is None for each in examples(page))
)

SHOWN = {
    "README.md": ["|queue_id|queue_offset|", "Batch: 0", "|TopicA|  600|", "|orders|    2|"],
    "docs/install.md": [],
    "docs/metrics.md": ["|lag_rows|oldest_unread_ms|", "http://127.0.0.1:"],
    "docs/reading.md": ["TopicA broker-lab 0 0 0 0", "Total(rows=0, bytes=0, time_ms=0)", "10 messages, "],
    "docs/spark-traps.md": [],
    "docs/writing.md": ["PutResult(topic='orders'"],
}
"""What a page's examples print, among the rest."""

PUBLIC = {
    "spark_mq": spark_mq.__all__,
    "spark_mq.client": spark_mq.client.__all__,
    "spark_mq.values": spark_mq.values.__all__,
    "spark_mq.testing": spark_mq.testing.__all__,
    "storage": storage.__all__,
}
"""Jobs are commands, not a library: `jobs` gives no name to import, and no page shows that."""


class Ran(dict[str, tuple[bool, str]]):
    """By page, whether all of its examples ran, and what they printed; `directory` is where."""

    directory: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One process and one Spark session for all pages but the recipes, which need Delta's jars."""
    pages = Ran()
    pages.directory = tmp_path_factory.mktemp("pages")
    script = f"from tests.support.pages import main\nmain({list(RUN_TOGETHER)!r})"
    process = run_script(script, pages.directory, timeout_s=600, small=True)
    for printed, page, outcome in re.findall(
        r"(.*?)^##### (\S+) (passed|failed)\n", process.stdout, re.DOTALL | re.MULTILINE
    ):
        pages[page] = (outcome == "passed", printed)
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr, process.stderr
    return pages


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_TOGETHER)
@pytest.mark.long
def test_the_examples_of_a_page_run_as_they_stand(page: str, ran: Ran) -> None:
    passed, printed = ran[page]
    assert passed, printed
    assert [text for text in SHOWN[page] if text not in printed] == [], printed


@pytest.mark.spark
@pytest.mark.slow
def test_the_readmes_stream_writes_its_rows(ran: Ran) -> None:
    """Four orders and four payments of the broker's store, each once."""
    table = pyarrow.dataset.dataset(
        ran.directory / "data" / "orders", format="parquet", exclude_invalid_files=True
    ).to_table()
    assert sorted(table.column("topic").to_pylist()) == ["orders"] * 4 + ["payments"] * 4


@pytest.mark.spark
@pytest.mark.slow
def test_the_examples_of_writing_leave_what_their_pages_say(ran: Ran) -> None:
    """Of two orders one is paid: committed at once, the other is a half message to be asked about. Both have a reminder."""
    expected = {"placed": 1, "RMQ_SYS_TRANS_HALF_TOPIC": 3, "rmq_sys_wheel_timer": 2, "OrderPlaced": 1, "orders": 3}
    assert counts(ran.directory / "shop", *expected) == expected
    assert counts(ran.directory / "inserted", "orders") == {"orders": 600}


def counts(path: Path, *topics: str) -> dict[str, int]:
    """The messages of each topic of a store."""
    with storage.open_store(path) as store:
        return {topic: sum(store.max_offset(topic, queue) for queue in store.queue_ids(topic)) for topic in topics}


def test_examples_that_cannot_run_say_why() -> None:
    said = {
        (page, number): example.reason
        for page in PAGES
        for number, example in enumerate(examples(page), start=1)
        if example.reason is not None
    }
    assert said == NOT_RUN


def sources() -> Iterator[Example]:
    """All Python that users are shown: examples of the pages, cells of the notebooks."""
    for page in PAGES:
        yield from examples(page)
    for path in sorted((PROJECT / "notebooks").glob("*.ipynb")):
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], start=1):
            if cell["cell_type"] == "code":
                yield Example(f"{path.name}, cell", number, "".join(cell["source"]), None)


def names_that_are_not_public(code: str) -> list[str]:
    """What a piece of code takes from our packages by another way than `import spark_mq` or `from PACKAGE import PUBLIC NAME`."""
    wrong = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            wrong += [name.name for name in node.names if _package(name.name) and name.name not in PUBLIC]
        elif isinstance(node, ast.ImportFrom) and _package(node.module or ""):
            public = PUBLIC.get(node.module or "", ())
            wrong += [f"{node.module}.{name.name}" for name in node.names if name.name not in public]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            public = PUBLIC.get(node.value.id, (node.attr,))
            wrong += [] if node.attr in public else [f"{node.value.id}.{node.attr}"]
    return wrong


def _package(module: str) -> bool:
    return module.partition(".")[0] in {"spark_mq", "storage", "jobs", "pyspark_spark_mq", "pytest_spark_mq"}


@pytest.mark.parametrize("source", [*sources()], ids=lambda source: f"{source.page}:{source.line}")
def test_pages_and_notebooks_use_public_names_only(source: Example) -> None:
    assert names_that_are_not_public(source.code) == []


def test_other_ways_to_a_name_are_noticed() -> None:
    code = """
import storage.errors
from spark_mq.source.lag import queue_lags
from jobs import run
from storage import x, open_store
spark_mq.session
"""
    assert names_that_are_not_public(code) == [
        "storage.errors",
        "spark_mq.source.lag.queue_lags",
        "jobs.run",
        "storage.x",
        "spark_mq.session",
    ]


def test_storage_gives_every_error_that_it_raises() -> None:
    kinds = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.StorageError)
    }
    assert kinds <= set(storage.__all__)
    assert all(hasattr(storage, name) for name in storage.__all__)


def test_the_package_lists_what_it_gives_before_anything_of_it_is_loaded() -> None:
    shown = [name for name in dir(spark_mq) if not name.startswith("_")]
    assert shown == sorted(name for name in spark_mq.__all__ if not name.startswith("_"))
    assert all(callable(getattr(spark_mq, name)) for name in shown)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_the_recipes_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends with what they leave behind: each order once in the archive and in its typed table, copies, and gauges of all queues."""
    ending = """
raw = [bytes(row.body) for row in spark.read.format("delta").load("tables/archive").collect()]
sent = [bytes(row.body) for row in spark.read.format("spark_mq").option("path", "shop").option("topic", "orders").load().collect()]
print("archived", sorted(raw) == sorted(sent), "typed", typed.count(), "sum", typed.selectExpr("sum(amount)").first()[0])
import time
until = time.monotonic() + 60
while generate_latest().decode().count("spark_mq_lag_rows{") < 4 and time.monotonic() < until:
    time.sleep(0.1)
print(generate_latest().decode())
server.shutdown()
"""
    commands = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    ran = run_script(
        "\n".join([*(example.code for example in examples(RECIPES)), ending]), tmp_path, timeout_s=600, small=True
    )
    assert ran.returncode == 0, ran.stderr
    for shown in (
        "archived 1,004 messages of 1 topics",
        "typed 1,004 messages of orders; 4 are not of the schema",
        "|       9|  100|",  # its table: each customer's orders, none twice
        "|amount is not DOUBLE|",
        "|it also has coupon  |",
        "the typed table of orders has new fields: coupon",
        "| 1003|SUMMER|",
        "| 1001|SPRING|",  # parsed again
        "left out: 3",
        "|customer 9|",  # the backfill
        "|  TopicRetry|",  # the dead letters
        "| all-orders| 1005|",  # foreachBatch
        "|paid-orders| 1000|",
        "archived True typed 1005 sum 249750.5",
        'spark_mq_lag_rows{broker="broker-lab",query="watched",queue="3",topic="TopicA"}',
    ):
        assert shown in ran.stdout, ran.stdout
