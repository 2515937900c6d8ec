"""Driver after driver, each on the checkpoint of the one that was killed: what they read, what they wrote, and what is wrong with it.

    python -m tests.torture killed-drivers --rounds 50 --page docs/tables/kills.md

One streaming query from store to store, killed at every step and at random moments. A row's body names its queue and its number there,
and rows keep their queues. After each death the sink's queues must be beginnings of the source's, at the end they must equal them.
"""

from __future__ import annotations

import json
import platform
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyspark

from jobs.verify_store import verify_store
from storage import MessageStore, open_store
from storage.batch.intent import load_intents
from storage.batch.ledger import TOPIC as LEDGER_TOPIC
from storage.batch.staged_segment import list_segments
from storage.failpoints import COMMIT, STAGING
from storage.files.local_file_system import LocalFileSystem
from tests.support.driver_process import FAILED, PATIENCE_SECONDS, Driver, Query
from tests.support.served import served
from tests.torture.by_hand import ByHand, Report, Run

TOPIC = "Orders"
QUEUES = 3
ROWS_A_BATCH = 150
MAX_BODY_BYTES = 2_000
FAILPOINTS = (*COMMIT, *STAGING)

_SOURCE_SETTINGS = """\
brokerName=broker-source
mappedFileSizeCommitLog=16777216
maxHashSlotNum=5000
maxIndexNum=100000
"""
# Files so small that a batch crosses files of log, queues and index.
_SINK_SETTINGS = """\
brokerName=broker-sink
brokerIP1=127.0.0.1
mappedFileSizeCommitLog=262144
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=500
maxIndexNum=1000
"""
_TIMES_A_BATCH = {
    "after-records": 3,
    "after-queues": 2,
    "after-index": 2,
}  # SLICE, its rows, END; queues know the first two together
_ONLY_WITH_SYNC_FLUSH = ("before-drop", "after-drop")


AT_FAILPOINTS = 0.7  # of the rounds: of 50, each failpoint with either victim
ROWS_AT_FAILPOINT = 300  # two batches
ROWS_AT_RANDOM = 900
RANDOM_SECONDS = 1, 9  # after the query's start; its first batch is committed after some four


class Victim(StrEnum):
    """What SIGKILL ends."""

    ALL = "driver and workers"
    DRIVER = "driver"  # and its JVM; the workers find themselves alone
    WORKER = "commit or task"  # Spark calls abort, and the query fails


@dataclass(frozen=True)
class Death:
    """How a driver's run ends: at a failpoint, or if there is none so long after the query's start."""

    victim: Victim
    failpoint: str | None
    seconds: float = 0
    flush_disk_type: str = "ASYNC_FLUSH"
    trigger: str = "availableNow"

    @classmethod
    def at(cls, failpoint: str, victim: Victim, random: Random, trigger: str = "availableNow") -> Death:
        """At a failpoint, with a flush type that passes it."""
        flush = "SYNC_FLUSH" if failpoint in _ONLY_WITH_SYNC_FLUSH else random.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
        times = random.randint(1, _TIMES_A_BATCH.get(failpoint, 1))
        return cls(victim, f"{failpoint}:{times}", flush_disk_type=flush, trigger=trigger)


class Tally(NamedTuple):
    """The sink's rows beside the source's."""

    rows: int
    twice: int
    lost: int
    out_of_order: int
    foreign: int
    """Rows that the source does not have."""

    @property
    def is_flawless(self) -> bool:
        return not any(self[1:])


class Row(NamedTuple):
    """What must be the same on both sides."""

    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    number: str | None
    """An ordinary property."""


