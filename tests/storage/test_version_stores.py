"""Stores of several releases of RocketMQ: we read what each release's own broker acknowledged, and served to its own client.

`golden.jsonl` of these stores is compared where all fixtures are (`test_golden_stores.py`): what Apache's classes say. This is what
the broker said that wrote the store, or, of a killed one, that broker after it had recovered the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_mq.cli.message_lines import dump_queue
from storage import MessageStore, open_store
from tests.support.fixture_stores import Fixture
from tests.support.releases import ENDS, LOSES_KEYS_AFTER_A_KILL, RELEASES

Line = dict[str, Any]


@pytest.mark.parametrize("name", [f"v{release}{end}" for release in RELEASES for end in ENDS])
def test_a_recovered_store_holds_what_its_own_broker_acknowledged_and_served(
    name: str, fixture_store: Callable[[str], Fixture]
) -> None:
    fixture = fixture_store(name)
    assert fixture.sent is not None
    assert fixture.served is not None
    served = list(lines(fixture.served))
    with open_store(fixture.root, config=str(fixture.conf), read_only=False) as store:
        assert str(store.config.release) == name.removeprefix("v").removesuffix("-killed")
        assert store.recovery is not None
        assert store.recovery.was_clean == (not name.endswith("-killed"))
        found = {
            topic: read_all(store, topic) for topic in {line["topic"] for line in served if line["type"] == "queue"}
        }
        assert found == expected(served)
        for line in served:
            if line["type"] == "lookUp":
                places = {message.commitlog_offset for message in store.query(line["topic"], line["key"], 64)}
                assert places >= set(line["commitLogOffsets"])
                assert places or name in LOSES_KEYS_AFTER_A_KILL
    acknowledged = [line for line in lines(fixture.sent) if "delayLevel" not in line and "delayMs" not in line]
    assert len(acknowledged) > 100
    for line in acknowledged:
        (msg_id, *_, body_sha256) = found[line["topic"]][line["queueId"], line["queueOffset"]]
        assert (msg_id, body_sha256) == (line["offsetMsgId"], line["bodySha256"])


def lines(path: Path) -> list[Line]:
    return [json.loads(text) for text in path.read_text("utf-8").splitlines()]


def read_all(store: MessageStore, topic: str) -> dict[tuple[int, int], tuple[object, ...]]:
    """What we read of a topic, by queue and offset."""
    return {
        (queue_id, line["cqOffset"]): (
            line["msgId"],
            line["properties"].get("TAGS"),
            line["properties"].get("KEYS"),
            line.get("plainBodySha256", line["bodySha256"]),
        )
        for queue_id in store.queue_ids(topic)
        for line in dump_queue(store, topic, queue_id)
    }


def expected(served: list[Line]) -> dict[str, dict[tuple[int, int], tuple[object, ...]]]:
    """The same as the broker's own client had it."""
    topics: dict[str, dict[tuple[int, int], tuple[object, ...]]] = {}
    for line in served:
        if line["type"] == "queue":
            topics.setdefault(line["topic"], {})
        elif line["type"] == "message":
            place = line["queueId"], line["queueOffset"]
            topics[line["topic"]][place] = (line["offsetMsgId"], line["tags"], line["keys"], line["bodySha256"])
    return topics
