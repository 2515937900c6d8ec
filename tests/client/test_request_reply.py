"""Requests and replies, and recalls, against planned brokers: what is sent, what ends a request, and which wrong input is named."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from spark_mq.client.errors import (
    ClientClosedError,
    ClientSettingError,
    MessageRefusedError,
    ReplyTimeoutError,
    ResponseError,
    TopicRouteNotFoundError,
)
from spark_mq.client.message import Message, MessageExt, decode_records
from spark_mq.client.producer import Producer, by_hash
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import RemotingCommand, RequestCode, make_request, make_response, read_header, write_header
from spark_mq.remoting.messages import RecallHandle, RecallMessageRequest, ReplyMessageRequest
from storage.format.properties import decode_properties
from storage.format.record import COMPRESSED, COMPRESSION_ZLIB, encode_record
from tests.client.planned_cluster import (
    Plan,
    PlannedBroker,
    PlannedCluster,
    hang_up,
    keep_silent,
    planned_cluster,
    refuse,
)
from tests.support.message_builder import make_message
from tests.support.planned_server import Peer

REPLY_TOPIC = "LabCluster_REPLY_TOPIC"


@pytest.fixture
def cluster() -> Iterator[PlannedCluster]:
    with planned_cluster("a", "b") as made:
        made.topics[REPLY_TOPIC] = 1
        yield made


def properties_of(broker: PlannedBroker, command: RemotingCommand) -> dict[str, str]:
    return decode_properties((broker.header(command).properties or "").encode())


def pushed(correlation_id: str, body: bytes, sys_flag: int = 0) -> RemotingCommand:
    """What a broker pushes: a reply to the request of that id."""
    header = ReplyMessageRequest(
        producer_group="answerers",
        topic=REPLY_TOPIC,
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=0,
        sys_flag=sys_flag,
        born_time_ms=1_700_000_000_000,
        flag=7,
        properties=f"UNIQ_KEY\x01R1\x02CORRELATION_ID\x01{correlation_id}\x02MSG_TYPE\x01reply\x02TAGS\x01t\x02",
        born_host="10.0.0.1:1234",
        store_host="10.0.0.2:10911",
        store_time_ms=1_700_000_000_001,
    )
    return make_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, write_header(header), body)


def answer(broker: PlannedBroker, peer: Peer, command: RemotingCommand) -> None:
    """A plan: the message is stored, and somebody replies to it."""
    peer.send(broker.stored(command))
    peer.send(pushed(properties_of(broker, command)["CORRELATION_ID"], b"re: " + bytes(command.body)))


def answer_first(broker: PlannedBroker, peer: Peer, command: RemotingCommand) -> None:
    """A plan: the reply is there before the send's own answer."""
    peer.send(pushed(properties_of(broker, command)["CORRELATION_ID"], b"quick"))
    peer.send(broker.stored(command))


def test_a_request_gets_its_reply_with_all_that_it_says(cluster: PlannedCluster) -> None:
    cluster.plan(answer)
    with Producer(cluster.settings, "G") as producer:
        reply = producer.request(Message("T", b"question", tags="x"), timeout_ms=5_000)
        (command,) = cluster.commands(RequestCode.SEND_MESSAGE_V2)
        told = decode_properties((cluster.sends[0].properties or "").encode())
        assert (told["REPLY_TO_CLIENT"], told["TTL"], told["TAGS"]) == (producer.client_id, "5000", "x")
        assert bytes(command.body) == b"question"
    assert (reply.body, reply.topic, reply.tags, reply.flag, reply.message_id) == (
        b"re: question",
        REPLY_TOPIC,
        "t",
        7,
        "R1",
    )
    assert (reply.born_host, reply.store_host) == ("10.0.0.1:1234", "10.0.0.2:10911")
    assert reply.properties["CORRELATION_ID"] == told["CORRELATION_ID"]
    assert int(reply.properties["ARRIVE_TIME"]) > 1_700_000_000_000


