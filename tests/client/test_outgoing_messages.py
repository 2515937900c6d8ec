"""A program's message as it is sent: properties, ids, compression, batches; and what is refused before it is sent."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from spark_mq.client.errors import MessageRefusedError
from spark_mq.client.message import Message
from spark_mq.client.outgoing_messages import MessageMaker, OutgoingMessage, UniqueIds, month_bounds
from spark_mq.client.settings import ProducerSettings
from spark_mq.remoting.messages import decode_batch, encode_batch
from storage.format.properties import EARLIER_LIFE, decode_properties
from storage.format.record import decompress
from tests.client.java_vectors import java_says

BODY = b"body"


def maker(namespace: str | None = None, **settings: Any) -> MessageMaker:
    ids = itertools.count(1)
    return MessageMaker(ProducerSettings(**settings), lambda: f"ID{next(ids)}", "G", namespace)


def properties(message: OutgoingMessage) -> Mapping[str, str]:
    assert message.properties.endswith("\x02")
    return decode_properties(message.properties.encode())


def test_a_plain_message_has_an_id_and_waits_to_be_stored() -> None:
    made = maker().message(Message("T", BODY))
    told = "UNIQ_KEY\x01ID1\x02WAIT\x01true\x02"
    assert made == OutgoingMessage("T", BODY, told, 0, 0, "ID1", origin=Message("T", BODY))


def test_everything_that_a_program_says_is_a_property() -> None:
    message = Message(
        "T",
        BODY,
        tags="TagA",
        keys=("k1", "k2"),
        properties={"größe": "10 µm", "__SHARDINGKEY": "s"},
        flag=-7,
        delay_level=3,
        wait_stored=False,
    )
    made = maker().message(message)
    assert made.flag == -7
    assert properties(made) == {
        "UNIQ_KEY": "ID1",
        "WAIT": "false",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "größe": "10 µm",
        "__SHARDINGKEY": "s",
    }


def test_a_deliver_time_is_a_property() -> None:
    made = maker().message(Message("T", BODY, deliver_time_ms=1_800_000_000_000))
    assert properties(made)["TIMER_DELIVER_MS"] == "1800000000000"


def test_with_a_namespace_topic_and_properties_have_it() -> None:
    made = maker("ns").message(Message("T", BODY))
    assert made.topic == "ns%T"
    assert properties(made)["INSTANCE_ID"] == "ns"


@pytest.mark.parametrize(("name", "flag"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
def test_a_large_body_is_compressed(name: str, flag: int) -> None:
    body = b"0123456789abcdef" * 256
    made = maker(compression=name).message(Message("T", body))
    assert made.sys_flag == flag
    assert len(made.body) < len(body)
    assert decompress(made.body, made.sys_flag) == body


def test_a_body_below_the_limit_is_not_and_compression_can_be_left_out() -> None:
    assert maker().message(Message("T", bytes(4_095))).sys_flag == 0
    assert maker().message(Message("T", bytes(4_096))).sys_flag == 0x301
    assert maker(compress_over_bytes=None).message(Message("T", bytes(5_000))).sys_flag == 0


def test_a_batch_is_java_s_batch() -> None:
    """MessageDecoder.encodeMessages: an item from its body, properties and flag; here each with properties in Java's order."""
    (said,) = java_says("batch")
    made = maker().batch(
        [
            Message("T", base64.b64decode(each["body"]), flag=each["flag"], **own(each["properties"]))
            for each in said["messages"]
        ]
    )
    theirs = decode_batch(bytes.fromhex(said["body"]))
    ours = decode_batch(made.body)
    assert [(item.body, item.flag) for item in ours] == [(item.body, item.flag) for item in theirs]
    for item, other in zip(ours, theirs, strict=True):
        assert decode_properties(item.raw_properties) | {"UNIQ_KEY": ""} == decode_properties(other.raw_properties) | {
            "UNIQ_KEY": ""
        }
    assert encode_batch(theirs) == bytes.fromhex(said["body"])


