"""Rows for running brokers: at least once, sent by the tasks; or exactly once, staged by the tasks and sent by one commit."""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from spark_mq.conditions import NONE_SENT, WriteFailedError
from spark_mq.sink.columns import InputColumns, warn_of_overruled
from spark_mq.sink.dead_letters import RejectedRows, drop_dead_letters, publish_dead_letters
from spark_mq.sink.direct_writer import MOST_ROWS, SentRows, send_rows
from spark_mq.sink.exact_commit import ExactCommit
from spark_mq.sink.journal import Journal, StagedFile, batch_prefix, sink_directory
from spark_mq.sink.live_brokers import LiveBrokers
from spark_mq.sink.live_routes import SINGLE_COLUMNS, live_routes, route_rules
from spark_mq.sink.options import LiveSinkOptions
from spark_mq.sink.place import not_shared
from spark_mq.sink.sends import statuses_text
from spark_mq.sink.staged_rows import StagedWriter
from spark_mq.sink.wire_batches import BatchCutter, WireBatch
from spark_mq.spark_api import TaskContext, WriterCommitMessage
from storage.batch.ledger import Batch
from storage.batch.staged_segment import sink_digest
from storage.epoch_times import current_time_ms
from storage.errors import StagedRowsGoneError
from storage.files.local_file_system import LocalFileSystem
from storage.files.os_errors import host_name
from storage.rules.message_rows import MessageRows, from_kafka_columns
from storage.rules.response_codes import ResponseCode

_LOG = logging.getLogger("spark_mq.sink")


@dataclass(frozen=True)
class StagedForBrokers(WriterCommitMessage):
    """The staged file of one task."""

    batch: Batch
    file: StagedFile | None
    """None where the task had no row."""
    host: str
    """The machine that has staged it."""
    overruled: dict[str, str] = field(default_factory=dict)
    """By column, what a row says that has no effect (`columns.warn_of_overruled`)."""


def stage_for_brokers(
    options: LiveSinkOptions,
    columns: InputColumns,
    batch: Batch,
    partition: int,
    attempt: int,
    frames: Iterator[pa.RecordBatch],
) -> StagedForBrokers:
    """Encode a task's rows and stage them.

    Raises InvalidRowError, WritesOwnSourceError, and errors of client and files; what was staged is given back.
    """
    assert options.staging_path is not None, "exactlyOnce has one"
    files, nonce = LocalFileSystem(), new_nonce()
    # Attempt ids begin anew with every driver, and an intent may still name the file of one that died.
    name = f"{batch.batch_id}-{partition}-{nonce}-{attempt}-{uuid.uuid4().hex}.rows"
    writer = StagedWriter(files, sink_directory(options.staging_path, batch.sink_id), name)
    mark = f"{batch_prefix(batch)}{nonce}-{partition}-"
    place = (partition % 65_536).to_bytes(2, "big")  # the nonce is the task's own
    key = sink_digest(batch.sink_id, batch.query_id)[:4] + bytes.fromhex(nonce) + place
    row_count, ignored = 0, dict[str, str]()
    rejected = RejectedRows(None, batch, partition, name)
    may_wait = any(name in columns.names for name in SINGLE_COLUMNS)
    with live_routes(options) as routes:
        cutter = BatchCutter(options.batch_bytes, MOST_ROWS, lambda topic: routes.body_limit(topic).batch_bytes)
        rows = MessageRows(route_rules(options, routes, mark), key, partition + batch.batch_id)

        def stage(batches: Iterator[WireBatch]) -> None:
            for one in batches:
                writer.append(routes.queue_at(*one.queue), one.body, one.sys_flag, one.ranks, waits=one.waits)

        try:
            for frame in frames:
                taken = frame.select(list(columns.names))
                prepared = rows.prepare(from_kafka_columns(taken) if columns.kafka else taken, current_time_ms())
                rejected.take(frame, prepared.rejected, prepared.rejected_indices, consequence=NONE_SENT)
                columns.refuse_own(prepared.topics)
                ignored |= prepared.overruled
                row_count += len(prepared.messages.queue_codes)
                stage(cutter.add(prepared.messages, may_wait=may_wait))
            stage(cutter.finish())
            staged = writer.finish()
        except BaseException:
            writer.discard()
            raise
    if (0 if staged is None else staged.rows) != row_count:
        raise WriteFailedError(f"partition {partition}: {row_count} rows came, and {staged} was staged")
    return StagedForBrokers(batch, staged, host_name(), ignored)


