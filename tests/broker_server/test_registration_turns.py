"""A broker registers each period, whatever a name server answers and whatever becomes of a turn."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from spark_mq.broker.broker_store import BrokerStore
from spark_mq.broker_server.name_servers import Registration
from spark_mq.broker_server.settings import ProcessSettings
from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, make_response, read_body, write_body
from spark_mq.remoting.routes import KvTable, RegisterBrokerBody
from spark_mq.testing.ports import free_ports
from tests.broker.peers import BrokerPeers, FakeClock
from tests.broker.test_broker_duties import running, sent
from tests.broker_server.test_running_broker import running as broker_running
from tests.support.java_broker import wait_until
from tests.support.planned_server import Peer, planned_server

_LONG_MS = 60_000


def test_a_topic_that_is_deleted_when_a_name_server_calls_it_ordered_ends_no_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def think(peer: Peer, command: RemotingCommand) -> None:
        peer.send(make_response(command, 0, None, {}, write_body(KvTable(table={"T": "b:1"}))))

    clock, change_topic = FakeClock(), BrokerStore.change_topic
    with planned_server(think) as names, running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        peers.ask("p", 310, *sent("T"))

        def deleted_before(parts: BrokerStore, name: str, *, order: bool) -> None:
            peers.ask("admin", 215, {"topic": "T"})
            change_topic(parts, name, order=order)

        monkeypatch.setattr(BrokerStore, "change_topic", deleted_before)
        registration = Registration(broker.parts, ClientSettings((names.address,)), ProcessSettings())
        registration.start()
        try:
            assert "T" not in broker.parts.store.topics
            registration.soon()
            names.until(RequestCode.REGISTER_BROKER, 2)
        finally:
            registration.close()


def test_a_change_of_topics_is_answered_when_each_name_server_has_it(tmp_path: Path) -> None:
    """Java: BrokerController.registerIncrementBrokerData. So a client finds the topic that it has made."""
    known: list[set[str]] = []

    def think(peer: Peer, command: RemotingCommand) -> None:
        time.sleep(0.1)
        if command.code == RequestCode.REGISTER_BROKER:
            known.append(set(read_body(RegisterBrokerBody, command.body).topic_config_table.topic_config_table))
        peer.send(make_response(command, 0))

    with (
        planned_server(think) as names,
        broker_running(tmp_path / "store", free_ports(), names.address) as broker,
        Admin(ClientSettings((names.address,))) as admin,
    ):
        address = "{}:{}".format(*broker.address)
        for topic in ("One", "Two"):
            admin.create_topic(NewTopic(topic, 1, 1), address=address)
            assert topic in known[-1]
        count = len(known)
        admin.create_topic(NewTopic("Two", 1, 1), address=address)
        assert len(known) == count, "nothing has changed"


class _Names:
    """A name server that keeps silent of registrations for as long as it hangs; then it answers those that have waited."""

    def __init__(self) -> None:
        self.hangs = False
        self.known: set[str] = set()
        self.unanswered: list[tuple[Peer, RemotingCommand]] = []

    def think(self, peer: Peer, command: RemotingCommand) -> None:
        if command.code != RequestCode.REGISTER_BROKER:
            peer.send(make_response(command, 0))
        elif self.hangs:
            self.unanswered.append((peer, command))
        else:
            self._answer(peer, command)

    def go_on(self) -> None:
        self.hangs = False
        for peer, command in self.unanswered:
            self._answer(peer, command)

    def _answer(self, peer: Peer, command: RemotingCommand) -> None:
        self.known = set(read_body(RegisterBrokerBody, command.body).topic_config_table.topic_config_table)
        peer.send(make_response(command, 0))


def test_a_name_server_that_hangs_holds_up_no_other_one_and_one_answer_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is answered is known to the name server that answers, before the request to the silent one is over."""
    waited: list[int] = []
    wait = Registration.wait_for_topics

    def wait_for_topics(registration: Registration, timeout_s: float) -> None:
        wait(registration, timeout_s)
        waited.append(sum(server.is_silent for server in registration._servers.values()))

    monkeypatch.setattr(Registration, "wait_for_topics", wait_for_topics)
    monkeypatch.setattr("spark_mq.broker_server.server._REGISTERED_WITHIN_S", 1.0)
    healthy, silent = _Names(), _Names()
    with planned_server(healthy.think) as one, planned_server(silent.think) as two:
        addresses, settings = f"{one.address};{two.address}", f"registerBrokerTimeoutMills={_LONG_MS}\n"
        with (
            broker_running(tmp_path / "store", free_ports(), addresses, settings) as broker,
            Admin(ClientSettings((one.address,), request_timeout_ms=_LONG_MS // 2)) as admin,
        ):
            address = "{}:{}".format(*broker.address)
            silent.hangs = True
            monkeypatch.setattr("spark_mq.broker_server.server._REGISTERED_WITHIN_S", 1.0)
            admin.create_topic(NewTopic("First", 1, 1), address=address)
            assert "First" in healthy.known
            monkeypatch.setattr("spark_mq.broker_server.server._REGISTERED_WITHIN_S", float(_LONG_MS))  # else it fails
            for topic in ("Second", "Third"):
                admin.create_topic(NewTopic(topic, 1, 1), address=address)
                assert topic in healthy.known
            assert len(silent.unanswered) == 1, "one request at a time"
            silent.go_on()
            wait_until(lambda: {"First", "Second", "Third"} <= silent.known, "it hears of all at once")
            admin.create_topic(NewTopic("Fourth", 1, 1), address=address)
            assert "Fourth" in healthy.known & silent.known
    assert waited == [1, 1, 1, 0]


def test_a_name_server_that_refuses_connections_is_tried_for_each_change(tmp_path: Path) -> None:
    healthy = _Names()
    with planned_server(healthy.think) as one:
        addresses = f"{one.address};127.0.0.1:{free_ports()}"
        with (
            broker_running(tmp_path / "store", free_ports(), addresses) as broker,
            Admin(ClientSettings((one.address,))) as admin,
        ):
            assert len(broker.unknown_to) == 1
            for topic in ("One", "Two"):
                admin.create_topic(NewTopic(topic, 1, 1), address="{}:{}".format(*broker.address))
                assert topic in healthy.known


def test_a_farewell_comes_behind_a_registration_that_is_under_way(tmp_path: Path) -> None:
    """A name server that took the registration last would send clients to a broker that has gone."""
    names = _Names()
    with planned_server(names.think) as server:
        with broker_running(tmp_path / "store", free_ports(), server.address) as broker:
            names.hangs = True
            broker.tell_name_servers()
            wait_until(lambda: bool(names.unanswered), "it registers anew")
            threading.Timer(0.5, names.go_on).start()
        codes = [command.code for command in server.commands]
    assert codes[-1] == RequestCode.UNREGISTER_BROKER
    assert not names.hangs, "the answer was waited for"
