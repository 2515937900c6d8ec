"""A store goes from a broker of 5.3, 5.4 or 5.5 to ours and back: what one recalled the other does not deliver, and tags are found.

A recall is put by one broker and carried out by the other. Which messages are delivered is read from the records in their own topic.
"""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.message import Message
from spark_mq.client.producer import Producer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RequestCode, make_request, write_header
from spark_mq.remoting.messages import RecallMessageRequest
from storage import open_store
from storage.delay.timer_store import deliver_timed
from storage.tables.topics import TopicConfig
from tests.support.java_broker import Oracle, OracleError, RunningBroker, free_ports
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.long]

MQADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
TOPIC = "Timed"
SETTINGS: dict[str, Any] = {
    "commitlog_file_size_bytes": 65_536,
    "consume_queue_file_size_bytes": 2_000,
    "mappedFileSizeTimerLog": 1_024,
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
}
WAIT_MS = 25_000
"""How long the messages wait. The second broker runs before they are due."""


@dataclass(frozen=True, slots=True)
class Release:
    apaches: Oracle
    ours: Oracle


def release(oracle: Oracle, tmp_path: Path, version: str) -> Release:
    try:
        return Release(oracle.release(version), Oracle(tmp_path, is_ours=True))
    except OracleError as error:
        pytest.skip(f"RocketMQ {version} could not be had from Maven: {str(error).strip().splitlines()[-1]}")


def naming(version: str | None) -> dict[str, Any]:
    """The settings, with the release named or not."""
    return SETTINGS | ({"rocketmqVersion": version} if version else {})


