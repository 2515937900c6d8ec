"""SQL92 subscriptions: each broker goes on with the other's `consumerFilter.json`, and goes by the bit maps that the other has made.

A map that says that a group does not want a message it would want is the proof: a broker that ignores the map delivers the message.
Java: ConsumerFilterManager, CommitLogDispatcherCalcBitMap, ExpressionMessageFilter.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_mq.client.admin import Admin
from spark_mq.client.errors import ClientError
from spark_mq.client.settings import ClientSettings
from storage import open_store
from storage.format.bloom_filter import BloomFilter
from storage.format.consume_queue import EXT_UNIT, ext_position
from storage.tables.consumer_groups import FILTERS_FILE, ConsumerFilterTable
from tests.support.java_broker import Oracle, RunningBroker, free_ports, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.long]

TOPIC, GROUP, EXPRESSION = "Filtered", "SqlTeam", "TAGS = 'TagB'"
COUNT = 30
SETTINGS: dict[str, Any] = {
    "enablePropertyFilter": "true",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "mappedFileSizeConsumeQueueExt": 2_000,
}
SHAPE = BloomFilter.of(20, 32)
BITS = SHAPE.map_of(SHAPE.positions(f"{GROUP}#{TOPIC}")).tobytes()


def test_each_broker_filters_by_what_the_other_has_left(oracle: Oracle, tmp_path: Path) -> None:
    store, port = tmp_path / "store", free_ports()
    wanted: set[int] = set()
    withheld: set[int] = set()
    born: set[int] = set()
    ours = Oracle(tmp_path, is_ours=True)
    for number, servers in enumerate((ours, oracle, ours)):
        with servers.namesrv() as name_server, servers.broker(store, name_server, port=port, **SETTINGS) as broker:
            broker.make_topic(TOPIC)  # without a route a consumer tells no broker what it wants
            out = tmp_path / f"got-{number}.jsonl"
            with servers.client("Consume", out, broker, group=GROUP, topics=TOPIC, sql=EXPRESSION) as client:
                wait_until(lambda: is_online(broker), "the consumer has told its subscription")
                sent = servers.send(tmp_path / f"sent-{number}.jsonl", broker, TOPIC, queues=1, count=COUNT)
                tagged = {line["queueOffset"] for line in sent if line.get("tags") == "TagB"}
                wanted |= tagged
                expected = wanted - withheld
                found = client.until(partial(has_so_many, len(expected)), "message")
                assert {line["queueOffset"] for line in found} == expected
        units = {line["cqOffset"]: line["ext"] for line in oracle.dump(store, broker.conf) if is_ours(line)}
        assert len(units) == COUNT * (number + 1)
        maps = {offset: bytes.fromhex(units[offset]["bitMap"]) for offset in (line["queueOffset"] for line in sent)}
        assert maps == {offset: BITS if offset in tagged else bytes(len(BITS)) for offset in maps}
        filters = ConsumerFilterTable.load((store / "config" / FILTERS_FILE).read_text("utf-8"))
        (known,) = filters
        assert (known.group, known.topic, known.expression) == (GROUP, TOPIC, EXPRESSION)
        born.add(known.born_ms)
        spoil(store, min(tagged))
        withheld.add(min(tagged))
        for path in (store / "config").glob("consumerOffset.json*"):
            path.unlink()
    assert len(born) == 1


def is_ours(line: dict[str, Any]) -> bool:
    return line["type"] == "message" and line["cqTopic"] == TOPIC


def has_so_many(count: int, lines: list[dict[str, Any]]) -> bool:
    return len(lines) >= count


def is_online(broker: RunningBroker) -> bool:
    with Admin(ClientSettings((broker.name_server,))) as admin:
        try:
            return TOPIC in admin.consumer_connection(GROUP).subscription_table
        except ClientError:
            return False


def spoil(store: Path, queue_offset: int) -> None:
    """The message's map says from now on that nobody wants it."""
    with open_store(store) as opened:
        queue = opened.queues.get(TOPIC, 0)
        assert queue is not None
        position = ext_position(int(queue.entries(queue_offset, queue_offset + 1)["tags_code"][0]))
    path = max(path for path in (store / "consumequeue_ext" / TOPIC / "0").iterdir() if int(path.name) <= position)
    content = bytearray(path.read_bytes())
    start = position - int(path.name) + EXT_UNIT.itemsize
    assert content[start : start + len(BITS)] == BITS
    content[start : start + len(BITS)] = bytes(len(BITS))
    path.write_bytes(content)
