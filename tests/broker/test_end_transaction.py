"""A producer ends its transaction: which requests are refused and how, what is written, and what a second request does.

Cases are EndTransactionProcessor's (5.3.3) where they name nothing else, or departures that spark_mq/broker/end_transaction.py tells.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_mq.broker.end_transaction import TransactionEnder, immunity_ms, judge_request, put_answer, request_for
from spark_mq.broker.requests import Verdict
from spark_mq.remoting.messages import EndTransactionRequest
from storage import Message, MessageStore, StoreConfig, open_store
from storage.errors import StoreNotWritableError
from storage.failpoints import ENVIRONMENT
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from storage.pending import PutStatus
from storage.rules.half_messages import HALF_TOPIC, IMMUNITY, OP_TOPIC, TransactionState, half_message
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.put_guards import BrokerState
from storage.rules.response_codes import ResponseCode
from storage.service.put_group import PutMessageResult, Rows
from storage.settings.nouns import TransactionConfig
from storage.transaction.progress import METRICS_FILE, TransactionCounts
from tests.support.broker_handlers import FakedPuts, end_transaction, ending
from tests.support.held_check import check_half_messages
from tests.support.message_builder import make_message
from tests.support.places import PROJECT

NOW_MS = 1_700_000_000_000
SUCCESS = Verdict(ResponseCode.SUCCESS)
UNTOUCHED = "not set any response code"
"""The remark of a response that Java makes and does not touch (RemotingCommand.createResponseCommand)."""
ROLLED_BACK = Verdict(ResponseCode.SUCCESS, UNTOUCHED)
CONFIG = replace(
    StoreConfig.tiny(),
    transaction=TransactionConfig(transaction_op_batch_interval=3_000, transaction_op_msg_max_size=8),
)
PROPERTIES = {"PGROUP": "P", "REAL_TOPIC": "TopicTx", "REAL_QID": "1", "UNIQ_KEY": "K"}


def open_empty(root: Path | str) -> MessageStore:
    return open_store(root, config=CONFIG, read_only=False, create=True, clock=lambda: NOW_MS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_empty(tmp_path / "store") as opened:
        yield opened


def prepare(store: MessageStore, key: str = "K", properties: Mapping[str, str] | None = None, **fields: Any) -> Message:
    message = InnerMessage(
        topic="TopicTx",
        queue_id=1,
        body=key.encode(),
        properties={"UNIQ_KEY": key, **(properties or {})},
        born_time_ms=NOW_MS,
        **fields,
    )
    places = store.put_inner([half_message(message, "P")])
    return store.message_by_commitlog_offset(places.column("commitlog_offset")[0].as_py())


def bodies(store: MessageStore, topic: str, queue_id: int = 0) -> list[bytes]:
    return [message.body for message in store.get(topic, queue_id, 0, 100).messages]


def committed(store: MessageStore) -> list[bytes]:
    return bodies(store, "TopicTx", 1)


def commit(half: Message, **changes: Any) -> EndTransactionRequest:
    return replace(request_for(half, TRANSACTION_COMMIT), **changes)


def rollback(half: Message, **changes: Any) -> EndTransactionRequest:
    return replace(request_for(half, TRANSACTION_ROLLBACK), **changes)


# What is refused

HALF = replace(make_message(HALF_TOPIC, properties=PROPERTIES), properties=PROPERTIES, born_time_ms=NOW_MS)
IMMUNE = replace(HALF, properties={**PROPERTIES, IMMUNITY: "10"})
ERROR = ResponseCode.SYSTEM_ERROR
NOT_FOUND = (ERROR, "Find prepared transaction message failed")
JUDGED = {
    "processRequest: what is right passes": (HALF, {}, (ResponseCode.SUCCESS, UNTOUCHED)),
    "processRequest: unknown is not answered": (HALF, {"commit_or_rollback": 0}, None),
    "processRequest: unknown from a check is not answered": (
        HALF,
        {"commit_or_rollback": 0, "from_transaction_check": True},
        None,
    ),
    "processRequest: a state that is none is not answered": (HALF, {"commit_or_rollback": TRANSACTION_PREPARED}, None),
    "checkPrepareMessage: another producer group": (
        HALF,
        {"producer_group": "Other"},
        (ERROR, "The producer group wrong"),
    ),
    "checkPrepareMessage: no producer group, where Java throws": (
        replace(HALF, properties={}),
        {},
        (ERROR, "The producer group wrong"),
    ),
    "checkPrepareMessage: another queue offset": (
        HALF,
        {"half_queue_offset": 1},
        (ERROR, "The transaction state table offset wrong"),
    ),
    "checkPrepareMessage: another place in the log": (
        HALF,
        {"half_commitlog_offset": 1},
        (ERROR, "The commit log offset wrong"),
    ),
    "checkPrepareMessage: the group is looked at before the offsets": (
        HALF,
        {"producer_group": "Other", "half_queue_offset": 1},
        (ERROR, "The producer group wrong"),
    ),
    "getHalfMessageByOffset: nothing there": (None, {}, NOT_FOUND),
    "departure: a message of another topic is no half": (replace(HALF, topic="TopicTx"), {}, NOT_FOUND),
    "rejectCommitOrRollback: in time": (IMMUNE, {}, (ResponseCode.SUCCESS, UNTOUCHED)),
    "rejectCommitOrRollback: too late": (
        replace(IMMUNE, born_time_ms=NOW_MS - 10_001),
        {},
        (ResponseCode.ILLEGAL_OPERATION, UNTOUCHED),
    ),
    "rejectCommitOrRollback: at the last millisecond": (
        replace(IMMUNE, born_time_ms=NOW_MS - 10_000),
        {},
        (ResponseCode.SUCCESS, UNTOUCHED),
    ),
    "rejectCommitOrRollback: too late, but from a check": (
        replace(IMMUNE, born_time_ms=NOW_MS - 10_001),
        {"from_transaction_check": True},
        (ResponseCode.SUCCESS, UNTOUCHED),
    ),
    "rejectCommitOrRollback: without an immunity nothing is too late": (
        replace(HALF, born_time_ms=0),
        {},
        (ResponseCode.SUCCESS, UNTOUCHED),
    ),
    "rejectCommitOrRollback: lateness is looked at before the group": (
        replace(IMMUNE, born_time_ms=NOW_MS - 10_001),
        {"producer_group": "Other"},
        (ResponseCode.ILLEGAL_OPERATION, UNTOUCHED),
    ),
}


@pytest.mark.parametrize("state", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK], ids=["commit", "rollback"])
@pytest.mark.parametrize(("half", "changes", "expected"), JUDGED.values(), ids=JUDGED.keys())
def test_a_request_is_judged(
    half: Message | None, changes: dict[str, Any], expected: tuple[ResponseCode, str | None] | None, state: int
) -> None:
    request = replace(request_for(HALF, state), **changes)
    response = judge_request(request, half, transaction_timeout_ms=6_000, now_ms=NOW_MS)
    assert (None if response is None else (response.code, response.remark)) == expected


def test_a_slave_ends_nothing() -> None:
    """processRequest, before all else."""
    request = replace(request_for(HALF, 0), producer_group="Other")
    response = judge_request(request, None, transaction_timeout_ms=6_000, now_ms=NOW_MS, is_slave=True)
    assert response == Verdict(ResponseCode.SLAVE_NOT_AVAILABLE, UNTOUCHED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10", 10_000), ("1", 6_000), ("-1", 6_000), ("soon", 6_000), ("", 6_000)],
)
def test_an_immunity_is_at_least_the_timeout(text: str, expected: int) -> None:
    """TransactionalMessageUtil.getImmunityTime."""
    assert immunity_ms(text, 6_000) == expected


def test_an_offset_that_is_none_finds_nothing(store: MessageStore) -> None:
    """getHalfMessageByOffset."""
    half = prepare(store)
    for place in (half.commitlog_offset + 1, store.log_end, 1 << 40, -1):
        assert end_transaction(store, commit(half, half_commitlog_offset=place), NOW_MS) == Verdict(*NOT_FOUND)
    assert (committed(store), bodies(store, OP_TOPIC)) == ([], [])


def test_a_half_that_does_not_say_where_it_belongs_is_illegal(store: MessageStore) -> None:
    """endMessageTransaction throws."""
    half = prepare(store)
    broken = {name: value for name, value in half.properties.items() if name != "REAL_QID"}
    places = store.put_inner([replace(InnerMessage.of(half), properties=broken)])
    other = store.message_by_commitlog_offset(places.column("commitlog_offset")[0].as_py())
    response = end_transaction(store, commit(other), NOW_MS)
    assert response == Verdict(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
    assert bodies(store, OP_TOPIC) == []


ILLEGAL = (
    "The message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 4194304B, msg properties length limit 32KB."
)
TIMER_ILLEGAL = (
    "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; "
    "or if set del msg, the delay time should be bigger than the current time"
)
TIMER_CONGESTED = (
    "timer message is under flow control, max num limit is 4294967294 or the current value is greater than 2147483647 "
    "and less than 4294967294, trigger random flow control"
)


@pytest.mark.parametrize(
    ("status", "code", "remark"),
    [
        (PutStatus.PUT_OK, ResponseCode.SUCCESS, None),
        (PutStatus.FLUSH_DISK_TIMEOUT, ResponseCode.SUCCESS, None),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, ResponseCode.SUCCESS, None),
        (PutStatus.SLAVE_NOT_AVAILABLE, ResponseCode.SUCCESS, None),
        (PutStatus.CREATE_MAPPED_FILE_FAILED, ERROR, "Create mapped file failed."),
        (PutStatus.MESSAGE_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL, ILLEGAL),
        (PutStatus.PROPERTIES_SIZE_EXCEEDED, ResponseCode.MESSAGE_ILLEGAL, ILLEGAL),
        (PutStatus.SERVICE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now."),
        (PutStatus.OS_PAGE_CACHE_BUSY, ERROR, "OS page cache busy, please try another machine"),
        (PutStatus.WHEEL_TIMER_MSG_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL, TIMER_ILLEGAL),
        (PutStatus.WHEEL_TIMER_FLOW_CONTROL, ERROR, TIMER_CONGESTED),
        (PutStatus.WHEEL_TIMER_NOT_ENABLE, ERROR, "accurate timer message is not enabled, timerWheelEnable is true"),
        (PutStatus.UNKNOWN_ERROR, ERROR, "UNKNOWN_ERROR"),
        (PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, ERROR, "in-sync replicas not enough"),
        (PutStatus.PUT_TO_REMOTE_BROKER_FAIL, ERROR, "put to remote broker fail"),
        (PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED, ERROR, "UNKNOWN_ERROR DEFAULT"),
    ],
    ids=lambda value: value.name if isinstance(value, PutStatus) else "",
)
def test_how_the_put_of_a_commit_ended_is_answered(status: PutStatus, code: ResponseCode, remark: str | None) -> None:
    """EndTransactionProcessor.sendFinalMessage; the defaults of MessageStoreConfig."""
    assert put_answer(status, StoreConfig(), 4_194_304) == Verdict(code, remark)


# What is written


def test_commit_writes_the_message_and_then_the_op_message(store: MessageStore) -> None:
    """processRequest, endMessageTransaction, TransactionalMessageServiceImpl.deletePrepareMessage."""
    half = prepare(store, properties={"TAGS": "T", "k": "v"}, flag=9, reconsume_times=2)
    assert end_transaction(store, commit(half), NOW_MS) == SUCCESS
    (message,) = store.get("TopicTx", 1, 0).messages
    assert message.properties == half.properties
    assert (message.body, message.flag, message.reconsume_times, message.tags) == (b"K", 9, 2, "T")
    assert (message.sys_flag, message.prepared_transaction_offset) == (TRANSACTION_COMMIT, half.commitlog_offset)
    assert (message.born_time_ms, message.born_host) == (half.born_time_ms, half.born_host)
    (op,) = store.get(OP_TOPIC, 0, 0).messages
    assert op.body == b"0,"
    assert op.commitlog_offset > message.commitlog_offset


def test_rollback_writes_the_op_message_only(store: MessageStore) -> None:
    half = prepare(store)
    assert end_transaction(store, rollback(half), NOW_MS) == ROLLED_BACK
    assert (committed(store), bodies(store, OP_TOPIC)) == ([], [b"0,"])


def test_unknown_writes_nothing_and_is_not_answered(store: MessageStore) -> None:
    half = prepare(store)
    end = store.log_end
    assert end_transaction(store, request_for(half, 0), NOW_MS) is None
    assert store.log_end == end


def test_op_messages_of_commits_are_written_together_and_a_rollbacks_at_once(store: MessageStore) -> None:
    """TransactionalOpBatchService, batchSendOpMessage: after three seconds, or with eight bytes here."""
    halves = [prepare(store, f"K{number}") for number in range(9)]
    ender = TransactionEnder.of(store, NOW_MS)
    for half in halves[:2]:
        assert ender.end(commit(half), NOW_MS) == SUCCESS
    ender.write_due(NOW_MS + 2_999)
    assert bodies(store, OP_TOPIC) == []
    ender.write_due(NOW_MS + 3_000)
    for half in halves[2:6]:
        ender.end(commit(half), NOW_MS + 3_001)
    ender.end(commit(halves[6]), NOW_MS + 3_002)
    ender.end(rollback(halves[7]), NOW_MS + 3_003)
    ender.end(commit(halves[8]), NOW_MS + 3_004)
    assert bodies(store, OP_TOPIC) == [b"0,1,", b"2,3,4,5,", b"6,7,"]
    ender.close(NOW_MS + 3_005)
    assert bodies(store, OP_TOPIC) == [b"0,1,", b"2,3,4,5,", b"6,7,", b"8,"]


def test_what_is_committed_counts_by_topic_and_as_the_brokers(store: MessageStore) -> None:
    """EndTransactionProcessor.sendFinalMessage, TransactionalMessageBridge.putMessageReturnResult (incBrokerPutNums)."""
    ender = TransactionEnder.of(store, NOW_MS)
    ender.end(commit(prepare(store, "K1")), NOW_MS)
    ender.end(rollback(prepare(store, "K2")), NOW_MS)
    numbers = {topic: (sum_.value, sum_.times) for topic, sum_ in ender.statistics.topic_put_nums.items()}
    assert numbers == {"TopicTx": (1, 1), OP_TOPIC: (1, 1)}
    committed_size = store.get("TopicTx", 1, 0, 1).messages[0].size_bytes
    assert ender.statistics.topic_put_size["TopicTx"].value == committed_size
    assert (ender.statistics.broker_put_nums, ender.statistics.broker_put_nums_without_system_topic) == (2, 1)


@pytest.mark.parametrize(
    "status", [PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE]
)
def test_a_commit_whose_disk_or_slave_is_late_stands_and_gets_its_op_message(
    store: MessageStore, status: PutStatus
) -> None:
    """EndTransactionProcessor.sendFinalMessage and processRequest; what is late is not counted."""
    ender = TransactionEnder(FakedPuts(store, lambda _, put: put()._replace(status=status)), NOW_MS)
    assert ender.end(commit(prepare(store)), NOW_MS) == SUCCESS
    ender.close(NOW_MS)
    assert (committed(store), bodies(store, OP_TOPIC)) == ([b"K"], [b"0,"])
    assert ender.statistics.broker_put_nums == 0


def test_a_commit_that_is_not_stored_ends_nothing(store: MessageStore) -> None:
    """EndTransactionProcessor.processRequest: deletePrepareMessage only behind SUCCESS."""
    ender = TransactionEnder(ending(store, PutStatus.CREATE_MAPPED_FILE_FAILED), NOW_MS)
    response = ender.end(commit(prepare(store)), NOW_MS)
    assert response == Verdict(ERROR, "Create mapped file failed.")
    ender.close(NOW_MS)
    assert bodies(store, OP_TOPIC) == []
    assert store.state(METRICS_FILE, TransactionCounts.load) is None


def test_a_rollback_whose_op_message_cannot_be_written_is_not_acknowledged(store: MessageStore) -> None:
    """Departure: Java acknowledges it, and takes no notice where its op message fails seconds later (batchSendOpMessage)."""
    ender = TransactionEnder(ending(store, PutStatus.UNKNOWN_ERROR, reason="disk full"), NOW_MS)
    answer = Verdict(ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now.")
    assert ender.end(rollback(prepare(store)), NOW_MS) == answer
    with pytest.raises(StoreNotWritableError, match="no op message: disk full"):
        ender.close(NOW_MS)


def test_a_commit_is_done_although_its_op_message_cannot_be_written(store: MessageStore) -> None:
    """TransactionalMessageServiceImpl.deletePrepareMessage: the op message waits, and is written later."""
    fails = [True]

    def put_but_ops(messages: Rows, put: Callable[[], PutMessageResult]) -> PutMessageResult:
        if fails and not isinstance(messages, InnerMessages) and messages[0].topic == OP_TOPIC:
            return PutMessageResult(PutStatus.UNKNOWN_ERROR, reason="disk full")
        return put()

    ender = TransactionEnder(FakedPuts(store, put_but_ops), 0)  # an op message is due at once
    assert ender.end(commit(prepare(store)), NOW_MS) == SUCCESS
    assert bodies(store, OP_TOPIC) == []
    fails.clear()
    ender.close(NOW_MS)
    assert (committed(store), bodies(store, OP_TOPIC)) == ([b"K"], [b"0,"])


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        (BrokerState(is_slave=True), Verdict(ResponseCode.SLAVE_NOT_AVAILABLE, UNTOUCHED)),
        *(
            (state, Verdict(ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now."))
            for state in (BrokerState(is_shut_down=True), BrokerState(is_writable=False))
        ),
        (
            BrokerState(is_os_page_cache_busy=True),
            Verdict(ERROR, "OS page cache busy, please try another machine"),
        ),
    ],
)
def test_the_brokers_state_keeps_a_commit_out(store: MessageStore, state: BrokerState, answer: Verdict) -> None:
    """EndTransactionProcessor.processRequest, HookUtils.checkBeforePutMessage; rejectRequest lets all requests in."""
    ender = TransactionEnder.of(store, NOW_MS)
    ender.state = state
    assert ender.end(commit(prepare(store)), NOW_MS) == answer
    assert (committed(store), bodies(store, OP_TOPIC)) == ([], [])


def test_a_busy_store_takes_a_commit_that_nobody_would_hear_of(store: MessageStore) -> None:
    ender = TransactionEnder.of(store, NOW_MS)
    ender.state = BrokerState(is_os_page_cache_busy=True)
    answer = ender.end(commit(prepare(store)), NOW_MS, is_heard=False)
    assert answer is not None
    assert (answer.code, committed(store)) == (ResponseCode.SUCCESS, [b"K"])


def test_a_commit_to_a_topic_that_is_too_long_is_illegal(store: MessageStore) -> None:
    """HookUtils.checkBeforePutMessage: the half's own topic was short enough."""
    half = prepare(store)
    longer = replace(InnerMessage.of(half), properties={**half.properties, "REAL_TOPIC": "t" * 128})
    places = store.put_inner([longer])
    other = store.message_by_commitlog_offset(places.column("commitlog_offset")[0].as_py())
    assert end_transaction(store, commit(other), NOW_MS) == Verdict(ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)


