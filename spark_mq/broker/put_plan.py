"""From a request to the messages that are stored, and from the put's result to the client's answer. Pure, except the last part.

    sent to a retry topic ─retry_or_dead_letter─▶ there, or to the group's dead letters
    send ─▶ UNIQ_KEY ─▶ CLUSTER ─▶ half message ─┐
    sent back, committed ────────────────────────┴▶ guards ─▶ delay ─▶ sizes ─▶ PutPlan ─▶ put ─▶ PutMessageResult ─▶ code and remark

FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE are codes of their own and still mean that the message is stored: their
answers say where.

Departures: the following are MESSAGE_ILLEGAL. Java either gives the producer no answer or writes a record that no reader can decode.
- an empty batch, or a batch whose lengths do not add up
- a batched message whose properties grow over 32,767 bytes
- a half message with a delay (`half_messages.py`)
- a batch with a deliver time in which a message has no body (`storage/rules/delays.py`)
Java: SendMessageProcessor.sendMessage and sendBatchMessage up to the put, DefaultMessageStore.asyncPutMessage,
CommitLog.asyncPutMessages; SendMessageProcessor.handleRetryAndDLQ, handlePutMessageResult.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from spark_mq.broker.requests import Request
from spark_mq.remoting.codes import ProtocolVersion
from spark_mq.remoting.messages import RecallHandle, SendMessageRequest, decode_batch, with_batch_properties
from storage.errors import LogFileNotMadeError, MessageIllegalError, PutRefusedError, StoreNotWritableError
from storage.files.local_file_system import disk_used_percent
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.properties import CRC_NAME, CRC_SIZE, decode_properties
from storage.format.record import MULTI_TAGS, TRANSACTION_MASK, V6_HOST_SIZE
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import RETRY_PREFIX
from storage.pending import PutStatus
from storage.rules.delays import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELETED_KEY,
    TIMER_DELIVER_MS,
    TIMER_TOPIC,
    Congestion,
    delay_level,
    route_delayed,
)
from storage.rules.half_messages import half_message, takes_transactions
from storage.rules.inner_messages import (
    EncodedMessage,
    InnerMessage,
    Limits,
    Numbers,
    Sizes,
    encode_properties,
    refuse_excess,
    refuse_first_excess,
)
from storage.rules.priorities import PRIORITY
from storage.rules.put_guards import LITE_TOPIC, BrokerState, check_before_put, check_inner_batch
from storage.rules.response_codes import RequestRefusedError, ResponseCode, with_advice
from storage.rules.retries import (
    SENT_DEAD_LETTER_LEVEL,
    dead_letter_topic_config,
    find_group,
    group_of_retry_topic,
    is_sent_too_often,
    most_retries,
)
from storage.service.put_group import PutMessageResult
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.settings.nouns import TimerConfig
from storage.tables.topics import TopicConfig

CURRENT_VERSION = ProtocolVersion.V5_3_3
"""Of a client of 5.3.3. Java: MQVersion.Version, an ordinal."""
SAYS_MAXIMUM_VERSION = ProtocolVersion.V3_4_9
"""From 3.4.9 on a client sends its number of retries; older clients' numbers are ignored."""
_LOG = logging.getLogger(__name__)
DECIDED_BY_VALUE = frozenset(
    {
        *(DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_DELETED_KEY),
        *("TRAN_MSG", PRIORITY, LITE_TOPIC, "INNER_NUM", "POP_CK", "MSG_REGION", "TRACE_ON", "CLUSTER"),
    }
)
"""Properties on whose values it depends what a message is stored as, and those that a broker replaces. A message with others is stored
as any that has properties of the same names, but for one with an empty UNIQ_KEY, or without keys in a compacted topic.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRules:
    """The settings and facts of a broker at one moment that decide about a message."""

    config: StoreConfig
    host: bytes
    """The store's address: 4 or 16 bytes of address, 4 of port."""
    now_ms: int
    cluster_name: str = "DefaultCluster"
    topics: Mapping[str, TopicConfig] = field(default_factory=dict, hash=False)
    state: BrokerState = BrokerState()  # noqa: RUF009 (a frozen value)
    is_congested: Congestion | None = None
    """Whether the timer takes no more for a time; None = it does."""
    is_heard: bool = True
    """Whether the client gets a refusal; else the put waits while the store is busy."""

    @property
    def address(self) -> str:
        """The broker's, without its port."""
        return _address(self.host)


@lru_cache(16)
def _address(host: bytes) -> str:
    return str(ipaddress.ip_address(host[:-4]))


class PutPlan(NamedTuple):
    """`message` is the one message, or what all of a batch have in common."""

    message: InnerMessage
    messages: tuple[EncodedMessage, ...]
    size_bytes: int
    """Size of the records."""
    is_heard: bool = True
    """As its rules say."""


