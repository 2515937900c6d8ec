"""Rows of each kind that waits, written exactly once by processes that die at each step, and what consumers see of them at last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.settings import ClientSettings
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.exact_commit import SendInDoubtError
from spark_mq.sink.live_brokers import LiveBrokers
from spark_mq.sink.live_sink import commit_to_brokers, stage_for_brokers
from spark_mq.sink.options import LiveSinkOptions
from spark_mq.source.live_cluster import LiveCluster
from spark_mq.source.options import SourceOptions
from spark_mq.source.query_cluster import Piece
from spark_mq.source.rows import RowRequest
from storage.batch.ledger import Batch
from storage.failpoints import LIVE_COMMIT, LIVE_REDO
from tests.support.dying import Killed, on_reach

COLUMNS = ("body", "delay_level", "deliver_at", "retry_group", "reconsume_times", "queue_id")
KINDS = ("now", "level", "timer", "overdue", "retry", "dead")
A_KIND = 3
MOST_RETRIES = 16
DELIVERED_SECONDS = 40
DUE_SECONDS = 3.5
"""After so long rows of each kind are due."""


def rows(group: str, now_ms: int, kinds: tuple[str, ...] = KINDS) -> pa.RecordBatch:
    """So many of each kind, in turn."""
    all_kinds = [kind for _ in range(A_KIND) for kind in kinds]
    times = {"timer": now_ms + 2_000, "overdue": now_ms - 60_000}
    of_group = [group if kind in ("retry", "dead") else None for kind in all_kinds]
    return pa.record_batch(
        {
            "body": [f"{kind}-{number}".encode() for number, kind in enumerate(all_kinds)],
            "delay_level": pa.array(
                [1 if kind in ("level", "retry", "dead") else None for kind in all_kinds], pa.int32()
            ),
            "deliver_at": pa.array([times.get(kind) for kind in all_kinds], pa.timestamp("ms", "UTC")),
            "retry_group": pa.array(of_group, pa.string()),
            "reconsume_times": pa.array([99 if kind == "dead" else 0 for kind in all_kinds], pa.int32()),
            "queue_id": pa.array([None if group else number % 2 for number, group in enumerate(of_group)], pa.int32()),
        }
    )


class WaitingWrite:
    """One write to a topic that is there, as processes see it that come one after another."""

    def __init__(self, name_server: str, directory: Path, topic: str, kinds: tuple[str, ...] = KINDS) -> None:
        self.name_server = name_server
        self.topic = topic
        self.group = f"{topic}-group"
        named = {"nameServer": name_server, "topic": topic, "stagingPath": str(directory), "writeId": topic}
        self.options = LiveSinkOptions.parse(
            {**named, "maxReconsumeTimes": str(MOST_RETRIES), "sendTimeout": "5s", "retryTimeout": "60s"}, "batch"
        )
        batch = rows(self.group, int(1_000 * time.time()), kinds)
        self.expected = sorted(body.as_py().decode() for body in batch.column("body"))
        taken = InputColumns(COLUMNS)
        self.messages = [stage_for_brokers(self.options, taken, Batch(topic, topic, 0), 0, 0, iter([batch]))]

    def commit(self) -> None:
        commit_to_brokers(self.options, self.messages, 0)

    def consumed(self) -> list[str]:
        """The bodies in the topic, in the group's retry topic and among its dead letters."""
        return sorted(
            body
            for topic in (self.topic, f"%RETRY%{self.group}", f"%DLQ%{self.group}")
            for body in bodies_of(self.name_server, topic)
        )

    def delivered(self) -> list[str]:
        """The same when nothing waits any more, and nothing more comes."""
        deadline = time.monotonic() + DELIVERED_SECONDS
        while len(self.consumed()) < len(self.expected) and time.monotonic() < deadline:
            time.sleep(0.3)
        time.sleep(0.3)
        return self.consumed()


def bodies_of(name_server: str, topic: str) -> list[str]:
    """What a query on the cluster reads; nothing of a topic that is not there."""
    with Admin(ClientSettings((name_server,))) as admin:
        if topic not in admin.topics():
            return []
    live = LiveCluster(SourceOptions.parse({"nameServer": name_server, "subscribe": topic}, "batch"))
    try:
        splits = [live.split(Piece(queue, (live.bounds(queue),)), RowRequest(("body",))) for queue in live.queues()]
        return [
            body.decode() for split in splits for batch in split.read() for body in batch.column("body").to_pylist()
        ]
    finally:
        live.close()


@contextmanager
def dying_at(point: str) -> Iterator[list[str]]:
    """Who passes that point for the first time dies there. The list gets it."""
    deaths: list[str] = []

    def reach(name: str) -> None:
        if name == point and not deaths:
            deaths.append(name)
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        on_reach(patch, reach)
        yield deaths


@contextmanager
def answers_lost() -> Iterator[None]:
    """All of the first send is stored, and nobody hears of it."""
    send = LiveBrokers.send
    doubts = iter([True])

    def lost(self, group, plans, files, least):  # type: ignore[no-untyped-def]
        stored = send(self, group, plans, files, least)
        if next(doubts, False):
            raise SendInDoubtError("the answers are lost")
        return stored

    LiveBrokers.send = lost  # type: ignore[method-assign]
    try:
        yield
    finally:
        LiveBrokers.send = send  # type: ignore[method-assign]


POINTS = (*LIVE_COMMIT, *LIVE_REDO)
SENT = ("live-amid-send", "live-after-send", *LIVE_REDO)
"""Where rows may be sent, and the batch is not done."""


def die_at(write: WaitingWrite, point: str) -> None:
    """The write's first process dies at the point."""
    with dying_at(point) as deaths, answers_lost() if point in LIVE_REDO else nullcontext():
        with suppress(Killed):
            write.commit()
        assert deaths == [point]


def write_through_deaths(
    name_server: str, directory: Path, prefix: str, make_topic: Callable[[str, int], object], *, is_delivered: bool
) -> None:
    """A write for each point, whose first process dies there and whose second one finishes it, if `is_delivered` when all rows that
    wait are delivered. Raises AssertionError unless consumers see each row once.
    """
    writes = []
    for point in SENT if is_delivered else POINTS:
        topic = f"{prefix}-{point}"
        make_topic(topic, 2)
        writes.append(WaitingWrite(name_server, directory / point, topic))
        die_at(writes[-1], point)
        if not is_delivered:
            writes[-1].commit()
    if is_delivered:
        time.sleep(DUE_SECONDS)
    for write in writes:
        write.commit()
    for write in writes:
        assert write.delivered() == write.expected, write.topic
