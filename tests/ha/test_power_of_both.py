"""Master and slave lose their power at one moment, with synced acknowledgements; the slave is promoted, and the sink goes on there.

What commits is what commits for Spark: `spark_mq.sink.commit._commit` with the store to itself and `Replicator` beside it, or
`BatchServer._commit` in a broker of ours; both end in `commit_batch`. The slave is the follower of `spark-mq follow` under SYNC_FLUSH.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest

import storage.ha.listener
from spark_mq.hand_over.messages import StagedCommit
from spark_mq.sink import commit as committing
from storage import StoreConfig, open_store
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch
from storage.errors import NotReplicatedError, ReplicasNotEnoughError
from storage.format.record import Message, decode_record
from storage.ha.listener import ListenerSettings, Replicator
from storage.settings.nouns import FlushConfig, ReplicationConfig, StoreModeConfig
from tests.ha.batches import Sink
from tests.ha.faults import FAULTS
from tests.ha.invariants import entries_of
from tests.ha.life import quiet
from tests.ha.network import World, patched
from tests.ha.node import Died, Node
from tests.sink.test_sink_tasks import options_of
from tests.support.replicas import holders
from tests.support.reproducible import reproducible
from tests.support.stage_rows import BatchRows, stage

TOPICS, QUEUES, COUNTS = ("orders", "bills"), 2, (3, 2)
LOOK_MS = 50
CONFIG = replace(
    StoreConfig.tiny(),
    flush=FlushConfig("SYNC_FLUSH"),
    mode=StoreModeConfig(broker_role="SYNC_MASTER"),
    replication=ReplicationConfig(in_sync_replicas=2, total_replicas=2, enable_slave_acting_master=True),
)


def rows_of(batch_id: int) -> BatchRows:
    return BatchRows(Batch("sink", "query", batch_id), COUNTS, TOPICS)


class Machine(Node):
    """When its process dies, it is the power that fails."""

    def die(self, *, power_loss: bool) -> None:
        super().die(power_loss=True)


class BesideASink(Machine):
    """As master it has nothing but a replicator: the store is the sink's."""

    replicator: Replicator | None = None

    def start(self, master: Node | None) -> None:
        if self.role == "slave":
            super().start(master)
            return
        with self.at_work():
            self.is_up = True
            self.opened(self.root, create=True, read_only=False, holder="sink").close()
            self.replicator = Replicator(
                self.opened(self.root), ListenerSettings(self.host, batch_bytes=self.batch_bytes)
            )
            self.listener = self.replicator.listener
            self.wake()
            self.look(self.replicator)

    def opened(self, root: Path | str, config: object = None, **named: object) -> object:
        return open_store(root, config=self.config, file_system=self.files, clock=self.clock, **named)  # type: ignore[call-overload]

    def look(self, replicator: Replicator) -> None:
        """As its thread does."""
        if replicator is not self.replicator or not self.is_up or self.listener is not replicator.listener:
            return
        with self.at_work():
            replicator._store.refresh()
            replicator._end = replicator._store.log_end
            self.wake()
            self.world.after(LOOK_MS, partial(self.look, replicator))


class Pair:
    """Two machines, one sink."""

    def __init__(self, random: Random, directory: Path, kind: type[Machine]) -> None:
        self.random, self.world = random, World(random)
        self.master, self.slave = (kind(self.world, directory, number, CONFIG, 700) for number in (1, 2))
        self.master.role = "master"
        self.batch_id = 0
        self.sink = Sink(TOPICS, QUEUES)

    def start(self) -> None:
        self.master.start(None)
        self.slave.start(self.master)

    def until(self, is_so: Callable[[], bool], timeout_ms: int = 60_000) -> bool:
        """Whether it was, before the time was over."""
        end_ms = self.world.now_ms + timeout_ms
        while not is_so() and self.world.now_ms < end_ms:
            self.world.step()
        return is_so()

    @property
    def are_up(self) -> bool:
        return self.master.is_up and self.slave.is_up

    def commit(self) -> bool:
        """One try at the batch; whether it was acknowledged. The process that dies takes both with it."""
        with suppress(NotReplicatedError, ReplicasNotEnoughError), self.master.at_work():
            if isinstance(self.master, BesideASink):
                self._commit_itself(self.master)
            else:
                self._hand_over()
            return self.master.is_up
        return False

    def _hand_over(self) -> None:
        """By a broker that has the store open."""
        tried = self.sink.commit(self.master)
        if (copies := tried.waits_for.copies) is not None:  # else they are there already
            self.until(lambda: copies.done.done() or not self.are_up, 3_000)
            if not copies.done.done():
                raise NotReplicatedError(str(self.master.root), 2, 3_000)
        self.sink.acknowledged(tried.batch_id)

    def _commit_itself(self, master: BesideASink) -> None:
        """With the store to itself."""
        rows = rows_of(self.batch_id)
        segments = stage(master.files, str(master.root), CONFIG, rows, queue_count=QUEUES)
        commit = StagedCommit(StagedBatch(rows.batch, segments, dict.fromkeys(TOPICS, QUEUES)), None)
        options = options_of(str(master.root), inSyncReplicas="2")

        def copies(root: str, needed: int, end: int | None, timeout_ms: int) -> int:
            def count() -> int:
                known = () if master.listener is None else master.listener.replicas.snapshot()
                return 1 + holders(known, end or 0)

            self.until(lambda: not self.are_up or count() >= needed, timeout_ms)
            if not master.is_up:
                raise Died
            return count()

        with (
            mock.patch.object(committing, "open_store", master.opened),
            mock.patch.object(committing, "ask_for_copies", copies),
        ):
            committing._commit(options, commit)

    def commit_until_acknowledged(self) -> None:
        assert self.until(lambda: self.are_up)
        for _ in range(40):
            if self.commit():
                self.batch_id += 1
                return
            self.until(lambda: not self.are_up, 500)
        raise AssertionError(f"batch {self.batch_id} is not acknowledged: {self.slave.trouble}")

    def fail(self) -> None:
        """Both at once."""
        for machine in (self.master, self.slave):
            machine.die(power_loss=True)
            machine.files.left = None

    def promote_slave(self) -> None:
        """The power may fail meanwhile, too; the old master's machine is lost."""
        new = self.slave
        while new.role != "master" or not new.is_up:
            new.files.left = self.random.choice((None, self.random.randrange(60)))
            new.is_up = True
            if new.role != "master":
                new.promote()
                new.role = "master" if new.is_up else "slave"
            if new.is_up:
                new.start(None)
        new.files.left = None
        self.master.wipe()
        self.master, self.slave = new, self.master
        self.slave.start(self.master)