def own(text: str) -> dict[str, Any]:
    """What a program says to get these properties."""
    found = decode_properties(text.encode())
    mine = {name: value for name, value in found.items() if name not in ("TAGS", "KEYS", "UNIQ_KEY", "WAIT")}
    return {"tags": found.get("TAGS"), "keys": found.get("KEYS", "").split(), "properties": mine}


def test_messages_and_envelope_of_a_batch_have_ids_of_their_own() -> None:
    made = maker("ns").batch([Message("T", b"1"), Message("T", b"2")])
    assert made.topic == "ns%T"
    assert made.is_batch
    assert made.message_id == "ID1,ID2"
    assert properties(made) == {"WAIT": "true", "UNIQ_KEY": "ID3", "INSTANCE_ID": "ns"}
    assert [decode_properties(item.raw_properties)["UNIQ_KEY"] for item in decode_batch(made.body)] == ["ID1", "ID2"]


def test_a_batch_is_never_compressed() -> None:
    made = maker().batch([Message("T", bytes(5_000))] * 2)
    assert made.sys_flag == 0
    assert [item.body for item in decode_batch(made.body)] == [bytes(5_000)] * 2


def test_a_half_says_its_group_and_drops_a_delay_level() -> None:
    """DefaultMQProducerImpl.sendMessageInTransaction."""
    message = Message("T", BODY, delay_level=3, properties={"a": "b", "CHECK_IMMUNITY_TIME_IN_SECONDS": "30"})
    made = maker().half(message)
    assert made.sys_flag == 4
    assert properties(made) == {
        "UNIQ_KEY": "ID1",
        "WAIT": "true",
        "TRAN_MSG": "true",
        "PGROUP": "G",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "30",
        "a": "b",
    }


def test_a_retry_that_a_consumer_hands_on_keeps_its_properties_and_says_its_times_in_the_header() -> None:
    given = {"UNIQ_KEY": "first", "DELAY": "4", "RETRY_TOPIC": "T", "RECONSUME_TIME": "2", "MAX_RECONSUME_TIMES": "16"}
    made = maker().handed_on(Message("%RETRY%G", BODY, properties=given))
    assert (made.message_id, made.reconsume_times, made.max_reconsume_times) == ("first", 2, 16)
    assert properties(made) == {"UNIQ_KEY": "first", "WAIT": "true", "DELAY": "4", "RETRY_TOPIC": "T"}


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("a blank topic", {"topic": " "}, "topic", "it is blank"),
    ("a bad character", {"topic": "a/b"}, "topic", "'/'"),
    ("a long topic", {"topic": "t" * 128}, "topic", "128 characters"),
    ("a system topic", {"topic": "SCHEDULE_TOPIC_XXXX"}, "topic", "brokers keep it"),
    ("no body", {"body": b""}, "body", "it is empty; brokers want one byte at least"),
    ("a body of text", {"body": "text"}, "body", "it is str, not bytes: write body.encode()"),
    ("a large body", {"body": bytes(101)}, "body", "max_message_bytes is 100"),
    ("a control character in tags", {"tags": "a\nb"}, "tags", "control character"),
    ("a blank in a key of several", {"keys": ["a b", "c"]}, "keys", "a key of the list holds a blank"),
    ("a separator in a key", {"keys": ["a\x01"]}, "keys", "0x01 or 0x02"),
    ("a negative level", {"delay_level": -1}, "delay_level", "-1 is no level"),
    ("a time in seconds", {"deliver_time_ms": 1_800_000_000}, "deliver_time_ms", "looks like seconds"),
    ("a property of a number", {"properties": {"n": 3}}, "properties", "its value is int"),
    ("an empty value", {"properties": {"n": ""}}, "properties", "it is empty".replace("it is", "its value is")),
    ("a separator in the sharding key", {"properties": {"__SHARDINGKEY": "\x02"}}, "properties", "0x01 or 0x02"),
    *((name, {"properties": {name: "x"}}, "properties", f"{name} is reserved") for name in ("UNIQ_KEY", *EARLIER_LIFE)),
]


