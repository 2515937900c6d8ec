"""A deleted topic or group is gone, one of the same name begins anew, and the store opens as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_mq.remoting import write_body
from storage import open_store
from storage.format.typed_json import SubscriptionGroupConfig
from storage.rules.response_codes import ResponseCode
from storage.settings.load import parse_config
from tests.broker.peers import BrokerPeers, FakeClock
from tests.broker.test_broker_duties import CONF, running, sent


def test_a_topic_deleted_and_made_again_begins_at_zero_also_after_restarts(tmp_path: Path) -> None:
    root, clock = tmp_path / "store", FakeClock()
    with running(root, clock) as broker:
        peers = BrokerPeers(broker, clock)
        for number in range(5):
            peers.ask("p", 310, *sent("Gone", b"old %d" % number))
        assert peers.ask("admin", 215, {"topic": "Gone"}).code == 0
        assert not (root / "consumequeue" / "Gone").exists()
        answer = peers.ask("p", 310, *sent("Gone", b"new"))
        assert (answer.ext_fields or {})["queueOffset"] == "0"
        assert peers.ask("c", 30, {"topic": "Gone", "queueId": 0, "committed": "true"}).ext_fields == {"offset": "1"}
    with running(root, clock) as broker:
        peers = BrokerPeers(broker, clock)
        answer = peers.ask("p", 310, *sent("Gone", b"newer"))
        assert (answer.ext_fields or {})["queueOffset"] == "1"
    with open_store(root, config=parse_config(CONF)) as store:
        assert [message.body for message in store.get("Gone", 0, 0).messages] == [b"new", b"newer"]
        assert store.undispatched_bytes == 0


def test_a_reset_that_waits_does_not_hold_for_the_next_topic_of_the_name(tmp_path: Path) -> None:
    """Java keeps it, and sends the group's first pull there."""
    clock, group = FakeClock(), "TOOLS_CONSUMER"
    queue = {"topic": "Gone", "queueId": 0}
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        for _ in range(5):
            peers.ask("p", 310, *sent("Gone"))
        reset = {**queue, "group": group, "offset": 5, "timestamp": -1, "isForce": True}
        assert peers.ask("admin", 222, reset).code == 0
        assert peers.ask("admin", 215, {"topic": "Gone"}).code == 0
        peers.ask("p", 310, *sent("Gone", b"new"))
        pull = {**queue, "consumerGroup": group, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0}
        found = peers.ask("c", 11, pull | {"suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0})
        assert (found.code, b"new" in bytes(found.body)) == (0, True)


def test_a_reset_that_waits_does_not_hold_for_the_next_group_of_the_name(tmp_path: Path) -> None:
    clock, queue = FakeClock(), {"topic": "T", "queueId": 0}
    with running(tmp_path / "store", clock) as broker:
        peers = BrokerPeers(broker, clock)
        for number in range(5):
            peers.ask("p", 310, *sent("T", b"body %d" % number))

        def made() -> None:
            body = write_body(SubscriptionGroupConfig(group="G"))
            assert peers.ask("admin", 200, {}, body).code == 0

        made()
        reset = {**queue, "group": "G", "offset": 3, "timestamp": -1, "isForce": True}
        assert peers.ask("admin", 222, reset).code == 0
        assert peers.ask("admin", 207, {"groupName": "G", "cleanOffset": "true"}).code == 0
        made()
        of_group = {**queue, "consumerGroup": "G"}
        assert peers.ask("c", 14, of_group | {"setZeroIfNotFound": "false"}).code == ResponseCode.QUERY_NOT_FOUND
        pull = {**of_group, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0}
        found = peers.ask("c", 11, pull | {"suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0})
        assert (found.code, b"body 0" in bytes(found.body)) == (0, True)
        assert peers.ask("c", 15, of_group | {"commitOffset": 1}).remark != "Offset has been previously reset"
        assert (peers.ask("c", 14, of_group).ext_fields or {})["offset"] == "1"


def test_a_store_that_recovers_behind_a_deletion_serves_what_was_sent_since(tmp_path: Path) -> None:
    root, clock = tmp_path / "store", FakeClock()
    with running(root, clock) as broker:
        peers = BrokerPeers(broker, clock)
        for number in range(5):
            peers.ask("p", 310, *sent("Gone", b"old %d" % number))
        peers.ask("admin", 215, {"topic": "Gone"})
        peers.ask("p", 310, *sent("Gone", b"new"))
        broker.parts.store.service.flush()
        (root / "abort").touch()
    (root / "abort").touch()
    with open_store(root, config=parse_config(CONF), read_only=False) as store:
        bodies = [message.body for message in store.get("Gone", 0, 0).messages]
        assert bodies[-1] == b"new"


def test_queues_without_an_entry_are_cleaned_on_demand(tmp_path: Path) -> None:
    root, clock = tmp_path / "store", FakeClock()
    with running(root, clock) as broker:
        peers = BrokerPeers(broker, clock)
        peers.ask("p", 310, *sent("Kept"))
        peers.ask("p", 310, *sent("Left"))
        broker.parts.store.service.store.writer.topic_entries.remove("Left")
        assert peers.ask("admin", 316).code == 0
        assert sorted(path.name for path in (root / "consumequeue").iterdir()) == ["Kept"]


def test_an_offset_that_a_consumer_stores_while_its_topic_is_deleted_is_none_of_the_next_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's entry goes first, and what was stored until then goes behind it."""
    clock, group = FakeClock(), "TOOLS_CONSUMER"
    queue = {"topic": "Gone", "queueId": 0, "consumerGroup": group}
    with running(tmp_path / "store", clock) as broker:
        peers, service = BrokerPeers(broker, clock), broker.parts.store.service
        for _ in range(5):
            peers.ask("p", 310, *sent("Gone"))
        delete = service.delete_topic

        def delete_late(topic: str) -> None:
            assert peers.ask("c", 15, queue | {"commitOffset": 5}).code == 0
            delete(topic)

        monkeypatch.setattr(service, "delete_topic", delete_late)
        assert peers.ask("admin", 215, {"topic": "Gone"}).code == 0
        peers.ask("p", 310, *sent("Gone", b"new"))
        assert peers.ask("c", 14, queue).ext_fields == {"offset": "0"}
