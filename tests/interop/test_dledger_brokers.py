"""Brokers of ours and Apache's in one DLedger group: each kind leads, follows and takes over."""

from __future__ import annotations

import shutil
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_mq.broker_server.grouped import GroupedBroker
from spark_mq.broker_server.settings import read_configuration
from spark_mq.client.message import Message as SentMessage
from spark_mq.client.settings import ClientSettings, ProducerSettings
from spark_mq.client.transaction_producer import TransactionListener, TransactionProducer, TransactionState
from spark_mq.testing.servers import on_own_loop
from storage import MessageStore, open_store
from storage.convert import convert
from storage.epoch_times import current_time_ms
from storage.format.dledger import ENTRY_HEAD_SIZE, decode_entry_head
from storage.format.record import Message, decode_record, host_text
from storage.rules.half_messages import HALF_TOPIC
from tests.support.controlled_brokers import TOPIC, SendingOn, await_copied, sending_on
from tests.support.dledger_brokers import LOG_FILE_BYTES, DLedgerBrokers, dledger_brokers, going_on_amid_its_close
from tests.support.java_broker import Oracle, OracleError, wait_until
from tests.support.kill_hunts import KINDS, OURS, KillsInTurn, Place, Verdict, judged
from tests.support.offsets_given import Given, jumps, unserved_by

pytestmark = [pytest.mark.interop, pytest.mark.slow]

GROUPS = {**KINDS, "five-of-ours": (OURS,) * 5}
OWN_FAULTS = ("offset given again by ours", "queue of ours lacks it")
"""Apache's members, once killed, lose entries of their queues, and as leaders give their offsets again."""
INDEX_FILE_BYTES = 32 * 5 * 1024 * 1024


@pytest.fixture(autouse=True)
def small_heaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of Apache's brokers run at once."""
    monkeypatch.setenv("BROKER_HEAP", "256m")


def members(oracle: Oracle, home: Path, kind: str) -> dict[str, Oracle]:
    ours = Oracle(home, is_ours=True)
    return {f"n{number}": ours if each else oracle for number, each in enumerate(GROUPS[kind])}


class Hunted(NamedTuple):
    """What kills under load have left."""

    in_log: Verdict
    """By the last leader's log: each record names its queue and its offset."""
    served: Verdict
    """By what that leader serves to a Java consumer."""
    in_plain: Verdict
    """By the queues of the plain store that is made of that leader's."""
    unserved: Counter[str]
    """Why, and whose member it was."""
    turns: KillsInTurn

    def __str__(self) -> str:
        why = "".join(f" ({count} {reason})" for reason, count in sorted(self.unserved.items()))
        return (
            f"by the log: {self.in_log} | not served: {len(self.served.lost)}{why}, twice: {len(self.served.doubled)} | "
            f"not in the plain store: {len(self.in_plain.lost)}, twice: {len(self.in_plain.doubled)} | {self.turns}"
        )


class Logged(NamedTuple):
    """A record of a member's log."""

    topic: str
    key: str | None
    queue_id: int
    queue_offset: int
    commitlog_offset: int
    term: int
    store_host: str
    """The address of the leader that gave the offset."""

    @classmethod
    def of(cls, record: Message, term: int) -> Logged:
        key = record.keys[0] if record.keys else None
        host = host_text(record.store_host)
        return cls(record.topic, key, record.queue_id, record.queue_offset, record.commitlog_offset, term, host)

    @property
    def place(self) -> Place:
        return Place(str(self.key), self.queue_id, self.queue_offset)


def places(records: list[Logged]) -> list[Place]:
    return [each.place for each in records if each.topic == TOPIC]


def given(brokers: DLedgerBrokers, records: list[Logged]) -> list[Given]:
    """Which member gave each message of the topic its offset."""
    givers = {broker.address: member for member, broker in brokers.brokers.items()}
    return [
        Given(each.place, each.commitlog_offset, each.term, givers[each.store_host])
        for each in records
        if each.topic == TOPIC
    ]


def acknowledged_by(sender: SendingOn) -> list[Place]:
    return [Place(str(line["n"]), line["queueId"], line["queueOffset"]) for line in sender.acknowledged()]


