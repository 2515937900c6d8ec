"""`spark-mq job`: every job has one command line, whichever way it is started."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs import JOBS
from jobs import __path__ as job_paths
from spark_mq.cli import app
from storage import open_store
from tests.support.fixture_stores import Fixture
from tests.support.places import PROJECT

FixtureStore = Callable[[str], Fixture]
RUNNER = CliRunner()


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_made_as_all_jobs_are(name: str) -> None:
    document = import_module(f"jobs.{name}").__doc__ or ""
    sentence = JOBS[name].removesuffix(".")
    assert document.startswith(sentence)
    assert f"python -m jobs.{name} PATH" in document
    shown = RUNNER.invoke(app, ["job", name, "--help"])
    assert shown.exit_code == 0
    assert sentence in " ".join(shown.output.split())
    assert {"PATH", "--conf", "--every"} <= set(re.findall(r"--[a-z-]+|PATH", shown.output))


def test_the_list_names_every_job() -> None:
    assert {module.name for module in pkgutil.iter_modules(job_paths)} == {*JOBS, "run"}
    shown = RUNNER.invoke(app, ["job", "list"])
    assert shown.exit_code == 0
    assert re.findall(r"^([a-z_]+) ", shown.output, re.MULTILINE) == ["job", *JOBS]


def test_an_unknown_job_is_refused_with_the_nearest_name() -> None:
    shown = RUNNER.invoke(app, ["job", "verify_stor", "/store"])
    assert shown.exit_code == 2
    assert "there is no job verify_stor\nhint: did you mean verify_store?" in shown.output


@pytest.mark.parametrize("name", ["verify_store", "rebuild_queues", "delete_expired_files", "deliver_delayed"])
def test_a_store_may_be_named_by_its_url(
    name: str, fixture_store: FixtureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that takes the URL for a relative path works on nothing and leaves a directory `file:` behind."""
    monkeypatch.chdir(tmp_path)
    root = fixture_store("clean").root
    by_path = RUNNER.invoke(app, ["job", name, str(root)])
    by_url = RUNNER.invoke(app, ["job", name, f"file://{root}"])
    assert (by_path.exit_code, by_url.exit_code) == (0, 0)
    if name in ("verify_store", "rebuild_queues"):
        assert by_url.output == by_path.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["deliver_delayed"],
        ["check_transactions", "--checker", "builtins:repr"],
        ["redrive_transactions"],
        ["delete_expired_files", "--now"],
        ["rebuild_queues"],
    ],
    ids=lambda words: words[0],
)
def test_beside_another_writer_a_job_does_nothing(words: list[str], fixture_store: FixtureStore) -> None:
    root = fixture_store("clean").root
    name, *options = words
    with open_store(root, read_only=False):
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        shown = RUNNER.invoke(app, ["job", name, str(root), *options, "--lock-timeout", "0"])
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert shown.exit_code == 75
    (line,) = shown.output.splitlines()
    assert line.startswith(f"nothing done: store {root}/lock is locked by another writer")


def test_a_name_may_be_spelled_as_commands_are(pristine_store: FixtureStore) -> None:
    root = str(pristine_store("clean").root)
    assert RUNNER.invoke(app, ["job", "verify-store", root]).exit_code == 0


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([sys.executable, "-m", "jobs.verify_store"], id="python -m"),
        pytest.param([sys.executable, "-c", "from spark_mq.cli import main; main()", "job", "verify_store"], id="CLI"),
    ],
)
def test_a_job_runs_whichever_way_it_is_started(
    command: list[str], pristine_store: FixtureStore, tmp_path: Path
) -> None:
    """By spark-submit: `tests/jobs/test_by_spark_submit.py`."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PYSPARK_PYTHON": sys.executable}
    store = pristine_store("clean").root
    ran = subprocess.run(
        [*command, str(store)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "keys compared" in ran.stdout
