"""What follows from how a try of a send ended: the message is stored, it goes once more, or the send has failed. Pure.

    answered 0, 10, 11, 12                  stored: `stored_status`
    no connection, or no answer in time     the next try, of a caller that waits and of one that does not
    answered by what cannot be read         failed, although it may be stored
    another code                            of a caller that waits the next try, where the code is one of RETRIED_CODES

Java: DefaultMQProducerImpl.sendDefaultImpl, DefaultMQProducer.retryResponseCodes, MQClientAPIImpl.onExceptionImpl and
processSendResponse. Departure: an answer that cannot be read, or a frame that cannot, is not asked for again, because the message
is stored and the next answer would be no better; Java's waiting caller sends it twice.
"""

from __future__ import annotations

from collections.abc import Set
from enum import Enum

from spark_mq.client.errors import (
    BrokerNotFoundError,
    BrokerUnreachableError,
    ClientError,
    FrameRefusedError,
    RequestTimeoutError,
    ResponseError,
)
from storage.rules.response_codes import ResponseCode

RETRIED_CODES: Set[int] = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals after which another broker is asked. Java: DefaultMQProducer.retryResponseCodes."""


class SendStatus(Enum):
    """How safe a stored message is. All four mean that it is in the broker's log."""

    SEND_OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    """Not flushed in time (SYNC_FLUSH)."""
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    """Not replicated in time (SYNC_MASTER)."""
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
    """Not replicated: no slave is near enough (SYNC_MASTER)."""


_STATUSES: dict[int, SendStatus] = {status.value: status for status in SendStatus}


def stored_status(code: int) -> SendStatus | None:
    """The status that an answer's code tells; None where the code does not say that the message is stored."""
    return _STATUSES.get(code)


def goes_again(error: ClientError, *, is_waited_for: bool, retried_codes: Set[int] = RETRIED_CODES) -> bool:
    """Whether a send whose try ended with this error is tried again, if tries and time are left.

    A caller that does not wait for the answer (`send_async`) gets every refusal at once.
    """
    if isinstance(error, ResponseError):
        return is_waited_for and error.code in retried_codes
    return is_network_failure(error) and not isinstance(error, FrameRefusedError)


def is_network_failure(error: ClientError) -> bool:
    """Whether nobody knows what became of the request: it may or may not have reached the broker."""
    return isinstance(error, BrokerUnreachableError | RequestTimeoutError | BrokerNotFoundError)