def served(oracle: Oracle, brokers: DLedgerBrokers, out: Path, topic: str = TOPIC) -> list[Place]:
    """What the leader serves to a Java consumer."""
    try:
        found = oracle.consume_all(out, brokers.brokers[brokers.await_all()], [topic], lookUps=0)
    except OracleError:  # on a busy machine the leader may change amid it
        found = oracle.consume_all(out, brokers.brokers[brokers.await_all()], [topic], lookUps=0)
    return [Place(line["keys"], line["queueId"], line["queueOffset"]) for line in found if line["type"] == "message"]


def opened(brokers: DLedgerBrokers, member: str) -> MessageStore:
    broker = brokers.brokers[member]
    return open_store(broker.store, config=str(broker.conf))


def log_of(brokers: DLedgerBrokers, member: str) -> list[Logged]:
    """All records of a member's log, as we read them."""
    with opened(brokers, member) as store:
        end = store.log.files[-1].end
        found = [int(each) for offsets, _ in store.log.walk(0) for each in offsets]
        return [Logged.of(store.log.message_at(each, end), term_at(store, each)) for each in found]


def term_at(store: MessageStore, commitlog_offset: int) -> int:
    """Of the entry that has a record."""
    place = commitlog_offset - ENTRY_HEAD_SIZE
    return decode_entry_head(store.log.bytes_at(place, ENTRY_HEAD_SIZE), place, None).term


def log_by_java(oracle: Oracle, brokers: DLedgerBrokers, member: str, copy: Path) -> list[Logged]:
    """The same, of the bodies that DLedger's own file store reads in a copy."""
    shutil.copytree(brokers.brokers[member].store / f"dledger-{member}", copy / "dledger-n0")
    lines = oracle.java("DLedgerLog", copy, LOG_FILE_BYTES, INDEX_FILE_BYTES).splitlines()
    entries = [line.split(" ") for line in lines if line.startswith("entry ")]
    shutil.rmtree(copy)
    found = []
    for _, _, term, place, _, body in entries:
        record = decode_record(memoryview(b64decode(body)), check_crc=True)
        assert isinstance(record, Message)
        assert record.commitlog_offset == int(place) + ENTRY_HEAD_SIZE
        found.append(Logged.of(record, int(term)))
    return found


def made_plain(brokers: DLedgerBrokers, member: str, home: Path) -> list[Place]:
    """What the topic's queues hold in the plain store that is made of a stopped member's; its owner opens it."""
    broker, root, conf = brokers.brokers[member], home / "plain", home / "plain.conf"
    convert(str(broker.store), str(root), config=str(broker.conf))
    settings = broker.conf.read_text("utf-8").replace(str(broker.store), str(root)).splitlines()
    plain = [each for each in settings if not each.startswith(("enableDLeger", "dLeger", "preferredLeader"))]
    conf.write_text("\n".join(plain), "utf-8")
    with open_store(root, config=str(conf), read_only=False) as store:
        return [Place(each.keys[0], each.queue_id, each.queue_offset) for each in in_queues(store)]


def in_queues(store: MessageStore) -> Iterator[Message]:
    for queue_id in store.queue_ids(TOPIC):
        offset, end = 0, store.max_offset(TOPIC, queue_id)
        while offset < end:
            found = store.get(TOPIC, queue_id, offset, 500, max_bytes=1 << 30)
            yield from found.messages
            offset = found.next_begin_offset


def stop_all(brokers: DLedgerBrokers) -> str:
    """Once their logs end alike: the leader last, so that no other one takes its place. Which one it was."""
    wait_until(lambda: len({log_end(brokers, each) for each in brokers.running}) == 1, "all logs end alike", 90)
    leader = brokers.await_all()
    for member in sorted(brokers.running, key=lambda each: each == leader):
        brokers.stop(member)
    return leader


def log_end(brokers: DLedgerBrokers, member: str) -> int:
    with opened(brokers, member) as store:
        return store.log_end


