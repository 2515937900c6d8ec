"""How to plant faults into the engine: each function makes one, as a context. What they stand for, `mutants.py` says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

import storage.batch.commit
import storage.batch.sink_progress
import storage.recovery.opening
import storage.recovery.passes
import storage.retention
from spark_mq.sink.exact_commit import ExactCommit
from storage.batch.intent import drop_intent, load_intents
from storage.batch.ledger import Batch, BatchLedger, LedgerMessage, parse_ledger_body
from storage.batch.redo import NOTHING
from storage.batch.staged_segment import SegmentReader
from storage.errors import SinkProgressError
from storage.files.local_file_system import LocalFileSystem
from storage.format.record_batch import Records
from storage.log.flush import AsyncFlush, SyncFlush
from storage.log.writer import CommitLogWriter, LogSync
from storage.put.store_writer import StoreWriter
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.writer import ConsumeQueueWriter
from storage.recovery.index import Indexer
from storage.recovery.queues import QueueWriters
from storage.service.put_service import PutService


def log_is_never_synced() -> AbstractContextManager[Any]:
    return mock.patch.object(LogSync, "run")


def acknowledged_before_the_sync() -> AbstractContextManager[Any]:
    """A put under SYNC_FLUSH takes its sync for done; the next flush or close makes up for it."""

    def take_for_done(self: StoreWriter) -> None:
        self._log_writer.synced_end = self._log_writer.written_end

    return mock.patch.object(StoreWriter, "_sync_records", take_for_done)


def acknowledged_before_the_group_commit() -> AbstractContextManager[Any]:
    original = PutService._sync_log

    def complete_first(self: PutService) -> None:
        self._commits.complete(self._writer.log_end)
        original(self)

    return mock.patch.object(PutService, "_sync_log", complete_first)


def failed_sync_is_success() -> AbstractContextManager[Any]:
    original = LogSync.run

    def run(self: LogSync) -> None:
        with suppress(OSError):
            original(self)

    return mock.patch.object(LogSync, "run", run)


def directory_of_new_log_file_is_not_synced() -> AbstractContextManager[Any]:
    def keep(self: CommitLogWriter, path: str) -> None:
        self._file_system.sync(path)
        self._log.list_files()

    return mock.patch.object(CommitLogWriter, "_keep", keep)


def full_log_file_is_not_synced() -> AbstractContextManager[Any]:
    """A sync reaches only the file that is written."""
    original = CommitLogWriter.begin_sync

    def begin_sync(self: CommitLogWriter) -> LogSync:
        sync = original(self)
        return replace(sync, paths=sync.paths[-1:])

    return mock.patch.object(CommitLogWriter, "begin_sync", begin_sync)


def queue_entries_before_the_sync() -> AbstractContextManager[Any]:
    """As in apache/rocketmq#8239."""
    original = StoreWriter._sync_records

    def dispatch_first(self: StoreWriter) -> None:
        with mock.patch.object(SyncFlush, "readable_end", AsyncFlush.readable_end):
            self.dispatch()
        original(self)

    return mock.patch.object(StoreWriter, "_sync_records", dispatch_first)


def expiry_is_not_synced() -> AbstractContextManager[Any]:
    """Files go oldest first; after a power loss later ones may be gone, and earlier ones there again."""

    def unlink(file_system: LocalFileSystem, paths: Iterable[str]) -> None:
        for path in paths:
            file_system.unlink(path)

    return mock.patch.object(storage.retention, "_unlink", unlink)


def cut_is_not_kept() -> AbstractContextManager[Any]:
    """As Java does: what stands behind the first bad record is gone."""
    return mock.patch.object(storage.recovery.opening, "_keep_what_is_cut", return_value=None)


def recovery_dispatches_nothing() -> AbstractContextManager[Any]:
    return mock.patch.object(QueueWriters, "append")


def recovery_enters_no_keys() -> AbstractContextManager[Any]:
    return mock.patch.object(Indexer, "append")


def recovery_believes_every_entry() -> AbstractContextManager[Any]:
    def visible_end(self: ConsumeQueue, end: int, log: object, log_end: int) -> int:
        return end

    return mock.patch.object(ConsumeQueue, "visible_end", visible_end)


def recovery_checks_no_body() -> AbstractContextManager[Any]:
    def crc_agrees(self: Records) -> np.ndarray:
        return np.ones(len(self), bool)

    return mock.patch.object(Records, "crc_agrees", crc_agrees)


def cut_log_keeps_its_bytes() -> AbstractContextManager[Any]:
    """As Java does: the position is moved, the records stay."""
    return mock.patch.object(LocalFileSystem, "zero")


def recovery_does_not_sync() -> AbstractContextManager[Any]:
    """What a killed writer left in the page cache is vouched for as it is."""
    return mock.patch.object(storage.recovery.passes, "_sync_unflushed")


