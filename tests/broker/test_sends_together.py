"""Sends that are begun before any is asked for its answer are one append, and each is answered as if it had come alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker.broker import Broker
from spark_mq.broker.requests import ClientConnection
from spark_mq.remoting import RemotingCommand, RequestCode, make_request, write_header
from spark_mq.remoting.messages import BatchedMessage, SendMessageRequest, encode_batch
from storage import open_store
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.tables.topics import TopicConfig

CLIENT = ClientConnection(bytes((127, 0, 0, 1)) + (4711).to_bytes(4, "big"), "127.0.0.1:4711")
NOW_MS = 1_800_000_000_000


@pytest.fixture(params=["SYNC_FLUSH", "ASYNC_FLUSH"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    store = open_store(tmp_path / "store", read_only=False, create=True, flush_disk_type=request.param)
    store.save_topic(TopicConfig("Orders", 4, 4))
    with PutService(store) as service, Broker(service) as made:
        yield made


def send(body: bytes, *, queue_id: int = 0, topic: str = "Orders", flag: int = 0, **properties: str) -> RemotingCommand:
    header = SendMessageRequest(
        producer_group="P",
        topic=topic,
        default_topic="none",
        default_topic_queue_count=4,
        queue_id=queue_id,
        sys_flag=0,
        born_time_ms=NOW_MS,
        flag=flag,
        properties="".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
        is_batch=False,
    )
    code = RequestCode.SEND_MESSAGE_V2
    return make_request(code, write_header(header, code), body)


def batch(*bodies: bytes) -> RemotingCommand:
    whole = encode_batch([BatchedMessage(body, b"UNIQ_KEY\x01%b\x02" % body) for body in bodies])
    made = send(whole)
    return made._replace(code=RequestCode.SEND_BATCH_MESSAGE, ext_fields={**(made.ext_fields or {}), "m": "true"})


def together(broker: Broker, *commands: RemotingCommand) -> list[RemotingCommand]:
    begun: list[Any] = [broker.begin(CLIENT, command, NOW_MS) for command in commands]
    return [each() if callable(each) else each for each in begun]


def appends(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each append had, from now on."""
    service, counts = broker.parts.store.service, []
    append: Callable[..., Any] = service._append_inner

    def counted(messages: Any) -> Any:
        counts.append(len(messages))
        return append(messages)

    monkeypatch.setattr(service, "_append_inner", counted)
    return counts


def test_they_are_one_append(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = appends(broker, monkeypatch)
    answers = together(broker, send(b"a"), send(b"b", queue_id=1), batch(b"c", b"d"), send(b"e", UNIQ_KEY="own"))
    assert counts == [5]
    fields = [answer.ext_fields or {} for answer in answers]
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 4
    assert [(found["queueId"], found["queueOffset"]) for found in fields] == [
        ("0", "0"),
        ("1", "0"),
        ("0", "1"),
        ("0", "3"),
    ]
    assert fields[2]["msgId"].count(",") == 1
    assert fields[3]["transactionId"] == "own"
    with broker.parts.store.service.exclusive() as store:
        assert [message.body for message in store.get("Orders", 0, 0, 10).messages] == [b"a", b"c", b"d", b"e"]
        assert store.get("Orders", 1, 0, 10).messages[0].body == b"b"
        assert [message.queue_offset for message in store.messages_by_key("Orders", "own")] == [3]


def test_one_that_is_refused_is_refused_alone(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = appends(broker, monkeypatch)
    answers = together(broker, send(b"a"), send(b"b", topic="Absent"), send(b"c", TIMER_DELIVER_MS="x"), send(b"d"))
    assert [answer.code for answer in answers] == [
        ResponseCode.SUCCESS,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SUCCESS,
    ]
    assert counts == [2]


def test_what_columns_must_make_goes_with_the_others(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = appends(broker, monkeypatch)
    answers = together(
        broker, send(b"a"), send(b"later", DELAY="1"), send(b"half", TRAN_MSG="true", PGROUP="P"), send(b"b")
    )
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 4
    assert counts == [4]
    with broker.parts.store.service.exclusive() as store:
        assert [message.body for message in store.get("Orders", 0, 0, 10).messages] == [b"a", b"b"]
        assert [message.body for message in store.get("SCHEDULE_TOPIC_XXXX", 0, 0, 10).messages] == [b"later"]


def test_what_is_not_a_send_is_answered_at_once(broker: Broker) -> None:
    (answer,) = together(broker, make_request(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert answer.code == ResponseCode.SUCCESS
    (bad,) = together(broker, make_request(RequestCode.SEND_MESSAGE_V2, {}))
    assert bad.code == ResponseCode.SYSTEM_ERROR
