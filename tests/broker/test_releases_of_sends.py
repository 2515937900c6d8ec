"""What a broker makes of a request depends on the release that is named: batches, priorities, deletions of timer messages, groups."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from spark_mq.broker.broker import Broker
from spark_mq.broker.put_plan import PutRules, plan_batch, plan_message
from spark_mq.broker.requests import ClientConnection
from spark_mq.remoting import Header, RemotingCommand, RequestCode, make_request, write_body, write_header
from spark_mq.remoting.administration import CreateTopicRequest
from spark_mq.remoting.messages import BatchedMessage, RecallMessageRequest, SendMessageRequest, encode_batch
from storage import StoreConfig, open_store
from storage.errors import PutRefusedError
from storage.format.record import Message
from storage.format.typed_json import SubscriptionGroupConfig
from storage.rules.delays import SCHEDULE_TOPIC
from storage.rules.inner_messages import InnerMessage
from storage.rules.priorities import PRIORITY, by_priority
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.settings.load import parse_config
from storage.tables.topics import TopicConfig

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("5.3.3", {"UNIQ_KEY": "of-the-batch", "WAIT": "true", "MSG_REGION": "R", "CLUSTER": "DefaultCluster"}),
        ("5.4.0", {"UNIQ_KEY": "own", "WAIT": "true"}),
        ("5.5.0", {"UNIQ_KEY": "own", "WAIT": "true"}),
    ],
)
def test_records_of_a_batch_have_the_requests_properties_up_to_5_3(version: str, expected: dict[str, str]) -> None:
    """MessageExtEncoder.encode(MessageExtBatch)."""
    body = encode_batch([BatchedMessage(b"1", b"UNIQ_KEY\x01own\x02WAIT\x01true\x02", 0)])
    properties = {"UNIQ_KEY": "of-the-batch", "MSG_REGION": "R"}
    message = InnerMessage(topic="T", queue_id=0, body=body, properties=properties, born_time_ms=1)
    rules = PutRules(config=StoreConfig().of_version(version), host=HOST, now_ms=1)
    (encoded,) = plan_batch(message, TopicConfig("T"), rules).messages
    assert encoded.properties == expected


@pytest.mark.parametrize(("version", "topic"), [("5.3.3", SCHEDULE_TOPIC), ("5.5.0", None), (None, None)])
def test_a_half_message_with_a_level_is_parked_for_a_release_whose_clients_send_it(
    version: str | None, topic: str | None
) -> None:
    """HookUtils.handleScheduleMessage, DefaultMQProducerImpl.ensureNotDelayedForTransactional; a time is refused for each release."""
    config = StoreConfig() if version is None else StoreConfig().of_version(version)
    rules = PutRules(config=config, host=HOST, now_ms=1)
    half = {"UNIQ_KEY": "k", "TRAN_MSG": "true", "PGROUP": "p"}

    def put_topic(**delay: str) -> str | None:
        message = InnerMessage(topic="T", queue_id=0, body=b"b", properties=half | delay, born_time_ms=1)
        try:
            return plan_message(message, TopicConfig("T"), rules, str).message.topic
        except PutRefusedError:
            return None

    assert put_topic(DELAY="3") == topic
    assert put_topic(TIMER_DELIVER_MS="5000") is None


@pytest.mark.parametrize(
    ("properties", "queue_id", "keeps"),
    [
        ({PRIORITY: "0"}, 0, True),
        ({PRIORITY: "2"}, 2, True),
        ({PRIORITY: "9"}, 3, True),
        ({PRIORITY: "+1"}, 1, True),
        ({PRIORITY: "-1"}, 2, True),
        ({PRIORITY: "-0"}, 0, True),
        ({PRIORITY: "0" * 5_000 + "1"}, 1, True),
        ({PRIORITY: "1 "}, 2, True),
        ({PRIORITY: ""}, 2, True),
        ({PRIORITY: "high"}, 2, True),
        ({PRIORITY: "2147483648"}, 2, True),
        ({PRIORITY: "0", "DELAY": "3"}, 2, False),
        ({PRIORITY: "0", "TIMER_DELIVER_MS": "3"}, 2, False),
        ({PRIORITY: "0", "__SHARDINGKEY": "k"}, 2, False),
        ({PRIORITY: "0", "TRAN_MSG": "true"}, 2, False),
        ({PRIORITY: "0", "TRAN_MSG": "false"}, 0, True),
    ],
)
def test_a_priority_is_the_queue_of_a_message_of_no_other_type(
    properties: dict[str, str], queue_id: int, keeps: bool
) -> None:
    """SendMessageProcessor.sendMessage, TopicMessageType.parseFromMessageProperty."""
    found = by_priority(InnerMessage(topic="T", queue_id=2, body=b"m", properties=properties, born_time_ms=1), 4)
    assert (found.queue_id, PRIORITY in found.properties) == (queue_id, keeps)


NOW_MS = 1_800_000_000_000
ANN = ClientConnection(bytes([127, 0, 0, 1, 0, 0, 0, 9]), "127.0.0.1:9")


@contextmanager
def serving(root: Path, settings: str) -> Iterator[tuple[Broker, PutService]]:
    config = parse_config(f"brokerName=a\nrecallMessageEnable=true\n{settings}".encode())
    store = open_store(root, config=config, read_only=False, create=True)
    store.save_topic(TopicConfig("T", 4, 4))
    with PutService(store) as service, Broker(service) as broker:
        broker._messages.sender._clock = lambda: NOW_MS
        yield broker, service


def asked(broker: Broker, code: RequestCode, header: Header | None, body: bytes = b"") -> RemotingCommand:
    found = broker.answer(ANN, make_request(code, {} if header is None else write_header(header), body), NOW_MS)
    assert isinstance(found, RemotingCommand)
    return found


def messages(service: PutService) -> list[Message]:
    with service.exclusive() as store:
        places = [place for offsets, _ in store.log.walk(0) for place in offsets.tolist()]
        return [store.message_by_commitlog_offset(place) for place in places]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("rocketmqVersion=5.3.3", ["T+unique"]),
        ("rocketmqVersion=5.5.0", ["unique"]),
        ("", ["T+unique", "unique"]),
        ("rocketmqVersion=5.5.0\nappendTopicForTimerDeleteKey=true", ["T+unique"]),
        ("appendTopicForTimerDeleteKey=true", ["T+unique"]),
    ],
)
def test_a_recall_names_the_message_as_the_release_compares_it(
    settings: str, expected: list[str], tmp_path: Path
) -> None:
    """TimerMessageStore.buildDeleteKey."""
    handle = base64.urlsafe_b64encode(f"v1 T a {NOW_MS + 60_000} unique".encode()).decode()
    recall = RecallMessageRequest(producer_group="P", topic="T", recall_handle=handle)
    with serving(tmp_path, settings) as (broker, service):
        answer = asked(broker, RequestCode.RECALL_MESSAGE, recall)
        assert (answer.code, (answer.ext_fields or {}).get("msgId")) == (0, "unique")
        assert [message.properties["TIMER_DEL_UNIQKEY"] for message in messages(service)] == expected


@pytest.mark.parametrize(("stores", "count"), [("true", 1), ("false", 0)])
def test_a_reply_is_stored_unless_the_broker_shall_not(stores: str, count: int, tmp_path: Path) -> None:
    """ReplyMessageProcessor: it is pushed in both cases, here to a client that is not there."""
    reply = SendMessageRequest(
        producer_group="P",
        topic="T",
        queue_id=1,
        sys_flag=0,
        born_time_ms=1,
        flag=0,
        properties="UNIQ_KEY\x01R\x02REPLY_TO_CLIENT\x01zoe@id\x02",
    )
    with serving(tmp_path, f"storeReplyMessageEnable={stores}") as (broker, service):
        answer = asked(broker, RequestCode.SEND_REPLY_MESSAGE, reply, b"answer")
        assert (answer.code, answer.remark) == (1, "push reply message fail, channel of <zoe@id> not found.")
        assert len(messages(service)) == count
        refused = asked(broker, RequestCode.SEND_REPLY_MESSAGE, replace(reply, queue_id=9), b"answer")
        assert (refused.remark or "").startswith("request queueId[9] is illegal")
        assert len(messages(service)) == count


@pytest.mark.parametrize(("version", "queue_id"), [("5.3.3", 1), ("5.4.0", 3)])
def test_a_send_is_answered_with_the_queue_of_its_priority(version: str, queue_id: int, tmp_path: Path) -> None:
    header = SendMessageRequest(
        producer_group="P",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=1,
        sys_flag=0,
        born_time_ms=NOW_MS,
        flag=0,
        properties=f"UNIQ_KEY\x01u\x02{PRIORITY}\x017",
    )
    with serving(tmp_path, f"rocketmqVersion={version}") as (broker, service):
        answer = asked(broker, RequestCode.SEND_MESSAGE, header, b"m")
        assert (answer.code, (answer.ext_fields or {})["queueId"]) == (0, str(queue_id))
        assert [(message.queue_id, message.properties[PRIORITY]) for message in messages(service)] == [(queue_id, "7")]


@pytest.mark.parametrize(("version", "longest"), [("5.3.3", 255), ("5.4.0", 120)])
def test_a_new_group_is_as_long_as_the_release_allows(version: str, longest: int, tmp_path: Path) -> None:
    """TopicValidator.validateGroup. A group that is there stays."""
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    with serving(tmp_path, f"rocketmqVersion={version}") as (broker, service):
        service.save_group(SubscriptionGroupConfig("O" * 255))
        for group, is_taken in (("G" * longest, True), ("H" * (longest + 1), False), ("O" * 255, True)):
            assert (broker.parts.store.find_group(group) is not None) is is_taken
        saved = asked(broker, code, None, write_body(SubscriptionGroupConfig("K" * longest)))
        refused = asked(broker, code, None, write_body(SubscriptionGroupConfig("L" * (longest + 1))))
        assert (saved.code, refused.code) == (ResponseCode.SUCCESS, ResponseCode.INVALID_PARAMETER)
        assert f"the limit is {longest}" in (refused.remark or "")
        assert sorted(service.groups) == ["G" * longest, "K" * longest, "O" * 255]


def new_topic(topic: str, attributes: str) -> CreateTopicRequest:
    return CreateTopicRequest(
        topic=topic,
        default_topic="TBW102",
        read_queue_count=1,
        write_queue_count=1,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        attributes=attributes,
    )


@pytest.mark.parametrize(
    ("version", "message_type", "is_taken"),
    [("5.3.3", "FIFO", True), ("5.3.3", "PRIORITY", False), ("5.4.0", "PRIORITY", True), ("5.5.0", "LITE", False)],
)
def test_a_topic_may_have_the_message_types_of_the_release(
    version: str, message_type: str, is_taken: bool, tmp_path: Path
) -> None:
    """TopicMessageType.topicMessageTypeSet. Our broker has no lite topics."""
    header = new_topic("Typed", f"+message.type={message_type}")
    with serving(tmp_path, f"rocketmqVersion={version}") as (broker, service):
        answer = asked(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert (answer.code == ResponseCode.SUCCESS) == is_taken, answer.remark
        made = service.settings.topics.topics.get("Typed")
        assert (made is not None and made.attributes == {"message.type": message_type}) == is_taken


def test_a_topic_with_batch_queues_is_refused_by_name(tmp_path: Path) -> None:
    """Departure: Java makes it. With it the store would be written no more."""
    header = new_topic("Batches", "+queue.type=BatchCQ")
    with serving(tmp_path, "") as (broker, service):
        answer = asked(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "queue.type=BatchCQ" in (answer.remark or "")
        assert "Batches" not in service.settings.topics.topics
