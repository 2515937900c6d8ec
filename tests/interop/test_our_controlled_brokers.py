"""Controllers and brokers of both kinds in one group: masters, or any broker, killed under load."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.test_our_controller import judge
from tests.support.controlled_brokers import TOPIC, ControlledBrokers, brokers_under, sending_on
from tests.support.controller_process import apaches_controller
from tests.support.java_broker import Oracle
from tests.support.kill_hunts import Verdict, bytes_apart
from tests.support.own_servers import our_controller

pytestmark = [pytest.mark.interop, pytest.mark.slow]

OURS, APACHES = True, False
KINDS = {
    "mixed-under-apaches": (APACHES, (OURS, APACHES)),
    "ours-under-apaches": (APACHES, (OURS, OURS)),
    "mixed-under-ours": (OURS, (OURS, APACHES)),
    "apaches-under-ours": (OURS, (APACHES, APACHES)),
    "ours": (OURS, (OURS, OURS)),
    "three-of-ours": (OURS, (OURS, OURS, OURS)),
}
"""Whose controller, and whose brokers 1, 2 and so on."""


def hunt(oracle: Oracle, home: Path, kind: str, kills: int, *, slaves_too: bool = False) -> Verdict:
    """Each kill hits the master, or with `slaves_too` any broker, while all are in sync. A master is replaced by another one; the
    killed one comes back and is in sync. In the end one log is the beginning of the other.
    """
    controls, whose = KINDS[kind]
    with ExitStack() as left:
        controller = left.enter_context(our_controller(home) if controls is OURS else apaches_controller(oracle, home))
        brokers = left.enter_context(brokers_under(controller, oracle, home))
        brokers.servers.update({number: Oracle(home, is_ours=each) for number, each in enumerate(whose, 1)})
        everybody = set(brokers.servers)
        for broker_id in sorted(everybody):
            brokers.start(broker_id)
            brokers.await_set(set(range(1, broker_id + 1)))
        rng, killed = random.Random(kind), []
        with sending_on(oracle, home / "sent.jsonl", brokers.name_server.address) as sender:
            sender.await_more(100)
            brokers.await_copied(TOPIC)
            for _ in range(kills):
                before = brokers.await_set(everybody)
                sender.await_more(50)
                master = before.master_id
                assert master is not None
                broker_id = rng.choice(sorted(everybody)) if slaves_too else master
                brokers.kill(broker_id)
                killed.append(f"{'master' if broker_id == master else 'slave'}, {whose_of(brokers, broker_id)}")
                if broker_id == master:
                    assert brokers.await_master_after(before.master_epoch).master_id in everybody - {master}
                sender.await_more(50)
                brokers.start(broker_id)
            brokers.await_set(everybody)
            sender.await_more(20)
            sender.stop()
            verdict = judge(oracle, brokers, sender, home / "found.jsonl", killed)
        assert brokers.group.master_epoch >= 1 + sum(each.startswith("master") for each in killed)
        stores = [broker.store for broker in brokers.brokers.values()]
    apart = [bytes_apart(stores[0], store) for store in stores[1:]]
    print(f"{kind}, {oracle.version}: {verdict} | logs {max(apart)} bytes apart")
    return verdict


def whose_of(brokers: ControlledBrokers, broker_id: int) -> str:
    return "ours" if brokers.servers[broker_id].is_ours else "Apache's"


@pytest.mark.parametrize(
    "kind",
    ["mixed-under-apaches", *(pytest.param(each, marks=pytest.mark.long) for each in ("ours", "apaches-under-ours"))],
)
def test_masters_killed_in_turn_lose_nothing_that_was_acknowledged(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    assert hunt(oracle, tmp_path, kind, 2).acknowledged > 200


@pytest.mark.long
@pytest.mark.parametrize("kind", ["three-of-ours", "mixed-under-apaches", "ours", "apaches-under-ours"])
def test_masters_killed_ten_times_lose_nothing(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    assert hunt(oracle, tmp_path, kind, 10).acknowledged > 1_000


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["mixed-under-apaches", "ours-under-apaches", "mixed-under-ours", "apaches-under-ours"]
)
def test_masters_and_slaves_killed_twenty_times_lose_nothing(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    assert hunt(oracle, tmp_path, kind, 20, slaves_too=True).acknowledged > 2_000
