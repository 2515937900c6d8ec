"""The programs of examples/ run as they stand, are short, and use public names only."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import JOBS
from spark_mq.cli.app import load_job
from tests.support.places import PROJECT
from tests.support.python_script import SMALL
from tests.test_pages import names_that_are_not_public

FOLDER = PROJECT / "examples"
PROGRAMS = sorted(FOLDER.glob("*.py"))
MOST_LINES = 60
UV = PROJECT / ".venv" / "bin" / "uv"

PRINTED = {
    "store_without_broker": ["orders: 1000 in 8 queues", "found by its key: order 471", "by its time: True"],
    "mend_dead_letters": ["first run: 4 copies of 4 dead letters", "second run: 4 copies of 4 dead letters"],
    "parquet_to_cluster": ["1000 messages, 1000 of them different", "1500 messages, 1500 of them different"],
    "live_topic_to_delta": ["100 rows of 100 orders, 2475.0 in all", "150 rows of 150 orders, 5587.5 in all"],
}
"""What a program prints, line by line, among other lines."""


def run_program(name: str, directory: Path) -> str:
    ran = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **SMALL},
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def assert_prints(name: str, printed: str) -> None:
    shown = [line for line in printed.splitlines() if any(line.startswith(text) for text in PRINTED[name])]
    assert [line[: len(text)] for line, text in zip(shown, PRINTED[name], strict=True)] == PRINTED[name]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_short_and_uses_public_names_only(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert names_that_are_not_public(text) == []


def test_every_program_is_listed_and_tried() -> None:
    listed = set(re.findall(r"\]\((\w+)\.py\)", (FOLDER / "README.md").read_text("utf-8")))
    assert listed == {path.stem for path in PROGRAMS} - {"run_all"}
    run_all = (FOLDER / "run_all.py").read_text("utf-8")
    assert set(re.findall(r'"(\w+)\.py"', run_all)) == set(PRINTED) == listed - {"local_cluster", "airflow_dag"}


@pytest.mark.slow
def test_the_program_without_a_broker_runs(tmp_path: Path) -> None:
    assert_prints("store_without_broker", run_program("store_without_broker", tmp_path))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    [
        "parquet_to_cluster",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("live_topic_to_delta", "mend_dead_letters")),
    ],
)
@pytest.mark.long
def test_a_program_with_spark_runs_and_says_that_each_row_is_there_once(name: str, tmp_path: Path) -> None:
    assert_prints(name, run_program(name, tmp_path))


@pytest.mark.long
@pytest.mark.network
def test_airflow_finds_the_dag_and_its_tasks_are_jobs_with_options_that_they_have(tmp_path: Path) -> None:
    """Airflow itself reads the file, in an environment of its own: 200 MB."""
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "env"], check=True)
    packages = ("apache-airflow>=3.1", "apache-airflow-providers-standard")
    subprocess.run([UV, "pip", "install", "--quiet", "--python", tmp_path / "env", *packages], check=True)
    script = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
assert not bag.import_errors, bag.import_errors
tasks = {name: [[t.bash_command, sorted(t.downstream_task_ids)] for t in dag.tasks] for name, dag in bag.dags.items()}
print("found", json.dumps(tasks))
"""
    ran = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c", script, FOLDER / "airflow_dag.py"],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (line,) = re.findall(r"^found (.+)$", ran.stdout, re.MULTILINE)
    found: dict[str, list[tuple[str, list[str]]]] = json.loads(line)
    assert found.keys() == {"rocketmq_deliveries", "rocketmq_upkeep"}
    assert [after for _, after in found["rocketmq_upkeep"]] == [[], [], []], "a skipped task keeps no other back"
    for command, _ in [task for tasks in found.values() for task in tasks]:
        words = shlex.split(re.sub(r"\{\{.*?\}\}", "/store", command))
        assert words[:2] == ["spark-mq", "job"]
        assert words[2] in JOBS
        options = {option for parameter in load_job(words[2]).params for option in parameter.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options
