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

import jobs.run
import spark_mq.broker.send_back
import spark_mq.remoting_server.channel
import spark_mq.sink.columns
import spark_mq.sink.own_source
import spark_mq.source.cluster
import storage.batch.commit
import storage.batch.sink_progress
import storage.delay.timer_store
import storage.files.os_errors
import storage.files.remote
import storage.recovery.mending
import storage.recovery.offsets_ahead
import storage.recovery.opening
import storage.retention
import storage.rules.retry_rows
import storage.tables.topics
from spark_mq.broker.broker import Broker
from spark_mq.broker.broker_store import BrokerStore
from spark_mq.broker.group_offsets import GroupOffsets
from spark_mq.broker_server.opening import StorePlace
from spark_mq.broker_server.server import RunningBroker
from spark_mq.broker_server.supervised import SupervisedBroker
from spark_mq.controller.journal import Journal
from spark_mq.remoting import RemotingCommand
from spark_mq.remoting_server.channel import Channel, Turns
from spark_mq.remoting_server.pools import Processor, RequestPool
from spark_mq.remoting_server.server import RemotingServer
from spark_mq.sink.exact_commit import ExactCommit
from storage.batch.intent import NOTHING, drop_intent, load_intents
from storage.batch.ledger import Batch, BatchLedger, LedgerMessage, parse_ledger_body
from storage.batch.staged_segment import SegmentReader, StagedBatch
from storage.errors import SinkProgressError
from storage.files.local_file_system import LocalFileSystem
from storage.format.record_batch import Records
from storage.log.flush import AsyncFlush, SyncFlush
from storage.log.writer import CommitLogWriter, LogSync
from storage.put.settings import PutSettings
from storage.put.store_writer import StoreWriter
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.writer import ConsumeQueueWriter
from storage.recovery.mending import Indexer, QueueWriters
from storage.rules.row_rules import MessageRules
from storage.service.put_service import PutService
from storage.store import MessageStore


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
    return mock.patch.object(storage.recovery.mending, "_sync_unflushed")


def hint_outlives_the_machine() -> AbstractContextManager[Any]:
    original = storage.recovery.opening.hint_holds

    def holds(hint: Any, files: LocalFileSystem, *arguments: Any) -> bool:
        return original(replace(hint, boot_id=files.boot_id()), files, *arguments)

    return mock.patch.object(storage.recovery.opening, "hint_holds", holds)


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

    def is_done(writer: StoreWriter, staged: StagedBatch, takeover: bool) -> bool:
        try:
            return original(writer, staged, takeover)
        except SinkProgressError as error:
            return staged.batch.batch_id <= error.mirrored

    return mock.patch.object(storage.batch.commit, "is_done", is_done)


def deletions_go_unsaid() -> AbstractContextManager[Any]:
    """The log of the process does not say why log files go."""
    return mock.patch.object(storage.retention, "_say_what_goes", return_value=None)


def another_runs_batch_is_done() -> AbstractContextManager[Any]:
    """A batch whose number the store knows is done, whatever rows it has."""
    return mock.patch.object(storage.batch.sink_progress, "_refuse_another_run", return_value=None)


def first_batch_is_a_write() -> AbstractContextManager[Any]:
    """Whatever is batch 0 of a sink that is named as its query is taken for a write."""
    in_store, by_request = storage.batch.sink_progress._refuse_another_run, ExactCommit._refuse_another_run

    def of_store(writer: StoreWriter, staged: StagedBatch, known: int) -> None:
        if staged.batch != Batch(staged.batch.sink_id, staged.batch.sink_id, 0):
            in_store(writer, staged, known)

    def of_brokers(self: ExactCommit, known: Batch, known_rows: int, batch: Batch, row_count: int) -> None:
        if batch != Batch(batch.sink_id, batch.sink_id, 0):
            by_request(self, known, known_rows, batch, row_count)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(storage.batch.sink_progress, "_refuse_another_run", of_store))
    stack.enter_context(mock.patch.object(ExactCommit, "_refuse_another_run", of_brokers))
    return stack


def dead_letters_do_not_count() -> AbstractContextManager[Any]:
    """Of the batch in the log only its good rows are compared."""

    def good_rows(writer: StoreWriter, batch: Batch) -> int | None:
        ends = storage.batch.sink_progress.ledger_of(writer).newest_end_messages()
        return next((message.row_count for message in ends if message.batch == batch), None)

    return mock.patch.object(storage.batch.sink_progress, "_rows_that_came", good_rows)


