"""What a case is, and the brokers, topics and requests that the cases are made of."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage.rules.response_codes import ResponseCode
from storage.tables.topics import TopicConfig
from tests.support.broker_handlers import Send

BROKER, CLUSTER = "broker-lab", "LabCluster"
PLAIN_CONF = {
    "brokerName": BROKER,
    "brokerClusterName": CLUSTER,
    "brokerIP1": "127.0.0.1",
    "defaultTopicQueueNums": "8",
    "timerWheelEnable": "true",
}
STRICT_CONF = PLAIN_CONF | {
    "rejectTransactionMessage": "true",
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
    "timerWheelEnable": "false",
    "asyncSendEnable": "false",
    "regionId": "north",
    "traceOn": "false",
    "maxMessageSize": "1000",
}
CLOSED_CONF = PLAIN_CONF | {"brokerPermission": "4"}
CONFS = {"plain": PLAIN_CONF, "strict": STRICT_CONF, "closed": CLOSED_CONF}

KEY = "7F0000010000000000000000000000AA"
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit {limit}B, msg properties length limit 32KB."
)
TIMER_ILLEGAL = (
    "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; "
    "or if set del msg, the delay time should be bigger than the current time"
)
PAST_MS = 1_600_000_000_000
DAY_MS = 86_400_000
AHEAD_MS = time.time_ns() // 1_000_000 + DAY_MS
"""A deliver time that the timer takes."""


@dataclass(frozen=True, kw_only=True)
class PutCase:
    """One rule."""

    name: str
    java: str
    request: Send
    conf: str = "plain"
    topic: TopicConfig | None = None
    """An entry that is there before."""
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None
    answer: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the answer: queue_id, queue_offset, transaction_id."""
    stored: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the (first) record."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Some of its properties."""
    absent: tuple[str, ...] = ()
    """Properties that it must not have."""
    made: TopicConfig | None = None
    """The entry that the topic has afterwards."""
    row: Mapping[str, Any] | None = None
    """The same as a row of the sink's columns, where one can say it; its unique key, queue and birth are the request's."""
    is_transactional: bool = False
    """The row is put as a transaction's."""
    refused_column: str = "topic"
    """The column that a row is refused for."""
    said_by_requests_only: tuple[str, ...] = ()
    """Fields of the record that no row can say."""
    no_producer: str | None = None
    """Why the row is refused all the same: a row has no producer but us, and none would send it."""
    waits_by_sink: bool = False
    """The sink parks the row, where request and `put` deliver at once: what it writes does not depend on the clock."""
    departs: str | None = None
    """Why the Apache broker's answer is another one."""

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def entry(topic: str, queues: int = 4, **fields: Any) -> TopicConfig:
    return TopicConfig(topic, queues, queues, **fields)


def send(topic: str, body: bytes | None = b"body", queue_id: int = 0, **fields: Any) -> Send:
    fields.setdefault("properties", {"UNIQ_KEY": KEY})
    return Send(topic=topic, body=body, queue_id=queue_id, born_time_ms=PAST_MS, **fields)


def size_of_broker_properties(region: str = "DefaultRegion", trace: str = "true") -> int:
    """With a producer's UNIQ_KEY and WAIT."""
    added = {"UNIQ_KEY": KEY, "WAIT": "true", "MSG_REGION": region, "TRACE_ON": trace, "CLUSTER": CLUSTER}
    return sum(len(name) + len(value) + 2 for name, value in added.items())


SEND_MESSAGE = "SendMessageProcessor.sendMessage"
MSG_CHECK = "AbstractSendMessageProcessor.msgCheck"
CONTEXT = "AbstractSendMessageProcessor.buildMsgContext"
CREATE = "TopicConfigManager.createTopicInSendMessageMethod"
VALIDATE = "TopicValidator.validateTopic"
