"""Compiled kernels beside the exact path: random windows of random bytes, random rows, the same arrays, bytes and files."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from storage.format.arrays import Memory
from tests.format.kernels import fuzz_decode, test_encode, test_walk
from tests.support.kernels import loaded
from tests.torture.kind import Kind, Outcome

SEEDS, EXAMPLES = 10, 100
COMPARISONS: tuple[Callable[..., None], ...] = (
    test_walk.test_walks_find_the_same_records_and_topics,
    test_walk.test_sums_of_stretches_are_the_same,
    test_encode.test_records_are_the_same,
    test_encode.test_commits_of_halves_are_the_same,
    test_encode.test_hashes_of_texts_are_the_same,
)


class _Places:
    """Stands in for pytest's factory of directories."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def mktemp(self, name: str) -> Path:
        self._count += 1
        made = self._directory / f"{name}{self._count}"
        made.mkdir(parents=True)
        return made


def play(random: Random, directory: Path, *, seeds: int = SEEDS, examples: int = EXAMPLES) -> Outcome:
    """Some windows for the decoders, some examples for each other comparison."""
    loaded()
    decoders, outcome = loaded(), Outcome()
    for _ in range(seeds):
        seed = random.getrandbits(31)
        try:
            outcome.figures["windows decoded"] += fuzz_decode.play(decoders, seed, Memory())
        except AssertionError as error:
            outcome.failures.append(f"python -m tests.format.kernels.fuzz_decode --only --seed {seed}: {error}")
        outcome.trials += fuzz_decode.WINDOWS_A_SEED
    given = {"compiled": decoders, "tmp_path_factory": _Places(directory)}
    for comparison in COMPARISONS:
        _compare(comparison, random.getrandbits(31), examples, given)
        outcome.trials += examples
    return outcome


def _compare(comparison: Any, seed: int, examples: int, given: dict[str, Any]) -> None:
    """A property-based test with so many examples of a seed's."""
    before = comparison._hypothesis_internal_use_settings, getattr(comparison, "_hypothesis_internal_use_seed", None)
    comparison._hypothesis_internal_use_settings = settings(
        before[0],
        max_examples=examples,
        phases=(Phase.generate, Phase.shrink),
        database=None,
        derandomize=False,
        deadline=None,  # other rounds are played beside this one
        suppress_health_check=list(HealthCheck),
    )
    comparison._hypothesis_internal_use_seed = seed
    parameters = inspect.signature(comparison).parameters
    try:
        comparison(**{name: value for name, value in given.items() if name in parameters})
    finally:
        comparison._hypothesis_internal_use_settings, comparison._hypothesis_internal_use_seed = before


KIND = Kind("kernels", "Kernels give the bytes and arrays of the code that they stand in for", "inputs", play)
