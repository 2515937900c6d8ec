"""Dead letters of a cluster of two brokers of ours: each gets one copy, whichever broker is away and wherever a copy is put."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import pytest

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.cluster_replay import ClusterLetters
from spark_mq.options import ClusterOptions
from spark_mq.remoting import MessageQueue
from spark_mq.replay import REFUSED, REPLAYED, Outcome, Target
from storage.format.typed_json import SubscriptionGroupConfig
from tests.broker_server.own_cluster import OwnCluster, own_cluster
from tests.support.java_broker import wait_until
from tests.support.waiting import await_route

pytestmark = pytest.mark.slow

LETTERS = 4


class Pair(NamedTuple):
    first: OwnCluster
    """Has the name server."""
    second: OwnCluster

    def await_brokers(self, count: int) -> None:
        """Until the name server lists so many."""
        with Admin(self.first.settings) as admin:
            wait_until(lambda: len(admin.cluster_info().broker_address_table) == count, f"{count} brokers are listed")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with own_cluster(tmp_path_factory.mktemp("first")) as first:
        second = OwnCluster(tmp_path_factory.mktemp("second"), brokerName="second", namesrvAddr=first.name_server)
        try:
            second.start()
            yield Pair(first, second)
        finally:
            second.close()


def make_letters(pair: Pair, topic: str, group: str) -> None:
    """All at the first broker; the topic is at both."""
    with Admin(pair.first.settings) as admin:
        for one in (pair.first, pair.second):
            admin.create_topic(NewTopic(topic, 2, 2), address=one.address)
        admin.create_topic(NewTopic(f"%DLQ%{group}", 1, 1), address=pair.first.address)
        await_route(admin, topic, 4)
    with Producer(pair.first.settings, "Makers") as producer:
        for number in range(LETTERS):
            letter = Message(f"%DLQ%{group}", b"%d" % number, properties={"RETRY_TOPIC": topic})
            producer.hand_on(letter, MessageQueue(letter.topic, "own", 0))


def replayed(pair: Pair, group: str, to: Target = "topic") -> list[Outcome]:
    """The outcomes of a run."""
    with (
        closing(ClusterLetters(ClusterOptions(name_server=(pair.first.name_server,)), group, to)) as letters,
        letters.locked(),
    ):
        return letters.replay(letters.without_copies(letters.listed()))


def test_a_letter_gets_no_second_copy_while_another_broker_is_away(pair: Pair) -> None:
    make_letters(pair, "Orders", "G")
    assert [outcome.result for outcome in replayed(pair, "G")] == [REPLAYED] * LETTERS
    assert pair.second.end() == 0
    pair.await_brokers(1)
    try:
        assert replayed(pair, "G") == []
    finally:
        pair.second.start()
        pair.await_brokers(2)
    assert replayed(pair, "G") == []


def test_a_broker_that_puts_copies_among_the_dead_letters_gets_one_and_the_rest_is_refused(pair: Pair) -> None:
    """As brokers do while the group consumes in order, and where its entry allows no tries."""
    make_letters(pair, "Ordered", "H")
    with Admin(pair.first.settings) as admin:
        for one in (pair.first, pair.second):
            admin.create_group(SubscriptionGroupConfig(group="H", retry_max_times=-1), address=one.address)
            admin.create_topic(NewTopic("%RETRY%H", 1, 1), address=one.address)
    first, *rest = replayed(pair, "H", "retry")
    assert (first.result, {outcome.result for outcome in rest}) == (REPLAYED, {REFUSED})
    assert {outcome.reason for outcome in (first, *rest)} == {first.reason}
    assert "among the dead letters" in str(first.reason)
    again = replayed(pair, "H", "topic")
    assert [outcome.result for outcome in again] == [REPLAYED] * LETTERS, "three letters, and the copy of the fourth"
    assert replayed(pair, "H", "topic") == []


def test_an_idle_queue_whose_messages_have_expired_says_nothing_against_a_letter(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has the letters, which are older than what is asked about: so it has lost no copy of them."""
    make_letters(pair, "Idle", "I")
    for end in ("_start", "_end"):
        asked = getattr(ClusterLetters, end)

        def at(letters: ClusterLetters, queue: MessageQueue, asked: Callable[..., int] = asked) -> int:
            is_idle = queue.topic == "Idle" and queue.broker_name == "own" and queue.queue_id == 1
            return 5 if is_idle else asked(letters, queue)

        monkeypatch.setattr(ClusterLetters, end, at)
    with closing(ClusterLetters(ClusterOptions(name_server=(pair.first.name_server,)), "I")) as letters:
        listed = letters.listed()
        assert letters.copies(listed, letters.mark()) == ({}, True)
        oldest = min(place.store_time_ms for place in letters._places.values())
        assert letters.copies(listed, oldest - 1) == ({}, False), "nothing is left of that time"
