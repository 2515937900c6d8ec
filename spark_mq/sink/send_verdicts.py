"""What follows for a batch of rows from the answer to its send, or from the lack of one. Pure.

                                   atLeastOnce     exactlyOnce
    0, 10, 11, 12                  stored          stored
    2, 14, 215, 1500               again           again: the broker refuses before it writes
    13, 16, 17, 29, 3              as Java's       refused: nothing is written, and the next try would be refused too
                                   producer says
    other codes                                    doubt
    no answer, no connection       again           doubt

"Again" means the same queue, so that rows keep their order. After "doubt" nothing is sent until it is known what the broker holds.
Java: SendMessageProcessor.handlePutMessageResult, NettyRemotingAbstract.processRequestCommand, BrokerFastFailure.
"""

from __future__ import annotations

from enum import Enum

from spark_mq.client.errors import RETRIABLE_CODES, ClientError
from spark_mq.client.send_retries import RETRIED_CODES, is_network_failure, stored_status
from storage.rules.response_codes import ResponseCode

REFUSING_CODES = frozenset(
    (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
    )
)
"""Refusals that come before anything is written and do not pass by themselves."""


class Verdict(Enum):
    STORED = "stored"
    AGAIN = "again"
    REFUSED = "refused"
    DOUBT = "doubt"


def verdict_of(code: int, *, is_exact: bool) -> Verdict:
    """What an answer's code says of its batch."""
    if stored_status(code) is not None:
        return Verdict.STORED
    if code in RETRIABLE_CODES:
        return Verdict.AGAIN
    if is_exact:
        return Verdict.REFUSED if code in REFUSING_CODES else Verdict.DOUBT
    return Verdict.AGAIN if code in RETRIED_CODES else Verdict.REFUSED


def verdict_of_failure(error: ClientError, *, is_exact: bool) -> Verdict:
    """What an error without an answer says of all batches that wait for one."""
    if is_exact:
        return Verdict.DOUBT
    return Verdict.AGAIN if is_network_failure(error) else Verdict.REFUSED