def unasked_topic_is_an_error() -> AbstractContextManager[Any]:
    """Every broker of the sink's topic must answer before a batch is sent."""
    return mock.patch.object(
        ExactCommit, "_announced", lambda self, sink_id: self._brokers.announced(sink_id, patient=False)
    )


def another_directorys_batch_is_sent() -> AbstractContextManager[Any]:
    """What the sink's topic tells of is not looked at where the staging directory knows the query."""
    return mock.patch.object(ExactCommit, "_was_sent_by_others", return_value=False)


def another_runs_batch_is_sent() -> AbstractContextManager[Any]:
    """A batch whose number the staging directory knows is sent, whatever rows it has."""
    return mock.patch.object(ExactCommit, "_refuse_another_run", return_value=None)


def staged_rows_are_not_compared() -> AbstractContextManager[Any]:
    """With the sum over them that the task has reported."""
    return mock.patch.object(SegmentReader, "_check_data")


def unknown_size_is_none() -> AbstractContextManager[Any]:
    """A file whose size a listing leaves out is an empty one."""
    return mock.patch.object(storage.files.remote, "_is_unsized", return_value=False)


def answers_of_any_length_are_taken() -> AbstractContextManager[Any]:
    """For the range that was requested, though a server cut it short or sent the whole file."""
    return mock.patch.object(storage.files.remote.RemoteFile, "_check_length")


def server_failure_is_absence() -> AbstractContextManager[Any]:
    """What a server could not say is taken for a file that is not there."""
    return mock.patch.object(storage.files.os_errors, "_is_failure", return_value=False)


def kept_listings_are_believed() -> AbstractContextManager[Any]:
    """Nothing tells a remote file system that it has to look again."""
    original = storage.files.remote.RemoteFileSystem.__init__

    def keeps(self: storage.files.remote.RemoteFileSystem, url: str) -> None:
        original(self, url)
        self._inner.invalidate_cache = lambda path=None: None

    return mock.patch.object(storage.files.remote.RemoteFileSystem, "__init__", keeps)


def web_names_stay_quoted() -> AbstractContextManager[Any]:
    """Names are what the links of a web page say."""
    return mock.patch.object(storage.files.remote, "unquote", lambda name: name)


def lost_log_is_empty() -> AbstractContextManager[Any]:
    """A store whose log has lost all its files is read as one without messages."""
    return mock.patch.object(spark_mq.source.cluster, "_refuse_lost_log")


def names_are_not_told() -> AbstractContextManager[Any]:
    """A writer that knows the broker's name keeps it for itself."""
    return mock.patch.object(PutSettings, "named", lambda self, topics, now_ms: topics)


def first_of_two_names_is_taken() -> AbstractContextManager[Any]:
    """Of the names that a renamed broker's topics tell."""
    return mock.patch.object(storage.tables.topics, "_only", lambda names: names[0] if names else None)


def old_name_stays() -> AbstractContextManager[Any]:
    """Beside the one under which the store is written now."""
    return mock.patch.object(storage.tables.topics.TopicTable, "without_topic", lambda self, topic, now_ms: self)


def first_consumer_is_judged_for_all() -> AbstractContextManager[Any]:
    """Access control asks for the first consumer of a heartbeat, and for the first queue that is locked."""
    from spark_mq.access import authorization

    def of_the_first(names: Any) -> Any:
        return lambda body: names(body)[:1]

    return mock.patch.dict(
        authorization._IN_BODIES, {key: of_the_first(names) for key, names in authorization._IN_BODIES.items()}
    )


def failed_broker_is_left_as_it_is() -> AbstractContextManager[Any]:
    async def look_only(self: SupervisedBroker, failed: object, failure: str) -> None:
        return None

    return mock.patch.object(SupervisedBroker, "_open_again", look_only)


def store_is_opened_wherever_its_path_leads() -> AbstractContextManager[Any]:
    return mock.patch.object(StorePlace, "check")


def store_is_opened_again_after_any_failure() -> AbstractContextManager[Any]:
    return mock.patch.object(RunningBroker, "fails_by_disk", True)


