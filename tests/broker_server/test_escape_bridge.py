"""A slave in its master's place puts what is due into the log of another master; its master then delivers none of it again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spark_mq.broker_server import server
from spark_mq.broker_server.escape_bridge import PROGRESS_FILES, ROUND_MESSAGES, EscapeBridge, Escapes, queues_elsewhere
from spark_mq.broker_server.name_servers import Group, Member
from spark_mq.broker_server.server import RunningBroker
from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.event_loop import run
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.remoting_client import RemotingClient
from spark_mq.client.routes import TopicRoute
from spark_mq.client.settings import ClientSettings
from spark_mq.client.transaction_producer import TransactionProducer
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.routes import BrokerData, QueueData, TopicRouteData
from storage import MessageStore, StoreConfig, open_store
from storage.delay.schedule import read_plan
from storage.epoch_times import current_time_ms
from storage.format.record import TRANSACTION_PREPARED
from storage.format.record import Message as StoredMessage
from storage.rules.delays import route_delayed
from storage.rules.half_messages import HALF_TOPIC, TransactionState, half_message, op_messages
from storage.rules.inner_messages import InnerMessage
from storage.rules.response_codes import ResponseCode
from storage.settings.nouns import DelayConfig, TransactionConfig
from storage.transaction import check
from storage.transaction.progress import read_progress
from tests.broker_server.test_acting_master import ACTING
from tests.broker_server.test_running_broker import running
from tests.support.java_broker import free_ports, wait_until
from tests.support.own_servers import our_name_server

ESCAPES = (
    f"{ACTING}enableRemoteEscape=true\nmessageDelayLevel=6s 8s\ntransactionTimeOut=5000\ntransactionCheckInterval=500\n"
)
SLAVE = f"brokerRole=SLAVE\nbrokerId=1\nslaveReadEnable=true\n{ESCAPES}"


TOPICS = "Levels", "Timed", "Halves"


class Undecided:
    """No transaction ends."""

    def execute(self, *_: object) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, *_: object) -> TransactionState:
        return TransactionState.UNKNOWN


def messages(broker: RunningBroker, topic: str, queues: int = 4) -> list[StoredMessage]:
    """All messages of a topic that the broker's queues have."""
    found: list[StoredMessage] = []
    with broker.broker.parts.store.service.exclusive() as store:
        for queue_id in range(queues):
            got = store.get(topic, queue_id, 0)
            while got.messages:
                found += got.messages
                got = store.get(topic, queue_id, got.next_begin_offset)
    return found


def bodies(broker: RunningBroker, topic: str) -> list[bytes]:
    """Their bodies, sorted."""
    return sorted(each.body for each in messages(broker, topic))


def follows_whole(slave: RunningBroker, master: RunningBroker) -> bool:
    """Whether the slave has the master's log."""
    end = master.broker.parts.store.service.log_end
    return slave.broker.parts.store.service.dispatched_end == end