@pytest.mark.parametrize("plan", [answer, answer_first])
def test_many_requests_at_once_get_each_its_own_reply(cluster: PlannedCluster, plan: Plan) -> None:
    cluster.plan(plan)
    with Producer(cluster.settings, "G") as producer:
        futures = [producer.request_async(Message("T", b"%d" % number), timeout_ms=5_000) for number in range(20)]
        bodies = [future.result(10).body for future in futures]
    assert bodies == ([b"re: %d" % number for number in range(20)] if plan is answer else [b"quick"] * 20)
    ids = [decode_properties((header.properties or "").encode())["CORRELATION_ID"] for header in cluster.sends]
    assert len(set(ids)) == 20


def test_a_reply_goes_to_the_request_of_its_id_whatever_came_before(cluster: PlannedCluster) -> None:
    waiting: list[str] = []

    def answer_backwards(broker: PlannedBroker, peer: Peer, command: RemotingCommand) -> None:
        peer.send(broker.stored(command))
        waiting.append(properties_of(broker, command)["CORRELATION_ID"])
        if len(waiting) == 3:
            for correlation_id in reversed(waiting):
                peer.send(pushed(correlation_id, correlation_id.encode()))

    cluster.plan(answer_backwards)
    with Producer(cluster.settings, "G") as producer:
        queue = producer.queues("T")[0]
        futures = [producer.request_async(Message("T", b"%d" % number), 5_000, queue) for number in range(3)]
        replies = [future.result(10) for future in futures]
    assert [reply.body.decode() for reply in replies] == waiting
    assert [reply.properties["CORRELATION_ID"] for reply in replies] == waiting


def test_the_brokers_know_the_client_before_its_first_request_comes(cluster: PlannedCluster) -> None:
    cluster.plan(answer)
    with Producer(cluster.settings, "G") as producer:
        producer.request(Message("T", b"question"), timeout_ms=5_000)
        for broker in cluster.brokers.values():
            codes = [command.code for command in broker.server.commands]
            assert RequestCode.HEART_BEAT in codes[:1]


def test_a_request_goes_to_the_queue_that_a_selector_chooses(cluster: PlannedCluster) -> None:
    cluster.plan(answer)
    with Producer(cluster.settings, "G") as producer:
        for _ in range(3):
            producer.request(Message("T", b"question"), selector=by_hash, arg="one")
    assert len({(header.broker_name, header.queue_id) for header in cluster.sends}) == 1


def test_a_request_without_a_reply_ends_at_its_time_out_and_says_that_it_was_stored(cluster: PlannedCluster) -> None:
    with Producer(cluster.settings, "G") as producer:
        with pytest.raises(ReplyTimeoutError, match="no reply to the request of topic T within 200 ms") as raised:
            producer.request(Message("T", b"question"), timeout_ms=200)
        (header,) = cluster.sends
        told = decode_properties((header.properties or "").encode())
        assert raised.value.correlation_id == told["CORRELATION_ID"]
        broker = cluster.brokers[header.broker_name or ""]
        broker.server.peers[-1].send(pushed(told["CORRELATION_ID"], b"too late"))  # it is dropped, and harms nothing
        cluster.plan(answer)
        assert producer.request(Message("T", b"next"), timeout_ms=5_000).body == b"re: next"


@pytest.mark.parametrize("waits", [True, False])
def test_a_request_that_is_refused_ends_with_the_refusal(cluster: PlannedCluster, waits: bool) -> None:
    cluster.plan(refuse(13, "the message is illegal"))
    with Producer(cluster.settings, "G") as producer:
        ask = producer.request if waits else lambda message: producer.request_async(message).result(5)
        with pytest.raises(ResponseError, match="MESSAGE_ILLEGAL"):
            ask(Message("T", b"question"))
    assert len(cluster.sends) == 1


