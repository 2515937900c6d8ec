"""Our broker as a slave, under Apache's master and ours: the same log, and Java's consumer reads it when the master is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_replication import KEPT, QUICK, SIZES, TOPIC, assert_same_log, has_caught_up, messages
from tests.support.java_broker import Oracle, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SLAVE: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true", **QUICK, **SIZES}


@pytest.mark.parametrize(
    "is_ours", [False, pytest.param(True, marks=pytest.mark.long)], ids=["apaches-master", "our-master"]
)
def test_java_consumes_from_our_slave_while_the_master_is_down(oracle: Oracle, tmp_path: Path, is_ours: bool) -> None:
    servers, ours = Oracle(tmp_path, is_ours=is_ours), Oracle(tmp_path, is_ours=True)
    master, replica = tmp_path / "master", tmp_path / "replica"
    with oracle.namesrv() as name_server, servers.broker(master, name_server, **SIZES, **KEPT, **QUICK) as broker:
        sent = servers.send(tmp_path / "sent.jsonl", broker, TOPIC, queues=3, count=90, maxBody=2_000)
        with ours.broker(replica, name_server, **SLAVE) as slave:
            wait_until(has_caught_up(replica, master), "the slave has it all")
            sent += servers.send(tmp_path / "more.jsonl", broker, TOPIC, queues=3, count=30, maxBody=2_000)
            wait_until(has_caught_up(replica, master), "the slave has what came later")
            topics = replica / "config" / "topics.json"
            wait_until(lambda: topics.exists() and TOPIC in topics.read_text("utf-8"), "it knows the topic", 90)
            broker.kill()
            with ours.client("Consume", tmp_path / "got.jsonl", slave, group="GSlave", topics=TOPIC) as client:
                got = client.until(lambda lines: len(lines) >= len(sent), "message")
    assert {line["offsetMsgId"] for line in got} == {line["offsetMsgId"] for line in sent}
    assert_same_log(master, replica)
    assert messages(oracle.dump(replica, slave.conf)) == messages(oracle.dump(master, broker.conf))


@pytest.mark.long
def test_our_slave_is_started_again_as_a_master_that_java_produces_to(oracle: Oracle, tmp_path: Path) -> None:
    ours, master, replica = Oracle(tmp_path, is_ours=True), tmp_path / "master", tmp_path / "replica"
    with oracle.namesrv() as name_server:
        with oracle.broker(master, name_server, **SIZES, **KEPT, **QUICK) as broker:
            oracle.send(tmp_path / "sent.jsonl", broker, TOPIC, queues=3, count=60, maxBody=2_000)
            with ours.broker(replica, name_server, **SLAVE):
                wait_until(has_caught_up(replica, master), "the slave has it all")
                topics = replica / "config" / "topics.json"
                wait_until(lambda: topics.exists() and TOPIC in topics.read_text("utf-8"), "it knows the topic", 90)
            broker.kill()
        with ours.broker(replica, name_server, **SIZES, **KEPT) as promoted:
            more = ours.send(tmp_path / "more.jsonl", promoted, TOPIC, queues=3, count=30)
            assert sorted({line["queueOffset"] for line in more}) == list(range(20, 30))
    assert len(messages(oracle.dump(replica, promoted.conf))) >= 90
