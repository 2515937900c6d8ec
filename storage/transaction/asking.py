"""Asking a user's code about half messages: several at a time, for a bounded time, with no store open. Java: the check requests of
AbstractTransactionalMessageCheckListener, and TransactionalMessageServiceImpl.MAX_PROCESS_TIME_LIMIT.

Answers are named by what identifies a half in its log, so that they can be applied to a store that was let go of meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from storage.format.record import Message
from storage.rules.half_messages import TransactionState
from storage.transaction.half_queue import Halves

Checker = Callable[[Message], TransactionState | str]
"""Says what became of a transaction. It gets the half with the topic and queue that it was sent to, and with this check counted."""


class HalfId(NamedTuple):
    """What tells one half from every other, also where a log was cut and written anew."""

    commitlog_offset: int
    queue_offset: int
    store_time_ms: int


Answers = dict[HalfId, TransactionState]


class Question(NamedTuple):
    """One half to be asked about."""

    half: HalfId
    message: Message


@dataclass(frozen=True, slots=True)
class Asking:
    """How a run asks."""

    threads: int = 8
    """How many questions at a time; with 1 the checker is called by the calling thread alone."""
    limit_s: float = 60.0
    """No question begins later in a run. Java: MAX_PROCESS_TIME_LIMIT, for a half queue and a run."""
    clock: Callable[[], float] = time.monotonic
    """In seconds."""


def half_id(halves: Halves, row: int) -> HalfId:
    """The identity of one of the halves."""
    return HalfId(int(halves.commitlog_offsets[row]), int(halves.queue_offsets[row]), int(halves.store_times_ms[row]))


def ask(questions: Sequence[Question], checker: Checker, asking: Asking, deadline_s: float) -> Answers:
    """The checker's answers, in the order of the questions, up to the first that did not begin before `deadline_s`.

    A question that has begun is waited for. The first error of the checker goes out, ValueError for an answer that is none; what
    has not begun then is not asked.
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
