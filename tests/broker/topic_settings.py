"""What a broker's settings say about topics, as data: the settings, a topic, and what becomes of a request and of a row.

They run over our handler, `put` and the sink (`test_topic_decision.py`), and over the Apache broker
(`tests/interop/test_topic_decision.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from storage.rules.response_codes import ResponseCode
from storage.tables.topics import TopicConfig

IN_2100_MS = 4_102_444_800_000
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
BASE = {
    "brokerName": "broker-lab",
    "brokerClusterName": "LabCluster",
    "brokerIP1": "127.0.0.1",
    "timerWheelEnable": "false",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "2000",
}


@dataclass(frozen=True)
class TopicCase:
    """One set of settings and one topic."""

    name: str
    settings: Mapping[str, str]
    topic: str
    entry: TopicConfig | None = None
    """The topic's entry before."""
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None
    made_by_request: TopicConfig | None = None
    """The entry that a request makes whose client asks for 4 queues."""
    made_by_row: TopicConfig | None = None
    row_refusal: str | None = None
    """What the refusal of a row says, a regular expression. Where a request is stored: a producer would not have sent it."""
    is_closed: bool = False
    """The whole store takes nothing, so a row's refusal is the store's."""

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def conf_text(settings: Mapping[str, str]) -> str:
    """The lines of a broker.conf with these settings."""
    return "".join(f"{name}={value}\n" for name, value in (BASE | dict(settings)).items())


CLOSED = f"broker unable to service, until {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(IN_2100_MS // 1000))},000"
NOT_EXIST = f"topic[Missing] not exist, apply first please!{FAQ}"
ORDER = "the broker[127.0.0.1] sending message is forbidden"

CASES = [
    TopicCase(
        "no setting: a request gets what its client asks for and a row what the template has",
        {},
        "Missing",
        made_by_request=TopicConfig("Missing", 4, 4),
        made_by_row=TopicConfig("Missing", 8, 8),
    ),
    TopicCase(
        "defaultTopicQueueNums is the most that a request gets and what a row gets",
        {"defaultTopicQueueNums": "3"},
        "Missing",
        made_by_request=TopicConfig("Missing", 3, 3),
        made_by_row=TopicConfig("Missing", 3, 3),
    ),
    TopicCase(
        "autoCreateTopicEnable=false makes no topic",
        {"autoCreateTopicEnable": "false"},
        "Missing",
        code=ResponseCode.TOPIC_NOT_EXIST,
        remark=NOT_EXIST,
        row_refusal="there is no topic 'Missing', and its broker makes none \\(autoCreateTopicEnable=false\\)",
    ),
    TopicCase(
        "autoCreateTopicEnable=false leaves topics that are there as they are",
        {"autoCreateTopicEnable": "false"},
        "There",
        TopicConfig("There", 2, 2),
    ),
    TopicCase(
        "brokerPermission=4 refuses order topics",
        {"brokerPermission": "4"},
        "Ordered",
        TopicConfig("Ordered", 2, 2, order=True),
        code=ResponseCode.NO_PERMISSION,
        remark=ORDER,
        row_refusal="'Ordered' is an order topic, and its broker takes no writes \\(brokerPermission=4\\)",
    ),
    TopicCase(
        "brokerPermission=4 takes the requests that no producer would send",
        {"brokerPermission": "4"},
        "There",
        TopicConfig("There", 2, 2),
        row_refusal="its broker takes no writes \\(brokerPermission=4\\)",
    ),
    TopicCase(
        "a topic without write permission takes the requests that no producer would send",
        {},
        "ReadOnly",
        TopicConfig("ReadOnly", 2, 2, perm=4),
        row_refusal="topic 'ReadOnly' cannot be written \\(perm 4\\)",
    ),
    TopicCase(
        "before its start a broker takes nothing",
        {"startAcceptSendRequestTimeStamp": str(IN_2100_MS)},
        "There",
        TopicConfig("There", 2, 2),
        code=ResponseCode.SYSTEM_ERROR,
        remark=CLOSED,
        row_refusal="startAcceptSendRequestTimeStamp=4102444800000",
        is_closed=True,
    ),
    TopicCase(
        "all four settings together refuse a missing topic before its start",
        {
            "autoCreateTopicEnable": "false",
            "defaultTopicQueueNums": "3",
            "brokerPermission": "4",
            "startAcceptSendRequestTimeStamp": str(IN_2100_MS),
        },
        "Missing",
        code=ResponseCode.SYSTEM_ERROR,
        remark=CLOSED,
        row_refusal="startAcceptSendRequestTimeStamp=4102444800000",
        is_closed=True,
    ),
    TopicCase(
        "all settings but the start refuse a missing topic",
        {"autoCreateTopicEnable": "false", "defaultTopicQueueNums": "3", "brokerPermission": "4"},
        "Missing",
        code=ResponseCode.TOPIC_NOT_EXIST,
        remark=NOT_EXIST,
        row_refusal="there is no topic 'Missing', and its broker makes none \\(autoCreateTopicEnable=false\\)",
    ),
]
