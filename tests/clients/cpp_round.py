"""All that an application does, by Apache's C++ client: its lines are those that tests/support/client_programs.py describes.

    python -m tests.clients.cpp_round LIBRARY OUT.jsonl ns=ADDRESS topic=NAME group=NAME

LIBRARY is a librocketmq.so; its C interface is the one that C programs and most Python, Node and PHP programs of RocketMQ use.
Libraries before 2.0 have no transactions by this interface.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char, c_char_p, c_int, c_longlong, c_void_p
from pathlib import Path
from typing import Any

COMMIT, ROLLBACK, UNKNOWN = 0, 1, 2
SUCCESS, LATER = 0, 1
SEND_OK = 0
FOUND = 0


class SendResult(Structure):
    """CSendResult."""

    _fields_ = (("status", c_int), ("msg_id", c_char * 256), ("offset", c_longlong))


class Queue(Structure):
    """CMessageQueue."""

    _fields_ = (("topic", c_char * 512), ("broker_name", c_char * 256), ("queue_id", c_int))


class ClientException(Structure):
    """CMQException."""

    _fields_ = (
        ("error", c_int),
        ("line", c_int),
        ("file", c_char * 512),
        ("message", c_char * 512),
        ("type", c_char * 512),
    )


class PullResult(Structure):
    """CPullResult."""

    _fields_ = (
        ("status", c_int),
        ("next_begin_offset", c_longlong),
        ("min_offset", c_longlong),
        ("max_offset", c_longlong),
        ("messages", POINTER(c_void_p)),
        ("size", c_int),
        ("data", c_void_p),
    )


CONSUME = CFUNCTYPE(c_int, c_void_p, c_void_p)
SELECT = CFUNCTYPE(c_int, c_int, c_void_p, c_void_p)
ON_SUCCESS = CFUNCTYPE(None, SendResult)
ON_EXCEPTION = CFUNCTYPE(None, ClientException)
TRANSACTION = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)
_TEXTS = ("GetMessageBody", "GetMessageTags", "GetMessageId", "GetLatestErrorMessage", "GetOriginMessageBody")
_POINTERS = ("CreateMessage", "CreateBatchMessage", "CreateProducer", "CreatePullConsumer", "CreatePushConsumer")


class Round:
    """One library's round, written down line by line."""

    def __init__(self, library: str, out: Path, given: dict[str, str]) -> None:
        self.lib = ctypes.CDLL(library)
        self.out = out.open("w", encoding="utf-8")
        self.writing = threading.Lock()
        self.name_server, self.topic, self.group = (given[name].encode() for name in ("ns", "topic", "group"))
        keys = given.get("accessKey"), given.get("secretKey")
        self.credentials = [key.encode() for key in keys if key is not None]
        self.has_transactions = hasattr(self.lib, "CreateTransactionProducer")
        for name in (*_TEXTS, *_POINTERS, "CreateTransactionProducer"):
            if hasattr(self.lib, name):
                getattr(self.lib, name).restype = c_char_p if name in _TEXTS else c_void_p
        self.lib.GetMessageQueueOffset.restype = c_longlong
        self.lib.Pull.restype = PullResult
        self.failed: set[str] = set()
        self.seen: Counter[str] = Counter()
        self.kept: list[Any] = []  # callbacks live as long as the library may call them

    def write(self, **line: Any) -> None:
        """One line."""
        with self.writing:
            self.out.write(json.dumps(line) + "\n")
            self.out.flush()

    def call(self, name: str, *arguments: Any) -> None:
        """A function that answers 0. Raises RuntimeError with the library's words."""
        status = getattr(self.lib, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: {status}, {self.lib.GetLatestErrorMessage()!r}")

    def message(self, body: bytes, tags: bytes | None = None, topic: bytes | None = None) -> c_void_p:
        """A new one."""
        made = c_void_p(self.lib.CreateMessage(topic or self.topic))
        self.call("SetMessageBody", made, body)
        if tags is not None:
            self.call("SetMessageTags", made, tags)
        return made

    def sent(self, how: str, body: bytes, result: SendResult | None = None, tags: bytes | None = None) -> None:
        """A message was sent."""
        line: dict[str, Any] = {"how": how, "name": body.split(b":")[0].decode(), "bytes": len(body)}
        if result is not None:
            status = "SEND_OK" if result.status == SEND_OK else str(result.status)
            line |= {"status": status, "queueOffset": result.offset, "msgId": result.msg_id.decode()}
            line |= {"tags": tags.decode() if tags else None}
        self.write(type="sent", **line)

    def got(self, by: str, message: c_void_p) -> str:
        """A message was handed to a consumer; its name."""
        lib = self.lib
        body = lib.GetMessageBody(message)
        name: str = body.split(b":")[0].decode()
        self.write(
            type="got", by=by, name=name, bytes=len(body), tags=(lib.GetMessageTags(message) or b"").decode(),
            queueId=lib.GetMessageQueueId(message), queueOffset=lib.GetMessageQueueOffset(message),
            times=lib.GetMessageReconsumeTimes(message), msgId=lib.GetMessageId(message).decode(),
        )  # fmt: skip
        self.seen[by] += 1
        return name

    def started(self, kind: str, name: bytes, made: c_void_p | None = None) -> c_void_p:
        """A producer or a pull consumer."""
        made = made or c_void_p(getattr(self.lib, f"Create{kind}")(self.group + b"-" + name))
        self.call(f"Set{kind}NameServerAddress", made, self.name_server)
        self.sign(kind, made)
        self.call(f"Start{kind}", made)
        return made

    def sign(self, kind: str, made: c_void_p) -> None:
        """With the keys that were given."""
        if self.credentials:
            self.call(f"Set{kind}SessionCredentials", made, *self.credentials, b"ALIYUN")

    def send(self) -> c_void_p:
        """By every function that sends; the producer."""
        producer = self.started("Producer", b"producer")
        for number in range(12):
            body, tags, result = b"sync-%d" % number, (b"TagA", b"TagB", b"TagC")[number % 3], SendResult()
            message = self.message(body, tags)
            self.call("SetMessageKeys", message, b"key%d" % number)
            self.call("SendMessageSync", producer, message, byref(result))
            self.sent("sync", body, result, tags)
        answered = threading.Semaphore(0)
        for number in range(6):
            self._send_async(producer, b"async-%d" % number, answered)
        for _ in range(6):
            answered.acquire(timeout=20)
        for number in range(3):
            body = b"oneway-%d" % number
            self.call("SendMessageOneway", producer, self.message(body))
            self.sent("oneway", body)
        batch, result = c_void_p(self.lib.CreateBatchMessage()), SendResult()
        for number in range(4):
            self.call("AddMessage", batch, self.message(b"batch-%d" % number))
            self.sent("batch", b"batch-%d" % number)
        self.call("SendBatchMessage", producer, batch, byref(result))
        self.write(
            type="fact", name="batch", status="SEND_OK" if result.status == 0 else "?", queueOffset=result.offset
        )
        second = self.keep(SELECT(lambda count, message, argument: 1))
        for number in range(6):
            body, result = b"ordered-%d" % number, SendResult()
            self.call("SendMessageOrderly", producer, self.message(body), second, byref(result), 1, byref(result))
            self.sent("ordered", body, result)
        for how, body in (("large", b"large:" + b"0123456789" * 9_000), ("delayed", b"delayed")):
            message, result = self.message(body), SendResult()
            if how == "delayed":
                self.call("SetDelayTimeLevel", message, 1)
            self.call("SendMessageSync", producer, message, byref(result))
            self.sent(how, body, result)
        return producer

    def _send_async(self, producer: c_void_p, body: bytes, answered: threading.Semaphore) -> None:
        def succeeded(result: SendResult) -> None:
            self.sent("async", body, result)
            answered.release()

        def failed(error: ClientException) -> None:
            self.write(type="failed", how="async", why=error.message.decode())
            answered.release()

        callbacks = self.keep(ON_SUCCESS(succeeded)), self.keep(ON_EXCEPTION(failed))
        self.call("SendMessageAsync", producer, self.message(body), *callbacks)

    def keep(self, callback: Any) -> Any:
        """So that it is not collected."""
        self.kept.append(callback)
        return callback

    def consume(self, by: str, topic: bytes, tags: bytes = b"*", *, is_orderly: bool = False) -> c_void_p:
        """A push consumer, started."""

        def heed(consumer: c_void_p, message: c_void_p) -> int:
            name = self.got(by, c_void_p(message))  # type: ignore[arg-type]
            if by == "all" and name == "sync-5" and name not in self.failed:
                self.failed.add(name)
                return LATER
            return SUCCESS

        consumer = c_void_p(self.lib.CreatePushConsumer(self.group + b"-" + by.encode()))
        self.call("SetPushConsumerNameServerAddress", consumer, self.name_server)
        self.sign("PushConsumer", consumer)
        self.call("SetPushConsumerMessageBatchMaxSize", consumer, 1)
        self.call("Subscribe", consumer, topic, tags)
        register = "RegisterMessageCallbackOrderly" if is_orderly else "RegisterMessageCallback"
        self.call(register, consumer, self.keep(CONSUME(heed)))
        self.call("StartPushConsumer", consumer)
        return consumer

    def transact(self) -> c_void_p:
        """One that is committed, one that is rolled back, one that is asked for."""
        ends = {b"commit": COMMIT, b"rollback": ROLLBACK, b"unknown": UNKNOWN}

        def check(producer: c_void_p, message: c_void_p, data: c_void_p) -> int:
            self.write(type="asked", name=self.lib.GetMessageBody(c_void_p(message)).decode())  # type: ignore[arg-type]
            return COMMIT

        def execute(producer: c_void_p, message: c_void_p, data: c_void_p) -> int:
            return ends[self.lib.GetOriginMessageBody(c_void_p(message))]  # type: ignore[arg-type]

        group, checker = self.group + b"-tx", self.keep(TRANSACTION(check))
        producer = self.started("Producer", b"tx", c_void_p(self.lib.CreateTransactionProducer(group, checker, None)))
        executor = self.keep(TRANSACTION(execute))
        for body in ends:
            result = SendResult()
            message = self.message(body, topic=self.topic + b"Tx")
            self.call("SendMessageTransaction", producer, message, executor, None, byref(result))
            self.sent("transaction", body, result)
        return producer

    def pull(self) -> None:
        """All queues of the topic, to their ends."""
        consumer = self.started("PullConsumer", b"pull")
        queues, count = POINTER(Queue)(), c_int()
        self.call("FetchSubscriptionMessageQueues", consumer, self.topic, byref(queues), byref(count))
        for number in range(count.value):
            offset, most = 0, 1
            while offset < most:
                found = self.lib.Pull(consumer, byref(queues[number]), b"*", c_longlong(offset), 32)
                for rank in range(found.size if found.status == FOUND else 0):
                    self.got("pull", c_void_p(found.messages[rank]))
                offset, most = found.next_begin_offset, found.max_offset
            self.write(type="fact", name="queue", queueId=queues[number].queue_id, max=offset)
        self.call("ShutdownPullConsumer", consumer)

    def run(self) -> None:
        """All of it."""
        producers = [self.send()]
        if self.has_transactions:
            producers.append(self.transact())
        consumers = [
            self.consume("all", self.topic),
            self.consume("tags", self.topic, b"TagA || TagC"),
            self.consume("orderly", self.topic, is_orderly=True),
        ]
        if self.has_transactions:
            consumers.append(self.consume("transactions", self.topic + b"Tx"))
        self.pull()
        # What says that there is a batch is "1" up to 2.1, which no broker takes for true: it is one message.
        wanted = {"all": 31, "tags": 8, "orderly": 30, **({"transactions": 2} if self.has_transactions else {})}
        deadline = time.monotonic() + 60  # routes of retry topics are asked for each 30 s
        while any(self.seen[by] < count for by, count in wanted.items()) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(6)  # offsets are sent each 5 s
        for one in producers:
            self.call("ShutdownProducer", one)
        self.write(type="done")  # the ends of consumers are not always survived
        for consumer in consumers:
            self.call("ShutdownPushConsumer", consumer)


def main(words: list[str]) -> None:
    """As the module says."""
    library, out, *settings = words
    given = dict(word.split("=", 1) for word in settings)
    try:
        Round(library, Path(out), given).run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # threads of the library may still run


if __name__ == "__main__":
    main(sys.argv[1:])
