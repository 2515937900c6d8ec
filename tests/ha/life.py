"""What all lives have, with and without a controller: puts, batches and duties by chance; what befalls lines, clocks and processes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from typing import Any, ClassVar

import pyarrow as pa

from storage.errors import StorageError
from storage.pending import PutStatus
from storage.service.put_service import PutService
from tests.ha.batches import Sink
from tests.ha.invariants import Put, put_rows, require
from tests.ha.network import World
from tests.ha.node import Node, WaitsFor
from tests.ha.peers import SecondLine, Stranger

QUEUES = 2
TOPICS = ("orders", "bills")
QUIET_MS = 120_000


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Thousands of slaves come and go. Loggers of storage, or these."""
    loggers = [logging.getLogger(name) for name in names or ("storage",)]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


class Life(ABC):
    """One life, by its seed."""

    random: Random
    world: World
    nodes: Sequence[Any]
    master: Any
    counts: Counter[str]
    is_synced: bool
    pending: list[Put]
    acknowledged: list[Put]
    sink: Sink
    is_ending: bool
    draws_queues_first: ClassVar[bool] = False
    """In which order the columns of a put follow from the seed."""
    refusals: ClassVar[type[StorageError]] = StorageError
    """What a batch may be refused with."""

    def _count(self, what: str) -> None:
        self.counts[what] += 1

    def _act_later(self) -> None:
        self.world.after(self.random.choice((0, 0, 1, 1, 3, 3, 10, 30, 30, 100, 400, 3_000)), self._act)

    def _act(self) -> None:
        if not self.is_ending:
            calls, weights = zip(*self._actions(), strict=True)
            self.random.choices(calls, weights)[0]()
            self._act_later()

    @abstractmethod
    def _actions(self) -> Sequence[tuple[Callable[[], None], int]]:
        """What may happen next, each with its weight."""

    # Puts

    @abstractmethod
    def _writable(self) -> Any:
        """Who is put to; None = nobody takes anything."""

    @abstractmethod
    def _new_put(
        self, node: Any, start: int, data: bytes, places: Sequence[Any], waits_for: WaitsFor, *, is_new: bool
    ) -> Put:
        """What waits from now on; a batch that was there already is not new."""

    @abstractmethod
    def _judge_put(self, put: Put, status: PutStatus) -> None:
        """What it waited for has come, or not within its time."""

    def _columns(self, count: int) -> dict[str, Any]:
        bodies = [self.random.randbytes(self.random.choice((0, 20, 300, 300, 900))) for _ in range(count)]
        drawn: dict[str, list[Any]] = {}
        ways = {
            "topic": lambda: self.random.choice(TOPICS),
            "queue_id": lambda: self.random.randrange(QUEUES),
        }
        for name in sorted(ways, reverse=not self.draws_queues_first):
            drawn[name] = [ways[name]() for _ in range(count)]
        queue_ids = pa.array(drawn["queue_id"], pa.int32())
        return {"topic": drawn["topic"], "queue_id": queue_ids, "body": pa.array(bodies, pa.binary())}

    def _put(self) -> None:
        node = self._writable()
        if node is None:
            return
        columns = self._columns(self.random.choice((1, 1, 2, 5)))
        with node.at_work():
            service = node.service
            assert service is not None
            status, places = put_rows(service, pa.RecordBatch.from_pydict(columns), QUEUES)
            if not places:
                self._count(f"put: {status.name}")
                return
            start = min(place[3] for place in places)
            self._await(node, start, node.log(service.log_end)[start:], places, service.waits_for)

    def _await(
        self,
        node: Any,
        start: int,
        data: bytes,
        places: Sequence[tuple[str, int, int, int]],
        waits_for: WaitsFor,
        *,
        is_new: bool = True,
    ) -> Put:
        put = self._new_put(node, start, data, places, waits_for, is_new=is_new)
        self.pending.append(put)
        self._count("puts")
        if self.is_synced:
            self.world.after(self.world.delay(), partial(node.serve_turn, PutService.sync_turn))
        return put

    def _settle_puts(self) -> None:
        for put in list(self.pending):
            status = self._outcome(put)
            if status is not None:
                self.pending.remove(put)
                put.status = status
                if put.batch_id is not None and status is PutStatus.PUT_OK:
                    self.sink.acknowledged(put.batch_id)
                self._count(f"put: {status.name}")
                self._judge_put(put, status)

    def _outcome(self, put: Put) -> PutStatus | None:
        flush, copies = put.waits_for.flush, put.waits_for.copies
        if flush is not None and (not flush.done() or flush.exception() is not None):
            return None  # a sync that failed is nobody's acknowledgement, and the end of its process
        if copies is None:
            return PutStatus.PUT_OK
        if copies.done.done():
            return copies.done.result()
        service = put.node.service
        assert service is not None
        reached = service.acks._frontier.reached(put.copies)
        require(put.waits_to > reached, 19, f"{put.waits_to} waits, and {reached} is reached")
        return None if self.world.now_ms < put.deadline_ms else service.acks.given_up(copies)

    def _forget_puts(self, node: Node) -> None:
        """Who waited there hears nothing any more."""
        self._settle_puts()
        self.pending = [put for put in self.pending if put.node is not node]

    def _committing(self) -> Any:
        """Where a sink's batch is committed."""
        return self._writable()

    def _commit(self) -> None:
        """A sink's batch, the last one again until it is acknowledged."""
        node = self._committing()
        if node is None:
            return
        with node.at_work(), suppress(self.refusals):
            done = self.sink.commit(node)
            self._count("batches again" if done.is_done_already else "batches")
            put = self._await(node, done.start, done.data, (), done.waits_for, is_new=not done.is_done_already)
            put.batch_id = done.batch_id
        if self.random.random() < 0.6:  # its driver is killed, and the next one repeats the batch
            self.world.after(self.random.choice((0, 1, 30, 3_000)), self._commit_again)

    def _commit_again(self) -> None:
        if not self.is_ending:
            self._commit()

    def _do_duty(self) -> None:
        node = self.random.choice(self.nodes)
        turns = (PutService.sync_turn, PutService.queue_turn, PutService.next_file_turn)
        turn = self.random.choice(turns if self.is_synced else (PutService.log_turn, *turns[1:]))
        if self._may_serve(node, turn):
            node.serve_turn(turn)

    @abstractmethod
    def _may_serve(self, node: Any, turn: Callable[[PutService], None]) -> bool:
        """A follower's log is synced and prepared by its follower."""

    # What befalls it

    def _second_line(self) -> None:
        slave = self.random.choice(self.nodes)
        if slave.is_up and slave.follower is not None and slave.checked_end and slave._master is self.master:
            SecondLine(self.world, slave, self.master.host)
            self._count("second connections")

    def _stranger(self) -> None:
        Stranger(self.world, self.master.host)
        self._count("strangers")

    def _drop(self) -> None:
        lines = [line for line in self.world.lines if not line.is_closed and not line.is_gone]
        if lines:
            line = self.random.choice(lines)
            line.reset()
            self.world.after(self.random.choice((0, 100, 30_000)), line.peer.reset)
            self._count("lines dropped")

    def _partition(self) -> None:
        one, other = self.random.sample(self.nodes, 2)
        until = self.world.now_ms + self.random.choice((50, 2_000, 15_000, 45_000))
        self.world.partitions[frozenset((one.host, other.host))] = until
        self._count("partitions")

    def _isolate(self, node: Node, others: Iterable[str]) -> None:
        """Nobody reaches it but its clients, and it reaches nobody."""
        until = self.world.now_ms + self.random.choice((2_000, 15_000, 30_000, 45_000))
        for host in others:
            if host != node.host:
                pair = frozenset((node.host, host))
                self.world.partitions[pair] = max(until, self.world.partitions.get(pair, 0))
        self._count("isolations")

    def _freeze(self) -> None:
        node = self.random.choice(self.nodes)
        node.frozen_until = self.world.now_ms + self.random.choice((100, 4_000, 30_000))
        self._count("freezes")

    def _jump(self) -> None:
        node = self.random.choice(self.nodes)
        node.clock_shift_ms += self.random.choice((-3_600_000, -10_000, 500, 10_000, 3_600_000))
        self._count("clock jumps")
