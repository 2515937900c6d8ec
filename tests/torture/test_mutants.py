"""A slice of the planted faults is noticed, and one that is none is not."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

import storage.recovery.opening
from storage.log.writer import LogSync
from tests.crash import duty_faults
from tests.ha import controlled_faults
from tests.ha import faults as ha_faults
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


def test_the_page_says_how_many_there_are() -> None:
    text = (PROJECT / "docs" / "RELIABILITY.md").read_text("utf-8")
    assert f"of {len(MUTANTS)} that there are today" in text


def test_every_fault_of_one_line_can_be_planted_and_is_gone_again() -> None:
    for name, line in LINES.items():
        module = importlib.import_module(line.module)
        sound = inspect.getattr_static(*_place(module, line.function))
        with mutants.planted(name):
            assert inspect.getattr_static(*_place(module, line.function)) is not sound, name
        assert inspect.getattr_static(*_place(module, line.function)) is sound, name


def test_what_a_fault_replaces_is_used_where_it_is_replaced() -> None:
    """After a move, a fault may replace a function under a name by which nobody calls it any more."""
    lives = ha_faults.FAULTS.values(), controlled_faults.CONTROLLED_FAULTS.values()
    plants = [mutant.plant for name, mutant in MUTANTS.items() if name not in LINES]
    plants += [fault.plant for faults in lives for fault in faults]
    for plant in (*plants, *duty_faults.FAULTS.values()):
        assert _unused(plant) == set(), plant
    assert _unused(lambda: mock.patch.object(storage.recovery.opening, "cut_log", create=True)) == {"cut_log"}


def _unused(plant: Callable[[], AbstractContextManager[Any]]) -> set[str]:
    """The names of what the fault replaces that are used in none of the modules and classes where it replaces them."""
    replaced: list[tuple[Any, str]] = []
    enter = mock._patch.__enter__

    def noted(patch: Any) -> Any:
        replaced.append((patch.getter(), patch.attribute))
        return enter(patch)

    with mock.patch.object(mock._patch, "__enter__", noted), plant():
        pass
    return {name for _, name in replaced} - {name for owner, name in replaced if _is_used(owner, name)}


def _is_used(owner: Any, name: str) -> bool:
    if isinstance(owner, ModuleType):
        return name in _names_read(owner)
    return name == "__init__" or re.search(rf"\.{name}\b", _product()) is not None


@cache
def _names_read(module: ModuleType) -> frozenset[str]:
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


@cache
def _product() -> str:
    rooms = ("storage", "spark_mq", "jobs")
    return "\n".join(path.read_text() for room in rooms for path in sorted((PROJECT / room).rglob("*.py")))


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
