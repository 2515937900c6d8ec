"""Brokers of ours and Apache's in one DLedger group: each kind leads, follows and takes over."""

from __future__ import annotations

import random
import shutil
import time
from base64 import b64decode
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from spark_mq.broker_server.grouped import GroupedBroker
from spark_mq.broker_server.settings import read_configuration
from storage import open_store
from storage.convert import convert
from storage.format.dledger import ENTRY_HEAD_SIZE
from storage.format.record import Message, decode_record
from tests.support.controlled_brokers import TOPIC, SendingOn, sending_on
from tests.support.dledger_brokers import DLedgerBrokers, dledger_brokers, going_on_amid_its_close
from tests.support.java_broker import Oracle, OracleError, wait_until
from tests.support.kill_hunts import Place, Verdict, judged
from tests.support.own_servers import on_own_loop

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

    in_log: Verdict
    """By the last leader's log: each record names its queue and its offset."""
    served: Verdict
    """By what that leader serves to a Java consumer."""
    without_leader_s: list[float]

    def __str__(self) -> str:
        waits = self.without_leader_s
        return (
            f"by the log: {self.in_log} | not served: {len(self.served.lost)}, twice: {len(self.served.doubled)} | "
            f"without a leader: median {median(waits):.1f} s, most {max(waits):.1f} s"
        )


def acknowledged_by(sender: SendingOn) -> list[Place]:
    return [Place(str(line["n"]), line["queueId"], line["queueOffset"]) for line in sender.acknowledged()]


def served(oracle: Oracle, brokers: DLedgerBrokers, out: Path) -> list[Place]:
    """What the leader serves to a Java consumer."""
    try:
        found = oracle.consume_all(out, brokers.brokers[brokers.await_all()], [TOPIC], lookUps=0)
    except OracleError:  # on a busy machine the leader may change amid it
        found = oracle.consume_all(out, brokers.brokers[brokers.await_all()], [TOPIC], lookUps=0)
    return [Place(line["keys"], line["queueId"], line["queueOffset"]) for line in found if line["type"] == "message"]


def logged(brokers: DLedgerBrokers) -> list[Place]:
    """What the leader's log holds."""
    broker = brokers.brokers[brokers.await_all()]
    with open_store(broker.store, config=str(broker.conf)) as store:
        end = store.log.files[-1].end
        places = [int(each) for offsets, _ in store.log.walk(0) for each in offsets]
        records = [store.log.message_at(each, end) for each in places]
    return [Place(each.keys[0], each.queue_id, each.queue_offset) for each in records if each.topic == TOPIC]


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
        acknowledged = acknowledged_by(sender)
        found = Hunted(
            judged(killed, acknowledged, logged(brokers)),
            judged(killed, acknowledged, served(oracle, brokers, home / "found.jsonl")),
            waits,
        )
    print(f"{kind}, {oracle.version}: {found}")
    assert found.in_log.is_clean, found
    if all(
        KINDS[kind]
    ):  # one of Apache's that was killed loses entries of its queues, and as a leader gives their offsets again
        assert found.served.is_clean, found
    return found


