"""The put path's rules as data: a request, and what a broker makes of it.

Each case names the Java class and method that it was read off. They run over our handler (`test_put_cases.py`), over the Apache
broker, which must answer and store the same but where `departs` says why not (`test_put_cases_by_apache.py`), and those with a
`row` over any other way in. All of one `conf` run on one store, in any order: each case has topics of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_mq.broker.batch_body import BatchedMessage, encode_batch
from spark_mq.broker.send_request import SendRequest
from storage.rules.response_codes import ResponseCode
from storage.tables.subscription_groups import SubscriptionGroupConfig
from storage.tables.topic_queue_mappings import MappingItem, TopicQueueMapping
from storage.tables.topics import TopicConfig

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
    request: SendRequest
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
    departs: str | None = None
    """Why the Apache broker's answer is another one."""

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def entry(topic: str, queues: int = 4, **fields: Any) -> TopicConfig:
    return TopicConfig(topic, queues, queues, **fields)


def send(topic: str, body: bytes | None = b"body", queue_id: int = 0, **fields: Any) -> SendRequest:
    fields.setdefault("properties", {"UNIQ_KEY": KEY})
    return SendRequest(topic=topic, body=body, queue_id=queue_id, born_time_ms=PAST_MS, **fields)


def size_of_broker_properties(region: str = "DefaultRegion", trace: str = "true") -> int:
    """With a producer's UNIQ_KEY and WAIT."""
    added = {"UNIQ_KEY": KEY, "WAIT": "true", "MSG_REGION": region, "TRACE_ON": trace, "CLUSTER": CLUSTER}
    return sum(len(name) + len(value) + 2 for name, value in added.items())


SEND_MESSAGE = "SendMessageProcessor.sendMessage"
MSG_CHECK = "AbstractSendMessageProcessor.msgCheck"
CONTEXT = "AbstractSendMessageProcessor.buildMsgContext"
CREATE = "TopicConfigManager.createTopicInSendMessageMethod"
VALIDATE = "TopicValidator.validateTopic"

