"""Sends that wait for replicas: what a client hears as replicas come, acknowledge, stop and go. Java: CommitLog.handleHA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from spark_mq.broker.end_transaction import TransactionEnder, request_for
from storage import open_store
from storage.errors import StoreNotWritableError
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.rules.half_messages import HALF_TOPIC
from storage.rules.inner_messages import InnerMessage, InnerMessages
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.tables.topics import TopicConfig
from tests.broker.put_stores import config_of
from tests.broker.test_send import ORDER, PAST_MS
from tests.support.broker_handlers import Send, Sender
from tests.support.java_broker import wait_until

LONG_MS, SHORT_MS = "60000", "30"
UNHURRIED_S = 30


class Master:
    """A SYNC_MASTER's send handler; a test tells what its replicas hold."""

    def __init__(self, root: Path, **settings: str) -> None:
        config = config_of("plain", brokerRole="SYNC_MASTER", **settings)
        self.store = open_store(root, config=config, read_only=False, create=True, holder="broker")
        self.store.save_topic(TopicConfig("Orders", 4, 4))
        self.service = PutService(self.store)

    @property
    def end(self) -> int:
        with self.service.exclusive() as store:
            return store.writer.log_end

    def send(self, request: Send = ORDER) -> ResponseCode:
        return Sender(self.service).send(request).code


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Callable[..., Master]]:
    made: list[Master] = []

    def make(**settings: str) -> Master:
        made.append(Master(tmp_path / "store", **settings))
        return made[-1]

    yield make
    for each in made:
        each.service.close()


@contextmanager
def sending(master: Master, request: Send = ORDER) -> Iterator[Future[ResponseCode]]:
    """A send in a thread of its own, that stands in the log and waits."""
    before = master.end
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(master.send, request)
        while master.end == before:
            pass
        yield answer
        answer.result(UNHURRIED_S)


def test_a_send_is_answered_when_a_replica_holds_it(master: Callable[..., Master]) -> None:
    broker = master(inSyncReplicas="2", slaveTimeout=LONG_MS)
    with sending(broker) as answer:
        broker.service.acks.see({"a": broker.end - 1})
        assert not answer.done()
        broker.service.acks.see({"a": broker.end})
        assert answer.result(UNHURRIED_S) is ResponseCode.SUCCESS


def test_a_send_that_no_replica_holds_in_time_is_stored_once_and_readable(master: Callable[..., Master]) -> None:
    broker = master(inSyncReplicas="2", slaveTimeout=SHORT_MS)
    assert broker.send() is ResponseCode.FLUSH_SLAVE_TIMEOUT
    with broker.service.exclusive() as store:
        assert sum(store.max_offset("Orders", queue) for queue in range(4)) == 1


def test_what_a_replica_has_acknowledged_before_counts_for_nothing_that_comes_later(
    master: Callable[..., Master],
) -> None:
    broker = master(inSyncReplicas="2", slaveTimeout=SHORT_MS)
    broker.service.acks.see({"a": broker.end})
    assert broker.send() is ResponseCode.FLUSH_SLAVE_TIMEOUT


def test_a_message_that_says_so_waits_for_nobody(master: Callable[..., Master]) -> None:
    broker = master(inSyncReplicas="2", slaveTimeout=LONG_MS)
    assert broker.send(replace(ORDER, properties={**ORDER.properties, "WAIT": "false"})) is ResponseCode.SUCCESS


def test_with_defaults_a_sync_master_waits_for_nobody(master: Callable[..., Master]) -> None:
    assert master(slaveTimeout=LONG_MS).send() is ResponseCode.SUCCESS


def test_too_few_replicas_are_refused_with_nothing_stored(master: Callable[..., Master]) -> None:
    broker = master(inSyncReplicas="2", slaveTimeout=LONG_MS, enableSlaveActingMaster="true", totalReplicas="2")
    end = broker.end
    assert broker.send() is ResponseCode.SYSTEM_ERROR
    assert broker.end == end
    broker.service.acks.see({"a": end})
    with sending(broker) as answer:
        broker.service.acks.see({"a": broker.end})
        assert answer.result(UNHURRIED_S) is ResponseCode.SUCCESS


def test_a_store_that_closes_lets_nobody_wait(master: Callable[..., Master]) -> None:
    broker = master(inSyncReplicas="2", slaveTimeout=LONG_MS)
    with sending(broker) as answer:
        broker.service.acks.close()
        assert answer.result(UNHURRIED_S) is ResponseCode.FLUSH_SLAVE_TIMEOUT


def test_sends_that_wait_for_a_disk_and_a_replica_need_no_thread(master: Callable[..., Master]) -> None:
    broker = master(inSyncReplicas="2", slaveTimeout=LONG_MS, flushDiskType="SYNC_FLUSH")
    handler = Sender(broker.service)
    told: list[int] = []
    begun = [handler.begin(ORDER) for _ in range(50)]

    def seconds() -> list[float]:
        asked = [pending.when_settled(partial(told.append, at)) for at, pending in enumerate(begun)]
        return [found for found in asked if found is not None]

    assert len(seconds()) == 50
    broker.service.sync_turn()  # beside the duty's own
    wait_until(lambda: min(seconds()) > 50, "all are synced")
    told.clear()
    broker.service.acks.see({"a": broker.end})
    assert set(told) == set(range(50))
    assert {pending().code for pending in begun} == {ResponseCode.SUCCESS}


def test_a_send_that_is_refused_is_settled_at_once(master: Callable[..., Master]) -> None:
    broker = master(inSyncReplicas="2", slaveTimeout=LONG_MS)
    pending = Sender(broker.service).begin(replace(ORDER, topic="bad topic"))
    assert pending.when_settled(lambda: None) is None
    assert pending().code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("state", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
def test_ends_of_transactions_wait_for_no_replica(master: Callable[..., Master], state: int) -> None:
    broker = master(inSyncReplicas="2", slaveTimeout=LONG_MS)
    half = {**ORDER.properties, "TRAN_MSG": "true", "PGROUP": "producers", "WAIT": "false"}
    assert broker.send(replace(ORDER, properties=half)) is ResponseCode.SUCCESS
    broker.service.flush()
    ender = TransactionEnder(broker.service, PAST_MS)
    with broker.service.exclusive() as store:
        (stored,) = store.get(HALF_TOPIC, 0, 0).messages
    answer = ender.end(request_for(stored, state), PAST_MS)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    ender.close(PAST_MS)


def test_a_service_that_refuses_puts_appends_none_and_can_be_read(master: Callable[..., Master]) -> None:
    broker = master()
    assert broker.send() is ResponseCode.SUCCESS
    waiting = broker.service.put_later(
        InnerMessages.of([InnerMessage(topic="Orders", queue_id=0, body=b"late", properties={})])
    )
    broker.service.refuse_puts()
    end = broker.end
    with pytest.raises(StoreNotWritableError, match="no more messages"):
        waiting()
    assert broker.send() is ResponseCode.SERVICE_NOT_AVAILABLE
    assert broker.end == end
    with broker.service.exclusive() as store:
        assert sum(store.max_offset("Orders", queue) for queue in range(4)) == 1
