"""Offsets in memory between two writings: forward only, frozen after a reset, written once more after a failure."""

from __future__ import annotations

import logging

import pytest

from spark_mq.client.offset_stores import RemoteOffsetStore
from tests.client.fake_cluster import FakeCluster
from tests.client.test_push_engine import queue
from tests.client.virtual_time import play


def test_an_offset_goes_back_only_when_told_so() -> None:
    async def story() -> None:
        store = RemoteOffsetStore(FakeCluster(T=1).join("c"))
        store.update(queue(), 5, only_forward=True)
        store.update(queue(), 3, only_forward=True)
        assert store.known(queue()) == 5
        store.update(queue(), 3, only_forward=False)
        assert store.known(queue()) == 3

    play(story())


def test_what_is_stored_counts_from_when_it_is_asked_for() -> None:
    """Another consumer may have stored it since, also before where this one was."""

    async def story() -> None:
        cluster = FakeCluster(T=1)
        store = RemoteOffsetStore(cluster.join("c"))
        assert (await store.stored(queue()), store.known(queue())) == (None, None)
        store.update(queue(), 9, only_forward=True)
        cluster.offsets[queue()] = 7
        assert (await store.stored(queue()), store.known(queue())) == (7, 7)

    play(story())


def test_a_frozen_offset_stays_until_the_queue_is_forgotten() -> None:
    async def story() -> None:
        store = RemoteOffsetStore(FakeCluster(T=1).join("c"))
        store.freeze(queue(), 7)
        store.update(queue(), 9, only_forward=False)
        assert store.known(queue()) == 7
        store.forget(queue())
        store.update(queue(), 9, only_forward=True)
        assert store.snapshot("T") == {queue(): 9}
        assert store.snapshot("Other") == {}

    play(story())


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
