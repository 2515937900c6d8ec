"""Scripts of everything that can be done to a store, crashes among them, each step held against a model (`tests/model`).

A round runs scripts drawn by Hypothesis from a seed of its own; what a failure tells is the shortest script that still fails.
"""

from __future__ import annotations

import traceback
from collections import Counter
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.store_machine import StoreMachine
from tests.torture.kind import Kind, Outcome

SCRIPTS = 20
STEPS = 50


def play(random: Random, directory: Path) -> Outcome:
    """One round."""
    return run(random.getrandbits(64), directory, scripts=SCRIPTS)


def run(number: int, directory: Path, *, scripts: int, shrinks: bool = True) -> Outcome:
    """So many scripts that follow from the seed `number`; without `shrinks` the first failure as it is."""
    figures: Counter[str] = Counter()
    machine = type("StoreMachine", (StoreMachine,), {"place": directory, "figures": figures})
    rules = settings(
        max_examples=scripts,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
    )
    failures = []
    try:
        run_state_machine_as_test(seed(number)(machine), settings=rules)
    except Exception:  # of whatever kind: it ends with the script
        failures.append(traceback.format_exc())
    trials = figures.pop("scripts")
    return Outcome(trials, failures, figures)


KIND = Kind(
    "state-machine",
    "After each step, crashes and power losses among them, the store serves exactly what a model of it says",
    "scripts of up to 50 steps",
    play,
)