def hunt(oracle: Oracle, home: Path, kind: str, kills: int) -> Hunted:
    """Leaders and followers are killed in turn, and started again on their stores: as many are down at once as the group may lose."""
    with dledger_brokers(home, members(oracle, home, kind)) as brokers:
        turns, down, most_down = KillsInTurn(brokers, kind), list[str](), (len(brokers.oracles) - 1) // 2
        brokers.await_all()
        with sending_on(oracle, home / "sent.jsonl", brokers.name_server) as sender:
            sender.await_more(50)
            for _ in range(kills):
                down.append(turns.kill(brokers.await_all()))
                sender.await_more(20)
                if len(down) == most_down:
                    brokers.start(down.pop(0))
            for member in down:
                brokers.start(member)
            brokers.await_all()
            sender.await_more(50)
            sender.stop()
        there = served(oracle, brokers, home / "found.jsonl")
        leader = stop_all(brokers)
    log = log_of(brokers, leader)
    for member in brokers.oracles:
        own = log_of(brokers, member)
        assert own[: len(log)] == log[: len(own)], f"the logs of {member} and {leader} differ"
        if brokers.is_ours(member):
            by_java = log_by_java(oracle, brokers, member, home / "copy")
            assert by_java == own, f"Apache's classes read {member} otherwise"
    acknowledged, plain = acknowledged_by(sender), made_plain(brokers, leader, home)
    in_log, is_served, in_plain = (judged(turns.killed, acknowledged, each) for each in (places(log), there, plain))
    by_giver = given(brokers, log)

    def whose(member: str) -> str:
        return "ours" if brokers.is_ours(member) else "Apache's"

    unserved = unserved_by(is_served.lost, by_giver, whose, leader)
    found = Hunted(in_log, is_served, in_plain, unserved, turns)
    for jump in jumps(by_giver):
        print(f"{whose(jump.first.giver)}: {jump}")
    print(f"{kind}, {oracle.version}: {found}; the last leader: {leader}, {whose(leader)}")
    assert found.in_log.is_clean, found
    by_ours = {each: count for each, count in unserved.items() if each in OWN_FAULTS}
    assert by_ours == {}, found
    if all(GROUPS[kind]):
        assert found.served.is_clean, found
        assert found.in_plain.is_clean, found
    return found


@pytest.mark.parametrize("kind", ["two-of-ours", "ours", "one-of-ours"])
@pytest.mark.long
def test_brokers_killed_under_load_lose_nothing(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    assert hunt(oracle, tmp_path, kind, 4).in_log.acknowledged > 100


@pytest.mark.long
def test_a_group_of_five_loses_nothing_while_two_are_down(oracle: Oracle, tmp_path: Path) -> None:
    assert hunt(oracle, tmp_path, "five-of-ours", 10).in_log.acknowledged > 100


@pytest.mark.long
@pytest.mark.parametrize("kind", list(KINDS))
def test_thirty_kills_of_brokers_lose_nothing(oracle: Oracle, tmp_path: Path, kind: str) -> None:
    found = hunt(oracle, tmp_path, kind, 30)
    assert found.in_log.acknowledged > 1_000
    assert len(found.turns.without_leader_s) == 15


@pytest.mark.long
def test_each_kind_goes_on_from_the_directory_of_the_other(oracle: Oracle, tmp_path: Path) -> None:
    """Ours and Apache's change places on the stores of the same members; Apache's classes read our member's log, and ours makes a plain
    store of it.
    """
    ours = Oracle(tmp_path, is_ours=True)
    with dledger_brokers(tmp_path, members(oracle, tmp_path, "two-of-ours")) as brokers:
        brokers.await_all()
        with sending_on(oracle, tmp_path / "sent.jsonl", brokers.name_server) as sender:
            sender.await_more(50)
            oracles = brokers.oracles = dict(brokers.oracles)
            for member, other in (("n0", oracle), ("n2", ours), ("n1", oracle), ("n0", ours)):
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
    assert log_by_java(oracle, brokers, "n0", tmp_path / "n0-copy") == log_of(brokers, "n0")
    plain = made_plain(brokers, "n0", tmp_path)
    assert {(each.queue_id, each.queue_offset) for each in plain} == wanted


def all_is_served(oracle: Oracle, brokers: DLedgerBrokers, sender: SendingOn, out: Path) -> set[tuple[int, int]]:
    """Asserts that the leader's log has what was acknowledged, that the leader serves it, and that each member shows it.

    Returns what it is, by queue and offset.
    """
    acknowledged = acknowledged_by(sender)
    leader = brokers.await_all()
    in_log = judged([], acknowledged, places(log_of(brokers, leader)))
    assert in_log.is_clean, f"in the log of {leader}: {in_log!r}"
    there = served(oracle, brokers, out)
    found = judged([], acknowledged, there)
    assert found.is_clean, f"the log has all, {brokers.await_all()} does not serve it: {found!r}"
    wanted = {(each.queue_id, each.queue_offset) for each in there}
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
        with sending_on(oracle, tmp_path / "sent.jsonl", brokers.name_server) as sender:
            sender.await_more(50)
            brokers.stop(member)
            conf = brokers.brokers[member].conf
            settings = read_configuration(conf.read_bytes(), str(conf), {})
            with on_own_loop(lambda: GroupedBroker.start(settings), member) as (broker, _):
                wait_until(lambda: broker.running is not None, "it serves", 30)
                sender.await_more(50)
                going_on_amid_its_close(broker, lambda: sender.await_more(100))
            assert brokers.was_stopped_in_order(member)
            brokers.oracles = {**brokers.oracles, member: oracle}
            brokers.start(member)
            sender.await_more(20)
            sender.stop()
        all_is_served(oracle, brokers, sender, tmp_path / "found.jsonl")


def shown(brokers: DLedgerBrokers, member: str) -> set[tuple[int, int]]:
    """What a member's store shows of the topic, by queue and offset."""
    with opened(brokers, member) as store:
        return {(each, at) for each in store.queue_ids(TOPIC) for at in range(store.max_offset(TOPIC, each))}


class ToldLater(TransactionListener):
    """What becomes of a transaction it does not know before `is_known` is set."""

    is_known = False

    def execute(self, message: SentMessage, transaction_id: str, arg: Any) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, message: Any) -> TransactionState:
        return TransactionState.COMMIT if self.is_known else TransactionState.UNKNOWN


