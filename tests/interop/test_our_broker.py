"""Apache's producer and consumer at our broker and our name server; Apache's store and broker on what ours has served, and back.

The tests of our client run at our servers too: SPARK_MQ_TEST_SERVERS=own (tests/support/own_servers.py).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC = "Served"
COUNT = 400
NAMED = {"brokerName": "broker-ours"}


def by_queue(lines: list[dict[str, Any]]) -> dict[int, list[str]]:
    """The message ids of each queue in their order."""
    found: dict[int, dict[int, str]] = defaultdict(dict)
    for line in lines:
        found[line["queueId"]][line["queueOffset"]] = line["msgId"]
    return {queue_id: [ids[offset] for offset in sorted(ids)] for queue_id, ids in found.items()}


def consumed(servers: Oracle, broker: RunningBroker, out: Path, group: str, count: int) -> list[dict[str, Any]]:
    """What a new group of a Java push consumer gets, until it is so much."""
    with servers.client("Consume", out, broker, group=group, topics=TOPIC) as client:
        return client.until(lambda lines: len(lines) >= count, "message")


def test_what_javas_producer_sends_javas_consumer_gets_once_and_apaches_store_holds(
    oracle: Oracle, tmp_path: Path
) -> None:
    ours = Oracle(tmp_path, is_ours=True)
    with ours.namesrv() as name_server, ours.broker(tmp_path / "store", name_server, **NAMED) as broker:
        sent = ours.send(tmp_path / "sent.jsonl", broker, TOPIC, queues=4, count=COUNT)
        assert {line["status"] for line in sent} == {"SEND_OK"}
        out = tmp_path / "got.jsonl"
        with ours.client("Consume", out, broker, group="GServed", topics=TOPIC) as client:
            got = client.until(lambda lines: len(lines) >= COUNT, "message")
            more = ours.send(tmp_path / "more.jsonl", broker, TOPIC, queues=4, count=50)  # held pulls are woken
            got = client.until(lambda lines: len(lines) >= COUNT + 50, "message")
            wait_until(
                lambda: (
                    sum(broker.consumer_offset(TOPIC, "GServed", queue_id) or 0 for queue_id in range(4)) == len(got)
                ),
                "the group's offsets are saved",
            )
        assert by_queue(got) == by_queue([*sent, *more])
        assert len({line["msgId"] for line in got}) == len(got)
    dumped = [line for line in oracle.dump(broker.store, broker.conf) if line["type"] == "message"]
    assert len([line for line in dumped if line["cqTopic"] == TOPIC]) == COUNT + 50


@pytest.mark.long
def test_apaches_broker_goes_on_with_our_store_and_ours_with_its(oracle: Oracle, tmp_path: Path) -> None:
    port, store = free_ports(), tmp_path / "store"
    ours = Oracle(tmp_path, is_ours=True)
    total: list[dict[str, Any]] = []
    for number, servers in enumerate((ours, oracle, ours)):
        with servers.namesrv() as name_server, servers.broker(store, name_server, port=port, **NAMED) as broker:
            total += servers.send(tmp_path / f"sent-{number}.jsonl", broker, TOPIC, queues=4, count=60)
            got = consumed(servers, broker, tmp_path / f"got-{number}.jsonl", f"G{number}", len(total))
            assert by_queue(got) == by_queue(total)


def test_what_our_broker_has_acknowledged_outlives_its_kill(oracle: Oracle, tmp_path: Path) -> None:
    ours, port, store = Oracle(tmp_path, is_ours=True), free_ports(), tmp_path / "store"
    sync = {**NAMED, "flushDiskType": "SYNC_FLUSH"}
    with ours.namesrv() as name_server:
        with ours.broker(store, name_server, port=port, **sync) as broker:
            sent = ours.send(tmp_path / "sent.jsonl", broker, TOPIC, queues=4, count=100)
            broker.kill()
        with ours.broker(store, name_server, port=port, **sync) as broker:
            sent += ours.send(tmp_path / "again.jsonl", broker, TOPIC, queues=4, count=20)
            got = consumed(ours, broker, tmp_path / "got.jsonl", "GAll", 120)
    assert by_queue(got) == by_queue(sent)
