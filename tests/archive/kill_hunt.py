"""Kill archivers until it is enough, while a writer sends and old log files are deleted; then compare the table with what was sent.

python -m tests.archive.kill_hunt PLACE [--kills 200] [--seed N]
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, randrange
from typing import Protocol

from tests.support.store_builder import StoreBuilder

from .archived import archived, opened, table_rows
from .hunted_archiver import STEPS, Archivers

QUEUES = 3
LOG_FILE_BYTES = 16 << 10
KEPT_FILES = 6
"""Of the log: with slow archivers some messages expire before they are archived, and are gaps."""


@dataclass
class Hunt:
    """What happened, and what is wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    conflicts: int = 0
    sent: int = 0
    archived: int = 0
    gaps: int = 0
    gap_offsets: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{step} {count}" for step, count in sorted(self.kills.items()))
        return (
            f"{sum(self.kills.values())} kills ({kills}) | {self.sent:,} sent | {self.archived:,} archived | "
            f"{self.gaps} gaps of {self.gap_offsets:,} offsets | {self.commits} commits, {self.conflicts} conflicts heard of | "
            f"{len(self.wrong)} wrong"
        )


class World(Protocol):
    """What is archived: a topic `Topic` that grows and whose oldest messages expire."""

    source: Mapping[str, str]
    """Where it is, as options of the source."""
    sent: dict[tuple[int, int], str]
    """By queue and offset the body of each message."""

    def turn(self, random: Random) -> None:
        """Send some, and let some expire."""
        ...


class StoreWorld:
    """A store that the test writes itself."""

    def __init__(self, place: Path) -> None:
        self._store = StoreBuilder(place / "broker-a", log_file_size_bytes=LOG_FILE_BYTES)
        self.source = {"path": str(self._store.root)}
        self.sent: dict[tuple[int, int], str] = {}
        for queue_id in range(QUEUES):
            self._send(queue_id)

    def turn(self, random: Random) -> None:
        for _ in range(random.randrange(1, 30)):
            self._send(random.randrange(QUEUES))
        if len(self._store.log_files) > KEPT_FILES:
            self._store.delete_oldest_log_file()
        time.sleep(random.random() * 0.1)

    def _send(self, queue_id: int) -> None:
        body = f"{queue_id}/{len(self.sent)}/" + "x" * (len(self.sent) % 90)
        offset = self._store.end("Topic", queue_id)
        self.sent[queue_id, offset] = body
        self._store.send("Topic", body, queue_id=queue_id)


def hunt(place: Path, kills: int, seed: int, *, archivers: int = 2, world: World | None = None) -> Hunt:
    """Two archivers at a time, each killed and begun again, until `kills` have died."""
    random, found = Random(seed), Hunt()
    place.mkdir(parents=True, exist_ok=True)
    world = world or StoreWorld(place)
    source, table = dict(world.source), place / "archive"
    lock, enough = threading.Lock(), threading.Event()

    def keep_killing(number: int) -> None:
        own = Random(seed * 10 + number)
        with Archivers(place / f"archiver-{number}.log") as warm:
            while not enough.is_set():
                step = own.choice((*STEPS, None, None))
                after = own.random() * (1.5 if step is None else 5.0) + 0.2
                order = {"source": source, "table": str(table), "seed": own.randrange(1 << 30), "step": step,
                         "compacts": 0.4}  # fmt: skip

                def hear(told: dict[str, int]) -> None:
                    with lock:
                        found.commits += told["commits"]
                        found.conflicts += told["conflicts"]

                warm.fork(order, kill_after_seconds=after, hear=hear)
                with lock:
                    found.kills[step or "any moment"] += 1
                    if sum(found.kills.values()) >= kills:
                        enough.set()

    threads = [threading.Thread(target=keep_killing, args=(number,)) for number in range(archivers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        world.turn(random)
    for thread in threads:
        thread.join()
    archived(table, topic="Topic", **source)
    judge(found, table, world.sent)
    return found


def judge(found: Hunt, table: Path, sent: dict[tuple[int, int], str]) -> None:
    """Every offset is there once, or in a named gap; never both; every body is the one that was sent."""
    rows = table_rows(table)
    there = Counter((row["queue_id"], row["queue_offset"]) for row in rows)
    named = Counter[tuple[int, int]]()
    looked = opened(table)
    for queue in looked.queues():
        for life in looked.lives(queue):
            if life.incarnation:
                found.wrong.append(f"{queue} has incarnation {life.incarnation}, and its topic was never deleted")
            found.gaps += len(life.gaps)
            for gap in life.gaps:
                named.update((queue.queue_id, offset) for offset in range(gap.start, gap.end))
    found.sent, found.archived, found.gap_offsets = len(sent), len(rows), len(named)
    found.wrong += [f"{place} is there {count} times" for place, count in there.items() if count > 1]
    found.wrong += [f"{place} is named by {count} gaps" for place, count in named.items() if count > 1]
    found.wrong += [f"{place} is there, and in a gap" for place in there.keys() & named.keys()]
    found.wrong += [f"{place} is missing" for place in sent.keys() - there.keys() - named.keys()]
    found.wrong += [f"{place} was never sent" for place in there.keys() - sent.keys()]
    found.wrong += [
        f"{place} has another body"
        for row in rows
        if sent.get(place := (row["queue_id"], row["queue_offset"])) != row["body"].decode()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=randrange(1 << 30))
    given = parser.parse_args()
    given.place.mkdir(parents=True, exist_ok=True)
    print(f"seed {given.seed}", flush=True)
    found = hunt(given.place, given.kills, given.seed)
    print(found)
    for wrong in found.wrong[:20]:
        print(wrong)
    return bool(found.wrong)


if __name__ == "__main__":
    sys.exit(main())
