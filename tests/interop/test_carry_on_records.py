"""Records that the Apache broker made of others: our functions make each again from the one before it; compared field by field.

What a broker parks, delivers, prepares, commits, puts back and sends back it copies from a record that stands in the same log. So every
record of such a topic in the fixtures has its predecessor there, and our functions must turn that into this. The order of
properties is a Java HashMap's and means nothing; everything else counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mq.broker.send_back import plan_send_back
from storage.delay.schedule import due_messages
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_PREPARED, Message, host_text
from storage.format.record_batch import Records
from storage.format.typed_json import SubscriptionGroupConfig
from storage.rules.delays import route_delayed
from storage.rules.half_messages import (
    HALF_TOPIC,
    OP_TOPIC,
    committed_messages,
    half_message,
    op_messages,
    put_back_messages,
)
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.retry_rows import send_back_rows
from storage.rules.values import Rejections
from storage.settings.load import StoreConfig, parse_config
from tests.support.broker_handlers import back_request
from tests.support.fixture_stores import Fixture
from tests.support.log_records import LogRecord, columns_of, log_records, rows_of

MAX_RECONSUME_TIMES = {"GroupR": 2}
"""Of the consumers that the fixtures were made with (Produce.java); the others allow 5."""


@dataclass(frozen=True, slots=True)
class Log:
    """A fixture's records in the order of the log, and what its producers sent."""

    config: StoreConfig
    records: list[Message]
    raw: dict[int, LogRecord]
    """By its place."""
    sent: dict[str, dict[str, Any]]
    """By unique key: what a producer sent and was answered."""

    def of_topic(self, topic: str) -> list[Message]:
        return [record for record in self.records if record.topic == topic]

    def columns(self, records: Sequence[Message]) -> Records:
        return columns_of([self.raw[record.commitlog_offset] for record in records])


@pytest.fixture(scope="module", params=["clean", "syncflush", "ext", "crashed"])
def log(request: pytest.FixtureRequest, pristine_store: Callable[[str], Fixture]) -> Log:
    fixture = pristine_store(request.param)
    assert fixture.sent is not None
    records = list(log_records(fixture.root))
    sent = [json.loads(line) for line in fixture.sent.read_text("utf-8").splitlines()]
    return Log(
        parse_config(fixture.conf.read_bytes()),
        [record.message for record in records],
        {record.message.commitlog_offset: record for record in records},
        {line["msgId"]: line for line in sent},
    )


def without(properties: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in names}


def routed(log: Log, message: InnerMessage) -> InnerMessage:
    return route_delayed(message, delays_ms=log.config.delay.delays_ms, timer=log.config.timer, now_ms=0)


# Delays. Java: HookUtils.transformDelayLevelMessage, ScheduleMessageService.messageTimeUp


def test_what_a_producer_sends_with_a_delay_level_is_parked_as_the_broker_parks_it(log: Log) -> None:
    parked = [record for record in log.of_topic(SCHEDULE_TOPIC) if not is_retry(record)]
    assert len(parked) == 25
    for record in parked:
        line = log.sent[record.properties["UNIQ_KEY"]]
        original = replace(
            InnerMessage.of(record),
            topic=line["resultTopic"],
            queue_id=line["queueId"],
            flag=line["flag"],
            properties=without(record.properties, "REAL_TOPIC", "REAL_QID"),
        )
        assert original.properties.items() >= without(line["properties"], "WAIT").items()
        assert routed(log, original) == InnerMessage.of(record)


def test_a_parked_message_is_delivered_with_the_properties_that_it_was_parked_with(log: Log) -> None:
    delivered = [record for record in log.records if is_delivered(record)]
    parked = {parking(record): record for record in log.of_topic(SCHEDULE_TOPIC)}
    assert len(parked) == len(log.of_topic(SCHEDULE_TOPIC))
    assert len({parking(record) for record in delivered}) == len(delivered) > 25
    assert not [
        record
        for record in parked.values()
        if record.queue_id < 4 and not is_retry(record) and parking(record) not in map(parking, delivered)
    ]
    made = due_messages(log.columns([parked[parking(record)] for record in delivered]))
    assert rows_of(made.messages) == [InnerMessage.of(record) for record in delivered]
    assert (made.half_count, made.refused) == (0, ())


