"""A message that this consumer failed, as a new message of its group's retry topic. Pure.

It is sent where sending back (36) does not work, and where an orderly consumer has had enough of a message: the broker
makes a dead letter of it when it was tried too often. Java: DefaultMQPushConsumerImpl.sendMessageBackAsNormalMessage,
ConsumeMessageOrderlyService.sendMessageBack.

Departure: the origin's id is kept in both cases; Java's concurrent consumer overwrites it.
"""

from __future__ import annotations

from spark_mq.client.message import Message, MessageExt
from storage.format.record import Message as Record
from storage.names import RETRY_PREFIX, retry_topic
from storage.rules.retries import FIRST_RETRY_LEVEL


def retry_message(message: MessageExt, group: str, origin_topic: str, max_reconsume_times: int) -> Message:
    """What to send in the name of `group`; topics and group as brokers know them."""
    properties = {name: value for name, value in message.properties.items() if name != "TRAN_MSG"}
    origin = properties.get("ORIGIN_MESSAGE_ID", "").strip() or message.message_id
    properties |= {
        "ORIGIN_MESSAGE_ID": origin,
        "RETRY_TOPIC": origin_topic,
        "RECONSUME_TIME": str(message.reconsume_times + 1),
        "MAX_RECONSUME_TIMES": str(max_reconsume_times),
        "DELAY": str(FIRST_RETRY_LEVEL + message.reconsume_times),
    }
    return Message(retry_topic(group), message.body, properties=properties, flag=message.flag)


def origin_topic(record: Record) -> str:
    """The topic of a message's first try, as brokers know it. Java: DefaultMQPushConsumerImpl.resetRetryAndNamespace."""
    topic = record.topic
    return record.properties.get("RETRY_TOPIC", topic) if topic.startswith(RETRY_PREFIX) else topic
