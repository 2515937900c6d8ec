"""Batches of a sink that must have copies before they are done: what the sink is told as replicas come, lag and acknowledge."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_mq.broker_server.server import RunningBroker
from spark_mq.conditions import SparkMqError
from storage.service.put_group import ReplicaAcks
from tests.sink.test_sink_tasks import bodies, commit, options_of, stage, texts
from tests.support.java_broker import free_ports

from .test_running_broker import running

SYNC_MASTER = "brokerRole=SYNC_MASTER\n"
LONG, SHORT = "60s", "50ms"


@contextmanager
def followed(broker: RunningBroker, lag: Callable[[int], int] = lambda end: end) -> Iterator[ReplicaAcks]:
    """A replica that acknowledges what `lag` makes of the log's end, again and again."""
    service = broker.broker.parts.store.service
    ends = threading.Event()

    def follow() -> None:
        while not ends.wait(0.005):
            service.acks.see({"replica": lag(service.log_end)})

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(follow)
        try:
            yield service.acks
        finally:
            ends.set()
            done.result()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_batch_is_done_when_a_replica_holds_its_end(root: Path) -> None:
    options = options_of(str(root), inSyncReplicas="2", slaveTimeout=LONG)
    with running(root, free_ports()) as broker, followed(broker):
        commit(options, stage(options, bodies("a", "b")))
    assert texts(str(root)) == ["a", "b"]


def test_settings_say_it_where_no_option_does(root: Path) -> None:
    options = options_of(str(root), slaveTimeout=SHORT)
    refused = pytest.raises(SparkMqError, match=r"SPARK_MQ_REPLICAS_NOT_ENOUGH.* 2 copies .* 1 are in sync")
    with running(root, free_ports(), settings=SYNC_MASTER + "inSyncReplicas=2\n"), refused:
        commit(options, stage(options, bodies("a")))


def test_too_few_replicas_are_refused_before_anything_is_written(root: Path) -> None:
    options = options_of(str(root), inSyncReplicas="2", slaveTimeout=SHORT)
    with running(root, free_ports()) as broker:
        end = broker.broker.parts.store.service.log_end
        with pytest.raises(SparkMqError, match="nothing was written"):
            commit(options, stage(options, bodies("a")))
        assert broker.broker.parts.store.service.log_end == end
        with followed(broker):
            commit(options, stage(options, bodies("a"), attempt=1))
    assert texts(str(root)) == ["a"]


def test_a_batch_that_lacks_copies_is_an_error_and_the_next_try_waits_on_and_writes_nothing(root: Path) -> None:
    options = options_of(str(root), inSyncReplicas="2", slaveTimeout=SHORT)
    with running(root, free_ports()) as broker:
        with followed(broker, lambda end: 0):
            for attempt in range(2):
                with pytest.raises(SparkMqError, match=r"SPARK_MQ_NOT_REPLICATED.* is in the log"):
                    commit(options, stage(options, bodies("a", "b"), attempt=attempt))
                assert texts(str(root)) == ["a", "b"]
        with followed(broker):
            commit(options, stage(options, bodies("a", "b"), attempt=2))
    assert texts(str(root)) == ["a", "b"]


def test_a_batch_that_waits_for_replicas_keeps_no_other_waiting_and_ends_with_the_broker(root: Path) -> None:
    waiting, other = options_of(str(root), inSyncReplicas="2", slaveTimeout=LONG), options_of(str(root), sinkId="other")
    with ThreadPoolExecutor(1) as thread:
        with running(root, free_ports()):
            first = thread.submit(commit, waiting, stage(waiting, bodies("a")))
            commit(other, stage(other, bodies("b")))
            assert not first.done()
            assert texts(str(root)) == ["b"]
        with pytest.raises(SparkMqError, match="SPARK_MQ_REPLICAS_NOT_ENOUGH"):
            first.result(30)


def test_a_sink_that_has_the_store_itself_has_no_replicas_to_ask(root: Path) -> None:
    options = options_of(str(root), inSyncReplicas="2")
    with pytest.raises(SparkMqError, match="SPARK_MQ_REPLICAS_NOT_ENOUGH"):
        commit(options, stage(options, bodies("a")))
    assert not (root / "commitlog").exists() or not any((root / "commitlog").iterdir())
