"""Expressions and pulls say what Java's say; their answers become the messages that were asked for, by the tag's text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_mq.client.message import MessageQueue, decode_records
from spark_mq.client.pulls import Pull, PullResult, PullStatus, pulled_messages, subscription
from spark_mq.remoting import write_body
from storage.errors import CorruptMessageError, CorruptRecordError
from storage.format.record import COMPRESSED, encode_record
from tests.client.java_vectors import java_says
from tests.support.message_builder import make_message

QUEUE = MessageQueue("T", "broker-a", 3)
EVERYTHING = subscription("T", "*", 7)
RECORDS = b"".join(
    encode_record(make_message("T", 3, offset, 100 * offset, properties={"TAGS": tag, "UNIQ_KEY": f"id{offset}"}))
    for offset, tag in enumerate(("Aa", "BB", "C"))
)
FOUND = PullResult(PullStatus.FOUND, 3, 0, 9, records=RECORDS)


def test_the_flags_are_those_that_java_clients_were_seen_to_send() -> None:
    push = Pull(QUEUE, 0, EVERYTHING)
    assert push.sys_flag(at_master=True) == 2
    assert replace(push, committed_offset=5).sys_flag(at_master=True) == 3
    assert replace(push, committed_offset=5).sys_flag(at_master=False) == 2
    lite = replace(push, sends_subscription=True, is_lite=True)
    assert lite.sys_flag(at_master=True) == 22


def test_a_lite_pull_by_tags_names_no_version() -> None:
    pull = Pull(QUEUE, 0, EVERYTHING, is_lite=True)
    assert pull.subscription_version() == 0
    assert replace(pull, subscription=subscription("T", "a = 1", 7, "SQL92")).subscription_version() == 7
    assert replace(pull, is_lite=False).subscription_version() == 7


def test_messages_know_their_queue_their_place_and_the_queues_ends() -> None:
    messages = pulled_messages(FOUND, QUEUE, EVERYTHING, lambda record: "mine")
    assert [(message.topic, message.queue, message.queue_offset) for message in messages] == [
        ("mine", QUEUE, offset) for offset in range(3)
    ]
    assert [message.message_id for message in messages] == ["id0", "id1", "id2"]
    assert (messages[0].min_offset, messages[0].max_offset) == (0, 9)
    assert messages[0].body == b"body"


def test_a_tag_that_only_shares_its_hash_is_left_out() -> None:
    wanted = subscription("T", "BB || C", 1)
    messages = pulled_messages(FOUND, QUEUE, wanted, lambda record: record.topic)
    assert [message.tags for message in messages] == ["BB", "C"]


def test_offsets_of_a_static_topic_are_moved() -> None:
    messages = pulled_messages(replace(FOUND, offset_delta=1000), QUEUE, EVERYTHING, lambda record: record.topic)
    assert [message.queue_offset for message in messages] == [1000, 1001, 1002]


def test_an_answer_without_messages_has_none() -> None:
    empty = replace(FOUND, status=PullStatus.NO_NEW_MESSAGE)
    assert pulled_messages(empty, QUEUE, EVERYTHING, lambda record: record.topic) == []


@pytest.mark.parametrize("size", [1, 8, 100, len(RECORDS) - 1])
def test_cut_records_are_an_error_and_not_the_end(size: int) -> None:
    with pytest.raises(CorruptRecordError):
        decode_records(RECORDS[:size])


def test_a_body_that_does_not_decompress_is_its_readers_error_not_the_pulls() -> None:
    record = encode_record(make_message("T", sys_flag=COMPRESSED))
    (message,) = pulled_messages(replace(FOUND, records=record), QUEUE, EVERYTHING, lambda record: record.topic)
    with pytest.raises(CorruptMessageError):
        _ = message.body


@pytest.mark.parametrize(
    "line", java_says("subscription"), ids=lambda line: repr((line.get("expression"), line.get("expressionType")))
)
def test_an_expression_means_what_java_says(line: dict[str, Any]) -> None:
    expression, type_, answer = line.get("expression"), line.get("expressionType") or "TAG", line["answer"]
    if "refused" in answer:
        with pytest.raises(ValueError, match=r"SQL92 subscription|names no tag"):
            subscription("T", expression, 7, type_)
        return
    ours = subscription("T", expression, 7, type_).wire_form()
    assert sorted(ours.tags) == sorted(answer["tags"])
    assert list(ours.codes) == answer["codes"]
    assert (ours.sub_string, ours.expression_type) == (answer["subString"], answer["expressionType"])


def test_the_wire_form_is_javas_text() -> None:
    (line,) = java_says("subscriptionText")
    assert write_body(subscription("T", "TagA", 7).wire_form()).decode() == line["text"]


def test_a_tag_with_the_wanted_hash_and_another_text_is_left_out() -> None:
    wanted = subscription("T", "BB", 1)  # "Aa" and "BB" have one hash
    assert [tag for tag in ("Aa", "BB", None) if wanted.admits(tag)] == ["BB"]


@pytest.mark.parametrize("of", [("*", "TAG"), ("a = 1", "SQL92")])
def test_everything_and_sql_admit_messages_without_tags(of: tuple[str, Any]) -> None:
    wanted = subscription("T", of[0], 1, of[1])
    assert wanted.admits(None)
    assert wanted.admits("A")


def test_a_renewed_subscription_is_equal_but_for_a_later_version_also_where_the_clock_was_set_back() -> None:
    """Java: ConsumerGroupInfo.updateSubscription, which keeps the one it has unless the new version is greater."""
    first = subscription("T", "A", 1_000)
    assert first.renewed(2_000) == first
    assert [first.renewed(now_ms).version for now_ms in (2_000, 500)] == [2_000, 1_001]
