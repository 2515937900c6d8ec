"""Many lives, each by its seed, and what they have come to."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from tests.ha.controlled_invariants import CONTROLLED as CONTROLLED_INVARIANTS
from tests.ha.controlled_life import ControlledLife
from tests.ha.invariants import INVARIANTS, Broken
from tests.ha.simulation import Simulation


class Life(Protocol):
    """Something that a seed makes happen."""

    counts: Counter[str]

    def run(self, steps: int) -> None:
        """Raises AssertionError."""


class Kind(NamedTuple):
    """One sort of lives."""

    begin: Callable[[int, Path], Life]
    invariants: Mapping[int, str]
    command: str


OPERATED = Kind(Simulation, INVARIANTS, "python -m tests.ha")
"""An operator says who is master; the default dialect."""
CONTROLLED = Kind(ControlledLife, CONTROLLED_INVARIANTS, "python -m tests.ha controlled")
"""A controller says so."""


@dataclass
class Lived:
    """What happened, and what broke."""

    kind: Kind
    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    """Numbers of invariants; 0 = something else failed."""


def live(seed: int, steps: int, kind: Kind = OPERATED) -> tuple[Counter[str], str | None, int | None]:
    """One life: what happened, what broke, and which invariant that is."""
    directory = Path(tempfile.mkdtemp(prefix="replicas-"))
    life = kind.begin(seed, directory)
    again = f"{kind.command} --seed {seed} --steps {steps}"
    try:
        life.run(steps)
    except Broken as error:
        return life.counts, f"{again}: {error} ({kind.invariants[error.number]})", error.number
    except Exception:
        return life.counts, f"{again}: {traceback.format_exc()}", 0
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return life.counts, None, None


def lived(
    seeds: Iterable[int], steps: int, note: Callable[[str], None] = lambda line: None, kind: Kind = OPERATED
) -> Lived:
    """All of them."""
    found = Lived(kind)
    for seed in seeds:
        counts, failure, number = live(seed, steps, kind)
        found.seeds += 1
        found.counts += counts
        if found.seeds % 100 == 0:
            note(f"{found.seeds:,} seeds, {found.counts['steps']:,} steps, {len(found.failures)} failures")
        if failure is not None:
            found.failures.append(failure)
            found.broken.append(number or 0)
            note(failure)
    return found


def table(found: Lived) -> Sequence[str]:
    """As Markdown."""
    counts = ", ".join(f"{what}: {count:,}" for what, count in sorted(found.counts.items()) if what != "steps")
    lines = [f"{found.seeds:,} seeds, {found.counts['steps']:,} steps; {counts}.", ""]
    lines += ["| invariant | what holds | broken |", "| ---: | --- | ---: |"]
    lines += [f"| {number} | {text} | {found.broken.count(number)} |" for number, text in found.kind.invariants.items()]
    return lines
