"""The answers of a broker, by number. Java: ResponseCode, RemotingSysResponseCode, FAQUrl."""

from __future__ import annotations

from enum import IntEnum

REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
"""The remark of a request that is turned away unread. Java: NettyRemotingAbstract.processRequestCommand."""
_FAQ = "https://rocketmq.apache.org/docs/bestPractice/06FAQ"


class ResponseCode(IntEnum):
    """What a response begins with. Those that a put path or a pull of a static topic can give."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604


class RequestRefusedError(Exception):
    """A request that is answered without a put. The code is all that a client acts on, the remark is for people.

    `reason` says the same to who writes rows: which rule, by which setting or entry. Without one it is the remark.
    """

    def __init__(self, code: ResponseCode, remark: str | None, reason: str | None = None) -> None:
        super().__init__(code, remark, reason)
        self.code = code
        self.remark = remark
        self.reason = reason if reason is not None else remark or code.name

    def __str__(self) -> str:
        return self.code.name if self.remark is None else f"{self.code.name}: {self.remark}"


def with_advice(remark: str) -> str:
    """The remark and where to read on. Java: FAQUrl.suggestTodo."""
    return f"{remark}\nSee {_FAQ} for further details."
