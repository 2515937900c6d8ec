"""What is to happen to each message of the killed duties, and what has: seeded stories, and notes outside the store.

A story is told by its name, which is the message's body and unique key; all that is random in it comes from the seed and its number.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

DELAYS_MS = (1_000, 5_000, 10_000, 30_000)
"""Of messageDelayLevel; a level above the last is the last."""
MAX_CHECKS = 4
WINDOW_SLOTS = 60
"""Seconds that the timer's window reaches; what waits longer is rolled."""
PRODUCER_GROUP = "producers"
ORDERS, LATER = "Orders", "Later"
HASTY, PATIENT = "hasty", "patient"
RETRIES = {HASTY: 2, PATIENT: 16}
"""Consumer group → retryMaxTimes; 16 is Java's default."""

CONF = f"""\
brokerName=broker-duties
brokerIP1=127.0.0.1
mappedFileSizeCommitLog=32768
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=100
maxIndexNum=400
messageDelayLevel={" ".join(f"{delay // 1_000}s" for delay in DELAYS_MS)}
transactionCheckMax={MAX_CHECKS}
mappedFileSizeTimerLog=1024
timerRollWindowSlot={WINDOW_SLOTS}
"""


class Fate(StrEnum):
    """What becomes of a message."""

    COMMITTED = "committed"  # as its producer says; late ones after they were asked back
    ROLLED_BACK = "rolled-back"
    COMMITTED_WHEN_ASKED = "committed-when-asked"
    ROLLED_BACK_WHEN_ASKED = "rolled-back-when-asked"
    GIVEN_UP = "given-up"  # nobody knows, until it is put back; then committed
    LEVEL = "level"
    TIMED = "timed"
    ROLLED = "rolled"  # timed beyond the window
    RECALLED = "recalled"  # timed, and deleted by another message before
    FAILING = "failing"  # each consumption of it fails

    @property
    def is_transaction(self) -> bool:
        return self in _TRANSACTIONS

    @property
    def is_committed(self) -> bool:
        return self in (Fate.COMMITTED, Fate.COMMITTED_WHEN_ASKED, Fate.GIVEN_UP)


_TRANSACTIONS = frozenset(list(Fate)[:5])
_ROW_FATES = [fate for fate in Fate if fate.is_transaction and fate is not Fate.GIVEN_UP]
STORIES_A_LIFE = len(Fate)
ROWS_A_BATCH = 2 * len(_ROW_FATES)
_PATIENT_STORIES = 3 * STORIES_A_LIFE


@dataclass(frozen=True, slots=True)
class Story:
    """One message, from its sending to its end."""

    name: str
    fate: Fate
    topic: str
    queue_id: int
    asks: int = 0
    """How many checks get no answer."""
    is_late: bool = False
    """The producer ends it only after it was asked back."""
    immunity_s: int | None = None
    level: int = 0
    wait_ms: int = 0
    group: str = HASTY
    asked_level: int = 0
    """What the consumer says when it sends it back; −1 = no more tries."""

    @property
    def dies_after(self) -> int:
        """How often it is tried again before it is a dead letter."""
        return 0 if self.asked_level < 0 else RETRIES[self.group]


class Stories:
    """All stories of a seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of_life(self, life: int) -> list[Story]:
        """What a life begins: one of each fate."""
        return [self._story(number) for number in range(life * STORIES_A_LIFE, (life + 1) * STORIES_A_LIFE)]

    def rows(self, batch: int) -> list[Story]:
        """The rows of a sink's batch."""
        fates = [_ROW_FATES[number % len(_ROW_FATES)] for number in range(ROWS_A_BATCH)]
        return [self._row(f"{fate}.{batch}-{number}", number) for number, fate in enumerate(fates)]

    def named(self, name: str) -> Story:
        """The story of that name."""
        number = name.partition(".")[2]
        return self._row(name, int(number.partition("-")[2])) if "-" in number else self._story(int(number))

    def _story(self, number: int) -> Story:
        random = Random(f"{self._seed}/{number}")
        fate = list(Fate)[number % STORIES_A_LIFE]
        name, queue_id = f"{fate}.{number}", random.randrange(2)
        if fate.is_transaction:
            return Story(
                name,
                fate,
                ORDERS,
                queue_id,
                asks=random.randrange(MAX_CHECKS - 1),
                is_late=random.random() < 0.3,
                immunity_s=random.choice((None, None, 20, 150)),
            )
        if fate is Fate.FAILING:
            group = PATIENT if number < _PATIENT_STORIES else HASTY
            asked = random.choice((0, 0, 0, 1, -1)) if group == HASTY else 0
            return Story(name, fate, group, queue_id, group=group, asked_level=asked)
        if fate is Fate.LEVEL:
            return Story(name, fate, LATER, queue_id, level=random.randint(1, len(DELAYS_MS) + 2))
        seconds = random.uniform(WINDOW_SLOTS, 6 * WINDOW_SLOTS) if fate is Fate.ROLLED else random.uniform(2, 50)
        return Story(name, fate, LATER, queue_id, wait_ms=int(seconds * 1_000))

    def _row(self, name: str, number: int) -> Story:
        return Story(name, Fate(name.partition(".")[0]), ORDERS, number % 2, asks=1)


class Notes:
    """What was begun and what was acknowledged, durably: a line of JSON each, [event, name, details]."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._events: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        for line in path.read_text("ascii").splitlines() if path.exists() else ():
            event, name, details = json.loads(line)
            self._events[event][name] = details

    def add(self, event: str, name: str, **details: Any) -> None:
        """On the disk when this returns."""
        self._events[event][name] = details
        line = json.dumps([event, name, details]).encode() + b"\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line)  # a kill does not tear it
            os.fsync(file)
        finally:
            os.close(file)

    def of(self, event: str) -> Mapping[str, dict[str, Any]]:
        """Name → details of all that it happened to."""
        return self._events[event]

    def has(self, event: str, name: str) -> bool:
        return name in self._events[event]

    def open(self, begun: str, done: str) -> Iterator[str]:
        """The names that have the one and not the other."""
        return (name for name in self._events[begun] if name not in self._events[done])
