"""Without PySpark store, clients, servers and commands work, and what needs Spark says what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fixture_stores import Fixture
from tests.support.places import PROJECT

NOT_THERE = (
    *("pyspark", "py4j", "delta", "deltalake", "pandas", "numba", "llvmlite", "rocksdict", "yaml", "s3fs"),
    *("starlette", "uvicorn", "jinja2", "markupsafe"),
)
"""Top-level packages of extras: a plain `pip install spark_mq` has none of them."""

BLOCKED = f"""
import sys

class WithoutThem:
    def __init__(self, finders):
        self.finders = finders

    def find_spec(self, name, *others):
        if name.partition(".")[0] in {NOT_THERE}:
            return None
        return next(filter(None, (finder.find_spec(name, *others) for finder in self.finders)), None)

sys.meta_path[:] = [WithoutThem(sys.meta_path[:])]
"""

NEED_CONSOLE = {
    f"spark_mq.console.{name}" for name in ("application", "message_pages", "pages", "security", "work_pages")
}
"""Modules of the console's pages: its command says what to install."""
NEED_SPARK = {
    "spark_mq.data_source",
    "spark_mq.replay_audit",
    "spark_mq.spark_api",
    "spark_mq.values",
    *(
        f"spark_mq.sink.{name}"
        for name in ("columns", "commit", "direct_writer", "live_sink", "partition_writer", "writers")
    ),
    *(
        f"spark_mq.source.{name}"
        for name in ("batch_reader", "listener", "partition_reader", "query_looks", "query_metrics", "stream_reader")
    ),
}
"""Modules that Spark calls, or that call Spark."""


def run(script: str, *arguments: str, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + textwrap.dedent(script), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("from spark_mq.cli import main; main()", *arguments)


def test_every_module_that_is_not_sparks_can_be_imported() -> None:
    done = run(
        """
        import importlib, json, pkgutil
        failed = {}
        for package in map(importlib.import_module, ("storage", "spark_mq", "jobs")):
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                if not module.name.startswith("storage.format.kernels."):
                    try:
                        importlib.import_module(module.name)
                    except ImportError as error:
                        failed[module.name] = f"{type(error).__name__}: {error}"
        print(json.dumps(failed))
        """
    )
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert failed.keys() == NEED_SPARK | NEED_CONSOLE
    for text in (failed[name] for name in NEED_SPARK):
        assert text.startswith('SparkNotFoundError: format("spark_mq") needs PySpark')
        assert "pip install 'spark_mq[spark]'" in text


@pytest.mark.parametrize("name", ["build_session()", "LagListener", "send_back"])
@pytest.mark.slow
def test_a_public_name_that_needs_spark_says_what_to_install(name: str) -> None:
    done = run(f"import spark_mq\nspark_mq.{name}")
    assert "SparkNotFoundError" in done.stderr.splitlines()[-1]
    assert "pip install 'spark_mq[spark]'" in done.stderr.splitlines()[-1]


def test_a_spark_without_python_data_sources_is_told_which_release_brings_them(tmp_path: Path) -> None:
    (tmp_path / "pyspark" / "sql").mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.9'\nclass TaskContext: ...\n", "ascii")
    (tmp_path / "pyspark" / "sql" / "__init__.py").write_text(
        "Column = DataFrame = SparkSession = functions = 1\n", "ascii"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(PROJECT)!r}]; import spark_mq.data_source",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "needs PySpark 4.0 or newer, which brought pyspark.sql.datasource" in done.stderr.splitlines()[-1]


def test_store_and_clients_are_used_without_spark(tmp_path: Path) -> None:
    done = run(
        """
        import sys
        from storage import Message, open_store
        import spark_mq.client, spark_mq.broker_server.server, spark_mq.namesrv.server, spark_mq.controller.server
        import spark_mq
        path = spark_mq.unpack_example_store(sys.argv[1])
        with open_store(path) as store:
            print(store.get("TopicA", 0, 0, 1).messages[0].topic)
        lags = spark_mq.queue_lags
        """,
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "TopicA\n"


@pytest.mark.slow
def test_commands_work_without_spark(pristine_store: Callable[[str], Fixture], tmp_path: Path) -> None:
    path = str(pristine_store("clean").root)
    assert command("--version").stdout.startswith("spark-mq ")
    for words in (
        ["topics", path],
        ["dump", path, "--limit", "1"],
        ["verify", path],
        ["job", "list"],
        ["lag", "--help"],
        ["job", "archive", "--help"],
        ["job", "restore", "--help"],
    ):
        done = command(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert done.stdout


@pytest.mark.slow
def test_the_demo_shows_the_store_and_says_how_to_get_spark() -> None:
    done = command("demo")
    assert done.returncode == 0, done.stderr
    assert "TopicA" in done.stdout
    assert "pip install 'spark_mq[spark]'" in done.stdout


@pytest.mark.slow
def test_the_doctor_says_what_to_install(tmp_path: Path) -> None:
    """It starts interpreters of its own, so each one must lack the packages."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKED, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from spark_mq.cli import main; main()", "doctor", "--json"],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert any("pip install 'spark_mq[spark]'" in str(each) and "cannot import pyspark" in str(each) for each in found)
