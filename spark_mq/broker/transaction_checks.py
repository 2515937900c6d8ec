"""What a producer is asked about a half message that nobody has ended. Pure.

It gets the record with the topic and queue that it was sent to, and the half's topic and place in the header; it answers by
END_TRANSACTION. Departure: the record's store time is that of the half in the log; Java tells that of the one that was put back.
Java: AbstractTransactionalMessageCheckListener.sendCheckMessage, Broker2Client.checkProducerTransactionState.
"""

from __future__ import annotations

from dataclasses import replace

from spark_mq.remoting import HeaderEncoding, RemotingCommand, RequestCode, make_request, write_header
from spark_mq.remoting.message_headers import CheckTransactionStateRequest
from storage.format.properties import PROPERTIES_LIMIT_BYTES
from storage.format.record import Message, encode_record
from storage.messages.half_messages import WAIT, real_queue
from storage.messages.inner_messages import encode_properties


def check_request(half: Message, broker_name: str, encoding: HeaderEncoding) -> RemotingCommand:
    """The request 39 about a half as it stands in the log. Raises PutRefusedError where it does not say where it was sent to."""
    topic, queue_id = real_queue(half)
    properties = encode_properties({**half.properties, WAIT: "false"})  # as Java's message says, and not the log
    if len(properties) > PROPERTIES_LIMIT_BYTES:
        properties = half.raw_properties
    sent = replace(half, topic=topic, queue_id=queue_id, raw_properties=properties)
    sent = replace(sent, size_bytes=len(encode_record(sent)))
    header = CheckTransactionStateRequest(
        topic=half.topic,
        half_queue_offset=half.queue_offset,
        half_commitlog_offset=half.commitlog_offset,
        message_id=half.unique_key,
        transaction_id=half.unique_key,
        offset_message_id=half.msg_id,
        broker_name=broker_name,
    )
    fields, body = write_header(header), encode_record(sent)
    return make_request(RequestCode.CHECK_TRANSACTION_STATE, fields, body, is_oneway=True, encoding=encoding)
