"""What the answer to a pull means for a reader of a range of offsets. Pure.

    code                              means                                                                       outcome
    0  FOUND                          records; offsets without one, up to the next, are gaps or did not match     Found
    20 PULL_RETRY_IMMEDIATELY         NO_MATCHED_MESSAGE: nothing up to the next offset matches                   Nothing
                                      MESSAGE_WAS_REMOVING: entries whose records are deleted                     Lost
                                      the next offset is no further: a slave that has no answer                   Again
                                      OFFSET_TOO_SMALL, OFFSET_FOUND_NULL: a slave with offsetCheckInSlave        Lost
    19 PULL_NOT_FOUND                 OFFSET_OVERFLOW_ONE, NO_MESSAGE_IN_QUEUE: the queue ends here               Ended
                                      OFFSET_FOUND_NULL: no entry can be read here                                Lost
    21 PULL_OFFSET_MOVED              OFFSET_TOO_SMALL: the queue begins further on                               Lost
                                      OFFSET_OVERFLOW_BADLY, NO_MESSAGE_IN_QUEUE: the queue ends before here      Ended
                                      OFFSET_RESET: somebody has reset the group, which is no matter of ours      Again

A consumer that counts messages in place of following the next offset pulls the same place for ever where nothing matches. The
broker names the status in the remark; numbers decide wherever they can, so that another remark changes little.

Java: PullMessageProcessor, DefaultPullMessageResultHandler, GetMessageStatus.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_mq.remoting import Body
from storage.rules.response_codes import ResponseCode

PULL_CODES = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)
"""Codes that answer a pull; every other refuses it."""


class PullAnswer(NamedTuple):
    """A broker's answer to a pull: `code` is one of PULL_CODES, `remark` the name of a GetMessageStatus, `body` records."""

    code: int
    remark: str
    next_offset: int
    minimum: int
    maximum: int
    suggested_broker_id: int
    body: Body


class Found(NamedTuple):
    """The records of [asked offset, `next_offset`) that are to be seen, in the answer's body."""

    next_offset: int


class Nothing(NamedTuple):
    """No message of [asked offset, `next_offset`) is to be seen."""

    next_offset: int


class Lost(NamedTuple):
    """The messages of [asked offset, `next_offset`) are gone."""

    next_offset: int
    reason: str


class Ended(NamedTuple):
    """The queue ends at `maximum`, at or before the asked offset."""

    maximum: int
    reason: str


class Again(NamedTuple):
    """The answer says nothing of the queue: ask the same again, or another broker."""

    reason: str


class Misfit(NamedTuple):
    """No broker answers so."""

    reason: str


Outcome = Found | Nothing | Lost | Ended | Again | Misfit


def outcome_of(asked: int, answer: PullAnswer) -> Outcome:
    """What the answer says of the queue from the asked offset on."""
    code, remark, next_offset, minimum, maximum, _, body = answer
    if next_offset < 0:
        return Misfit(f"the next offset is {next_offset}")
    if bool(body) != (code == ResponseCode.SUCCESS):
        return Misfit(f"{len(body)} bytes of records with code {code}")
    if remark == "OFFSET_RESET" and not body:
        return Again("the group's offset was reset")
    match code:
        case ResponseCode.SUCCESS if next_offset > asked:
            return Found(next_offset)
        case ResponseCode.SUCCESS:
            return Misfit(f"records, and next offset {next_offset} is not behind {asked}, the requested one")
        case ResponseCode.PULL_RETRY_IMMEDIATELY if next_offset <= asked:
            return Again(remark or "no answer to the pull")
        case ResponseCode.PULL_RETRY_IMMEDIATELY if remark == "MESSAGE_WAS_REMOVING":
            return Lost(next_offset, f"the messages from {asked} to {next_offset} are deleted from the log")
        case ResponseCode.PULL_RETRY_IMMEDIATELY if minimum <= asked and remark != "OFFSET_FOUND_NULL":
            return Nothing(next_offset)
        case _ if next_offset > asked:
            return Lost(next_offset, _beginning(asked, next_offset, minimum, remark))
        case _ if maximum <= asked or next_offset < asked:
            return Ended(min(maximum, asked), f"the queue ends at {maximum}")
    return Again(remark or f"code {code} without news")


def _beginning(asked: int, next_offset: int, minimum: int, remark: str) -> str:
    if minimum > asked:
        return f"the queue begins at {minimum}"
    return f"no entry from {asked} to {next_offset} can be read ({remark})"
