"""What a send ended with: the broker's answer as a value. Java: SendResult, MQClientAPIImpl.processSendResponse."""

from __future__ import annotations

from typing import NamedTuple

from spark_mq.client.calls import read_answer_header
from spark_mq.client.errors import ClientError, MalformedResponseError, request_text, response_error
from spark_mq.client.message import MessageQueue
from spark_mq.client.namespaces import without_namespace
from spark_mq.client.outgoing_messages import OutgoingMessage
from spark_mq.client.send_retries import SendStatus, stored_status
from spark_mq.remoting import RemotingCommand
from spark_mq.remoting.messages import SendMessageAnswer

DEFAULT_REGION = "DefaultRegion"


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
    """Of a batch that of its first message."""
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
    message: OutgoingMessage,
    namespace: str | None = None,
) -> SendResult | ClientError:
    """The result that an answer says, or the error: ResponseError, or MalformedResponseError although the message is stored.

    `code` is that of the request.
    """
    status = stored_status(answer.code)
    if status is None:
        return response_error(answer.code, answer.remark, address, request_text(code), message.topic)
    try:
        header = read_answer_header(SendMessageAnswer, answer, address, code)
    except MalformedResponseError as error:
        return error
    fields = answer.ext_fields or {}
    return SendResult(
        status,
        message.message_id,
        header.message_id,
        MessageQueue(without_namespace(namespace, message.topic), broker_name, header.queue_id),
        header.queue_offset,
        header.transaction_id,
        header.recall_handle,
        fields.get("MSG_REGION") or DEFAULT_REGION,
        fields.get("TRACE_ON") != "false",
    )
