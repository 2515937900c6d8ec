"""Brokers of ours and Apache's in one DLedger group: each kind leads, follows and takes over."""

from __future__ import annotations

import random
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from tests.support.controlled_brokers import TOPIC, SendingOn, sending_on
from tests.support.dledger_brokers import DLedgerBrokers, dledger_brokers
from tests.support.java_broker import Oracle
from tests.support.kill_hunts import Place, Verdict, judged

pytestmark = [pytest.mark.interop, pytest.mark.slow]

OURS, APACHES = True, False
KINDS = {
    "ours": (OURS, OURS, OURS),
    "two-of-ours": (OURS, OURS, APACHES),
    "one-of-ours": (OURS, APACHES, APACHES),
    "apaches": (APACHES, APACHES, APACHES),
}
INDEX_FILE_BYTES = 32 * 5 * 1024 * 1024


def small(oracle: Oracle) -> Oracle:
    """Java processes with little memory."""
    return Oracle(oracle.directory, oracle.home, oracle.version, ("-Xmx256m",))


def members(oracle: Oracle, home: Path, kind: str) -> dict[str, Oracle]:
    ours, java = Oracle(home, is_ours=True), small(oracle)
    return {f"n{number}": ours if each else java for number, each in enumerate(KINDS[kind])}


class Hunted(NamedTuple):
    """What kills under load have left, and how long the name server knew no leader after each kill of one."""

    verdict: Verdict
    without_leader_s: list[float]


def judge(oracle: Oracle, brokers: DLedgerBrokers, sender: SendingOn, out: Path, kills: list[str]) -> Verdict:
    """What the leader serves to a Java consumer, beside what was acknowledged."""
    leader = brokers.brokers[brokers.await_all()]
    found = oracle.consume_all(out, leader, [TOPIC], lookUps=0)
    there = [Place(line["keys"], line["queueId"], line["queueOffset"]) for line in found if line["type"] == "message"]
    acknowledged = [Place(str(line["n"]), line["queueId"], line["queueOffset"]) for line in sender.acknowledged()]
    return judged(kills, acknowledged, there)


def hunt(oracle: Oracle, home: Path, kind: str, kills: int) -> Hunted:
    """Leaders and followers are killed in turn, and started again on their stores."""
    rng, killed, waits = random.Random(kind), list[str](), list[float]()
    with dledger_brokers(home, members(oracle, home, kind)) as brokers:
        brokers.await_all()
        with sending_on(small(oracle), home / "sent.jsonl", brokers.name_server) as sender:
            sender.await_more(50)
            for at in range(kills):
                leader = brokers.await_all()
                member = leader if at % 2 == 0 else rng.choice([each for each in brokers.running if each != leader])
                whose = "ours" if brokers.oracles[member].is_ours else "Apache's"
                killed.append(f"{'leader' if member == leader else 'follower'}, {whose}")
                began = time.monotonic()
                brokers.kill(member)
                if member == leader:
                    brokers.await_leader()
                    waits.append(time.monotonic() - began)
                sender.await_more(20)
                brokers.start(member)
            sender.await_more(50)
            sender.stop()
        verdict = judge(oracle, brokers, sender, home / "found.jsonl", killed)
        assert not verdict.lost, verdict
    print(
        f"{kind}, {oracle.version}: {verdict} | without a leader: median {median(waits):.1f} s, most {max(waits):.1f} s"
    )
    return Hunted(verdict, waits)


@pytest.mark.parametrize("kind", ["ours", "two-of-ours", pytest.param("one-of-ours", marks=pytest.mark.long)])
def test_brokers_killed_under_load_lose_nothing(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    found = hunt(oracle, tmp_path, kind, 4)
    assert found.verdict.acknowledged > 100
    assert found.verdict.is_clean, found.verdict


@pytest.mark.long
@pytest.mark.parametrize("kind", list(KINDS))
def test_twenty_kills_of_brokers_lose_nothing(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    assert hunt(oracle, tmp_path, kind, 20).verdict.acknowledged > 500
