"""A broker registers each period, whatever a name server answers and whatever becomes of a turn."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
from tests.support.planned_server import Peer, planned_server

NAME_SERVER = "127.0.0.1:1"
_LONG_MS = 60_000


class Answered(Registration):
    """Its name server calls T an ordered topic."""

    turns = 0

    def _ask(self, commands: Mapping[str, RemotingCommand], timeout_ms: int) -> dict[str, RemotingCommand]:
        self.turns += 1
        body = write_body(KvTable(table={"T": "b:1"}))
        return {address: make_response(command, 0, None, {}, body) for address, command in commands.items()}


def test_a_topic_that_is_deleted_when_a_name_server_calls_it_ordered_ends_no_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, change_topic = FakeClock(), BrokerStore.change_topic
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        peers.ask("p", 310, *sent("T"))

        def deleted_before(parts: BrokerStore, name: str, *, order: bool) -> None:
            peers.ask("admin", 215, {"topic": "T"})
            change_topic(parts, name, order=order)

        monkeypatch.setattr(BrokerStore, "change_topic", deleted_before)
        registration = Answered(broker.parts, ClientSettings((NAME_SERVER,)), ProcessSettings())
        registration.start()
        try:
            registration.soon()
            assert peers.until(lambda: registration.turns > 1, 5)
            assert "T" not in broker.parts.store.topics
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


def test_a_name_server_that_hangs_holds_up_no_answer(tmp_path: Path) -> None:
    def think(peer: Peer, command: RemotingCommand) -> None:
        if hangs and command.code == RequestCode.REGISTER_BROKER:
            hung.append(command.code)
        else:
            peer.send(make_response(command, 0))

    hangs, hung = False, list[int]()
    with planned_server(think) as names:
        settings = f"registerBrokerTimeoutMills={_LONG_MS}\n"
        with broker_running(tmp_path / "store", free_ports(), names.address, settings) as broker:
            hangs = True
            with Admin(ClientSettings((names.address,), request_timeout_ms=_LONG_MS // 2)) as admin:
                admin.create_topic(NewTopic("One", 1, 1), address="{}:{}".format(*broker.address))
            assert hung
