"""Offsets in memory between two writings, and the file of a broadcast's offsets, as Java's clients write and read it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.message import MessageQueue
from spark_mq.client.offset_stores import LocalOffsetFile, LocalOffsetStore, RemoteOffsetStore, offsets_text
from tests.client.fake_cluster import FakeCluster, queue
from tests.client.java_vectors import java_says
from tests.client.virtual_time import play


async def test_an_offset_goes_back_only_when_told_so() -> None:
    store = RemoteOffsetStore(FakeCluster(T=1).join("c"))
    store.update(queue(), 5, only_forward=True)
    store.update(queue(), 3, only_forward=True)
    assert store.known(queue()) == 5
    store.update(queue(), 3, only_forward=False)
    assert store.known(queue()) == 3


async def test_what_is_stored_counts_from_when_it_is_asked_for() -> None:
    """Another consumer may have stored it since, also before where this one was."""

    cluster = FakeCluster(T=1)
    store = RemoteOffsetStore(cluster.join("c"))
    assert (await store.stored(queue()), store.known(queue())) == (None, None)
    store.update(queue(), 9, only_forward=True)
    cluster.offsets[queue()] = 7
    assert (await store.stored(queue()), store.known(queue())) == (7, 7)


async def test_a_frozen_offset_stays_until_the_queue_is_forgotten() -> None:
    store = RemoteOffsetStore(FakeCluster(T=1).join("c"))
    store.freeze(queue(), 7)
    store.update(queue(), 9, only_forward=False)
    assert store.known(queue()) == 7
    store.forget(queue())
    store.update(queue(), 9, only_forward=True)
    assert store.snapshot("T") == {queue(): 9}
    assert store.snapshot("Other") == {}


def test_what_could_not_be_written_is_one_line_in_the_log_and_written_the_next_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        cluster = FakeCluster(T=3)
        brokers = cluster.join("c")
        store, queues = RemoteOffsetStore(brokers), [queue(number) for number in range(3)]
        for each in queues:
            store.update(each, 4, only_forward=True)
        brokers.failing = {"store_offset"}
        await store.write(queues)
        brokers.failing = set()
        await store.write([*queues, queue(9)])
        assert cluster.offsets == dict.fromkeys(queues, 4)

    with caplog.at_level(logging.WARNING):
        play(story())
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "3 offsets were not stored at their brokers"
    ]


QUEUE, OTHER = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def table_of(line: dict[str, Any]) -> dict[MessageQueue, int]:
    split = {tuple(name.split(" ")): offset for name, offset in line["table"].items()}
    return {MessageQueue(topic, broker, int(number)): offset for (topic, broker, number), offset in split.items()}


@pytest.mark.parametrize("number", range(3))
def test_javas_file_is_read(number: int, tmp_path: Path) -> None:
    line = java_says("offsets")[number]
    file = LocalOffsetFile(tmp_path, "10.0.0.1@name", "G")
    file.path.parent.mkdir(parents=True)
    file.path.write_text(line["text"], "utf-8")
    assert file.read() == table_of(line)


@pytest.mark.parametrize("number", range(2))  # of more than one queue Java writes an order of its own
def test_our_file_is_javas_text(number: int) -> None:
    line = java_says("offsets")[number]
    assert offsets_text(table_of(line)) == line["text"]


def test_the_file_lies_where_java_looks_for_it(tmp_path: Path) -> None:
    file = LocalOffsetFile(tmp_path, "10.0.0.1@name", "G")
    file.update({QUEUE: 5})
    assert (tmp_path / "10.0.0.1@name" / "G" / "offsets.json").is_file()


def test_a_writing_keeps_other_queues_and_the_file_before(tmp_path: Path) -> None:
    file = LocalOffsetFile(tmp_path, "c", "G")
    file.update({QUEUE: 5})
    file.update({OTHER: 6})
    assert file.read() == {QUEUE: 5, OTHER: 6}
    file.path.write_text("{half", "utf-8")
    assert file.read() == {QUEUE: 5}


def test_a_store_goes_on_where_the_one_before_stopped(tmp_path: Path) -> None:
    async def story() -> None:
        first = LocalOffsetStore(LocalOffsetFile(tmp_path, "c", "G"))
        await first.load()
        assert await first.stored(QUEUE) is None
        first.update(QUEUE, 7, only_forward=True)
        first.update(OTHER, 9, only_forward=True)
        await first.write([QUEUE])
        second = LocalOffsetStore(LocalOffsetFile(tmp_path, "c", "G"))
        await second.load()
        assert second.snapshot() == {QUEUE: 7}

    asyncio.run(story())


def test_several_threads_write_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, inside, most = LocalOffsetFile(tmp_path, "c", "G"), list[int](), list[int]()

    def sync(descriptor: int) -> None:
        inside.append(descriptor)
        time.sleep(0.005)
        most.append(len(inside))
        inside.pop()

    monkeypatch.setattr(os, "fsync", sync)
    queues = [MessageQueue("T", "broker-a", number) for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda queue: file.update({queue: queue.queue_id}), queues))
    assert max(most) == 1
    assert file.read() == {queue: queue.queue_id for queue in queues}


def test_the_last_of_several_writings_counts(tmp_path: Path) -> None:
    class SlowAtFirst(LocalOffsetFile):
        def update(self, offsets: Mapping[MessageQueue, int]) -> None:
            time.sleep(0.01 * (4 - offsets[QUEUE]))
            super().update(offsets)

    async def story() -> None:
        store = LocalOffsetStore(SlowAtFirst(tmp_path, "c", "G"))
        writings = []
        for offset in range(5):
            store.update(QUEUE, offset, only_forward=True)
            writings.append(asyncio.ensure_future(store.write([QUEUE])))
            await asyncio.sleep(0)
        await asyncio.gather(*writings)
        assert LocalOffsetFile(tmp_path, "c", "G").read() == {QUEUE: 4}

    asyncio.run(story())