def test_a_request_to_a_topic_without_a_route_says_so_at_once(cluster: PlannedCluster) -> None:
    del cluster.topics["TBW102"]
    with Producer(cluster.settings, "G") as producer, pytest.raises(TopicRouteNotFoundError, match="TBW102"):
        producer.request(Message("Unknown", b"question"))


def test_a_request_is_tried_at_another_broker_when_the_connection_breaks(cluster: PlannedCluster) -> None:
    cluster.plan(hang_up, "a")
    cluster.plan(answer, "b")
    with Producer(cluster.settings, "G") as producer:
        for _ in range(4):
            assert producer.request(Message("T", b"question"), timeout_ms=5_000).body == b"re: question"


def test_closing_ends_the_requests_that_still_wait(cluster: PlannedCluster) -> None:
    producer = Producer(cluster.settings, "G")
    future = producer.request_async(Message("T", b"question"), timeout_ms=60_000)
    producer.close(1_000)
    with pytest.raises(ClientClosedError):
        future.result(5)


def test_a_compressed_reply_is_read(cluster: PlannedCluster) -> None:
    body = b"reply" * 1_000

    def squeeze(broker: PlannedBroker, peer: Peer, command: RemotingCommand) -> None:
        peer.send(broker.stored(command))
        correlation_id = properties_of(broker, command)["CORRELATION_ID"]
        peer.send(pushed(correlation_id, zlib.compress(body), COMPRESSED | COMPRESSION_ZLIB))

    cluster.plan(squeeze)
    with Producer(cluster.settings, "G") as producer:
        assert producer.request(Message("T", b"question")).body == body


def test_a_program_cannot_give_a_request_s_own_properties(cluster: PlannedCluster) -> None:
    with (
        Producer(cluster.settings, "G") as producer,
        pytest.raises(MessageRefusedError, match="CORRELATION_ID is reserved"),
    ):
        producer.request(Message("T", b"question", properties={"CORRELATION_ID": "mine"}))


# Replies.


def request(broker_name: str = "b", stored_at: str = "127.0.0.1:10911", **properties: str) -> MessageExt:
    """A request as a consumer gets it."""
    asked = {"CLUSTER": "LabCluster", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "1@2", "TTL": "3000", **properties}
    given = {name: value for name, value in asked.items() if value}
    made = make_message("T", 0, 5, 0, body=b"question", properties=given)
    port = int(stored_at.rpartition(":")[2])
    (record,) = decode_records(encode_record(replace(made, store_host=b"\x7f\x00\x00\x01" + port.to_bytes(4, "big"))))
    return MessageExt.of(record, broker_name)


def test_a_reply_goes_to_the_broker_of_its_request_and_names_who_asked(cluster: PlannedCluster) -> None:
    with Producer(ClientSettings(cluster.settings.name_servers, namespace="ns"), "G") as producer:
        for _ in range(5):
            result = producer.reply(request(), b"answer", tags="t", keys=["k"], properties={"mine": "1"})
    assert result.queue.broker_name == "b"
    assert {command.code for command in cluster.commands(RequestCode.SEND_REPLY_MESSAGE_V2)} == {325}
    assert len(cluster.sends) == 5
    header = cluster.sends[0]
    assert (header.topic, header.broker_name, header.queue_id) == (REPLY_TOPIC, "b", 0)
    told = decode_properties((header.properties or "").encode())
    expected = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "1@2", "TTL": "3000", "mine": "1"}
    assert {name: told.get(name) for name in expected} == expected
    assert (told["TAGS"], told["KEYS"]) == ("t", "k")