class DriverChain:
    """A source store that grows, a sink store, a checkpoint; everything lies in `directory`."""

    def __init__(self, directory: Path, random: Random) -> None:
        self.source = directory / "source" / "store"
        self.sink = directory / "sink" / "store"
        self.conf = self.sink.parent / "broker.conf"
        self._directory = directory
        self._checkpoint = directory / "checkpoint"
        self.random = random
        self._row_counts = [0] * QUEUES
        self._drivers = 0
        for root, settings in ((self.source, _SOURCE_SETTINGS), (self.sink, _SINK_SETTINGS)):
            root.parent.mkdir()
            (root.parent / "broker.conf").write_text(settings, encoding="ascii")

    @property
    def row_count(self) -> int:
        """Of the source."""
        return sum(self._row_counts)

    def add_rows(self, count: int) -> None:
        """Rows at the source's end, spread over its queues by chance; at least 300 fill more than a file of the sink's log."""
        queues = [self.random.randrange(QUEUES) for _ in range(count)]
        names = []
        for queue in queues:
            names.append(f"{queue}/{self._row_counts[queue]}")
            self._row_counts[queue] += 1
        bodies = [f"{name} ".encode() + self.random.randbytes(self.random.randrange(MAX_BODY_BYTES)) for name in names]
        columns = {
            "topic": pa.array([TOPIC] * count),
            "queue_id": pa.array(queues, pa.int32()),
            "body": pa.array(bodies, pa.binary()),
            "tags": pa.array([f"Tag{queue}" if queue else None for queue in queues]),
            "keys": pa.array([f"{name} of-{queue}" for name, queue in zip(names, queues, strict=True)]),
            "properties": pa.array([[("number", name)] for name in names], pa.map_(pa.string(), pa.string())),
        }
        with open_store(self.source, read_only=False, create=True) as store:
            store.put_batch(pa.table(columns), queue_count=QUEUES)

    def prepare(self, death: Death | None) -> Driver:
        """The next driver, which is to die like this, or is to come to the source's end. It waits for `begin`."""
        is_paused = death is not None and death.victim is Victim.ALL
        return self.driver(death, is_paused=is_paused)

    def driver(
        self, death: Death | None, *, is_paused: bool, master: str = "local[1]", config: Mapping[str, str] | None = None
    ) -> Driver:
        """The same with a cluster of its own. With `is_paused` the first process at the failpoint waits there."""
        self._drivers += 1
        query = Query(
            str(self.source),
            str(self.sink),
            TOPIC,
            str(self._checkpoint),
            ROWS_A_BATCH,
            "ASYNC_FLUSH" if death is None else death.flush_disk_type,
            "availableNow" if death is None else death.trigger,
            master,
            config or {},
        )
        return Driver(
            query,
            self._directory / f"driver-{self._drivers}",
            failpoint=None if death is None else death.failpoint,
            paused=is_paused,
        )

    def die_in_turn(self, deaths: Sequence[Death]) -> Iterator[tuple[Death, bool]]:
        """Rows and a driver for each death; yields it, and whether it came in time. The last driver reads to the end."""
        with ExitStack() as drivers:
            # A JVM takes seconds to start: the next one does while the one before it works.
            coming = drivers.enter_context(self.prepare(deaths[0]))
            for death, next_death in zip(deaths, [*deaths[1:], None], strict=True):
                driver, coming = coming, drivers.enter_context(self.prepare(next_death))
                self.add_rows(ROWS_AT_RANDOM if death.failpoint is None else ROWS_AT_FAILPOINT)
                yield death, meet_death(driver, death)
            self.finish(coming)

    def finish(self, driver: Driver) -> None:
        """A driver that nobody kills reads to the end."""
        driver.begin()
        assert driver.wait() == 0, driver.output
        driver.kill()

    def batches(self) -> tuple[int, int]:
        """How many batches Spark has begun, and how many it has committed."""
        return self._logged("offsets"), self._logged("commits")

    def tally(self, *, finished: bool) -> Tally:
        """Compare the rows, queue by queue. Unless it is `finished`, the sink's queues may end before the source's."""
        with open_store(self.source) as source:
            expected = rows_by_queue(source)
        if not self._has_sink:
            return Tally(0, 0, self.row_count if finished else 0, 0, 0)
        with open_store(self.sink) as sink:
            return compare(expected, rows_by_queue(sink), finished=finished)

    @property
    def has_unfinished_batch(self) -> bool:
        """Whether a batch is decided, and its END is not in the log yet."""
        intents = load_intents(LocalFileSystem(), str(self.sink))
        return bool({intent.batch_id for intent in intents} - {end["batch"] for end in self._ends()})

    def assert_sound(self) -> None:
        """All of the source is in the sink, whose files agree; the ledger ends every batch once; nothing is left over."""
        open_store(self.sink, read_only=False).close()
        tally = self.tally(finished=True)
        assert tally.is_flawless, tally
        assert tally.rows == self.row_count
        begun, committed = self.batches()
        assert begun == committed
        ends = self._ends()
        assert [document["batch"] for document in ends] == list(range(committed))
        assert sum(document["rows"] for document in ends) == self.row_count
        report = verify_store(str(self.sink))
        assert report.findings == (), report.findings
        assert load_intents(LocalFileSystem(), str(self.sink)) == []
        assert list(list_segments(LocalFileSystem(), str(self.sink))) == []

    @property
    def _has_sink(self) -> bool:
        return (self.sink / "commitlog").exists()  # not before the first commit

    def _ends(self) -> list[dict[str, Any]]:
        """What the ledger's ENDs say."""
        if not self._has_sink:
            return []
        with open_store(self.sink) as store:
            documents = [json.loads(message.body) for message in served(store, LEDGER_TOPIC, 0)]
        return [document for document in documents if "last" in document]

    def _logged(self, kind: str) -> int:
        directory = self._checkpoint / kind
        numbers = [int(path.name) for path in directory.iterdir() if path.name.isdigit()] if directory.exists() else []
        return max(numbers, default=-1) + 1


