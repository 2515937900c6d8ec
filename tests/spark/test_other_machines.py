"""Executors that see no store, or another one, at the path: nothing is called lost, nothing is written anywhere else."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.other_views import HIDDEN, MESSAGES, OTHER, SAME, UNSHARED, mounts
from tests.support.places import PROJECT

pytestmark = [pytest.mark.spark, pytest.mark.long]
BLIND = pytest.mark.parametrize("view", [HIDDEN, OTHER])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def outcomes(directory: Path) -> dict[str, str]:
    """What became of each case, all in one application."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not there, and without a mount namespace all processes see the same files")
    for view in (HIDDEN, OTHER, "strange"):
        (directory / view).mkdir()
    tried = subprocess.run([*UNSHARED, mounts(directory)], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"this platform permits no mount namespace: {tried.stderr.strip()}")
    command = [sys.executable, "-m", "tests.support.other_views", str(directory)]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return found


def files_below(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def assert_not_found(text: str, *words: str) -> None:
    assert "[SPARK_MQ_STORE_NOT_FOUND]" in text, text
    assert "SPARK_MQ_DATA_LOSS" not in text
    for word in (f"machine {socket.gethostname()} ", *words):
        assert word in text


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("kind", ["batch", "stream"])
@BLIND
def test_reading_without_the_store_is_an_error_whatever_fail_on_data_loss_says(
    outcomes: dict[str, str], directory: Path, view: str, kind: str, fail_on_data_loss: str
) -> None:
    name = f"{kind} {view} {fail_on_data_loss}"
    assert_not_found(outcomes[name], f" at {directory / view / 'broker-a'} ", "mount")
    if kind == "stream":
        committed = files_below(directory / "checkpoints" / name / "commits")
        assert committed == [], "the batch is read again when the store is there"


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_executors_that_see_the_store_read_all_of_it(
    outcomes: dict[str, str], kind: str, fail_on_data_loss: str
) -> None:
    assert outcomes[f"{kind} {SAME} {fail_on_data_loss}"] == f"{MESSAGES} rows"


def test_a_relative_path_is_the_drivers_whatever_directory_executors_work_in(outcomes: dict[str, str]) -> None:
    assert outcomes["batch relative true"] == f"{MESSAGES} rows"


@pytest.mark.parametrize("kind", ["write", "stream into"])
@BLIND
def test_a_task_that_does_not_see_the_store_writes_nothing(
    outcomes: dict[str, str], directory: Path, view: str, kind: str
) -> None:
    assert_not_found(outcomes[f"{kind} sink {view}"], f" at {directory / view / 'sink'} ")
    assert not list((directory / view / "sink").glob("spark_mq/intents/*"))
    assert not (directory / view / "sink" / "consumequeue" / "Written").exists()
    assert not (directory / "strange" / "sink" / "spark_mq").exists(), "nor into the other store"


@pytest.mark.parametrize("kind", ["write", "stream into"])
@BLIND
@pytest.mark.long
def test_rows_that_are_staged_where_the_commit_does_not_look_make_no_store(
    outcomes: dict[str, str], directory: Path, view: str, kind: str
) -> None:
    new = directory / view / "new"
    assert_not_found(outcomes[f"{kind} new {view}"], f" at {new} ", "its task wrote", "the commit on")
    assert not new.exists()


@pytest.mark.parametrize("place", ["sink", pytest.param("new", marks=pytest.mark.long)])
def test_executors_that_see_the_store_write_into_it(outcomes: dict[str, str], place: str) -> None:
    assert outcomes[f"write {place} {SAME}"] == "4 rows"
    assert outcomes[f"stream into {place} {SAME}"] == "8 rows"
