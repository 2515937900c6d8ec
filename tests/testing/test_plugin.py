"""The fixtures for pytest, and the recipes of docs/testing.md, in runs of pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.pages import examples
from tests.support.places import PROJECT
from tests.support.python_script import SMALL

PAGE = "docs/testing.md"
SPARK_JOB, *OTHERS = examples(PAGE)


def run_pytest(directory: Path, *arguments: str, configuration: str = "", **files: str) -> str:
    """What a run of pytest prints over these files, which must all pass; the project's own configuration counts for nothing."""
    (directory / "pytest.ini").write_text(f"[pytest]\n{configuration}", "utf-8")
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text, "utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | SMALL
    environment["PYTEST_XDIST_WORKER"] = os.environ.get("PYTEST_XDIST_WORKER", "gw0")  # whose ports are this run's
    options = (
        "-p",
        "pytest_spark_mq",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-W",
        "error::pytest.PytestWarning",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, *arguments],
        cwd=directory,
        env={**environment, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SHARED = """
seen = []

def test_first(rocketmq_cluster, rocketmq_topic):
    seen.append((rocketmq_cluster.name_server, rocketmq_topic))
    rocketmq_cluster.send(rocketmq_topic, b"body")
    assert [message.body for message in rocketmq_cluster.messages(rocketmq_topic, count=1)] == [b"body"]

def test_second(rocketmq_cluster, rocketmq_topic):
    assert rocketmq_cluster.messages(rocketmq_topic) == []
    assert rocketmq_topic != seen[0][1]
    assert (rocketmq_cluster.name_server == seen[0][0]) is SAME
"""


def test_tests_share_a_cluster_and_each_has_a_topic(tmp_path: Path) -> None:
    assert "2 passed" in run_pytest(tmp_path, test_shared=SHARED.replace("SAME", "True"))


@pytest.mark.slow
def test_a_setting_gives_each_test_a_cluster(tmp_path: Path) -> None:
    scope = "rocketmq_cluster_scope = function\n"
    assert "2 passed" in run_pytest(tmp_path, configuration=scope, test_own=SHARED.replace("SAME", "False"))


@pytest.mark.slow
def test_a_conftest_says_what_the_cluster_is(tmp_path: Path) -> None:
    options = """
import pytest

@pytest.fixture(scope="session")
def rocketmq_cluster_options():
    return {"brokers": 2, "settings": {"autoCreateTopicEnable": False}}
"""
    test = """
import pytest
from spark_mq.client import ClientError

@pytest.mark.parametrize("name", ["a b/c", "ü"])
def test_it(rocketmq_cluster, rocketmq_topic, name):
    assert len(rocketmq_cluster.brokers) == 2
    with pytest.raises(ClientError):
        rocketmq_cluster.send("never-made", b"")
"""
    assert "2 passed" in run_pytest(tmp_path, conftest=options, test_two=test)


def test_a_run_that_uses_no_fixture_loads_nothing_of_the_package(tmp_path: Path) -> None:
    """Also where a module of the user hides a package of this one."""
    test = """
import sys

def test_it():
    assert not {name.partition(".")[0] for name in sys.modules} & {"spark_mq", "numpy", "pyarrow"}
    import storage
    assert storage.MINE
"""
    assert "1 passed" in run_pytest(tmp_path, test_without=test, storage="MINE = True\n")


def test_pytest_finds_the_plugin_by_an_entry_point() -> None:
    metadata = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    assert metadata["project"]["entry-points"]["pytest11"] == {"pytest_spark_mq": "pytest_spark_mq"}
    assert "pytest_spark_mq" in metadata["tool"]["setuptools"]["py-modules"]


def test_the_recipes_without_spark_pass_as_they_stand(tmp_path: Path) -> None:
    files = {f"test_recipe_{number}": recipe.code for number, recipe in enumerate(OTHERS)}
    assert len(files) == 4
    assert "4 passed" in run_pytest(tmp_path, **files)


@pytest.mark.spark
@pytest.mark.slow
def test_the_recipe_of_a_spark_job_passes_as_it_stands(tmp_path: Path) -> None:
    assert "1 passed" in run_pytest(tmp_path, "-W", "ignore", test_recipe=SPARK_JOB.code)
