"""The first record at or behind an offset, by the answer to a pull of one message. Pure."""

from __future__ import annotations

from typing import NamedTuple

from spark_mq.client.errors import MalformedResponseError, request_text
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.source.offsets import QueueId, RecordPlace
from spark_mq.source.pull_outcome import Again, Ended, Found, Lost, Misfit, Nothing, outcome_of
from spark_mq.source.pull_request import no_news, pull_answer
from spark_mq.source.pulled_records import PulledPart, PulledRecordError, slice_of
from storage.rules.response_codes import ResponseCode

_LAST = 2**63 - 1


class FirstRecord(NamedTuple):
    """A record of a queue, and where in the log and when it was stored."""

    queue_offset: int
    place: RecordPlace


def first_record(
    offset: int, command: RemotingCommand, address: str, queue: QueueId, group: str
) -> FirstRecord | Lost | None:
    """What the answer to a pull at the offset holds; None where there is no record, and no topic.

    Raises MalformedResponseError, and ResponseError where the broker refused, or said nothing of the queue.
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
                found = slice_of([PulledPart(offset, _LAST, answer.body)], queue.topic.encode(), queue.queue_id)
            except PulledRecordError as error:
                raise MalformedResponseError(address, what, str(error)) from None
    if not len(found.queue_offsets):
        return None
    place = int(found.records.column("commitlog_offset")[0]), int(found.records.column("store_time_ms")[0])
    return FirstRecord(int(found.queue_offsets[0]), place)
