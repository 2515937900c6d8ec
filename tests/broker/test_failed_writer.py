"""Requests to a store whose writer has failed: answered as a put to a store that is not writable, whatever else they would have made.

Java: HookUtils.checkBeforePutMessage (RunningFlags.isWriteable), behind createTopicInSendMessageMethod; handlePutMessageResult,
consumerSendMsgBack, EndTransactionProcessor.sendFinalMessage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from spark_mq.broker.admin_handlers import runtime_info
from spark_mq.broker.broker import Broker
from spark_mq.broker.end_transaction import TransactionEnder, request_for
from spark_mq.broker.requests import Verdict
from spark_mq.broker_server.name_servers import registration
from spark_mq.remoting import read_body
from spark_mq.remoting.routes import RegisterBrokerBody, TopicConfigTable
from storage import MessageStore, StoreConfig, open_store
from storage.errors import StoreNotWritableError
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import DirectService, PutService
from storage.service.served_store import ServedStore
from storage.tables.topics import PERM_READ, PERM_WRITE
from tests.broker.test_send import ORDER
from tests.support.broker_handlers import Returner, Send, Sender, back_request

NOW_MS = 1_750_000_000_000
UNAVAILABLE = ResponseCode.SERVICE_NOT_AVAILABLE
HALF = replace(
    ORDER, sys_flag=4, properties={"UNIQ_KEY": "0A0000010000000000000000000000AB", "TRAN_MSG": "true", "PGROUP": "p"}
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    tiny = StoreConfig.tiny()
    config = replace(tiny, commit_log=replace(tiny.commit_log, mapped_file_size_commit_log=1 << 17))
    opened = open_store(tmp_path / "store", config=config, read_only=False, create=True, clock=lambda: NOW_MS)
    yield opened
    opened.release()


def fail(store: MessageStore) -> None:
    store.writer.fail(RuntimeError("the disk has lost a page"))


@pytest.mark.parametrize("in_front", [DirectService, PutService])
@pytest.mark.parametrize("topic", ["Orders", "New", "%RETRY%fresh"])
def test_a_send_is_answered_whether_it_makes_a_topic_or_not(
    store: MessageStore, topic: str, in_front: type[PutService]
) -> None:
    service = in_front(store)
    handler = Sender(service)
    assert handler.send(ORDER).is_stored
    fail(store)
    response = handler.send(Send(topic=topic, body=b"x", queue_id=0, born_time_ms=NOW_MS))
    assert (response.code, response.is_stored) == (UNAVAILABLE, False)
    assert str(response.remark).startswith("service not available now.")
    if in_front is PutService:
        with suppress(StoreNotWritableError):
            service.close()


def test_a_send_back_is_answered_although_its_topics_cannot_be_made(store: MessageStore) -> None:
    """Java: any status but PUT_OK is SYSTEM_ERROR with the status' name."""
    put = store.put("Orders", b"x")
    fail(store)
    handler = Returner(store)
    request = back_request(commitlog_offset=put.commitlog_offset, group="fresh")
    assert handler.send_back(request) == (ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")
    missing = replace(request, commitlog_offset=store.log_end + 10)
    assert handler.send_back(missing).remark == f"look message by offset failed, {store.log_end + 10}"


@pytest.mark.parametrize("flag", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
def test_a_transaction_is_not_ended(store: MessageStore, flag: int) -> None:
    """Departure: Java acknowledges a rollback, and takes no notice where its op message fails seconds later."""
    assert Sender(store).send(HALF).is_stored
    (half,) = store.get("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0).messages
    fail(store)
    ender = TransactionEnder.of(store, half.born_time_ms)
    answer = ender.end(request_for(half, flag), half.born_time_ms)
    assert answer == Verdict(UNAVAILABLE, "Service not available now.")


def test_name_servers_hear_that_nothing_can_be_written(store: MessageStore) -> None:
    """By another version of the topics too: name servers take no table over whose version they know."""
    store.put("Orders", b"x")
    with PutService(store, starts_duties=False) as service:
        broker = Broker(service, clock=lambda: NOW_MS)
        before = told_topics(broker)
        fail(store)
        after = told_topics(broker)
        parts = broker.parts
        figures = runtime_info(parts.store, parts.clients, parts.traffic, parts.server, NOW_MS)
        assert "storeFailure" in figures
    assert before.topic_config_table["Orders"].perm == PERM_READ | PERM_WRITE
    assert {each.perm & PERM_WRITE for each in after.topic_config_table.values()} == {0}
    assert after.topic_config_table["Orders"].perm == PERM_READ
    assert after.data_version != before.data_version


def told_topics(broker: Broker) -> TopicConfigTable:
    table = read_body(RegisterBrokerBody, registration(broker.parts).body).topic_config_table
    assert table is not None
    return table


def test_a_broker_that_cannot_save_at_its_end_lets_go_of_all_files(store: MessageStore) -> None:
    closed = list[str]()
    with PutService(store, starts_duties=False) as service:
        broker = Broker(service, clock=lambda: NOW_MS)
        with (
            mock.patch.object(ServedStore, "close", side_effect=lambda: closed.append("reads")),
            mock.patch.object(broker, "save_offsets", side_effect=OSError(5, "Input/output error")),
            pytest.raises(OSError, match="Input/output"),
        ):
            broker.close(NOW_MS)
        assert closed == ["reads", "reads"]
        broker.parts.store.served.close()
        broker.parts.store.pulled.close()
