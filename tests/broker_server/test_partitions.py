"""Three brokers of ours, each a process, under our controller: the master is cut off from the controller, and goes on being sent to.

One producer follows the routes, at which both masters register; another one knows the cut off master's address, and keeps to it.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_mq.remoting import make_request
from tests.broker_server.asking import answers_of
from tests.broker_server.test_killed_masters import Sending, assert_held_by_all, group
from tests.support.broker_requests import send
from tests.support.controlled_brokers import TOPIC
from tests.support.java_broker import wait_until
from tests.support.proxies import Line

pytestmark = pytest.mark.slow

EVERYBODY = {1, 2, 3}
FIRST_BODY = 1_000_000
"""The numbers of the other producer are below."""


class Keeping:
    """A producer that sends to one address, master or not, until it is given another."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.asked = 0
        self.acknowledged: list[tuple[int, int, bytes]] = []
        """Queue, offset, body."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        number = FIRST_BODY
        while not self._ending.wait(0.02):
            if (address := self.address) is None:
                continue
            number += 1
            request = send(f"kept {number}", TOPIC, b"message %d" % number, queue_id=number % 4)
            fields = {name: str(value) for name, value in request.fields.items()}
            try:
                (answer,) = answers_of(address, [make_request(request.code, fields, request.body)], frozenset())
            except (OSError, AssertionError):
                continue
            self.asked += 1
            if answer.code == 0:
                placed = answer.ext_fields or {}
                assert request.body is not None
                self.acknowledged.append((int(placed["queueId"]), int(placed["queueOffset"]), request.body))

    def __enter__(self) -> Keeping:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(90)
        assert not self._thread.is_alive()


@pytest.mark.long
@pytest.mark.parametrize("partings", [10])
def test_a_master_that_is_cut_off_acknowledges_nothing_that_is_lost(tmp_path: Path, partings: int) -> None:
    with group(tmp_path) as brokers, ExitStack() as opened:
        lines = {number: opened.enter_context(Line(brokers.controller.address)) for number in EVERYBODY}
        for number in sorted(EVERYBODY):
            brokers.start(number, controllerAddr=lines[number].address)
            brokers.await_set(set(range(1, number + 1)))
        with Sending(brokers.name_server.address) as sending, Keeping() as keeping:
            sending.await_more(50)
            brokers.await_copied(TOPIC)
            for _ in range(partings):
                before = brokers.await_set(EVERYBODY)
                assert before.master_id is not None
                keeping.address = brokers.brokers[before.master_id].address
                sending.await_more(30)
                lines[before.master_id].part()
                after = brokers.await_master_after(before.master_epoch)
                assert after.master_id != before.master_id
                asked = keeping.asked
                sending.await_more(30)
                wait_until(lambda asked=asked: keeping.asked > asked, "the cut off master has answered")  # type: ignore[misc]
                lines[before.master_id].heal()
            last = brokers.await_set(EVERYBODY)
            sending.await_more(30)
        brokers.await_set(EVERYBODY)
        assert last.master_epoch >= 1 + partings
    print(
        f"{len(sending.acknowledged)} acknowledged by route, {len(keeping.acknowledged)} of {keeping.asked} by those cut off"
    )
    assert keeping.acknowledged
    assert_held_by_all(tmp_path, EVERYBODY, [*sending.acknowledged, *keeping.acknowledged])
