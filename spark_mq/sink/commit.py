"""The driver's side of a write: what all tasks have staged becomes one batch in the log, or is given back.

The store is held for one commit and let go in between, so that several queries, and jobs, can take turns. The process in which
Spark runs this may outlive a killed driver: everything is decided under the store's lock, from what the store itself says.
"""

from __future__ import annotations

import logging
import posixpath
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress

from pyspark.sql.datasource import WriterCommitMessage

from spark_mq.conditions import WriteFailedError
from spark_mq.sink.dead_letters import discard_staged
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.partition_writer import StagedRows
from spark_mq.sink.place import not_shared
from spark_mq.store_conditions import writing_conditions
from storage import open_store
from storage.batch.commit import abort_batch, commit_batch
from storage.batch.ledger import TOPIC as LEDGER_TOPIC
from storage.batch.ledger import Batch
from storage.batch.staged_batch import StagedBatch
from storage.batch.staged_segment import StagedSegment, check_staged, remove_staging, staged_directory
from storage.errors import StagedRowsGoneError, StoreLockedError, StoreNotFoundError
from storage.files.local_file_system import LocalFileSystem
from storage.message_store import MessageStore
from storage.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_retry_or_dead_letter_topic
from storage.recovery.creation import find_log
from storage.rules.row_topics import RowWish
from storage.settings.load import load_config
from storage.tables.batch_notes import BatchNote, add_batch_note
from storage.tables.put_statistics import PutStatistics
from storage.tables.subscription_groups import SubscriptionGroupConfig
from storage.transaction.progress import save_counts

_LOG = logging.getLogger("spark_mq.sink")


def commit_rows(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int, *, mirrored: bool
) -> None:
    """Append what the tasks have staged, once. A batch without a row does not touch the store.

    Raises WriteFailedError, or a storage error's condition.
    """
    staged = [_staged(message) for message in messages]
    segments = _segments(staged)
    dead_letters = [rows.dead_letters for rows in staged if rows.dead_letters is not None]
    if not segments and not dead_letters:
        return
    batch = staged[0].batch
    if any(rows.batch != batch for rows in staged) or batch.batch_id != batch_id:
        raise WriteFailedError(
            f"the tasks' rows are those of {sorted({rows.batch for rows in staged})}, not of batch {batch_id}"
        )
    topics = _most(rows.topics for rows in staged)
    asked_s = time.monotonic()
    with (
        writing_conditions(options.root),
        _naming_tasks(options, staged),
        open_store(
            options.root,
            config=options.conf,
            read_only=False,
            create=not options.send_back,  # what failed was read from a store that is there
            lock_timeout_ms=options.lock_timeout,
            store_host=options.store_host,
            broker_name=options.broker_name,
            flush_disk_type=options.flush_disk_type,
            rocketmq_version=options.rocketmq_version,
        ) as store,
    ):
        opened_s, store.writer.statistics = time.monotonic(), PutStatistics()
        _ensure_groups(store, topics)
        outcome = commit_batch(
            store.writer,
            StagedBatch(
                batch,
                segments,
                topics,
                grown=_most(rows.grown for rows in staged),
                destinations={queue for rows in staged for queue in rows.destinations},
                dead_letters=dead_letters,
            ),
            wish=None if options.send_back else RowWish(options.create_topic, options.queue_num),
            takeover=options.sink_takeover,
            mirrored=mirrored,
        )
        if outcome.already_done:
            discard_staged(LocalFileSystem(), options.root, dead_letters)
        elif unresolved := sum((rows.unresolved for rows in staged), Counter[str]()):
            save_counts(store, unresolved, now_ms=store.writer.clock())
        if outcome.row_count:
            _note(store, batch, outcome.row_count, waited_s=opened_s - asked_s, took_s=time.monotonic() - opened_s)
        store.release()


def _note(store: MessageStore, batch: Batch, row_count: int, *, waited_s: float, took_s: float) -> None:
    """Remember what the batch was, for `spark-mq sink-status`. The batch is there already, so an error is logged and no more."""
    writer = store.writer
    topics = {name: found for name, found in writer.statistics.topics.items() if name != LEDGER_TOPIC}
    note = BatchNote(
        batch.query_id,
        batch.batch_id,
        writer.clock(),
        row_count,
        round(waited_s * 1_000),
        round(took_s * 1_000),
        topics,
    )
    try:
        add_batch_note(writer.file_system, store.root, batch.sink_id, note)
    except OSError as error:
        _LOG.warning("batch %d of sink %s is stored; the note of it is not: %s", batch.batch_id, batch.sink_id, error)


@contextmanager
def _naming_tasks(options: SinkOptions, staged: Sequence[StagedRows]) -> Iterator[None]:
    """Staged files that this process does not see are told with the machine whose task wrote them.

    Where there is no store yet they are looked for at once, so that none is made in a directory that only this machine sees.
    A store that is there is asked first whether it holds the batch: then the files may be gone.
    """
    files = LocalFileSystem()
    directory = staged_directory(options.root)
    written = {f"{directory}/{part.path}": (rows.host, options.root) for rows in staged for part in _segments([rows])}
    for rows in staged:
        if rows.dead_letters is not None:
            written[rows.dead_letters[0]] = rows.host, posixpath.dirname(rows.dead_letters[0])
    try:
        if not _is_store(options, files):
            check_staged(files, written)
        yield
    except StagedRowsGoneError as error:
        if error.path not in written:  # another batch's, which the opening was to finish
            raise
        raise not_shared(*written[error.path], error.path) from error


def _is_store(options: SinkOptions, files: LocalFileSystem) -> bool:
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
    # Where no commit has come so far that there is a lock, there is nobody to keep out, and maybe no store.
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
    """Of each topic the greatest number of queues that a task asks for."""
    most: Counter[str] = Counter()
    for one in counts:
        most |= Counter(one)
    return dict(most)


def _ensure_groups(store: MessageStore, topics: Mapping[str, int]) -> None:
    """Groups whose retry or dead-letter topics these are have their entries. Java: SubscriptionGroupManager."""
    of_groups = {topic: count for topic, count in topics.items() if is_retry_or_dead_letter_topic(topic)}
    if not of_groups:
        return
    store.writer.ensure_topics(of_groups)
    for topic in of_groups:
        group = topic.removeprefix(RETRY_PREFIX).removeprefix(DEAD_LETTER_PREFIX)
        if group not in store.groups:
            store.save_group(SubscriptionGroupConfig(group))


def _staged(message: WriterCommitMessage | None) -> StagedRows:
    if not isinstance(message, StagedRows):
        raise WriteFailedError(f"a task handed in {message!r:.80} in place of what it had staged")
    return message
