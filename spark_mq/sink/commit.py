"""The driver's side of a write: the staged files of all tasks become one batch in the log, or are discarded.

The store's lock is held for one commit and released in between, so that several queries and jobs can take turns. Spark's process for
this code may outlive a killed driver; so every decision is made under the store's lock, from the state of the store itself.
"""

from __future__ import annotations

import logging
import os
import posixpath
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from spark_mq.conditions import WriteFailedError, writing_conditions
from spark_mq.hand_over import local_socket
from spark_mq.hand_over.local_socket import (
    ANSWER_BYTES_MOST,
    REQUEST_BYTES_MOST,
    FrameError,
    ask_for_copies,
    broker_note,
    directory_identity,
)
from spark_mq.hand_over.messages import HandOver, StagedCommit, commit_staged, read_answer, request_document, started_at
from spark_mq.sink.columns import InputColumns, warn_of_overruled
from spark_mq.sink.dead_letters import discard_staged
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows, stage_rows
from spark_mq.sink.place import SeenStore, not_shared
from spark_mq.spark_api import TaskContext, WriterCommitMessage
from storage import open_store
from storage.batch.commit import CommitOutcome, abort_batch
from storage.batch.ledger import Batch
from storage.batch.staged_segment import StagedBatch, StagedSegment, check_staged, remove_staging, staged_directory
from storage.errors import (
    ConfigurationError,
    NotReplicatedError,
    ReplicasNotEnoughError,
    StagedRowsGoneError,
    StorageError,
    StoreLockedError,
    StoreNotFoundError,
    StoreServedError,
)
from storage.files.local_file_system import LocalFileSystem
from storage.put.settings import parse_host
from storage.rules.put_guards import NO_COPIES, copies_of_batch
from storage.rules.topics import RowWish
from storage.settings.load import load_config
from storage.store import MessageStore
from storage.tables.surroundings import find_log, has_own_log

_LOG = logging.getLogger("spark_mq.sink")
_PAUSE_SECONDS = 0.1
SILENCE_SECONDS = 30.0
"""A broker that lives says so each second."""
_IN_DOUBT = "whether the batch is in the store the next try tells"


