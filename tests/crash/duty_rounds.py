"""A process that does all duties of a store, killed again and again: `python -m tests.crash.duty_rounds ROUNDS [FILE] [--seed N]`.

One store, one life after the other, each of which goes on where the one before died. After each death the judge looks; in the end nobody
kills any more, until every story has come to its end. The table goes to standard output and into FILE. Exit code 1 where
anything is wrong.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from types import TracebackType
from typing import Self

from tests.crash.duty_judge import Judge
from tests.crash.duty_life import SECONDS_A_ROUND, LifePlan, make_store
from tests.crash.duty_stories import Notes
from tests.support.duty_process import PROJECT, Kill, Nursery, Step, read_steps

START_MS = 1_795_000_000_000
AT_STEPS = 0.6  # of the rounds
QUIET_LIVES = 25
"""More than any story takes without kills."""
_ROUNDS_OF_A_QUIET_LIFE = 3
_SOURCES = ("storage", "spark_mq", "jobs")


def failpoints_in_source() -> set[str]:
    """The names of all failpoints that there are."""
    texts = (path.read_text("utf-8") for folder in _SOURCES for path in sorted((PROJECT / folder).rglob("*.py")))
    return {name for text in texts for name in re.findall(r'\breach\(\s*"([^"]+)"', text)}


@dataclass
class Tally:
    """What the deaths have shown."""

    kills: Counter[Step | None] = field(default_factory=Counter)
    """By step; None = at a random moment."""
    unkilled: int = 0
    """Lives that ended before the step, or the moment, came."""
    quiet: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def points(self) -> set[str]:
        """The failpoints that have killed."""
        return {step.point for step in self.kills if step is not None}


class DutyChain:
    """A store and the lives that work on it; all that belongs to it lies in `directory`. A context manager."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.root = directory / "store" / "store"
        self.notes = directory / "notes"
        self.tally = Tally()
        self._seed = seed
        self._steps = directory / "steps"
        self._lives = 0
        self._now_ms = START_MS
        self._nursery = Nursery(directory / "log")
        self.judge = Judge(self.root, self.notes, seed)
        make_store(self.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._nursery.__exit__(kind, error, trace)

    @property
    def steps(self) -> set[Step]:
        """All that lives have come to."""
        return read_steps(self._steps)

    def live(
        self,
        kill: Kill | None = None,
        *,
        flush: str = "ASYNC_FLUSH",
        fault: str | None = None,
        begins_stories: bool = True,
        rounds: int = 1,
    ) -> bool:
        """One more life, and a look at what it left; returns whether it was killed."""
        plan = LifePlan(
            str(self.root),
            str(self.notes),
            self._seed,
            self._lives,
            self._now_ms,
            flush,
            rounds,
            begins_stories,
        )
        self._lives += 1
        self._now_ms += rounds * SECONDS_A_ROUND * 1_000
        was_killed = self._nursery.raise_one(plan, self._steps, kill, fault)
        if kill is None:
            self.tally.quiet += 1
        elif was_killed:
            self.tally.kills[kill.step] += 1
        else:
            self.tally.unkilled += 1
        for finding in self.judge.look():
            if finding not in self.tally.findings:
                self.tally.findings.append(finding)
        return was_killed

    def finish(self, *, fault: str | None = None, lives: int = QUIET_LIVES) -> list[str]:
        """Live without kills until all stories are at their end; returns all that is wrong, and was."""
        for _ in range(lives):
            self.live(fault=fault, begins_stories=False, rounds=_ROUNDS_OF_A_QUIET_LIFE)
            if not self.judge.unfinished():
                break
        self.tally.findings += self.judge.final()
        return self.tally.findings

    def summary(self) -> str:
        """One line of figures."""
        notes, kills = Notes(self.notes), self.tally.kills
        return (
            f"{self._lives} lives, {sum(kills.values())} killed at {len(self.tally.points)} failpoints in {len(kills)} steps, "
            f"{len(notes.of('begun'))} messages and {len(notes.of('committed batch'))} batches, "
            f"{len(notes.of('ended'))} transactions ended by producers, {len(notes.of('asked'))} asked back, "
            f"{len(notes.of('redriving'))} given up and put back, {len(notes.of('failed'))} sent back; "
            f"{len(self.judge.records)} records, {len(self.judge.doubles)} doubles, {len(self.tally.findings)} findings"
        )


def kill_at_every_step(chain: DutyChain, random: Random, wanted: Sequence[Step] | None = None) -> None:
    """Kill once at each step that any life comes to, or at the `wanted` ones; a step that is missed is tried again later."""
    tries: Counter[Step] = Counter()
    while True:
        left = [step for step in wanted or sorted(chain.steps) if not chain.tally.kills[step]]
        if not left:
            return
        step = min(left, key=lambda step: (tries[step], random.random()))
        tries[step] += 1
        assert tries[step] < 30, f"{step} is not reached again"
        chain.live(Kill(step), flush=flush_for(step, random))


def flush_for(step: Step | None, random: Random) -> str:
    """Some steps are passed under SYNC_FLUSH only."""
    is_sync = step is not None and step.point in ("before-drop", "after-drop")
    return "SYNC_FLUSH" if is_sync else random.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
