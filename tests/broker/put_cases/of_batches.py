"""Permissions, batches of a client, static topics."""

from __future__ import annotations

from spark_mq.remoting.messages import BatchedMessage, encode_batch
from storage.rules.response_codes import ResponseCode
from storage.tables.topics import MappingItem, TopicQueueMapping
from tests.broker.put_cases.case import (
    BROKER,
    CLUSTER,
    CREATE,
    FAQ,
    ILLEGAL,
    KEY,
    MSG_CHECK,
    PAST_MS,
    PutCase,
    entry,
    send,
)

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