def test_a_half_that_does_not_say_its_topic_is_rolled_back_and_counts_nowhere(store: MessageStore) -> None:
    """Java's TransactionMetrics.addAndGet(null) throws, behind deletePrepareMessage."""
    half = prepare(store)
    lost = {name: value for name, value in half.properties.items() if name != "REAL_TOPIC"}
    places = store.put_inner([replace(InnerMessage.of(half), properties=lost)])
    other = store.message_by_commitlog_offset(places.column("commitlog_offset")[0].as_py())
    assert end_transaction(store, rollback(other), NOW_MS) == ROLLED_BACK
    assert bodies(store, OP_TOPIC) == [b"1,"]
    assert store.state(METRICS_FILE, TransactionCounts.load) is None


def test_counts_go_down_once_for_each_ending(store: MessageStore) -> None:
    """TransactionMetrics.addAndGet."""
    first, second = prepare(store, "K1"), prepare(store, "K2")
    for request in (commit(first), commit(first), rollback(second), rollback(second)):
        end_transaction(store, request, NOW_MS)
    counts = store.state(METRICS_FILE, TransactionCounts.load)
    assert counts is not None
    assert counts.counts == {"TopicTx": -2}


# The second request


def test_a_second_commit_is_answered_and_writes_nothing(store: MessageStore) -> None:
    """Departure: Java stores it twice (apache/rocketmq#5574)."""
    half = prepare(store)
    ender = TransactionEnder.of(store, NOW_MS)
    for _ in range(3):  # its op message waits in memory all the time
        assert ender.end(commit(half), NOW_MS) == SUCCESS
    ender.close(NOW_MS)
    assert end_transaction(store, commit(half), NOW_MS) == SUCCESS
    assert (committed(store), bodies(store, OP_TOPIC)) == ([b"K"], [b"0,"])


