"""Three brokers of ours, each a process, under our controller: masters are killed in turn while a producer sends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_mq.client.errors import ClientError
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from tests.support.controlled_brokers import NAME, TOPIC, ControlledBrokers, brokers_under
from tests.support.java_broker import Oracle, wait_until
from tests.support.own_servers import our_controller
from tests.support.raw_log import RawLog

pytestmark = pytest.mark.slow


class Sending:
    """Messages one after the other; each is sent until it is acknowledged, or given up after its first error."""

    def __init__(self, name_server: str) -> None:
        self.acknowledged: list[tuple[int, int, bytes]] = []
        """Queue, offset, body."""
        self.refusals = 0
        """How many were not acknowledged."""
        self._settings = ClientSettings((name_server,), poll_name_server_interval_ms=300)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        number = 0
        with Producer(self._settings, "G") as producer:
            while not self._ending.wait(0.005):
                number += 1
                body = b"message %d" % number
                try:
                    sent = producer.send(Message(TOPIC, body))
                except ClientError:
                    self.refusals += 1
                    continue
                if sent.status.name == "SEND_OK":
                    self.acknowledged.append((sent.queue.queue_id, sent.queue_offset, body))
                else:
                    self.refusals += 1

    def await_more(self, count: int) -> None:
        end = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= end, f"{count} more are acknowledged", 90)

    def await_refusal(self) -> None:
        end = self.refusals + 1
        wait_until(lambda: self.refusals >= end, "a message is not acknowledged", 90)

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(60)


@contextmanager
def group(home: Path) -> Iterator[ControlledBrokers]:
    ours = Oracle(home, is_ours=True)
    with our_controller(home) as controller, brokers_under(controller, ours, home) as brokers:
        yield brokers


def assert_held_by_all(home: Path, everybody: set[int], acknowledged: Sequence[tuple[int, int, bytes]]) -> None:
    """In their logs: the queues of the killed end where the last word about what is confirmed came."""
    assert len(acknowledged) == len({body for _, _, body in acknowledged})
    for number in sorted(everybody):
        records = RawLog([home / f"store-{number}" / "commitlog"]).records()
        held = {(each.queue_id, each.queue_offset): each.body for each in records if each.topic == TOPIC}
        lost = [(*place, body) for *place, body in acknowledged if held.get((place[0], place[1])) != body]
        assert lost == [], f"{NAME} {number}"


@pytest.mark.parametrize(("count", "kills"), [(2, 3), pytest.param(3, 4, marks=pytest.mark.long)])
def test_nothing_that_was_acknowledged_is_lost(tmp_path: Path, count: int, kills: int) -> None:
    everybody = set(range(1, count + 1))
    with group(tmp_path) as brokers:
        for broker_id in sorted(everybody):
            brokers.start(broker_id)
            brokers.await_set(set(range(1, broker_id + 1)))
        with Sending(brokers.name_server.address) as sending:
            sending.await_more(50)
            brokers.await_copied(TOPIC)
            for _ in range(kills):
                before = brokers.await_set(everybody)
                sending.await_more(30)
                assert before.master_id is not None
                brokers.kill(before.master_id)
                brokers.await_master_after(before.master_epoch)
                sending.await_more(30)
                brokers.start(before.master_id)
            last = brokers.await_set(everybody)
            sending.await_more(30)
        assert last.master_epoch >= 1 + kills
    assert_held_by_all(tmp_path, everybody, sending.acknowledged)
