"""Kinds whose lives are simulated: masters, slaves and controllers on a network and disks that are not to be trusted.

`replicas` and `controlled-replicas` are the lives of `tests/ha`, `elections` those of `tests/controller/simulation.py`.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from random import Random

from tests.controller.simulation import Simulation
from tests.ha.lives import CONTROLLED, OPERATED, lived
from tests.ha.lives import Kind as Lives
from tests.torture.kind import Kind, Outcome

STEPS_OF_ELECTIONS = 600
_LOGGER = logging.getLogger("spark_mq.controller")


def play_replicas(
    random: Random, directory: Path, *, lives: int = 20, steps: int = 150, kind: Lives = OPERATED
) -> Outcome:
    """Some lives, each by a seed of its own."""
    found = lived([random.getrandbits(31) for _ in range(lives)], steps, kind=kind)
    return Outcome(found.counts["steps"], found.failures, found.counts)


play_controlled = partial(play_replicas, steps=300, kind=CONTROLLED)


def play_elections(random: Random, directory: Path, *, lives: int = 60) -> Outcome:
    """So many lives, each of two to five brokers. Brokers, connections and the controller's machine fail at any moment."""
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
        life.run(STEPS_OF_ELECTIONS)
    except AssertionError as error:
        outcome.failures.append(f"seed {seed}, {brokers} brokers: {error}")
    outcome.trials += STEPS_OF_ELECTIONS
    outcome.figures.update(life.counts)
    outcome.figures["messages acknowledged"] += len(life.acknowledged)


ELECTIONS = Kind(
    name="elections",
    claim="An epoch has one master, epochs never fall, and an elected master has all acknowledged messages",
    unit="steps of brokers and controller",
    play=play_elections,
)
REPLICAS = Kind(
    "replicas",
    "Slaves hold their master's bytes, a put is acknowledged when as many copies are there as it needs, and a promoted slave has all "
    "that was acknowledged",
    "steps of masters and slaves",
    play_replicas,
    bites="lost, not promised",
)
CONTROLLED_REPLICAS = Kind(
    "controlled-replicas",
    "A broker that may be elected has all acknowledged messages, epochs never fall, epoch files name the master of each record, "
    "what is cut was not confirmed, and all brokers have the same log in the end",
    "steps of a controller and its brokers",
    play_controlled,
    bites="lost, not promised",
)
