"""What a client is told of each put status: SendMessageProcessor.handlePutMessageResult, case by case."""

from __future__ import annotations

import pytest

from spark_mq.broker.put_plan import DiskUse, recall_handle, remark, response_code
from storage.pending import PutStatus
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


CODES = """
    FLUSH_DISK_TIMEOUT=10 SLAVE_NOT_AVAILABLE=11 FLUSH_SLAVE_TIMEOUT=12 MESSAGE_ILLEGAL=13 SERVICE_NOT_AVAILABLE=14
    VERSION_NOT_SUPPORTED=15 NO_PERMISSION=16 TOPIC_NOT_EXIST=17 TOPIC_EXIST_ALREADY=18 PULL_NOT_FOUND=19
    PULL_RETRY_IMMEDIATELY=20 PULL_OFFSET_MOVED=21 QUERY_NOT_FOUND=22 SUBSCRIPTION_PARSE_FAILED=23 SUBSCRIPTION_NOT_EXIST=24
    SUBSCRIPTION_NOT_LATEST=25 SUBSCRIPTION_GROUP_NOT_EXIST=26 FILTER_DATA_NOT_EXIST=27 FILTER_DATA_NOT_LATEST=28
    INVALID_PARAMETER=29 TRANSACTION_SHOULD_COMMIT=200 TRANSACTION_SHOULD_ROLLBACK=201 TRANSACTION_STATE_UNKNOW=202
    TRANSACTION_STATE_GROUP_WRONG=203 NO_BUYER_ID=204 NOT_IN_CURRENT_UNIT=205 CONSUMER_NOT_ONLINE=206 CONSUME_MSG_TIMEOUT=207
    NO_MESSAGE=208 POLLING_FULL=209 POLLING_TIMEOUT=210 BROKER_NOT_EXIST=211 BROKER_DISPATCH_NOT_COMPLETE=212
    BROADCAST_CONSUMPTION=213 FLOW_CONTROL=215 NOT_LEADER_FOR_QUEUE=501 ILLEGAL_OPERATION=604 GO_AWAY=1500
    CONTROLLER_FENCED_MASTER_EPOCH=2000 CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH=2001 CONTROLLER_INVALID_MASTER=2002
    CONTROLLER_INVALID_REPLICAS=2003 CONTROLLER_MASTER_NOT_AVAILABLE=2004 CONTROLLER_INVALID_REQUEST=2005
    CONTROLLER_BROKER_NOT_ALIVE=2006 CONTROLLER_NOT_LEADER=2007 CONTROLLER_BROKER_METADATA_NOT_EXIST=2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA=2009 CONTROLLER_BROKER_NEED_TO_BE_REGISTERED=2010 CONTROLLER_MASTER_STILL_EXIST=2011
    CONTROLLER_ELECT_MASTER_FAILED=2012 CONTROLLER_ALTER_SYNC_STATE_SET_FAILED=2013 CONTROLLER_BROKER_ID_INVALID=2014
    CONTROLLER_JRAFT_INTERNAL_ERROR=2015 CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS=2016 USER_NOT_EXIST=3001 POLICY_NOT_EXIST=3002
    SUCCESS=0 SYSTEM_ERROR=1 SYSTEM_BUSY=2 REQUEST_CODE_NOT_SUPPORTED=3 TRANSACTION_FAILED=4
"""


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
    """ResponseCode, RemotingSysResponseCode: what `javap -constants` shows of 5.3.3, but for the client's own RPC_ codes."""
    named = dict(pair.split("=") for pair in CODES.split())
    of_5_5 = {"LMQ_QUOTA_EXCEEDED": 2017, "LITE_SUBSCRIPTION_QUOTA_EXCEEDED": 2018}
    found = {code.name: int(code) for code in ResponseCode}
    assert found == {name: int(number) for name, number in named.items()} | of_5_5


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