def parking(record: Message) -> tuple[str, str, str, int]:
    """What a parked record and the one delivered of it have in common, and no other."""
    properties = record.properties
    return properties["UNIQ_KEY"], properties["REAL_TOPIC"], properties["DELAY"], record.reconsume_times


def is_retry(record: Message) -> bool:
    return record.properties.get("REAL_TOPIC", "").startswith("%RETRY%")


def is_delivered(record: Message) -> bool:
    return record.topic == record.properties.get("REAL_TOPIC") and "DELAY" in record.properties


# Transactions. Java: TransactionalMessageBridge.parseHalfMessageInner, renewHalfMessageInner, makeOpMessageInner;
# EndTransactionProcessor.endMessageTransaction


def test_what_a_transaction_producer_sends_becomes_the_brokers_half(log: Log) -> None:
    halves = [record for record in log.of_topic(HALF_TOPIC) if "TRANSACTION_CHECK_TIMES" not in record.properties]
    assert len(halves) == 18
    for record in halves:
        line = log.sent[record.properties["UNIQ_KEY"]]
        original = replace(
            InnerMessage.of(record),
            topic=line["resultTopic"],
            queue_id=line["queueId"],
            flag=line["flag"],
            sys_flag=line["sysFlag"],
            properties=without(record.properties, "REAL_TOPIC", "REAL_QID", "__transactionId__"),
        )
        assert original.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED
        assert half_message(original) == InnerMessage.of(record)
        plain = replace(original, properties=without(original.properties, "TRAN_MSG", "PGROUP"))
        assert half_message(plain, "ProducerTx") == InnerMessage.of(record)


def test_a_half_that_is_asked_back_is_put_back_as_the_broker_does_but_with_its_flag(log: Log) -> None:
    earlier: dict[str, Message] = {}
    compared = 0
    for record in log.of_topic(HALF_TOPIC):
        before = earlier.get(record.properties["UNIQ_KEY"])
        if before is not None:
            times = int(before.properties.get("TRANSACTION_CHECK_TIMES", "0")) + 1
            [made] = rows_of(put_back_messages(InnerMessages.of_records(log.columns([before])), np.array([times])))
            assert replace(made, flag=0) == InnerMessage.of(record)  # Java forgets the flag
            assert made.flag == before.flag
            compared += 1
        earlier[record.properties["UNIQ_KEY"]] = record
    assert compared > 4


def test_a_commit_makes_of_its_half_what_the_broker_made_of_it(log: Log) -> None:
    halves = {record.commitlog_offset: record for record in log.of_topic(HALF_TOPIC)}
    committed = [record for record in log.records if record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT]
    origins = [halves[record.prepared_transaction_offset] for record in committed]
    places = np.array([half.commitlog_offset for half in origins])
    made = committed_messages(InnerMessages.of_records(log.columns(origins)), places)
    assert rows_of(made) == [InnerMessage.of(record) for record in committed]
    assert len(committed) == 12


def test_the_halves_that_an_op_message_of_the_broker_ends_make_ours_of_the_same_content(log: Log) -> None:
    records = log.of_topic(OP_TOPIC)
    ended = [[int(offset) for offset in record.body.split(b",")[:-1]] for record in records]
    for record, offsets in zip(records, ended, strict=True):
        [made] = op_messages(np.array(offsets), log.config.transaction.transaction_op_msg_max_size, record.born_time_ms)
        assert replace(made, born_host=record.store_host) == InnerMessage.of(record)
    assert len({offset for offsets in ended for offset in offsets}) == sum(map(len, ended)) == 17


# Retries and dead letters. Java: AbstractSendMessageProcessor.consumerSendMsgBack


