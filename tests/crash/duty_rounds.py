"""A process that does all duties of a store, killed again and again.

    python -m tests.torture killed-duties --rounds 100 --page docs/tables/kills.md

One store, one life after the other, each of which goes on where the one before died. After each death the judge looks; in the end
nobody kills any more, until every story has come to its end. The table goes behind what the page has.
"""

from __future__ import annotations

import platform
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from storage.failpoints import LIVE_COMMIT, LIVE_REDO, LIVE_STAGING, LIVE_TRANSACTIONS, UPKEEP
from tests.crash.duty_judge import Judge
from tests.crash.duty_life import SECONDS_A_ROUND, LifePlan, make_store
from tests.crash.duty_process import Kill, Nursery, Step, read_steps
from tests.crash.duty_stories import Notes
from tests.support.warm_process import PROJECT
from tests.torture.by_hand import ByHand, Report, Run, behind

START_MS = 1_795_000_000_000
AT_STEPS = 0.6  # of the rounds
QUIET_LIVES = 25
"""More than any story takes without kills."""
_ROUNDS_OF_A_QUIET_LIFE = 3
_TRIES = 25
_RECOVERY, _SINK, _AT_FILE_END = "recovery", "sink", "amid-records"
FLUSHES = ("SYNC_FLUSH", "ASYNC_FLUSH")
_SOURCES = ("storage", "spark_mq", "jobs")


def failpoints_of_duties() -> set[str]:
    """The names of all failpoints that a duty passes.

    Those of a writer's upkeep are `tests/torture/kills.py`'s, those of the live sink `tests/crash/live_rounds.py`'s, that of a
    replay at a cluster `tests/interop/test_replayed_dead_letters.py`'s, those of a conversion `tests/storage/test_dledger_stores.py`'s.
    """
    conversion = {"converted-copied", "before-converted"}
    elsewhere = {*UPKEEP, *LIVE_STAGING, *LIVE_COMMIT, *LIVE_REDO, *LIVE_TRANSACTIONS, "replay-amid-copies"}
    return failpoints_in_source() - elsewhere - conversion


def failpoints_in_source() -> set[str]:
    texts = (path.read_text("utf-8") for folder in _SOURCES for path in sorted((PROJECT / folder).rglob("*.py")))
    return {name for text in texts for name in re.findall(r'\breach\(\s*"([^"]+)"', text)}


@dataclass
class Tally:
    """What the deaths have shown."""

    kills: Counter[Step | None] = field(default_factory=Counter)
    """By step; None = at a random moment."""
    quiet: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def points(self) -> set[str]:
        """The failpoints that have killed."""
        return {step.point for step in self.kills if step is not None}


class DutyChain:
    """A store and the lives that work on it; all that belongs to it lies in `directory`."""

    def __init__(self, directory: Path, seed: int, nursery: Nursery, *, first_life: int = 0) -> None:
        """Lives are counted from `first_life` on; later ones begin other stories."""
        self.root = directory / "store" / "store"
        self.notes = directory / "notes"
        self.tally = Tally()
        self._seed = seed
        self._steps = directory / "steps"
        self.last_killed: str | None = None
        """The duty in which the last life was killed, if it was."""
        self.longest_life_seconds = 0.0
        self._lives = self._first_life = first_life
        self._now_ms = START_MS
        self._nursery = nursery
        self.judge = Judge(self.root, self.notes, seed)
        make_store(self.root)

    @property
    def steps(self) -> set[Step]:
        """All that lives have come to."""
        return set(self.steps_in_order)

    @property
    def steps_in_order(self) -> list[Step]:
        """In the order in which the first of them came to each."""
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
        began = time.monotonic()
        was_killed = self._nursery.raise_one(plan, self._steps, kill, fault)
        self.last_killed = kill.step.duty if kill is not None and kill.step is not None and was_killed else None
        if rounds == 1:
            self.longest_life_seconds = max(self.longest_life_seconds, time.monotonic() - began)
        if kill is None:
            self.tally.quiet += 1
        elif was_killed:
            self.tally.kills[kill.step] += 1
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
            f"{self._lives - self._first_life} lives, {sum(kills.values())} killed at {len(self.tally.points)} failpoints "
            f"in {len(kills)} steps, "
            f"{len(notes.of('begun'))} messages and {len(notes.of('committed batch'))} batches, "
            f"{len(notes.of('ended'))} transactions ended by producers, {len(notes.of('asked'))} asked back, "
            f"{len(notes.of('redriving'))} given up and put back, {len(notes.of('failed'))} sent back; "
            f"{len(self.judge.records)} records, {len(self.judge.doubles)} doubles, {len(self.tally.findings)} findings"
        )


