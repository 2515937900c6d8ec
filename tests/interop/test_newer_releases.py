"""Brokers of 5.4 and 5.5 beside ours: what they copy from each other in pages, and look-ups by tag.

The rest of interop runs at them by `make test-interop RELEASE=5.5.0`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode, make_request, read_body
from spark_mq.remoting.routes import TopicConfigTable
from storage import open_store
from storage.format.typed_json import SubscriptionGroupConfig
from storage.tables.document import TOPICS_FILE
from storage.tables.topics import TopicConfig, TopicTable
from tests.support.java_broker import Oracle, OracleError, RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.long]

MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
SLAVE: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1, "haSendHeartbeatInterval": 1_000}
PAGE = 2_000


@pytest.fixture(params=["5.4.0", "5.5.0"])
def newer(request: pytest.FixtureRequest, oracle: Oracle) -> Oracle:
    try:
        return oracle.release(request.param)
    except OracleError as error:
        pytest.skip(f"RocketMQ {request.param} could not be had from Maven: {str(error).strip().splitlines()[-1]}")


def table(store: Path, name: str, key: str) -> dict[str, Any]:
    path = store / "config" / name
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))[key] if path.exists() else {}
    return found


def topics_in(store: Path) -> set[str]:
    return set(table(store, "topics.json", "topicConfigTable"))


def knows(replica: Path, *topics: str) -> Callable[[], bool]:
    return lambda: set(topics) <= topics_in(replica)


def test_our_slave_copies_all_topics_and_groups_of_a_master_that_answers_in_pages(
    newer: Oracle, tmp_path: Path
) -> None:
    ours, master, replica = Oracle(tmp_path, is_ours=True), tmp_path / "master", tmp_path / "replica"
    with newer.namesrv() as name_server, newer.broker(master, name_server, splitMetadataSize=3) as broker:
        with Admin(ClientSettings((name_server,))) as admin:
            for number in range(10):
                admin.create_group(SubscriptionGroupConfig(group=f"G{number}"), address=broker.address)
        newer.java(MQADMIN, "updateTopic", "-b", broker.address, "-t", "zLast", "-n", name_server)
        with ours.broker(replica, name_server, **SLAVE):
            wait_until(knows(replica, "zLast", *topics_in(master)), "it knows all topics", 90)
            wait_until(
                lambda: "G9" in table(replica, "subscriptionGroup.json", "subscriptionGroupTable"), "and all groups", 90
            )
    groups = table(replica, "subscriptionGroup.json", "subscriptionGroupTable")
    assert {f"G{number}" for number in range(10)} <= groups.keys()


def test_a_newer_slave_copies_our_masters_last_topic_where_its_own_masters_page_would_leave_it(
    newer: Oracle, tmp_path: Path
) -> None:
    """A page has 2,000 topics, and a newer slave asks for no page of one topic."""
    ours, master, replica = Oracle(tmp_path, is_ours=True), tmp_path / "master", tmp_path / "replica"
    with newer.namesrv() as name_server:
        with ours.broker(master, name_server) as broker:
            newer.java(MQADMIN, "updateTopic", "-b", broker.address, "-t", "First", "-n", name_server)
            built_in = served_count(broker)
        with open_store(master, read_only=False) as store:
            known = store.state(TOPICS_FILE, TopicTable.load)
            for number in range(PAGE - built_in):
                known = known.with_topic(TopicConfig(f"T{number:04}", 1, 1), now_ms=2)
            known = known.with_topic(TopicConfig("zzLast", 1, 1), now_ms=3)
        (master / "config" / "topics.json").write_text(known.to_text(), "utf-8")
        with ours.broker(master, name_server) as broker, newer.broker(replica, name_server, **SLAVE):
            assert served_count(broker) == PAGE + 1
            wait_until(knows(replica, "zzLast"), "it knows the last topic", 90)
    assert len(topics_in(replica)) > PAGE


def served_count(broker: RunningBroker) -> int:
    """The topics that a broker answers with, those that it makes itself among them."""
    with closing(BlockingConnection[None](broker.address, ClientSettings((broker.name_server,)))) as connection:
        connection.send([(make_request(RequestCode.GET_ALL_TOPIC_CONFIG), None)])
        ((_, answer),) = connection.receive()
    return len(read_body(TopicConfigTable, answer.body).topic_config_table)


def test_newer_tools_find_messages_at_our_broker_by_tag_and_by_key(newer: Oracle, tmp_path: Path) -> None:
    ours, given = Oracle(tmp_path, is_ours=True), {"rocketmqVersion": newer.version}
    with newer.namesrv() as name_server, ours.broker(tmp_path / "store", name_server, **given) as broker:
        at = ("-n", name_server)
        newer.java(MQADMIN, "updateTopic", "-b", broker.address, "-t", "T", "-r", "1", "-w", "1", *at)
        for tag, key in (("blue", "K1"), ("red", "blue")):
            newer.java(MQADMIN, "sendMessage", "-t", "T", "-p", "hello", "-c", tag, "-k", key, *at)
        by_tag = newer.java(MQADMIN, "queryMsgByKey", "-t", "T", "-k", "blue", "-p", "T", *at)
        by_key = newer.java(MQADMIN, "queryMsgByKey", "-t", "T", "-k", "blue", *at)
    assert [line.split()[1:3] for line in by_tag.splitlines()[1:]] == [["0", "0"]]
    assert [line.split()[1:3] for line in by_key.splitlines()[1:]] == [["0", "1"]]