def test_a_reply_to_a_static_topic_s_request_goes_to_the_broker_that_stored_it(cluster: PlannedCluster) -> None:
    with Producer(cluster.settings, "G") as producer:
        asked = request("__syslo__global__", cluster.brokers["b"].server.address)
        assert {producer.reply(asked, b"answer").queue.broker_name for _ in range(8)} == {"b"}
        elsewhere = request("__syslo__global__", "127.0.0.1:1")  # at an address that no route has: any broker
        assert producer.reply(elsewhere, b"answer").queue.broker_name in ("a", "b")


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_a_message_that_is_no_request_is_not_replied_to(cluster: PlannedCluster, missing: str) -> None:
    told = f"no property {missing}: nobody waits"
    with Producer(cluster.settings, "G") as producer, pytest.raises(MessageRefusedError, match=told):
        producer.reply(request("b", **{missing: ""}), b"answer")
    assert cluster.sends == []


def test_a_reply_to_a_client_that_has_gone_is_tried_once_and_says_so(cluster: PlannedCluster) -> None:
    cluster.plan(refuse(1, "push reply message fail, channel of <1@2> not found."))
    told = r"SEND_REPLY_MESSAGE_V2.*channel of <1@2> not found"
    with Producer(cluster.settings, "G") as producer, pytest.raises(ResponseError, match=told):
        producer.reply(request(), b"answer")
    assert len(cluster.sends) == 1


def test_an_empty_reply_is_refused(cluster: PlannedCluster) -> None:
    with Producer(cluster.settings, "G") as producer, pytest.raises(MessageRefusedError, match="it is empty"):
        producer.reply(request(), b"")


# Recalls.


HANDLE = RecallHandle("T", "b", 1_700_000_000_000, "ID1").text()


def test_a_recall_goes_to_the_broker_that_the_handle_names(cluster: PlannedCluster) -> None:
    def recall(peer: Peer, command: RemotingCommand) -> None:
        peer.send(make_response(command, 0, None, {"msgId": "ID1", "MSG_REGION": "R"}))

    cluster.brokers["b"].server.plan = recall
    with Producer(cluster.settings, "G") as producer:
        assert producer.recall("T", HANDLE) == "ID1"
    (command,) = cluster.brokers["b"].server.until(RequestCode.RECALL_MESSAGE)
    header = read_header(RecallMessageRequest, command)
    assert (header.topic, header.producer_group, header.recall_handle) == ("T", "G", HANDLE)
    assert header.broker_name == "b"


def test_a_recall_that_the_broker_refuses_says_why(cluster: PlannedCluster) -> None:
    def recall(peer: Peer, command: RemotingCommand) -> None:
        code = 16 if command.code == RequestCode.RECALL_MESSAGE else 0
        peer.send(make_response(command, code, "recall failed, operation is forbidden"))

    cluster.brokers["b"].server.plan = recall
    with Producer(cluster.settings, "G") as producer, pytest.raises(ResponseError, match="operation is forbidden"):
        producer.recall("T", HANDLE)


@pytest.mark.parametrize(
    ("topic", "handle", "told"),
    [
        ("T", "", "recall_handle='': it is no handle"),
        ("T", "no handle", "it is no handle"),
        ("T", "\u00e4", "it is no handle"),
        ("T", "djIgVCBiIDEgSUQx", "it is no handle"),  # v2 T b 1 ID1
        ("%RETRY%G", HANDLE, "retry topics and dead letters cannot be recalled"),
        ("%DLQ%G", HANDLE, "retry topics and dead letters cannot be recalled"),
        ("a b", HANDLE, "a b"),
    ],
)
def test_wrong_recalls_are_named_before_anything_is_asked(
    cluster: PlannedCluster, topic: str, handle: str, told: str
) -> None:
    with (
        Producer(cluster.settings, "G") as producer,
        pytest.raises((ClientSettingError, MessageRefusedError)) as raised,
    ):
        producer.recall(topic, handle)
    assert told in str(raised.value)
    assert cluster.asked == []


def test_a_silent_broker_ends_a_request_as_a_send_that_was_not_answered(cluster: PlannedCluster) -> None:
    cluster.plan(keep_silent)
    with Producer(cluster.settings, "G") as producer, pytest.raises(Exception, match="300 ms"):
        producer.request(Message("T", b"question"), timeout_ms=300)