def open_steps(chain: DutyChain) -> set[Step]:
    """The steps at which the next life may be killed: all that lives have come to, with two exceptions.

    A recovery has something to do only behind a kill in the sink's commit. A log file ends by chance, in whichever duty.
    """
    steps = {step if step.point != _AT_FILE_END else Step("", step.point) for step in chain.steps}
    steps = {step for step in steps if step.point not in UPKEEP}
    return {step for step in steps if step.duty != _RECOVERY or chain.last_killed == _SINK}


def kill_at_every_step(chain: DutyChain, random: Random, is_wanted: Callable[[Step, Tally], bool]) -> None:
    """Kill once at each step that lives come to and that is wanted. A step that a life misses is tried again later.

    AssertionError for a failpoint of the source that no life comes to.
    """
    tries: Counter[Step] = Counter()
    points = failpoints_of_duties()
    chain.live(flush="SYNC_FLUSH")
    while True:
        left = {step for step in open_steps(chain) - chain.tally.kills.keys() if is_wanted(step, chain.tally)}
        left = left or {Step("", point) for point in points - chain.tally.points}
        if not left:
            return
        step = min(sorted(left), key=lambda step: (step.duty != _RECOVERY, tries[step], random.random()))
        tries[step] += 1
        assert tries[step] < _TRIES, f"no life reaches {step}"
        chain.live(Kill(step), flush=flush_for(step, random))


def once_a_failpoint(step: Step, tally: Tally) -> bool:
    """Each failpoint in some duty, and what each duty appends."""
    return step.point == "after-records" or step.point not in tally.points


def once_a_step(step: Step, tally: Tally) -> bool:
    """Each failpoint in each duty."""
    return not tally.kills[step]


def kill_at_random(chain: DutyChain, rounds: int, random: Random) -> None:
    """Kill so often: at steps, most often at those that had the fewest, and at random moments."""
    chain.live(flush="SYNC_FLUSH")
    tries: Counter[Step] = Counter()
    while sum(chain.tally.kills.values()) < rounds:
        if random.random() < AT_STEPS:
            step = min(sorted(open_steps(chain)), key=lambda step: (tries[step], random.random()))
            tries[step] += 1
            kill = Kill(step, random.choice((1, 1, 1, 1, 2)))
        else:
            kill = Kill(seconds=random.uniform(0, chain.longest_life_seconds))
        chain.live(kill, flush=flush_for(kill.step, random))


def flush_for(step: Step | None, random: Random) -> str:
    """Some steps are passed under SYNC_FLUSH only."""
    is_sync = step is not None and step.point in ("before-drop", "after-drop")
    return "SYNC_FLUSH" if is_sync else random.choice(FLUSHES)


def report(chain: DutyChain, rounds: int, seed: int) -> str:
    """The page."""
    kills = chain.tally.kills
    duties = [*dict.fromkeys(step.duty for step in chain.steps_in_order)]
    points = [*dict.fromkeys(step.point for step in chain.steps_in_order if step.point not in UPKEEP)]
    rows = [["killed at", *duties, "all"], ["---", *["---:"] * (len(duties) + 1)]]
    for point in points:
        cells = [str(kills[step]) if (step := Step(duty, point)) in chain.steps else "" for duty in duties]
        if point == _AT_FILE_END:
            cells = [""] * len(duties)
        rows.append([point, *cells, str(sum(count for step, count in kills.items() if step and step.point == point))])
    rows.append(["at random", *[""] * len(duties), str(kills[None])])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    findings = "".join(f"- {finding}\n" for finding in chain.tally.findings)
    return f"""## All duties, killed {rounds} times

Written by `make test-crash`: one store, one process after the other that prepares, ends and checks transactions, commits a
sink's batches, delivers by level and by time, sends failed messages back until they are dead letters, and redrives. Each was killed
with SIGKILL at a step (a failpoint in a duty) or at a random moment, the next one went on. After each death all that the log held was
judged: what is committed is there once, what is rolled back never, a delayed message once and not before its time, a failed one
once at each try and once among the dead letters, whatever was acknowledged is there, and no offset has gone back.

{table}

{chain.summary()}.

{findings or "Nothing was wrong, then or in the end; `verify` found nothing."}

Seed {seed}, Python {".".join(platform.python_version_tuple()[:2])}.
"""


def play(run: Run) -> Report:
    """So many kills; then nobody kills any more, until every story has come to its end."""
    with Nursery(run.directory / "log") as nursery:
        chain = DutyChain(run.directory, run.seed, nursery)
        kill_at_random(chain, run.rounds, Random(run.seed))
        findings = chain.finish()
    return Report(report(chain, run.rounds, run.seed), not findings)


BY_HAND = ByHand(play, rounds=100, put=behind)
