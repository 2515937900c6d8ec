"""What kills under load have left: acknowledged messages that are lost, messages that stand there twice, logs that differ.

`KillsInTurn` kills the members of a group, leaders and followers by turns, and measures how long none of them leads.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol

OURS, APACHES = True, False
KINDS: Mapping[str, tuple[bool, ...]] = {
    "ours": (OURS, OURS, OURS),
    "two-of-ours": (OURS, OURS, APACHES),
    "one-of-ours": (OURS, APACHES, APACHES),
    "apaches": (APACHES, APACHES, APACHES),
}
"""Whose the three members of a group are."""


class Place(NamedTuple):
    """A message, by a key that no other has and that is sent once, and where it stands."""

    key: str
    queue_id: int
    queue_offset: int


class Verdict(NamedTuple):
    """The counts of one hunt; a table's row as text."""

    kills: Mapping[str, int]
    """By role."""
    acknowledged: int
    lost: list[Place]
    """Acknowledged, and not at the place of the acknowledgement."""
    doubled: list[tuple[Place, ...]]
    """All places of each message that stands there more than once."""
    unanswered: int
    """Messages that stand there, and whose sender heard no OK."""

    def __str__(self) -> str:
        kills = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        return (
            f"{sum(self.kills.values())} kills ({kills}) | {self.acknowledged:,} acknowledged | {len(self.lost)} lost | "
            f"{len(self.doubled)} doubled | {self.unanswered:,} stored without an OK"
        )

    @property
    def is_clean(self) -> bool:
        return not self.lost and not self.doubled


def judged(kills: Iterable[str], acknowledged: Iterable[Place], there: Iterable[Place]) -> Verdict:
    """`kills` are the roles that were killed, `there` is all that the topic's queues hold."""
    sent, places = list(acknowledged), defaultdict(list)
    for place in there:
        places[place.key].append(place)
    lost = [place for place in sent if place not in places[place.key]]
    doubled = [tuple(found) for found in places.values() if len(found) > 1]
    heard = {place.key for place in sent}
    unanswered = sum(bool(found) for key, found in places.items() if key not in heard)
    return Verdict(Counter(kills), len(sent), lost, doubled, unanswered)


class LedGroup(Protocol):
    """Processes, one of which the others follow."""

    @property
    def running(self) -> Collection[str]:
        """The ids of those that run."""

    def is_ours(self, name: str) -> bool:
        """Whether it is this package's, and not Apache's."""

    def kill(self, name: str) -> None:
        """SIGKILL."""

    def await_leader(self) -> str:
        """Until one of those that run leads; which one."""


class KillsInTurn:
    """Every other kill hits the group's leader, the others a follower that a seed chooses."""

    def __init__(self, group: LedGroup, seed: str) -> None:
        self._group = group
        self._random = random.Random(seed)
        self.killed: list[str] = []
        """The role of each, and whose it was."""
        self.without_leader_s: list[float] = []
        """For each kill of a leader: how long until another one led."""

    def kill(self, leader: str) -> str:
        """Kill the next one, while `leader` leads; another one leads when this returns. Returns the killed one's id."""
        hits_leader = len(self.killed) % 2 == 0
        name = leader if hits_leader else self._random.choice(sorted(set(self._group.running) - {leader}))
        whose = "ours" if self._group.is_ours(name) else "Apache's"
        self.killed.append(f"{'leader' if hits_leader else 'follower'}, {whose}")
        began = time.monotonic()
        self._group.kill(name)
        if hits_leader:
            self._group.await_leader()
            self.without_leader_s.append(time.monotonic() - began)
        return name

    def __str__(self) -> str:
        waits = self.without_leader_s
        return f"without a leader: median {median(waits):.1f} s, most {max(waits):.1f} s"


def bytes_apart(first: Path, second: Path) -> int:
    """By how many bytes the log of one store is longer, without zeros at its end. Asserts that the shorter is its beginning."""
    shorter, longer = sorted((_log(first), _log(second)), key=len)
    differing = (
        next((at for at in range(len(shorter)) if shorter[at] != longer[at]), None)
        if not longer.startswith(shorter)
        else None
    )
    assert differing is None, f"{first} and {second} differ at byte {differing} of the log"
    return len(longer) - len(shorter)


def _log(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir())).rstrip(b"\0")
