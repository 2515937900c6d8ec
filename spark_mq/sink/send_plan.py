"""The rows of a batch that must still be sent to each queue, from the rows found there and in the places where rows may wait. Pure.

    expected   the rows of the batch for one queue, in the order in which they are sent: (number of the staged file, rank)
    found      the batch's rows that lie in the queue, in queue order

A queue has one request in flight, and the next is sent when the last is stored; so the found rows are a prefix of the expected ones.
After a broker's crash a request may be stored in part: that is a prefix, too. Anything else is an error: a missing row before a found
one (the broker lost it), a row that is found twice, or a row that is not expected.

A row that waits may lie elsewhere. A broker decides this at the put, by settings that no client sees. But there are only these places,
and an entry there lives as long as the log, also after the row is delivered:

    the row's own queue                        its time has passed, or the broker is older than the timer
    SCHEDULE_TOPIC_XXXX, a queue a level       delay_level up to 18, and rows for a retry topic; above the last level it is the last
    rmq_sys_wheel_timer, queue 0               deliver_at
    %DLQ%GROUP, queue 0                        rows for a retry topic that were tried too often

So a row is stored if and only if its mark is found in one of them. It may be found more than once, and in places of other rows: it was
delivered, the timer has rolled it, or a consumer has sent it back; each is a copy of the stored row. A level above 18 is refused:
brokers let no client read the queue after the 18th.

Java: HookUtils.handleScheduleMessage, SendMessageProcessor.handleRetryAndDLQ, TopicConfigManager (SCHEDULE_TOPIC_QUEUE_NUM).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.conditions import SentRowsLostError
from spark_mq.remoting import MessageQueue
from spark_mq.sink.journal import StagedFile
from spark_mq.sink.staged_rows import StagedBatch
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.keys import RANK_DIGITS
from storage.format.properties import ROW_MARK
from storage.names import RETRY_PREFIX, dead_letter_topic
from storage.rules.delays import TIMER_TOPIC

ROW = np.dtype([("file", "<i4"), ("rank", "<i8")])
UNKNOWN_FILE = -1
_MARK = rf"(?:^|\x02){ROW_MARK}\x01(?P<mark>[^\x02]*)(?:\x02|$)"
_RANK = re.compile(f"[0-9A-F]{{{RANK_DIGITS}}}")


class PlannedBatch(NamedTuple):
    """One staged batch, and how many of its first rows lie in the queue already."""

    file: int
    batch: StagedBatch
    skip: int = 0


QueuePlan = tuple[PlannedBatch, ...]


def plan_queues(files: Sequence[Sequence[StagedBatch]]) -> dict[MessageQueue, QueuePlan]:
    """All batches of each target queue: files in their order, and batches in theirs."""
    plans: dict[MessageQueue, list[PlannedBatch]] = {}
    for number, batches in enumerate(files):
        for batch in batches:
            plans.setdefault(batch.queue, []).append(PlannedBatch(number, batch))
    return {queue: tuple(plan) for queue, plan in plans.items()}


def expected_rows(plan: QueuePlan) -> np.ndarray:
    """The rows of a queue's plan, as ROW."""
    rows = np.empty(sum(len(one.batch.ranks) for one in plan), ROW)
    start = 0
    for one in plan:
        end = start + len(one.batch.ranks)
        rows["file"][start:end], rows["rank"][start:end] = one.file, one.batch.ranks
        start = end
    return rows


def marks_of(raw_properties: pa.Array, prefix: str) -> tuple[np.ndarray, list[str]]:
    """Which messages have a row mark with this prefix, as booleans, and their marks. Any client may send such a text."""
    texts = pc.struct_field(pc.extract_regex(raw_properties.cast(pa.large_binary()), _MARK), [0])
    ours = pc.starts_with(texts, prefix.encode()).fill_null(False).to_numpy(zero_copy_only=False)
    return ours, [mark.decode("utf-8", "replace") for mark in texts.filter(pa.array(ours)).to_pylist()]


def found_rows(marks: Iterable[str], prefix: str, files: Sequence[StagedFile]) -> np.ndarray:
    """The rows that marks of the batch name, as ROW; `prefix` is the batch's. A file that is not the batch's is UNKNOWN_FILE."""
    numbers = {prefix + staged.mark: number for number, staged in enumerate(files)}
    rows = []
    for mark in marks:
        begin, rank = mark[:-RANK_DIGITS], mark[-RANK_DIGITS:]
        is_rank = _RANK.fullmatch(rank) is not None
        rows.append((numbers.get(begin, UNKNOWN_FILE), int(rank, 16)) if is_rank else (UNKNOWN_FILE, 0))
    return np.array(rows, ROW)


