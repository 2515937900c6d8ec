"""Apache's broker, client and mqadmin at our name server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.errors import TopicRouteNotFoundError
from spark_mq.client.settings import ClientSettings
from tests.support.java_broker import Oracle, RunningBroker, wait_until
from tests.support.own_servers import OurNameServer, our_name_server
from tests.support.planned_server import Certificate

pytestmark = [pytest.mark.interop, pytest.mark.slow]

MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
BROKER = "broker-lab"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("our-namesrv-")


@pytest.fixture(scope="module")
def name_server(home: Path) -> Iterator[OurNameServer]:
    with our_name_server(home, orderMessageEnable="true") as running:
        yield running


@pytest.fixture(scope="module")
def broker(oracle: Oracle, name_server: OurNameServer, home: Path) -> Iterator[RunningBroker]:
    with oracle.broker(home / "store", name_server.address) as running:
        yield running


@pytest.fixture(scope="module")
def admin(name_server: OurNameServer, broker: RunningBroker) -> Iterator[Admin]:
    with Admin(ClientSettings((name_server.address,))) as admin:
        yield admin


def mqadmin(oracle: Oracle, address: str, *arguments: str) -> str:
    return oracle.java(MQADMIN, *arguments, "-n", address)


def test_a_java_client_sends_and_consumes_by_our_routes(
    oracle: Oracle, admin: Admin, broker: RunningBroker, home: Path
) -> None:
    sent = oracle.send(home / "sent.jsonl", broker, "Sent", queues=2, count=40)
    assert len(sent) == 40
    found = oracle.consume_all(home / "consumed.jsonl", broker, ["Sent"])
    assert len([line for line in found if line["type"] == "message"]) == 40
    route = admin.route("Sent")
    assert len(route.publish_queues) == 2
    assert route.master_addresses == (broker.address,)


def test_mqadmin_is_told_of_brokers_topics_and_routes(oracle: Oracle, admin: Admin, broker: RunningBroker) -> None:
    address = broker.name_server
    listed = mqadmin(oracle, address, "clusterList")
    assert re.search(
        rf"^LabCluster +{BROKER} +0 +{re.escape(broker.address)} +{oracle.version_name}", listed, re.MULTILINE
    ), listed
    topics = mqadmin(oracle, address, "topicList").split()
    assert {"TBW102", "LabCluster", BROKER} <= set(topics)
    of_cluster = mqadmin(oracle, address, "topicList", "-c")
    assert re.search(r"^LabCluster +TBW102", of_cluster, re.MULTILINE), of_cluster
    route = mqadmin(oracle, address, "topicRoute", "-t", "TBW102")
    assert f'"brokerAddrs":{{0:"{broker.address}"}}' in "".join(route.split()), route
    settings = mqadmin(oracle, address, "getNamesrvConfig")
    assert re.search(r"orderMessageEnable *= *true", settings), settings


@pytest.mark.long
def test_mqadmin_keeps_texts_at_our_name_server(
    oracle: Oracle, admin: Admin, broker: RunningBroker, home: Path
) -> None:
    address = broker.name_server
    assert "success" in mqadmin(oracle, address, "updateKvConfig", "-s", "N", "-k", "k", "-v", "value")
    assert '"N":{"k":"value"}' in (home / "kvConfig.json").read_text("utf-8")
    assert "success" in mqadmin(oracle, address, "deleteKvConfig", "-s", "N", "-k", "k")
    assert '"k"' not in (home / "kvConfig.json").read_text("utf-8")
    put = mqadmin(oracle, address, "updateOrderConf", "-t", "TBW102", "-m", "put", "-v", f"{BROKER}:4")
    assert "success" in put, put
    assert f"{BROKER}:4" in mqadmin(oracle, address, "updateOrderConf", "-t", "TBW102", "-m", "get")
    assert f'"orderTopicConf":"{BROKER}:4"' in "".join(mqadmin(oracle, address, "topicRoute", "-t", "TBW102").split())
    assert "success" in mqadmin(oracle, address, "updateOrderConf", "-t", "TBW102", "-m", "delete")


@pytest.mark.long
def test_mqadmin_takes_and_gives_permission_to_write(oracle: Oracle, admin: Admin, broker: RunningBroker) -> None:
    address = broker.name_server

    def holds() -> bool:
        """A broker that has just begun registers topics that have changed, which gives it the permission back, at Apache's too."""
        wiped = mqadmin(oracle, address, "wipeWritePerm", "-b", BROKER)
        assert re.search(rf"wipe write perm of broker\[{BROKER}\] in name server\[{address}\] OK, [1-9]", wiped), wiped
        return admin.route("TBW102").publish_queues == ()

    wait_until(holds, "the permission is taken")
    added = mqadmin(oracle, address, "addWritePerm", "-b", BROKER)
    assert re.search(r"OK, [1-9]", added), added
    assert admin.route("TBW102").publish_queues != ()


