"""A conversation with a broker, as it goes over the wire: messages are sent, sent back, and their transactions ended.

They build on each other: a field `@NAME` stands for the place in the log of the message that request NAME has stored, `#NAME` for its
queue offset. The table says nothing of what is right; a real broker does.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_mq.broker.put_plan import CURRENT_VERSION
from spark_mq.remoting.messages import BatchedMessage, encode_batch
from storage.rules.inner_messages import encode_properties

SEND, SEND_BACK, END_TRANSACTION = 10, 36, 37
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
BORN_MS = 1_700_000_000_123


class Request(NamedTuple):
    """One request as it goes over the wire."""

    name: str
    code: int
    fields: dict[str, str | int]
    body: bytes | None = None
    version: int = CURRENT_VERSION

    def to_line(self) -> str:
        """A line for Requests.java."""
        body = None if self.body is None else base64.b64encode(self.body).decode("ascii")
        return json.dumps({**self._asdict(), "body": body}) + "\n"


def send(
    name: str,
    topic: str = "One",
    body: bytes | None = None,
    *,
    queue_id: int = 0,
    version: int = CURRENT_VERSION,
    properties: Mapping[str, str] | None = None,
    raw: str = "",
    **fields: str | int,
) -> Request:
    """A message whose keys are the request's name; `raw` goes behind its properties as it is."""
    given = {"KEYS": name, "UNIQ_KEY": name.encode().hex().upper().zfill(32), **(properties or {})}
    header: dict[str, str | int] = {
        "producerGroup": "Requests",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": queue_id,
        "sysFlag": 0,
        "bornTimestamp": BORN_MS,
        "flag": 7,
        "properties": encode_properties(given).decode() + raw,
        "reconsumeTimes": 0,
        "unitMode": "false",
        "batch": "false",
    }
    return Request(name, SEND, {**header, **fields}, name.encode() if body is None else body, version)


def half(name: str, **more: Any) -> Request:
    properties = {"TRAN_MSG": "true", "PGROUP": "Tellers", **more.pop("properties", {})}
    return send(name, properties=properties, sysFlag=PREPARED, **more)


def batch(name: str, topic: str = "One", **more: Any) -> Request:
    messages = [
        BatchedMessage(f"{name} {n}".encode(), encode_properties({"KEYS": name, "TAGS": f"T{n}", "n": str(n)}), n)
        for n in range(3)
    ]
    return send(name, topic, encode_batch(messages), batch="true", **more)


def send_back(
    name: str, origin: str, group: str = "Failing", *, version: int = CURRENT_VERSION, **fields: str | int
) -> Request:
    """The message of request `origin` comes back."""
    header = {"offset": f"@{origin}", "group": group, "delayLevel": 0, "originTopic": "One", "unitMode": "false"}
    return Request(name, SEND_BACK, {**header, **fields}, None, version)


def end(name: str, of: str, state: int, **fields: str | int) -> Request:
    """The transaction of request `of` ends."""
    header = {
        "topic": "One",
        "producerGroup": "Tellers",
        "tranStateTableOffset": f"#{of}",
        "commitLogOffset": f"@{of}",
        "commitOrRollback": state,
        "fromTransactionCheck": "false",
        "msgId": "",
        "transactionId": "",
    }
    return Request(name, END_TRANSACTION, {**header, **fields})


