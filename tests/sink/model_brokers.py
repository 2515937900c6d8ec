"""Brokers as a model: queues in memory, and everything that can go wrong on the way to them, by a seeded random.

A request that is sent may be stored and answered, stored without an answer, lost, cut by a crash after some of its rows, or held back
on its way and stored later: at the latest when a fence has waited for its group. So may the requests of other queues that are in flight
then. A row that waits goes where its broker likes, and is delivered, rolled and sent back. Foreign messages come in between, and a
broker that loses power loses the last of them. The process that commits dies (`Died`) at any point, also within these calls.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_mq.conditions import BatchInDoubtError
from spark_mq.remoting import MessageQueue
from spark_mq.remoting.messages import decode_batch
from spark_mq.sink.exact_commit import Marks, SendInDoubtError, Stored
from spark_mq.sink.journal import Done
from spark_mq.sink.send_plan import PlannedBatch, QueuePlan, places_of
from spark_mq.sink.staged_rows import StagedReader


class Died(BaseException):
    """The committing process is gone."""


@dataclass
class Held:
    """A request on its way."""

    group: str
    queue: MessageQueue
    rows: list[tuple[str, bytes]]
    waits: bool = False


@dataclass
class ModelCluster:
    """What outlives a process: queues, requests on their way, the sink's topic. `trouble` is how likely each step goes wrong."""

    random: random.Random
    trouble: float = 0.2
    queues: dict[MessageQueue, list[tuple[str, bytes]]] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    topic: list[Done] = field(default_factory=list)
    puts: dict[MessageQueue, list[bytes]] = field(default_factory=dict)
    """The sink's rows as they were put, by the queue that they were sent to; what follows from that are copies."""
    waiting: list[tuple[MessageQueue, list[tuple[str, bytes]]]] = field(default_factory=list)
    forgets_requests: bool = False
    """A broken fence: it does not wait for requests on their way."""

    def happens(self, weight: float = 1.0) -> bool:
        return self.random.random() < self.trouble * weight

    def die(self, weight: float = 0.3) -> None:
        if self.happens(weight):
            raise Died

    def store(self, queue: MessageQueue, rows: list[tuple[str, bytes]], *, waits: bool = False) -> None:
        self.deliver()
        self.puts.setdefault(queue, []).extend(body for _, body in rows)
        at = self.random.choice([queue, *places_of([queue])]) if waits else queue
        stored = self.queues.setdefault(at, [])
        if self.happens(0.5):
            stored.append(("", b"somebody else's"))
        stored += rows
        if waits:
            self.waiting.append((queue, rows))

    def deliver(self) -> None:
        """Rows that wait are delivered, rolled, or sent back by a consumer: each is one more copy."""
        for queue, rows in list(self.waiting):
            if self.random.random() < 0.3:
                at = self.random.choice([queue, queue, *places_of([queue])])
                self.queues.setdefault(at, []).extend(rows)

    def lose_end(self, queue: MessageQueue) -> None:
        """The broker loses power, and starts again without the last messages of a queue; none of them is the sink's."""
        stored = self.queues.get(queue, [])
        while stored and not stored[-1][0] and self.random.random() < 0.8:
            stored.pop()

    def release(self, groups: Iterable[str] | None = None) -> None:
        """Requests that were held back arrive: those of the groups, or some."""
        for one in list(self.held):
            if groups is None and self.random.random() < 0.5:
                continue
            if groups is None or one.group in groups:
                self.held.remove(one)
                if self.random.random() < 0.7:
                    self.store(one.queue, one.rows, waits=one.waits)


