"""Our brokers in controller mode: beside Apache's under Apache's controller, and under ours; masters killed in turn under load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.test_our_controller import judge
from tests.support.controlled_brokers import TOPIC, ControlledBrokers, brokers_under, sending_on
from tests.support.controller_process import apaches_controller
from tests.support.java_broker import Oracle
from tests.support.own_servers import our_controller

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@contextmanager
def mixed(oracle: Oracle, home: Path) -> Iterator[ControlledBrokers]:
    """Ours is 1, Apache's 2, under Apache's controller."""
    with apaches_controller(oracle, home) as controller, brokers_under(controller, oracle, home) as brokers:
        brokers.servers[1] = Oracle(home, is_ours=True)
        yield brokers


@contextmanager
def ours(oracle: Oracle, home: Path) -> Iterator[ControlledBrokers]:
    """All are ours."""
    with our_controller(home) as controller, brokers_under(controller, Oracle(home, is_ours=True), home) as brokers:
        yield brokers


def killed_in_turn(oracle: Oracle, brokers: ControlledBrokers, home: Path, kills: int, count: int = 2) -> None:
    """Each kill hits the master; another one takes over, and the killed one comes back and is in sync."""
    everybody = set(range(1, count + 1))
    for broker_id in sorted(everybody):
        brokers.start(broker_id)
        brokers.await_set(set(range(1, broker_id + 1)))
    with sending_on(oracle, home / "sent.jsonl", brokers.name_server.address) as sender:
        sender.await_more(100)
        brokers.await_copied(TOPIC)
        for _ in range(kills):
            before = brokers.await_set(everybody)
            sender.await_more(50)
            assert before.master_id is not None
            brokers.kill(before.master_id)
            after = brokers.await_master_after(before.master_epoch)
            assert after.master_id in everybody - {before.master_id}
            sender.await_more(50)
            brokers.start(before.master_id)
        brokers.await_set(everybody)
        sender.await_more(20)
        sender.stop()
        assert judge(oracle, brokers, sender, home / "found.jsonl") > 100 * kills
    assert brokers.group.master_epoch >= 1 + kills


@pytest.mark.parametrize("kind", [mixed, pytest.param(ours, marks=pytest.mark.long)])
def test_masters_killed_in_turn_lose_nothing_that_was_acknowledged(oracle: Oracle, tmp_path: Path, kind) -> None:  # type: ignore[no-untyped-def]
    with kind(oracle, tmp_path) as brokers:
        killed_in_turn(oracle, brokers, tmp_path, 2)


@pytest.mark.long
def test_three_of_ours_killed_ten_times_lose_nothing(oracle: Oracle, tmp_path: Path) -> None:
    with ours(oracle, tmp_path) as brokers:
        killed_in_turn(oracle, brokers, tmp_path, 10, count=3)


@pytest.mark.long
@pytest.mark.parametrize("kind", [mixed, ours])
def test_masters_killed_ten_times_lose_nothing(oracle: Oracle, tmp_path: Path, kind) -> None:  # type: ignore[no-untyped-def]
    with kind(oracle, tmp_path) as brokers:
        killed_in_turn(oracle, brokers, tmp_path, 10)