ORDINARY = [
    PutCase(
        name="a message is stored as it was asked for",
        java=SEND_MESSAGE,
        request=send(
            "Plain",
            b"hello",
            2,
            flag=-7,
            reconsume_times=3,
            properties={"UNIQ_KEY": KEY, "TAGS": "TagA", "größe": "🚀"},
        ),
        topic=entry("Plain"),
        answer={"queue_id": 2, "queue_offset": 0, "transaction_id": KEY},
        stored={
            "topic": "Plain",
            "queue_id": 2,
            "flag": -7,
            "body": b"hello",
            "born_time_ms": PAST_MS,
            "reconsume_times": 3,
        },
        properties={"TAGS": "TagA", "größe": "🚀", "UNIQ_KEY": KEY},
        row={
            "topic": "Plain",
            "body": b"hello",
            "queue_id": 2,
            "flag": -7,
            "tags": "TagA",
            "properties": {"größe": "🚀"},
        },
        said_by_requests_only=("reconsume_times",),
    ),
    PutCase(
        name="the broker says its region trace switch and cluster whatever the client says",
        java=f"{CONTEXT}, {SEND_MESSAGE}",
        request=send("Regions", properties={"MSG_REGION": "mine", "TRACE_ON": "false", "CLUSTER": "mine"}),
        topic=entry("Regions"),
        properties={"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": CLUSTER},
    ),
    PutCase(
        name="a receipt of a pop is taken off and what only ends so stays",
        java="SendMessageProcessor.clearReservedProperties, MessageUtils.deleteProperty",
        request=send("Receipts", properties={"POP_CK": "0 1 2", "MY_POP_CK": "kept", "POP_CK_OFFSET": "kept"}),
        topic=entry("Receipts"),
        properties={"MY_POP_CK": "kept", "POP_CK_OFFSET": "kept"},
        absent=("POP_CK",),
    ),
    PutCase(
        name="WAIT stays as the client wrote it",
        java="SendMessageProcessor.sendMessage (MessageExtBrokerInner.removeWaitStorePropertyString is for LMQ only)",
        request=send("Waits", properties={"UNIQ_KEY": KEY, "WAIT": "false"}),
        topic=entry("Waits"),
        properties={"WAIT": "false"},
    ),
    PutCase(
        name="values without a name and names without a value are lost",
        java="MessageDecoder.string2messageProperties",
        request=send("Odd", properties={"": "nameless", "empty": "", "a": "b\x01c", "UNIQ_KEY": KEY}),
        topic=entry("Odd"),
        properties={"a": "b\x01c"},
        absent=("", "empty"),
    ),
    PutCase(
        name="compression bits of the client stay",
        java=SEND_MESSAGE,
        request=send("Compressed", b"x\x9c\x03\x00\x00\x00\x00\x01", sys_flag=0x301),
        topic=entry("Compressed"),
        stored={"sys_flag": 0x301},
    ),
    PutCase(
        name="a topic of many tags marks its messages",
        java="SendMessageProcessor.handleRetryAndDLQ",
        request=send("Tagged"),
        topic=entry("Tagged", topic_filter_type="MULTI_TAG"),
        stored={"sys_flag": 0x2},
        row={"topic": "Tagged", "body": b"body"},
    ),
    PutCase(
        name="a compacted topic takes no message without keys",
        java=f"{SEND_MESSAGE}, CleanupPolicyUtils.getDeletePolicy",
        request=send("Compact", properties={"UNIQ_KEY": KEY, "KEYS": " "}),
        topic=entry("Compact", attributes={"cleanup.policy": "COMPACTION"}),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark="Required message key is missing",
        row={"topic": "Compact", "body": b"body", "keys": " "},
        refused_column="keys",
    ),
    PutCase(
        name="a compacted topic takes a message with keys",
        java=SEND_MESSAGE,
        request=send("CompactToo", properties={"UNIQ_KEY": KEY, "KEYS": "k"}),
        topic=entry("CompactToo", attributes={"cleanup.policy": "COMPACTION"}),
        stored={"topic": "CompactToo"},
        row={"topic": "CompactToo", "body": b"body", "keys": "k"},
    ),
    PutCase(
        name="a property of an inner batch makes no inner batch",
        java="HookUtils.checkInnerBatch",
        request=send("Inner", properties={"UNIQ_KEY": KEY, "INNER_NUM": "2"}),
        topic=entry("Inner"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
    ),
    PutCase(
        name="an inner batch goes to a topic with batch queues only",
        java="HookUtils.checkInnerBatch",
        request=send("InnerFlag", sys_flag=0x80),
        topic=entry("InnerFlag"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
    ),
]

QUEUES = [
    PutCase(
        name="without a queue a message goes to a write queue",
        java=f"{SEND_MESSAGE}, AbstractSendMessageProcessor.randomQueueId",
        request=send("AnyQueue", queue_id=-1),
        topic=TopicConfig("AnyQueue", 3, 1),
        answer={"queue_id": 0},
        stored={"queue_id": 0},
        row={"topic": "AnyQueue", "body": b"body"},
    ),
    PutCase(
        name="a queue that can only be read takes messages",
        java=MSG_CHECK,
        request=send("ReadQueue", queue_id=2),
        topic=TopicConfig("ReadQueue", 3, 1),
        stored={"queue_id": 2},
        row={"topic": "ReadQueue", "body": b"body", "queue_id": 2},
    ),
    PutCase(
        name="a queue that can neither be read nor written is refused",
        java=MSG_CHECK,
        request=send("NoQueue", queue_id=3),
        topic=TopicConfig("NoQueue", 3, 1, order=True, attributes={"message.type": "NORMAL"}),
        code=ResponseCode.INVALID_PARAMETER,
        remark="request queueId[3] is illegal, TopicConfig [topicName=NoQueue, readQueueNums=3, writeQueueNums=1, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=true, attributes={message.type=NORMAL}] Producer: {client}",
        row={"topic": "NoQueue", "body": b"body", "queue_id": 3},
        refused_column="queue_id",
    ),
]

NAMES = [
    PutCase(
        name="a blank topic is refused",
        java=VALIDATE,
        request=send(" "),
        code=ResponseCode.INVALID_PARAMETER,
        remark="The specified topic is blank.",
        row={"topic": " ", "body": b"body"},
    ),
    *(
        PutCase(
            name=f"a topic with other characters is refused {number}",
            java=f"{VALIDATE}, isTopicOrGroupIllegal",
            request=send(topic),
            code=ResponseCode.INVALID_PARAMETER,
            remark="The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
            row={"topic": topic, "body": b"body"},
        )
        for number, topic in enumerate(("a.b", "../../x", "a b", "größe", "a\x01b"))
    ),
    PutCase(
        name="a topic of 127 characters is taken",
        java=VALIDATE,
        request=send("t" * 127),
        stored={"topic": "t" * 127, "magic": 0xDAA320A7},
        row={"topic": "t" * 127, "body": b"body"},
    ),
    PutCase(
        name="a topic of 128 characters is refused",
        java=VALIDATE,
        request=send("t" * 128),
        code=ResponseCode.INVALID_PARAMETER,
        remark="The specified topic is longer than topic max length.",
        row={"topic": "t" * 128, "body": b"body"},
    ),
    PutCase(
        name="a retry topic of 128 characters is refused too",
        java=VALIDATE,
        request=send("%RETRY%" + "g" * 121),
        code=ResponseCode.INVALID_PARAMETER,
        remark="The specified topic is longer than topic max length.",
    ),
    *(
        PutCase(
            name=f"nobody sends to {topic}",
            java="TopicValidator.isNotAllowedSendTopic",
            request=send(topic),
            code=ResponseCode.NO_PERMISSION,
            remark=f"Sending message to topic[{topic}] is forbidden.",
            row={"topic": topic, "body": b"body"},
        )
        for topic in (
            "SCHEDULE_TOPIC_XXXX",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            "TRANS_CHECK_MAX_TIME_TOPIC",
            "SELF_TEST_TOPIC",
            "OFFSET_MOVED_EVENT",
        )
    ),
    *(
        PutCase(
            name=f"nobody sends to {topic}",
            java="TopicValidator.isNotAllowedSendTopic",
            request=send(topic),
            code=ResponseCode.NO_PERMISSION,
            remark=f"Sending message to topic[{topic}] is forbidden.",
            row={"topic": topic, "body": b"body"},
            departs=f"Apache stores it: {why}",
        )
        for topic, why in (
            ("rmq_sys_wheel_timer", "a record there without TIMER_OUT_MS stops its timer"),
            ("rmq_sys_spark_mq_ledger", "it does not know our ledger"),
        )
    ),
    PutCase(
        name="a system topic that is not blocked takes messages",
        java=f"TopicConfigManager.init, {MSG_CHECK}",
        request=send("BenchmarkTest", queue_id=1023),
        stored={"topic": "BenchmarkTest", "queue_id": 1023},
        row={"topic": "BenchmarkTest", "body": b"body"},
        no_producer="rows go to no topic of the system's, as docs/writing.md says",
    ),
]

CREATED = [
    PutCase(
        name="a first message makes its topic with the queues that the client asks for",
        java=CREATE,
        request=send("New3", default_topic_queue_count=3),
        made=TopicConfig("New3", 3, 3, 6),
        row={"topic": "New3", "body": b"body"},
    ),
    PutCase(
        name="a first message makes its topic with at most the templates queues",
        java=CREATE,
        request=send("New20", default_topic_queue_count=20),
        made=TopicConfig("New20", 8, 8, 6),
    ),
    PutCase(
        name="a topic that would have less than no queues is made without any and takes nothing",
        java=f"{CREATE}, {MSG_CHECK}",
        request=send("NewNone", default_topic_queue_count=-1),
        code=ResponseCode.INVALID_PARAMETER,
        remark="request queueId[0] is illegal, TopicConfig [topicName=NewNone, readQueueNums=0, writeQueueNums=0, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}] Producer: {client}",
        made=TopicConfig("NewNone", 0, 0, 6),
    ),
    PutCase(
        name="any topic that hands its permissions on is a template",
        java=CREATE,
        request=send("NewByModel", default_topic="Model", default_topic_queue_count=9),
        topic=TopicConfig("Model", 9, 5, 3, "MULTI_TAG", order=True, attributes={"message.type": "NORMAL"}),
        made=TopicConfig("NewByModel", 5, 5, 2, "MULTI_TAG"),
        stored={"topic": "NewByModel", "sys_flag": 0x2},
    ),
    PutCase(
        name="the clusters topic is a template",
        java=f"TopicConfigManager.init, {CREATE}",
        request=send("NewByCluster", default_topic=CLUSTER, default_topic_queue_count=30),
        made=TopicConfig("NewByCluster", 16, 16, 6),
    ),
    PutCase(
        name="a topic that keeps its permissions is no template",
        java=CREATE,
        request=send("NewByPlain", default_topic="NoModel"),
        topic=entry("NoModel"),
        code=ResponseCode.TOPIC_NOT_EXIST,
        remark=f"topic[NewByPlain] not exist, apply first please!{FAQ}",
    ),
    PutCase(
        name="a topic that is not there is no template",
        java=CREATE,
        request=send("NewByNothing", default_topic="Nothing"),
        code=ResponseCode.TOPIC_NOT_EXIST,
        remark=f"topic[NewByNothing] not exist, apply first please!{FAQ}",
    ),
    PutCase(
        name="a topic made in unit mode is a units",
        java=f"{MSG_CHECK}, TopicSysFlag.buildSysFlag",
        request=send("NewUnit", unit_mode=True),
        made=TopicConfig("NewUnit", 4, 4, 6, topic_sys_flag=1),
    ),
    PutCase(
        name="a retry topic made in unit mode has a units subscription",
        java=f"{MSG_CHECK}, TopicSysFlag.buildSysFlag",
        request=send("%RETRY%unit", unit_mode=True),
        made=TopicConfig("%RETRY%unit", 4, 4, 6, topic_sys_flag=2),
    ),
    PutCase(
        name="a retry topic is made without a template where none allows it",
        java=f"{MSG_CHECK}, TopicConfigManager.createTopicInSendMessageBackMethod",
        request=send("%RETRY%alone", default_topic="Nothing", default_topic_queue_count=7),
        made=TopicConfig("%RETRY%alone", 1, 1, 6),
    ),
]

SIZES = [
    PutCase(
        name="properties of 32767 bytes with the brokers own are stored",
        java="MessageExtEncoder.encode",
        request=send(
            "Properties32767",
            properties={"UNIQ_KEY": KEY, "WAIT": "true", "p": "x" * (32_767 - 3 - size_of_broker_properties())},
        ),
        topic=entry("Properties32767"),
        stored={"topic": "Properties32767"},
        row={
            "topic": "Properties32767",
            "body": b"body",
            "properties": {"p": "x" * (32_767 - 3 - size_of_broker_properties())},
        },
    ),
    PutCase(
        name="properties of 32768 bytes with the brokers own are refused",
        java="MessageExtEncoder.encode",
        request=send(
            "Properties32768",
            properties={"UNIQ_KEY": KEY, "WAIT": "true", "p": "x" * (32_768 - 3 - size_of_broker_properties())},
        ),
        topic=entry("Properties32768"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
        row={
            "topic": "Properties32768",
            "body": b"body",
            "properties": {"p": "x" * (32_768 - 3 - size_of_broker_properties())},
        },
        refused_column="properties",
    ),
    PutCase(
        name="a body of maxMessageSize is stored",
        java="MessageExtEncoder.encode",
        conf="strict",
        request=send("Body1000", b"x" * 1000),
        topic=entry("Body1000"),
        stored={"body": b"x" * 1000},
        properties={"MSG_REGION": "north", "TRACE_ON": "false"},
        row={"topic": "Body1000", "body": b"x" * 1000},
    ),
    PutCase(
        name="a greater body is refused",
        java="MessageExtEncoder.encode",
        conf="strict",
        request=send("Body1001", b"x" * 1001),
        topic=entry("Body1001"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=1000),
        row={"topic": "Body1001", "body": b"x" * 1001},
        refused_column="body",
    ),
    PutCase(
        name="no body is refused",
        java="HookUtils.checkBeforePutMessage",
        request=send("NoBody", None),
        topic=entry("NoBody"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
        departs="buildMsgContext takes the length of the body, and a NullPointerException is the answer",
    ),
]

DELAYED = [
    PutCase(
        name="a delay level parks the message in the levels queue",
        java="HookUtils.transformDelayLevelMessage",
        request=send("Later", queue_id=3, properties={"UNIQ_KEY": KEY, "DELAY": "3"}),
        topic=entry("Later"),
        answer={"queue_id": 3},
        stored={"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 2},
        properties={"DELAY": "3", "REAL_TOPIC": "Later", "REAL_QID": "3"},
        row={"topic": "Later", "body": b"body", "queue_id": 3, "delay_level": 3},
    ),
    PutCase(
        name="a level is any whole number that Java reads",
        java="Message.getDelayTimeLevel, Integer.parseInt",
        request=send("PlusLater", properties={"UNIQ_KEY": KEY, "DELAY": "+03"}),
        topic=entry("PlusLater"),
        stored={"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 2},
        properties={"DELAY": "3", "REAL_TOPIC": "PlusLater"},
        departs="Apache keeps the text as it is",
    ),
    PutCase(
        name="a level that is no number is a system error",
        java="Message.getDelayTimeLevel, which throws",
        request=send("NoLevel", properties={"UNIQ_KEY": KEY, "DELAY": "soon"}),
        topic=entry("NoLevel"),
        code=ResponseCode.SYSTEM_ERROR,
        remark="UNKNOWN_ERROR",
        departs="the remark is an exception's text",
    ),
    PutCase(
        name="a level above the last is the last",
        java="HookUtils.transformDelayLevelMessage",
        request=send("MuchLater", properties={"UNIQ_KEY": KEY, "DELAY": "99"}),
        topic=entry("MuchLater"),
        stored={"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 17},
        properties={"DELAY": "18"},
        row={"topic": "MuchLater", "body": b"body", "queue_id": 0, "delay_level": 99},
    ),
    *(
        PutCase(
            name=f"level {level} delays nothing",
            java="HookUtils.handleScheduleMessage",
            request=send(f"Now{number}", properties={"UNIQ_KEY": KEY, "DELAY": level}),
            topic=entry(f"Now{number}"),
            stored={"topic": f"Now{number}"},
            properties={"DELAY": level},
            absent=("REAL_TOPIC",),
        )
        for number, level in enumerate(("0", "-1"))
    ),
    PutCase(
        name="a level wins over a deliver time which is taken off",
        java="HookUtils.checkIfTimerMessage",
        request=send(
            "Both", properties={"UNIQ_KEY": KEY, "DELAY": "1", "TIMER_DELAY_SEC": "60", "TIMER_DELIVER_MS": "1"}
        ),
        topic=entry("Both"),
        stored={"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 0},
        absent=("TIMER_DELAY_SEC", "TIMER_DELIVER_MS"),
    ),
    PutCase(
        name="a deliver time puts the message on the wheel",
        java="HookUtils.transformTimerMessage",
        request=send("Wheel", queue_id=1, properties={"UNIQ_KEY": KEY, "TIMER_DELAY_SEC": "86400"}),
        topic=entry("Wheel"),
        answer={"queue_id": 1},
        stored={"topic": "rmq_sys_wheel_timer", "queue_id": 0},
        properties={"TIMER_DELAY_SEC": "86400", "REAL_TOPIC": "Wheel", "REAL_QID": "1"},
    ),
    PutCase(
        name="a deliver time in milliseconds puts the message on the wheel",
        java="HookUtils.transformTimerMessage",
        request=send("WheelAt", queue_id=1, properties={"UNIQ_KEY": KEY, "TIMER_DELIVER_MS": str(AHEAD_MS)}),
        topic=entry("WheelAt"),
        answer={"queue_id": 1},
        stored={"topic": "rmq_sys_wheel_timer", "queue_id": 0},
        properties={"TIMER_DELIVER_MS": str(AHEAD_MS), "REAL_TOPIC": "WheelAt", "REAL_QID": "1"},
        row={"topic": "WheelAt", "body": b"body", "deliver_at": AHEAD_MS},
    ),
    *(
        PutCase(
            name=f"a message without a body does not wait for {what}",
            java="HookUtils.checkBeforePutMessage of what a broker reads back",
            request=send(f"Empty{column}", b"", properties={"UNIQ_KEY": KEY, name: str(value)}),
            topic=entry(f"Empty{column}"),
            code=ResponseCode.MESSAGE_ILLEGAL,
            remark=ILLEGAL.format(limit=4_194_304),
            row={"topic": f"Empty{column}", "body": b"", column: value},
            refused_column=column,
            departs="Apache stores it, and its delivery stops at it when it is due",
        )
        for what, name, column, value in (
            ("a level", "DELAY", "delay_level", 3),
            ("a time", "TIMER_DELIVER_MS", "deliver_at", AHEAD_MS),
        )
    ),
    PutCase(
        name="a deliver time that has passed delays nothing",
        java="HookUtils.transformTimerMessage",
        request=send("Passed", properties={"UNIQ_KEY": KEY, "TIMER_DELIVER_MS": str(PAST_MS)}),
        topic=entry("Passed"),
        stored={"topic": "Passed"},
        properties={"TIMER_DELIVER_MS": str(PAST_MS)},
        row={"topic": "Passed", "body": b"body", "deliver_at": PAST_MS},
    ),
    PutCase(
        name="a deliver time too far ahead is refused",
        java="HookUtils.transformTimerMessage",
        request=send("TooFar", properties={"UNIQ_KEY": KEY, "TIMER_DELAY_SEC": str(3 * 86_400 + 60)}),
        topic=entry("TooFar"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=TIMER_ILLEGAL,
        row={"topic": "TooFar", "body": b"body", "deliver_at": AHEAD_MS + 2 * DAY_MS + 3_600_000},
        refused_column="deliver_at",
    ),
    PutCase(
        name="a deliver time that is no number is refused",
        java="HookUtils.transformTimerMessage",
        request=send("NoTime", properties={"UNIQ_KEY": KEY, "TIMER_DELIVER_MS": "tomorrow"}),
        topic=entry("NoTime"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=TIMER_ILLEGAL,
    ),
    PutCase(
        name="a deliver time without the wheel is refused",
        java="HookUtils.handleScheduleMessage",
        conf="strict",
        request=send("NoWheel", properties={"UNIQ_KEY": KEY, "TIMER_DELAY_MS": "60000"}),
        topic=entry("NoWheel"),
        code=ResponseCode.SYSTEM_ERROR,
        remark="accurate timer message is not enabled, timerWheelEnable is false",
        row={"topic": "NoWheel", "body": b"body", "deliver_at": AHEAD_MS},
        refused_column="deliver_at",
    ),
]

UNKNOWN_END = {"transaction_state": "unknown", "producer_group": "p"}
TRANSACTIONS = [
    *(
        PutCase(
            name=f"a half message waits in the half topic {flag}",
            java=f"{SEND_MESSAGE}, TransactionalMessageBridge.parseHalfMessageInner",
            request=send(
                f"Half{number}", queue_id=2, sys_flag=4, properties={"UNIQ_KEY": KEY, "TRAN_MSG": flag, "PGROUP": "p"}
            ),
            topic=entry(f"Half{number}"),
            answer={"queue_id": 2, "transaction_id": KEY},
            stored={"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queue_id": 0, "sys_flag": 0},
            properties={"REAL_TOPIC": f"Half{number}", "REAL_QID": "2", "__transactionId__": KEY, "PGROUP": "p"},
            row={"topic": "Half0", "body": b"body", **UNKNOWN_END} if flag == "true" else None,
            is_transactional=True,
        )
        for number, flag in enumerate(("true", "TRUE"))
    ),
    PutCase(
        name="TRAN_MSG that is not true opens no transaction",
        java=SEND_MESSAGE,
        request=send("NoHalf", properties={"UNIQ_KEY": KEY, "TRAN_MSG": "yes"}),
        topic=entry("NoHalf"),
        stored={"topic": "NoHalf"},
    ),
    PutCase(
        name="a delayed retry of an old client that still says TRAN_MSG opens no transaction",
        java=SEND_MESSAGE,
        request=send("OldRetry", reconsume_times=1, properties={"UNIQ_KEY": KEY, "TRAN_MSG": "true", "DELAY": "4"}),
        topic=entry("OldRetry"),
        stored={"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 3},
    ),
    PutCase(
        name="a prepared message without TRAN_MSG is in no queue",
        java="CommitLog.DefaultAppendMessageCallback.doAppend",
        request=send("Prepared", sys_flag=4),
        topic=entry("Prepared"),
        answer={"queue_id": 0, "queue_offset": 0},
        stored={"topic": "Prepared", "sys_flag": 4, "queue_offset": 0},
    ),
    PutCase(
        name="a half message with a delay is refused",
        java="HookUtils.handleScheduleMessage",
        request=send("HalfLater", properties={"UNIQ_KEY": KEY, "TRAN_MSG": "true", "PGROUP": "p", "DELAY": "3"}),
        topic=entry("HalfLater"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
        row={"topic": "HalfLater", "body": b"body", "delay_level": 3, **UNKNOWN_END},
        is_transactional=True,
        refused_column="delay_level",
        departs="Apache parks it in the schedule topic and throws it away when it is due",
    ),
    PutCase(
        name="a half message with a delay of another spelling is refused",
        java="HookUtils.handleScheduleMessage, Integer.parseInt",
        request=send("HalfPlus", properties={"UNIQ_KEY": KEY, "TRAN_MSG": "true", "PGROUP": "p", "DELAY": "+3"}),
        topic=entry("HalfPlus"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
        departs="Apache parks it in the schedule topic and throws it away when it is due",
    ),
    PutCase(
        name="a half message without a body is refused",
        java="HookUtils.checkBeforePutMessage of what EndTransactionProcessor reads back",
        request=send("HalfEmpty", b"", properties={"UNIQ_KEY": KEY, "TRAN_MSG": "true", "PGROUP": "p"}),
        topic=entry("HalfEmpty"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
        row={"topic": "HalfEmpty", "body": b"", **UNKNOWN_END},
        is_transactional=True,
        refused_column="body",
        departs="Apache stores it and refuses its commit",
    ),
    PutCase(
        name="a half message that was tried before and names no level opens a transaction",
        java=SEND_MESSAGE,
        request=send("HalfAgain", reconsume_times=1, properties={"UNIQ_KEY": KEY, "TRAN_MSG": "true", "DELAY": "-1"}),
        topic=entry("HalfAgain"),
        stored={"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "reconsume_times": 1},
    ),
    PutCase(
        name="a broker may refuse transactions",
        java=SEND_MESSAGE,
        conf="strict",
        request=send("NoTransactions", properties={"UNIQ_KEY": KEY, "TRAN_MSG": "true"}),
        topic=entry("NoTransactions"),
        code=ResponseCode.NO_PERMISSION,
        remark="the broker[127.0.0.1] sending transaction message is forbidden",
        row={"topic": "NoTransactions", "body": b"body", **UNKNOWN_END},
        is_transactional=True,
        refused_column="transaction_state",
    ),
]

RETRY = "SendMessageProcessor.handleRetryAndDLQ"
GROUPS = (SubscriptionGroupConfig("known", retry_max_times=2),)
RETRIES = [
    PutCase(
        name="a retry at the groups maximum is tried again",
        java=RETRY,
        request=send("%RETRY%known", reconsume_times=2),
        topic=entry("%RETRY%known", 1),
        stored={"topic": "%RETRY%known", "reconsume_times": 2},
    ),
    PutCase(
        name="a retry over the groups maximum is a dead letter",
        java=f"{RETRY}, TopicConfigManager.createTopicInSendMessageBackMethod",
        request=send("%RETRY%known", reconsume_times=3, properties={"UNIQ_KEY": KEY, "DELAY": "5"}),
        topic=entry("%RETRY%known", 1),
        stored={"topic": "%DLQ%known", "queue_id": 0, "reconsume_times": 3},
        properties={"DELAY": "-1"},
    ),
    PutCase(
        name="the requests maximum goes before the groups",
        java=RETRY,
        request=send("%RETRY%known", reconsume_times=3, max_reconsume_times=3),
        topic=entry("%RETRY%known", 1),
        stored={"topic": "%RETRY%known"},
    ),
    PutCase(
        name="what a consumer sends to its retry topic waits for its level",
        java=f"{RETRY}, ConsumeMessageOrderlyService.sendMessageBack",
        request=send(
            "%RETRY%known",
            reconsume_times=2,
            properties={"UNIQ_KEY": KEY, "RETRY_TOPIC": "Plain", "DELAY": "5", "ORIGIN_MESSAGE_ID": "F00"},
        ),
        topic=entry("%RETRY%known", 1),
        stored={"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 4, "reconsume_times": 2},
        properties={"REAL_TOPIC": "%RETRY%known", "REAL_QID": "0", "RETRY_TOPIC": "Plain"},
        row={
            "topic": "Plain",
            "body": b"body",
            "retry_group": "known",
            "reconsume_times": 2,
            "origin_msg_id": "F00",
        },
    ),
    PutCase(
        name="what a consumer sends to its retry topic too often is a dead letter that waits for nothing",
        java=f"{RETRY}, ConsumeMessageOrderlyService.sendMessageBack",
        request=send(
            "%RETRY%known", reconsume_times=3, properties={"UNIQ_KEY": KEY, "RETRY_TOPIC": "Plain", "DELAY": "6"}
        ),
        topic=entry("%RETRY%known", 1),
        stored={"topic": "%DLQ%known", "queue_id": 0, "reconsume_times": 3},
        properties={"DELAY": "-1", "RETRY_TOPIC": "Plain"},
        absent=("REAL_TOPIC",),
        row={"topic": "Plain", "body": b"body", "retry_group": "known", "reconsume_times": 3},
    ),
    PutCase(
        name="a client before 3.4.9 has no say in the maximum",
        java=RETRY,
        request=send("%RETRY%known", reconsume_times=3, max_reconsume_times=9, client_version=120),
        topic=entry("%RETRY%known", 1),
        stored={"topic": "%DLQ%known"},
    ),
    PutCase(
        name="a retry of a group that nobody knows is refused where groups are not made",
        java=f"{RETRY}, SubscriptionGroupManager.findSubscriptionGroupConfig",
        conf="strict",
        request=send("%RETRY%nobody"),
        topic=entry("%RETRY%nobody", 1),
        code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        remark=f"subscription group not exist, nobody {FAQ}",
        row={"topic": "Body1000", "body": b"body", "retry_group": "nobody"},
        refused_column="retry_group",
    ),
]

PERMISSIONS = [
    PutCase(
        name="a broker without write permission refuses order topics",
        java=MSG_CHECK,
        conf="closed",
        request=send("Ordered"),
        topic=entry("Ordered", order=True),
        code=ResponseCode.NO_PERMISSION,
        remark="the broker[127.0.0.1] sending message is forbidden",
        row={"topic": "Ordered", "body": b"body"},
    ),
    PutCase(
        name="a broker without write permission takes other topics messages",
        java=MSG_CHECK,
        conf="closed",
        request=send("Unordered"),
        topic=entry("Unordered"),
        stored={"topic": "Unordered"},
        row={"topic": "Unordered", "body": b"body"},
        no_producer="registerBrokerAll takes the broker's permission off each route",
    ),
    PutCase(
        name="a topics own permission is not asked",
        java=MSG_CHECK,
        request=send("ReadOnly"),
        topic=entry("ReadOnly", perm=4),
        stored={"topic": "ReadOnly"},
        row={"topic": "ReadOnly", "body": b"body"},
        no_producer="topicRouteData2TopicPublishInfo leaves queues without write permission away",
    ),
    PutCase(
        name="a broker may make no topics",
        java=CREATE,
        conf="strict",
        request=send("NotMade"),
        code=ResponseCode.TOPIC_NOT_EXIST,
        remark=f"topic[NotMade] not exist, apply first please!{FAQ}",
        row={"topic": "NotMade", "body": b"body"},
    ),
]

BATCH = "SendMessageProcessor.sendBatchMessage"
TWO = [
    BatchedMessage(b"one", b"UNIQ_KEY\x01A1\x02WAIT\x01true", 5),
    BatchedMessage(b"", b"UNIQ_KEY\x01A2\x02DELAY\x013\x02", -5),
]
BATCHES = [
    PutCase(
        name="a batch becomes records of its messages with the batchs properties behind their own",
        java=f"{BATCH}, MessageExtEncoder.encode(MessageExtBatch)",
        request=send("Batched", encode_batch(TWO), 1, is_batch=True, properties={"WAIT": "false", "UNIQ_KEY": KEY}),
        topic=entry("Batched", topic_filter_type="MULTI_TAG"),
        answer={"queue_id": 1, "queue_offset": 0, "transaction_id": KEY},
        stored={"topic": "Batched", "queue_id": 1, "body": b"one", "flag": 5, "sys_flag": 0x2},
        properties={"UNIQ_KEY": KEY, "WAIT": "false", "CLUSTER": CLUSTER, "TRACE_ON": "true"},
    ),
    PutCase(
        name="a batch to a retry topic is refused",
        java=BATCH,
        request=send("%RETRY%batch", encode_batch(TWO), is_batch=True),
        topic=entry("%RETRY%batch", 1),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark="batch request does not support retry group %RETRY%batch",
    ),
    PutCase(
        name="a batch of a transaction is refused",
        java="CommitLog.asyncPutMessages",
        request=send("BatchHalf", encode_batch(TWO), is_batch=True, sys_flag=4),
        topic=entry("BatchHalf"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
    ),
    PutCase(
        name="a batch with a delay level is refused",
        java="CommitLog.asyncPutMessages",
        request=send("BatchLater", encode_batch(TWO), is_batch=True, properties={"DELAY": "1"}),
        topic=entry("BatchLater"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
    ),
    PutCase(
        name="a batch with a level of another spelling is refused",
        java="CommitLog.asyncPutMessages, Integer.parseInt",
        request=send("BatchPlus", encode_batch(TWO), is_batch=True, properties={"DELAY": "+1"}),
        topic=entry("BatchPlus"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
    ),
    PutCase(
        name="a batch with a deliver time in which a message has no body is refused",
        java="HookUtils.handleScheduleMessage, checkBeforePutMessage of what the timer puts back",
        request=send("BatchWheelEmpty", encode_batch(TWO), is_batch=True, properties={"TIMER_DELAY_SEC": "86400"}),
        topic=entry("BatchWheelEmpty"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
        departs="Apache stores it, and its timer stops at it when it is due",
    ),
    PutCase(
        name="a batch with a deliver time goes on the wheel message by message",
        java="HookUtils.handleScheduleMessage (a MessageExtBatch is a MessageExtBrokerInner)",
        request=send("BatchWheel", encode_batch(TWO[:1]), is_batch=True, properties={"TIMER_DELAY_SEC": "86400"}),
        topic=entry("BatchWheel"),
        stored={"topic": "rmq_sys_wheel_timer", "queue_id": 0, "body": b"one"},
        properties={"REAL_TOPIC": "BatchWheel", "REAL_QID": "0"},
    ),
    PutCase(
        name="a batch whose body is too long is a system error",
        java="MessageExtEncoder.encode(MessageExtBatch), which throws",
        conf="strict",
        request=send("BatchLong", encode_batch([BatchedMessage(b"x" * 990, b"")]), is_batch=True),
        topic=entry("BatchLong"),
        code=ResponseCode.SYSTEM_ERROR,
        remark="message body size exceeded",
        departs="the remark is an exception's text",
    ),
    PutCase(
        name="a batch whose lengths do not add up is refused",
        java="MessageExtEncoder.encode(MessageExtBatch), which throws",
        request=send("BatchTorn", encode_batch(TWO)[:-1], is_batch=True),
        topic=entry("BatchTorn"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
        departs="an exception: SYSTEM_ERROR, with which a producer tries again",
    ),
    PutCase(
        name="a batched message whose properties grow too long is refused",
        java="MessageExtEncoder.encode(MessageExtBatch)",
        request=send("BatchGrown", encode_batch([BatchedMessage(b"x", b"p\x01" + b"x" * 32_700)]), is_batch=True),
        topic=entry("BatchGrown"),
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=ILLEGAL.format(limit=4_194_304),
        departs="Apache casts the length to 16 bits and stores a record that ends its log",
    ),
]

STATIC = (
    TopicQueueMapping(
        "Static",
        BROKER,
        4,
        PAST_MS,
        hosted_queues={
            1: (
                MappingItem("broker-a", 5, end_offset=12_345),
                MappingItem(BROKER, 0, generation=1, logic_offset=20_000),
            ),
            2: (MappingItem(BROKER, 1, end_offset=7), MappingItem("broker-a", 6, generation=1, logic_offset=10_000)),
            3: (MappingItem("broker-a", 7, end_offset=9), MappingItem(BROKER, 2, generation=1, logic_offset=-1)),
        },
    ),
    TopicQueueMapping(
        "StaticAny",
        BROKER,
        8,
        PAST_MS,
        hosted_queues={
            7: (MappingItem(BROKER, 0),),
            5: (MappingItem("broker-a", 3, end_offset=9), MappingItem(BROKER, 1, generation=1, logic_offset=100)),
        },
    ),
    TopicQueueMapping(
        "StaticBatch", BROKER, 8, PAST_MS, hosted_queues={6: (MappingItem(BROKER, 3, logic_offset=100),)}
    ),
)
REWRITE = "TopicQueueMappingManager.rewriteRequestForStaticTopic, SendMessageProcessor.rewriteResponseForStaticTopic"
STATICS = [
    PutCase(
        name="a logical queue is the leaders physical one and the answer is logical again",
        java=REWRITE,
        request=send("Static", queue_id=1),
        topic=entry("Static", 3),
        answer={"queue_id": 1, "queue_offset": 20_000},
        stored={"topic": "Static", "queue_id": 0, "queue_offset": 0},
        row={"topic": "Static", "body": b"body"},
    ),
    PutCase(
        name="a leader whose place is not decided answers an offset of minus one",
        java="LogicQueueMappingItem.computeStaticQueueOffsetLoosely",
        request=send("Static", queue_id=3),
        topic=entry("Static", 3),
        answer={"queue_id": 3, "queue_offset": -1},
        stored={"topic": "Static", "queue_id": 2},
        row={"topic": "Static", "body": b"body"},
    ),
    PutCase(
        name="a broker that led a queue once does not take its messages",
        java="TopicQueueMappingManager.rewriteRequestForStaticTopic",
        request=send("Static", queue_id=2),
        topic=entry("Static", 3),
        code=ResponseCode.NOT_LEADER_FOR_QUEUE,
        remark=f"Static-2 does not exit in request process of current broker {BROKER}",
        row={"topic": "Static", "body": b"body"},
        refused_column="queue_id",
    ),
    PutCase(
        name="a broker without a part of a queue does not take its messages",
        java="TopicQueueMappingManager.rewriteRequestForStaticTopic",
        request=send("Static", queue_id=0),
        topic=entry("Static", 3),
        code=ResponseCode.NOT_LEADER_FOR_QUEUE,
        remark=f"Static-0 does not exit in request process of current broker {BROKER}",
        row={"topic": "Static", "body": b"body"},
        refused_column="queue_id",
    ),
    PutCase(
        name="a forwarded request says physical queues",
        java="TopicQueueMappingManager.buildTopicQueueMappingContext",
        request=send("Static", queue_id=1, logical=False),
        topic=entry("Static", 3),
        answer={"queue_id": 1},
        stored={"topic": "Static", "queue_id": 1},
    ),
    PutCase(
        name="without a queue a static topic is sent to the first logical queue that the broker knows",
        java="TopicQueueMappingManager.buildTopicQueueMappingContext with selectOneWhenMiss",
        request=send("StaticAny", queue_id=-1),
        topic=entry("StaticAny", 2),
        answer={"queue_id": 5, "queue_offset": 100},
        stored={"topic": "StaticAny", "queue_id": 1},
    ),
    PutCase(
        name="a batch to a static topic is answered in logical offsets",
        java=f"{BATCH}, {REWRITE}",
        request=send("StaticBatch", encode_batch(TWO), 6, is_batch=True),
        topic=entry("StaticBatch"),
        answer={"queue_id": 6, "queue_offset": 100},
        stored={"topic": "StaticBatch", "queue_id": 3, "body": b"one"},
    ),
]

CASES = [
    *ORDINARY,
    *QUEUES,
    *NAMES,
    *CREATED,
    *SIZES,
    *DELAYED,
    *TRANSACTIONS,
    *RETRIES,
    *PERMISSIONS,
    *BATCHES,
    *STATICS,
]
