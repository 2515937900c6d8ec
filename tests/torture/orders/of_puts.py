"""Puts, by one thread and by many, and the flushes in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from storage.dispatch.writer import DerivedSync
from storage.files.syncs import SyncGate
from storage.log.commit_log import RecordIdentity
from storage.log.writer import LogSync, RunningSync
from storage.put.store_writer import StoreWriter
from tests.torture.steps import Order, Step, is_directory, is_file

_FILES = "storage.files.local_file_system:LocalFileSystem"
_WRITER = "storage.put.store_writer:StoreWriter"
_LOG = "storage.log.writer:CommitLogWriter"
_AHEAD = "storage.log.writer:NextFile"
_SERVICE = "storage.service.put_service:PutService"
_APPEND = f"{_SERVICE}._append_joined {_SERVICE}.put_batch"
_PUT = "storage.put.put:_RowPut.append_to storage.put.put:InnerPut.append_to"


def _nothing_to_sync(writer: StoreWriter) -> RunningSync:
    log = writer._log_writer
    return RunningSync(LogSync(log.synced_end, (), None, writer.file_system, log._gate), 0)


def _no_queue_to_sync(writer: StoreWriter, least_pages: int) -> DerivedSync:
    return DerivedSync((), least_pages == 0, RecordIdentity(0, 0), 0, (), 0, writer.file_system, SyncGate())


@contextmanager
def _log_is_noted_after_its_sync() -> Iterator[None]:
    """What was written while the sync ran counts as synced."""
    original = StoreWriter.end_log_sync

    def end_log_sync(self: StoreWriter, sync: RunningSync, error: BaseException | None) -> None:
        original(self, sync, error)
        if error is None:
            original(self, self.begin_log_sync(), None)

    with mock.patch.object(StoreWriter, "end_log_sync", end_log_sync):
        yield


@contextmanager
def _queues_are_noted_after_their_sync() -> Iterator[None]:
    """What was entered while the sync ran counts as synced."""
    original = StoreWriter.end_derived_sync

    def end_derived_sync(self: StoreWriter, sync: Any, error: BaseException | None) -> None:
        original(self, sync if error is not None else self.begin_derived_sync(0 if sync.is_thorough else 1), error)

    with mock.patch.object(StoreWriter, "end_derived_sync", end_derived_sync):
        yield


ORDERS = (
    Order(
        "Putting (`put`, `put_batch`)",
        _PUT,
        (
            Step("room in the log reserved (a full disk is an error here)", f"{_WRITER}.reserve"),
            Step("topic entry, if the topic is new", "storage.put.settings:TopicEntries.ensure"),
            Step(
                '`indexMsgTimestamp` raised to the coming store time ("The index time")', f"{_WRITER}._claim_index_time"
            ),
            Step("records", f"{_LOG}._write"),
            Step("under SYNC_FLUSH their sync", "storage.log.writer:LogSync.run"),
            Step("queue entries", "storage.queues.writer:ConsumeQueueWriter.append"),
            Step("index items, header, slots", "storage.dispatch.writer:DerivedWriter.enter_keys"),
        ),
        stories=("putting under SYNC_FLUSH",),
    ),
    Order(
        "Putting (`put`, `put_batch`)",
        "",
        (
            Step("made at its full length", f"{_FILES}.create_file", within=f"{_LOG}._write {_LOG}.reserve"),
            Step("synced", f"{_FILES}.sync", within=f"{_LOG}._keep", when=is_file),
            Step("directory synced", f"{_FILES}.sync", within=f"{_LOG}._keep", when=is_directory),
            Step("first record", f"{_LOG}._write"),
        ),
        title="Order of a new log file",
        stories=("putting under SYNC_FLUSH",),
    ),
    Order(
        "Putting by many threads (`put_service.py`, `flush.py`)",
        "",
        (
            Step("records, in the put lock", f"{_LOG}._write", within=_APPEND),
            Step(
                "end of what is written noted",
                f"{_WRITER}.begin_log_sync",
                within=f"{_SERVICE}._sync_log",
                gives=_nothing_to_sync,
                swap=_log_is_noted_after_its_sync,
            ),
            Step(
                "one sync for all that wait, outside of the lock",
                "storage.log.writer:LogSync.run",
                within=f"{_SERVICE}._sync_log",
            ),
            Step("their queue entries and index items", f"{_WRITER}.dispatch", within=f"{_SERVICE}._sync_log"),
            Step("their answers", "storage.service.put_group:GroupCommit.complete"),
        ),
        title="Order under SYNC_FLUSH",
        stories=(
            "putting through a service",
            "putting beside a sync of the log",
        ),
    ),
    Order(
        "A put to a DLedger group's log (`log/group_log.py`)",
        "",
        (
            Step("records proposed to its member, in the put lock", "tests.support.group_logs:FakeGroupLog.propose"),
            Step("a majority's syncs waited for, outside of the lock", "storage.log.group_log:GroupSync.run"),
            Step(
                "their queue entries and index items, from the log",
                f"{_WRITER}.dispatch",
                within=f"{_SERVICE}._sync_log",
            ),
            Step("their answers", "storage.service.put_group:GroupCommit.complete"),
        ),
        title="Order at the leader",
        stories=("putting to a group's log",),
    ),
    Order(
        "Putting by many threads (`put_service.py`, `flush.py`)",
        "",
        (
            Step("records, in the put lock", f"{_LOG}._write", within=_APPEND),
            Step("their queue entries and index items", f"{_WRITER}.dispatch", within=_APPEND),
            Step("answer"),
            Step(
                "log synced in turns (500 ms and 4 pages, a full file, or 10 s)",
                f"{_SERVICE}._sync_log",
                within=f"{_SERVICE}.log_turn",
            ),
        ),
        title="Order under ASYNC_FLUSH",
        stories=("the queues' turn", "putting beside a sync of the queues"),
    ),
    Order(
        "Putting by many threads (`put_service.py`, `flush.py`)",
        "",
        (
            Step("answer"),
            Step("records, in turns (200 ms)", f"{_LOG}.write_held", within=f"{_SERVICE}.pool_turn"),
            Step("their queue entries and index items", f"{_WRITER}.dispatch", within=f"{_SERVICE}.pool_turn"),
            Step("syncs in turns", f"{_SERVICE}._sync_log", within=f"{_SERVICE}.log_turn"),
        ),
        title="Order with a pool",
        stories=("putting into a pool",),
    ),
    Order(
        "Putting by many threads (`put_service.py`, `flush.py`)",
        f"{_SERVICE}.queue_turn",
        (
            Step(
                "what is not synced noted",
                f"{_WRITER}.begin_derived_sync",
                gives=_no_queue_to_sync,
                swap=_queues_are_noted_after_their_sync,
            ),
            Step(
                "queues synced (1 s and 2 pages; in a thorough turn, 1 min, queues, index, directories)",
                "storage.dispatch.writer:DerivedSync.run",
            ),
            Step("that noted", "storage.dispatch.writer:DerivedWriter.end_sync"),
            Step("in a thorough turn `index_synced.json`", "storage.put.store_writer:save_index_trust"),
            Step("`checkpoint`", f"{_WRITER}._save_checkpoint"),
        ),
        title="Order of the queues' turns",
        stories=(
            "the queues' turn",
            "putting beside a sync of the queues",
        ),
    ),
    Order(
        "Putting by many threads (`put_service.py`, `flush.py`)",
        "",
        (
            Step("made at its full length, beside the puts", f"{_AHEAD}._create", gives=lambda *_, **__: True),
            Step("synced", f"{_FILES}.sync", within=f"{_AHEAD}.make", when=is_file),
            Step("directory synced", f"{_FILES}.sync", within=f"{_AHEAD}.make", when=is_directory),
            Step("waiting puts notified", "concurrent.futures:Future.set_result", within=f"{_AHEAD}.make"),
            Step("first record", f"{_LOG}._write", within=_APPEND),
        ),
        title="Order of the next log file",
        stories=("making the log's next file ahead",),
    ),
    Order(
        "Putting by many threads (`put_service.py`, `flush.py`)",
        f"{_SERVICE}.close",
        (
            Step("no more puts accepted"),
            Step("duties stopped", "storage.service.put_service:Duty.stop"),
            Step("what was put synced, dispatched and answered", f"{_SERVICE}.flush"),
            Step("an unused next log file deleted, as Java does", f"{_WRITER}.drop_next_file"),
            Step('the store closed ("Closing")', "storage.store:MessageStore.close"),
        ),
        title="Order of closing",
        stories=("closing a service",),
    ),
    Order(
        "The index time",
        f"{_WRITER}._claim_index_time",
        (
            Step("`index_synced.json`", "storage.put.store_writer:save_index_trust"),
            Step("`checkpoint` with the raised field, synced", f"{_WRITER}._save_checkpoint"),
        ),
        stories=("putting under SYNC_FLUSH",),
    ),
    Order(
        "Checkpoint",
        f"{_WRITER}.checkpoint",
        (
            Step("log synced", f"{_WRITER}.sync_log"),
            Step("queues and index synced", "storage.dispatch.writer:DerivedSync.run"),
            Step("five longs written in place", f"{_FILES}.write", within="storage.log.commit_log:write_checkpoint"),
            Step("synced", f"{_FILES}.sync", within="storage.log.commit_log:write_checkpoint"),
            Step("`index_synced.json` deleted", "storage.put.store_writer:drop_index_trust"),
        ),
        stories=("closing", "releasing after a minute"),
    ),
)