@pytest.mark.long
def test_mqadmin_changes_our_settings(oracle: Oracle, admin: Admin, broker: RunningBroker, home: Path) -> None:
    address = broker.name_server
    done = mqadmin(oracle, address, "updateNamesrvConfig", "-k", "waitSecondsForService", "-v", "7")
    assert "success" in done, done
    assert "waitSecondsForService=7\n" in (home / "namesrv.properties").read_text("ascii")
    refused = mqadmin(oracle, address, "updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/elsewhere")
    assert "success" not in refused
    assert "/elsewhere" not in mqadmin(oracle, address, "getNamesrvConfig")


def test_topics_come_and_go(oracle: Oracle, admin: Admin, broker: RunningBroker) -> None:
    address = broker.name_server
    made = mqadmin(
        oracle, address, "updateTopic", "-n", address, "-b", broker.address, "-t", "Made", "-r", "3", "-w", "3"
    )
    assert "success" in made, made
    wait_until(lambda: len(admin.route("Made").publish_queues) == 3, "the route of the new topic")
    admin.delete_topic(
        "Made"
    )  # mqadmin ends before it tells the name server: see timerWheelEnable in the oracle's brokers
    with pytest.raises(TopicRouteNotFoundError):
        admin.route("Made")


def test_a_killed_broker_leaves_the_routes_at_once(oracle: Oracle, name_server: OurNameServer, home: Path) -> None:
    with (
        oracle.broker(home / "killed", name_server.address, brokerName="broker-killed") as broker,
        Admin(ClientSettings((name_server.address,))) as admin,
    ):
        wait_until(lambda: "broker-killed" in admin.cluster_info().broker_address_table, "the broker is registered")
        broker.kill()
        killed_at = time.monotonic()
        wait_until(lambda: "broker-killed" not in admin.cluster_info().broker_address_table, "the broker is gone")
        assert time.monotonic() - killed_at < 5  # not the two minutes of silence


@pytest.mark.long
def test_a_broker_that_stops_says_so(oracle: Oracle, name_server: OurNameServer, home: Path) -> None:
    with Admin(ClientSettings((name_server.address,))) as admin:
        with oracle.broker(home / "stopped", name_server.address, brokerName="broker-stopped"):
            wait_until(lambda: "broker-stopped" in admin.cluster_info().broker_address_table, "it is registered")
        assert "broker-stopped" not in admin.cluster_info().broker_address_table


def test_mqadmin_speaks_tls_with_an_enforcing_name_server(oracle: Oracle, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    files = {"tls__server__certPath": str(certificate.cert), "tls__server__keyPath": str(certificate.key)}
    speaking_tls = Oracle(tmp_path, java_properties=("-Dtls.enable=true",))
    with our_name_server(tmp_path, tls__server__mode="enforcing", **files) as server:
        put = ("updateKvConfig", "-s", "N", "-k", "k", "-v", "value")
        assert "success" in mqadmin(speaking_tls, server.address, *put)
        assert '"N":{"k":"value"}' in (tmp_path / "kvConfig.json").read_text("utf-8")