class ModelBrokers:
    """What one process sees of the cluster."""

    def __init__(self, cluster: ModelCluster) -> None:
        self.cluster = cluster

    def prepare(self, queues: Iterable[MessageQueue], places: Iterable[MessageQueue] = ()) -> None:
        self.cluster.die(0.1)

    def ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        cluster = self.cluster
        cluster.die(0.1)
        ends = {}
        for queue in queues:
            while cluster.happens():
                cluster.queues.setdefault(queue, []).append(("", b"somebody else's"))
            ends[queue] = len(cluster.queues.get(queue, []))
        return ends

    def fence(self, queues: Iterable[MessageQueue], groups: Sequence[str]) -> None:
        self.cluster.die()
        if self.cluster.happens(0.3):
            raise BatchInDoubtError("batch", "a broker is out of reach")
        if not self.cluster.forgets_requests:
            self.cluster.release(groups)
        self.cluster.die()

    def marks(self, queue: MessageQueue, start: int, prefix: str) -> Marks:
        self.cluster.die(0.1)
        stored = self.cluster.queues.get(queue, [])
        found = [(at, mark) for at, (mark, _) in enumerate(stored) if at >= start and mark.startswith(prefix)]
        return Marks(np.array([at for at, _ in found], np.int64), [mark for _, mark in found])

    def send(
        self,
        group: str,
        plans: Mapping[MessageQueue, QueuePlan],
        files: Sequence[StagedReader],
        least: Mapping[MessageQueue, int],
    ) -> Stored:
        cluster = self.cluster
        for queue in plans:
            if cluster.happens(0.5):
                cluster.lose_end(queue)
        for queue in least:  # a connection is there, so that a broker that starts again is noticed from here on
            if len(cluster.queues.get(queue, [])) < least[queue]:
                raise SendInDoubtError("a queue has lost its end")
        work = {queue: list(plan) for queue, plan in plans.items()}
        ends: dict[MessageQueue, int] = {}
        while work:
            cluster.die()
            cluster.release(None)
            queue = cluster.random.choice(sorted(work))
            one = work[queue].pop(0)
            if cluster.happens():
                others = {other: left[0] for other, left in work.items() if left and other != queue}
                failing = {queue: one, **{other: others[other] for other in others if cluster.happens(2.0)}}
                self._fail(group, {at: (_rows(failed, files), failed.batch.waits) for at, failed in failing.items()})
            cluster.store(queue, _rows(one, files), waits=one.batch.waits)
            if not one.batch.waits:
                ends[queue] = len(cluster.queues[queue])
            if not work[queue]:
                del work[queue]
        cluster.die()
        return Stored(ends, {0: 1})

    def _fail(self, group: str, in_flight: Mapping[MessageQueue, tuple[list[tuple[str, bytes]], bool]]) -> None:
        """Each request in flight ends without an answer in one of the ways that there are."""
        cluster = self.cluster
        kinds = []
        for queue, (rows, waits) in in_flight.items():
            kinds.append(cluster.random.choice(["stored", "lost", "cut", "held", "held"]))
            if kinds[-1] == "stored":
                cluster.store(queue, rows, waits=waits)
            elif kinds[-1] == "cut":
                cluster.store(queue, rows[: cluster.random.randrange(len(rows) + 1)], waits=waits)
            elif kinds[-1] == "held":
                cluster.held.append(Held(group, queue, rows, waits))
        cluster.die(2.0)
        raise SendInDoubtError(", ".join(kinds))

    def check_safety(self, statuses: Mapping[int, int]) -> None:
        self.cluster.die(0.1)

    def announce(self, done: Done) -> None:
        self.cluster.die()
        self.cluster.topic.append(done)
        self.cluster.die()

    def announced(self, sink_id: str, *, patient: bool) -> list[Done]:
        return [done for done in self.cluster.topic if done.batch.sink_id == sink_id]


def _rows(one: PlannedBatch, files: Sequence[StagedReader]) -> list[tuple[str, bytes]]:
    body = files[one.file].read(one.batch.start, one.batch.size_bytes)
    return [(_mark(item.raw_properties), item.body) for item in decode_batch(body)][one.skip :]


def _mark(properties: bytes) -> str:
    return properties.decode().split("SPARK_MQ_ROW\x01", 1)[1].split("\x02", 1)[0]
