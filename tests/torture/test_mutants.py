"""A slice of the planted faults is noticed, and one that is none is not."""

from __future__ import annotations

import importlib
import inspect
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from storage.log.writer import LogSync
from tests.torture import mutants
from tests.torture.kinds import KINDS
from tests.torture.line_faults import LINES, planted
from tests.torture.mutants import MUTANTS, Judge, Mutant
from tests.torture.rounds import PROJECT

QUICK = ("queue entries come before the log's sync",)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_noticed(name: str) -> None:
    assert mutants.killer_of(name) is not None


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.slow
def test_every_planted_fault_is_noticed() -> None:
    assert None not in mutants.plant_all(2).values()


def test_there_are_enough_and_each_has_a_judge() -> None:
    assert len(MUTANTS) >= 12
    for mutant in MUTANTS.values():
        for judge in mutant.noticed_by:
            assert judge in KINDS or (PROJECT / judge.partition("::")[0]).is_file()


def test_every_fault_of_one_line_can_be_planted_and_is_gone_again() -> None:
    for name, line in LINES.items():
        module = importlib.import_module(line.module)
        sound = inspect.getattr_static(*_place(module, line.function))
        with mutants.planted(name):
            assert inspect.getattr_static(*_place(module, line.function)) is not sound, name
        assert inspect.getattr_static(*_place(module, line.function)) is sound, name


def _place(module: ModuleType, function: str) -> tuple[object, str]:
    owner, _, name = function.rpartition(".")
    return getattr(module, owner) if owner else module, name


def test_a_line_that_is_not_there_is_no_fault_that_nobody_notices() -> None:
    line = LINES["a deleted group keeps its pending reset"]
    with pytest.raises(LookupError, match="has not one 'no such line'"), planted(line._replace(right="no such line")):
        pass


def test_a_fault_is_there_only_while_it_is_planted() -> None:
    sound = LogSync.run
    with mutants.planted("the log is never synced"):
        assert LogSync.run is not sound
    assert LogSync.run is sound


@pytest.mark.slow
def test_a_fault_that_changes_nothing_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "MUTANTS", {"none": Mutant(nullcontext, ("power-loss",), "lost")})
    monkeypatch.setattr(mutants, "_findings", lambda judge, mutant=None: "")
    assert mutants.plant_all(1) == {"none": None}


@pytest.mark.slow
def test_a_judge_that_says_the_same_of_the_sound_engine_kills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "MUTANTS", {"any": Mutant(nullcontext, ("power-loss",), "lost")})
    monkeypatch.setattr(mutants, "_findings", lambda judge, mutant=None: "lost")
    assert mutants.killer_of("any") == Judge("power-loss", 1)
    assert mutants.plant_all(1) == {"any": None}


@pytest.mark.slow
def test_a_fault_is_planted_into_a_test_run_too(tmp_path: Path) -> None:
    test = tmp_path / "test_log.py"
    test.write_text(
        "from unittest import mock\n"
        "from storage.log.writer import LogSync\n"
        "def test_sync():\n    assert isinstance(LogSync.run, mock.Mock), 'sound'\n"
    )
    judge = Judge(f"{test}::test_sync", 0)
    assert "sound" in mutants._findings(judge)
    assert mutants._findings(judge, "the log is never synced") == ""
    assert not isinstance(LogSync.run, mock.Mock)