@pytest.mark.parametrize(("first", "second"), [(commit, rollback), (rollback, commit)], ids=["commit", "rollback"])
def test_what_contradicts_the_first_ending_is_refused(store: MessageStore, first: Any, second: Any) -> None:
    """Departure: Java commits what was rolled back, and answers SUCCESS to a rollback of what is visible."""
    half = prepare(store)
    end_transaction(store, first(half), NOW_MS)
    before = committed(store)
    response = end_transaction(store, second(half), NOW_MS)
    assert response is not None
    assert response.code == ResponseCode.ILLEGAL_OPERATION
    assert (committed(store), bodies(store, OP_TOPIC)) == (before, [b"0,"])


def test_ends_of_two_copies_of_a_half_are_ends_of_one_transaction(store: MessageStore) -> None:
    """Departure: Java commits each of them."""
    half = prepare(store)
    report = check_half_messages(store, lambda _: "unknown", NOW_MS + 60_000)
    ((place, _),) = report.to_check_again
    copy = store.message_by_commitlog_offset(place)
    assert end_transaction(store, commit(copy, from_transaction_check=True), NOW_MS) == SUCCESS
    assert end_transaction(store, commit(half), NOW_MS) == SUCCESS
    assert committed(store) == [b"K"]


def test_a_rollback_of_a_later_copy_holds_for_the_first_half(store: MessageStore) -> None:
    half = prepare(store)
    report = check_half_messages(store, lambda _: "unknown", NOW_MS + 60_000)
    copy = store.message_by_commitlog_offset(report.to_check_again[0][0])
    end_transaction(store, rollback(copy, from_transaction_check=True), NOW_MS)
    response = end_transaction(store, commit(half), NOW_MS)
    assert response is not None
    assert response.code == ResponseCode.ILLEGAL_OPERATION
    assert committed(store) == []


