"""What follows for a batch of rows from the answer to its send, or from the lack of one. Pure.

                                   atLeastOnce     exactlyOnce
    0, 10, 11, 12                  stored          stored
    2, 14, 215, 1500               again           again: the broker refuses before it writes
    13, 16, 17, 26, 29, 3          as Java's       refused: nothing is written, and the next try would be refused too
                                   producer says
    other codes                                    doubt
    no answer, no connection       again           doubt
    an answer that is no frame     refused         doubt: what is there does not speak the protocol, and the next answer is no better

"Again" means the same queue, so that rows keep their order. After "doubt" nothing is sent until it is known what the broker holds.
Calls about one row (36, 37) are for atLeastOnce alone, and only 0 means that they are done.
Java: SendMessageProcessor.handlePutMessageResult, NettyRemotingAbstract.processRequestCommand, BrokerFastFailure,
AbstractSendMessageProcessor.consumerSendMsgBack, EndTransactionProcessor.
"""

from __future__ import annotations

from enum import Enum

from spark_mq.client.errors import RETRIABLE_CODES, ClientError
from spark_mq.client.send_results import goes_again, stored_status
from spark_mq.client.settings import RETRIED_CODES
from storage.rules.response_codes import ResponseCode

REFUSING_CODES = frozenset(
    (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
    )
)
"""Refusals that come before anything is written and do not pass by themselves."""

_NOT_THERE = (
    "look message by offset failed",
    "Find prepared transaction message failed",
    "The producer group wrong",
    "The transaction state table offset wrong",
    "The commit log offset wrong",
)
"""How remarks to SYSTEM_ERROR begin, where the broker's log does not hold the message that a call is about."""


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


def verdict_of_call(code: int, remark: str | None) -> Verdict:
    """What the answer to a message's being sent back (36), or to a transaction's end (37), says of it. A slave answers 11 to an end."""
    if code == ResponseCode.SUCCESS:
        return Verdict.STORED
    if is_not_there(code, remark):
        return Verdict.REFUSED
    passes = code in RETRIABLE_CODES or code in RETRIED_CODES or code == ResponseCode.SLAVE_NOT_AVAILABLE
    return Verdict.AGAIN if passes else Verdict.REFUSED


def is_not_there(code: int, remark: str | None) -> bool:
    """Whether the broker says that its log does not hold the message that a call is about."""
    return code == ResponseCode.SYSTEM_ERROR and (remark or "").startswith(_NOT_THERE)


def verdict_of_failure(error: ClientError, *, is_exact: bool) -> Verdict:
    """What an error without an answer says of all batches that wait for one."""
    if is_exact:
        return Verdict.DOUBT
    return Verdict.AGAIN if goes_again(error, is_waited_for=True) else Verdict.REFUSED