def disk_is_not_tried_before_the_opening() -> AbstractContextManager[Any]:
    """Reads end as soon as a write has failed, and not when there is something to come back to."""
    original = SupervisedBroker._open_again

    async def let_go_first(self: SupervisedBroker, failed: Any, failure: str) -> None:
        await self._let_go(failed)
        await original(self, failed, failure)

    return mock.patch.object(SupervisedBroker, "_open_again", let_go_first)


def opened_again_with_the_first_settings() -> AbstractContextManager[Any]:
    original = SupervisedBroker._let_go

    async def let_go(self: SupervisedBroker, failed: Any) -> None:
        first = self._configuration
        await original(self, failed)
        self._configuration = first

    return mock.patch.object(SupervisedBroker, "_let_go", let_go)


def name_servers_do_not_hear_of_a_failed_store() -> AbstractContextManager[Any]:
    return mock.patch.object(BrokerStore, "permission", property(lambda self: self.config.send.broker_permission))


def version_of_topics_says_nothing_of_a_failed_store() -> AbstractContextManager[Any]:
    return mock.patch.object(BrokerStore, "topics_version", property(lambda self: self.service.settings.topics.version))


def follower_asks_for_no_room() -> AbstractContextManager[Any]:
    """What it has no room for, it finds out half-way."""

    def none_asked(self: CommitLogWriter, commitlog_offset: int, size_bytes: int) -> None:
        if not self._log.files:
            self.end = self.written_end = commitlog_offset

    return mock.patch.object(CommitLogWriter, "reserve_raw", none_asked)


def full_disk_ends_a_follower() -> AbstractContextManager[Any]:
    original = StoreWriter.append_raw

    def failing(self: StoreWriter, commitlog_offset: int, data: bytes | memoryview) -> None:
        try:
            original(self, commitlog_offset, data)
        except BaseException as error:
            self.fail(error)
            raise

    return mock.patch.object(StoreWriter, "append_raw", failing)


def journal_is_appended_to_behind_a_failure() -> AbstractContextManager[Any]:
    return mock.patch.object(Journal, "_is_broken", property(lambda self: False, lambda self, value: None), create=True)


def tables_ahead_are_left() -> AbstractContextManager[Any]:
    return mock.patch.object(MessageStore, "lower_offsets")


def deliveries_that_a_repair_cuts_are_forgotten() -> AbstractContextManager[Any]:
    return mock.patch.object(storage.recovery.opening, "lower_for_cut", return_value=())


def backups_keep_their_old_numbers() -> AbstractContextManager[Any]:
    original = storage.recovery.offsets_ahead._lower_file

    def keep(root: str, files: LocalFileSystem, name: str, load: Any, lower: Any) -> Any:
        backup = f"{root}/config/{name}.bak"
        before = files.read_file(backup)
        found = original(root, files, name, load, lower)
        if before is not None:
            files.replace(backup, before)
        return found

    return mock.patch.object(storage.recovery.offsets_ahead, "_lower_file", keep)


def mirrors_of_sinks_are_lowered() -> AbstractContextManager[Any]:
    return mock.patch.object(storage.recovery.offsets_ahead, "LEDGER_TOPIC", "")


def unit_of_the_timer_is_told_by_its_place() -> AbstractContextManager[Any]:
    def believe(units: np.ndarray, out_ms: np.ndarray) -> np.ndarray:
        return np.ones(len(units), bool)

    return mock.patch.object(storage.delay.timer_store, "are_of", believe)


@contextmanager
def retries_are_spread_over_the_groups_number() -> Iterator[None]:
    def of_group(config: Any, retry_target: Any) -> int:
        return int(config.retry_queue_count)

    with ExitStack() as planted:
        for module in (spark_mq.broker.send_back, storage.rules.retry_rows):
            planted.enter_context(mock.patch.object(module, "retry_queue_count", of_group))
        yield


# What Spark, jobs and commands say and hear


def option_topic_loses() -> AbstractContextManager[Any]:
    """A row's own topic comes before the option."""
    return mock.patch.object(MessageRules, "said_of_all", {})


def own_source_is_not_seen() -> AbstractContextManager[Any]:
    return mock.patch.object(spark_mq.sink.own_source, "_holds_any", return_value=False)


def own_source_goes_by_names() -> AbstractContextManager[Any]:
    """A topic of the same name is the same topic, in whichever store."""
    return mock.patch.object(spark_mq.sink.own_source, "_holds_any", return_value=True)


