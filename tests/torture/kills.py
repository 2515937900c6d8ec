"""Writers killed by SIGKILL, one after the other on one store: at every named failpoint, and at random moments.

The history of what they asked for and what they were answered is kept here, outside of the store, as a pipe brings it. After each
death a copy of the store is opened for writing and judged: nothing acknowledged is lost, nothing is there twice, a batch is whole
or not there, queues and index are what the log says. Each life chooses its settings anew: SYNC_FLUSH or ASYNC_FLUSH, one thread or
several through the put service, flush turns; each store its file sizes. With the transient store pool messages are acknowledged
before they are written, and what a kill takes of them is a figure; Java promises no more.
Java has no such test; the method is that of RocksDB's db_crashtest.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from jobs.verify_store import verify_store
from storage import open_store
from storage.failpoints import COMMIT, STAGING, UPKEEP
from tests.support.queue_history import Answer, History, Seen, Sent, judge, see
from tests.support.rebuilt_store import differences_from_rebuild
from tests.support.unsynced_files import UnsyncedFileSystem
from tests.support.writer_life import Kill, LifePlan, Writers, batch_rows, body_of
from tests.torture.kind import Kind, Outcome

FAILPOINTS = (*STAGING, *COMMIT, *UPKEEP)
LOST_BY_THE_POOL = "acknowledged by the transient store pool, lost with its process, not promised"
START_MS = 1_795_000_000_000
_LIFE_MS = 100_000
_TRIES = 12
_UNDER_SYNC_FLUSH = ("before-drop", "after-drop", "log-synced")
_WITH_POOL = ("before-pool-write",)
_EXPIRY = ("file-expired", "log-expired", "queues-expired")
_SETTINGS = """\
brokerName=broker-kills
brokerIP1=127.0.0.1
mappedFileSizeCommitLog={log_file_size}
mappedFileSizeConsumeQueue={queue_file_size}
maxHashSlotNum=20
maxIndexNum={index_items}
enableConsumeQueueExt=true
mappedFileSizeConsumeQueueExt=256
"""


class Chain:
    """One store and the lives that write into it; all that belongs to it lies in `directory`."""

    def __init__(self, directory: Path, random: Random, writers: Writers, *, fault: str | None = None) -> None:
        self.outcome = Outcome()
        self.history = History()
        self._directory = directory
        self._random = random
        self._writers = writers
        self._fault = fault
        self._seed = random.getrandbits(32)
        self._by_key: dict[str, Sent] = {}
        self._lives = 0
        self._served_from: int | None = None
        """Of the history: what a service of this life, which has not ended, was asked for begins there."""
        self._batches = 0
        """How many were asked for; the last one may not be committed."""
        self._next_batch = 0
        self._minimum = self._batch_floor = 0
        """Where the log began when it was last looked at, and before the last batch was asked for."""
        place = directory / "broker"
        (place / "store").mkdir(parents=True)
        settings = _SETTINGS.format(
            log_file_size=random.choice((8, 16, 64)) << 10,
            index_items=random.choice((60, 400)),
            queue_file_size=random.choice((400, 2_000)),
        )
        (place / "broker.conf").write_text(settings, encoding="ascii")
        self._place = place

    def kill_at(self, failpoints: Sequence[str]) -> None:
        """Kill a life at each of them; one that no life comes to is a failure."""
        for failpoint in failpoints:
            for number in range(_TRIES):
                time = self._random.choice((1, 1, 2, 5)) if number < _TRIES // 2 else 1
                if self.live(Kill(failpoint, time)):
                    break
            else:
                self.outcome.failures.append(f"no life comes to failpoint {failpoint}")

    def kill_at_random(self, count: int) -> None:
        for _ in range(count):
            self.live(Kill(seconds=self._random.choice((0.1, 0.4, 1.0)) * self._random.random()))

    def live(self, kill: Kill) -> bool:
        """One more life, and a look at what it left; returns whether it was killed."""
        plan = self._plan(kill.failpoint)
        self._served_from = None
        was_killed = self._writers.live(plan, kill, lambda told: self._hear(plan, told))
        where = "killed at a failpoint" if kill.failpoint else "killed at random"
        self.outcome.trials += was_killed
        self.outcome.figures[where if was_killed else "lives that ended before"] += 1
        if was_killed and kill.failpoint:
            self.outcome.figures[f"at {kill.failpoint}"] += 1
        if was_killed:
            self.outcome.figures[f"killed under {_flush_of(plan)}"] += 1
        self._lives += 1
        how = f"life {plan.life} ({'killed' if was_killed else 'not killed'} {kill}, {plan})"
        self.outcome.failures += [f"{how}: {text}" for text in self._look(plan, was_killed)]
        return was_killed

    def finish(self) -> Outcome:
        """A last life that nobody kills; then the store itself is looked at."""
        self.live(Kill())
        with open_store(self._root, read_only=False, clock=lambda: self._now_ms) as store:
            seen = see(store)
        self.outcome.failures += map(str, judge(self.history, seen, log_minimum=store.log.minimum))
        self.outcome.failures += [f"verify: {finding}" for finding in verify_store(str(self._root)).findings]
        acknowledged = sum(sent.answer is Answer.OK for sent in self.history.sent)
        self.outcome.figures["messages acknowledged"] = acknowledged
        return self.outcome

    @property
    def _root(self) -> Path:
        return self._place / "store"

    @property
    def _now_ms(self) -> int:
        return START_MS + self._lives * _LIFE_MS

    def _plan(self, failpoint: str) -> LifePlan:
        choice = self._random.choice
        has_pool = failpoint in _WITH_POOL or choice((False, False, False, True))
        return LifePlan(
            root=str(self._root),
            life=self._lives,
            seed=self._seed,
            now_ms=self._now_ms,
            sync_flush=failpoint in _UNDER_SYNC_FLUSH or (not has_pool and choice((False, True))),
            has_pool=has_pool and failpoint not in _UNDER_SYNC_FLUSH,
            threads=has_pool or choice((False, False, True)),
            first="expire" if failpoint in _EXPIRY else "commit" if failpoint in (*COMMIT, *STAGING) else "",
            next_batch=self._next_batch,
            fault=self._fault,
        )

    # What lives tell

    def _hear(self, plan: LifePlan, told: dict[str, Any]) -> None:
        if "serving" in told:
            self._served_from = len(self.history.sent) if told["serving"] else None
        for key, topic, queue_id, size in told.get("ask", ()):
            self._by_key[key] = self.history.ask(key, topic, queue_id, body_of(key, size), told["producer"])
        for key, queue_id, queue_offset, place in (*told.get("ack", ()), *told.get("places", ())):
            self.history.acknowledge(self._by_key[key], queue_offset, place, queue_id)
        for key in told.get("refused", ()):
            self.history.refuse(self._by_key[key])
        for topic, queue_id, queue_offset, place, key, size in told.get("seen", ()):
            self.history.consume([Seen(topic, queue_id, queue_offset, place, key, body_of(key, size))])
        if "batch" in told and told["batch"] == self._batches:
            self._batches += 1
            self._batch_floor = self._minimum
            for row in batch_rows(told["batch"]).rows:
                self._by_key[row.key] = self.history.ask(
                    row.key, row.topic, None, row.body.encode(), "sink", floor=self._minimum
                )
        if "committed" in told:
            self._next_batch = told["committed"] + 1
            for row in batch_rows(told["committed"]).rows:
                if self._by_key[row.key].answer is not Answer.OK:
                    self.history.acknowledge(self._by_key[row.key])

    # What is left

    def _look(self, plan: LifePlan, was_killed: bool) -> list[str]:
        """What is wrong with the store, as its next user would find it."""
        copy = self._directory / "copy"
        shutil.copytree(self._place, copy)
        try:
            files = UnsyncedFileSystem()  # the copy is looked at and thrown away
            with open_store(
                copy / "store", read_only=False, create=True, file_system=files, clock=lambda: self._now_ms
            ) as store:
                seen, minimum = see(store), store.log.minimum
                self._minimum = minimum
                store.release()
            differences = differences_from_rebuild(copy / "store")
        finally:
            shutil.rmtree(copy)
        of_pool = self._lost_by_the_pool(plan, seen, minimum) if plan.has_pool and was_killed else []
        violations = judge(self.history, seen, log_minimum=minimum)
        return [*map(str, violations), *differences, *of_pool, *self._half_batches(seen, minimum)]

    def _lost_by_the_pool(self, plan: LifePlan, seen: Sequence[Seen], minimum: int) -> list[str]:
        """What a service's pool had acknowledged and not written is no failure, as long as it is all that was last."""
        served = [] if self._served_from is None else self.history.sent[self._served_from :]
        of_life = {sent.key: sent for sent in served if sent.producer.startswith(f"life {plan.life}, thread")}
        there = {one.key: one.commitlog_offset for one in seen if one.key in of_life}
        lost = [sent for key, sent in of_life.items() if sent.answer is Answer.OK and key not in there]
        lost = [sent for sent in lost if (sent.commitlog_offset or 0) >= minimum]
        for sent in lost:
            sent.answer = Answer.UNKNOWN
        self.outcome.figures[LOST_BY_THE_POOL] += len(lost)
        first = min((sent.commitlog_offset or 0 for sent in lost), default=None)
        behind = [] if first is None else [key for key, place in there.items() if place >= first]
        return [f"the pool lost what stood at {first}, and {behind} behind it are there"] if behind else []

    def _half_batches(self, seen: Sequence[Seen], minimum: int) -> list[str]:
        """The last batch that was asked for is whole or not there; once it is acknowledged, the history says so."""
        if not self._batches:
            return []
        rows = [row.key for row in batch_rows(self._batches - 1).rows]
        counts = Counter(one.key for one in seen if one.key in rows)
        is_half = 0 < len(counts) < len(rows) and minimum == self._batch_floor  # nothing has expired since
        unknown = any(self._by_key[key].answer is Answer.UNKNOWN for key in rows)
        return (
            [f"{len(counts)} of {len(rows)} rows of batch {self._batches - 1} are there"] if is_half and unknown else []
        )


def _flush_of(plan: LifePlan) -> str:
    return "the pool" if plan.has_pool else "SYNC_FLUSH" if plan.sync_flush else "ASYNC_FLUSH"


def play(random: Random, directory: Path) -> Outcome:
    """One round: every failpoint once, and random moments, in random order."""
    with Writers(directory / "log") as writers:
        chain = Chain(directory, random, writers)
        failpoints = random.sample(FAILPOINTS, len(FAILPOINTS))
        for number, failpoint in enumerate(failpoints):
            chain.kill_at([failpoint])
            if number % 2:
                chain.kill_at_random(1)
        outcome = chain.finish()
    reached = sum(outcome.figures[f"at {failpoint}"] > 0 for failpoint in FAILPOINTS)
    outcome.figures[f"rounds with failpoints covered {reached}/{len(FAILPOINTS)}"] = 1
    return outcome


KIND = Kind(
    "kills",
    "Nothing that was acknowledged is lost when the process is killed, under ASYNC_FLUSH as under SYNC_FLUSH; with the transient store "
    "pool, which acknowledges before it writes, only what was last",
    "killed writers",
    play,
    bites=LOST_BY_THE_POOL,
)
