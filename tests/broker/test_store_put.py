"""Sends to a store that a service puts into: what a client hears when the disk is slow, bad, or held by another put."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from spark_mq.broker.put_plan import state_now
from storage import open_store
from storage.files.local_file_system import LocalFileSystem
from storage.retention import plan_occasion
from storage.rules.put_guards import BrokerState
from storage.rules.response_codes import ResponseCode
from storage.service.put_service import PutService
from storage.settings.nouns import RetentionConfig
from storage.tables.topics import TopicConfig
from tests.broker.put_stores import config_of
from tests.broker.test_send import ORDER
from tests.support.broker_handlers import Send, Sender
from tests.support.gated_disk import PATIENCE_S, GatedDisk

NOW_MS = 1_700_000_000_000


class Broker:
    """A handler in front of a service, with a disk and a time that a test sets."""

    def __init__(self, root: Path) -> None:
        self.disk = GatedDisk()
        self.now_ms = NOW_MS
        config = config_of("plain", flushDiskType="SYNC_FLUSH", syncFlushTimeout="1")
        store = open_store(
            root, config=config, read_only=False, create=True, file_system=self.disk, clock=lambda: self.now_ms
        )
        store.save_topic(TopicConfig("Orders", 4, 4))
        self.service = PutService(store, steady=lambda: self.now_ms)
        self._handler = Sender(self.service)

    def send(self, request: Send = ORDER) -> ResponseCode:
        return ResponseCode(self._handler.send(request).code)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "store")
    yield made
    made.disk.syncs.open()
    made.disk.writes.open()
    made.service.close()


def test_a_send_that_waits_too_long_for_the_disk_is_stored(broker: Broker) -> None:
    """SendMessageProcessor.handlePutMessageResult; a message may say that nobody waits for it (Message.isWaitStoreMsgOK)."""
    broker.disk.syncs.close()
    assert broker.send() == ResponseCode.FLUSH_DISK_TIMEOUT
    assert broker.send(replace(ORDER, properties={**ORDER.properties, "WAIT": "false"})) == ResponseCode.SUCCESS


def test_a_send_whose_sync_fails_is_never_a_success(broker: Broker) -> None:
    broker.disk.fails = True
    assert broker.send() in (ResponseCode.SYSTEM_ERROR, ResponseCode.FLUSH_DISK_TIMEOUT)
    with pytest.raises(Exception, match="Input/output"):
        broker.service.flush()
    assert not state_now(broker.service, BrokerState()).is_writable
    assert broker.send() == ResponseCode.SERVICE_NOT_AVAILABLE


def test_while_one_send_holds_the_log_others_are_turned_away(broker: Broker) -> None:
    """SendMessageProcessor.rejectRequest; the put itself refuses too, as OS_PAGE_CACHE_BUSY, which is the same code."""
    broker.disk.writes.close()
    with ThreadPoolExecutor(1) as other:
        stalled = other.submit(broker.service.put_inner, [])
        assert stalled.result(PATIENCE_S).places.num_rows == 0
        stalled_send = other.submit(broker.send)
        broker.disk.writes.wait_for_somebody()
        broker.now_ms += 1_001
        assert broker.send() == ResponseCode.SYSTEM_BUSY
        late = Sender(broker.service)
        assert late.send(ORDER).code == ResponseCode.SYSTEM_BUSY
        broker.disk.writes.open()
        assert stalled_send.result(PATIENCE_S) in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)
    assert not state_now(broker.service, BrokerState()).rejects_requests


def test_a_service_that_is_closed_answers_so(broker: Broker) -> None:
    broker.service.close()
    assert state_now(broker.service, BrokerState()).is_shut_down
    assert not state_now(broker.service, BrokerState(is_writable=False)).is_writable


@pytest.mark.parametrize(("used_percent", "is_taken"), [(90, True), (91, False)])
def test_nothing_is_put_while_a_disk_is_over_the_warning_level(
    broker: Broker, used_percent: int, is_taken: bool
) -> None:
    """RunningFlags.getAndMakeDiskFull, which CleanCommitLogService.isSpaceToDelete sets."""
    occasion = plan_occasion(RetentionConfig(), hour=0, log_used_percents=[used_percent], queues_used_percent=1)
    handler = Sender(broker.service)
    handler.state = BrokerState(is_writable=not occasion.is_full)
    assert (handler.send(ORDER).code != ResponseCode.SERVICE_NOT_AVAILABLE) == is_taken
    assert (broker.service.store.writer.log_end > 0) == is_taken


@pytest.mark.parametrize("is_rolling", [False, True], ids=["the first file", "a later one"])
def test_where_no_log_file_can_be_made_a_send_is_answered_so_and_a_later_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_rolling: bool
) -> None:
    """CommitLog.asyncPutMessage: CREATE_MAPPED_FILE_FAILED where MappedFileQueue.getLastMappedFile gives none."""
    store = open_store(tmp_path / "store", config=config_of("plain"), read_only=False, create=True)
    store.save_topic(TopicConfig("Orders", 4, 4))
    with PutService(store, starts_duties=False) as service:  # one of them makes the next file ahead
        handler, big = Sender(service), replace(ORDER, body=bytes(400_000))
        stored = [handler.send(big).code for _ in range(2 * is_rolling)]
        end = store.writer.log_end

        def refuse(self: LocalFileSystem, path: str, size_bytes: int) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

        with monkeypatch.context() as patched:
            patched.setattr(LocalFileSystem, "create_file", refuse)
            response = handler.send(big)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert response.remark == "create mapped file failed, server is busy or broken."
        assert (stored, store.writer.log_end) == ([0] * len(stored), end)
        assert handler.send(big).code == ResponseCode.SUCCESS
