"""What is too large, and messages that are delayed."""

from __future__ import annotations

from storage.rules.response_codes import ResponseCode
from tests.broker.put_cases.case import (
    AHEAD_MS,
    DAY_MS,
    ILLEGAL,
    KEY,
    PAST_MS,
    TIMER_ILLEGAL,
    PutCase,
    entry,
    send,
    size_of_broker_properties,
)

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
        waits_by_sink=True,
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
