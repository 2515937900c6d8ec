"""Brokers as a model: queues in memory, and everything that can go wrong on the way to them, by a seeded random.

A request that is sent may be stored and answered, stored without an answer, lost, cut by a crash after some of its rows, or held back
on its way and stored later: at the latest when a fence has waited for its group. Foreign messages come in between. The process that
commits dies (`Died`) at any point, also within these calls.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_mq.conditions import BatchInDoubtError
from spark_mq.remoting import MessageQueue
from spark_mq.remoting.batch_body import decode_batch
from spark_mq.sink.exact_commit import Marks, SendInDoubtError, Stored
from spark_mq.sink.send_plan import QueuePlan
from spark_mq.sink.sent_batch import Done
from spark_mq.sink.staged_rows import StagedReader


class Died(BaseException):
    """The committing process is gone."""


@dataclass
class Held:
    """A request on its way."""

    group: str
    queue: MessageQueue
    rows: list[tuple[str, bytes]]


@dataclass
class ModelCluster:
    """What outlives a process: queues, requests on their way, the sink's topic. `trouble` is how likely each step goes wrong."""

    random: random.Random
    trouble: float = 0.2
    queues: dict[MessageQueue, list[tuple[str, bytes]]] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    topic: list[Done] = field(default_factory=list)
    forgets_requests: bool = False
    """A broken fence: it does not wait for requests on their way."""

    def happens(self, weight: float = 1.0) -> bool:
        return self.random.random() < self.trouble * weight

    def die(self, weight: float = 0.3) -> None:
        if self.happens(weight):
            raise Died

    def store(self, queue: MessageQueue, rows: list[tuple[str, bytes]]) -> None:
        stored = self.queues.setdefault(queue, [])
        if self.happens(0.5):
            stored.append(("", b"somebody else's"))
        stored += rows

    def release(self, groups: Iterable[str] | None = None) -> None:
        """Requests that were held back arrive: those of the groups, or some."""
        for one in list(self.held):
            if groups is None and self.random.random() < 0.5:
                continue
            if groups is None or one.group in groups:
                self.held.remove(one)
                if self.random.random() < 0.7:
                    self.store(one.queue, one.rows)


class ModelBrokers:
    """What one process sees of the cluster."""

    def __init__(self, cluster: ModelCluster) -> None:
        self.cluster = cluster

    def prepare(self, queues: Iterable[MessageQueue]) -> None:
        self.cluster.die(0.1)

    def ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        self.cluster.die(0.1)
        return {queue: len(self.cluster.queues.get(queue, [])) for queue in queues}

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

    def send(self, group: str, plans: Mapping[MessageQueue, QueuePlan], files: Sequence[StagedReader]) -> Stored:
        cluster = self.cluster
        work = {queue: list(plan) for queue, plan in plans.items()}
        ends: dict[MessageQueue, int] = {}
        while work:
            cluster.die()
            cluster.release(None)
            queue = cluster.random.choice(sorted(work))
            one = work[queue].pop(0)
            body = files[one.file].read(one.batch.start, one.batch.size_bytes)
            rows = [(_mark(item.raw_properties), item.body) for item in decode_batch(body)][one.skip :]
            if cluster.happens():
                self._fail(group, queue, rows, others=work)
            cluster.store(queue, rows)
            ends[queue] = len(cluster.queues[queue])
            if not work[queue]:
                del work[queue]
        cluster.die()
        return Stored(ends, {0: 1})

    def _fail(
        self, group: str, queue: MessageQueue, rows: list[tuple[str, bytes]], others: Mapping[MessageQueue, object]
    ) -> None:
        """One of the ways in which a send ends without an answer."""
        kind = self.cluster.random.choice(["stored", "lost", "cut", "held", "held"])
        if kind == "stored":
            self.cluster.store(queue, rows)
        elif kind == "cut":
            self.cluster.store(queue, rows[: self.cluster.random.randrange(len(rows) + 1)])
        elif kind == "held":
            self.cluster.held.append(Held(group, queue, rows))
        self.cluster.die(2.0)
        raise SendInDoubtError(kind)

    def check_safety(self, statuses: Mapping[int, int]) -> None:
        self.cluster.die(0.1)

    def announce(self, done: Done) -> None:
        self.cluster.die()
        self.cluster.topic.append(done)
        self.cluster.die()

    def announced(self, sink_id: str) -> Done | None:
        known = [done for done in self.cluster.topic if done.batch.sink_id == sink_id]
        return max(known, key=lambda done: done.batch.batch_id, default=None)


def _mark(properties: bytes) -> str:
    return properties.decode().split("SPARK_MQ_ROW\x01", 1)[1].split("\x02", 1)[0]
