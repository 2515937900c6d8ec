"""Pulls that wait at a broker: what one client may make it hold, for how long, and that no put waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker.broker import Broker
from spark_mq.broker.held_pulls import MOST_WAIT_MS, HeldLimits, HeldPull, HeldPulls
from spark_mq.broker.requests import ClientConnection, RunAgain, Waiting
from spark_mq.client.calls import make_call
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.remoting import messages as wire
from storage import open_store
from storage.names import QueueName
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from tests.broker.peers import FakeClock

ANN = ClientConnection(bytes([127, 0, 0, 1, 0, 0, 0, 9]), "127.0.0.1:9")


@contextmanager
def broker_of(root: Path, woken: threading.Event | None = None, clock: FakeClock | None = None) -> Iterator[Broker]:
    """Its log has one message, in queue 0 of T."""
    store = open_store(root, config=StoreConfig.tiny(), read_only=False, create=True)
    store.put("T", b"first", tags="a", queue_id=0)
    wake = (lambda: None) if woken is None else woken.set
    steady = clock or FakeClock(1_000)
    with PutService(store) as service, Broker(service, clock=lambda: 1_000, steady=steady, wake=wake) as broker:
        broker.tick(1_000)  # the first look is one interval away
        yield broker


def pull(*, suspend_ms: int = 15_000, tags: str = "*") -> RemotingCommand:
    header = wire.PullMessageRequest(
        consumer_group="G",
        topic="T",
        queue_id=0,
        queue_offset=1,
        max_messages=32,
        sys_flag=6,
        commit_offset=0,
        suspend_timeout_ms=suspend_ms,
        subscription=tags,
        sub_version=0,
    )
    return make_call(RequestCode.PULL_MESSAGE, header)


def code(outcome: object) -> int:
    assert isinstance(outcome, RemotingCommand)
    return outcome.code


def test_a_pull_too_many_is_answered_at_once(tmp_path: Path) -> None:
    with broker_of(tmp_path) as broker:
        broker.parts.pulls.held = HeldPulls(limits=HeldLimits(count_of_one=2))
        outcomes = [broker.answer(ANN, pull(), 1_000) for _ in range(3)]
        assert outcomes[:2] == [Waiting.PARKED] * 2
        assert code(outcomes[2]) == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize("suspend_ms", [MOST_WAIT_MS, 1 << 60])
def test_nobody_waits_for_longer_than_the_most(tmp_path: Path, suspend_ms: int) -> None:
    clock = FakeClock(1_000)
    with broker_of(tmp_path, clock=clock) as broker:
        broker.answer(ANN, pull(suspend_ms=suspend_ms), 1_000)
        clock.now_ms += MOST_WAIT_MS - 1
        broker.tick(1_000)
        assert not broker.take_events()
        clock.now_ms += MOST_WAIT_MS + 1
        broker.tick(1_000)
        assert [type(event) for event in broker.take_events()] == [RunAgain]


def test_a_message_that_comes_between_the_look_and_the_parking_wakes_the_pull(tmp_path: Path) -> None:
    """Who puts sees nobody waiting yet, and notes nothing."""
    with broker_of(tmp_path) as broker:
        held = broker.parts.pulls.held

        class Late(HeldPulls):
            def hold(self, name: QueueName, pull: HeldPull) -> bool:
                assert not self.has(name)
                with broker.parts.store.service.exclusive() as store:
                    store.put("T", b"second", tags="a", queue_id=0)
                return super().hold(name, pull)

        broker.parts.pulls.held = Late(held.look_interval_ms)
        assert broker.answer(ANN, pull(), 1_000) == Waiting.PARKED
        assert len(broker.parts.pulls.held) == 0
        (event,) = broker.take_events()
        assert isinstance(event, RunAgain)
        assert code(broker.answer_again(event.connection, event.command, 1_000)) == ResponseCode.SUCCESS


def test_a_put_does_not_wait_for_who_looks_at_pulls(tmp_path: Path) -> None:
    woken = threading.Event()
    with broker_of(tmp_path, woken) as broker:
        for tags in ("a", "b"):
            assert broker.answer(ANN, pull(tags=tags), 1_000) == Waiting.PARKED

        def put() -> None:
            with broker.parts.store.service.exclusive() as store:
                store.put("T", b"second", tags="b", queue_id=0)

        putting = threading.Thread(target=put, daemon=True)
        with broker.parts.pulls.held_lock:
            putting.start()
            putting.join(10)
            assert not putting.is_alive()
        assert woken.is_set()
        (event,) = broker.take_events()
        assert isinstance(event, RunAgain)
        assert event.command.ext_fields is not None
        assert event.command.ext_fields["subscription"] == "b"
        assert code(broker.answer_again(event.connection, event.command, 1_000)) == ResponseCode.SUCCESS
        assert len(broker.parts.pulls.held) == 1


def test_what_pulls_subscribe_to_is_noted_under_the_lock_under_which_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_of(tmp_path) as broker:
        parts, tell = broker.parts, broker.parts.clients.consumers.tell
        free: list[bool] = []

        def told(*arguments: Any) -> None:
            other = threading.Thread(target=lambda: free.append(parts.clients.lock.acquire(blocking=False)))
            other.start()
            other.join(60)
            tell(*arguments)

        monkeypatch.setattr(parts.clients.consumers, "tell", told)
        assert broker.answer(ANN, pull(), 1_000) is Waiting.PARKED
        assert free == [False]
