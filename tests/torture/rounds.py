"""Rounds, each in a process of its own, so that a crash, a leak or a hang of one is a finding and not the end.

What a process says of its round is one line of JSON on standard output. `python -m tests.torture KIND --seed N` is that process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.support.places import PROJECT
from tests.torture.kind import Kind, Outcome

HANG_SECONDS = 900
_LAST_LINES = 40


def play(kind: Kind, seed: int) -> Outcome:
    """One round in this process. An exception is a failure like any other."""
    directory = Path(tempfile.mkdtemp(prefix=f"torture-{kind.name}-"))
    try:
        return kind.parts[seed](directory) if seed < len(kind.parts) else kind.play(Random(seed), directory)
    except Exception:  # whatever a round lets out breaks its claim
        return Outcome(trials=1, failures=[traceback.format_exc()])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def to_line(outcome: Outcome) -> str:
    return json.dumps({"trials": outcome.trials, "failures": outcome.failures, "figures": dict(outcome.figures)})


def from_line(line: str) -> Outcome:
    found = json.loads(line)
    return Outcome(found["trials"], found["failures"], Counter(found["figures"]))


def command(kind_name: str, seed: int) -> list[str]:
    """What plays this very round again."""
    return [sys.executable, "-m", "tests.torture", kind_name, "--seed", str(seed)]


def play_in_process(kind_name: str, seed: int) -> Outcome:
    """One round in a process of its own."""
    try:
        ended = subprocess.run(
            [*command(kind_name, seed), "--json"], cwd=PROJECT, capture_output=True, text=True, timeout=HANG_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Outcome(trials=1, failures=[f"the round did not end within {HANG_SECONDS} s"])
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        last = "\n".join(ended.stderr.splitlines()[-_LAST_LINES:])
        return Outcome(trials=1, failures=[f"the round's process ended with code {ended.returncode}:\n{last}"])
    return from_line(lines[-1])


@dataclass(slots=True)
class Record:
    """What all rounds of one kind have come to."""

    outcome: Outcome = field(default_factory=Outcome)
    seeds: list[int] = field(default_factory=list)
    failed_seeds: list[int] = field(default_factory=list)
    seconds: float = 0.0
    running: int = 0
    waiting: list[int] = field(default_factory=list)
    """Parts of a whole that have not had their turn."""


def run(
    kinds: Mapping[str, Kind],
    seed: int,
    minutes: float,
    *,
    jobs: int,
    play_round: Callable[[str, int], Outcome] = play_in_process,
    note: Callable[[str], None] = lambda line: None,
) -> Mapping[str, Record]:
    """Rounds of all kinds, `jobs` at a time, until the time is over; each gets its share of it, and one round at least."""
    seeds = {name: Random(f"{seed}/{name}") for name in kinds}
    records = {name: Record(waiting=_shuffled_parts(kind, seeds[name])) for name, kind in kinds.items()}
    end = time.monotonic() + 60 * minutes
    playing: dict[Future[Outcome], tuple[str, int, float]] = {}
    with ThreadPoolExecutor(jobs) as pool:
        while playing or _next(kinds, records, end) is not None:
            while len(playing) < jobs and (name := _next(kinds, records, end)) is not None:
                round_seed = records[name].waiting.pop() if kinds[name].parts else seeds[name].getrandbits(32)
                records[name].running += 1
                playing[pool.submit(play_round, name, round_seed)] = name, round_seed, time.monotonic()
            done, _ = wait(playing, return_when=FIRST_COMPLETED)
            for future in done:
                name, round_seed, began = playing.pop(future)
                outcome, record = future.result(), records[name]
                record.running -= 1
                record.outcome.add(outcome)
                record.seeds.append(round_seed)
                record.seconds += time.monotonic() - began
                if outcome.failures:
                    record.failed_seeds.append(round_seed)
                note(_line(name, round_seed, outcome, time.monotonic() - began))
    return records


def _shuffled_parts(kind: Kind, random: Random) -> list[int]:
    return random.sample(range(len(kind.parts)), len(kind.parts))


def _next(kinds: Mapping[str, Kind], records: Mapping[str, Record], end: float) -> str | None:
    """The kind that has had the least of its share, those that have none first; None when the time is over."""
    idle = [name for name, record in records.items() if not record.seeds and not record.running]
    if idle:
        return idle[0]
    if time.monotonic() >= end:
        return None
    left = [name for name, record in records.items() if record.waiting or not kinds[name].parts]
    return min(left, key=lambda name: (records[name].running, records[name].seconds / kinds[name].share), default=None)


def _line(name: str, seed: int, outcome: Outcome, seconds: float) -> str:
    figures = ", ".join(f"{what}: {count:,}" for what, count in sorted(outcome.figures.items())[:6])
    failures = "".join(f"\n  FAILED {text}" for text in outcome.failures[:5])
    return f"{name} --seed {seed}: {outcome.trials:,} in {seconds:.0f} s; {figures}{failures}"
