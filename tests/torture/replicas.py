"""Masters and slaves, and a controller with its brokers, on a network and disks that are not to be trusted (`tests/ha`)."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.ha.lives import CONTROLLED, OPERATED, lived
from tests.ha.lives import Kind as Lives
from tests.torture.kind import Kind, Outcome

LIVES, STEPS = 20, 150


def play(random: Random, directory: Path, *, lives: int = LIVES, steps: int = STEPS, kind: Lives = OPERATED) -> Outcome:
    """Some lives, each by a seed of its own."""
    found = lived([random.getrandbits(31) for _ in range(lives)], steps, kind=kind)
    return Outcome(found.counts["steps"], found.failures, found.counts)


def play_controlled(random: Random, directory: Path, *, lives: int = LIVES, steps: int = 2 * STEPS) -> Outcome:
    """The same with a controller."""
    return play(random, directory, lives=lives, steps=steps, kind=CONTROLLED)


KIND = Kind(
    "replicas",
    "Slaves hold their master's bytes, a put is acknowledged when as many copies are there as it needs, and a promoted slave has all "
    "that was acknowledged",
    "steps of masters and slaves",
    play,
    bites="lost, not promised",
)
CONTROLLED_KIND = Kind(
    "controlled-replicas",
    "Whoever a controller may elect has all that was acknowledged, epochs never fall, epoch files say of each record whose it is, "
    "what is cut was not confirmed, and all brokers have the same log in the end",
    "steps of a controller and its brokers",
    play_controlled,
    bites="lost, not promised",
)
