"""Lives of a controller and its brokers, by seeds; a failure names its seed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest.mock import patch

import pytest

from spark_mq.controller import controller, decisions
from spark_mq.controller.decisions import Decided, elect_master
from spark_mq.controller.state import ControllerState, Group, LivingBrokers
from spark_mq.remoting.controllers import ElectMasterRequest
from tests.controller.simulated_broker import Broker
from tests.controller.simulation import Simulation


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of brokers leave."""
    logging.getLogger("spark_mq.controller").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("spark_mq.controller").setLevel(logging.NOTSET)


def lived(seeds: range, steps: int) -> Counter[str]:
    """What happened in these lives."""
    counts = Counter[str]()
    for seed in seeds:
        life = Simulation(seed, brokers=2 + seed % 3)
        try:
            life.run(steps)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counts.update(life.counts)
        counts["acknowledged"] += len(life.acknowledged)
    return counts


def test_no_life_loses_what_was_acknowledged() -> None:
    counts = lived(range(30), 300)
    happened = ("masters", "slaves", "sets altered", "brokers killed", "silent brokers", "controller restarted")
    assert min(counts[what] for what in happened) > 10
    assert counts["acknowledged"] > 500


@pytest.mark.slow
def test_no_life_of_many_loses_what_was_acknowledged() -> None:
    counts = lived(range(1_000, 1_150), 600)
    assert counts["controller restarted"] > 300
    assert counts["designated"] > 5


def _same_epoch(group: Group, broker_id: int | None) -> Group:
    return replace(group, master_id=broker_id)


def _any_set(*given: object) -> None:
    """No rule is broken."""


def _set_stays(group: Group, broker_ids: object) -> Group:
    return replace(group, sync_state_set_epoch=group.sync_state_set_epoch + 1)


def _last_alone(broker: Broker, wanted: frozenset[int]) -> None:
    broker.asked_set = wanted


def _whole_set(group: Group, broker_ids: object) -> Group:
    members = frozenset(group.replicas)
    return replace(group, sync_state_set=members, sync_state_set_epoch=group.sync_state_set_epoch + 1)


def _unclean(known: ControllerState, asked: ElectMasterRequest, living: LivingBrokers, *, is_unclean: bool) -> Decided:
    return elect_master(known, asked, living, is_unclean=True)


FAULTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "an election leaves the epoch as it is": lambda: patch.object(Group, "with_master", _same_epoch),
    "an election leaves the set as it is": lambda: patch.object(Group, "with_set", _set_stays),
    "everybody counts as in sync": lambda: patch.object(Group, "with_set", _whole_set),
    "nobody asks who alters the set, and in which epoch": lambda: patch.object(decisions, "_against_it", _any_set),
    "who is not in sync may be elected": lambda: patch.object(controller, "elect_master", _unclean),
    "a decision is answered that was not kept": lambda: patch.object(Simulation, "_keep", lambda life, events: None),
    "a master forgets the set that it has asked for before": lambda: patch.object(Broker, "ask_for", _last_alone),
    "a master forgets what it has asked for": lambda: patch.object(
        Broker, "waits_for", property(lambda one: one.known_set)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault: str) -> None:
    with FAULTS[fault](), pytest.raises(AssertionError, match=r"^seed \d+: (?:1[0-9]|an id)"):
        lived(range(1_060, 1_120), 600)