def send_timed_and_recall_one(broker: RunningBroker) -> int:
    """`kept` and `recalled` are due in the same second, `last` two seconds later; returns when `last` is due."""
    broker.make_topic(TOPIC, 1)
    due_ms = (time.time_ns() // 1_000_000 + WAIT_MS) // 1_000 * 1_000
    given = ClientSettings((broker.name_server,))
    with Producer(given, "GTimed") as producer:
        handles = {
            name: producer.send(Message(TOPIC, name.encode(), deliver_time_ms=at_ms)).recall_handle
            for name, at_ms in (("kept", due_ms), ("recalled", due_ms), ("last", due_ms + 2_000))
        }
    handle = handles["recalled"]
    assert handle, "the broker gives a handle to recall it by"
    request = RecallMessageRequest(producer_group="GTimed", topic=TOPIC, recall_handle=handle)
    with closing(BlockingConnection[None](broker.address, given)) as connection:
        connection.send([(make_request(RequestCode.RECALL_MESSAGE, write_header(request)), None)])
        ((_, answer),) = connection.receive()
    assert answer.code == 0, answer.remark
    return due_ms + 2_000


def delivered(root: Path, conf: Path) -> list[str]:
    with open_store(root, config=str(conf)) as store:
        return [message.body.decode() for message in store.get(TOPIC, 0, 0, 32).messages]


def await_last(root: Path, conf: Path) -> list[str]:
    """All that is delivered up to `last`, which has its slot behind that of the others."""
    wait_until(lambda: "last" in delivered(root, conf), "the last message is delivered", 90)
    return delivered(root, conf)


@pytest.mark.parametrize("version", ["5.3.3", "5.4.0", "5.5.0"])
def test_what_a_broker_was_asked_to_recall_is_not_delivered_by_ours(
    version: str, oracle: Oracle, tmp_path: Path
) -> None:
    """By our broker, and by our store's own delivery (`deliver_timed`, of `jobs`) on a copy."""
    both, root, port = release(oracle, tmp_path, version), tmp_path / "store", free_ports()
    with both.apaches.namesrv() as name_server:
        with both.apaches.broker(root, name_server, port=port, **SETTINGS) as broker:
            last_ms = send_timed_and_recall_one(broker)
        shutil.copytree(root, tmp_path / "copy")
        with both.ours.broker(root, name_server, port=port, **SETTINGS) as broker:
            assert delivered(root, broker.conf) == [], "our broker was to come in time"
            found, conf = await_last(root, broker.conf), broker.conf
    assert found == ["kept", "last"]
    here = tmp_path / "copy.conf"
    here.write_text(conf.read_text("utf-8").replace(str(root), str(tmp_path / "copy")), "utf-8")
    with open_store(tmp_path / "copy", config=str(here), read_only=False) as store:
        report = deliver_timed(store, last_ms + 5_000)
    assert (report.delivered, report.cancelled) == (2, 1)
    assert delivered(tmp_path / "copy", here) == ["kept", "last"]


@pytest.mark.parametrize(
    ("version", "is_named"), [("5.3.3", False), ("5.4.0", False), ("5.4.0", True), ("5.5.0", False), ("5.5.0", True)]
)
def test_what_ours_was_asked_to_recall_is_not_delivered_by_a_broker(
    version: str, is_named: bool, oracle: Oracle, tmp_path: Path
) -> None:
    both, root, port = release(oracle, tmp_path, version), tmp_path / "store", free_ports()
    given = naming(version if is_named else None)
    with both.apaches.namesrv() as name_server:
        with both.ours.broker(root, name_server, port=port, **given) as broker:
            send_timed_and_recall_one(broker)
        with both.apaches.broker(root, name_server, port=port, **given) as broker:
            assert delivered(root, broker.conf) == [], "the broker was to come in time"
            found = await_last(root, broker.conf)
    assert found == ["kept", "last"]


def offsets_found(tool: Oracle, name_server: str, topic: str, tag: str) -> list[tuple[int, int]]:
    """Queue and offset of each message that the release's tool finds by its tag."""
    text = tool.java(MQADMIN, "queryMsgByKey", "-t", topic, "-k", tag, "-p", "T", "-n", name_server)
    found = [line.split()[1:3] for line in text.splitlines()[1:]]
    return sorted((int(queue_id), int(offset)) for queue_id, offset in found)


@pytest.mark.parametrize("version", ["5.4.0", "5.5.0"])
def test_tags_are_found_by_both_brokers_in_what_either_wrote(version: str, oracle: Oracle, tmp_path: Path) -> None:
    """Rows of `put_batch`, sends to our broker, sends to theirs; a look-up by our store and by the release's tool at its broker."""
    both, root, port = release(oracle, tmp_path, version), tmp_path / "store", free_ports()
    given = naming(version)
    with both.apaches.namesrv() as name_server:
        with both.apaches.broker(root, name_server, port=port, **given) as broker:
            broker.make_topic("T", 1)
            send_tagged(broker, "theirs")
            conf = tmp_path / "broker.conf"
            shutil.copy(broker.conf, conf)
        with open_store(root, config=str(conf), read_only=False) as store:
            store.save_topic(TopicConfig("T", 1, 1))
            rows = {"topic": ["T", "T"], "body": [b"row", b"row"], "tags": ["blue", "red"], "keys": ["red", "blue"]}
            store.put_batch(pa.table(rows | {"body": pa.array(rows["body"], pa.binary())}))
        with both.ours.broker(root, name_server, port=port, **given) as broker:
            send_tagged(broker, "ours")
        with open_store(root, config=str(conf)) as store:
            by_tag = sorted(
                (message.queue_id, message.queue_offset)
                for message in store.messages_by_key("T", "blue", 32, index_type="T")
            )
        with both.apaches.broker(root, name_server, port=port, **given):
            wait_until(
                lambda: len(offsets_found(both.apaches, name_server, "T", "blue")) >= 3, "the tool finds three", 60
            )
            at_theirs = offsets_found(both.apaches, name_server, "T", "blue")
    assert by_tag == [(0, 0), (0, 2), (0, 4)]
    assert at_theirs == by_tag


def send_tagged(broker: RunningBroker, name: str) -> None:
    with Producer(ClientSettings((broker.name_server,)), "GTagged") as producer:
        for tag, key in (("blue", "red"), ("red", "blue")):
            producer.send(Message("T", name.encode(), tags=tag, keys=(key,)))