WAITING = "Waiting"
KINDS_OF_WAITING = ("delayed", "timed", "half")


@pytest.mark.long
@pytest.mark.parametrize(("kind", "first"), [("ours", "n0"), ("two-of-ours", "n2"), ("one-of-ours", "n0")])
def test_what_waits_at_a_leader_is_delivered_once_by_the_next_one(
    oracle: Oracle, tmp_path: Path, kind: str, first: str
) -> None:
    """Delayed messages, messages for a time, and half messages: the leader is killed before it may deliver any of them.

    Apache's leader puts a half message back again whose copy the group has not acknowledged within 2.5 s; each copy is asked for, and
    each commit delivers (TransactionalMessageServiceImpl.check).
    """
    listener = ToldLater()
    settings: dict[str, str | int] = {
        "preferredLeaderId": first,
        "timerWheelEnable": "true",
        "messageDelayLevel": "1s 60s",
        "transactionCheckMax": 1_000,
    }
    with dledger_brokers(tmp_path, members(oracle, tmp_path, kind), **settings) as brokers:
        wait_until(lambda: brokers.leader() == first, f"{first} leads", 90)
        brokers.await_all()
        clients = ClientSettings((brokers.name_server,), poll_name_server_interval_ms=500)
        due_ms = current_time_ms() + 90_000
        with TransactionProducer(clients, "GT", listener, ProducerSettings(retries=0)) as producer:
            for number in range(5):
                producer.send(SentMessage(WAITING, b"1", keys=f"delayed{number}", delay_level=2))
                producer.send(SentMessage(WAITING, b"2", keys=f"timed{number}", deliver_time_ms=due_ms))
                producer.send_in_transaction(SentMessage(WAITING, b"3", keys=f"half{number}"))
            await_copied(brokers.brokers.values(), WAITING)
            brokers.kill(first)
            assert not delivered(brokers, brokers.await_leader())
            listener.is_known = True
            wanted: dict[str | None, int] = {f"{each}{number}": 1 for each in KINDS_OF_WAITING for number in range(5)}
            wait_until(
                lambda: delivered(brokers, brokers.await_leader()).keys() == wanted.keys(), "all are delivered", 240
            )
            time.sleep(10)  # it may come a second time
        leader = brokers.await_leader()
        found = delivered(brokers, leader)
        if not brokers.is_ours(leader):
            halves = delivered(brokers, leader, HALF_TOPIC)
            wanted |= {each: count for each, count in found.items() if 1 < count <= halves[each]}
        assert found == wanted
        assert Counter(each.key for each in served(oracle, brokers, tmp_path / "found.jsonl", WAITING)) == wanted


def delivered(brokers: DLedgerBrokers, member: str, topic: str = WAITING) -> Counter[str | None]:
    """How often the member's log has each message in its own topic, or in another one."""
    return Counter(each.key for each in log_of(brokers, member) if each.topic == topic)
