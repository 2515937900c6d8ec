"""Java's push consumers that leave it to the broker which queues they read (clientRebalance=false).

SPARK_MQ_TEST_SERVERS=apache asks the same of Apache's broker.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.java_broker import Oracle, RunningBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

QUEUES = 4
OURS = True


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
def test_consumers_get_the_queues_that_the_broker_gives_them_and_all_messages_once(
    servers: Oracle, broker: RunningBroker, tmp_path: Path, strategy: str
) -> None:
    topic = f"Shared-{strategy}"
    broker.make_topic(topic, QUEUES)
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
