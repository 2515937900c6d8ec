"""A broker registers each period, whatever a name server answers and whatever becomes of a turn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_mq.broker.broker_store import BrokerStore
from spark_mq.broker_server.name_servers import Registration
from spark_mq.broker_server.settings import ProcessSettings
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, make_response, write_body
from spark_mq.remoting.routes import KvTable
from tests.broker.peers import BrokerPeers, FakeClock
from tests.broker.test_broker_duties import running, sent

NAME_SERVER = "127.0.0.1:1"


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
