"""The handler around the rules: what it answers of each put's end, what it makes, counts and tells hooks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker.put_plan import PutPlan
from spark_mq.broker.put_response import Appended, DiskUse, PutOutcome, SendResponse
from spark_mq.broker.send import SendMessageHandler, unique_keys
from spark_mq.broker.send_hooks import (
    AbortProcessError,
    MessageType,
    SendMessageContext,
    is_true,
    message_type,
    namespace_of,
)
from spark_mq.broker.send_request import SendRequest
from spark_mq.remoting.messages import BatchedMessage, encode_batch
from storage import MessageStore, open_store
from storage.errors import StoreNotWritableError
from storage.format.record import decode_offset_message_id
from storage.put_status import PutStatus
from storage.rules.put_guards import BrokerState
from storage.rules.response_codes import ResponseCode
from storage.settings.load import parse_config
from storage.tables.put_statistics import Sum
from storage.tables.subscription_groups import FILE_NAME as GROUPS_FILE
from storage.tables.subscription_groups import SubscriptionGroupTable
from storage.tables.topics import TopicConfig
from storage.transaction.progress import TransactionCounts
from tests.broker.put_cases.case import KEY, PAST_MS
from tests.broker.put_stores import config_of

CLIENT = bytes([10, 0, 0, 9]) + (4711).to_bytes(4, "big")
ORDER = SendRequest(
    topic="Orders",
    body=b"body",
    queue_id=1,
    properties={"UNIQ_KEY": KEY},
    born_host=CLIENT,
    born_time_ms=PAST_MS,
    producer_group="producers",
)
APPENDED = Appended("7F00000100002A9F0000000000000010", 17, 1, 200, PAST_MS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path / "store", config=config_of("plain"), read_only=False, create=True) as store:
        store.save_topic(TopicConfig("Orders", 4, 4))
        yield store


def ticking(start_ms: int = PAST_MS) -> Callable[[], int]:
    """A clock that is a millisecond later at every look."""
    return itertools.count(start_ms).__next__


class Recorder:
    """A hook of both kinds that keeps what it is told, and raises what it is given."""

    def __init__(self, **raises: Exception) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._raises = raises

    def _called(self, name: str, told: object) -> None:
        self.calls.append((name, told))
        if name in self._raises:
            raise self._raises[name]

    def send_message_before(self, context: SendMessageContext) -> None:
        self._called("before", replace(context))

    def send_message_after(self, context: SendMessageContext) -> None:
        self._called("after", replace(context))

    def before_request(self, remote_address: str, request: SendRequest) -> None:
        self._called("request", remote_address)

    def after_response(self, remote_address: str, request: SendRequest, response: SendResponse) -> None:
        self._called("response", response)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


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
    hook = Recorder()
    handler = SendMessageHandler(store, hooks=[hook], put=lambda plan: PutOutcome(status, APPENDED))
    response = handler.send(ORDER)
    assert response == SendResponse(
        ResponseCode(code),
        None,
        APPENDED.msg_id,
        1,
        17,
        KEY,
        ext_fields={"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"},
    )
    assert response.is_stored
    assert handler.statistics.topic_put_nums == {"Orders": Sum(1, 1)}
    assert hook.calls[-1][1].is_stored


@pytest.mark.parametrize("status", [status for status in PutStatus if not status.is_stored])
def test_a_message_that_is_not_stored_has_no_place_and_counts_nowhere(store: MessageStore, status: PutStatus) -> None:
    """SendMessageProcessor.handlePutMessageResult."""
    hook = Recorder()
    handler = SendMessageHandler(store, hooks=[hook], put=lambda plan: PutOutcome(status))
    response = handler.send(ORDER)
    assert not response.is_stored
    assert (response.msg_id, response.queue_id, response.queue_offset, response.transaction_id) == (None,) * 4
    assert response.code not in (0, 10, 11, 12)
    assert response.remark
    assert handler.statistics.broker_put_nums == 0
    assert (hook.calls[-1][1].is_stored, hook.calls[-1][1].code) == (False, response.code)


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

    def fail(messages: object) -> None:
        raise error

    monkeypatch.setattr(store, "put_inner", fail)
    handler = SendMessageHandler(store, disk_use=lambda: DiskUse(0.5, 0.25, 0.125))
    response = handler.send(ORDER)
    assert (response.code, response.is_stored) == (code, False)
    assert code != ResponseCode.SERVICE_NOT_AVAILABLE or "[CL:  0.50 CQ:  0.25 INDEX:  0.12]" in str(response.remark)


def test_the_disks_use_is_told_as_parts_of_one(store: MessageStore) -> None:
    """SendMessageProcessor.diskUtil, UtilAll.getDiskPartitionSpaceUsedPercent."""
    handler = SendMessageHandler(store, put=lambda plan: PutOutcome(PutStatus.SERVICE_NOT_AVAILABLE))
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
    hook = Recorder()
    handler = SendMessageHandler(store, rpc_hooks=[hook])
    handler.state = state
    response = handler.send(ORDER)
    assert response.code == code
    if code == ResponseCode.SYSTEM_BUSY:
        assert response.remark == "[REJECTREQUEST]system busy, start flow control for a while"
        assert hook.names == []


@pytest.mark.parametrize(
    "state", [BrokerState(is_os_page_cache_busy=True), BrokerState(is_transient_store_pool_deficient=True)]
)
def test_a_busy_store_takes_what_nobody_would_hear_of(store: MessageStore, state: BrokerState) -> None:
    handler = SendMessageHandler(store)
    handler.state = state
    assert handler.send(replace(ORDER, is_heard=False)).code == ResponseCode.SUCCESS
    handler.state = replace(state, is_slave=True)
    assert handler.send(replace(ORDER, is_heard=False)).code == ResponseCode.SYSTEM_BUSY


# What is stored


def test_a_batch_is_stored_whole_and_answered_with_all_ids(store: MessageStore) -> None:
    """SendMessageProcessor.sendBatchMessage; CommitLog.doAppend of a batch: its ids, its first queue offset, its count."""
    handler = SendMessageHandler(store)
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
    response = SendMessageHandler(store).send(replace(ORDER, body=body, is_batch=True))
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert store.max_offset("Orders", 1) == 0


def test_a_client_of_ipv6_is_stored_as_one(store: MessageStore) -> None:
    """MessageExtBrokerInner.setBornHostV6Flag, MessageSysFlag.BORNHOST_V6_FLAG."""
    host = bytes(range(16)) + (4711).to_bytes(4, "big")
    handler = SendMessageHandler(store)
    handler.send(replace(ORDER, born_host=host))
    (record,) = store.get("Orders", 1, 0).messages
    assert (record.born_host, record.sys_flag) == (host, 0x10)
    assert handler.statistics.topic_put_size["Orders"].value == record.size_bytes


def test_a_client_cannot_say_of_what_kind_hosts_are(store: MessageStore) -> None:
    """A departure: Java keeps the bits, and the record of an IPv4 client then ends its log."""
    SendMessageHandler(store).send(replace(ORDER, sys_flag=0x30))
    (record,) = store.get("Orders", 1, 0).messages
    assert (record.sys_flag, record.born_host) == (0, CLIENT)


def test_a_message_without_a_key_gets_one_of_a_clients_length(store: MessageStore) -> None:
    """SendMessageProcessor.sendMessage, MessageClientIDSetter.createUniqID."""
    handler = SendMessageHandler(store)
    keys = [str(handler.send(replace(ORDER, properties={})).transaction_id) for _ in range(3)]
    assert all(re.fullmatch("[0-9A-F]{32}", key) for key in keys)
    assert len({*keys, unique_keys()()}) == 4
    assert [record.unique_key for record in store.get("Orders", 1, 0).messages] == keys


def test_a_message_without_a_queue_goes_to_any_write_queue(store: MessageStore) -> None:
    """AbstractSendMessageProcessor.randomQueueId."""
    asked = []
    handler = SendMessageHandler(store, choose_queue=lambda count: asked.append(count) or 3)
    assert handler.send(replace(ORDER, queue_id=-1)).queue_id == 3
    assert asked == [4]


def test_a_topic_without_write_queues_takes_no_message_without_a_queue(store: MessageStore) -> None:
    """AbstractSendMessageProcessor.randomQueueId, whose division by zero is a SYSTEM_ERROR."""
    store.save_topic(TopicConfig("Closed", 4, 0))
    response = SendMessageHandler(store).send(replace(ORDER, topic="Closed", queue_id=-1))
    assert response.code == ResponseCode.SYSTEM_ERROR


def test_a_topic_with_batch_queues_is_not_supported(store: MessageStore) -> None:
    store.save_topic(TopicConfig("Batches", 4, 4, attributes={"queue.type": "BatchCQ"}))
    response = SendMessageHandler(store).send(replace(ORDER, topic="Batches"))
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert store.queue_ids("Batches") == []


def test_the_last_dead_letter_makes_its_topic_and_the_group(store: MessageStore) -> None:
    """SendMessageProcessor.handleRetryAndDLQ, TopicConfigManager.createTopicInSendMessageBackMethod, findSubscriptionGroupConfig."""
    handler = SendMessageHandler(store)
    response = handler.send(replace(ORDER, topic="%RETRY%g", reconsume_times=17))
    assert (response.code, response.queue_id) == (ResponseCode.SUCCESS, 1)  # the client is told its own queue
    assert store.writer.settings.topics.topics["%DLQ%g"] == TopicConfig("%DLQ%g", 1, 1, 6)
    groups = store.state(GROUPS_FILE, SubscriptionGroupTable.load)
    assert groups is not None
    assert list(groups.groups) == ["g"]
    assert [record.reconsume_times for record in store.get("%DLQ%g", 0, 0).messages] == [17]


def test_a_group_whose_queues_are_locked_tries_nothing_again(store: MessageStore) -> None:
    """SendMessageProcessor.handleRetryAndDLQ: RebalanceLockManager.isLockAllExpired."""
    handler = SendMessageHandler(store, holds_order_lock=lambda group: group == "orderly")
    for group in ("orderly", "free"):
        handler.send(replace(ORDER, topic=f"%RETRY%{group}", queue_id=0))
    assert [store.max_offset(topic, 0) for topic in ("%DLQ%orderly", "%RETRY%orderly", "%RETRY%free")] == [1, 0, 1]


def test_a_made_topic_stays_when_its_message_is_refused(store: MessageStore) -> None:
    """AbstractSendMessageProcessor.msgCheck, which makes the topic before it looks at the queue."""
    response = SendMessageHandler(store).send(replace(ORDER, topic="Made", queue_id=99))
    assert response.code == ResponseCode.INVALID_PARAMETER
    assert "Made" in store.writer.settings.topics.topics


def test_a_broker_serves_from_its_start_on(tmp_path: Path) -> None:
    """SendMessageProcessor.preSend: startAcceptSendRequestTimeStamp."""
    config = config_of("plain", startAcceptSendRequestTimeStamp=str(PAST_MS + 1_000))
    hook = Recorder()
    with open_store(tmp_path / "s", config=config, read_only=False, create=True) as store:
        early = SendMessageHandler(store, clock=ticking(PAST_MS), hooks=[hook]).send(ORDER)
        late = SendMessageHandler(store, clock=ticking(PAST_MS + 1_000)).send(ORDER)
    assert (early.code, late.code) == (ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS)
    assert str(early.remark).startswith("broker unable to service, until 20")
    assert early.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert hook.names == ["before"]


@pytest.mark.parametrize("is_async", ["true", "false"])
def test_the_thread_that_sends_makes_no_difference(tmp_path: Path, is_async: str) -> None:
    """SendMessageProcessor.sendMessage: asyncSendEnable."""
    config = config_of("plain", asyncSendEnable=is_async)
    with open_store(tmp_path / "s", config=config, read_only=False, create=True) as store:
        response = SendMessageHandler(store).send(ORDER)
        assert (response.code, response.queue_id, response.queue_offset) == (0, 1, 0)
        assert len(store.get("Orders", 1, 0).messages) == 1


def test_what_is_answered_is_there_after_opening_anew(tmp_path: Path) -> None:
    """A second handler goes on where the first one was: topics, groups, queues."""
    config = parse_config(b"mappedFileSizeCommitLog=65536\nbrokerName=b\nbrokerIP1=127.0.0.1\n")
    places = []
    for _ in range(2):
        with open_store(tmp_path / "s", config=config, read_only=False, create=True) as store:
            places.append(SendMessageHandler(store).send(ORDER))
    assert [place.queue_offset for place in places] == [0, 1]
    with open_store(tmp_path / "s", config=config) as store:
        found = [store.message_by_commitlog_offset(decode_offset_message_id(str(place.msg_id))[2]) for place in places]
    assert [message.unique_key for message in found] == [KEY, KEY]


# Statistics


def test_messages_count_under_the_topic_that_they_went_to(store: MessageStore) -> None:
    """SendMessageProcessor.handlePutMessageResult, BrokerStatsManager, TransactionMetrics."""
    handler = SendMessageHandler(store, clock=ticking())
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
    handler = SendMessageHandler(store, clock=ticking())
    for _ in range(2):
        assert handler.send(replace(ORDER, properties={"TRAN_MSG": "true", "PGROUP": "g"})).code is ResponseCode.SUCCESS
    handler.close()
    handler.close()
    counts = store.state("transactionMetrics", TransactionCounts.load)
    assert counts is not None
    assert counts.counts == {"Orders": 2}


def test_what_a_group_sends_back_counts_by_topic_and_group(store: MessageStore) -> None:
    """BrokerStatsManager.incSendBackNums, buildStatsKey."""
    statistics = SendMessageHandler(store).statistics
    statistics.send_back("g", "Orders")
    assert statistics.send_back_nums == {"Orders@g": Sum(1, 1)}


# Hooks


def test_hooks_are_told_the_request_and_what_came_of_it(store: MessageStore) -> None:
    """AbstractSendMessageProcessor.buildMsgContext; executeSendMessageHookAfter; handlePutMessageResult."""
    hook = Recorder()
    handler = SendMessageHandler(store, hooks=[hook], clock=ticking())
    properties = {"UNIQ_KEY": KEY, "POP_CK": "x"}
    body = b"x" * 5_000
    response = handler.send(
        replace(ORDER, body=body, properties=properties, ext_fields={"Owner": "o", "AUTH_TYPE": "a"})
    )
    (_, before), (_, after) = hook.calls
    (record,) = store.get("Orders", 1, 0).messages
    assert before == SendMessageContext(
        namespace="",
        producer_group="producers",
        topic="Orders",
        queue_id=1,
        body_length=5_000,
        properties=properties,
        born_host="10.0.0.9:4711",
        born_time_ms=PAST_MS,
        request_time_ms=PAST_MS,
        region_id="DefaultRegion",
        broker_address="127.0.0.1:10911",
        unique_key=KEY,
        message_type=MessageType.NORMAL,
        commercial_owner="o",
        account_auth_type="a",
    )
    assert after == replace(
        before,
        msg_id=response.msg_id,
        queue_offset=0,
        code=0,
        is_stored=True,
        message_count=1,
        size_bytes=record.size_bytes,
        commercial_message_count=2,  # of 4 KiB each, rounded up
        commercial_times=2,
    )


def test_a_hook_may_abort_a_send(store: MessageStore) -> None:
    """SendMessageProcessor.processRequest: AbortProcessException; nothing is stored, no other hook is called."""
    first, second = Recorder(before=AbortProcessError(ResponseCode.NO_PERMISSION, "not you")), Recorder()
    around = Recorder()
    response = SendMessageHandler(store, hooks=[first, second], rpc_hooks=[around]).send(ORDER)
    assert response == SendResponse(ResponseCode.NO_PERMISSION, "not you")
    assert (first.names, second.names, around.names) == (["before"], [], ["request", "response"])
    assert store.max_offset("Orders", 1) == 0


def test_a_hook_that_fails_does_a_message_no_harm(store: MessageStore) -> None:
    """AbstractSendMessageProcessor.executeSendMessageHookBefore, executeSendMessageHookAfter: every other Throwable is ignored."""
    broken = Recorder(before=KeyError("hook"), after=AbortProcessError(1, "too late"))
    sound = Recorder()
    assert SendMessageHandler(store, hooks=[broken, sound]).send(ORDER).code == 0
    assert (broken.names, sound.names) == (["before", "after"],) * 2


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        (ORDER, ["before", "after"]),
        (replace(ORDER, body=None), ["before", "after"]),
        (replace(ORDER, queue_id=99), ["before"]),
        (replace(ORDER, topic="SELF_TEST_TOPIC"), ["before"]),
    ],
)
def test_hooks_after_a_send_are_called_for_what_came_as_far_as_the_put(
    store: MessageStore, request_: SendRequest, names: list[str]
) -> None:
    """SendMessageProcessor.sendMessage, which calls back from the put only."""
    hook = Recorder()
    SendMessageHandler(store, hooks=[hook]).send(request_)
    assert hook.names == names


def test_rpc_hooks_stand_around_everything(store: MessageStore) -> None:
    """NettyRemotingAbstract.buildProcessRequestHandler: doBeforeRpcHooks, doAfterRpcHooks."""
    hook = Recorder()
    response = SendMessageHandler(store, hooks=[hook], rpc_hooks=[hook]).send(ORDER)
    assert hook.names == ["request", "before", "after", "response"]
    assert (hook.calls[0][1], hook.calls[-1][1]) == ("10.0.0.9:4711", response)


@pytest.mark.parametrize(
    ("raises", "code", "count"),
    [
        ({"request": AbortProcessError(ResponseCode.NO_PERMISSION, "no")}, ResponseCode.NO_PERMISSION, 0),
        ({"request": KeyError("no")}, ResponseCode.SYSTEM_ERROR, 0),
        ({"response": AbortProcessError(ResponseCode.NO_PERMISSION, "no")}, ResponseCode.NO_PERMISSION, 1),
        ({"response": KeyError("no")}, ResponseCode.SYSTEM_ERROR, 1),
    ],
)
def test_an_rpc_hook_that_raises_is_the_answer(
    store: MessageStore, raises: dict[str, Exception], code: ResponseCode, count: int
) -> None:
    """NettyRemotingAbstract.buildProcessRequestHandler; after the send the message is stored all the same."""
    response = SendMessageHandler(store, rpc_hooks=[Recorder(**raises)]).send(ORDER)
    assert (response.code, "no" in str(response.remark)) == (code, True)
    assert store.max_offset("Orders", 1) == count


def test_rpc_hooks_after_a_request_are_told_of_one_that_failed_before_it(store: MessageStore) -> None:
    """NettyRemotingAbstract.buildProcessRequestHandler: SYSTEM_ERROR goes to doAfterRpcHooks in place of what was not sent."""
    failing, other = Recorder(request=KeyError("no")), Recorder()
    response = SendMessageHandler(store, rpc_hooks=[failing, other]).send(ORDER)
    assert (failing.names, other.names) == (["request", "response"], ["response"])
    assert other.calls[0][1] == SendResponse(ResponseCode.SYSTEM_ERROR)
    assert response == SendResponse(ResponseCode.SYSTEM_ERROR, "KeyError, 'no'")


def test_an_rpc_hook_that_aborts_is_the_last(store: MessageStore) -> None:
    """NettyRemotingAbstract.buildProcessRequestHandler."""
    hook = Recorder(request=AbortProcessError(ResponseCode.NO_PERMISSION))
    SendMessageHandler(store, rpc_hooks=[hook]).send(ORDER)
    assert hook.names == ["request"]


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"queue_id": 2**31}, "queue_id is 2147483648, which 32 bits do not hold"),
        ({"flag": -(2**31) - 1}, "flag is -2147483649, which 32 bits do not hold"),
        ({"reconsume_times": 2**31}, "reconsume_times is 2147483648, which 32 bits do not hold"),
        ({"born_time_ms": 2**63}, "born_time_ms is 9223372036854775808, which 64 bits do not hold"),
        ({"born_host": b"abc"}, "born_host has 3 bytes; an address and its port have 8, or 20"),
    ],
)
def test_a_request_that_no_header_holds_is_none(fields: dict[str, Any], rule: str) -> None:
    """SendMessageRequestHeader: Integer and Long fields, whose parse throws."""
    with pytest.raises(ValueError, match=re.escape(rule)):
        replace(ORDER, **fields)


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, MessageType.NORMAL),
        ({"__SHARDINGKEY": "s", "DELAY": "1", "TRAN_MSG": "true"}, MessageType.ORDER),
        ({"DELAY": "1", "TRAN_MSG": "true"}, MessageType.DELAY),
        ({"TIMER_DELIVER_MS": "1"}, MessageType.DELAY),
        ({"TIMER_DELAY_SEC": "1"}, MessageType.DELAY),
        ({"TIMER_DELAY_MS": "1"}, MessageType.DELAY),
        ({"TRAN_MSG": "TRUE"}, MessageType.HALF),
        ({"TRAN_MSG": " true"}, MessageType.NORMAL),
    ],
)
def test_hooks_are_told_the_messages_kind(properties: dict[str, str], kind: MessageType) -> None:
    """AbstractSendMessageProcessor.buildMsgContext."""
    assert message_type(properties) == kind


@pytest.mark.parametrize(
    ("resource", "namespace"),
    [
        ("ns%Topic", "ns"),
        ("Topic", ""),
        ("%RETRY%ns%g", "ns"),
        ("%DLQ%ns%g", "ns"),
        ("%RETRY%g", ""),
        ("%x", ""),
        ("rmq_sys_a%b", ""),
        ("TBW102", ""),
        ("CID_RMQ_SYS_a%b", ""),
        ("%RETRY%%DLQ%g", ""),
        ("a%b%c", "a"),
    ],
)
def test_a_namespace_stands_before_the_first_percent_sign(resource: str, namespace: str) -> None:
    """NamespaceUtil.getNamespaceFromResource; the values are its own."""
    assert namespace_of(resource) == namespace


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), (" true", False), ("1", False), (None, False)]
)
def test_only_true_is_true(text: str | None, value: bool) -> None:
    """Boolean.parseBoolean."""
    assert is_true(text) == value


def test_a_plan_holds_what_is_put(store: MessageStore) -> None:
    """The seam for whoever replicates: the put gets messages or columns, the common message and the records' bytes."""
    plans: list[PutPlan] = []
    handler = SendMessageHandler(store, put=lambda plan: plans.append(plan) or PutOutcome(PutStatus.PUT_OK, APPENDED))
    handler.send(ORDER)
    (plan,) = plans
    assert (plan.message.topic, len(plan.messages), plan.size_bytes > 91) == ("Orders", 1, True)
