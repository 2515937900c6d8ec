"""The handler around the rules: what it answers of each put's end, what it makes and counts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_mq.broker.put_plan import is_true
from spark_mq.broker.send import unique_keys
from spark_mq.remoting.messages import BatchedMessage, encode_batch
from storage import MessageStore, open_store
from storage.errors import StoreNotWritableError, StoreRefusedError
from storage.format.record import decode_offset_message_id
from storage.pending import PutStatus
from storage.put.put import PutResult
from storage.rules.inner_messages import EncodedMessage
from storage.rules.put_guards import BrokerState
from storage.rules.response_codes import ResponseCode
from storage.service.put_group import PutMessageResult, Rows
from storage.settings.load import parse_config
from storage.tables.consumer_groups import SubscriptionGroupTable
from storage.tables.document import GROUPS_FILE
from storage.tables.put_statistics import Sum
from storage.tables.topics import TopicConfig
from storage.transaction.progress import TransactionCounts
from tests.broker.put_cases.case import KEY, PAST_MS
from tests.broker.put_stores import config_of
from tests.support.broker_handlers import Answered, FakedPuts, Send, Sender, ending

CLIENT = bytes([10, 0, 0, 9]) + (4711).to_bytes(4, "big")
ORDER = Send(
    topic="Orders",
    body=b"body",
    queue_id=1,
    properties={"UNIQ_KEY": KEY},
    born_host=CLIENT,
    born_time_ms=PAST_MS,
    producer_group="producers",
)
PLACE = PutResult("Orders", 1, 17, 16, "7F00000100002A9F0000000000000010", KEY, PAST_MS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path / "store", config=config_of("plain"), read_only=False, create=True) as store:
        store.save_topic(TopicConfig("Orders", 4, 4))
        yield store


def ticking(start_ms: int = PAST_MS) -> Callable[[], int]:
    """A clock that is a millisecond later at every look."""
    return itertools.count(start_ms).__next__


# The end of a put


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.PUT_OK, 0),
        (PutStatus.FLUSH_DISK_TIMEOUT, 10),
        (PutStatus.SLAVE_NOT_AVAILABLE, 11),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, 12),
    ],
)
def test_a_stored_message_is_answered_with_its_place_whatever_the_code(
    store: MessageStore, status: PutStatus, code: int
) -> None:
    """SendMessageProcessor.handlePutMessageResult: the three time-outs mean stored, and count as stored."""
    handler = Sender(ending(store, status, [PLACE]))
    response = handler.send(ORDER)
    assert response == Answered(
        ResponseCode(code),
        None,
        PLACE.msg_id,
        1,
        17,
        KEY,
        ext_fields={"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"},
    )
    assert response.is_stored
    assert handler.statistics.topic_put_nums == {"Orders": Sum(1, 1)}


@pytest.mark.parametrize("status", [status for status in PutStatus if not status.is_stored])
def test_a_message_that_is_not_stored_has_no_place_and_counts_nowhere(store: MessageStore, status: PutStatus) -> None:
    """SendMessageProcessor.handlePutMessageResult."""
    handler = Sender(ending(store, status))
    response = handler.send(ORDER)
    assert not response.is_stored
    assert (response.msg_id, response.queue_id, response.queue_offset, response.transaction_id) == (None,) * 4
    assert response.code not in (0, 10, 11, 12)
    assert response.remark
    assert handler.statistics.broker_put_nums == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreNotWritableError("store", "disk full"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (OSError("no sync"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_store_that_fails_is_answered(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, error: Exception, code: ResponseCode
) -> None:
    """SendMessageProcessor.handlePutMessageResult: SERVICE_NOT_AVAILABLE, UNKNOWN_ERROR; a failed sync is never a success."""

    def fail(*_: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(store.writer, "append", fail)
    response = Sender(store).send(ORDER)
    assert (response.code, response.is_stored) == (code, False)


def test_the_disks_use_is_told_as_parts_of_one(store: MessageStore) -> None:
    """SendMessageProcessor.diskUtil, UtilAll.getDiskPartitionSpaceUsedPercent."""
    handler = Sender(ending(store, PutStatus.SERVICE_NOT_AVAILABLE))
    found = re.search(r"\[CL:  (\d\.\d\d) CQ:  (\d\.\d\d) INDEX: ( \d\.\d\d|-1\.00)\]", str(handler.send(ORDER).remark))
    assert found is not None
    assert 0 < float(found[1]) <= 1


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (BrokerState(is_slave=True), ResponseCode.SYSTEM_BUSY),
        (BrokerState(is_os_page_cache_busy=True), ResponseCode.SYSTEM_BUSY),
        (BrokerState(is_slave=True, acts_as_master=True), ResponseCode.SERVICE_NOT_AVAILABLE),
        (BrokerState(is_shut_down=True), ResponseCode.SERVICE_NOT_AVAILABLE),
        (BrokerState(is_writable=False), ResponseCode.SERVICE_NOT_AVAILABLE),
        (BrokerState(), ResponseCode.SUCCESS),
    ],
)
def test_the_brokers_state_decides_first(store: MessageStore, state: BrokerState, code: ResponseCode) -> None:
    """NettyRemotingAbstract.processRequestCommand (rejectRequest), HookUtils.checkBeforePutMessage."""
    handler = Sender(store)
    handler.state = state
    response = handler.send(ORDER)
    assert response.code == code
    if code == ResponseCode.SYSTEM_BUSY:
        assert response.remark == "[REJECTREQUEST]system busy, start flow control for a while"
        assert store.log_end == 0


@pytest.mark.parametrize(
    "state", [BrokerState(is_os_page_cache_busy=True), BrokerState(is_transient_store_pool_deficient=True)]
)
def test_a_busy_store_takes_what_nobody_would_hear_of(store: MessageStore, state: BrokerState) -> None:
    handler = Sender(store)
    handler.state = state
    assert handler.send(replace(ORDER, is_heard=False)).code == ResponseCode.SUCCESS
    handler.state = replace(state, is_slave=True)
    assert handler.send(replace(ORDER, is_heard=False)).code == ResponseCode.SYSTEM_BUSY


# What is stored


def test_a_batch_is_stored_whole_and_answered_with_all_ids(store: MessageStore) -> None:
    """SendMessageProcessor.sendBatchMessage; CommitLog.doAppend of a batch: its ids, its first queue offset, its count."""
    handler = Sender(store)
    handler.send(ORDER)
    body = encode_batch(
        [BatchedMessage(b"one", b"WAIT\x01true", 5), BatchedMessage(b"two", b"TAGS\x01t\x02DELAY\x013\x02")]
    )
    response = handler.send(replace(ORDER, body=body, is_batch=True, properties={"WAIT": "false"}))
    records = store.get("Orders", 1, 1).messages
    added = b"WAIT\x01false\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01LabCluster\x02"
    assert [record.raw_properties for record in records] == [
        b"WAIT\x01true\x02" + added,
        b"TAGS\x01t\x02DELAY\x013\x02" + added,
    ]
    assert [(record.body, record.flag, record.queue_offset) for record in records] == [(b"one", 5, 1), (b"two", 0, 2)]
    assert response.msg_id == ",".join(record.msg_id for record in records)
    assert (response.queue_offset, response.transaction_id) == (1, None)
    assert handler.statistics.topic_put_nums["Orders"] == Sum(3, 2)
    assert handler.statistics.topic_put_size["Orders"].value == sum(
        record.size_bytes for record in store.get("Orders", 1, 0).messages
    )


@pytest.mark.parametrize("body", [b"", encode_batch([BatchedMessage(b"x", b"")])[:-1]])
def test_a_batch_that_holds_no_message_is_refused(store: MessageStore, body: bytes) -> None:
    """A departure: SendMessageProcessor.handlePutMessageResult divides by the number of messages, and answers nothing."""
    response = Sender(store).send(replace(ORDER, body=body, is_batch=True))
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert store.max_offset("Orders", 1) == 0


def test_a_client_of_ipv6_is_stored_as_one(store: MessageStore) -> None:
    """MessageExtBrokerInner.setBornHostV6Flag, MessageSysFlag.BORNHOST_V6_FLAG."""
    host = bytes(range(16)) + (4711).to_bytes(4, "big")
    handler = Sender(store)
    handler.send(replace(ORDER, born_host=host))
    (record,) = store.get("Orders", 1, 0).messages
    assert (record.born_host, record.sys_flag) == (host, 0x10)
    assert handler.statistics.topic_put_size["Orders"].value == record.size_bytes


def test_a_client_cannot_say_of_what_kind_hosts_are(store: MessageStore) -> None:
    """A departure: Java keeps the bits, and the record of an IPv4 client then ends its log."""
    Sender(store).send(replace(ORDER, sys_flag=0x30))
    (record,) = store.get("Orders", 1, 0).messages
    assert (record.sys_flag, record.born_host) == (0, CLIENT)


def test_a_message_without_a_key_gets_one_of_a_clients_length(store: MessageStore) -> None:
    """SendMessageProcessor.sendMessage, MessageClientIDSetter.createUniqID."""
    handler = Sender(store)
    keys = [str(handler.send(replace(ORDER, properties={})).transaction_id) for _ in range(3)]
    assert all(re.fullmatch("[0-9A-F]{32}", key) for key in keys)
    assert len({*keys, unique_keys()()}) == 4
    assert [record.unique_key for record in store.get("Orders", 1, 0).messages] == keys


def test_a_message_without_a_queue_goes_to_any_write_queue(store: MessageStore) -> None:
    """AbstractSendMessageProcessor.randomQueueId."""
    handler = Sender(store)
    found = {handler.send(replace(ORDER, queue_id=-1)).queue_id for _ in range(60)}
    assert found == {0, 1, 2, 3}


def test_a_topic_without_write_queues_takes_no_message_without_a_queue(store: MessageStore) -> None:
    """AbstractSendMessageProcessor.randomQueueId, whose division by zero is a SYSTEM_ERROR."""
    store.save_topic(TopicConfig("Closed", 4, 0))
    response = Sender(store).send(replace(ORDER, topic="Closed", queue_id=-1))
    assert response.code == ResponseCode.SYSTEM_ERROR


def test_a_topic_with_batch_queues_is_not_made(store: MessageStore) -> None:
    with pytest.raises(StoreRefusedError, match=r"Batches.*BatchCQ.*only Apache's brokers write"):
        store.save_topic(TopicConfig("Batches", 4, 4, attributes={"queue.type": "BatchCQ"}))
    assert "Batches" not in store.writer.settings.topics.topics


def test_the_last_dead_letter_makes_its_topic_and_the_group(store: MessageStore) -> None:
    """SendMessageProcessor.handleRetryAndDLQ, TopicConfigManager.createTopicInSendMessageBackMethod, findSubscriptionGroupConfig."""
    handler = Sender(store)
    response = handler.send(replace(ORDER, topic="%RETRY%g", reconsume_times=17))
    assert (response.code, response.queue_id) == (ResponseCode.SUCCESS, 1)  # the client is told its own queue
    assert store.writer.settings.topics.topics["%DLQ%g"] == TopicConfig("%DLQ%g", 1, 1, 6)
    groups = store.state(GROUPS_FILE, SubscriptionGroupTable.load)
    assert groups is not None
    assert list(groups.groups) == ["g"]
    assert [record.reconsume_times for record in store.get("%DLQ%g", 0, 0).messages] == [17]


def test_a_group_whose_queues_are_locked_tries_nothing_again(store: MessageStore) -> None:
    """SendMessageProcessor.handleRetryAndDLQ: RebalanceLockManager.isLockAllExpired."""
    handler = Sender(store, holds_order_lock=lambda group: group == "orderly")
    for group in ("orderly", "free"):
        handler.send(replace(ORDER, topic=f"%RETRY%{group}", queue_id=0))
    assert [store.max_offset(topic, 0) for topic in ("%DLQ%orderly", "%RETRY%orderly", "%RETRY%free")] == [1, 0, 1]


def test_a_made_topic_stays_when_its_message_is_refused(store: MessageStore) -> None:
    """AbstractSendMessageProcessor.msgCheck, which makes the topic before it looks at the queue."""
    response = Sender(store).send(replace(ORDER, topic="Made", queue_id=99))
    assert response.code == ResponseCode.INVALID_PARAMETER
    assert "Made" in store.writer.settings.topics.topics


def test_a_broker_serves_from_its_start_on(tmp_path: Path) -> None:
    """SendMessageProcessor.preSend: startAcceptSendRequestTimeStamp."""
    config = config_of("plain", startAcceptSendRequestTimeStamp=str(PAST_MS + 1_000))
    with open_store(tmp_path / "s", config=config, read_only=False, create=True) as store:
        early = Sender(store, clock=ticking(PAST_MS)).send(ORDER)
        late = Sender(store, clock=ticking(PAST_MS + 1_000)).send(ORDER)
    assert (early.code, late.code) == (ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS)
    assert str(early.remark).startswith("broker unable to service, until 20")
    assert early.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.mark.parametrize("is_async", ["true", "false"])
def test_the_thread_that_sends_makes_no_difference(tmp_path: Path, is_async: str) -> None:
    """SendMessageProcessor.sendMessage: asyncSendEnable."""
    config = config_of("plain", asyncSendEnable=is_async)
    with open_store(tmp_path / "s", config=config, read_only=False, create=True) as store:
        response = Sender(store).send(ORDER)
        assert (response.code, response.queue_id, response.queue_offset) == (0, 1, 0)
        assert len(store.get("Orders", 1, 0).messages) == 1


def test_what_is_answered_is_there_after_opening_anew(tmp_path: Path) -> None:
    """A second handler goes on where the first one was: topics, groups, queues."""
    config = parse_config(b"mappedFileSizeCommitLog=65536\nbrokerName=b\nbrokerIP1=127.0.0.1\n")
    places = []
    for _ in range(2):
        with open_store(tmp_path / "s", config=config, read_only=False, create=True) as store:
            places.append(Sender(store).send(ORDER))
    assert [place.queue_offset for place in places] == [0, 1]
    with open_store(tmp_path / "s", config=config) as store:
        found = [store.message_by_commitlog_offset(decode_offset_message_id(str(place.msg_id))[2]) for place in places]
    assert [message.unique_key for message in found] == [KEY, KEY]


# Statistics


def test_messages_count_under_the_topic_that_they_went_to(store: MessageStore) -> None:
    """SendMessageProcessor.handlePutMessageResult, BrokerStatsManager, TransactionMetrics."""
    handler = Sender(store, clock=ticking())
    for properties in ({}, {"DELAY": "3"}, {"TRAN_MSG": "true"}, {"DELAY": "3"}):
        handler.send(replace(ORDER, properties={"UNIQ_KEY": KEY, **properties}))
    counted = handler.statistics
    delayed = store.get("SCHEDULE_TOPIC_XXXX", 2, 0).messages
    assert counted.topic_put_nums == {
        "Orders": Sum(1, 1),
        "SCHEDULE_TOPIC_XXXX": Sum(2, 2),
        "RMQ_SYS_TRANS_HALF_TOPIC": Sum(1, 1),
    }
    assert counted.topic_put_size["SCHEDULE_TOPIC_XXXX"] == Sum(sum(record.size_bytes for record in delayed), 2)
    assert counted.queue_put_nums == {"SCHEDULE_TOPIC_XXXX@2": Sum(2, 2)}
    assert counted.queue_put_size == {"SCHEDULE_TOPIC_XXXX@2": counted.topic_put_size["SCHEDULE_TOPIC_XXXX"]}
    assert set(counted.topic_put_latency) == {"1@Orders", "1@SCHEDULE_TOPIC_XXXX", "1@RMQ_SYS_TRANS_HALF_TOPIC"}
    assert counted.topic_put_latency["1@Orders"].value > 0
    assert (counted.broker_put_nums, counted.broker_put_nums_without_system_topic) == (4, 1)
    assert counted.transaction_nums == {"Orders": Sum(1, 1)}


def test_prepared_halves_are_counted_in_the_file(store: MessageStore) -> None:
    """TransactionMetrics.addAndGet: of the real topic, one up for each half."""
    handler = Sender(store, clock=ticking())
    for _ in range(2):
        assert handler.send(replace(ORDER, properties={"TRAN_MSG": "true", "PGROUP": "g"})).code is ResponseCode.SUCCESS
    handler.close()
    handler.close()
    counts = store.state("transactionMetrics", TransactionCounts.load)
    assert counts is not None
    assert counts.counts == {"Orders": 2}


def test_what_a_group_sends_back_counts_by_topic_and_group(store: MessageStore) -> None:
    """BrokerStatsManager.incSendBackNums, buildStatsKey."""
    statistics = Sender(store).statistics
    statistics.send_back("g", "Orders")
    assert statistics.send_back_nums == {"Orders@g": Sum(1, 1)}


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), (" true", False), ("1", False), (None, False)]
)
def test_only_true_is_true(text: str | None, value: bool) -> None:
    """Boolean.parseBoolean."""
    assert is_true(text) == value


def test_a_put_gets_one_message_of_a_send(store: MessageStore) -> None:
    puts: list[Rows] = []

    def keep(messages: Rows, put: Callable[[], PutMessageResult]) -> PutMessageResult:
        puts.append(messages)
        return put()

    Sender(FakedPuts(store, keep)).send(ORDER)
    ((message,),) = puts
    assert isinstance(message, EncodedMessage)
    assert (message.topic, message.queue_id, message.body) == ("Orders", 1, b"body")
