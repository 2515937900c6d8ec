"""Brokers, connections and the controller's machine fail at any moment: an epoch has one master, and whoever is elected holds all that
was acknowledged (`tests/controller/simulation.py`).
"""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

from tests.controller.simulation import Simulation
from tests.torture.kind import Kind, Outcome

LIVES = 60
STEPS = 600
_LOGGER = logging.getLogger("spark_mq.controller")


def play(random: Random, directory: Path, *, lives: int = LIVES) -> Outcome:
    """So many lives, each of two to five brokers."""
    outcome = Outcome()
    level = _LOGGER.level
    _LOGGER.setLevel(logging.CRITICAL)
    try:
        for _ in range(lives):
            _live(random.randrange(1 << 40), random.randint(2, 5), outcome)
    finally:
        _LOGGER.setLevel(level)
    return outcome


def _live(seed: int, brokers: int, outcome: Outcome) -> None:
    life = Simulation(seed, brokers=brokers)
    try:
        life.run(STEPS)
    except AssertionError as error:
        outcome.failures.append(f"seed {seed}, {brokers} brokers: {error}")
    outcome.trials += STEPS
    outcome.figures.update(life.counts)
    outcome.figures["messages acknowledged"] += len(life.acknowledged)


KIND = Kind(
    name="elections",
    claim="an epoch has one master, epochs never fall, and whoever is elected holds all that was acknowledged",
    unit="steps of brokers and controller",
    play=play,
)