@pytest.mark.parametrize(("given", "what", "rule"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_breaks_a_rule_is_refused_with_it(given: dict[str, Any], what: str, rule: str) -> None:
    made = maker(max_message_bytes=100)
    for make in (made.message, lambda message: made.batch([message])):
        if make is not made.message and what in ("delay_level", "deliver_time_ms"):
            continue
        with pytest.raises(MessageRefusedError, match="was not sent") as raised:
            make(Message(**{"topic": "T", "body": BODY, **given}))
        assert raised.value.what == what
        assert rule in raised.value.rule


def test_properties_that_no_record_holds_are_refused() -> None:
    with pytest.raises(MessageRefusedError, match="all properties together are 327") as raised:
        maker().message(Message("T", BODY, properties={"a": "x" * 32_750}))
    assert raised.value.what == "properties"
    with pytest.raises(MessageRefusedError, match="limit is 32767"):
        maker().batch([Message("T", BODY, properties={"a": "x" * 32_750})])


@pytest.mark.parametrize(
    ("second", "rule"),
    [
        (Message("T", BODY, delay_level=1), "message 1 is delayed"),
        (Message("T", BODY, deliver_time_ms=1_800_000_000_000), "message 1 is delayed"),
        (Message("%RETRY%G", BODY), "message 1 goes to a retry topic"),
        (Message("Other", BODY), "message 1 goes to topic 'Other'"),
        (Message("T", BODY, wait_stored=False), "message 1 has another wait_stored"),
        (Message("T", bytes(90)), "its 2 messages are"),
    ],
)
def test_what_makes_no_batch_is_refused(second: Message, rule: str) -> None:
    """MessageBatch.generateFromList."""
    with pytest.raises(MessageRefusedError, match=rule):
        maker(max_message_bytes=100).batch([Message("T", BODY), second])


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(MessageRefusedError, match="it holds no message"):
        maker().batch([])


def test_a_half_has_no_deliver_time() -> None:
    with pytest.raises(MessageRefusedError, match="a message of a transaction cannot be delayed"):
        maker().half(Message("T", BODY, deliver_time_ms=1_800_000_000_000))


NOW_MS = 1_700_000_000_123


def test_an_id_says_address_process_and_time() -> None:
    ids = UniqueIds("192.168.0.7", pid=0x1ABCD, salt=b"\x01\x02\x03\x04", clock=lambda: NOW_MS)
    start_ms, _ = month_bounds(NOW_MS)
    assert ids.make() == f"C0A80007ABCD01020304{NOW_MS - start_ms:08X}0000"
    assert ids.make().endswith("0001")


@pytest.mark.parametrize(("ip", "length"), [("::1", 56), ("fe80::1%eth0", 56), ("10.0.0.1", 32), ("a-host", 32)])
def test_its_length_is_that_of_its_address(ip: str, length: int) -> None:
    assert len(UniqueIds(ip).make()) == length


def test_the_months_bounds_are_midnights_of_first_days() -> None:
    start_ms, end_ms = month_bounds(NOW_MS)
    for bound_ms in (start_ms, end_ms):
        assert time.localtime(bound_ms // 1000)[2:6] == (1, 0, 0, 0)
    assert start_ms <= NOW_MS < end_ms
    assert month_bounds(end_ms)[0] == end_ms


def test_a_new_month_begins_at_0_and_a_clock_set_back_does_not_go_below() -> None:
    times = [month_bounds(NOW_MS)[1] - 1]
    ids = UniqueIds("10.0.0.1", clock=lambda: times[-1])
    ids.make()
    times.append(times[0] + 1)
    assert ids.make()[20:28] == "00000000"
    times.append(times[0] - 5)
    assert ids.make()[20:28] == "00000000"


def test_threads_get_different_ids() -> None:
    ids = UniqueIds("10.0.0.1", clock=lambda: NOW_MS)
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend(ids.make() for _ in range(2_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8_000


def test_java_s_own_id_has_the_same_parts() -> None:
    (said,) = java_says("uniqueId")
    assert said["isNow"] is True
    made = UniqueIds(said["ip"], pid=said["own_pid"]).make()
    assert len(made) == len(said["id"])
    pid = slice(len(made) - 24, len(made) - 20)
    assert made[: pid.stop] == said["id"][: pid.stop]
    assert int(made[pid], 16) == said["pid"]