def rows_stored(queue: MessageQueue, expected: np.ndarray, found: np.ndarray) -> int:
    """Number of the first expected rows in the queue. Raises SentRowsLostError if the found rows are no prefix."""
    if len(found) <= len(expected) and bool(np.all(found == expected[: len(found)])):
        return len(found)
    raise SentRowsLostError(queue_text(queue), difference(expected, found))


def remaining(plan: QueuePlan, stored: int) -> QueuePlan:
    """The plan for the rest when the first `stored` rows are stored."""
    left = []
    for one in plan:
        rows = len(one.batch.ranks)
        if stored < rows:
            left.append(one._replace(skip=max(stored, 0)))
        stored -= rows
    return tuple(left)


def nothing_left(plans: Mapping[MessageQueue, QueuePlan]) -> bool:
    """Whether all rows are stored."""
    return not any(plans.values())


def difference(expected: np.ndarray, found: np.ndarray) -> str:
    """Why what was found is no beginning of what is expected."""
    if (found["file"] == UNKNOWN_FILE).any():
        return "it holds rows of this batch that another staging directory has sent, or this one before it was restored"
    if len(np.unique(found)) < len(found):
        return "it holds a row of this batch twice"
    length = min(len(expected), len(found))
    first = int(np.argmin(found[:length] == expected[:length])) if length else 0
    return (
        f"row {first} of the batch's {len(expected)} rows is not there, and rows behind it are: the broker has lost it"
    )


def queue_text(queue: MessageQueue) -> str:
    """A queue, for people."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


MOST_LEVEL = 18
"""Queues of the schedule topic that a client may read. Java: TopicConfigManager.SCHEDULE_TOPIC_QUEUE_NUM."""
_RANK_BITS = 48


def has_waiting(plan: QueuePlan) -> bool:
    """Whether rows of a queue's plan wait."""
    return any(one.batch.waits for one in plan)


def places_of(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Where, besides their own queue, rows that wait may have been put that were sent to these queues."""
    places: dict[MessageQueue, None] = {}
    for queue in queues:
        broker = queue.broker_name
        places |= dict.fromkeys(MessageQueue(SCHEDULE_TOPIC, broker, number) for number in range(MOST_LEVEL))
        places[MessageQueue(TIMER_TOPIC, broker, 0)] = None
        if queue.topic.startswith(RETRY_PREFIX):
            places[MessageQueue(dead_letter_topic(queue.topic.removeprefix(RETRY_PREFIX)), broker, 0)] = None
    return list(places)


def is_place(queue: MessageQueue) -> bool:
    """Whether no row is sent there: rows wait there."""
    return queue.topic in (SCHEDULE_TOPIC, TIMER_TOPIC) or queue.topic.startswith(dead_letter_topic(""))


def rows_stored_or_waiting(queue: MessageQueue, plan: QueuePlan, own: np.ndarray, elsewhere: np.ndarray) -> int:
    """Number of the first expected rows that are stored: in their queue or, for waiting ones, elsewhere. `own` is in queue order.

    Raises SentRowsLostError where they are no beginning, where a row that does not wait is there twice or not in its turn, and for a
    row of the batch that this directory has not staged.
    """
    expected = expected_rows(plan)
    waits = np.repeat([one.batch.waits for one in plan], [len(one.batch.ranks) for one in plan])
    found = np.concatenate([own, elsewhere])
    if (found["file"] == UNKNOWN_FILE).any():
        raise SentRowsLostError(queue_text(queue), difference(expected, found))
    names, expected_plain = _names(expected), expected[~waits]
    plain = own[np.isin(_names(own), names[~waits])]
    if len(plain) > len(expected_plain) or bool(np.any(plain != expected_plain[: len(plain)])):
        raise SentRowsLostError(queue_text(queue), difference(expected_plain, plain))
    is_there = np.isin(names, _names(found))
    is_there[~waits] = np.arange(len(expected_plain)) < len(plain)
    stored = int(np.argmin(is_there)) if not is_there.all() else len(is_there)
    if is_there[stored:].any():
        raise SentRowsLostError(queue_text(queue), difference(expected, expected[is_there]))
    return stored


def _names(rows: np.ndarray) -> np.ndarray:
    """A number for each row, that no other row of the batch has; of an unknown file a negative one."""
    return np.asarray((rows["file"].astype(np.int64) << _RANK_BITS) | rows["rank"])
