"""What a sink's commit does on an open store: groups, the batch, its counts, a note of it. The store may be a broker's.

Exactly once is `commit_batch`'s: intent, slices and ledger are the same, whoever has the store open.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from storage.batch.commit import CommitOutcome, commit_batch
from storage.batch.ledger import TOPIC as LEDGER_TOPIC
from storage.batch.ledger import Batch
from storage.batch.sink_progress import end_behind
from storage.batch.slices import Turn
from storage.batch.staged_segment import StagedBatch
from storage.message_store import MessageStore
from storage.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_retry_or_dead_letter_topic
from storage.rules.topics import RowWish
from storage.tables.batch_notes import BatchNote, add_batch_note
from storage.tables.put_statistics import PutStatistics
from storage.tables.subscription_groups import SubscriptionGroupConfig
from storage.transaction.progress import save_counts

_LOG = logging.getLogger("spark_mq.sink")


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """A batch that tasks have staged, and what the sink's options say of its commit."""

    staged: StagedBatch
    wish: RowWish | None
    """What the user says of topics that are made or get more queues; None: rows are sent back."""
    takeover: bool = False
    mirrored: bool = True
    unresolved: Mapping[str, int] = field(default_factory=dict)
    """How many half messages of each topic nothing ends yet."""
    begun_at: int | None = None
    """Where the log ended when an earlier try at this commit, whose answer was lost, began; None = there was none."""


def commit_staged(
    store: MessageStore, commit: StagedCommit, *, waited_s: float = 0.0, turn: Turn = nullcontext
) -> CommitOutcome:
    """Append the batch, as `commit_batch` does; its errors are raised. `turn` takes the put lock where others put meanwhile.

    A batch that an earlier try has brought to its END is done, also one without a name, which the ledger is not asked for.
    """
    writer, counts, began_s = store.writer, PutStatistics(), time.monotonic()
    turn = _counting(store, counts, turn)
    with turn():
        if commit.begun_at is not None and commit.staged.has_rows:
            staged = commit.staged
            if end_behind(writer, staged.batch, staged.segments, commit.begun_at) is not None:
                return CommitOutcome(True, 0)
        _ensure_groups(store, commit.staged.topics)
    outcome = commit_batch(
        writer, commit.staged, wish=commit.wish, takeover=commit.takeover, mirrored=commit.mirrored, turn=turn
    )
    if not outcome.already_done and commit.unresolved:
        save_counts(store, commit.unresolved, now_ms=writer.clock())
    if outcome.row_count:
        took_s = time.monotonic() - began_s
        _note(store, commit.staged.batch, outcome.row_count, counts, waited_s=waited_s, took_s=took_s)
    return outcome


def _counting(store: MessageStore, counts: PutStatistics, turn: Turn) -> Turn:
    """The turn, within which what is put is the batch's and counts as such."""
    writer = store.writer
    if turn is nullcontext:  # nobody else can put at all, and `commit_batch` must know
        writer.statistics = counts
        return turn

    @contextmanager
    def counted() -> Iterator[None]:
        with turn():
            others, writer.statistics = writer.statistics, counts
            try:
                yield
            finally:
                writer.statistics = others

    return counted


def _note(
    store: MessageStore, batch: Batch, row_count: int, counts: PutStatistics, *, waited_s: float, took_s: float
) -> None:
    """Remember what the batch was, for `spark-mq sink-status`. The batch is there already, so an error is logged and no more."""
    writer = store.writer
    topics = {name: found for name, found in counts.topics.items() if name != LEDGER_TOPIC}
    waited_ms, took_ms = round(waited_s * 1_000), round(took_s * 1_000)
    note = BatchNote(batch.query_id, batch.batch_id, writer.clock(), row_count, waited_ms, took_ms, topics)
    try:
        add_batch_note(writer.file_system, store.root, batch.sink_id, note)
    except OSError as error:
        _LOG.warning("batch %d of sink %s is stored; the note of it is not: %s", batch.batch_id, batch.sink_id, error)


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