class Routed(NamedTuple):
    """The message, and the entries to be saved before it is put."""

    message: InnerMessage
    topics: tuple[TopicConfig, ...] = ()
    groups: tuple[SubscriptionGroupConfig, ...] = ()
    is_dead_letter: bool = False


def retry_or_dead_letter(
    message: InnerMessage,
    groups: Mapping[str, SubscriptionGroupConfig],
    topics: Mapping[str, TopicConfig],
    *,
    config: StoreConfig,
    max_reconsume_times: int | None = None,
    client_version: int = CURRENT_VERSION,
    group_holds_lock: bool = False,
) -> Routed:
    """The message as it goes on: itself where its topic is no group's retry topic, or where it may be tried again.

    `max_reconsume_times` is the request's, `group_holds_lock` whether an orderly consumer of the group has a queue locked now
    (Java: RebalanceLockManager): then nothing is tried again. A dead letter's DELAY is −1, so it is not delayed.
    The topic's filter type goes into `sys_flag`, as that of every message. Raises RequestRefusedError.
    """
    if not message.topic.startswith(RETRY_PREFIX):
        return Routed(_with_filter_type(message, topics.get(message.topic)))
    name = group_of_retry_topic(message.topic)
    group = known_group(name, groups, config)
    new_groups = () if name in groups else (group,)
    maximum = allowed_retries(group, max_reconsume_times, client_version)
    if not group_holds_lock and not is_sent_too_often(message.reconsume_times, maximum):
        return Routed(_with_filter_type(message, topics.get(message.topic)), groups=new_groups)
    target = dead_letter_topic_config(name, topics)
    dead_letter = replace(
        message,
        topic=target.topic,
        queue_id=0,
        properties={**message.properties, "DELAY": str(SENT_DEAD_LETTER_LEVEL)},
    )
    return Routed(_with_filter_type(dead_letter, target), changed(target, topics), new_groups, is_dead_letter=True)


def known_group(
    name: str, groups: Mapping[str, SubscriptionGroupConfig], config: StoreConfig
) -> SubscriptionGroupConfig:
    """The group's entry, a new one where the broker makes it. Raises RequestRefusedError where there is none to be."""
    group = find_group(
        name,
        groups,
        auto_create=config.send.auto_create_subscription_group,
        create_system_groups=config.send.enable_create_sys_group,
        longest=config.release.longest_group,
    )
    if group is None:
        remark = with_advice(f"subscription group not exist, {name} ")
        raise RequestRefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    return group


def allowed_retries(group: SubscriptionGroupConfig, wanted: int | None, client_version: int) -> int:
    """The group's limit of tries: the request's, if its client supports that."""
    return most_retries(group, None if client_version < SAYS_MAXIMUM_VERSION else wanted)


def changed(wanted: TopicConfig, topics: Mapping[str, TopicConfig]) -> tuple[TopicConfig, ...]:
    """The entry, where the table does not hold it as it is wanted."""
    return () if topics.get(wanted.topic) == wanted else (wanted,)


def _with_filter_type(message: InnerMessage, topic: TopicConfig | None) -> InnerMessage:
    if topic is None or topic.topic_filter_type != "MULTI_TAG":
        return message
    return replace(message, sys_flag=message.sys_flag | MULTI_TAGS)


def requested_message(request: Request, queue_id: int, properties: Mapping[str, str]) -> InnerMessage:
    """The message of a send request, with the queue that the broker has chosen and the properties that it has completed."""
    header: SendMessageRequest = request.header
    return InnerMessage(
        topic=header.topic,
        queue_id=queue_id,
        body=request.body,
        properties=properties,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_time_ms=header.born_time_ms,
        born_host=request.connection.host,
        reconsume_times=header.reconsume_times or 0,
    )


def plan_message(
    message: InnerMessage, topic: TopicConfig, rules: PutRules, new_unique_key: Callable[[], str]
) -> PutPlan:
    """Plan one message, after `retry_or_dead_letter`. `topic` is the entry of the requested topic.

    Raises RequestRefusedError for what is answered by its own code, PutRefusedError for what the put path refuses.
    """
    said = {} if message.properties.get("UNIQ_KEY") else {"UNIQ_KEY": new_unique_key()}
    if topic.is_compacted and not message.properties.get("KEYS", "").strip():
        raise RequestRefusedError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
    message = _with(message, **said, CLUSTER=rules.cluster_name)
    if _is_half(message):
        if not takes_transactions(rules.config.send):
            reason = f"the broker[{rules.address}] sending transaction message is forbidden"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, reason)
        message = half_message(message, parks_delayed=rules.config.release.parks_delayed_halves)
    return plan_inner(message, rules)


