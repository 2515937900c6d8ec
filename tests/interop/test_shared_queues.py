"""Java's push consumers that leave it to the broker which queues they read (clientRebalance=false).

SPARK_MQ_TEST_SERVERS=apache asks the same of Apache's broker.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_mq.client.admin import Admin, NewTopic
from spark_mq.client.settings import ClientSettings
from tests.support import own_servers
from tests.support.java_broker import Oracle, RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

QUEUES = 4
SETTINGS = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}


@pytest.fixture(scope="module")
def servers(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    is_apaches = os.environ.get(own_servers.VARIABLE) == "apache"
    return Oracle(tmp_path_factory.mktemp("sharing-"), is_ours=not is_apaches)


@pytest.fixture(scope="module")
def broker(servers: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    store = tmp_path_factory.mktemp("store-") / "store"
    with servers.namesrv() as name_server, servers.broker(store, name_server, **SETTINGS) as running:
        yield running


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
def test_consumers_get_the_queues_that_the_broker_gives_them_and_all_messages_once(
    servers: Oracle, broker: RunningBroker, tmp_path: Path, strategy: str
) -> None:
    topic = f"Shared-{strategy}"
    with Admin(ClientSettings((broker.name_server,))) as admin:
        admin.create_topic(NewTopic(topic, QUEUES, QUEUES), address=broker.address)
        wait_until(lambda: topic in admin.topics(), f"{topic} has a route")
    arguments = f"ns={broker.name_server}", f"topic={topic}", f"group=g-{strategy}", "count=40", f"strategy={strategy}"
    servers.java("Shared", tmp_path / "out.jsonl", *arguments)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert {line["name"]: line["got"] for line in lines} == {
        "alone": [40],
        "together": [20, 20],
        "left": [40],
        "broadcast": [40, 40],
    }
    assert all(line["all"] == line["got"] for line in lines)