@pytest.mark.parametrize("end", [commit, rollback], ids=["commit", "rollback"])
def test_the_op_message_names_the_later_copies_too(store: MessageStore, end: Any) -> None:
    """Departure: Java names the half of the request only, and asks about the copy as if it were another transaction's."""
    half = prepare(store)
    prepare(store, "another")
    for number in range(1, 3):
        check_half_messages(store, lambda _: "unknown", NOW_MS + number * 60_000)
    end_transaction(store, end(half), NOW_MS)
    end_transaction(store, end(half), NOW_MS)
    assert bodies(store, OP_TOPIC) == [b"0,2,4,"]


def test_halves_without_unique_keys_are_told_apart_by_their_places(store: MessageStore) -> None:
    message = InnerMessage(topic="TopicTx", queue_id=1, body=b"b", properties={})
    places = store.put_inner([half_message(message, "P")] * 2).column("commitlog_offset").to_pylist()
    first, second = (store.message_by_commitlog_offset(place) for place in places)
    for half in (first, second, first):
        assert end_transaction(store, commit(half), NOW_MS) == SUCCESS
    assert committed(store) == [b"b", b"b"]


def test_without_an_index_a_second_commit_is_still_found(tmp_path: Path) -> None:
    config = replace(CONFIG, index=replace(CONFIG.index, message_index_enable=False))
    with open_store(tmp_path / "s", config=config, read_only=False, create=True, clock=lambda: NOW_MS) as store:
        half = prepare(store)
        for _ in range(2):
            assert end_transaction(store, commit(half), NOW_MS) == SUCCESS
        assert committed(store) == [b"K"]


