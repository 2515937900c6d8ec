"""What of a batch is still to be sent to each queue, given what lies there. Pure.

    expected   the rows of the batch for one queue, in the order in which they are sent: (number of the staged file, rank)
    found      the batch's rows that lie in the queue, in queue order

One request is in flight a queue, and the next is sent when the one before is stored; so what lies there is a beginning of what is
expected. A broker that crashed may have kept a part of one request: a part is a beginning too. Anything else is an error: a row that
is missing before one that is there (the broker lost it), a row that is there twice, or a row that is not expected. Of rows that wait
says `parking_places.py` what is stored.
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
from spark_mq.sink.sent_batch import StagedFile
from spark_mq.sink.staged_rows import StagedBatch
from storage.format.keys import RANK_DIGITS
from storage.format.properties import ROW_MARK

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
    """Of each target queue all batches, files in their order and batches in theirs."""
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
    """Which messages have a row mark that begins so, as booleans, and their marks; anybody may send what looks like one."""
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
    """How many of the first expected rows lie in the queue. Raises SentRowsLostError where they are no beginning."""
    if len(found) <= len(expected) and bool(np.all(found == expected[: len(found)])):
        return len(found)
    raise SentRowsLostError(queue_text(queue), difference(expected, found))


def remaining(plan: QueuePlan, stored: int) -> QueuePlan:
    """What is to be sent when so many of the first rows are stored."""
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
