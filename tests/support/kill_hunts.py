"""What kills under load have left: acknowledged messages that are lost, messages that stand there twice, logs that differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


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
