"""What clients in other languages write: numbers in quotes, enums as positions, booleans in capitals, zeros left out.

The vector has it as their sources do: rocketmq-client-cpp 2.1 (cpp), rocketmq-client-go 2.1 (go), NewLife.RocketMQ (net), ali-ons
(node), rocketmq-client-erl (erlang), a serializer that leaves out zeros (zeros). tests/interop/test_other_clients.py runs programs
of the first two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker.broker import Broker
from spark_mq.client.message import decode_records
from spark_mq.remoting import RemotingCommand, decode_frame, encode_frame
from storage.format.java_hash import string_hash
from storage.rules.response_codes import ResponseCode
from tests.broker.peers import BrokerPeers, FakeClock
from tests.broker.test_broker_duties import running
from tests.support.places import VECTORS

Texts = dict[str, str]

_LINES = [line.split(" ", 2) for line in (VECTORS / "broker" / "other_clients.txt").read_text("utf-8").splitlines()]
CLIENTS = list(dict.fromkeys(client for client, *_ in _LINES))
FRAMES: dict[str, Texts] = {name: {kind: text for client, kind, text in _LINES if client == name} for name in CLIENTS}
CONSUMERS = [client for client in CLIENTS if "heartbeat" in FRAMES[client]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path / "store", FakeClock()) as running_broker:
        yield running_broker


def asked(broker: Broker, client: str, code: int, fields: str = "", body: bytes = b"") -> RemotingCommand:
    """The answer to a frame of that client, as its own decoder would get it."""
    header = (FRAMES[client]["header"] % (code, fields)).encode()
    frame = (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body
    command = decode_frame(frame)
    connection = BrokerPeers(broker, FakeClock()).connection(client)
    answer = broker.answer(connection, command, broker.parts.clock())
    assert isinstance(answer, RemotingCommand)
    assert answer.opaque == command.opaque
    return decode_frame(b"".join(encode_frame(answer)))


def send(broker: Broker, client: str, tags: str, body: bytes, *, is_batch: bool = False) -> RemotingCommand:
    properties = json.dumps(f"TAGS\x01{tags}\x02UNIQ_KEY\x01{body.hex()[:32]}")  # erlang and Go end without \x02
    code = 320 if is_batch and client in ("go", "erlang") else 310
    return asked(broker, client, code, FRAMES[client]["send"] % (properties, str(is_batch).lower()), body)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_send_is_stored_with_its_properties(broker: Broker, client: str) -> None:
    answer = send(broker, client, "TagA", b"body")
    fields = dict(answer.ext_fields or {})
    assert (answer.code, fields["queueId"], fields["queueOffset"]) == (ResponseCode.SUCCESS, "0", "0")
    place = int(fields["msgId"][-16:], 16)
    (stored,) = decode_records(asked(broker, client, 33, f'"offset":"{place}"{"," * (client == "cpp")}').body)
    assert (stored.tags, bytes(stored.body), stored.topic, stored.flag) == ("TagA", b"body", "T", 0)


@pytest.mark.parametrize("client", ["cpp", "go", "net", "erlang"])
def test_a_batch_is_as_many_messages(broker: Broker, client: str) -> None:
    def one(body: bytes, properties: bytes) -> bytes:
        rest = bytes(12) + len(body).to_bytes(4, "big") + body + len(properties).to_bytes(2, "big") + properties
        return (4 + len(rest)).to_bytes(4, "big") + rest

    answer = send(broker, client, "TagA", one(b"1", b"KEYS\x01k") + one(b"2", b""), is_batch=True)
    assert answer.code == ResponseCode.SUCCESS
    ends = asked(broker, client, 30, f'"topic":"T","queueId":0{"," * (client == "cpp")}')
    assert (ends.ext_fields or {})["offset"] == "2"


@pytest.mark.parametrize("client", CONSUMERS)
def test_a_heartbeat_makes_a_consumer_that_gets_its_tags_alone(broker: Broker, client: str) -> None:
    comma = "," * (client == "cpp")
    for tags, body in (("TagB", b"not wanted"), ("TagA", b"wanted")):
        send(broker, client, tags, body)
    assert asked(broker, client, 34, "", FRAMES[client]["heartbeat"].encode()).code == ResponseCode.SUCCESS
    listed = asked(broker, client, 38, f'"consumerGroup":"team"{comma}')
    assert json.loads(bytes(listed.body)) == {"consumerIdList": [f"{client}@1"]}
    known = json.loads(bytes(asked(broker, client, 203, f'"consumerGroup":"team"{comma}').body))
    told = known["consumeType"], known["messageModel"], known["consumeFromWhere"]
    assert told == ("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET")
    assert known["subscriptionTable"]["T"]["codeSet"] == [string_hash("TagA")]
    pulled = asked(broker, client, 11, FRAMES[client]["pull"])
    assert [bytes(record.body) for record in decode_records(pulled.body)] == [b"wanted"]
    fields: dict[str, Any] = dict(pulled.ext_fields or {})
    assert (fields["nextBeginOffset"], fields["minOffset"], fields["maxOffset"]) == ("2", "0", "2")


def test_queues_are_locked_by_a_body_of_jsoncpp(broker: Broker) -> None:
    body = b'{"clientId":"cpp@1","consumerGroup":"team","mqSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}\n'
    locked = json.loads(bytes(asked(broker, "cpp", 41, "", body).body))
    assert locked == {"lockOKMQSet": [{"brokerName": "b", "queueId": 0, "topic": "T"}]}
    assert asked(broker, "cpp", 42, "", body).code == ResponseCode.SUCCESS


def test_a_producer_leaves_with_a_blank_name_of_the_group_that_it_is_not_in(broker: Broker) -> None:
    beat = b'{"clientID":"cpp@1","producerDataSet":[{"groupName":"makers"}]}\n'
    assert asked(broker, "cpp", 34, "", beat).code == ResponseCode.SUCCESS
    left = asked(broker, "cpp", 35, '"clientID":"cpp@1","producerGroup":"makers","consumerGroup":"",')
    assert left.code == ResponseCode.SUCCESS
    assert "" not in broker.parts.groups