def plan_inner(message: InnerMessage, rules: PutRules, *, may_wait: bool = True) -> PutPlan:
    """One message that is made already, past the store's own rules.

    `may_wait` = False takes no notice of a delay. Raises PutRefusedError. Java: DefaultMessageStore.asyncPutMessage.
    """
    message = _guarded(message, rules, may_wait=may_wait)
    if rules.config.commit_log.appends_crc:
        message = replace(message, properties={n: v for n, v in message.properties.items() if n != CRC_NAME})
    encoded = EncodedMessage.of(message)
    size = _checked_size(message, message.body, encoded.raw_properties, rules)
    return PutPlan(message, (encoded,), size, rules.is_heard)


def plan_batch(message: InnerMessage, topic: TopicConfig, rules: PutRules) -> PutPlan:
    """A batch, whose properties all its messages get behind their own up to 5.3. Raises RequestRefusedError, PutRefusedError.

    Departure: as a broker of 5.4, too, in the timer's topic, where a record without its real topic would stop a broker's timer.
    A deliver time of the batch is one of all its messages; their own levels and times say nothing.
    """
    if message.topic.startswith(RETRY_PREFIX):
        reason = f"batch request does not support retry group {message.topic}"
        raise RequestRefusedError(ResponseCode.MESSAGE_ILLEGAL, reason)
    if topic.topic_filter_type == "MULTI_TAG":
        message = replace(message, sys_flag=message.sys_flag | MULTI_TAGS)
    message = _guarded(_with(message, CLUSTER=rules.cluster_name), rules)
    if message.sys_flag & TRANSACTION_MASK:
        raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, "a batch cannot be a transaction's")
    if message.topic == SCHEDULE_TOPIC:
        raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, "a batch has no delay level")
    if len(message.body) > rules.config.commit_log.max_message_size:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "message body size exceeded")
    try:
        batch = decode_batch(message.body)
    except ValueError as error:
        raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, str(error)) from None
    if not batch:
        raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, "the batch is empty")
    if message.topic == TIMER_TOPIC and not all(one.body for one in batch):
        raise PutRefusedError(
            PutStatus.MESSAGE_ILLEGAL, "a message of the batch has no body, and would stop a broker's timer"
        )
    shared = encode_properties(message.properties)
    has_shared = rules.config.release.batch_appends_request_properties or message.topic == TIMER_TOPIC
    strings = [with_batch_properties(one.raw_properties, shared) if has_shared else one.raw_properties for one in batch]
    size = _checked_sizes(message, [one.body for one in batch], strings, rules)
    rows = ((one.body, one.flag, string, decode_properties(string)) for one, string in zip(batch, strings, strict=True))
    return PutPlan(message, EncodedMessage.batch(message, rows), size, rules.is_heard)


def _guarded(message: InnerMessage, rules: PutRules, *, may_wait: bool = True) -> InnerMessage:
    """The message past the store's hooks, parked if it has a delay. Java: BrokerController.registerMessageStoreHook."""
    check_before_put(message.topic, message.body, rules.state)
    check_inner_batch(message.properties, message.sys_flag, rules.topics.get(message.topic))
    if not may_wait:
        return message
    return route_delayed(
        message,
        delays_ms=rules.config.delay.delays_ms,
        timer=rules.config.timer,
        now_ms=rules.now_ms,
        is_congested=rules.is_congested,
    )


def _checked_size(message: InnerMessage, body: bytes, properties: bytes, rules: PutRules) -> int:
    """Bytes of the record."""
    parts, is_timed = _parts(message, len(body), len(properties), rules), message.topic == TIMER_TOPIC
    sizes = Sizes.of(*parts, is_timed)
    refuse_excess(sizes, Limits(rules.config.commit_log.max_message_size), is_timed=is_timed)
    return int((Sizes.of(*parts) if is_timed else sizes).record)


def _checked_sizes(message: InnerMessage, bodies: Sequence[bytes], properties: Sequence[bytes], rules: PutRules) -> int:
    """Bytes of all records of a batch."""
    body_sizes, property_sizes = (np.fromiter(map(len, texts), np.int64, len(texts)) for texts in (bodies, properties))
    parts, is_timed = _parts(message, body_sizes, property_sizes, rules), message.topic == TIMER_TOPIC
    limits = Limits(rules.config.commit_log.max_message_size)
    refuse_first_excess(Sizes.of(*parts, is_timed), limits, is_timed=is_timed)
    return int(np.sum(Sizes.of(*parts).record))


def _parts(
    message: InnerMessage, body_size: Numbers, properties_size: Numbers, rules: PutRules
) -> tuple[int, Numbers, Numbers, int]:
    """Bytes of topic, properties and body, and how many hosts are IPv6."""
    v6_hosts = (len(message.born_host or rules.host) == V6_HOST_SIZE) + (len(rules.host) == V6_HOST_SIZE)
    properties_size = properties_size + (CRC_SIZE if rules.config.commit_log.appends_crc else 0)
    return len(message.topic.encode()), properties_size, body_size, v6_hosts