# A crash in between


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize(
    ("state", "failpoint", "by_check"),
    [
        pytest.param(TRANSACTION_COMMIT, "half-committed", True, id="behind the commit record, then a check"),
        pytest.param(TRANSACTION_COMMIT, "half-committed", False, id="behind the commit record, then the same request"),
        pytest.param(TRANSACTION_COMMIT, "op-written", False, id="behind the op message, then the same request"),
        pytest.param(TRANSACTION_ROLLBACK, "op-written", True, id="behind a rollback, then a check"),
    ],
)
def test_a_killed_ending_is_gone_on_with(tmp_path: Path, failpoint: str, state: int, by_check: bool) -> None:
    root = tmp_path / "store"
    process = subprocess.run(
        [sys.executable, "-m", __name__, str(root), str(state)],
        cwd=PROJECT,
        env={**os.environ, ENVIRONMENT: failpoint},
        check=False,
    )
    assert process.returncode == -signal.SIGKILL
    with open_empty(root) as store:
        if by_check:
            answer = "commit" if state == TRANSACTION_COMMIT else "rollback"
            check_half_messages(store, lambda _: answer, NOW_MS + 60_000)
        else:
            (half,) = store.get(HALF_TOPIC, 0, 0).messages
            assert end_transaction(store, request_for(half, state), NOW_MS) == SUCCESS
        assert committed(store) == ([b"K"] if state == TRANSACTION_COMMIT else [])
        assert bodies(store, OP_TOPIC) == [b"0,"]


