"""What a client is told of each put status: SendMessageProcessor.handlePutMessageResult, case by case."""

from __future__ import annotations

import pytest

from spark_mq.broker.put_response import DiskUse, recall_handle, remark, response_code
from storage.put_status import PutStatus
from storage.rules.response_codes import ResponseCode
from storage.settings.nouns import TimerConfig

ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 1000B, msg properties length limit 32KB."
)
ANSWERS = {
    PutStatus.PUT_OK: (0, None),
    PutStatus.FLUSH_DISK_TIMEOUT: (10, None),
    PutStatus.SLAVE_NOT_AVAILABLE: (11, None),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (12, None),
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: (1, "in-sync replicas not enough"),
    PutStatus.CREATE_MAPPED_FILE_FAILED: (1, "create mapped file failed, server is busy or broken."),
    PutStatus.MESSAGE_ILLEGAL: (13, ILLEGAL),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: (13, ILLEGAL),
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: (
        13,
        "timer message illegal, the delay time should not be bigger than the max delay 60000ms; "
        "or if set del msg, the delay time should be bigger than the current time",
    ),
    PutStatus.WHEEL_TIMER_FLOW_CONTROL: (
        1,
        "timer message is under flow control, max num limit is 20 or the current value is greater than 10 "
        "and less than 20, trigger random flow control",
    ),
    PutStatus.WHEEL_TIMER_NOT_ENABLE: (1, "accurate timer message is not enabled, timerWheelEnable is false"),
    PutStatus.SERVICE_NOT_AVAILABLE: (
        14,
        "service not available now. It may be caused by one of the following reasons: the broker's disk is full "
        "[CL:  0.50 CQ:  0.97 INDEX: -1.00], messages are put to the slave, message store has been shut down, etc.",
    ),
    PutStatus.OS_PAGE_CACHE_BUSY: (2, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"),
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: (
        1,
        "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, "
        "lmq consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w.",
    ),
    PutStatus.UNKNOWN_ERROR: (1, "UNKNOWN_ERROR"),
    PutStatus.PUT_TO_REMOTE_BROKER_FAIL: (1, "UNKNOWN_ERROR DEFAULT"),
}


@pytest.mark.parametrize("status", PutStatus)
def test_each_status_has_its_code_and_remark(status: PutStatus) -> None:
    """SendMessageProcessor.handlePutMessageResult."""
    timer = TimerConfig(timer_wheel_enable=False, timer_max_delay_sec=60, timer_congest_num_each_slot=10)
    text = remark(status, max_message_size=1000, timer=timer, disk_use=DiskUse(0.5, 0.97, -1))
    assert (response_code(status), text) == ANSWERS[status]


@pytest.mark.parametrize("status", PutStatus)
def test_exactly_four_statuses_mean_stored(status: PutStatus) -> None:
    """SendMessageProcessor.handlePutMessageResult: sendOK."""
    assert status.is_stored == (response_code(status) in (0, 10, 11, 12))


def test_the_codes_are_javas_numbers() -> None:
    """ResponseCode, RemotingSysResponseCode."""
    assert {code.name: int(code) for code in ResponseCode} == {
        "SUCCESS": 0,
        "SYSTEM_ERROR": 1,
        "SYSTEM_BUSY": 2,
        "REQUEST_CODE_NOT_SUPPORTED": 3,
        "TRANSACTION_FAILED": 4,
        "FLUSH_DISK_TIMEOUT": 10,
        "SLAVE_NOT_AVAILABLE": 11,
        "FLUSH_SLAVE_TIMEOUT": 12,
        "MESSAGE_ILLEGAL": 13,
        "SERVICE_NOT_AVAILABLE": 14,
        "NO_PERMISSION": 16,
        "TOPIC_NOT_EXIST": 17,
        "PULL_NOT_FOUND": 19,
        "PULL_RETRY_IMMEDIATELY": 20,
        "PULL_OFFSET_MOVED": 21,
        "SUBSCRIPTION_GROUP_NOT_EXIST": 26,
        "INVALID_PARAMETER": 29,
        "NOT_LEADER_FOR_QUEUE": 501,
        "ILLEGAL_OPERATION": 604,
    }


def test_a_message_on_the_wheel_has_a_handle_to_recall_it() -> None:
    """SendMessageProcessor.attachRecallHandle; the text is RecallMessageHandle.HandleV1.buildHandle's."""
    key = "7F0000010000000000000000000000AA"
    properties = {"TIMER_OUT_MS": "1700000000000", "REAL_TOPIC": "TopicA", "UNIQ_KEY": key}
    assert recall_handle(properties, "broker-a") == (
        "djEgVG9waWNBIGJyb2tlci1hIDE3MDAwMDAwMDAwMDEgN0YwMDAwMDEwMDAwMDAwMDAwMDAwMDAwMDAwMDAwQUE="
    )


@pytest.mark.parametrize(
    "properties",
    [
        {"REAL_TOPIC": "TopicA"},
        {"TIMER_OUT_MS": "1700000000000"},
        {"TIMER_OUT_MS": "1700000000000", "REAL_TOPIC": "%RETRY%g"},
        {"TIMER_OUT_MS": "tomorrow", "REAL_TOPIC": "TopicA"},
        {"TIMER_OUT_MS": "9" * 5_000, "REAL_TOPIC": "TopicA"},
    ],
)
def test_any_other_message_has_none(properties: dict[str, str]) -> None:
    """SendMessageProcessor.attachRecallHandle; of a time that is no number its Long.parseLong throws, and nobody is answered."""
    assert recall_handle(properties, "broker-a") is None
