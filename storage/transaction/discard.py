"""Discarding half messages without an answer, and putting them back. Java: DefaultTransactionalMessageCheckListener.resolveDiscardMsg,
AdminBrokerProcessor.resumeCheckHalfMessage.

A discarded half is in TRANS_CHECK_MAX_TIME_TOPIC, later in the log than the half; after putting back, a half follows it. So each is
done only once, even if a crash comes between the message and the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage.failpoints import reach
from storage.format.record import Message
from storage.rules.half_messages import (
    DISCARD_TOPIC,
    HALF_TOPIC,
    QUEUE_ID,
    discarded_messages,
    resumed_messages,
)
from storage.store import MessageStore
from storage.tables.topics import TopicConfig
from storage.transaction.check_plan import CheckRules
from storage.transaction.half_queue import Halves, half_at, messages_of, read_halves
from storage.transaction.outcomes import outcomes_of
from storage.transaction.progress import save_counts


def discard(store: MessageStore, halves: Halves) -> None:
    """Move halves to the discard topic, which gets its entry, except those that a check before a crash has moved."""
    moved = halves.take(~_stands_behind(store, DISCARD_TOPIC, halves)) if halves.row_count else halves
    if not moved.row_count:
        return
    if DISCARD_TOPIC not in store.writer.settings.topics.topics:
        store.save_topic(TopicConfig(DISCARD_TOPIC, 1, 1))
    for _, messages in messages_of(store, moved):
        store.put_inner(discarded_messages(messages))
        reach("half-discarded")


@dataclass(frozen=True, slots=True)
class RedriveReport:
    """The results of a redrive of discarded halves."""

    put_back: int
    back_before: int
    """Put back by an earlier redrive."""
    ended: int
    """Committed or rolled back meanwhile."""
    too_old: int
    """Older than the log's files live: the next check would give them up again."""

    def figures(self) -> dict[str, object]:
        """The results for programs."""
        return {
            "put_back": self.put_back,
            "back_before": self.back_before,
            "ended": self.ended,
            "too_old": self.too_old,
        }

    def lines(self) -> list[str]:
        """The results for display."""
        return [
            f"{self.put_back} half messages put back; left: {self.back_before} put back before, {self.ended} ended meanwhile, "
            f"{self.too_old} too old"
        ]


def redrive(
    store: MessageStore, now_ms: int, *, topics: frozenset[str] | None = None, rules: CheckRules | None = None
) -> RedriveReport:
    """Put discarded halves (of these real topics) back into the half topic, once each, with their check count reset to 0.

    Java does it for one message id, at every request, even if the transaction has ended.
    """
    end = store.max_offset(DISCARD_TOPIC, QUEUE_ID)
    discarded = read_halves(store, 0, end, topic=DISCARD_TOPIC)
    if topics is not None:
        discarded = discarded.take(np.isin(np.array(discarded.real_topics.to_pylist(), object), sorted(topics)))
    return _put_back(store, discarded, now_ms, rules or CheckRules.of(store.config))


def redrive_one(store: MessageStore, discarded: Message, now_ms: int, rules: CheckRules) -> RedriveReport:
    """Like `redrive`, for one message of the discard topic."""
    return _put_back(store, half_at(store, discarded), now_ms, rules)


def _put_back(store: MessageStore, discarded: Halves, now_ms: int, rules: CheckRules) -> RedriveReport:
    is_back = _stands_behind(store, HALF_TOPIC, discarded)
    is_ended = _is_ended(store, discarded.take(~is_back))
    waiting = discarded.take(~is_back).take(~is_ended)
    too_old = now_ms - waiting.born_times_ms > rules.file_reserved_ms
    chosen = waiting.take(~too_old)
    for rows, messages in messages_of(store, chosen):
        store.put_inner(resumed_messages(messages))
        reach("half-redriven")
        counted = chosen.real_topics[rows].value_counts()
        save_counts(store, {row["values"].as_py(): row["counts"].as_py() for row in counted}, now_ms=now_ms)
    return RedriveReport(chosen.row_count, int(is_back.sum()), int(is_ended.sum()), int(too_old.sum()))


def _stands_behind(store: MessageStore, topic: str, halves: Halves) -> np.ndarray:
    """Which messages have a later copy in the log, in queue 0 of a topic; a message that a producer sends again is no copy."""
    codes = halves.name_codes()
    last = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    queue, end = store.queues.get(topic, QUEUE_ID), store.max_offset(topic, QUEUE_ID)
    if queue is not None and halves.row_count:
        others = read_halves(store, queue.first_offset_at(int(halves.commitlog_offsets.min()), end), end, topic=topic)
        if topic == HALF_TOPIC:
            others = others.take(others.is_copy)
        found = halves.name_codes(others.names)
        np.maximum.at(last, found[found >= 0], others.commitlog_offsets[found >= 0])
    result = np.zeros(halves.row_count, bool)
    result[codes >= 0] = last[codes[codes >= 0]] > halves.commitlog_offsets[codes >= 0]
    return result


def _is_ended(store: MessageStore, discarded: Halves) -> np.ndarray:
    """Which transactions were ended although their half was given up: their producer answered late.

    Their place in the half queue is searched from its beginning, as their own offset is that in another queue.
    """
    nowhere = np.full(discarded.row_count, -1, np.int64)
    check_times = np.maximum(discarded.check_times, 0)  # so they count as copies of earlier halves
    return outcomes_of(store, discarded._replace(queue_offsets=nowhere, check_times=check_times)).is_ended
