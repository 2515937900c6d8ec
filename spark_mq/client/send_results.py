"""The result of one try of a send: the message is stored, is sent again, or the send has failed. Pure.

    answered 0, 10, 11, 12                  stored: a SendResult
    no connection, or no answer in time     the next try, whether the caller waits or not
    answer cannot be decoded                failed, although it may be stored
    answered 501: the queue has moved       the next try, whether the caller waits or not
    another code                            the next try, if the caller waits and the code is one of RETRIED_CODES

A stored half message is followed by its transaction's end (37): after the producer's own work, or when a broker asks (39).

Java: DefaultMQProducerImpl (sendDefaultImpl, endTransaction, checkTransactionState), DefaultMQProducer.retryResponseCodes,
MQClientAPIImpl (onExceptionImpl, processSendResponse). Departure: after an answer or a frame that cannot be decoded the message is not
sent again, because it is stored and the next answer would be no better; Java sends it twice if the caller waits.
"""

from __future__ import annotations

from collections.abc import Set
from enum import Enum
from typing import NamedTuple

from spark_mq.client.calls import make_call, read_answer_header
from spark_mq.client.errors import (
    BrokerNotFoundError,
    BrokerUnreachableError,
    ClientError,
    FrameRefusedError,
    MalformedResponseError,
    RequestTimeoutError,
    ResponseError,
    SendForbiddenError,
    request_text,
    response_error,
)
from spark_mq.client.message import MessageExt, MessageQueue
from spark_mq.client.settings import RETRIED_CODES, without_namespace
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.remoting.messages import CheckTransactionStateRequest, EndTransactionRequest, SendMessageAnswer
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, decode_offset_message_id
from storage.rules.half_messages import TransactionState
from storage.rules.response_codes import ResponseCode

DEFAULT_REGION = "DefaultRegion"
_FLAGS = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: 0,
}


class SendMode(Enum):
    """How the caller waits. It decides which failures are tried again. Java: CommunicationMode."""

    WAITING = "waiting"
    ASYNC = "async"
    ONEWAY = "oneway"


class SendStatus(Enum):
    """The durability of a stored message. All four mean that it is in the broker's log."""

    SEND_OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    """Not flushed in time (SYNC_FLUSH)."""
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    """Not replicated in time (SYNC_MASTER)."""
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
    """Not replicated: no slave is near enough (SYNC_MASTER)."""


_STATUSES: dict[int, SendStatus] = {status.value: status for status in SendStatus}


class SendResult(NamedTuple):
    """A message that is stored. Java: SendResult."""

    status: SendStatus
    message_id: str
    """The producer's id (UNIQ_KEY); of a batch those of its messages, with commas."""
    offset_message_id: str
    """The broker's: address and place in its log, in hexadecimal; of a batch with commas."""
    queue: MessageQueue
    """With the topic as the program named it."""
    queue_offset: int
    """For a batch, that of its first message."""
    transaction_id: str | None
    recall_handle: str | None
    """With which a timed message can be called back."""
    region: str
    is_traced: bool


def read_send_answer(
    answer: RemotingCommand,
    code: int,
    address: str,
    broker_name: str,
    topic: str,
    message_id: str,
    namespace: str | None = None,
) -> SendResult | ClientError:
    """The result that an answer says, or the error: ResponseError, or MalformedResponseError although the message is stored.

    `code` is that of the request, `topic` the message's as brokers know it, `message_id` the producer's id of it.
    """
    status = stored_status(answer.code)
    if status is None:
        return response_error(answer.code, answer.remark, address, request_text(code), topic)
    try:
        header = read_answer_header(SendMessageAnswer, answer, address, code)
    except MalformedResponseError as error:
        return error
    fields = answer.ext_fields or {}
    return SendResult(
        status,
        message_id,
        header.message_id,
        MessageQueue(without_namespace(namespace, topic), broker_name, header.queue_id),
        header.queue_offset,
        header.transaction_id,
        header.recall_handle,
        fields.get("MSG_REGION") or DEFAULT_REGION,
        fields.get("TRACE_ON") != "false",
    )


def stored_status(code: int) -> SendStatus | None:
    """The status of an answer's code; None if the code does not say that the message is stored."""
    return _STATUSES.get(code)


def goes_again(error: ClientError, *, is_waited_for: bool, retried_codes: Set[int] = RETRIED_CODES) -> bool:
    """Whether a send whose try ended with this error is tried again, if tries and time are left.

    A caller that does not wait for the answer (`send_async`) gets other refusals at once. Departure: a logical queue that has moved to
    another broker is tried there, since nothing is stored; Java gives up.
    """
    if isinstance(error, ResponseError):
        has_moved = error.code == ResponseCode.NOT_LEADER_FOR_QUEUE
        return has_moved or (is_waited_for and error.code in retried_codes)
    if isinstance(error, SendForbiddenError):  # perhaps only that broker is forbidden
        return is_waited_for
    return is_network_failure(error) and not isinstance(error, FrameRefusedError)


def is_network_failure(error: ClientError) -> bool:
    """Whether it is unknown what became of the request: it may or may not have reached the broker."""
    return isinstance(error, BrokerUnreachableError | RequestTimeoutError | BrokerNotFoundError)


def end_after_send(
    group: str, topic: str, sent: SendResult, state: TransactionState, error: Exception | None = None
) -> RemotingCommand:
    """The end of a half message that was just sent; `group` and `topic` as brokers know them, `error` what the local work raised.

    Raises MalformedResponseError where the broker's message id says no place in its log.
    """
    try:
        _, _, half_offset = decode_offset_message_id(sent.offset_message_id)
    except ValueError as wrong:
        raise MalformedResponseError(sent.queue.broker_name, "a half message", str(wrong)) from None
    header = EndTransactionRequest(
        topic=topic,
        producer_group=group,
        half_queue_offset=sent.queue_offset,
        half_commitlog_offset=half_offset,
        commit_or_rollback=_FLAGS[state],
        message_id=sent.message_id,
        transaction_id=sent.transaction_id,
        broker_name=sent.queue.broker_name,
    )
    return _request(header, "executeLocalTransactionBranch exception", error)


def end_after_check(
    group: str,
    check: CheckTransactionStateRequest,
    message: MessageExt,
    state: TransactionState,
    error: Exception | None = None,
) -> RemotingCommand:
    """The answer to a broker's question: with the topic that it named, the half topic, as in Java."""
    header = EndTransactionRequest(
        topic=check.topic,
        producer_group=group,
        half_queue_offset=check.half_queue_offset,
        half_commitlog_offset=check.half_commitlog_offset,
        commit_or_rollback=_FLAGS[state],
        from_transaction_check=True,
        message_id=message.message_id,
        transaction_id=check.transaction_id,
        broker_name=check.broker_name,
    )
    return _request(header, "checkLocalTransactionState Exception", error)


def _request(header: EndTransactionRequest, what: str, error: Exception | None) -> RemotingCommand:
    command = make_call(RequestCode.END_TRANSACTION, header)
    return command if error is None else command._replace(remark=f"{what}: {error!r}")
