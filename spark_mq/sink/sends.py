"""A batch of rows as a send request, and the decision by its answer, or by a missing answer. Pure.

A batch of one row is an ordinary send (310) with the row's own properties and flag; any other is a batch (320). For a retry topic the
row's numbers of tries go into the header. Departure: the envelope of a batch has no UNIQ_KEY. Java's envelope has one; a broker writes
it after each message's own, so that consumers see one id for all of them.

                                   atLeastOnce     exactlyOnce
    0, 10, 11, 12                  stored          stored
    2, 14, 215, 1500               again           again: the broker refuses before it writes
    13, 16, 17, 26, 29, 3          as Java's       refused: nothing is written, and the next try would be refused too
                                   producer says
    other codes                                    doubt
    no answer, no connection       again           doubt
    an answer that is no frame     refused         doubt: what is there does not speak the protocol, and the next answer is no better

"Again" means the same queue, so that rows keep their order. After "doubt" nothing is sent until it is known what the broker holds.
Calls about one row (36, 37) are for atLeastOnce alone, and only 0 means that they are done.

A broker with SYNC_FLUSH or SYNC_MASTER answers 10, 11 or 12 when the message is in its log, and the disk or a slave did not confirm it
in time. `acks=all` makes an error of that (`refuse_unsafe`).

Java: DefaultMQProducerImpl.sendKernelImpl, SendMessageRequestHeaderV2, MessageBatch; SendMessageProcessor.handlePutMessageResult,
NettyRemotingAbstract.processRequestCommand, BrokerFastFailure, AbstractSendMessageProcessor.consumerSendMsgBack,
EndTransactionProcessor.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from spark_mq.client.calls import make_call
from spark_mq.client.errors import RETRIABLE_CODES, ClientError
from spark_mq.client.send_results import SendStatus, goes_again, stored_status
from spark_mq.client.settings import RETRIED_CODES
from spark_mq.conditions import NotConfirmedError
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.messages import SendMessageRequest, decode_batch
from storage.names import RETRY_PREFIX
from storage.rules.response_codes import ResponseCode
from storage.rules.retries import MAX_RECONSUME_TIMES, RECONSUME_TIMES
from storage.rules.topics import AUTO_CREATE_TOPIC

DEFAULT_TOPIC_QUEUE_COUNT = 4
"""Queues of a topic that a broker makes when it is sent to. Java: DefaultMQProducer.defaultTopicQueueNums."""

_WAIT = "WAIT\x01true\x02"


def send_request(
    queue: MessageQueue, body: bytes | memoryview, row_count: int, sys_flag: int, *, group: str, born_time_ms: int
) -> RemotingCommand:
    """The request that has these items stored in that queue."""
    is_batch = row_count > 1
    properties, flag, content = _WAIT, 0, body
    tries: dict[str, str] = {}
    if not is_batch:
        (row,) = decode_batch(body)
        properties, flag, content = row.raw_properties.decode("utf-8") + _WAIT, row.flag, row.body
        if queue.topic.startswith(RETRY_PREFIX):
            properties, tries = _taken_out(properties, (RECONSUME_TIMES, MAX_RECONSUME_TIMES))
    header = SendMessageRequest(
        producer_group=group,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_count=DEFAULT_TOPIC_QUEUE_COUNT,
        queue_id=queue.queue_id,
        sys_flag=sys_flag,
        born_time_ms=born_time_ms,
        flag=flag,
        properties=properties,
        reconsume_times=int(tries.get(RECONSUME_TIMES, "0")),
        unit_mode=False,
        max_reconsume_times=int(tries[MAX_RECONSUME_TIMES]) if MAX_RECONSUME_TIMES in tries else None,
        is_batch=is_batch,
        broker_name=queue.broker_name,
    )
    return make_call(RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2, header, content)


def _taken_out(properties: str, names: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """The property string without those names, and what they say."""
    kept, said = [], {}
    for entry in properties.split("\x02"):
        name, _, value = entry.partition("\x01")
        if name in names:
            said[name] = value
        else:
            kept.append(entry)
    return "\x02".join(kept), said


REFUSING_CODES = frozenset(
    (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
    )
)
"""Refusals that come before anything is written and do not pass by themselves."""

_NOT_THERE = (
    "look message by offset failed",
    "Find prepared transaction message failed",
    "The producer group wrong",
    "The transaction state table offset wrong",
    "The commit log offset wrong",
)
"""Prefix of SYSTEM_ERROR remarks if the broker's log does not hold the message of a call."""


class Verdict(Enum):
    STORED = "stored"
    AGAIN = "again"
    REFUSED = "refused"
    DOUBT = "doubt"


def verdict_of(code: int, *, is_exact: bool) -> Verdict:
    """The meaning of an answer's code for its batch."""
    if stored_status(code) is not None:
        return Verdict.STORED
    if code in RETRIABLE_CODES:
        return Verdict.AGAIN
    if is_exact:
        return Verdict.REFUSED if code in REFUSING_CODES else Verdict.DOUBT
    return Verdict.AGAIN if code in RETRIED_CODES else Verdict.REFUSED


def verdict_of_call(code: int, remark: str | None) -> Verdict:
    """What the answer to a message's being sent back (36), or to a transaction's end (37), says of it. A slave answers 11 to an end."""
    if code == ResponseCode.SUCCESS:
        return Verdict.STORED
    if is_not_there(code, remark):
        return Verdict.REFUSED
    passes = code in RETRIABLE_CODES or code in RETRIED_CODES or code == ResponseCode.SLAVE_NOT_AVAILABLE
    return Verdict.AGAIN if passes else Verdict.REFUSED


def is_not_there(code: int, remark: str | None) -> bool:
    """Whether the broker says that its log does not hold the message that a call is about."""
    return code == ResponseCode.SYSTEM_ERROR and (remark or "").startswith(_NOT_THERE)


def verdict_of_failure(error: ClientError, *, is_exact: bool) -> Verdict:
    """The meaning of an error without an answer for all batches in flight."""
    if is_exact:
        return Verdict.DOUBT
    return Verdict.AGAIN if goes_again(error, is_waited_for=True) else Verdict.REFUSED


def refuse_unsafe(rows_by_code: Mapping[int, int], broker_name: str) -> None:
    """Raises NotConfirmedError where rows were stored with another status than SEND_OK."""
    for code, count in rows_by_code.items():
        status = stored_status(code)
        if code != ResponseCode.SUCCESS and status is not None:
            raise NotConfirmedError(broker_name, count, status.name, _MEANING[status])


def statuses_text(rows_by_code: Mapping[int, int]) -> str:
    """Statuses with their rows, for people."""
    return ", ".join(f"{SendStatus(code).name} {count}" for code, count in sorted(rows_by_code.items())) or "no rows"


_MEANING = {
    SendStatus.FLUSH_DISK_TIMEOUT: "its disk did not confirm them in time",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "its slaves did not confirm them in time",
    SendStatus.SLAVE_NOT_AVAILABLE: "no slave is near enough to confirm them",
}