@pytest.mark.slow
def test_what_is_due_goes_to_another_master_and_is_delivered_once(tmp_path: Path) -> None:
    ports = free_ports(), free_ports(), free_ports()
    with our_name_server(tmp_path, supportActingMaster="true") as names, ExitStack() as later:
        settings = ClientSettings((names.address,), poll_name_server_interval_ms=300)
        other = later.enter_context(running(tmp_path / "c", ports[2], names.address, f"brokerName=c\n{ESCAPES}"))
        with running(tmp_path / "b", ports[0], names.address, ESCAPES) as master:
            with Admin(settings) as admin:
                for topic, broker in ((topic, broker) for topic in TOPICS for broker in (master, other)):
                    if (topic, broker) != ("Halves", other):
                        admin.create_topic(NewTopic(topic, 4, 4), address="{}:{}".format(*broker.address))
            slave = later.enter_context(running(tmp_path / "s", ports[1], names.address, SLAVE))
            with Producer(settings, "P") as producer:
                due_ms = current_time_ms() + 7_000
                for number in range(10):
                    text = str(number).encode()
                    producer.send(
                        Message("Levels", text, tags="t", delay_level=1 + number % 2), MessageQueue("Levels", "b", 1)
                    )
                    producer.send(Message("Timed", text, deliver_time_ms=due_ms), MessageQueue("Timed", "b", 2))
            half = Message("Halves", b"half", properties={"own": "1"})
            with TransactionProducer(settings, "T", Undecided()) as producer:
                producer.send_in_transaction(half)
            with Admin(settings) as admin:
                admin.create_topic(NewTopic("Halves", 4, 4), address="{}:{}".format(*other.address))
            wait_until(lambda: follows_whole(slave, master), "the slave has all", 20)
        wait_until(lambda: slave._stands_in, "it stands in", 20)
        expected = sorted(str(number).encode() for number in range(10))
        wait_until(lambda: bodies(other, "Levels") == expected, "the levels are delivered", 30)
        wait_until(lambda: bodies(other, "Timed") == expected, "the timer has delivered", 30)
        wait_until(lambda: bool(messages(other, HALF_TOPIC, 1)), "the other broker has the half", 30)
        assert bodies(slave, "Levels") + bodies(slave, "Timed") == []
        for each in messages(other, "Levels"):
            assert (each.properties["TAGS"], each.properties["WAIT"]) == ("t", "true")
            assert "DELAY" not in each.properties
        escaped = messages(other, HALF_TOPIC, 1)[0]
        assert (escaped.properties["REAL_TOPIC"], escaped.properties["PGROUP"], escaped.properties["own"]) == (
            "Halves",
            "T",
            "1",
        )
        with running(tmp_path / "b", ports[0], names.address, ESCAPES) as master:
            wait_until(lambda: not slave._stands_in, "it stands in no more", 20)
            time.sleep(3)
            assert {each.properties["UNIQ_KEY"] for each in messages(other, HALF_TOPIC, 1)} == {
                escaped.properties["UNIQ_KEY"]
            }
            assert len(messages(master, HALF_TOPIC, 1)) == 1, "it asks no producer about it"
            assert bodies(master, "Levels") + bodies(master, "Timed") == []
            assert (bodies(other, "Levels"), bodies(other, "Timed")) == (expected, expected)


@pytest.mark.long
def test_a_master_that_returns_amid_deliveries_delivers_none_of_them_again(tmp_path: Path) -> None:
    """In Java both deliver until the slave looks for its group's lowest id, each second.

    What the master delivered after the slave had copied its progress comes twice, as in Java; the master closes with that in its queue.
    """
    ports = free_ports(), free_ports(), free_ports()
    with our_name_server(tmp_path, supportActingMaster="true") as names, ExitStack() as later:
        settings = ClientSettings((names.address,), poll_name_server_interval_ms=300)
        other = later.enter_context(running(tmp_path / "c", ports[2], names.address, f"brokerName=c\n{ESCAPES}"))
        with running(tmp_path / "b", ports[0], names.address, ESCAPES) as master:
            with Admin(settings) as admin:
                for broker in (master, other):
                    admin.create_topic(NewTopic("Levels", 4, 4), address="{}:{}".format(*broker.address))
            slave = later.enter_context(running(tmp_path / "s", ports[1], names.address, SLAVE))
            following = slave.following
            assert following is not None
            wait_until(lambda: all(map(following.knows_progress, PROGRESS_FILES)), "it knows its master's progress", 20)
            with Producer(settings, "P") as producer:
                for number in range(300):  # due one after the other, 6 s later
                    message = Message("Levels", str(number).encode(), delay_level=1)
                    producer.send(message, MessageQueue("Levels", "b", 1))
                    time.sleep(0.02)
            wait_until(lambda: follows_whole(slave, master), "the slave has all", 20)
        with open_store(tmp_path / "b") as store:
            before = store.max_offset("Levels", 1)  # delivered by the master, of which the slave need not know all
        wait_until(lambda: len(messages(other, "Levels")) > 20, "the slave delivers", 30)
        with running(tmp_path / "b", ports[0], names.address, ESCAPES) as master:

            def found() -> list[bytes]:
                return sorted(bodies(master, "Levels") + bodies(other, "Levels"))

            expected = {str(number).encode() for number in range(300)}
            wait_until(lambda: expected <= set(found()), "all are delivered", 60)
            time.sleep(2)
            assert before < 300
            doubled = Counter(found()) - Counter(expected)
            assert set(doubled) <= {str(number).encode() for number in range(before)}
            assert max(doubled.values(), default=1) == 1


