"""DLedger: a master of Apache's goes on from a store that was converted, and a running group's stores are read beside it.

Expected is what the group, and then the master, serve to Apache's own client.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings
from storage import open_store
from storage.convert import convert
from tests.storage.test_dledger_stores import acknowledged, named, read, served
from tests.support.fixture_stores import unpack_group
from tests.support.java_broker import Oracle, RunningBroker, free_ports
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPICS = ("TopicA", "TopicBatch", "TopicDelay", "TopicTransaction", "TopicTail")
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 65_536,
    "consume_queue_file_size_bytes": 2_000,
    "maxHashSlotNum": 50,
    "maxIndexNum": 300,
    "flushDelayOffsetInterval": 500,
}


@pytest.mark.parametrize("name", ["dledger", "dledger-killed"])
@pytest.mark.long
def test_a_master_starts_on_a_converted_store_and_serves_the_groups_messages(
    name: str, oracle: Oracle, tmp_path: Path
) -> None:
    fixture = unpack_group(name, tmp_path / name)["leader"]
    root = tmp_path / "plain"
    convert(str(fixture.root), str(root), config=str(fixture.conf))
    with oracle.namesrv() as name_server, oracle.broker(root, name_server, **SETTINGS) as broker:
        lines = oracle.consume_all(tmp_path / "served.jsonl", broker, TOPICS, lookUps=40)
        sent = oracle.send(tmp_path / "sent.jsonl", broker, "TopicA", queues=3, count=30, seed=18)
    found = {
        (line["topic"], line["queueId"], line["queueOffset"]): (line["commitLogOffset"], *said(line))
        for line in lines
        if line["type"] == "message"
    }
    assert acknowledged(fixture) <= named(found)
    assert without_places(served(fixture)).items() <= without_places(found).items()
    if name == "dledger":  # what was to wait for two hours is due since
        later = {place: message for place, message in found.items() if place not in served(fixture)}
        assert {place[0] for place in later} <= {"TopicDelay"}
        assert not {message[-1] for message in later.values()} & {body for *_, body in served(fixture).values()}
    assert all(line["commitLogOffsets"] for line in lines if line["type"] == "lookUp")
    with open_store(root, config=str(broker.conf)) as store:
        ours = read(store)
    assert found.items() <= ours.items(), "we read on what it served"
    assert {(*key, value[-1]) for key, value in ours.items()} >= {
        (line["topic"], line["queueId"], line["queueOffset"], line["bodySha256"]) for line in sent
    }


def said(line: dict[str, Any]) -> tuple[object, ...]:
    return line["uniqKey"], line["tags"], line["keys"], line["bodySha256"]


def without_places(
    found: dict[tuple[str, int, int], tuple[object, ...]],
) -> dict[tuple[str, int, int], tuple[object, ...]]:
    return {place: message[1:] for place, message in found.items()}


@pytest.mark.long
def test_the_stores_of_a_running_group_are_read_over_a_change_of_leader(
    oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_HEAP", "256m")
    ports = [free_ports() for _ in range(6)]
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports[3:]))
    settings = SETTINGS | {"enableDLegerCommitLog": "true", "dLegerGroup": "broker-lab", "dLegerPeers": peers}
    with ExitStack() as stack:
        name_server = stack.enter_context(oracle.namesrv())
        group = [
            stack.enter_context(
                oracle.broker(tmp_path / f"n{number}", name_server, port=port, dLegerSelfId=f"n{number}", **settings)
            )
            for number, port in enumerate(ports[:3])
        ]
        first = leader(name_server, group)
        oracle.send(tmp_path / "sent.jsonl", first, "TopicA", queues=3, count=60, seed=1)
        stores = [stack.enter_context(open_store(peer.store, config=str(peer.conf))) for peer in group]
        first.kill()
        second = leader(name_server, [peer for peer in group if peer is not first])
        oracle.send(tmp_path / "more.jsonl", second, "TopicA", queues=3, count=60, seed=2)
        lines = oracle.consume_all(tmp_path / "served.jsonl", second, ("TopicA",))
        expected = {
            (line["topic"], line["queueId"], line["queueOffset"]): (line["commitLogOffset"], *said(line))
            for line in lines
            if line["type"] == "message"
        }
        assert len(expected) >= 119, "the killed leader's last message may be sent again by its client"
        for peer, store in zip(group, stores, strict=True):
            store.refresh()
            if peer is first:
                assert of_topic(read(store)).items() <= expected.items()
            else:
                wait_until(lambda store=store: store.refresh() or of_topic(read(store)) == expected, "it has caught up")  # type: ignore[misc]


def of_topic(found: dict[tuple[str, int, int], tuple[object, ...]]) -> dict[tuple[str, int, int], tuple[object, ...]]:
    return {place: message for place, message in found.items() if place[0] == "TopicA"}


def leader(name_server: str, group: list[RunningBroker]) -> RunningBroker:
    """The peer that the name server knows as master, once it knows one of these."""
    found: list[RunningBroker] = []

    def is_known() -> bool:
        try:
            with Admin(ClientSettings((name_server,))) as admin:
                tables = admin.cluster_info().broker_address_table.values()
        except ClientError:
            return False
        masters = {each.broker_addresses.get(0) for each in tables}
        found[:] = [peer for peer in group if peer.address in masters]
        return bool(found)

    wait_until(is_known, "one of the peers is the leader")
    return found[0]
