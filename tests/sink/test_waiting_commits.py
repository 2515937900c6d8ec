"""A commit whose broker is frozen, restarted or gone, at each of its steps: it waits, up to `retryTimeout`, and sends each row once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_mq.client.errors import WaitedInVainError
from spark_mq.conditions import as_condition
from spark_mq.sink import exact_commit
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.exact_commit import SendInDoubtError
from spark_mq.sink.live_brokers import LiveBrokers
from spark_mq.sink.live_sink import commit_to_brokers, stage_for_brokers
from spark_mq.sink.options import LiveSinkOptions
from storage.batch.ledger import Batch
from tests.broker_server.own_cluster import BROKER_NAME, OwnCluster, own_cluster
from tests.support.rows_that_wait import bodies_of

pytestmark = pytest.mark.slow

FROZEN_SECONDS = 1.0
"""Longer than one request's time."""
COUNT = 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCluster]:
    with own_cluster(tmp_path_factory.mktemp("own")) as running:
        yield running


class Write:
    """One write of rows to a topic of its own."""

    def __init__(self, cluster: OwnCluster, directory: Path, topic: str, **given: str) -> None:
        cluster.make_topic(topic, 2)
        self.cluster = cluster
        self.topic = topic
        named = {"nameServer": cluster.name_server, "topic": topic, "stagingPath": str(directory), "writeId": topic}
        times = {"sendTimeout": "300ms", "retryTimeout": "30s", "fenceTimeout": "30s"}
        self.options = LiveSinkOptions.parse({**named, **times, **given}, "batch")
        self.batch = Batch(topic, topic, 0)
        rows = pa.record_batch({"body": [b"%d" % number for number in range(COUNT)]})
        self.messages = [stage_for_brokers(self.options, InputColumns(("body",)), self.batch, 0, 0, iter([rows]))]

    def commit(self) -> None:
        commit_to_brokers(self.options, self.messages, 0)

    def bodies(self) -> list[int]:
        return sorted(map(int, bodies_of(self.cluster.name_server, self.topic)))


@contextmanager
def frozen(cluster: OwnCluster, seconds: float = FROZEN_SECONDS) -> Iterator[None]:
    """The broker stands still from now on, so long."""
    pid = cluster.pid
    os.kill(pid, signal.SIGSTOP)
    thaw = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))
    thaw.start()
    try:
        yield
    finally:
        thaw.join()


def freeze_at(cluster: OwnCluster, monkeypatch: pytest.MonkeyPatch, point: str) -> list[threading.Timer]:
    """The broker stands still when a commit passes that point for the first time."""
    thaws: list[threading.Timer] = []

    def reach(name: str) -> None:
        if name == point and not thaws:
            os.kill(cluster.pid, signal.SIGSTOP)
            thaws.append(threading.Timer(FROZEN_SECONDS, os.kill, (cluster.pid, signal.SIGCONT)))
            thaws[0].start()

    monkeypatch.setattr(exact_commit, "reach", reach)
    return thaws


def doubt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is stored, and no answer comes."""
    send: Callable[..., Any] = LiveBrokers.send
    doubts = iter([True])

    def lost(brokers: LiveBrokers, group: str, plans: Mapping[Any, Any], files: Sequence[Any], least: Any) -> Any:
        stored = send(brokers, group, plans, files, least)
        if next(doubts, False):
            raise SendInDoubtError("the answers are lost")
        return stored

    monkeypatch.setattr(LiveBrokers, "send", lost)


def test_a_commit_waits_for_a_broker_that_is_frozen_when_it_begins(cluster: OwnCluster, tmp_path: Path) -> None:
    write = Write(cluster, tmp_path, "FrozenBefore")
    with frozen(cluster):
        write.commit()
    assert write.bodies() == list(range(COUNT))


@pytest.mark.parametrize(
    ("point", "is_redo"),
    [
        ("live-before-intent", False),
        ("live-after-send", False),
        ("live-attempt-saved", True),
        ("live-fenced", True),
        ("live-looked", True),
    ],
)
def test_a_commit_waits_for_a_broker_that_is_frozen_amid_it(
    point: str, is_redo: bool, cluster: OwnCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Write(cluster, tmp_path, f"Frozen-{point}")
    if is_redo:
        doubt_once(monkeypatch)
    thaws = freeze_at(cluster, monkeypatch, point)
    write.commit()
    assert thaws
    thaws[0].join()
    assert write.bodies() == list(range(COUNT))


def test_a_commit_waits_for_a_broker_that_is_started_again(cluster: OwnCluster, tmp_path: Path) -> None:
    write = Write(cluster, tmp_path, "Restarted")
    cluster.kill()
    again = threading.Timer(0.5, cluster.start)
    again.start()
    try:
        write.commit()
    finally:
        again.join()
    assert write.bodies() == list(range(COUNT))


def test_the_error_says_what_was_waited_for_and_how_long(cluster: OwnCluster, tmp_path: Path) -> None:
    write = Write(cluster, tmp_path, "FrozenForLong", retryTimeout="1s")
    with frozen(cluster, 2.5), pytest.raises(WaitedInVainError) as told:
        write.commit()
    text = str(as_condition(told.value))
    assert text.startswith("[SPARK_MQ_BROKER_UNREACHABLE] waited ")
    assert f"s for broker {BROKER_NAME} (topic SPARK_MQ_SINK); the last try: " in text.splitlines()[0]
    write.commit()
    assert write.bodies() == list(range(COUNT))