def test_what_a_consumer_gives_back_is_parked_for_its_retry_topic_as_the_broker_does(log: Log) -> None:
    sent_back = [record for record in log.of_topic(SCHEDULE_TOPIC) if is_retry(record)]
    assert len(sent_back) > 8
    for record in sent_back:
        group = record.properties["REAL_TOPIC"].removeprefix("%RETRY%")
        assert routed(log, given_back(log, record, group)) == InnerMessage.of(record)


def test_what_a_consumer_gives_back_too_often_is_the_brokers_dead_letter(log: Log) -> None:
    letters = [record for record in log.records if record.topic.startswith("%DLQ%")]
    assert len(letters) == 4
    for record in letters:
        assert routed(log, given_back(log, record, record.topic.removeprefix("%DLQ%"))) == InnerMessage.of(record)


def test_a_table_of_failed_rows_becomes_the_same_records(log: Log) -> None:
    sent_back = [record for record in log.of_topic(SCHEDULE_TOPIC) if is_retry(record)]
    letters = [record for record in log.records if record.topic.startswith("%DLQ%")]
    for group in sorted({group_of(record) for record in sent_back + letters}):
        expected = [record for record in sent_back + letters if group_of(record) == group]
        originals = [failed_on(log, record, group) for record in expected]
        rejections = Rejections()
        made = send_back_rows(
            source_rows(originals),
            SubscriptionGroupConfig(group),
            rejections,
            delays_ms=log.config.delay.delays_ms,
            now_ms=0,
            max_reconsume_times=MAX_RECONSUME_TIMES.get(group, 5),
        )
        assert not rejections
        assert rows_of(made.messages) == [InnerMessage.of(record) for record in expected]
        assert made.dead.tolist() == [record in letters for record in expected]


def source_rows(records: Sequence[Message]) -> pa.RecordBatch:
    """Records as the source gives them."""
    columns = {
        "topic": pa.array([record.topic for record in records]),
        "msg_id": pa.array([record.msg_id for record in records]),
        "properties": pa.array(
            [list(record.properties.items()) for record in records], pa.map_(pa.string(), pa.string())
        ),
        "body": pa.array([record.plain_body for record in records], pa.binary()),
        "reconsume_times": pa.array([record.reconsume_times for record in records], pa.int32()),
        "born_timestamp": pa.array([record.born_time_ms for record in records], pa.timestamp("ms", "UTC")),
        "born_host": pa.array([host_text(record.born_host) for record in records]),
        "flag": pa.array([record.flag for record in records], pa.int32()),
        "sys_flag": pa.array([record.sys_flag for record in records], pa.int32()),
    }
    return pa.record_batch(columns)


def group_of(record: Message) -> str:
    return (
        (record.properties["REAL_TOPIC"] if is_retry(record) else record.topic)
        .removeprefix("%RETRY%")
        .removeprefix("%DLQ%")
    )


def given_back(log: Log, record: Message, group: str) -> InnerMessage:
    """What our broker puts when the group gives back the message before `record`."""
    original = failed_on(log, record, group)
    queue_id = int(record.properties["REAL_QID"])
    plan = plan_send_back(
        original,
        back_request(
            commitlog_offset=original.commitlog_offset,
            group=group,
            max_reconsume_times=MAX_RECONSUME_TIMES.get(group, 5),
        ),
        {group: SubscriptionGroupConfig(group)},
        {},
        config=log.config,
        choose_queue=lambda count: queue_id,
    )
    assert plan.message is not None
    return plan.message


def failed_on(log: Log, record: Message, group: str) -> Message:
    [original] = [before for before in log.records if is_before(before, record, group)]
    return original


def is_before(before: Message, record: Message, group: str) -> bool:
    """Whether it is the message that the group failed on when it gave back `record`."""
    origin = record.properties["ORIGIN_MESSAGE_ID"]
    if record.reconsume_times == 1:
        return before.msg_id == origin
    return (
        before.topic == f"%RETRY%{group}"
        and before.reconsume_times == record.reconsume_times - 1
        and before.properties["ORIGIN_MESSAGE_ID"] == origin
    )
