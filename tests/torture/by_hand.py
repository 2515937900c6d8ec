"""Long runs that are made by hand, or by `make test-crash`: a death follows the other, on what the one before has left.

    python -m tests.torture NAME [--rounds N] [--seed N] [--scene SCENE] [--page FILE]

The moments follow from the seed as far as processes and threads let them. The report goes to standard output, and into the page. Exit
code 1 where something was found.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import SystemRandom
from types import MappingProxyType
from typing import NamedTuple

from tests.torture.page import write_into


class Run(NamedTuple):
    """What is to be played."""

    rounds: int
    seed: int
    directory: Path
    """Empty; what a run leaves in it goes."""
    scene: str | None = None
    release: str = "5.3.3"
    """Of the Apache broker, where one takes part."""

    def tell(self, text: str) -> None:
        """While it goes on."""
        print(text, file=sys.stderr, flush=True)


class Report(NamedTuple):
    """What has come of it."""

    text: str
    is_sound: bool = True


@dataclass(frozen=True, slots=True)
class ByHand:
    """A kind of long run."""

    play: Callable[[Run], Report]
    """May raise AssertionError for what it finds."""
    rounds: int
    """Where the command line says nothing."""
    scenes: Sequence[str] = ()
    put: Callable[[Path, str], None] = lambda page, text: page.write_text(text, "utf-8") and None
    """How the report comes into a page."""


def behind(page: Path, text: str) -> None:
    """The report stands behind what the page has."""
    with page.open("a", encoding="utf-8") as file:
        file.write("\n" + text)


def between(begin: str, end: str) -> Callable[[Path, str], None]:
    """The report stands between two marks."""
    return partial(write_into, begin=begin, end=end)


MODULES: Mapping[str, str] = MappingProxyType(
    {
        "killed-drivers": "tests.crash.driver_chain",
        "killed-duties": "tests.crash.duty_rounds",
        "live-rounds": "tests.crash.live_rounds",
        "live-drivers": "tests.crash.live_drivers",
        "aborted-journal": "tests.crash.aborted_journal",
        "other-runs": "tests.crash.other_runs",
    }
)
"""Each has a `BY_HAND`. They are imported when they are played: some bring Spark, and some Java."""


def load(name: str) -> ByHand:
    found = importlib.import_module(MODULES[name]).BY_HAND
    assert isinstance(found, ByHand)
    return found


def main(name: str, arguments: Sequence[str]) -> int:
    kind = load(name)
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.torture {name}",
        description=sys.modules[MODULES[name]].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=kind.rounds)
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32))
    parser.add_argument("--page", type=Path, help="where the report is put")
    parser.add_argument("--scene", choices=kind.scenes or None, help="one of the scenes that the kind has")
    parser.add_argument("--release", default=Run._field_defaults["release"], help="of the Apache broker")
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as directory:
        report = kind.play(Run(given.rounds, given.seed, Path(directory), given.scene, given.release))
    print(report.text)
    if given.page is not None:
        kind.put(given.page, report.text)
    return int(not report.is_sound)
