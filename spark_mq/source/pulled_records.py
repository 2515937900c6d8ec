"""The records of pull answers as slices of decoded records, the same as from files. Pure. No Python loop over messages.

An answer's body is log records one after the other. Several answers are decoded at once; the only loop goes over the rank of a record
in its answer (32 turns by default), because the length of a record gives the place of the next.

    answers  |r0|r1|r2|   |r0|r1|r2|r3|   |r0|
    turn 0    ^            ^               ^
    turn 1       ^            ^
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spark_mq.client.errors import MalformedResponseError, TornAnswerError, request_text
from spark_mq.remoting import Body, RemotingCommand, RequestCode
from spark_mq.source.offsets import MAX_OFFSET, QueueId, RecordPlace
from spark_mq.source.pulls import Again, Ended, Found, Lost, Misfit, Nothing, no_news, outcome_of, pull_answer
from storage.format.arrays import Memory, view_at
from storage.format.record import INNER_BATCH, MINIMUM_RECORD_SIZE
from storage.format.record_batch import Records
from storage.format.window_decoder import Claims, Wanted, decode_rows, decoding_of
from storage.queues.scan import QueueSlice
from storage.rules.response_codes import ResponseCode

_SIZE = np.dtype(">i4")
_LOOKED_AT = Wanted(fields=frozenset({"queue_offset", "sys_flag"}))


class PulledPart(NamedTuple):
    """The records that a broker gave for the offsets [start, end) of a queue; there may be more, and others' behind them."""

    start: int
    end: int
    body: Body


class PulledRecordError(ValueError):
    """Bytes that are no whole records, or records that were not requested; the text says which rule they break.

    A broker of Apache gives such an answer while it deletes the first file of its log. The file is gone, and the queue's minimum is
    not moved yet. For the entry of log offset 0 it then takes the bytes at the beginning of the first file that is left, as many as
    the deleted record had, and puts the records behind it after them. So the same pull is right a moment later.
    Java: CommitLog.getMessage, MappedFileQueue.findMappedFileByOffset(offset, offset == 0). Departure: MessageDecoder.decodes stops
    at such bytes without a word, and Java's consumers go on behind the whole answer.
    """

    may_pass = True

    def at(self, address: str) -> MalformedResponseError:
        """The error of the answer that came from there."""
        kind = TornAnswerError if self.may_pass else MalformedResponseError
        return kind(address, request_text(RequestCode.PULL_MESSAGE), str(self))


class BatchedQueueError(PulledRecordError):
    """Records of a queue of batches (queue.type=BatchCQ), which are not read."""

    may_pass = False


def slice_of(
    parts: Sequence[PulledPart],
    topic: bytes,
    queue_id: int,
    wanted: Wanted | None = None,
    memory: Memory | None = None,
) -> QueueSlice:
    """The messages of ascending parts, in queue order. Records of another topic or queue are passed over, as files' readers do.

    What of them is `wanted` is decoded in one pass where that is faster, in `memory` that is used again and again.

    Raises PulledRecordError.
    """
    bodies = [part.body for part in parts]
    sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
    buffer = np.frombuffer(b"".join(bodies), np.uint8)
    ends = np.cumsum(sizes)
    positions, answers = record_positions(buffer, ends - sizes, ends)
    records = _decoded(buffer, positions, Claims(topic, queue_id), wanted, memory or Memory())
    offsets = records.column("queue_offset")
    starts, stops = (np.fromiter((part[at] for part in parts), np.int64, len(parts))[answers] for at in (0, 1))
    agrees = np.ones(len(records), bool)
    if records.decoded is None:
        agrees = records.agree(records.column("commitlog_offset"), records.column("size_bytes"), topic, queue_id)
        if not records.is_whole.all():
            raise PulledRecordError(f"record {int(np.argmin(records.is_whole))} of the answer is not whole")
    if (records.column("sys_flag") & INNER_BATCH).any():
        raise BatchedQueueError("the queue holds batches (queue.type=BatchCQ), which are not read")
    ours = agrees & (offsets < stops)
    if not ours.all():
        records, offsets, starts = records.take(ours), offsets[ours], starts[ours]
    if (offsets < starts).any() or (np.diff(offsets) <= 0).any():
        raise PulledRecordError("the records are not of the requested offsets, in their order")
    return QueueSlice(offsets, records)


