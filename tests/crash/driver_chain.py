"""Driver after driver, each on the checkpoint of the one that was killed: what they read, what they wrote, and what is wrong with it.

A row's body names its queue and its number there, and rows keep their queues; so the sink's queues must equal the source's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from jobs.verify_store import verify_store
from storage import MessageStore, open_store
from storage.batch.intent import load_intents
from storage.batch.ledger import TOPIC as LEDGER_TOPIC
from storage.batch.staged_segment import list_segments
from storage.failpoints import COMMIT, STAGING
from storage.files.local_file_system import LocalFileSystem
from tests.support.driver_process import FAILED, PATIENCE_SECONDS, Driver, Query
from tests.support.served import served

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
        self._random = random
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
        queues = [self._random.randrange(QUEUES) for _ in range(count)]
        names = []
        for queue in queues:
            names.append(f"{queue}/{self._row_counts[queue]}")
            self._row_counts[queue] += 1
        bodies = [
            f"{name} ".encode() + self._random.randbytes(self._random.randrange(MAX_BODY_BYTES)) for name in names
        ]
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