def test_a_returned_master_says_no_progress_until_it_has_the_slaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that copied the older progress would lose its own before the master takes it over."""
    codes = []
    settings = ClientSettings(("127.0.0.1:1",))
    port = free_ports()

    def progress() -> int:
        client = RemotingClient(settings)
        try:
            request = RemotingCommand(RequestCode.GET_ALL_DELAY_OFFSET)
            return run(client.ask(f"127.0.0.1:{port}", request, 3_000)).code
        finally:
            run(client.close())

    def take_back(*_: object, **__: object) -> bool:
        if turns := len(taken):
            codes.append((turns, progress()))
        taken.append(0)
        return True

    taken: list[int] = []
    monkeypatch.setattr(server, "HAND_BACK_S", 0.0)
    monkeypatch.setattr(server, "take_back", take_back)
    with (
        our_name_server(tmp_path, supportActingMaster="true") as names,
        running(tmp_path / "b", port, names.address, ESCAPES),
    ):
        codes.append((len(taken), progress()))
    assert codes == [(1, ResponseCode.SYSTEM_ERROR), (2, ResponseCode.SUCCESS)]


def test_a_slave_that_its_master_serves_puts_nothing_elsewhere(tmp_path: Path) -> None:
    ports = free_ports(), free_ports()
    with (
        our_name_server(tmp_path, supportActingMaster="true") as names,
        running(tmp_path / "b", ports[0], names.address, ESCAPES),
        running(tmp_path / "s", ports[1], names.address, SLAVE) as slave,
    ):
        assert slave.following is not None
        following = slave.following
        assert following.follower.wait(lambda status: status.is_connected, 20)
        wait_until(lambda: all(map(following.knows_progress, PROGRESS_FILES)), "all is known", 20)
        assert slave.group is not None
        slave.group.close()  # what a name server says without its tables comes from the test
        slave._on_group(Group({1: slave.group.own.address}))
        assert slave._stands_in
        assert not any(map(slave._may_escape, PROGRESS_FILES))
        following.follower.close()
        assert all(map(slave._may_escape, PROGRESS_FILES))
        slave._is_closing = True
        assert not any(map(slave._may_escape, PROGRESS_FILES))


class Bridge:
    """Takes messages as another broker does, up to a number; remembers them."""

    def __init__(self) -> None:
        self.acts = True
        self.room = 1_000
        self.found: list[InnerMessage] = []
        self.is_held = self.was_held = False

    def put(self, message: InnerMessage) -> str | None:
        self.was_held |= self.is_held
        if not self.room:
            return "there is no room"
        self.room -= 1
        self.found.append(message)
        return None

    def take(self) -> list[bytes]:
        """The bodies since the last call."""
        found, self.found = self.found, []
        return [each.body for each in found]


class Turns:
    """The turns of a slave on a small store, with one bridge for all, and a clock that a test sets."""

    def __init__(self, root: Path) -> None:
        self.now_ms = 1_700_000_000_000
        config = StoreConfig.tiny()
        self.config = replace(
            config, delay=DelayConfig("1s 5s"), transaction=TransactionConfig(transaction_time_out=6_000)
        )
        self.store = open_store(root, config=self.config, read_only=False, create=True, clock=lambda: self.now_ms)
        self.bridge = Bridge()
        service = SimpleNamespace(store=self.store, exclusive=self.exclusive)
        self.escapes = Escapes(service, lambda name: self.bridge)  # type: ignore[arg-type, return-value]

    @contextmanager
    def exclusive(self) -> Iterator[MessageStore]:
        self.bridge.is_held = True
        yield self.store
        self.bridge.is_held = False

    def put(self, *messages: InnerMessage) -> None:
        for message in messages:
            self.store.put_inner([message])


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[Turns]:
    made = Turns(tmp_path / "store")
    with made.store:
        yield made


def delayed(turns: Turns, level: int, body: bytes) -> InnerMessage:
    message = InnerMessage(
        topic="T", queue_id=0, body=body, properties={"DELAY": str(level), "a": "b"}, reconsume_times=2
    )
    return route_delayed(message, delays_ms=turns.config.delay.delays_ms, timer=turns.config.timer, now_ms=turns.now_ms)


def test_a_level_goes_up_to_the_message_that_no_broker_takes(turns: Turns) -> None:
    turns.put(*(delayed(turns, level, b"%d%d" % (level, number)) for number in range(70) for level in (1, 2)))
    end = turns.store.log_end
    turns.escapes.deliver_levels(turns.now_ms)
    assert turns.bridge.take() == []
    turns.now_ms += 1_500
    turns.bridge.room = 66
    turns.escapes.deliver_levels(turns.now_ms)
    assert turns.bridge.take() == [b"1%d" % number for number in range(66)]
    assert read_plan(turns.store, turns.now_ms).starts() == {1: 66, 2: 0}
    turns.bridge.acts = False
    turns.now_ms += 5_000
    turns.escapes.deliver_levels(turns.now_ms)
    turns.bridge.acts, turns.bridge.room = True, 1_000
    turns.escapes.deliver_levels(turns.now_ms)
    sent = turns.bridge.found[-1]
    assert sorted(turns.bridge.take()) == sorted(
        [b"1%d" % number for number in range(66, 70)] + [b"2%d" % number for number in range(70)]
    )
    assert (sent.topic, sent.reconsume_times, sent.properties) == (
        "T",
        2,
        {"a": "b", "REAL_TOPIC": "T", "REAL_QID": "0"},
    )
    turns.escapes.deliver_levels(turns.now_ms)
    assert (turns.bridge.take(), turns.store.log_end) == ([], end)


def test_a_half_goes_unless_it_is_ended_or_too_young(turns: Turns) -> None:
    for body in (b"one", b"two", b"three"):
        message = InnerMessage(
            topic="T", queue_id=1, body=body, properties={"UNIQ_KEY": body.decode()}, born_time_ms=turns.now_ms
        )
        turns.put(half_message(message, "P"))
    turns.store.put_inner(op_messages(np.array([1]), 4_096, turns.now_ms))
    turns.escapes.send_halves(turns.now_ms)
    assert turns.bridge.take() == []
    turns.now_ms += 7_000
    turns.bridge.room = 1
    turns.escapes.send_halves(turns.now_ms)
    (sent,) = turns.bridge.found
    assert (sent.topic, sent.sys_flag, dict(sent.properties)) == (
        "T",
        TRANSACTION_PREPARED,
        {"UNIQ_KEY": "one", "TRAN_MSG": "true", "PGROUP": "P", "__transactionId__": "one", "REAL_TOPIC": "T"},
    )
    assert read_progress(turns.store) == (2, 1), "the second is ended, and the third has not gone"
    turns.bridge.room = 1
    turns.escapes.send_halves(turns.now_ms)
    assert (turns.bridge.take(), read_progress(turns.store)) == ([b"one", b"three"], (3, 1))


def test_many_halves_are_looked_up_once(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * ROUND_MESSAGES + 5
    for number in range(count):
        message = InnerMessage(topic="T", queue_id=1, body=b"%d" % number, properties={}, born_time_ms=turns.now_ms)
        turns.put(half_message(message, "P"))
    turns.now_ms += 7_000
    reads = []
    read = check.read_ended
    monkeypatch.setattr(check, "read_ended", lambda *given: reads.append(given) or read(*given))
    turns.escapes.send_halves(turns.now_ms)
    assert turns.bridge.take() == [b"%d" % number for number in range(count)]
    assert (read_progress(turns.store)[0], len(reads)) == (count, 1)


def timed(turns: Turns, body: bytes, key: str | None = None) -> InnerMessage:
    properties = {"UNIQ_KEY": key or body.decode(), "TIMER_DELIVER_MS": str(turns.now_ms + 5_000)}
    message = InnerMessage(topic="T", queue_id=1, body=body, properties=properties)
    return route_delayed(message, delays_ms=(), timer=turns.config.timer, now_ms=turns.now_ms)


def test_messages_of_a_slot_of_several_puts_go_once_though_one_is_not_taken(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.delay.timer_store.PUT_ROWS", 2)
    turns.put(*(timed(turns, body) for body in (b"a", b"b", b"c", b"d", b"e")))
    turns.now_ms += 10_000
    turns.bridge.room = 3
    turns.escapes.deliver_timed(turns.now_ms)
    assert turns.bridge.take() == [b"a", b"b", b"c"]
    for room in (0, 0, 1, 9, 9):
        turns.now_ms += 500
        turns.bridge.room = room
        turns.escapes.deliver_timed(turns.now_ms)
    assert turns.bridge.take() == [b"d", b"e"]


def test_of_messages_that_are_the_same_each_one_goes(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.delay.timer_store.PUT_ROWS", 2)
    turns.put(*(timed(turns, b"a", "same") for _ in range(5)))
    turns.now_ms += 10_000
    for room in (3, 0, 1, 9, 9):
        turns.bridge.room = room
        turns.escapes.deliver_timed(turns.now_ms)
        turns.now_ms += 500
    assert turns.bridge.take() == [b"a"] * 5


def test_no_message_is_sent_while_the_store_is_held(turns: Turns) -> None:
    turns.put(timed(turns, b"a"), delayed(turns, 1, b"b"))
    turns.now_ms += 10_000
    turns.escapes.deliver_timed(turns.now_ms)
    turns.escapes.deliver_levels(turns.now_ms)
    assert (turns.bridge.take(), turns.bridge.was_held) == ([b"a", b"b"], False)


def test_timed_messages_of_a_slot_go_once_though_one_is_not_taken(turns: Turns) -> None:
    turns.put(*(timed(turns, body) for body in (b"a", b"b", b"c")))
    turns.now_ms += 10_000
    turns.bridge.room = 2
    turns.escapes.deliver_timed(turns.now_ms)
    assert turns.bridge.take() == [b"a", b"b"]
    turns.now_ms += 1_000
    turns.bridge.room = 9
    turns.escapes.deliver_timed(turns.now_ms)
    turns.now_ms += 1_000
    turns.escapes.deliver_timed(turns.now_ms)
    assert turns.bridge.take() == [b"c"]


class Brokers:
    """Other brokers: which of them refuse, and who was asked."""

    def __init__(self) -> None:
        self.refuse: set[str] = set()
        self.asked: list[str] = []

    async def invoke(self, address: str, *_: object) -> RemotingCommand:
        self.asked.append(address)
        return RemotingCommand(ResponseCode.SYSTEM_ERROR if address in self.refuse else ResponseCode.SUCCESS)

    async def route(self, topic: str, *_: object) -> TopicRoute:
        names = "b", "c", "d"
        queues = tuple(
            QueueData(broker_name=name, read_queue_count=2, write_queue_count=2, perm=6, topic_sys_flag=0)
            for name in names
        )
        brokers = tuple(BrokerData(cluster="x", broker_name=name, broker_addresses={0: name}) for name in names)
        return TopicRoute(topic, TopicRouteData(queue_datas=queues, broker_datas=brokers))


def test_after_a_refusal_the_next_broker_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1_000_000
    own = Member("x", "own", 1, "127.0.0.1:1")
    bridge = EscapeBridge(own, ClientSettings(("127.0.0.1:1",)), lambda: True, steady=lambda: now_ms)
    others = Brokers()
    monkeypatch.setattr(bridge._client, "invoke", others.invoke)
    monkeypatch.setattr(bridge._name_servers, "route", others.route)
    message = InnerMessage(topic="T", queue_id=0, body=b"", properties={})
    others.refuse = {"b", "c"}
    found = []
    for _ in range(8):
        found.append(bridge.put(message) is None)
        now_ms += 10
    assert sorted(others.asked[: found.index(True)]) == ["b", "c"]
    assert others.asked[found.index(True) :] == ["d"] * 6
    others.refuse, others.asked = {"d"}, []
    for _ in range(12):
        bridge.put(message)
        now_ms += 1_000
    assert set(others.asked) == {"b", "c", "d"}, "those that refused are asked again later"
    bridge.close()


def test_a_topic_whose_route_says_nonsense_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that raised would send again what it had sent before this message."""
    bridge = EscapeBridge(Member("x", "own", 1, "127.0.0.1:1"), ClientSettings(("127.0.0.1:1",)), lambda: True)

    async def route(topic: str, *_: object) -> TopicRoute:
        return TopicRoute(topic, TopicRouteData(order_topic_conf="b"))

    monkeypatch.setattr(bridge._name_servers, "route", route)
    why_not = bridge.put(InnerMessage(topic="T", queue_id=0, body=b"", properties={}))
    assert why_not is not None
    assert "its order configuration is 'b'" in why_not
    bridge.close()


def test_the_queues_elsewhere_are_those_of_other_masters() -> None:
    def queue(name: str, perm: int = 6) -> QueueData:
        return QueueData(broker_name=name, read_queue_count=2, write_queue_count=2, perm=perm, topic_sys_flag=0)

    def broker(name: str, **ids: str) -> BrokerData:
        return BrokerData(cluster="c", broker_name=name, broker_addresses={int(key[1:]): at for key, at in ids.items()})

    data = TopicRouteData(
        queue_datas=(queue("own"), queue("b"), queue("no-master"), queue("read-only", 4)),
        broker_datas=(
            broker("own", _0="o"),
            broker("b", _0="m", _1="s"),
            broker("no-master", _1="s"),
            broker("read-only", _0="r"),
        ),
    )
    found = queues_elsewhere(TopicRoute("T", data), "own")
    assert found == [(MessageQueue("T", "b", number), "m") for number in range(2)]