def requests(soon_ms: int) -> list[Request]:
    """`soon_ms` is a time that is ahead, and within the timer's reach."""
    return [
        # What the rest is about. Java: SendMessageProcessor.sendMessage, HookUtils.handleScheduleMessage
        send("plain", properties={"TAGS": "TagA", "größe": "🚀", "WAIT": "true"}),
        send("any-queue", queue_id=-1, properties={"WAIT": "false"}),
        send("of-a-new-topic", "Made", queue_id=3, sysFlag=2, flag=-5, bornTimestamp=0),
        send("compressed", body=b"x\x9c" + b"\x00" * 30, sysFlag=1 | 0x300),
        send(
            "malformed",
            raw="\x02nothing\x02\x01empty\x02name\x01\x02twice\x011\x02twice\x012\x02a\x01b\x01c\x02last\x01value",
        ),
        send("many-properties", properties={"p": "x" * 32_500}),
        send("level", properties={"DELAY": "2"}),
        send("level-above-the-last", properties={"DELAY": "99", "REAL_TOPIC": "Other", "REAL_QID": "9"}),
        send("deliver-at", properties={"TIMER_DELIVER_MS": str(soon_ms)}),
        batch("batch"),
        batch("batch-of-a-new-topic", "MadeByBatch"),
        # Sent to a retry topic. Java: SendMessageProcessor.handleRetryAndDLQ
        send("retry", "%RETRY%Failing", reconsumeTimes=3),
        send("retry-with-level", "%RETRY%Failing", reconsumeTimes=3, properties={"DELAY": "4"}),
        send("last-retry", "%RETRY%Failing", reconsumeTimes=16),
        send("dead", "%RETRY%Failing", reconsumeTimes=17, properties={"DELAY": "4"}),
        send("dead-by-request", "%RETRY%Failing", reconsumeTimes=3, maxReconsumeTimes=2),
        send("alive-by-request", "%RETRY%Failing", reconsumeTimes=2, maxReconsumeTimes=2),
        send("alive-by-age", "%RETRY%Failing", reconsumeTimes=3, maxReconsumeTimes=2, version=120),
        send("dead-of-a-new-group", "%RETRY%New", reconsumeTimes=20),
        send("last-retry-of-few", "%RETRY%Few", reconsumeTimes=1),
        send("dead-of-few", "%RETRY%Few", reconsumeTimes=2),
        # Sent back. Java: AbstractSendMessageProcessor.consumerSendMsgBack
        send_back("back", "plain"),
        send_back("back-at-level", "plain", delayLevel=5),
        send_back("back-above-the-last-level", "plain", delayLevel=50),
        send_back("back-to-the-dead", "plain", delayLevel=-1),
        send_back("back-at-once-dead", "plain", maxReconsumeTimes=0),
        send_back("back-by-age", "plain", maxReconsumeTimes=0, version=120),
        send_back("back-again", "retry", maxReconsumeTimes=4),
        send_back("back-dead-again", "retry", maxReconsumeTimes=3),
        send_back("back-of-few", "plain", "Few"),
        send_back("back-dead-of-few", "last-retry-of-few", "Few"),
        send_back("back-of-a-dead-letter", "dead"),
        send_back("back-of-a-compressed", "compressed"),
        send_back("back-of-a-malformed", "malformed"),
        send_back("back-of-many-properties", "many-properties"),
        send_back("back-of-a-parked-one", "level"),
        send_back("back-of-a-timer-message", "deliver-at"),
        send_back("back-of-a-batch", "batch"),
        send_back("back-of-a-new-group", "plain", "Unknown"),
        send("retry-of-another-new-group", "%RETRY%Newer", reconsumeTimes=1),
        send_back("back-in-unit-mode", "plain", "Units", unitMode="true"),
        send_back("back-without-retries", "plain", "NoRetries"),
        send_back("back-into-many-queues", "plain", "OneOfNone", delayLevel=-1),
        send_back("back-to-where-nobody-writes", "plain", "Unwritable"),
        send_back("back-of-nothing", "plain", offset=1 << 40),
        send_back("back-of-an-illegal-group", "plain", "a b"),
        send_back("back-of-a-long-group", "plain", "g" * 140),
        send_back("dead-of-a-long-group", "plain", "g" * 140, delayLevel=-1),
        # Transactions. Java: TransactionalMessageBridge.parseHalfMessageInner, EndTransactionProcessor
        half("half"),
        half("half-rolled-back", queue_id=-1),
        half("half-immune", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "5"}),
        send("flag-without-property", sysFlag=PREPARED, properties={"DELAY": "2"}),
        send("property-without-flag", properties={"TRAN_MSG": "true", "PGROUP": "Tellers"}),
        send("rolled-back", sysFlag=ROLLBACK),
        send("committed", sysFlag=COMMIT),
        send_back("back-of-a-half", "half"),
        end("wrong-group", "half", COMMIT, producerGroup="Others"),
        end("wrong-table-offset", "half", COMMIT, tranStateTableOffset=77),
        end("wrong-place", "half", COMMIT, commitLogOffset=1 << 40),
        end("wrong-message", "half", COMMIT, commitLogOffset="@plain"),
        end("too-late", "half-immune", COMMIT),
        end("late-by-check", "half-immune", COMMIT, fromTransactionCheck="true"),
        end("commit", "half", COMMIT),
        end("commit-without-flag", "property-without-flag", COMMIT),
        # Last, because we write at once what a broker writes a while later.
        end("rollback", "half-rolled-back", ROLLBACK),
    ]