if __name__ == "__main__":
    with open_empty(sys.argv[1]) as opened:
        end_transaction(opened, request_for(prepare(opened), int(sys.argv[2])), NOW_MS)


# The same unique key again


@pytest.mark.parametrize("first", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_looked_up", [False, True])
def test_a_half_that_is_sent_again_with_its_key_is_a_transaction_of_its_own(
    tmp_path: Path, first: int, *, is_restarted: bool, is_looked_up: bool
) -> None:
    with open_empty(tmp_path / "store") as store:
        if not is_looked_up:
            store.writer.ends.indexed_from = None
        ender = TransactionEnder.of(store, NOW_MS)
        once = prepare(store)
        assert ender.end(request_for(once, first), NOW_MS) in (SUCCESS, ROLLED_BACK)
        again = prepare(store)
        if is_restarted:
            ender.close(NOW_MS)
            ender = TransactionEnder.of(store, NOW_MS)
        assert ender.end(commit(again), NOW_MS) == SUCCESS
        assert ender.end(commit(again), NOW_MS) == SUCCESS  # told twice
        by_first = [] if first == TRANSACTION_ROLLBACK else [b"K"]
        assert committed(store) == [*by_first, b"K"]
        assert ender.end(request_for(once, first), NOW_MS) in (SUCCESS, ROLLED_BACK)
        assert committed(store) == [*by_first, b"K"]
        refused = ender.end(rollback(again), NOW_MS)
        assert refused is not None
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        ender.close(NOW_MS)
        assert set(b",".join(bodies(store, OP_TOPIC)).decode().strip(",").replace(",,", ",").split(",")) == {"0", "1"}


@pytest.mark.parametrize(
    "endings", [(TRANSACTION_COMMIT, TRANSACTION_COMMIT), (TRANSACTION_ROLLBACK, TRANSACTION_COMMIT)]
)
@pytest.mark.parametrize("is_looked_up", [False, True])
def test_two_open_halves_of_one_key_are_ended_each_for_itself(
    tmp_path: Path, endings: tuple[int, int], *, is_looked_up: bool
) -> None:
    with open_empty(tmp_path / "store") as store:
        if not is_looked_up:
            store.writer.ends.indexed_from = None
        halves = [prepare(store), prepare(store)]
        for half, ending in zip(halves, endings, strict=True):
            end_transaction(store, request_for(half, ending), NOW_MS)
        assert committed(store) == [b"K"] * endings.count(TRANSACTION_COMMIT)


def test_a_check_asks_about_a_half_whose_key_was_ended_before(store: MessageStore) -> None:
    end_transaction(store, commit(prepare(store)), NOW_MS)
    prepare(store)
    report = check_half_messages(store, lambda half: TransactionState.COMMIT, NOW_MS + 60_000)
    assert (report.committed, report.found_ended) == (1, 0)
    assert committed(store) == [b"K", b"K"]


def test_a_check_asks_about_each_of_two_open_halves_of_one_key(store: MessageStore) -> None:
    prepare(store)
    prepare(store)
    report = check_half_messages(store, lambda half: TransactionState.COMMIT, NOW_MS + 60_000)
    assert report.committed == 2
    assert committed(store) == [b"K", b"K"]


@pytest.mark.parametrize("is_looked_up", [False, True])
def test_an_answer_for_the_copy_of_a_half_is_none_for_the_half_that_was_sent_again(
    tmp_path: Path, *, is_looked_up: bool
) -> None:
    with open_empty(tmp_path / "store") as store:
        if not is_looked_up:
            store.writer.ends.indexed_from = None
        once = prepare(store)
        check_half_messages(store, lambda half: TransactionState.UNKNOWN, NOW_MS + 60_000)  # a copy stands behind it
        again = prepare(store)
        assert end_transaction(store, commit(once), NOW_MS + 60_000) == SUCCESS
        assert end_transaction(store, commit(again), NOW_MS + 60_000) == SUCCESS
        assert end_transaction(store, commit(once), NOW_MS + 60_000) == SUCCESS
        assert committed(store) == [b"K", b"K"]
        report = check_half_messages(store, lambda half: TransactionState.COMMIT, NOW_MS + 120_000)
        assert (report.committed, committed(store)) == (0, [b"K", b"K"])


def test_a_commit_counts_that_names_a_half_that_has_expired(tmp_path: Path) -> None:
    """Its copy still stands, and no op message."""
    with open_empty(tmp_path / "store") as store:
        half = prepare(store)
        file_size = store.log.file_size_bytes or 0
        filler = InnerMessage(
            topic="Filler", queue_id=0, body=bytes(file_size // 4), properties={}, born_time_ms=NOW_MS
        )
        while store.log_end < file_size:
            store.put_inner([filler])
        check_half_messages(store, lambda half: TransactionState.UNKNOWN, NOW_MS + 60_000)
        ender = TransactionEnder.of(store, NOW_MS + 60_000)
        assert ender.end(commit(half), NOW_MS + 60_000) == SUCCESS
        assert (committed(store), bodies(store, OP_TOPIC)) == ([b"K"], [])  # it is still in memory, and lost
    (tmp_path / "store" / "commitlog" / f"{0:020d}").unlink()
    with open_store(tmp_path / "store", config=CONFIG, read_only=False, clock=lambda: NOW_MS) as store:
        report = check_half_messages(store, lambda half: TransactionState.COMMIT, NOW_MS + 120_000)
        assert (report.committed, report.found_ended, committed(store)) == (0, 1, [b"K"])
