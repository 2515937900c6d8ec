"""Halves, and what comes from retry topics."""

from __future__ import annotations

from storage.format.typed_json import SubscriptionGroupConfig
from storage.rules.response_codes import ResponseCode
from tests.broker.put_cases.case import FAQ, ILLEGAL, KEY, SEND_MESSAGE, PutCase, entry, send

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