def meet_death(driver: Driver, death: Death) -> bool:
    """Let the driver run until it is dead; returns False if it had come to the source's end before.

    AssertionError if its failpoint is never reached, or if it fails for another reason.
    """
    driver.begin()
    exit_code = driver.wait(PATIENCE_SECONDS if death.failpoint is not None else death.seconds)
    if death.failpoint is None:
        assert exit_code in (None, 0), driver.output
    elif death.victim is Victim.WORKER:
        was_killed = exit_code == FAILED and "Python worker exited unexpectedly" in driver.output
        assert was_killed, f"{death.failpoint} was never reached: exit code {exit_code}\n{driver.output}"
    else:
        assert driver.is_paused, f"{death.failpoint} was never reached: exit code {exit_code}\n{driver.output}"
    if death.victim is Victim.DRIVER:
        driver.kill_without_workers()
    else:
        driver.kill()
    return exit_code != 0


def compare(source: Sequence[Sequence[Row]], sink: Sequence[Sequence[Row]], *, finished: bool) -> Tally:
    """Queue by queue: what of the sink's is there more than once, missing, behind a row that it should precede, or unknown."""
    twice = lost = out_of_order = foreign = 0
    for expected, found in zip(source, sink, strict=True):
        numbers = {row: number for number, row in enumerate(expected)}
        assert len(numbers) == len(expected), "the source's rows all differ"
        known = [numbers[row] for row in found if row in numbers]
        counts = Counter(known)
        wanted = len(expected) if finished else max(known, default=-1) + 1
        foreign += len(found) - len(known)
        twice += len(known) - len(counts)
        lost += wanted - len(counts)
        out_of_order += sum(second < first for first, second in pairwise(counts))  # in order of first appearance
    return Tally(sum(map(len, sink)), twice, lost, out_of_order, foreign)


def rows_by_queue(store: MessageStore) -> list[list[Row]]:
    """All rows of the topic that the store serves; none before it has the topic."""
    return [
        [
            Row(message.body, message.tags, tuple(message.keys), message.properties.get("number"))
            for message in served(store, TOPIC, queue_id)
        ]
        for queue_id in range(QUEUES)
    ]


# Long runs

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


def play(run: Run) -> Report:
    """All rounds, then a driver that nobody kills. AssertionError as the end demands."""
    chain = DriverChain(run.directory, Random(run.seed))
    places: dict[str, Place] = defaultdict(Place)
    for death, was_killed in chain.die_in_turn(plan_deaths(run.rounds, chain.random)):
        tally, place = chain.tally(finished=False), _place(death, chain) if was_killed else _AFTER_THE_END
        places[place].add(death.victim, tally, unfinished=chain.has_unfinished_batch)
        run.tell(f"{place}, {death.victim}, {death.flush_disk_type}, {death.trigger}: {tally}")
    chain.assert_sound()
    is_sound = all(cell == 0 for place in places.values() for cell in place.cells[-3:])
    return Report(report(places, chain.tally(finished=True), run.rounds, run.seed), is_sound)


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


BY_HAND = ByHand(play, rounds=50)
