"""Three controllers of both kinds in one group: each kind leads, follows what the other one has decided, and takes over."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_mq.controller.state import Group
from tests.controller.test_server import NAME as ASKED_NAME
from tests.controller.test_server import Broker
from tests.interop.test_our_controller import judge
from tests.support.controlled_brokers import TOPIC, brokers_under, sending_on
from tests.support.controller_process import ControllerQuorum, controller_quorum
from tests.support.java_broker import Oracle
from tests.support.kill_hunts import APACHES, KINDS, OURS, KillsInTurn, Verdict

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def known(controllers: ControllerQuorum) -> Group:
    found = controllers.group(ASKED_NAME)
    assert found is not None
    return found


def enter(controllers: ControllerQuorum, broker_id: int, left: ExitStack) -> Broker:
    """A broker that the leader knows, and that is alive for it."""
    broker = Broker(controllers.members[controllers.await_leader()].address, broker_id, f"127.0.0.1:{broker_id}")
    left.callback(broker.sock.close)
    broker.enter()
    return broker


@pytest.mark.parametrize("kind", ["two-of-ours", pytest.param("one-of-ours", marks=pytest.mark.long)])
def test_each_kind_leads_and_takes_over_what_the_other_one_has_decided(
    oracle: Oracle, tmp_path: Path, kind: str
) -> None:
    with controller_quorum(tmp_path, oracle, KINDS[kind]) as controllers, ExitStack() as left:
        for turn, leads in enumerate((OURS, APACHES, OURS), 1):
            leader = controllers.await_leader_of(leads)
            before = controllers.group(ASKED_NAME)
            broker = enter(controllers, turn, left)
            if turn == 1:
                broker.elect()
            after = known(controllers)
            assert before is None or after.replicas.items() > before.replicas.items()
            assert (after.master_id, after.master_epoch, set(after.replicas)) == (1, 1, set(range(1, turn + 1)))
            controllers.kill(leader)
            controllers.await_leader()
            assert known(controllers) == after, f"{leader} is gone"
            controllers.start(leader)
            controllers.await_joined(leader)


@pytest.mark.long
def test_brokers_of_both_kinds_find_the_leader_among_three(oracle: Oracle, tmp_path: Path) -> None:
    with (
        controller_quorum(tmp_path, oracle, KINDS["ours"]) as controllers,
        brokers_under(controllers, oracle, tmp_path) as brokers,
    ):
        brokers.servers[1] = Oracle(tmp_path, is_ours=True)
        for broker_id in (1, 2):
            brokers.start(broker_id)
        for _ in range(2):
            before = brokers.await_set({1, 2})
            leader = controllers.await_leader()
            controllers.kill(leader)
            controllers.await_leader()
            assert before.master_id is not None
            brokers.kill(before.master_id)
            assert brokers.await_master_after(before.master_epoch).master_id == 3 - before.master_id
            brokers.start(before.master_id)
            controllers.start(leader)
            controllers.await_joined(leader)
        brokers.await_set({1, 2})


class Hunted(NamedTuple):
    """What kills under load have left, and how long no controller led after each kill of a leader."""

    verdict: Verdict
    without_leader_s: list[float]


def hunt(oracle: Oracle, home: Path, kind: str, kills: int) -> Hunted:
    """Leaders and followers are killed in turn; after each third kill the master of two brokers of ours, too, for which a controller
    that has just taken over elects another one.
    """
    with controller_quorum(home, oracle, KINDS[kind]) as controllers, ExitStack() as left:
        brokers = left.enter_context(brokers_under(controllers, Oracle(home, is_ours=True), home))
        for broker_id in (1, 2):
            brokers.start(broker_id)
        turns = KillsInTurn(controllers, kind)
        with sending_on(oracle, home / "sent.jsonl", brokers.name_server.address) as sender:
            sender.await_more(50)
            brokers.await_copied(TOPIC)
            for at in range(kills):
                group = brokers.await_set({1, 2})
                name = turns.kill(controllers.await_leader())
                if at % 3 == 2:
                    assert group.master_id is not None
                    brokers.kill(group.master_id)
                    assert brokers.await_master_after(group.master_epoch).master_id == 3 - group.master_id
                    brokers.start(group.master_id)
                sender.await_more(20)
                controllers.start(name)
                controllers.await_joined(name)
            brokers.await_set({1, 2})
            sender.stop()
            verdict = judge(oracle, brokers, sender, home / "found.jsonl", turns.killed)
    print(f"{kind}, {oracle.version}: {verdict} | {turns}")
    return Hunted(verdict, turns.without_leader_s)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.long
def test_controllers_killed_under_load_lose_nothing_and_another_one_elects(
    oracle: Oracle, tmp_path: Path, kind: str
) -> None:
    assert hunt(oracle, tmp_path, kind, 3).verdict.acknowledged > 100


@pytest.mark.long
@pytest.mark.parametrize("kind", list(KINDS))
def test_thirty_kills_of_controllers_lose_nothing(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    found = hunt(oracle, tmp_path, kind, 30)
    assert found.verdict.acknowledged > 1_000
    assert len(found.without_leader_s) == 15
