"""What clients in other languages write: numbers in quotes, enums as positions, booleans in capitals, zeros left out.

The vector has it as their sources do: rocketmq-client-cpp 2.1 (cpp), rocketmq-client-go 2.1.2 (go) and a batch of its 2.1.0 (go210,
which Apache's 5.3 refuses), NewLife.RocketMQ (net), ali-ons (node), rocketmq-client-erl (erlang), a serializer that leaves out zeros
(zeros). tests/interop/test_other_clients.py runs programs of some. Two are of nobody in particular: one writes names as C# and Go
spell them (pascal), one no more than Apache's servers need, in JSON that only fastjson reads (lean).
tests/interop/test_taken_frames.py says the same of Apache's broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker.broker import Broker
from spark_mq.client.message import decode_records
from spark_mq.remoting import RemotingCommand, decode_frame, encode_frame
from storage.format.arrays import string_hash
from storage.rules.response_codes import ResponseCode
from storage.tables.topics import TopicConfig
from tests.broker.peers import BrokerPeers, FakeClock
from tests.broker.test_broker_duties import running
from tests.support.places import VECTORS

Texts = dict[str, str]
Ask = Callable[[str, bytes], RemotingCommand]
"""The answer to a frame of a client, as its own decoder would get it."""

_LINES = [line.split(" ", 2) for line in (VECTORS / "broker" / "other_clients.txt").read_text("utf-8").splitlines()]
CLIENTS = list(dict.fromkeys(client for client, *_ in _LINES))
FRAMES: dict[str, Texts] = {name: {kind: text for client, kind, text in _LINES if client == name} for name in CLIENTS}
CONSUMERS = [client for client in CLIENTS if "heartbeat" in FRAMES[client]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path / "store", FakeClock()) as running_broker:
        running_broker.parts.store.service.make_topic(TopicConfig("T", 1, 1))
        yield running_broker


@pytest.fixture
def ask(broker: Broker) -> Ask:
    def answered(client: str, frame: bytes) -> RemotingCommand:
        connection = BrokerPeers(broker, FakeClock()).connection(client)
        answer = broker.answer(connection, decode_frame(frame), broker.parts.store.clock())
        assert isinstance(answer, RemotingCommand)
        return decode_frame(b"".join(encode_frame(answer)))

    return answered


def asked(ask: Ask, client: str, code: int, fields: str = "", body: bytes = b"") -> RemotingCommand:
    header = (FRAMES[client]["header"] % (code, fields)).encode()
    frame = (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body
    answer = ask(client, frame)
    assert answer.opaque == decode_frame(frame).opaque
    return answer


def send(ask: Ask, client: str, tags: str, body: bytes, *, is_batch: bool = False) -> RemotingCommand:
    properties = json.dumps(f"TAGS\x01{tags}\x02UNIQ_KEY\x01{body.hex()[:32]}")  # erlang and Go end without \x02
    code = 320 if is_batch and client in ("go", "go210", "erlang") else 310
    return asked(ask, client, code, FRAMES[client]["send"] % (properties, str(is_batch).lower()), body)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_send_is_stored_with_its_properties(ask: Ask, client: str) -> None:
    answer = send(ask, client, "TagA", b"body")
    fields = dict(answer.ext_fields or {})
    assert (answer.code, fields["queueId"], fields["queueOffset"]) == (ResponseCode.SUCCESS, "0", "0")
    place = int(fields["msgId"][-16:], 16)
    (stored,) = decode_records(asked(ask, client, 33, f'"offset":"{place}"{"," * (client == "cpp")}').body)
    assert (stored.tags, bytes(stored.body), stored.topic, stored.flag) == ("TagA", b"body", "T", 0)


@pytest.mark.parametrize("client", ["cpp", "go", "go210", "net", "erlang"])
def test_a_batch_is_as_many_messages(ask: Ask, client: str) -> None:
    def one(body: bytes, properties: bytes) -> bytes:
        rest = bytes(12) + len(body).to_bytes(4, "big") + body + len(properties).to_bytes(2, "big") + properties
        return (4 + len(rest)).to_bytes(4, "big") + rest

    answer = send(ask, client, "TagA", one(b"1", b"KEYS\x01k") + one(b"2", b""), is_batch=True)
    assert answer.code == ResponseCode.SUCCESS
    ends = asked(ask, client, 30, f'"topic":"T","queueId":0{"," * (client == "cpp")}')
    assert (ends.ext_fields or {})["offset"] == "2"


@pytest.mark.parametrize("client", CONSUMERS)
def test_a_heartbeat_makes_a_consumer_that_gets_its_tags_alone(ask: Ask, client: str) -> None:
    comma = "," * (client == "cpp")
    for tags, body in (("TagB", b"not wanted"), ("TagA", b"wanted")):
        send(ask, client, tags, body)
    assert asked(ask, client, 34, "", FRAMES[client]["heartbeat"].encode()).code == ResponseCode.SUCCESS
    listed = asked(ask, client, 38, f'"consumerGroup":"team"{comma}')
    assert json.loads(bytes(listed.body)) == {"consumerIdList": [f"{client}@1"]}
    known = json.loads(bytes(asked(ask, client, 203, f'"consumerGroup":"team"{comma}').body))
    told = known["consumeType"], known["messageModel"], known["consumeFromWhere"]
    assert told == ("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET")
    assert known["subscriptionTable"]["T"]["codeSet"] == [string_hash("TagA")]
    pulled = asked(ask, client, 11, FRAMES[client]["pull"])
    assert [bytes(record.body) for record in decode_records(pulled.body)] == [b"wanted"]
    fields: dict[str, Any] = dict(pulled.ext_fields or {})
    assert (fields["nextBeginOffset"], fields["minOffset"], fields["maxOffset"]) == ("2", "0", "2")


@pytest.mark.parametrize("client", [client for client in CLIENTS if "lock" in FRAMES[client]])
def test_queues_are_locked(ask: Ask, client: str) -> None:
    body = f"{FRAMES[client]['lock']}\n".encode()
    locked = json.loads(bytes(asked(ask, client, 41, "", body).body))
    assert locked == {"lockOKMQSet": [{"brokerName": "b", "queueId": 0, "topic": "T"}]}
    assert asked(ask, client, 42, "", body).code == ResponseCode.SUCCESS


def test_a_producer_leaves_with_a_blank_name_of_the_group_that_it_is_not_in(ask: Ask, broker: Broker) -> None:
    beat = b'{"clientID":"cpp@1","producerDataSet":[{"groupName":"makers"}]}\n'
    assert asked(ask, "cpp", 34, "", beat).code == ResponseCode.SUCCESS
    left = asked(ask, "cpp", 35, '"clientID":"cpp@1","producerGroup":"makers","consumerGroup":"",')
    assert left.code == ResponseCode.SUCCESS
    assert "" not in broker.parts.store.groups


def test_code_320_alone_makes_no_batch(ask: Ask) -> None:
    sent = asked(ask, "node", 320, FRAMES["node"]["send"] % ('""', '"1"'), b"not a batch")
    assert sent.code == ResponseCode.SUCCESS
    assert (asked(ask, "node", 30, '"topic":"T","queueId":0').ext_fields or {})["offset"] == "1"


def test_a_topic_is_not_made_of_a_template_that_is_not_named(ask: Ask) -> None:
    sent = asked(ask, "lean", 310, FRAMES["lean"]["send"].replace('"T"', '"New"') % ('""', "false"), b"x")
    assert sent.code == ResponseCode.TOPIC_NOT_EXIST


def test_who_names_no_client_leaves_nothing(ask: Ask, broker: Broker) -> None:
    asked(ask, "node", 34, "", FRAMES["node"]["heartbeat"].encode())
    assert asked(ask, "zeros", 35, '"producerGroup":"nobody"').code == ResponseCode.SUCCESS
    assert "team" in broker.parts.clients.consumers.groups


def test_a_commit_without_an_offset_is_refused(ask: Ask) -> None:
    asked(ask, "lean", 34, "", FRAMES["lean"]["heartbeat"].encode())
    send(ask, "lean", "TagA", b"x")
    refused = asked(ask, "lean", 11, FRAMES["lean"]["pull"].replace('"sysFlag":4', '"sysFlag":5'))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    place = '"consumerGroup":"team","topic":"T","queueId":0,"setZeroIfNotFound":false'
    assert asked(ask, "lean", 14, place).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize("kind", ['"0"', '"x"', '""'])
def test_a_topic_of_an_unknown_filter_type_is_not_made(ask: Ask, kind: str) -> None:
    fields = f'"topic":"New","readQueueNums":1,"writeQueueNums":1,"perm":6,"order":false,"topicFilterType":{kind}'
    assert asked(ask, "lean", 17, fields).code == ResponseCode.SYSTEM_ERROR
    assert asked(ask, "lean", 351, '"topic":"New"').code == ResponseCode.TOPIC_NOT_EXIST


def test_a_topic_is_made_without_a_word_of_a_template(ask: Ask) -> None:
    fields = '"topic":"New","readQueueNums":1,"writeQueueNums":1,"perm":6,"topicFilterType":"SINGLE_TAG"'
    assert asked(ask, "lean", 17, fields).code == ResponseCode.SUCCESS
    assert asked(ask, "lean", 351, '"topic":"New"').code == ResponseCode.SUCCESS
