"""What a broker asks a transaction's producer, field by field, and what becomes of halves that are sent again with their key.

SPARK_MQ_TEST_SERVERS=apache asks the same of Apache's broker.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_mq.client.pull_consumer import PullConsumer
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, write_body
from spark_mq.remoting.command import ONEWAY_FLAG
from spark_mq.remoting.consumers import HeartbeatData, ProducerData
from storage.format.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    Message,
    decode_offset_message_id,
    decode_record,
)
from tests.broker.peers import SocketPeers
from tests.support.java_broker import RunningBroker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BORN_MS = 1_700_000_000_000
OURS = True
SETTINGS = {
    "transactionTimeOut": 500,
    "transactionCheckInterval": 500,
    "fileReservedTime": 1_000_000,
}
BROKER, HALF_TOPIC = "broker-lab", "RMQ_SYS_TRANS_HALF_TOPIC"


@pytest.fixture
def peers(broker: RunningBroker) -> Iterator[SocketPeers]:
    made = SocketPeers(broker.address)
    yield made
    made.close()


def half(peers: SocketPeers, topic: str, key: str, *, group: str = "quiet", more: str = "") -> dict[str, str]:
    """The answer's fields to a half message of queue 1."""
    properties = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01{group}\x02{more}"
    told = (group, topic, "TBW102", 4, 1, 4, BORN_MS, 5, properties, 0, "false", 0, "false")
    answer = peers.ask("p", 310, dict(zip("abcdefghijklm", told, strict=True)), b"half")
    assert answer.code == 0, answer.remark
    return dict(answer.ext_fields or {})


def end(peers: SocketPeers, topic: str, sent: dict[str, str], verdict: int) -> int:
    fields = {
        "topic": topic,
        "producerGroup": "quiet",
        "tranStateTableOffset": sent["queueOffset"],
        "commitLogOffset": decode_offset_message_id(sent["msgId"])[2],
        "commitOrRollback": verdict,
        "fromTransactionCheck": "false",
        "msgId": sent["transactionId"],
        "transactionId": sent["transactionId"],
    }
    return peers.ask("p", 37, fields).code


def await_stored(broker: RunningBroker, topic: str, count: int) -> None:
    with PullConsumer(ClientSettings((broker.name_server,)), "lookers") as consumer:
        queues = consumer.queues(topic)
        wait_until(lambda: sum(map(consumer.end_offset, queues)) >= count, f"{count} messages of {topic} are stored")
        assert sum(map(consumer.end_offset, queues)) == count


@pytest.mark.parametrize("first", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
def test_the_commit_of_a_half_whose_key_was_ended_before_is_written(
    broker: RunningBroker, peers: SocketPeers, first: int
) -> None:
    topic, key = f"Again{first}", f"{first:032d}"
    broker.make_topic(topic, 4)
    assert end(peers, topic, half(peers, topic, key), first) == 0
    for number in range(3):
        assert end(peers, topic, half(peers, topic, key), TRANSACTION_COMMIT) == 0
        await_stored(broker, topic, number + 1 + (first == TRANSACTION_COMMIT))


def test_a_producer_is_asked_with_the_fields_and_the_message_of_apaches_broker(
    broker: RunningBroker, peers: SocketPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.make_topic("Asked", 4)
    beat = HeartbeatData(client_id="asked", producers=(ProducerData(group_name="asked"),))
    asked: list[RemotingCommand] = []

    def told(client: str, command: RemotingCommand) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            asked.append(command)

    monkeypatch.setattr(peers, "_told", told)
    peers.ask("asked", 34, {}, write_body(beat))
    key = "A" * 32
    sent = half(peers, "Asked", key, group="asked", more="TAGS\x01t\x02own\x01value\x02")
    wait_until(lambda: len(asked) > 1, "it is asked twice")
    for number, command in enumerate(asked[:2], 1):
        fields, flag, record = dict(command.ext_fields or {}), command.flag, decode_record(command.body)
        assert isinstance(record, Message)
        place, queue_offset = int(fields["commitLogOffset"]), int(fields["tranStateTableOffset"])
        assert queue_offset > int(sent["queueOffset"])
        assert place > decode_offset_message_id(sent["msgId"])[2]
        assert fields == {
            "topic": HALF_TOPIC,
            "commitLogOffset": str(place),
            "tranStateTableOffset": str(queue_offset),
            "msgId": key,
            "transactionId": key,
            "offsetMsgId": f"{sent['msgId'][:16]}{place:016X}",
            "bname": BROKER,
        }
        assert flag == ONEWAY_FLAG
        assert (record.topic, record.queue_id, record.queue_offset) == ("Asked", 1, queue_offset)
        assert (record.commitlog_offset, record.body) == (place, b"half")
        assert record.flag == 5 or number == 2  # Java loses it as it puts the half back
        assert (record.size_bytes, record.born_time_ms, record.reconsume_times) == (len(command.body), BORN_MS, 0)
        assert record.properties == {
            "UNIQ_KEY": key,
            "TRAN_MSG": "true",
            "PGROUP": "asked",
            "TAGS": "t",
            "own": "value",
            "REAL_TOPIC": "Asked",
            "REAL_QID": "1",
            "__transactionId__": key,
            "TRANSACTION_CHECK_TIMES": str(number),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "LabCluster",
            "WAIT": "false",
        }
