"""Transactions against planned brokers: what is told of their ends, and what is answered when a broker asks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_mq.client.errors import MessageRefusedError, SendFailedError
from spark_mq.client.message import Message, MessageExt
from spark_mq.client.send_results import SendStatus
from spark_mq.client.settings import ProducerSettings
from spark_mq.client.transaction_producer import TransactionProducer, TransactionState
from spark_mq.remoting import RemotingCommand, RequestCode, make_request, read_header, write_header
from spark_mq.remoting.messages import CheckTransactionStateRequest, EndTransactionRequest
from storage.format.properties import decode_properties
from storage.format.record import encode_record
from tests.client.planned_cluster import PlannedCluster, less_safely, planned_cluster, refuse
from tests.support.message_builder import make_message

MESSAGE = Message("T", b"body", keys="k", delay_level=3)
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


@pytest.fixture
def cluster() -> Iterator[PlannedCluster]:
    with planned_cluster("a") as made:
        yield made


class Listener:
    """Answers what it is told to, and remembers what it was asked."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer
        self.executed: list[tuple[Message, str, object]] = []
        self.checked: list[MessageExt] = []
        self.threads: set[threading.Thread] = set()

    def execute(self, message: Message, transaction_id: str, arg: object) -> Any:
        self.executed.append((message, transaction_id, arg))
        self.threads.add(threading.current_thread())
        return self.answer()

    def check(self, message: MessageExt) -> Any:
        self.checked.append(message)
        self.threads.add(threading.current_thread())
        return self.answer()


def raising() -> None:
    raise RuntimeError("the database is away")


ANSWERS: list[tuple[Callable[[], Any], TransactionState, int]] = [
    (lambda: TransactionState.COMMIT, TransactionState.COMMIT, 8),
    (lambda: TransactionState.ROLLBACK, TransactionState.ROLLBACK, 12),
    (lambda: TransactionState.UNKNOWN, TransactionState.UNKNOWN, 0),
    (lambda: None, TransactionState.UNKNOWN, 0),
    (lambda: "commit", TransactionState.UNKNOWN, 0),
    (raising, TransactionState.UNKNOWN, 0),
]


def end(cluster: PlannedCluster, count: int = 1) -> tuple[RemotingCommand, EndTransactionRequest]:
    command = cluster.brokers["a"].server.until(RequestCode.END_TRANSACTION, count)[-1]
    return command, read_header(EndTransactionRequest, command)


@pytest.mark.parametrize(
    ("answer", "state", "flag"), ANSWERS, ids=["commit", "rollback", "unknown", "none", "text", "error"]
)
def test_the_half_is_sent_the_listener_asked_and_the_end_told(
    cluster: PlannedCluster, answer: Callable[[], Any], state: TransactionState, flag: int
) -> None:
    listener = Listener(answer)
    with TransactionProducer(cluster.settings, "G", listener) as producer:
        result = producer.send_in_transaction(MESSAGE, "arg")
        command, header = end(cluster)
    (half,) = cluster.brokers["a"].sends
    assert half.sys_flag == 4
    properties = decode_properties((half.properties or "").encode())
    assert (properties["TRAN_MSG"], properties["PGROUP"], "DELAY" in properties) == ("true", "G", False)
    assert listener.executed == [(MESSAGE, result.sent.message_id, "arg")]
    assert listener.threads == {threading.current_thread()}
    assert result.state is state
    assert command.is_oneway
    assert header == EndTransactionRequest(
        topic="T",
        producer_group="G",
        half_queue_offset=result.sent.queue_offset,
        half_commitlog_offset=int(result.sent.offset_message_id[16:], 16),
        commit_or_rollback=flag,
        message_id=result.sent.message_id,
        transaction_id=result.sent.message_id,
        broker_name="a",
    )
    told = command.remark or ""
    assert (result.error is None) == (command.remark is None)
    assert result.error is None or type(result.error).__name__ in told


@pytest.mark.parametrize("code", [10, 11, 12])
def test_a_half_that_is_stored_less_safely_is_rolled_back(cluster: PlannedCluster, code: int) -> None:
    cluster.plan(less_safely(code))
    listener = Listener(lambda: TransactionState.COMMIT)
    with TransactionProducer(cluster.settings, "G", listener) as producer:
        result = producer.send_in_transaction(MESSAGE)
        assert end(cluster)[1].commit_or_rollback == 12
    assert result.sent.status is SendStatus(code)
    assert result.state is TransactionState.ROLLBACK
    assert listener.executed == []