def tasks_write_into_the_own_source() -> AbstractContextManager[Any]:
    return mock.patch.object(spark_mq.sink.columns.InputColumns, "refuse_own", return_value=None)


def job_that_steps_back_ends_well() -> AbstractContextManager[Any]:
    return mock.patch.object(jobs.run, "BUSY", 0)


def handed_offsets_are_not_saved() -> AbstractContextManager[Any]:
    """They stay in the broker's memory until it saves others."""
    return mock.patch.object(Broker, "save_offsets")


def handed_offsets_come_before_a_reset() -> AbstractContextManager[Any]:
    return mock.patch.object(GroupOffsets, "has_reset", return_value=False)


def requests_of_the_gone_are_dropped() -> AbstractContextManager[Any]:
    """A request counts as long as somebody waits for its answer."""
    original = Channel._answer

    def answer(self: Channel, command: RemotingCommand, processor: Processor, size: int) -> None:
        if self.peer.is_open:
            original(self, command, processor, size)
        else:
            self._done(command, None, size)

    return mock.patch.object(Channel, "_answer", answer)


def one_way_requests_are_refused() -> AbstractContextManager[Any]:
    """As Java's: for being late, for a full queue, by a processor that rejects."""
    return mock.patch.object(Channel, "_is_heard", return_value=True)


def last_piece_is_not_read() -> AbstractContextManager[Any]:
    """What had come when an answer met nobody is gone with its connection."""
    return mock.patch.object(Channel, "_last_pieces", return_value=b"")


def the_gone_stay_known() -> AbstractContextManager[Any]:
    """Nobody hears again of a peer whose requests have outlived it."""
    original = Channel._leave_the_rest

    def leave(self: Channel) -> None:
        original(self)
        self._is_outlived = False

    return mock.patch.object(Channel, "_leave_the_rest", leave)


def server_ends_amid_what_was_read() -> AbstractContextManager[Any]:
    """It waits for its pools, and not for what no pool has yet."""

    def is_answering(self: RemotingServer) -> bool:
        return any(pool.is_busy for pool in self.pools)

    return mock.patch.object(RemotingServer, "_is_answering", property(is_answering))


def one_connection_has_the_whole_turn() -> AbstractContextManager[Any]:
    return mock.patch.object(spark_mq.remoting_server.channel, "_SHARE", 1 << 30)


def requests_of_a_connection_have_no_bound() -> AbstractContextManager[Any]:
    return mock.patch.object(spark_mq.remoting_server.channel, "_UNANSWERED_MOST", 1 << 30)


def bytes_of_a_connection_have_no_bound() -> AbstractContextManager[Any]:
    original = Channel._submit

    def submit(self: Channel, command: RemotingCommand, processor: Processor) -> bool:
        is_taken = original(self, command, processor)
        self._unanswered_bytes = 0
        return is_taken

    return mock.patch.object(Channel, "_submit", submit)


def requests_begin_whoever_reads() -> AbstractContextManager[Any]:
    """Also those of a peer that does not take its answers."""
    return mock.patch.object(Channel, "_may_begin", property(lambda self: True))


def turns_end_with_one_that_fails() -> AbstractContextManager[Any]:
    """What is raised in a connection's turn is raised by the turns of all."""

    def run(self: Turns) -> None:
        while self._waiting:
            channel, _ = self._waiting.popitem(last=False)
            channel.take_turn()
        self._is_due = False

    return mock.patch.object(Turns, "_run", run)


def threads_are_asked_for_once() -> AbstractContextManager[Any]:
    """A thread that the system has refused is never asked for again."""
    return mock.patch.object(RequestPool, "_start_again")


def puts_that_nobody_hears_of_are_refused() -> AbstractContextManager[Any]:
    """While one put holds the log for long."""
    original = PutService._admitted

    def admitted(self: PutService, waits: bool, *, is_heard: bool = True) -> Any:
        return original(self, waits)

    return mock.patch.object(PutService, "_admitted", admitted)


def late_requests_are_looked_at_again_and_again() -> AbstractContextManager[Any]:
    """Also those that cannot be refused."""
    original = RequestPool._clean

    def clean(self: RequestPool) -> None:
        original(self)
        self._queue.extendleft(reversed(self._unheard))
        self._unheard.clear()

    return mock.patch.object(RequestPool, "_clean", clean)