@dataclass(frozen=True)
class StoreSink:
    """A store that rows are written into (`writers.Sink`)."""

    options: SinkOptions
    columns: InputColumns
    seen: SeenStore | None = None
    """The store that is there already, for the tasks to recognise."""

    def write(
        self, batch: Batch, task: TaskContext, frames: Iterator[pa.RecordBatch], *, is_query: bool
    ) -> WriterCommitMessage:
        """A task stages its rows."""
        place = task.partitionId(), task.taskAttemptId()
        return stage_rows(self.options, self.columns, batch, *place, frames, is_only=not is_query, seen=self.seen)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int, *, is_query: bool) -> None:
        """One commit appends what the tasks have staged."""
        commit_rows(self.options, messages, batch_id, mirrored=is_query or self.options.write_id is not None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        abort_rows(self.options, messages)


def commit_rows(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int, *, mirrored: bool
) -> None:
    """Append what the tasks have staged, once. A batch without a row does not touch the store.

    Raises WriteFailedError, or a storage error's condition.
    """
    staged = [_staged(message) for message in messages]
    segments = _segments(staged)
    warn_of_overruled([rows.overruled for rows in staged])
    dead_letters = [rows.dead_letters for rows in staged if rows.dead_letters is not None]
    if not segments and not dead_letters:
        return
    batch = staged[0].batch
    if any(rows.batch != batch for rows in staged) or batch.batch_id != batch_id:
        raise WriteFailedError(
            f"the tasks' rows are those of {sorted({rows.batch for rows in staged})}, not of batch {batch_id}"
        )
    commit = StagedCommit(
        StagedBatch(
            batch,
            segments,
            _most(rows.topics for rows in staged),
            grown=_most(rows.grown for rows in staged),
            destinations={queue for rows in staged for queue in rows.destinations},
            dead_letters=dead_letters,
            refused=sum(rows.refused for rows in staged),
            is_write=options.write_id is not None,
        ),
        wish=None if options.send_back else RowWish(options.create_topic, options.queue_num),
        takeover=options.sink_takeover,
        mirrored=mirrored,
        unresolved=sum((rows.unresolved for rows in staged), Counter[str]()),
    )
    with writing_conditions(options.root), _naming_tasks(options, staged):
        _commit(options, commit)


def _commit(options: SinkOptions, commit: StagedCommit) -> None:
    """By the broker of ours that serves the store, where one does; else under the store's lock.

    Where a broker ends without an answer, the next process that opens the store goes on with what the disk says; that may be this one.
    """
    batch, started_s = commit.staged.batch, time.monotonic()
    end_s = started_s + options.lock_timeout / 1_000
    said = ""
    while True:
        left_ms = max(0, round((end_s - time.monotonic()) * 1_000))
        try:
            with _opened(options, left_ms) as store:
                copies = _admitted(options, store)
                outcome = commit_staged(store, commit, waited_s=time.monotonic() - started_s)
                if outcome.already_done:
                    discard_staged(LocalFileSystem(), options.root, commit.staged.dead_letters)
                end = store.writer.log_end
                store.release()
            _wait_for_copies(options, store, copies, end)
            return
        except StoreServedError as served:
            holder = served.holder
        _refuse_other_host(options)
        answer = hand_over(options.root, _request(options, commit, left_ms), holder)
        if isinstance(answer, CommitOutcome):
            if answer.already_done:
                discard_staged(LocalFileSystem(), options.root, commit.staged.dead_letters)
            return
        if answer.started_at is not None:
            commit = replace(commit, started_at=answer.started_at if commit.started_at is None else commit.started_at)
            end_s = time.monotonic() + options.lock_timeout / 1_000
        elif time.monotonic() >= end_s:
            raise StoreServedError(options.root, answer.reason, holder)
        if answer.reason != said:
            said = answer.reason
            _LOG.warning("batch %d of sink %s waits for a broker: %s", batch.batch_id, batch.sink_id, said)
        time.sleep(_PAUSE_SECONDS)


def _admitted(options: SinkOptions, store: MessageStore) -> int:
    """The number of copies for the batch, from a replicator beside the store. Raises ReplicasNotEnoughError."""
    needed = copies_of_batch(store.config.mode, store.config.replication, options.in_sync_replicas)
    if needed != NO_COPIES:
        in_sync = ask_for_copies(options.root, needed, None, _slave_timeout_ms(options, store))
        if in_sync < needed:
            raise ReplicasNotEnoughError(options.root, needed, in_sync)
    return needed


def _wait_for_copies(options: SinkOptions, store: MessageStore, needed: int, end: int) -> None:
    """Raises NotReplicatedError; the batch is in the log, and done to the next try, which waits again."""
    if needed != NO_COPIES:
        timeout_ms = _slave_timeout_ms(options, store)
        if ask_for_copies(options.root, needed, end, timeout_ms) < needed:
            raise NotReplicatedError(options.root, needed, timeout_ms)


def _slave_timeout_ms(options: SinkOptions, store: MessageStore) -> int:
    return store.config.replication.slave_timeout if options.slave_timeout is None else options.slave_timeout


def _refuse_other_host(options: SinkOptions) -> None:
    """Check a broker that has the store open. Raises ConfigurationError if `storeHost` differs from the broker's own address."""
    note = None if options.store_host is None else broker_note(options.root)
    if options.store_host is None or note is None:
        return
    if parse_host(options.store_host, "storeHost") != parse_host(note.store_host, "storeHost"):
        rule = (
            f"it is {options.store_host}, and the broker that serves {options.root} is {note.store_host}: "
            f"give storeHost={note.store_host}, or none"
        )
        raise ConfigurationError(None, None, "storeHost", rule)


def _opened(options: SinkOptions, lock_timeout_ms: int) -> MessageStore:
    """Raises StoreServedError where a broker of ours has it."""
    return open_store(
        options.root,
        config=options.conf,
        read_only=False,
        create=not options.send_back,  # what failed was read from a store that is there
        lock_timeout_ms=lock_timeout_ms,
        holder="sink",
        store_host=options.store_host,
        broker_name=options.broker_name,
        flush_disk_type=options.flush_disk_type,
        rocketmq_version=options.rocketmq_version,
    )


def _request(options: SinkOptions, commit: StagedCommit, patience_ms: int) -> HandOver:
    return HandOver(
        commit,
        directory_identity(options.root),
        patience_ms,
        is_sync=options.flush_disk_type == "SYNC_FLUSH",
        copies=options.in_sync_replicas,
        slave_timeout_ms=options.slave_timeout,
    )


@contextmanager
def _naming_tasks(options: SinkOptions, staged: Sequence[StagedRows]) -> Iterator[None]:
    """The error for staged files that this process does not see names the machine whose task wrote them.

    If there is no store yet, look for the files at once, so that no store is made in a directory that only this machine sees.
    If the store exists, first check whether it holds the batch: then the files may be gone.
    """
    files = LocalFileSystem()
    directory = staged_directory(options.root)
    written = {f"{directory}/{part.path}": (rows.host, options.root) for rows in staged for part in _segments([rows])}
    for rows in staged:
        if rows.dead_letters is not None:
            written[rows.dead_letters[0]] = rows.host, posixpath.dirname(rows.dead_letters[0])
    try:
        try:
            check_staged(files, written)
        except StagedRowsGoneError:
            if not _is_store(options, files):
                raise
        yield
    except StagedRowsGoneError as error:
        if error.path not in written:  # another batch's, which the opening was to finish
            raise
        raise not_shared(*written[error.path], error.path) from error


def _is_store(options: SinkOptions, files: LocalFileSystem) -> bool:
    if has_own_log(options.root, files):
        return True
    try:
        find_log(options.root, load_config(options.root, options.conf, read_bytes=files.read_file), files)
    except StoreNotFoundError:
        return False
    return True


def abort_rows(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Give back what tasks have staged for a write that failed, unless the commit had decided it already.

    Where another writer holds the store it stays; the sink's next commit clears it away. Where no store was made nothing of ours
    stays in its place.
    """
    staged = [message for message in messages if isinstance(message, StagedRows)]
    segments = _segments(staged)
    dead_letters = [rows.dead_letters for rows in staged if rows.dead_letters is not None]
    files = LocalFileSystem()
    # Without a lock file no commit has come this far: there is no other process to exclude, and maybe no store.
    lock_path = f"{options.root}/lock"
    has_lock = files.exists(lock_path)
    if not segments and not dead_letters and has_lock:
        return
    lock = files.locked(lock_path) if has_lock else nullcontext()
    with writing_conditions(options.root), suppress(StoreLockedError), lock:
        abort_batch(files, options.root, segments)
        discard_staged(files, options.root, dead_letters)
        if not has_lock:
            remove_staging(files, options.root)


def _segments(staged: Sequence[StagedRows]) -> list[StagedSegment]:
    """In the order in which they go into the log: half messages of all tasks before their commits."""
    return [
        *(segment for rows in staged for segment in rows.segments),
        *(segment for rows in staged for segment in rows.commits),
    ]


def _most(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """For each topic, the greatest number of queues that a task needs."""
    most: Counter[str] = Counter()
    for one in counts:
        most |= Counter(one)
    return dict(most)


def _staged(message: WriterCommitMessage | None) -> StagedRows:
    if not isinstance(message, StagedRows):
        raise WriteFailedError(f"a task handed in {message!r:.80} in place of what it had staged")
    return message


class Unanswered(NamedTuple):
    """No answer, and no broker there any more that could give one."""

    reason: str
    started_at: int | None = None
    """The log's end when the broker began the commit; None = not begun."""


def hand_over(root: str, request: HandOver, holder: str | None) -> CommitOutcome | Unanswered:
    """Give a staged batch to the broker of ours that has the store open, on this machine. Returns what the broker says.

    A commit by the sink itself would have the same result. If no answer comes, because the broker has ended, it is unknown
    whether the batch was decided: the sink asks the next process that has the store, and says where the log ended when the lost try
    began. Raises the error that the broker answers with, StoreServedError where it takes nothing from here.

    `holder` is the process that has the store's lock, for texts.
    """
    try:
        connection = local_socket.connect(root, SILENCE_SECONDS)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        return Unanswered(local_socket.why_none_listens(root, error))
    except OSError as error:
        raise StoreServedError(root, f"its socket is not reached: {error.strerror or error}", holder) from error
    started: int | None = None
    answer: CommitOutcome | StorageError | OSError | None = None
    with connection:
        user = local_socket.peer_user(connection)
        if not local_socket.is_own_user(user):
            reason = f"it is run by user {user}, and this process by user {os.geteuid()}"
            raise StoreServedError(root, reason, holder)
        try:
            _send(connection, request)
            while answer is None:
                document = local_socket.receive_frame(connection, ANSWER_BYTES_MOST, SILENCE_SECONDS)
                if document is None:
                    return Unanswered("it has ended amid the batch", started)
                now = started_at(document)
                started = started if now is None else now
                answer = read_answer(document)
        except TimeoutError as error:
            reason = f"it has said nothing for {SILENCE_SECONDS:.0f} s; {_IN_DOUBT}"
            raise StoreServedError(root, reason, holder) from error
        except (FrameError, ValueError) as error:
            reason = str(error) if started is None else f"{error}; {_IN_DOUBT}"
            raise StoreServedError(root, reason, holder) from error
        except ConnectionError as error:
            return Unanswered(f"it has ended amid the batch ({error})", started)
    if isinstance(answer, CommitOutcome):
        return answer
    raise _of_here(root, answer)


def _send(connection: socket.socket, request: HandOver) -> None:
    with suppress(ConnectionError):  # it may have said why
        local_socket.send_frame(connection, request_document(request), REQUEST_BYTES_MOST)


def _of_here(root: str, error: Exception) -> Exception:
    """The error with this process's name for a staged file; the broker may know ROOT by another one."""
    if isinstance(error, StagedRowsGoneError):
        _, mark, name = error.path.partition(staged_directory(""))
        if mark:
            return StagedRowsGoneError(staged_directory(root) + name, error.rows)
    return error
