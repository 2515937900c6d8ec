"""The message that a request names by its place in the log, and the topic that it belongs to."""

from __future__ import annotations

from spark_mq.broker.parts import BrokerParts
from spark_mq.remoting import Header
from spark_mq.remoting import messages as wire
from storage.format.record import Message, decode_offset_message_id, decode_record
from storage.names import is_system_topic
from storage.rules.delays import REAL_TOPIC


def named_topic(parts: BrokerParts, header: Header) -> str | None:
    """The topic that the message was sent to, also while it waits elsewhere; None where the header names no message that is there."""
    place = _place(header)
    raw = None if place is None else parts.served.record_at(place)
    if raw is None:
        return None
    record = message_in(raw)
    return record.properties.get(REAL_TOPIC, record.topic) if is_system_topic(record.topic) else record.topic


def message_in(record: bytes) -> Message:
    """A record of the log as a message; its body is not looked at."""
    message = decode_record(record, check_crc=False)
    assert isinstance(message, Message)
    return message


def _place(header: Header) -> int | None:
    match header:
        case wire.ResumeCheckHalfMessageRequest():
            return place_of_id(header.message_id)
        case wire.ViewMessageRequest() | wire.SendBackRequest():
            return header.commitlog_offset
        case wire.EndTransactionRequest():
            return header.half_commitlog_offset
        case wire.ConsumeDirectlyRequest():
            return place_of_id(header.message_id)
    return None


def place_of_id(message_id: str | None) -> int | None:
    """The place in the log that an offset message id says; None where it is none."""
    try:
        return decode_offset_message_id(message_id or "")[2]
    except ValueError:
        return None