@contextmanager
def pair(lane: type[Machine], seed: int, directory: Path) -> Iterator[Pair]:
    found = Pair(Random(seed), directory, lane)

    def files() -> Any:
        assert isinstance(found.world.acting, Machine)
        return found.world.acting.files

    with (
        quiet("storage", "spark_mq"),
        reproducible(found.random),
        patched(found.world),
        mock.patch.object(storage.ha.listener, "LocalFileSystem", files),
    ):
        try:
            yield found
        finally:
            found.fail()


def shown(node: Node) -> Counter[str]:
    """Bodies of rows, as queues show them."""
    log = node.log(1 << 40)
    messages = [
        decode_record(log[place : place + size])
        for (topic, _), entries in entries_of(node).items()
        if topic in TOPICS
        for place, size in entries[["place", "size"]].tolist()
    ]
    return Counter(message.body.decode() for message in messages if isinstance(message, Message))


def bodies(batch_ids: range) -> Counter[str]:
    return Counter(row.body for batch_id in batch_ids for row in rows_of(batch_id).rows)


def _life(kind: type[Machine], seed: int, directory: Path) -> tuple[bool, int]:
    """One life; whether the last batch before the failure was acknowledged, and how many of its rows the promoted slave has."""
    with pair(kind, seed, directory) as both:
        both.start()
        for _ in range(2):
            both.commit_until_acknowledged()
        unlucky = both.random.choice((None, both.master, both.slave))
        if unlucky is not None:
            unlucky.files.left = both.random.randrange(85 if unlucky is both.master else 30)
        is_acknowledged = both.commit()
        both.batch_id += is_acknowledged
        both.fail()
        both.promote_slave()
        there = shown(both.master)
        assert there - bodies(range(both.batch_id + 1)) == Counter(), "a row is there twice, or of no batch"
        assert bodies(range(both.batch_id)) - there == Counter(), "an acknowledged row is lost"
        of_the_last = sum((there & bodies(range(2, 3))).values())
        for _ in range(2):
            both.commit_until_acknowledged()
        end = both.master.log(1 << 40).rstrip(b"\0")
        assert both.until(lambda: both.slave.log(1 << 40).rstrip(b"\0") == end)
        assert shown(both.master) == bodies(range(both.batch_id))
    return is_acknowledged, of_the_last


def _lives_of(kind: type[Machine], directory: Path, count: int) -> set[tuple[bool, int]]:
    return {_life(kind, seed, directory / str(seed)) for seed in range(count)}


@pytest.mark.parametrize("kind", [Machine, BesideASink])
def test_each_row_is_there_once_when_both_have_lost_their_power(kind: type[Machine], tmp_path: Path) -> None:
    _lives_of(kind, tmp_path, 5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Machine, pytest.param(BesideASink, marks=pytest.mark.long)])
def test_it_is_so_whatever_of_the_batch_the_slave_has(kind: type[Machine], tmp_path: Path) -> None:
    """Acknowledged batches, and others of which the promoted slave has nothing, a part, and all."""
    found = _lives_of(kind, tmp_path, 40)
    all_rows = sum(COUNTS)
    assert (True, all_rows) in found
    assert (False, 0) in found
    assert any(not is_acknowledged and 0 < count < all_rows for is_acknowledged, count in found), found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Machine, BesideASink])
def test_a_slave_that_acknowledges_what_is_not_synced_is_noticed(kind: type[Machine], tmp_path: Path) -> None:
    with FAULTS["acknowledged before it is synced"].plant(), pytest.raises(AssertionError, match="is lost"):
        _lives_of(kind, tmp_path, 40)
