"""Received messages made by hand, for tests of the client."""

from __future__ import annotations

from dataclasses import replace

from spark_mq.client.message import MessageExt
from tests.support.message_builder import make_message

BROKER = "broker-a"


def received(
    queue_offset: int,
    *,
    topic: str = "TopicA",
    queue_id: int = 0,
    body: bytes = b"body",
    reconsume_times: int = 0,
    **properties: str,
) -> MessageExt:
    """A message as a pull gives it."""
    record = make_message(topic, queue_id, queue_offset, 1000 * queue_offset, body=body, properties=properties)
    return MessageExt.of(replace(record, properties=properties, reconsume_times=reconsume_times), BROKER)
