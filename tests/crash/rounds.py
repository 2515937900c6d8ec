"""A driver killed again and again, at every step and at random moments: `python -m tests.crash.rounds ROUNDS [FILE] [--seed N]`.

One streaming query from store to store, one checkpoint. After each death the sink's queues must be beginnings of the source's, at the
end they must equal them. The table goes to standard output and into FILE. Exit code 1 where a row is lost, doubled or out of order.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom

import pyspark

from tests.crash.driver_chain import FAILPOINTS, ROWS_A_BATCH, Death, DriverChain, Tally, Victim, meet_death

AT_FAILPOINTS = 0.7  # of the rounds: of 50, each failpoint with either victim
ROWS_AT_FAILPOINT = 300
ROWS_AT_RANDOM = 900
RANDOM_SECONDS = 1, 9  # after the query's start; its first batch is committed after some four

_TRIGGERS = ("availableNow", "0 seconds", "300 milliseconds")
_IN_A_BATCH = "at random, in a batch"
_BETWEEN_BATCHES = "at random, between batches"
_AFTER_THE_END = "after its end"


@dataclass
class Place:
    """What the rounds have shown that died in one place."""

    victims: Counter[Victim] = field(default_factory=Counter)
    unfinished: int = 0
    """Rounds that left a batch decided, and not ended."""
    rows: int = 0
    """That the sink held after each of the rounds, added up."""
    twice: int = 0
    lost: int = 0
    out_of_order: int = 0

    def add(self, victim: Victim, tally: Tally, *, unfinished: bool) -> None:
        self.victims[victim] += 1
        self.unfinished += unfinished
        self.rows += tally.rows
        self.twice += tally.twice + tally.foreign
        self.lost += tally.lost
        self.out_of_order += tally.out_of_order

    @property
    def cells(self) -> tuple[int, ...]:
        victims = (self.victims[victim] for victim in Victim)
        return *victims, self.unfinished, self.rows, self.twice, self.lost, self.out_of_order


def plan_deaths(rounds: int, random: Random) -> list[Death]:
    """Failpoints in equal shares, the rest at random moments; all in random order."""
    sure = [(failpoint, victim) for victim in (Victim.ALL, Victim.WORKER) for failpoint in FAILPOINTS]
    chosen: list[tuple[str, Victim]] = []
    while len(chosen) < round(rounds * AT_FAILPOINTS):
        chosen += random.sample(sure, len(sure))
    deaths = [
        Death.at(failpoint, victim, random, random.choice(_TRIGGERS))
        for failpoint, victim in chosen[: round(rounds * AT_FAILPOINTS)]
    ]
    while len(deaths) < rounds:
        victim, seconds = random.choice((Victim.ALL, Victim.DRIVER)), random.uniform(*RANDOM_SECONDS)
        flush = random.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
        deaths.append(Death(victim, None, seconds, flush, random.choice(_TRIGGERS)))
    random.shuffle(deaths)
    return deaths


def run(rounds: int, random: Random, directory: Path) -> tuple[dict[str, Place], Tally]:
    """All rounds, then a driver that nobody kills; what each place has shown, and the end. AssertionError as the end demands."""
    chain = DriverChain(directory, random)
    deaths = plan_deaths(rounds, random)
    places: dict[str, Place] = defaultdict(Place)
    with ExitStack() as drivers:
        # A JVM takes seconds to start: the next one does while the one before it works.
        coming = drivers.enter_context(chain.prepare(deaths[0]))
        for number, (death, next_death) in enumerate(zip(deaths, [*deaths[1:], None], strict=True), 1):
            driver, coming = coming, drivers.enter_context(chain.prepare(next_death))
            chain.add_rows(ROWS_AT_RANDOM if death.failpoint is None else ROWS_AT_FAILPOINT)
            was_killed = meet_death(driver, death)
            tally, place = chain.tally(finished=False), _place(death, chain) if was_killed else _AFTER_THE_END
            places[place].add(death.victim, tally, unfinished=chain.has_unfinished_batch)
            print(
                f"{number}: {place}, {death.victim}, {death.flush_disk_type}, {death.trigger}: {tally}", file=sys.stderr
            )
        chain.finish(coming)
    chain.assert_sound()
    return places, chain.tally(finished=True)


def _place(death: Death, chain: DriverChain) -> str:
    if death.failpoint is not None:
        return death.failpoint.partition(":")[0]
    begun, committed = chain.batches()
    return _IN_A_BATCH if begun > committed else _BETWEEN_BATCHES


def report(places: dict[str, Place], end: Tally, rounds: int, seed: int) -> str:
    """The page."""
    order = (*FAILPOINTS, _IN_A_BATCH, _BETWEEN_BATCHES, _AFTER_THE_END)
    cells = {place: places[place].cells for place in order if place in places}
    cells["all"] = tuple(map(sum, zip(*cells.values(), strict=True)))
    head = ("killed", *Victim, "batch left to finish", "rows compared", "twice", "lost", "out of order")
    lines = [" | ".join(head), " | ".join(("---", *("---:" for _ in head[1:])))]
    lines += [" | ".join((place, *(f"{cell:,}" for cell in row))) for place, row in cells.items()]
    table = "\n".join(f"| {line} |" for line in lines)
    python = ".".join(platform.python_version_tuple()[:2])
    return f"""# A streaming query, killed {rounds} times

Written by `make test-crash`: one query from store to store, at most {ROWS_A_BATCH} rows a batch, killed with SIGKILL and started
again on its checkpoint {rounds} times, under SYNC_FLUSH and ASYNC_FLUSH and three triggers by chance. Killed are the driver with
its JVM and all Python workers, or driver and JVM alone, or the process alone that commits or stages. The places are those of
`storage/failpoints.py`, in the order of a commit; `amid-staging` and `after-staging` are a task's. After each death the sink's
rows were compared with the source's, queue by queue.

{table}

In the end the sink held {end.rows:,} rows, those of the source: {end.twice + end.foreign} twice, {end.lost} lost,
{end.out_of_order} out of the order of their queues. `verify` found nothing, and the ledger ends each batch once.

Seed {seed}, PySpark {pyspark.__version__}, Python {python}.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.crash.rounds", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rounds", type=int)
    parser.add_argument("file", type=Path, nargs="?", help="where the page is written")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    asked = parser.parse_args(arguments)
    print(f"seed {asked.seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="rounds-") as directory:
        places, end = run(asked.rounds, Random(asked.seed), Path(directory))
    page = report(places, end, asked.rounds, asked.seed)
    print(page)
    if asked.file is not None:
        asked.file.parent.mkdir(exist_ok=True)
        asked.file.write_text(page, encoding="utf-8")
    return 0 if all(cell == 0 for place in places.values() for cell in place.cells[-3:]) else 1


if __name__ == "__main__":
    sys.exit(main())