def _with(message: InnerMessage, **properties: str) -> InnerMessage:
    return replace(message, properties={**message.properties, **properties})


def is_true(text: str | None) -> bool:
    """Java: Boolean.parseBoolean."""
    return text is not None and text.lower() == "true"


def _is_half(message: InnerMessage) -> bool:
    """Whether it opens a transaction; a retry of a client before 4.6.1, which leaves TRAN_MSG in, does not."""
    if not is_true(message.properties.get("TRAN_MSG")):
        return False
    return not (message.reconsume_times > 0 and delay_level(message) > 0)


# What a client is answered of a put.


class DiskUse(NamedTuple):
    """Used parts of the disks of log, queues and index, 0 to 1; −1 = unknown. Java: SendMessageProcessor.diskUtil."""

    log_used: float = -1.0
    queues_used: float = -1.0
    index_used: float = -1.0

    def __str__(self) -> str:
        return f"CL: {self.log_used:5.2f} CQ: {self.queues_used:5.2f} INDEX: {self.index_used:5.2f}"


def disk_use_of(service: PutService) -> DiskUse:
    """Usage of the disks under an open store."""
    logs = [disk_used_percent(path) for path in service.settings.log_directories]
    queues, index = (disk_used_percent(f"{service.root}/{name}") for name in ("consumequeue", "index"))
    return DiskUse(*(used / 100 if used >= 0 else used for used in (min(logs), queues, index)))


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
    return RecallHandle(topic, str(broker_name), int(out_ms) + 1, str(properties.get("UNIQ_KEY"))).text()


# Questions to the store, besides puts.


def put_result(put: Callable[[], PutMessageResult], topic: str) -> PutMessageResult:
    """A put's result as a status, also if the put raises."""
    try:
        return put()
    except MessageIllegalError as error:
        is_of_properties = error.what == "properties"
        status = PutStatus.PROPERTIES_SIZE_EXCEEDED if is_of_properties else PutStatus.MESSAGE_ILLEGAL
        return PutMessageResult(status, reason=str(error))
    except LogFileNotMadeError as error:
        return PutMessageResult(PutStatus.CREATE_MAPPED_FILE_FAILED, reason=str(error))
    except StoreNotWritableError as error:
        return PutMessageResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=str(error))
    except OSError as error:  # a part may stand in the log; the client must not take that for stored
        _LOG.exception("a put to %s failed", topic)
        return PutMessageResult(PutStatus.UNKNOWN_ERROR, reason=str(error))


def state_now(service: PutService, state: BrokerState, *, is_heard: bool = True) -> BrokerState:
    """The store's state at this moment for a handler, with the broker's `state`.

    For a request whose refusal no client hears the store is never busy: its put waits.
    """
    is_shut_down = state.is_shut_down or service.is_closed
    is_writable = state.is_writable and service.failure is None
    is_busy, is_deficient = (
        is_heard and (state.is_os_page_cache_busy or service.is_os_page_cache_busy),
        is_heard and (state.is_transient_store_pool_deficient or service.is_pool_deficient),
    )
    found = is_shut_down, is_writable, is_busy, is_deficient
    said = state.is_shut_down, state.is_writable, state.is_os_page_cache_busy, state.is_transient_store_pool_deficient
    if found == said:
        return state
    return replace(
        state,
        is_shut_down=is_shut_down,
        is_writable=is_writable,
        is_os_page_cache_busy=is_busy,
        is_transient_store_pool_deficient=is_deficient,
    )


@contextmanager
def _saving(service: PutService) -> Iterator[None]:
    """Entries are saved beside other threads' work.

    A store that takes no entry takes no message either: the request is answered as its put would be.
    """
    try:
        with service.off_work():
            yield
    except StoreNotWritableError as error:
        raise PutRefusedError(PutStatus.SERVICE_NOT_AVAILABLE, str(error)) from error


def make_topic(service: PutService, topic: TopicConfig) -> TopicConfig:
    """The topic's entry: this one, saved, where there is none; else the one that is there.

    Raises PutRefusedError of a store that cannot be written, OSError.
    """
    with _saving(service):
        return service.make_topic(topic)


def save_entries(
    service: PutService,
    topics: Sequence[TopicConfig],
    groups: Sequence[SubscriptionGroupConfig],
    known: Mapping[str, TopicConfig],
) -> None:
    """Save the entries that a request makes or changes, where `known` are the topics that it was judged by.

    What another thread has made meanwhile stays. Raises PutRefusedError, OSError.
    """
    for topic in topics:
        if topic.topic in known:
            with _saving(service):
                service.save_topic(topic)
        else:
            make_topic(service, topic)
    for group in groups:
        with service.off_work():
            service.make_group(group)