def _decoded(
    buffer: np.ndarray, positions: np.ndarray, claims: Claims, wanted: Wanted | None, memory: Memory
) -> Records:
    decoding = decoding_of(len(positions), claims, None if wanted is None else wanted | _LOOKED_AT, memory)
    if decoding is None:
        return Records(buffer, positions)
    sizes = view_at(buffer, positions, _SIZE).astype(np.int64)
    return Records(buffer, positions, decode_rows(decoding, buffer, positions, sizes))


def holes_in(offsets: np.ndarray, start: int, end: int) -> list[tuple[int, int]]:
    """The stretches of [start, end) that are not among ascending offsets."""
    edges = np.concatenate([[start - 1], offsets[(offsets >= start) & (offsets < end)], [end]])
    at = np.flatnonzero(np.diff(edges) > 1)
    return [(int(edges[one]) + 1, int(edges[one + 1])) for one in at]


def first_hole(offsets: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """The first of them; None if there is none."""
    inside = offsets[(offsets >= start) & (offsets < end)]
    if len(inside) == end - start:
        return None
    is_at_place = inside == np.arange(start, start + len(inside))
    row = len(inside) if is_at_place.all() else int(np.argmin(is_at_place))
    return start + row, end if row == len(inside) else int(inside[row])


class FirstRecord(NamedTuple):
    """A record of a queue, and where in the log and when it was stored."""

    queue_offset: int
    place: RecordPlace


def first_record(
    offset: int, command: RemotingCommand, address: str, queue: QueueId, group: str
) -> FirstRecord | Lost | None:
    """The first record at or behind the offset, by the answer to a pull of one message; None where there is no record, and no topic.

    Raises MalformedResponseError (TornAnswerError), and ResponseError where the broker refused, or said nothing of the queue.
    """
    if command.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    answer = pull_answer(command, address, queue, group)
    what = request_text(RequestCode.PULL_MESSAGE)
    match outcome_of(offset, answer):
        case Lost() as lost:
            return lost
        case Ended() | Nothing():
            return None
        case Again(reason):
            raise no_news(reason, address, queue, group)
        case Misfit(reason):
            raise MalformedResponseError(address, what, reason)
        case Found():
            try:
                found = slice_of([PulledPart(offset, MAX_OFFSET, answer.body)], queue.topic.encode(), queue.queue_id)
            except PulledRecordError as error:
                raise error.at(address) from None
    if not len(found.queue_offsets):
        return None
    place = int(found.records.column("commitlog_offset")[0]), int(found.records.column("store_time_ms")[0])
    return FirstRecord(int(found.queue_offsets[0]), place)


def record_positions(buffer: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The begins of the records of answers at [starts, ends) of the buffer, and the answer of each, in order.

    Raises PulledRecordError where sizes do not add up.
    """
    found: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    answers = np.flatnonzero(starts < ends)
    at = starts[answers]
    while len(answers):
        room = ends[answers] - at
        if (room < MINIMUM_RECORD_SIZE).any():
            raise PulledRecordError(f"an answer ends {int(room.min())} bytes behind the beginning of a record")
        sizes = view_at(buffer, at, _SIZE).astype(np.int64)
        if (is_wrong := (sizes < MINIMUM_RECORD_SIZE) | (sizes > room)).any():
            bad = int(np.argmax(is_wrong))
            raise PulledRecordError(
                f"a record says to have {int(sizes[bad])} bytes, the answer has {int(room[bad])} left"
            )
        found.append(at)
        owners.append(answers)
        at = at + sizes
        going_on = at < ends[answers]
        answers, at = answers[going_on], at[going_on]
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    positions, whose = np.concatenate(found), np.concatenate(owners)
    order = np.argsort(positions)
    return positions[order], whose[order]
