"""What a client is told of a put. Java: SendMessageProcessor.handlePutMessageResult, AppendMessageResult, SendMessageResponseHeader.

The one place that turns a put's status into a response code. FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE are
codes of their own and still mean that the message is stored: their answers say where.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from storage.names import RETRY_PREFIX
from storage.put_status import PutStatus
from storage.rules.response_codes import ResponseCode
from storage.service.put_group import PutReceipt
from storage.settings.nouns import TimerConfig


class Appended(NamedTuple):
    """Where a message, or a batch, stands. Java: AppendMessageResult."""

    msg_id: str
    """The offset message id; of a batch all of them, with commas."""
    queue_offset: int
    """Of a batch the first one's."""
    message_count: int
    size_bytes: int
    store_time_ms: int

    @classmethod
    def of(cls, receipt: PutReceipt, size_bytes: int) -> Appended:
        """From what the store returned for at least one message."""
        places = receipt.rows
        if isinstance(places, list):
            first, ids = places[0], ",".join([place.msg_id for place in places])
            return cls(ids, first.queue_offset, len(places), size_bytes, first.store_time_ms)
        return cls(
            ",".join(places.column("msg_id").to_pylist()),
            places.column("queue_offset")[0].as_py(),
            len(places),
            size_bytes,
            places.column("store_time_ms")[0].as_py(),
        )


class PutOutcome(NamedTuple):
    """How a put ended. Java: PutMessageResult."""

    status: PutStatus
    appended: Appended | None = None
    """None where nothing was stored."""
    reason: str | None = None
    """Ours, for logs; clients get Java's remark."""


@dataclass(frozen=True, slots=True)
class SendResponse:
    """The answer to a send. Java: RemotingCommand with SendMessageResponseHeader."""

    code: int
    remark: str | None = None
    msg_id: str | None = None
    """None, like the next two, unless the message is stored."""
    queue_id: int | None = None
    queue_offset: int | None = None
    transaction_id: str | None = None
    """The unique key. Java: setTransactionId."""
    recall_handle: str | None = None
    """With which a client may recall a message whose time has not come."""
    ext_fields: Mapping[str, str] = field(default_factory=dict, hash=False)
    """MSG_REGION and TRACE_ON, where the request was looked at at all."""

    @property
    def is_stored(self) -> bool:
        """Whether the message stands in the log, whatever the code says."""
        return self.msg_id is not None


class DiskUse(NamedTuple):
    """Used parts of the disks of log, queues and index, 0 to 1; −1 = unknown. Java: SendMessageProcessor.diskUtil."""

    log_used: float = -1.0
    queues_used: float = -1.0
    index_used: float = -1.0

    def __str__(self) -> str:
        return f"CL: {self.log_used:5.2f} CQ: {self.queues_used:5.2f} INDEX: {self.index_used:5.2f}"


_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
}
"""All others are SYSTEM_ERROR."""


def response_code(status: PutStatus) -> ResponseCode:
    """The code for a put's status."""
    return _CODES.get(status, ResponseCode.SYSTEM_ERROR)


def remark(status: PutStatus, *, max_message_size: int, timer: TimerConfig, disk_use: DiskUse) -> str | None:
    """The remark for a put's status, None where the message is stored."""
    if status.is_stored:
        return None
    slot = timer.timer_congest_num_each_slot
    match status:
        case PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH:
            return "in-sync replicas not enough"
        case PutStatus.CREATE_MAPPED_FILE_FAILED:
            return "create mapped file failed, server is busy or broken."
        case PutStatus.MESSAGE_ILLEGAL | PutStatus.PROPERTIES_SIZE_EXCEEDED:
            return (
                "the message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {max_message_size}B, msg properties length limit 32KB."
            )
        case PutStatus.WHEEL_TIMER_MSG_ILLEGAL:
            return (
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{timer.timer_max_delay_sec * 1000}ms; or if set del msg, the delay time should be bigger than the current time"
            )
        case PutStatus.WHEEL_TIMER_FLOW_CONTROL:
            return (
                f"timer message is under flow control, max num limit is {slot * 2} or the current value is greater than {slot} "
                f"and less than {slot * 2}, trigger random flow control"
            )
        case PutStatus.WHEEL_TIMER_NOT_ENABLE:
            enabled = str(timer.timer_wheel_enable).lower()
            return f"accurate timer message is not enabled, timerWheelEnable is {enabled}"
        case PutStatus.SERVICE_NOT_AVAILABLE:
            return (
                "service not available now. It may be caused by one of the following reasons: the broker's disk is full "
                f"[{disk_use}], messages are put to the slave, message store has been shut down, etc."
            )
        case PutStatus.OS_PAGE_CACHE_BUSY:
            return "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
        case PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED:
            return (
                "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, "
                "lmq consumeQueue num exceed maxLmqConsumeQueueNum config num, default limit 2w."
            )
        case PutStatus.UNKNOWN_ERROR:
            return "UNKNOWN_ERROR"
        case _:
            return "UNKNOWN_ERROR DEFAULT"


def recall_handle(properties: Mapping[str, str], broker_name: str | None) -> str | None:
    """The handle of a message that waits in the timer, None for any other. Java: attachRecallHandle, RecallMessageHandle.HandleV1.

    Its time is one more than TIMER_OUT_MS, which was rounded down. A client may write both properties into an ordinary message; where
    the time is no number there is no handle, while Java fails behind the put and does not answer.
    """
    out_ms, topic = properties.get("TIMER_OUT_MS", ""), properties.get("REAL_TOPIC")
    if not re.fullmatch("-?[0-9]{1,18}", out_ms) or topic is None or topic.startswith(RETRY_PREFIX):
        return None
    text = " ".join(("v1", topic, str(broker_name), str(int(out_ms) + 1), str(properties.get("UNIQ_KEY"))))
    return base64.urlsafe_b64encode(text.encode()).decode()