def hint_outlives_the_machine() -> AbstractContextManager[Any]:
    original = storage.recovery.opening.holds

    def holds(hint: Any, files: LocalFileSystem, *arguments: Any) -> bool:
        return original(replace(hint, boot_id=files.boot_id()), files, *arguments)

    return mock.patch.object(storage.recovery.opening, "holds", holds)


def intent_goes_before_the_sync() -> AbstractContextManager[Any]:
    def settle(writer: StoreWriter) -> None:
        for intent in load_intents(writer.file_system, writer.root):
            drop_intent(writer.file_system, writer.root, intent)

    return _everywhere("settle", settle)


def batch_is_redone_blindly() -> AbstractContextManager[Any]:
    return mock.patch.object(storage.batch.commit, "first_missing", return_value=NOTHING)


def state_is_overwritten_in_place() -> AbstractContextManager[Any]:
    """As MixAll.string2File does."""

    def overwrite(self: LocalFileSystem, path: str, content: bytes, *, is_private: bool = False) -> None:
        self.make_directories(os.path.dirname(path))
        if self.identity(path) is None:
            self.create_file(path, 0)
        writer = self.open_for_writing(path)
        writer.write(0, content)
        writer.close()

    return mock.patch.object(LocalFileSystem, "replace", overwrite)


def abort_goes_before_the_sync() -> AbstractContextManager[Any]:
    def close_cleanly(writer: StoreWriter) -> None:
        writer.file_system.unlink(f"{writer.root}/abort")
        writer.file_system.sync(writer.root)
        writer.close()

    return _everywhere("close_cleanly", close_cleanly)


def writer_goes_on_after_a_failure() -> AbstractContextManager[Any]:
    return mock.patch.object(StoreWriter, "fail")


def queue_entries_one_off() -> AbstractContextManager[Any]:
    """Every hundredth block of entries points a byte further."""
    original = ConsumeQueueWriter._write
    count = 0

    def write(self: ConsumeQueueWriter, first: int, block: np.ndarray) -> None:
        nonlocal count
        count += 1
        if count % 100 == 0:
            block["commitlog_offset"][-1] += 1
        original(self, first, block)

    return mock.patch.object(ConsumeQueueWriter, "_write", write)


@contextmanager
def _everywhere(name: str, function: Any) -> Iterator[None]:
    """In every module of the engine that holds a function of that name."""
    with ExitStack() as stack:
        for module in [module for key, module in sys.modules.items() if key.split(".")[0] in ("storage", "jobs")]:
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, function))
        yield


def ledger_messages_need_no_mark() -> AbstractContextManager[Any]:
    """What anybody sends to the ledger's topic counts, if it says what a ledger message says."""

    def read(self: BatchLedger, commitlog_offset: int) -> LedgerMessage | None:
        message = self._log.message_at(commitlog_offset, self._log_end)
        return parse_ledger_body(message.body, commitlog_offset, commitlog_offset + message.size_bytes)

    def all_of_them(self: BatchLedger, records: Records, places: np.ndarray) -> np.ndarray:
        return np.ones(len(places), bool)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(BatchLedger, "_read", read))
    stack.enter_context(mock.patch.object(BatchLedger, "_may_be_own", all_of_them))
    return stack


def mirror_is_believed() -> AbstractContextManager[Any]:
    """What a consumer offset says is done is done."""
    original = storage.batch.commit.is_done

    def is_done(writer: StoreWriter, batch: Batch, row_count: int, takeover: bool) -> bool:
        try:
            return original(writer, batch, row_count, takeover)
        except SinkProgressError as error:
            return batch.batch_id <= error.mirrored

    return mock.patch.object(storage.batch.commit, "is_done", is_done)


def deletions_go_unsaid() -> AbstractContextManager[Any]:
    """The log of the process does not say why log files go."""
    return mock.patch.object(storage.retention, "_say_what_goes", return_value=None)


def another_runs_batch_is_done() -> AbstractContextManager[Any]:
    """A batch whose number the store knows is done, whatever rows it has."""
    return mock.patch.object(storage.batch.sink_progress, "_refuse_another_run", return_value=None)


def another_directorys_batch_is_sent() -> AbstractContextManager[Any]:
    """What the sink's topic tells of is not looked at where the staging directory knows the query."""
    return mock.patch.object(ExactCommit, "_refuse_what_others_sent", return_value=None)


def another_runs_batch_is_sent() -> AbstractContextManager[Any]:
    """A batch whose number the staging directory knows is sent, whatever rows it has."""
    return mock.patch.object(ExactCommit, "_refuse_another_run", return_value=None)


def staged_rows_are_not_compared() -> AbstractContextManager[Any]:
    """With the sum over them that the task has reported."""
    return mock.patch.object(SegmentReader, "_check_data")