@pytest.mark.parametrize(
    "kind", ["two-of-ours", *(pytest.param(each, marks=pytest.mark.long) for each in ("ours", "one-of-ours"))]
)
def test_brokers_killed_under_load_lose_nothing(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    assert hunt(oracle, tmp_path, kind, 4).in_log.acknowledged > 100


@pytest.mark.long
def test_each_kind_goes_on_from_the_directory_of_the_other(oracle: Oracle, tmp_path: Path) -> None:
    """Ours and Apache's change places on the stores of the same members; Apache's classes read our member's log, and ours makes a plain
    store of it.
    """
    ours, java = Oracle(tmp_path, is_ours=True), small(oracle)
    with dledger_brokers(tmp_path, members(oracle, tmp_path, "two-of-ours")) as brokers:
        brokers.await_all()
        with sending_on(java, tmp_path / "sent.jsonl", brokers.name_server) as sender:
            sender.await_more(50)
            oracles = brokers.oracles = dict(brokers.oracles)
            for member, other in (("n0", java), ("n2", ours), ("n1", java), ("n0", ours)):
                brokers.await_all()
                brokers.stop(member)
                assert brokers.was_stopped_in_order(member), f"{member} was killed, as it did not end in time"
                brokers.await_leader()
                oracles[member] = other
                brokers.start(member)
                sender.await_more(20)
            sender.stop()
        wanted = all_is_served(oracle, brokers, sender, tmp_path / "found.jsonl")
        for member in list(brokers.running):
            brokers.stop(member)
    assert records_by_java(oracle, brokers, "n0", tmp_path / "n0-copy") == records_by_us(brokers, "n0")
    conf = brokers.brokers["n0"].conf
    convert(str(tmp_path / "n0"), str(tmp_path / "plain"), config=str(conf))
    lines = [each for each in conf.read_text("utf-8").splitlines() if not each.startswith(("enableDLeger", "dLeger"))]
    (tmp_path / "plain.conf").write_text(
        "\n".join(lines).replace(str(tmp_path / "n0"), str(tmp_path / "plain")), "utf-8"
    )
    with open_store(tmp_path / "plain", config=str(tmp_path / "plain.conf"), read_only=False) as store:
        plain = {(TOPIC, each, at) for each in store.queue_ids(TOPIC) for at in range(store.max_offset(TOPIC, each))}
    assert plain == wanted


def all_is_served(oracle: Oracle, brokers: DLedgerBrokers, sender: SendingOn, out: Path) -> set[tuple[str, int, int]]:
    """Asserts that the leader's log has what was acknowledged, that the leader serves it, and that each member shows it.

    Returns what it is, by topic, queue and offset.
    """
    acknowledged = acknowledged_by(sender)
    in_log = judged([], acknowledged, logged(brokers))
    assert in_log.is_clean, f"in the log of {brokers.await_all()}: {in_log!r}"
    there = served(oracle, brokers, out)
    found = judged([], acknowledged, there)
    assert found.is_clean, f"the log has all, {brokers.await_all()} does not serve it: {found!r}"
    wanted = {(TOPIC, each.queue_id, each.queue_offset) for each in there}
    for member in brokers.running:
        wait_until(lambda member=member: shown(brokers, member) == wanted, f"{member} shows all", 60)  # type: ignore[misc]
    return wanted


@pytest.mark.long
def test_apaches_broker_enters_what_our_member_has_committed_while_its_store_was_closed(
    oracle: Oracle, tmp_path: Path
) -> None:
    """A follower of ours is stopped under load, and Apache's goes on from its directory."""
    with dledger_brokers(tmp_path, members(oracle, tmp_path, "two-of-ours")) as brokers:
        leader = brokers.await_all()
        member = next(each for each in ("n0", "n1") if each != leader)
        with sending_on(small(oracle), tmp_path / "sent.jsonl", brokers.name_server) as sender:
            sender.await_more(50)
            brokers.stop(member)
            conf = brokers.brokers[member].conf
            settings = read_configuration(conf.read_bytes(), str(conf), {})
            with on_own_loop(lambda: GroupedBroker.start(settings), member) as (broker, _):
                wait_until(lambda: broker.running is not None, "it serves", 30)
                sender.await_more(50)
                going_on_amid_its_close(broker, lambda: sender.await_more(100))
            assert brokers.was_stopped_in_order(member)
            brokers.oracles = {**brokers.oracles, member: small(oracle)}
            brokers.start(member)
            sender.await_more(20)
            sender.stop()
        all_is_served(oracle, brokers, sender, tmp_path / "found.jsonl")


def shown(brokers: DLedgerBrokers, member: str) -> set[tuple[str, int, int]]:
    """What a member's store shows of the topic, by queue and offset."""
    broker = brokers.brokers[member]
    with open_store(broker.store, config=str(broker.conf)) as store:
        return {(TOPIC, each, at) for each in store.queue_ids(TOPIC) for at in range(store.max_offset(TOPIC, each))}


def records_by_us(brokers: DLedgerBrokers, member: str) -> list[tuple[str, int, int, int]]:
    """Topic, queue, queue offset and place of all records of a member's log."""
    broker = brokers.brokers[member]
    with open_store(broker.store, config=str(broker.conf)) as store:
        end = store.log.files[-1].end
        places = [int(each) for offsets, _ in store.log.walk(0) for each in offsets]
        return [_named(store.log.message_at(each, end)) for each in places]


def records_by_java(
    oracle: Oracle, brokers: DLedgerBrokers, member: str, copy: Path
) -> list[tuple[str, int, int, int]]:
    """The same, of the bodies that DLedger's own file store reads in a copy."""
    shutil.copytree(brokers.brokers[member].store, copy)
    lines = oracle.java("DLedgerLog", copy, 1 << 20, INDEX_FILE_BYTES).splitlines()
    entries = [line.split(" ") for line in lines if line.startswith("entry ")]
    found = []
    for *_, place, _, body in entries:
        record = decode_record(memoryview(b64decode(body)), check_crc=True)
        assert isinstance(record, Message)
        assert record.commitlog_offset == int(place) + ENTRY_HEAD_SIZE
        found.append(_named(record))
    return found


def _named(message: Message) -> tuple[str, int, int, int]:
    return message.topic, message.queue_id, message.queue_offset, message.commitlog_offset


@pytest.mark.long
@pytest.mark.parametrize("kind", list(KINDS))
def test_eight_kills_of_brokers_lose_nothing(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    assert hunt(oracle, tmp_path, kind, 8).in_log.acknowledged > 500
