"""What a request is to be stored as: its message, or the messages of its batch, past every rule. Pure.

    send ─▶ UNIQ_KEY ─▶ CLUSTER ─▶ half message ─┐
    sent back, committed ────────────────────────┴▶ guards ─▶ delay ─▶ sizes

Departures, each where Java leaves a producer without an answer or the log with a record that nobody can read: an empty batch, a batch
whose lengths do not add up, and a batched message whose properties grow over 32,767 bytes are MESSAGE_ILLEGAL; so are a half with a
delay (`half_messages.py`) and a batch with a deliver time in which a message has no body (`storage/rules/delays.py`).
Java: SendMessageProcessor.sendMessage and sendBatchMessage up to the put, DefaultMessageStore.asyncPutMessage,
CommitLog.asyncPutMessages.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from spark_mq.broker.send_hooks import is_true
from spark_mq.broker.send_request import SendRequest
from spark_mq.remoting.messages import decode_batch, with_batch_properties
from storage.errors import PutRefusedError
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.properties import CRC_NAME, CRC_SIZE, decode_properties
from storage.format.record import MULTI_TAGS, TRANSACTION_MASK, V6_HOST_SIZE
from storage.names import RETRY_PREFIX
from storage.put_status import PutStatus
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
from storage.rules.inner_messages import EncodedMessage, InnerMessage, encode_properties
from storage.rules.put_guards import BrokerState, check_before_put, check_inner_batch
from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.rules.sizes import Limits, Numbers, Sizes, refuse_excess, refuse_first_excess
from storage.settings.load import StoreConfig
from storage.tables.topics import TopicConfig

DECIDED_BY_VALUE = frozenset(
    {
        *(DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_DELETED_KEY),
        *("TRAN_MSG", "INNER_NUM", "POP_CK", "MSG_REGION", "TRACE_ON", "CLUSTER"),
    }
)
"""Properties on whose values it depends what a message is stored as, and those that a broker replaces. A message with others is stored
as any that has properties of the same names, but for one with an empty UNIQ_KEY, or without keys in a compacted topic.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutRules:
    """What a broker holds a message to at one moment."""

    config: StoreConfig
    host: bytes
    """Where the store is served: 4 or 16 bytes of address, 4 of port."""
    now_ms: int
    cluster_name: str = "DefaultCluster"
    topics: Mapping[str, TopicConfig] = field(default_factory=dict, hash=False)
    state: BrokerState = BrokerState()  # noqa: RUF009 (a frozen value)
    is_congested: Congestion | None = None
    """Whether the timer takes no more for a time; None = it does."""
    is_heard: bool = True
    """Whether anybody hears of a refusal; else the put waits while the store is busy."""

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
    """Of the records."""
    is_heard: bool = True
    """As its rules say."""


def requested_message(request: SendRequest, queue_id: int, properties: Mapping[str, str]) -> InnerMessage:
    """The message as it is asked for, to the queue and with the properties that the broker has made of it."""
    return InnerMessage(
        topic=request.topic,
        queue_id=queue_id,
        body=request.body or b"",
        properties=properties,
        flag=request.flag,
        sys_flag=request.sys_flag,
        born_time_ms=request.born_time_ms,
        born_host=request.born_host,
        reconsume_times=request.reconsume_times or 0,
    )


def plan_message(
    message: InnerMessage, body: bytes | None, topic: TopicConfig, rules: PutRules, new_unique_key: Callable[[], str]
) -> PutPlan:
    """One message, past `retry_or_dead_letter`. `body` is the request's, `topic` the entry that it asked for.

    Raises RequestRefusedError for what is answered by its own code, PutRefusedError for what the put path refuses.
    """
    said = {} if message.properties.get("UNIQ_KEY") else {"UNIQ_KEY": new_unique_key()}
    if topic.attributes.get("cleanup.policy") == "COMPACTION" and not message.properties.get("KEYS", "").strip():
        raise RequestRefusedError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
    message = _with(message, **said, CLUSTER=rules.cluster_name)
    if _is_half(message):
        if not takes_transactions(rules.config.send):
            reason = f"the broker[{rules.address}] sending transaction message is forbidden"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, reason)
        message = half_message(message)
    return plan_inner(message, body, rules)


def plan_inner(message: InnerMessage, body: bytes | None, rules: PutRules, *, may_wait: bool = True) -> PutPlan:
    """One message that is made already, past the store's own rules. `body` is its own, or None where nobody gave one.

    `may_wait` = False takes no notice of a delay. Raises PutRefusedError. Java: DefaultMessageStore.asyncPutMessage.
    """
    message = _guarded(message, body, rules, may_wait=may_wait)
    if rules.config.commit_log.appends_crc:
        message = replace(message, properties={n: v for n, v in message.properties.items() if n != CRC_NAME})
    encoded = EncodedMessage.of(message)
    size = _checked_size(message, message.body, encoded.raw_properties, rules)
    return PutPlan(message, (encoded,), size, rules.is_heard)


def plan_batch(message: InnerMessage, body: bytes | None, topic: TopicConfig, rules: PutRules) -> PutPlan:
    """A batch, whose properties all its messages get behind their own. Raises RequestRefusedError, PutRefusedError.

    A deliver time of the batch is one of all its messages; their own levels and times say nothing.
    """
    if message.topic.startswith(RETRY_PREFIX):
        reason = f"batch request does not support retry group {message.topic}"
        raise RequestRefusedError(ResponseCode.MESSAGE_ILLEGAL, reason)
    if topic.topic_filter_type == "MULTI_TAG":
        message = replace(message, sys_flag=message.sys_flag | MULTI_TAGS)
    message = _guarded(_with(message, CLUSTER=rules.cluster_name), body, rules)
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
    strings = [with_batch_properties(one.raw_properties, shared) for one in batch]
    size = _checked_sizes(message, [one.body for one in batch], strings, rules)
    rows = ((one.body, one.flag, string, decode_properties(string)) for one, string in zip(batch, strings, strict=True))
    return PutPlan(message, EncodedMessage.batch(message, rows), size, rules.is_heard)


def _guarded(message: InnerMessage, body: bytes | None, rules: PutRules, *, may_wait: bool = True) -> InnerMessage:
    """The message past the store's hooks, parked if it has a delay. Java: BrokerController.registerMessageStoreHook."""
    check_before_put(message.topic, body, rules.state)
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


def _is_half(message: InnerMessage) -> bool:
    """Whether it opens a transaction; a retry of a client before 4.6.1, which leaves TRAN_MSG in, does not."""
    if not is_true(message.properties.get("TRAN_MSG")):
        return False
    return not (message.reconsume_times > 0 and delay_level(message) > 0)
