"""Checks half messages without an outcome. Java: TransactionalMessageServiceImpl.check, TransactionalMessageCheckService.

Halves are processed in queue order, up to the first that is too young. Each is skipped (ended already), given up (checked too often, or
older than the log's files live), put back unchecked (immune) or checked. An answer ends it; without one it is put back at the queue's
end.

The store's lock is not held while the checker runs. A check goes over the queue in passes. Each pass opens the store, processes halves
up to the first that needs an answer, collects the questions, and releases the store; then the checker runs (`ask`). A pass
reads every half anew. So an answer counts only for a half that is still open: not for one that a request, a broker or another check
ended, put back or gave up meanwhile. Answers live in memory: after a crash the checker is called again.

Order of writes, for one part of the queue at a time: commit records · op messages · halves put back · discarded halves · their sync ·
both consume offsets, in one write. Commit point of a commit: its record. A crash
    after a commit record     the next check finds it, and only writes the op message
    after an op message       the half is ended
    after a half put back     there are two; the later one stands for both
    after a discarded half    the next check finds it in the discard topic
so nothing is committed twice, nothing rolled back is shown, and no half is lost: offsets move only over synced data.

Departures from Java, which sends the check before it looks, and lets a producer answer later: here the store is read first
(`outcomes.py`) and the checker answers in the same run; immunity uses up no checks (apache/rocketmq#8311); a half whose properties have
no room for one more count, which a broker tries to put back forever, is given up.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import StoreLockedError
from storage.failpoints import reach
from storage.format.properties import PROPERTIES_LIMIT_BYTES, with_crc_room
from storage.format.record import Message
from storage.rules.half_messages import (
    CHECK_TIMES,
    HALF_TOPIC,
    OP_TOPIC,
    QUEUE_ID,
    EndedHalves,
    TransactionState,
    committed_messages,
    op_messages,
    put_back_messages,
    put_back_unchecked,
    real_queue,
)
from storage.rules.inner_messages import InnerMessages
from storage.store import MessageStore
from storage.transaction.check_plan import Action, CheckRules, check_end, next_count, plan_checks, superseded
from storage.transaction.discard import discard
from storage.transaction.half_queue import Halves, messages_of, read_halves
from storage.transaction.outcomes import outcomes_of, read_ended
from storage.transaction.progress import TransactionProgress, read_progress, save_counts, save_progress

_LOG = logging.getLogger(__name__)
Checker = Callable[[Message], TransactionState | str]
"""Returns the outcome of a transaction. It gets the half with the topic and queue that it was sent to, and with this check counted."""


class HalfId(NamedTuple):
    """Identifies a half, even if a log was cut and written anew."""

    commitlog_offset: int
    queue_offset: int
    store_time_ms: int


Answers = dict[HalfId, TransactionState]


class Question(NamedTuple):
    """One half that needs an answer."""

    half: HalfId
    message: Message


@dataclass(frozen=True, slots=True)
class Asking:
    """How a run calls the checker."""

    threads: int = 8
    """How many calls at a time; with 1 only the calling thread calls the checker."""
    limit_s: float = 60.0
    """No call starts later in a run. Java: MAX_PROCESS_TIME_LIMIT, for a half queue and a run."""
    clock: Callable[[], float] = time.monotonic
    """In seconds."""


def half_id(halves: Halves, row: int) -> HalfId:
    """The identity of one of the halves."""
    return HalfId(int(halves.commitlog_offsets[row]), int(halves.queue_offsets[row]), int(halves.store_times_ms[row]))


def ask(questions: Sequence[Question], checker: Checker, asking: Asking, deadline_s: float) -> Answers:
    """The checker's answers, in the order of the questions, up to the first whose call did not start before `deadline_s`.

    Calls that have started are waited for. The first error of the checker is raised, ValueError for an invalid answer; calls
    that have not started by then are not made.
    """

    def answer(question: Question) -> TransactionState | None:
        return TransactionState(checker(question.message)) if asking.clock() < deadline_s else None

    answers: Answers = {}
    for question, state in zip(questions, _called(answer, questions, asking.threads), strict=True):
        if state is None:
            break
        answers[question.half] = state
    return answers


def _called(
    answer: Callable[[Question], TransactionState | None], questions: Sequence[Question], threads: int
) -> Iterable[TransactionState | None]:
    return map(answer, questions) if threads == 1 else _called_by_threads(answer, questions, threads)


def _called_by_threads(
    answer: Callable[[Question], TransactionState | None], questions: Sequence[Question], threads: int
) -> Iterator[TransactionState | None]:
    pool = ThreadPoolExecutor(threads, thread_name_prefix="transaction-check")
    try:
        yield from pool.map(answer, questions)
    finally:
        pool.shutdown(cancel_futures=True)


PASS_HALVES = 1 << 20
_STRETCH_BYTES = 32 << 20
_STRETCH_HALVES = 1 << 14


@dataclass(slots=True)
class CheckReport:
    """The results of one check."""

    committed: int = 0
    rolled_back: int = 0
    put_back: int = 0
    """Checked without an answer."""
    immune: int = 0
    """Put back unchecked."""
    discarded: int = 0
    found_ended: int = 0
    """Ended already; only their op message was missing."""
    half_offset: int = 0
    op_offset: int = 0
    waiting: int = 0
    """Half messages from `half_offset` on, including ended ones."""
    stopped_early: bool = False
    """Whether the check ended before the first half that is too young, or was put after the check started."""
    out_of_time: bool = False
    """Whether the check ended before a half that needed an answer, as no time was left."""
    answers_left: int = 0
    """Answers that were not applied, because another writer had the store; the checker is called again for them."""
    to_check_again: list[tuple[int, int]] = field(default_factory=list)
    """(log offset, queue offset) of each half put back after an unknown answer: a check request to a producer names them."""

    def figures(self) -> dict[str, object]:
        """The results for programs."""
        return {
            "committed": self.committed,
            "rolled_back": self.rolled_back,
            "unknown": self.put_back,
            "immune": self.immune,
            "given_up": self.discarded,
            "found_ended": self.found_ended,
            "half_offset": self.half_offset,
            "op_offset": self.op_offset,
            "waiting": self.waiting,
            "out_of_time": self.out_of_time,
            "answers_left": self.answers_left,
        }

    def lines(self) -> list[str]:
        """The results for display."""
        lines = [
            f"{self.committed} committed, {self.rolled_back} rolled back, {self.put_back} unknown, {self.immune} not asked yet, "
            f"{self.discarded} given up, {self.found_ended} found ended",
            f"half offset {self.half_offset}, op offset {self.op_offset}, "
            f"{self.waiting} half messages behind it, ended ones among them",
        ]
        if self.stopped_early:
            lines.append(
                "stopped at the first half message that is younger than transactionTimeOut; the next run goes on from there"
            )
        if self.out_of_time:
            lines.append("stopped asking when the run's time was over; the next run goes on from there")
        if self.answers_left:
            lines.append(
                f"{self.answers_left} answers not applied: another writer has the store; the next run asks for them again"
            )
        return lines


def check_half_messages(
    opened: Callable[[], AbstractContextManager[MessageStore]],
    checker: Checker,
    now_ms: int,
    *,
    rules: CheckRules | None = None,
    asking: Asking | None = None,
) -> CheckReport:
    """Process every half message that is due at `now_ms` once, as far as the time for the checker allows.

    `opened` gives the store open for writing, once for each pass; the checker is called between them, by several threads
    (`Asking.threads`). An error of the checker is raised; earlier changes stay. Raises StoreLockedError if the first opening does,
    StateFileError, StoreNotWritableError, OSError.
    """
    asking, report, answers = asking or Asking(), CheckReport(), Answers({})
    deadline_s: float | None = None
    end: int | None = None
    while end is None or answers:
        try:
            with opened() as store:
                check = _Pass(store, answers, now_ms, rules or CheckRules.of(store.config), report)
                end = store.max_offset(HALF_TOPIC, QUEUE_ID) if end is None else end
                check.run(end)
        except StoreLockedError:
            if end is None:
                raise
            report.answers_left = len(answers)
            return report
        if not check.questions:
            return report
        if deadline_s is None:  # waiting for the lock does not count as time of the checker
            deadline_s = asking.clock() + asking.limit_s
        answers = ask(check.questions, checker, asking, deadline_s)
        reach("halves-asked")
    report.out_of_time = True
    return report


class _Stretch(NamedTuple):
    """Consecutive halves with their actions."""

    halves: Halves
    actions: np.ndarray
    end: int
    """The half offset after them."""


class _Pass:
    """One pass over the queue under the lock: plans, and writes what needs no answer or has one."""

    def __init__(
        self, store: MessageStore, answers: Answers, now_ms: int, rules: CheckRules, report: CheckReport
    ) -> None:
        self._store = store
        self._answers = answers
        self._now_ms = now_ms
        self._rules = rules
        self._counts: Counter[str] = Counter()
        self.report = report
        self.questions: list[Question] = []
        """The halves that need an answer before a pass can continue."""

    def run(self, end: int) -> None:
        """Process the halves before offset `end`, the queue's end when the check started: later ones are for the next check."""
        start, op_start = read_progress(self._store)
        end = max(start, min(end, self._store.max_offset(HALF_TOPIC, QUEUE_ID)))
        op_end = self._store.max_offset(OP_TOPIC, QUEUE_ID)
        ended = read_ended(self._store, op_start, op_end)
        goes_on = True
        while goes_on:
            pass_end = min(start + PASS_HALVES, end)
            halves = read_halves(self._store, start, pass_end)
            has_op = np.isin(halves.queue_offsets, ended.half_offsets)
            last = check_end(halves, has_op, self._now_ms, self._rules)
            for stretch in self._stretches(halves, has_op, last, pass_end):
                self._apply(stretch)
                start = stretch.end
                self._save(TransactionProgress(start, ended.done_before(op_end, start)))
            self.report.stopped_early = not self.questions and last < halves.row_count
            goes_on = not self.questions and last == halves.row_count and pass_end < end
        self.report.half_offset, self.report.op_offset = read_progress(self._store)
        self.report.waiting = self._store.max_offset(HALF_TOPIC, QUEUE_ID) - self.report.half_offset

    def _stretches(self, halves: Halves, has_op: np.ndarray, last: int, pass_end: int) -> Iterator[_Stretch]:
        """The halves before row `last` with their actions, in parts that fit into memory with their bodies.

        They end before the first half that needs an answer; it and some later ones become `questions`.
        """
        behind = int(halves.queue_offsets[last]) if last < halves.row_count else pass_end
        due = halves.take(np.arange(last))
        actions = _actions(self._store, due, has_op[:last], superseded(halves)[:last], self._now_ms, self._rules)
        if (stop := self._first_unanswered(due, actions)) < last:
            behind, last = int(due.queue_offsets[stop]), stop
            due, actions = due.take(np.arange(last)), actions[:last]
        sizes = np.cumsum(np.where(actions == Action.SKIP, 0, due.sizes_bytes) + _STRETCH_BYTES // _STRETCH_HALVES)
        bounds = [0, *(np.flatnonzero(np.diff(sizes // _STRETCH_BYTES)) + 1).tolist(), last]
        for first, end in pairwise(bounds):
            if first == end and self.questions:
                return  # nothing was processed
            rows = np.arange(first, end)
            yield _Stretch(due.take(rows), actions[rows], int(due.queue_offsets[end]) if end < last else behind)

    def _first_unanswered(self, halves: Halves, actions: np.ndarray) -> int:
        """The row of the first half that waits for an answer, or the number of rows; fills `questions` from it on."""
        rows = np.flatnonzero(_needs_answer(halves, actions)).tolist()
        stop, size = halves.row_count, 0
        for row in rows:
            if half_id(halves, row) not in self._answers:
                stop, size = min(stop, row), size + int(halves.sizes_bytes[row])
                if self.questions and (size > _STRETCH_BYTES or len(self.questions) == _STRETCH_HALVES):
                    break
                self.questions.append(self._question(halves, row))
        return stop

    def _apply(self, stretch: _Stretch) -> None:
        halves, actions = stretch.halves, stretch.actions
        answers = {state: np.zeros(halves.row_count, bool) for state in TransactionState}
        needs_answer = _needs_answer(halves, actions)
        for row in np.flatnonzero(needs_answer).tolist():
            answers[self._answers[half_id(halves, row)]][row] = True
        answers[TransactionState.UNKNOWN] |= (actions == Action.ASK) & ~needs_answer
        is_committed, is_rolled_back, waits = answers.values()
        is_found, is_immune, is_given_up = (
            actions == action for action in (Action.END, Action.PUT_BACK_UNCHECKED, Action.DISCARD)
        )
        self._commit(halves.take(is_committed))
        self._end(halves.take(is_committed | is_rolled_back | is_found))
        is_given_up[self._put_back(halves, np.flatnonzero(waits | is_immune), is_immune)] = True
        discard(self._store, halves.take(is_given_up))
        no_longer = halves.real_topics.filter(pa.array(is_committed | is_rolled_back | is_given_up))
        self._counts.subtract({count["values"].as_py(): count["counts"].as_py() for count in no_longer.value_counts()})
        self.report.committed += int(is_committed.sum())
        self.report.rolled_back += int(is_rolled_back.sum())
        self.report.found_ended += int(is_found.sum())
        self.report.discarded += int(is_given_up.sum())

    def _question(self, halves: Halves, row: int) -> Question:
        half = self._store.message_by_commitlog_offset(int(halves.commitlog_offsets[row]))
        topic, queue_id = real_queue(half)
        properties = {**half.properties, CHECK_TIMES: str(next_count(halves.check_times[row]))}
        return Question(half_id(halves, row), replace(half, topic=topic, queue_id=queue_id, properties=properties))

    def _commit(self, halves: Halves) -> None:
        for rows, messages in messages_of(self._store, halves):
            places, release = halves.commitlog_offsets[rows], self._store.settings.release
            names_real_queue = release.commit_names_real_queue
            self._store.put_inner(committed_messages(messages, places, names_real_queue=names_real_queue))
            reach("half-committed")

    def _end(self, halves: Halves) -> None:
        if halves.row_count:
            self._store.put_inner(op_messages(halves.queue_offsets, self._rules.op_max_size_bytes, self._now_ms))
            reach("op-written")

    def _put_back(self, halves: Halves, rows: np.ndarray, is_immune: np.ndarray) -> np.ndarray:
        """Put these rows of the halves at the end of their queue; returns those without room for the longer properties."""
        crowded = [np.empty(0, np.int64)]
        for part, messages in messages_of(self._store, halves.take(rows)):
            unchecked, offsets = is_immune[rows[part]], halves.queue_offsets[rows[part]]
            counted = put_back_messages(messages, next_count(halves.check_times[rows[part]]))
            renewed = put_back_unchecked(messages, offsets)
            renewed = renewed._replace(properties=pc.if_else(unchecked, renewed.properties, counted.properties))
            if self._store.writer.settings.appends_crc:
                renewed = renewed._replace(properties=with_crc_room(renewed.properties))
            fits = np.array(pc.less_equal(pc.binary_length(renewed.properties), PROPERTIES_LIMIT_BYTES), bool)
            self._report_put_back(self._store.put_inner(renewed.take(fits)), unchecked[fits])
            reach("half-put-back")
            crowded.append(rows[part][~fits])
        return np.concatenate(crowded)

    def _report_put_back(self, results: pa.RecordBatch, unchecked: np.ndarray) -> None:
        places, offsets = (results.column(name).to_numpy()[~unchecked] for name in ("commitlog_offset", "queue_offset"))
        self.report.to_check_again += zip(places.tolist(), offsets.tolist(), strict=True)
        self.report.put_back += len(places)
        self.report.immune += int(unchecked.sum())

    def _save(self, progress: TransactionProgress) -> None:
        self._store.flush()
        reach("before-half-offset")
        save_progress(self._store, progress, now_ms=self._now_ms)
        reach("after-half-offset")
        save_counts(self._store, self._counts, now_ms=self._now_ms)
        self._counts.clear()


def _actions(
    store: MessageStore, due: Halves, has_op: np.ndarray, is_superseded: np.ndarray, now_ms: int, rules: CheckRules
) -> np.ndarray:
    """The Action for each half, with what the store knows of its end. `has_op`: an op message names it."""
    has_op = has_op.copy()
    outcomes = outcomes_of(store, due.take(~has_op))
    is_ended = has_op.copy()
    is_ended[~has_op] = outcomes.is_ended
    has_op[~has_op] = outcomes.has_op
    return plan_checks(due, has_op, is_ended, is_superseded, now_ms, rules)


def _needs_answer(halves: Halves, actions: np.ndarray) -> np.ndarray:
    """Which halves the checker is called for: not one that does not say where to commit it."""
    return (actions == Action.ASK) & (halves.real_queue_ids >= 0)


# For another broker: a slave that stands in for its master asks no producer, and puts nothing into its own log.


class OpenHalves(NamedTuple):
    """The first halves that wait for an end."""

    halves: Halves
    end: int
    """The half offset once all are elsewhere."""
    ended: EndedHalves
    op_end: int

    def round(self, store: MessageStore, start: int, max_halves: int) -> tuple[InnerMessages, np.ndarray, int]:
        """Those from number `start` on, at most so many: the messages as they stand in the half topic, the queue offset of each
        (int64), and the half offset once they are elsewhere. Raises OSError.
        """
        offsets, count = self.halves.queue_offsets, self.halves.row_count
        rows = np.arange(start, min(start + max_halves, count))
        parts = [messages for _, messages in messages_of(store, self.halves.take(rows))]
        messages = InnerMessages.concat(parts) if parts else InnerMessages.of([])
        after = start + len(rows)
        return messages, offsets[rows], int(offsets[after]) if after < count else self.end


def open_halves(store: MessageStore, now_ms: int, rules: CheckRules) -> OpenHalves:
    """The first halves without an end, of PASS_HALVES, up to the first that is too young to be checked. Changes nothing.

    Halves that name no topic are passed over: no broker can commit them. Java: TransactionalMessageServiceImpl.check with
    enableSlaveActingMaster, escapeMessage. Departures: Java takes those that are too young, too, whose producer may still end them
    here; and those that a commit record ends. Raises StateFileError, OSError.
    """
    start, op_start = read_progress(store)
    end, op_end = store.max_offset(HALF_TOPIC, QUEUE_ID), store.max_offset(OP_TOPIC, QUEUE_ID)
    ended = read_ended(store, op_start, op_end)
    end = min(end, start + PASS_HALVES)
    halves = read_halves(store, start, end)
    has_op = np.isin(halves.queue_offsets, ended.half_offsets)
    last = check_end(halves, has_op, now_ms, rules)
    due = halves.take(np.arange(last))
    behind = int(halves.queue_offsets[last]) if last < halves.row_count else end
    actions = _actions(store, due, has_op[:last], superseded(halves)[:last], now_ms, rules)
    waits = (actions != Action.SKIP) & (actions != Action.END)
    for offset in due.queue_offsets[waits & (due.real_queue_ids < 0)].tolist():
        _LOG.warning("the half message at queue offset %d names no topic: it is passed over", offset)
    chosen = due.take(np.flatnonzero(waits & (due.real_queue_ids >= 0)))
    return OpenHalves(chosen, behind, ended, op_end)


def save_open_halves(store: MessageStore, halves: OpenHalves, half_offset: int, now_ms: int) -> None:
    """The halves before this offset are ended, or another broker has them. Raises StateFileError, OSError."""
    progress = TransactionProgress(half_offset, halves.ended.done_before(halves.op_end, half_offset))
    save_progress(store, progress, now_ms=now_ms)