def commit_to_brokers(options: LiveSinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
    """Send what the tasks have staged, once. Raises what `ExactCommit.commit` does."""
    assert options.staging_path is not None, "exactlyOnce has one"
    staged = [message for message in messages if isinstance(message, StagedForBrokers)]
    if len(staged) != len(messages) or not staged:
        raise WriteFailedError("a task handed in nothing of what it has staged")
    batch = staged[0].batch
    if any(one.batch != batch for one in staged) or batch.batch_id != batch_id:
        raise WriteFailedError(
            f"the tasks' rows are those of {sorted({one.batch for one in staged})}, not of {batch_id}"
        )
    warn_of_overruled([one.overruled for one in staged])
    journal = Journal(LocalFileSystem(), options.staging_path, batch.sink_id)
    hosts = {one.file.name: one.host for one in staged if one.file is not None}
    with (
        live_routes(options) as routes,
        journal.locked(options.lock_timeout),
    ):
        brokers = LiveBrokers(options, routes, f"batch {batch.batch_id} of sink {batch.sink_id}")
        try:
            commit = ExactCommit(
                journal, brokers, new_nonce, is_write=options.write_id is not None, takeover=options.sink_takeover
            )
            outcome = commit.commit(batch, [one.file for one in staged if one.file is not None])
        except StagedRowsGoneError as error:
            host = hosts.get(error.path.rpartition("/")[2])
            if host is None:
                raise
            raise not_shared(host, options.staging_path, error.path) from error
    how = f"sent in attempt {outcome.attempts}" if outcome.is_new else "sent already"
    _LOG.info("batch %d: %d rows %s (%s)", batch_id, outcome.rows, how, statuses_text(outcome.statuses))


def abort_staged(options: LiveSinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Delete what tasks have staged for a write that failed, unless its intent has taken it over."""
    assert options.staging_path is not None, "exactlyOnce has one"
    staged = [message for message in messages if isinstance(message, StagedForBrokers) and message.file is not None]
    if not staged:
        return
    journal = Journal(LocalFileSystem(), options.staging_path, staged[0].batch.sink_id)
    with journal.locked(options.lock_timeout):
        intent = journal.load().intent
        kept = set() if intent is None else {file.name for file in intent.files}
        journal.drop_files(one.file.name for one in staged if one.file is not None and one.file.name not in kept)


def new_nonce() -> str:
    """8 hex digits."""
    return os.urandom(4).hex()


_KEY_BYTES = 8
_KEEPS_LOGS = "PYSPARK_SPARK_SESSION_UUID"
"""Set in Python workers whose log Spark keeps (spark.sql.pyspark.worker.logging.enabled); what a batch was answered belongs there."""


@dataclass(frozen=True)
class LiveSink:
    """A cluster of running brokers that rows are sent to (`writers.Sink`)."""

    options: LiveSinkOptions
    columns: InputColumns

    def write(
        self, batch: Batch, task: TaskContext, frames: Iterator[pa.RecordBatch], *, is_query: bool
    ) -> WriterCommitMessage:
        """A task stages its rows, exactly once; or sends them."""
        partition, attempt = task.partitionId(), task.taskAttemptId()
        if self.options.is_exact:
            return stage_for_brokers(self.options, self.columns, batch, partition, attempt, frames)
        key = os.urandom(_KEY_BYTES)
        return send_rows(self.options, self.columns, partition, key, frames, batch, attempt)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int, *, is_query: bool) -> None:
        """Send what is staged; or publish what the tasks have put aside, for all rows are sent already."""
        if _KEEPS_LOGS in os.environ and _LOG.level == logging.NOTSET:
            _LOG.setLevel(logging.INFO)
        if self.options.is_exact:
            commit_to_brokers(self.options, messages, batch_id)
            return
        sent = [message for message in messages if isinstance(message, SentRows)]
        if len(sent) != len(messages):
            raise WriteFailedError("a task handed in nothing of what it has sent")
        publish(sent)
        warn_of_overruled([rows.overruled for rows in sent])
        statuses = sum((Counter(rows.statuses) for rows in sent), Counter[int]())
        is_safe = set(statuses) <= {ResponseCode.SUCCESS}
        count = sum(rows.row_count for rows in sent)
        _LOG.log(
            logging.INFO if is_safe else logging.WARNING,
            *("batch %d: %d rows sent (%s)", batch_id, count, statuses_text(statuses)),
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Rows that were sent at least once stay; what was staged or put aside goes."""
        if self.options.is_exact:
            abort_staged(self.options, messages)
            return
        sent = [message.dead_letters for message in messages if isinstance(message, SentRows)]
        drop_dead_letters(LocalFileSystem(), [file for file in sent if file is not None])


def publish(sent: Sequence[SentRows]) -> None:
    """Give the tasks' dead letters their names. Raises WriteFailedError where this machine does not see a task's file."""
    files = LocalFileSystem()
    for rows in sent:
        try:
            publish_dead_letters(files, [] if rows.dead_letters is None else [rows.dead_letters])
        except FileNotFoundError:
            assert rows.dead_letters is not None
            path, here = rows.dead_letters.staged, host_name()
            rule = f"{here} does not see {path}, which a task wrote on {rows.host}"
            raise WriteFailedError(
                f"{rule}: deadLetterPath must be a directory that driver and workers share"
            ) from None
