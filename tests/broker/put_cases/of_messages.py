"""Ordinary messages, queues, topic names, topics that are made."""

from __future__ import annotations

from storage.rules.response_codes import ResponseCode
from storage.tables.topics import TopicConfig
from tests.broker.put_cases.case import (
    CLUSTER,
    CONTEXT,
    CREATE,
    FAQ,
    ILLEGAL,
    KEY,
    MSG_CHECK,
    PAST_MS,
    SEND_MESSAGE,
    VALIDATE,
    PutCase,
    entry,
    send,
)

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
