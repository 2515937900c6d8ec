"""A kind of doubt that can be put to the engine as often as one likes, a round at a time. Each round follows from its seed alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random


@dataclass(slots=True)
class Outcome:
    """What one or more rounds have tried, and what they have found."""

    trials: int = 0
    failures: list[str] = field(default_factory=list)
    """What broke the claim: what, where, at which step."""
    figures: Counter[str] = field(default_factory=Counter)
    """What else was counted, for the table."""

    def add(self, other: Outcome) -> None:
        self.trials += other.trials
        self.failures += other.failures
        self.figures += other.figures


@dataclass(frozen=True, slots=True)
class Kind:
    """One way of putting the engine to the test."""

    name: str
    """As on the command line."""
    claim: str
    """What holds as long as nothing fails, one sentence."""
    unit: str
    """What a trial is."""
    play: Callable[[Random, Path], Outcome]
    """One round in an empty directory."""
    render: Callable[[Counter[str]], str] | None = None
    """The figures as Markdown, where a list of them says too little."""
    parts: tuple[Callable[[Path], Outcome], ...] = ()
    """Rounds that make up a whole: each is played once in a run, and the seed of one is its number."""
    share: int = 1
    """How much of a run's time it gets, beside the others."""
    bound_on: str = ""
    """The figure that counts the trials which the claim is hardest on; the bound is of these alone. Empty: of all."""
    bites: str = ""
    """A figure that must not be 0: it counts what is lost where losing is allowed, and shows that a fault does its work."""
