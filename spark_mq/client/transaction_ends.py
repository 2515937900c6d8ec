"""What a producer tells a broker of a transaction's end (37), after its own work or when it is asked (39). Pure.

Java: DefaultMQProducerImpl.endTransaction and checkTransactionState (processTransactionState).
"""

from __future__ import annotations

from spark_mq.client.calls import make_call
from spark_mq.client.errors import MalformedResponseError
from spark_mq.client.message import MessageExt
from spark_mq.client.send_results import SendResult
from spark_mq.remoting import RemotingCommand, RequestCode
from spark_mq.remoting.messages import CheckTransactionStateRequest, EndTransactionRequest
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, decode_offset_message_id
from storage.rules.half_messages import TransactionState

_FLAGS = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: 0,
}


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
    asked: CheckTransactionStateRequest,
    message: MessageExt,
    state: TransactionState,
    error: Exception | None = None,
) -> RemotingCommand:
    """The answer to a broker's question: with the topic that it named, the half topic, as in Java."""
    header = EndTransactionRequest(
        topic=asked.topic,
        producer_group=group,
        half_queue_offset=asked.half_queue_offset,
        half_commitlog_offset=asked.half_commitlog_offset,
        commit_or_rollback=_FLAGS[state],
        from_transaction_check=True,
        message_id=message.message_id,
        transaction_id=asked.transaction_id,
        broker_name=asked.broker_name,
    )
    return _request(header, "checkLocalTransactionState Exception", error)


def _request(header: EndTransactionRequest, what: str, error: Exception | None) -> RemotingCommand:
    command = make_call(RequestCode.END_TRANSACTION, header)
    return command if error is None else command._replace(remark=f"{what}: {error!r}")
