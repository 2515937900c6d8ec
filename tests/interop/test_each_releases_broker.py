"""A store of each release, recovered and written by us: its own broker goes on from it, serves all, and we read on.

The stores are fixtures that each release's broker left behind when it was killed (`vVERSION-killed`). Expected is what that
broker serves to its own client.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs.rebuild_queues import rebuild_queues
from spark_mq.cli.message_lines import dump_queue
from storage import MessageStore, open_store
from storage.rules.inner_messages import InnerMessage
from storage.settings.nouns import parse_broker_version, release_of
from storage.tables.topics import TopicConfig
from tests.support.fixture_stores import Fixture
from tests.support.java_broker import Oracle, OracleError, RunningBroker, free_ports, wait_until
from tests.support.releases import RELEASES
from tests.support.shares import one_in

pytestmark = [pytest.mark.interop, pytest.mark.slow]

Line = dict[str, Any]
Place = tuple[str, int, int]  # topic, queue id, queue offset

HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"
CHECKER = "CID_RMQ_SYS_TRANS"
DEAD = "%DLQ%" + "L" * 140
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 65_536,
    "consume_queue_file_size_bytes": 2_000,
    "maxHashSlotNum": 50,
    "maxIndexNum": 300,
    "mappedFileSizeTimerLog": 1_024,
    "flushDelayOffsetInterval": 500,
    "flushConsumerOffsetInterval": 500,
    "transactionCheckMax": 1_000,
}


@pytest.mark.parametrize("version", one_in(len(RELEASES), RELEASES[::-1], others=pytest.mark.long))
def test_its_own_broker_goes_on_from_a_store_that_we_wrote(
    version: str, oracle: Oracle, fixture_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    own = _release(oracle, version)
    root, port = fixture_store(f"v{version}-killed").root, free_ports()
    settings = SETTINGS | {"rocketmqVersion": version, "timerWheelEnable": str(not version.startswith("4.")).lower()}
    conf = tmp_path / "broker.conf"
    with oracle.namesrv() as name_server:
        conf.write_text(own.broker_conf(root, name_server, port, **settings), "utf-8")
        with open_store(root, config=str(conf), read_only=False) as store:
            assert store.recovery is not None
            assert not store.recovery.was_clean
            ours, halves = put_rows(store, version)
            before = listed(store)
        assert ours <= before.keys()
        with own.broker(root, name_server, port=port, **settings) as broker:
            sent = own.send(tmp_path / "sent.jsonl", broker, "TopicA", queues=3, count=30, seed=18)
            assert checked_plans(own, broker, tmp_path, halves) <= {"never"}, "ours have ended"
            waiting = {"TopicDelay": 4, **({"TopicTimer": 4} if has_timer(version) else {})}
            for topic, count in waiting.items():
                wait_until(partial(all_delivered, root, conf, topic, count), f"{count} delivered messages in {topic}")
            topics = sorted(
                {topic for topic, _, _ in before if not topic.startswith(("RMQ_SYS", "rmq_sys", "SCHEDULE"))}
            )
            served = own.consume_all(tmp_path / "served.jsonl", broker, topics, lookUps=60)
    found = {place(line): line for line in served if line["type"] == "message"}
    assert {place(line): line["offsetMsgId"] for line in sent}.items() <= {
        key: line["offsetMsgId"] for key, line in found.items()
    }.items()
    with open_store(root, config=str(conf)) as store:
        assert {key: said(line) for key, line in found.items()} == {
            key: value for key, value in listed(store).items() if key[0] in topics
        }
        for line in served:
            if line["type"] == "lookUp":
                places = {message.commitlog_offset for message in store.query(line["topic"], line["key"], 64)}
                assert places >= set(line["commitLogOffsets"])
                assert line["commitLogOffsets"], f"the broker finds no {line['key']} in {line['topic']}"
    kept = {key: value for key, value in before.items() if key[0] in topics}
    assert {key: said(found[key]) for key in kept} == kept, "it serves all that was there, and all that we wrote"


@pytest.mark.long
def test_a_rebuilt_store_is_recovered_by_a_broker_that_begins_at_the_queues_position(
    oracle: Oracle, fixture_store: Callable[[str], Fixture], tmp_path: Path
) -> None:
    """enableAcceleratedRecovery=true. Nothing tells us the release but what its broker has written into the checkpoint."""
    own = _release(oracle, "5.5.0")
    root, port = fixture_store("v5.5.0").root, free_ports()
    settings = SETTINGS | {"enableAcceleratedRecovery": "true", "timerWheelEnable": "false"}
    conf = tmp_path / "broker.conf"
    with oracle.namesrv() as name_server:
        conf.write_text(own.broker_conf(root, name_server, port, **settings), "utf-8")
        rebuild_queues(str(root), conf=str(conf))
        store = open_store(root, config=str(conf), read_only=False)
        put = store.put_batch(table([{"topic": "TopicA", "body": f"{n}".encode()} for n in range(30)])).to_pylist()
        store.release()  # as if it was killed: abort stays
        with open_store(root, config=str(conf)) as reader:
            before = {key: value for key, value in listed(reader).items() if key[0] == "TopicA"}
        assert len(before) > len(put)
        with own.broker(root, name_server, port=port, **settings) as broker:
            served = own.consume_all(tmp_path / "served.jsonl", broker, ["TopicA"])
    assert {place(line): said(line) for line in served if line["type"] == "message"} == before


def _release(oracle: Oracle, version: str) -> Oracle:
    try:
        return oracle.release(version)
    except OracleError as error:
        pytest.skip(f"RocketMQ {version} could not be had from Maven: {str(error).strip().splitlines()[-1]}")


def has_timer(version: str) -> bool:
    return release_of(parse_broker_version(version)).has_timer


def put_rows(store: MessageStore, version: str) -> tuple[set[Place], int]:
    """Everything that a broker of this release takes: the places, and the queue offset behind our last half message."""
    rows: list[Line] = [
        {
            "topic": topic,
            "body": f"ours {n} ".encode() * (1 + 40 * (n % 3)),
            "tags": f"Tag{n % 3}",
            "keys": f"ours{n} all",
            "properties": [("größe", "🚀")],
        }
        for topic in ("TopicA", "TopicNew")
        for n in range(40)
    ]
    rows.append({"topic": "TopicDelay", "body": b"later", "delay_level": 1})
    if has_timer(version):
        rows.append({"topic": "TopicTimer", "body": b"at its time", "deliver_at": int(time.time() * 1_000) + 2_000})
    placed = store.put_batch(table(rows), compress_body_over=500).to_pylist()
    ended = [
        {"topic": "TopicTransaction", "body": b"ended", "properties": [("plan", "ours")], "transaction_state": state}
        for state in ("commit", "commit", "rollback", "commit")
    ]
    halves = store.put_batch(table(ended), transactional=True, producer_group="Producers").to_pylist()
    if parse_broker_version(version) >= (5, 1):
        store.save_topic(TopicConfig(DEAD, 1, 1))
        dead = InnerMessage(
            topic=DEAD,
            queue_id=0,
            body=b"given up",
            properties={"UNIQ_KEY": "F" * 32},
            born_time_ms=int(time.time() * 1_000),
        )
        placed += store.put_inner([dead]).to_pylist()
    places = {(line["topic"], line["queue_id"], line["queue_offset"]) for line in placed}
    return places, max(line["queue_offset"] for line in halves) + 1


SCHEMA = {
    "topic": pa.string(),
    "body": pa.binary(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "delay_level": pa.int32(),
    "deliver_at": pa.timestamp("ms", "UTC"),
    "transaction_state": pa.string(),
}


def table(rows: list[Line]) -> pa.Table:
    named = {name for row in rows for name in row}
    return pa.table({name: pa.array([row.get(name) for row in rows], SCHEMA[name]) for name in SCHEMA if name in named})


def checked_plans(own: Oracle, broker: RunningBroker, tmp_path: Path, half_end: int) -> set[str]:
    """About what plans the broker has asked the producer, when it has passed our half messages and looked at all once more."""
    with own.client(
        "TransactionSide", tmp_path / "side.jsonl", broker, group="Producers", topic="TopicTransaction"
    ) as side:
        side.until(bool, "ready")
        wait_until(
            lambda: (broker.consumer_offset(HALVES, CHECKER) or 0) >= half_end, "the broker has passed our halves"
        )
        looked = len(side.lines("checked"))
        side.until(lambda lines: len(lines) >= looked + 2, "checked")
        return {line["plan"] for line in side.lines("checked")}


def all_delivered(root: Path, conf: Path, topic: str, count: int) -> bool:
    with open_store(root, config=str(conf)) as store:
        return store.max_offset(topic, 0) >= count


def listed(store: MessageStore) -> dict[Place, tuple[object, ...]]:
    """What we read of every queue."""
    return {
        (topic, queue_id, line["cqOffset"]): (
            line["msgId"],
            line["properties"].get("TAGS"),
            line["properties"].get("KEYS"),
            line.get("plainBodySha256", line["bodySha256"]),
        )
        for topic in store.topics()
        for queue_id in store.queue_ids(topic)
        for line in dump_queue(store, topic, queue_id)
    }


def place(line: Line) -> Place:
    return line["topic"], line["queueId"], line["queueOffset"]


def said(line: Line) -> tuple[object, ...]:
    return line["offsetMsgId"], line["tags"], line["keys"], line["bodySha256"]