def test_a_half_that_is_not_sent_asks_nobody_and_ends_nothing(cluster: PlannedCluster) -> None:
    cluster.plan(refuse(2))
    listener = Listener(lambda: TransactionState.COMMIT)
    with TransactionProducer(cluster.settings, "G", listener) as producer:
        with pytest.raises(SendFailedError):
            producer.send_in_transaction(MESSAGE)
        with pytest.raises(MessageRefusedError, match="cannot be delayed"):
            producer.send_in_transaction(Message("T", b"b", deliver_time_ms=1_800_000_000_000))
    assert listener.executed == []
    assert cluster.commands(RequestCode.END_TRANSACTION) == []


def question(**more: Any) -> RemotingCommand:
    """39, as a broker asks it."""
    properties = {"UNIQ_KEY": "KEY", "PGROUP": "G", "REAL_TOPIC": "T", "TRAN_MSG": "true"}
    record = make_message("T", 3, 17, 4_000, body=b"half", properties=properties)
    header = CheckTransactionStateRequest(
        topic=HALF_TOPIC,
        half_queue_offset=17,
        half_commitlog_offset=4_000,
        message_id="KEY",
        transaction_id="KEY",
        broker_name="a",
    )
    return make_request(
        RequestCode.CHECK_TRANSACTION_STATE, write_header(header), encode_record(record), is_oneway=True
    )


@pytest.mark.parametrize(
    ("answer", "state", "flag"), ANSWERS, ids=["commit", "rollback", "unknown", "none", "text", "error"]
)
def test_when_a_broker_asks_the_listener_answers_in_another_thread(
    cluster: PlannedCluster, answer: Callable[[], Any], state: TransactionState, flag: int
) -> None:
    listener = Listener(answer)
    with TransactionProducer(cluster.settings, "G", listener, topics=["T"]):
        cluster.brokers["a"].server.until(RequestCode.HEART_BEAT)
        cluster.brokers["a"].server.peers[-1].send(question())
        command, header = end(cluster)
    assert command.is_oneway
    assert header == EndTransactionRequest(
        topic=HALF_TOPIC,
        producer_group="G",
        half_queue_offset=17,
        half_commitlog_offset=4_000,
        commit_or_rollback=flag,
        from_transaction_check=True,
        message_id="KEY",
        transaction_id="KEY",
        broker_name="a",
    )
    (asked,) = listener.checked
    assert (asked.topic, asked.queue_id, asked.body, asked.message_id) == ("T", 3, b"half", "KEY")
    (thread,) = listener.threads
    assert thread.name.startswith("spark-mq-checks-G")


def test_a_check_that_exits_its_thread_counts_as_unknown_and_the_next_is_answered(cluster: PlannedCluster) -> None:
    listener = Listener(lambda: sys.exit() if len(listener.checked) == 1 else TransactionState.COMMIT)
    with TransactionProducer(cluster.settings, "G", listener, topics=["T"]):
        cluster.brokers["a"].server.until(RequestCode.HEART_BEAT)
        answers = []
        for count in (1, 2):
            cluster.brokers["a"].server.peers[-1].send(question())
            answers.append(end(cluster, count))
    assert [header.commit_or_rollback for _, header in answers] == [0, 8]
    assert "SystemExit" in (answers[0][0].remark or "")


def test_of_too_many_questions_the_last_are_dropped_and_closing_does_not_wait_for_ever(cluster: PlannedCluster) -> None:
    gate = threading.Event()

    def slowly() -> TransactionState:
        gate.wait(20)
        return TransactionState.COMMIT

    listener = Listener(slowly)
    options = ProducerSettings(check_limit=2)
    producer = TransactionProducer(cluster.settings, "G", listener, options, topics=["T"])
    cluster.brokers["a"].server.until(RequestCode.HEART_BEAT)
    for _ in range(5):
        cluster.brokers["a"].server.peers[-1].send(question())
    end_at = time.monotonic() + 10
    while not listener.checked and time.monotonic() < end_at:
        time.sleep(0.01)
    begun = time.monotonic()
    producer.close(timeout_ms=100)
    assert time.monotonic() - begun < 5
    gate.set()
    assert len(listener.checked) == 1
    assert cluster.commands(RequestCode.END_TRANSACTION) == []
