"""Faults planted into the engine, each of a sort that has lost somebody's messages, and who must notice it.

A mutant is noticed by a kind of torture where one of a few rounds fails as `shows` says, or by a test (PATH::NAME). It counts as
killed only then: a round that fails for another reason, a wrongly planted fault for one, does not count.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tests.torture.rounds import PROJECT, command, from_line

ENVIRONMENT = "SPARK_MQ_MUTANT"
ROUNDS = 6
"""How many of a kind's rounds a mutant may survive."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, and who notices it."""

    plant: Callable[[], AbstractContextManager[Any]]
    noticed_by: tuple[str, ...]
    """Kinds of torture, or tests: one of them suffices."""
    shows: str
    """What the failure's text must hold, a regular expression."""


MUTANTS: Mapping[str, Mutant] = MappingProxyType({})
"""What is wrong → how to make it so."""


def planted(name: str | None) -> AbstractContextManager[Any]:
    """The fault, as long as the context lasts; none for None."""
    return nullcontext() if name is None else MUTANTS[name].plant()


def plant_all(jobs: int, note: Callable[[str], None] = lambda line: None) -> dict[str, str | None]:
    """Each mutant's killer, None of a survivor."""
    with ThreadPoolExecutor(jobs) as pool:
        killed = dict(zip(MUTANTS, pool.map(killer_of, MUTANTS), strict=True))
    for name, killer in killed.items():
        note(f"mutant: {name}: {killer or 'SURVIVED'}")
    return killed


def killer_of(name: str) -> str | None:
    """Who notices the mutant, as a command; None if nobody does."""
    for judge in MUTANTS[name].noticed_by:
        for attempt in _attempts(judge):
            if re.search(MUTANTS[name].shows, _findings(judge, attempt, name), re.DOTALL):
                return f"{judge} --seed {attempt}" if attempt else judge
    return None


def _attempts(judge: str) -> range:
    return range(1) if "::" in judge else range(1, ROUNDS + 1)


def _findings(judge: str, seed: int, mutant: str) -> str:
    if "::" not in judge:
        ended = _run([*command(judge, seed), "--mutant", mutant, "--json"])
        return "\n".join(from_line(ended.stdout.splitlines()[-1]).failures) if not ended.returncode else ended.stderr
    ended = _run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.torture.planting", "-p", "no:cacheprovider", judge],
        {**os.environ, ENVIRONMENT: mutant},
    )
    return ended.stdout if ended.returncode == 1 else ""


def _run(arguments: list[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=PROJECT, env=environment, capture_output=True, text=True)


@contextmanager
def planted_by_environment() -> Iterator[None]:
    """The fault that the environment names, for a test run that begins with this process."""
    with planted(os.environ.get(ENVIRONMENT)):
        yield
