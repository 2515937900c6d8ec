"""From a program's message to the bytes of a send: checks, properties as one text, compression, an id. Pure.

    name 0x01 value 0x02 …     UNIQ_KEY, WAIT, TAGS, KEYS, DELAY or TIMER_DELIVER_MS, INSTANCE_ID (namespace), the program's own

The body of a batch is its messages one after the other, each with its own properties; its envelope has WAIT and UNIQ_KEY. It is never
compressed. Java: DefaultMQProducerImpl.sendKernelImpl, DefaultMQProducer.batch, MessageBatch, Validators.checkMessage.
Departures: a message that no reader would receive as sent is refused here (`storage/rules/topics.py`, `inner_messages.py`),
and so is a deliver time in a batch, which Java's broker ignores.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, NoReturn

from spark_mq.client.errors import MessageRefusedError
from spark_mq.client.message import Message
from spark_mq.client.settings import COMPRESSIONS, ProducerSettings, with_namespace
from spark_mq.remoting.messages import BatchedMessage, encode_batch
from storage.epoch_times import current_time_ms, other_unit_rule
from storage.errors import MessageIllegalError, NameIllegalError
from storage.format.arrays import CONTROL_CHARACTERS, SEPARATORS
from storage.format.properties import PROPERTIES_LIMIT_BYTES
from storage.format.record import COMPRESSED, TRANSACTION_PREPARED, compress
from storage.names import RETRY_PREFIX, validate_topic
from storage.rules.delays import DELAY, TIMER_DELIVER_MS
from storage.rules.half_messages import IMMUNITY, PREPARED, UNIQUE_KEY, WAIT, client_properties, half_refusals
from storage.rules.inner_messages import Limits, Sizes, excesses
from storage.rules.retries import MAX_RECONSUME_TIMES, RECONSUME_TIMES
from storage.rules.topics import NOT_ALLOWED_SEND_TOPICS
from storage.rules.values import BLANK_IN_KEY, property_fault, text_fault

_SHARDING_KEY = "__SHARDINGKEY"
_INSTANCE_ID = "INSTANCE_ID"
_UNSUSPICIOUS_BYTES = PROPERTIES_LIMIT_BYTES - 1_024
"""Properties of so many bytes break no limit of their own, whatever a broker adds."""


class OutgoingMessage(NamedTuple):
    """The parts of a send request, without the queue."""

    topic: str
    """As brokers know it, with the namespace."""
    body: bytes
    """As stored: compressed where `sys_flag` says so; of a batch its messages."""
    properties: str
    sys_flag: int
    flag: int
    message_id: str
    """The unique key; of a batch those of its messages, with commas."""
    is_batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    is_reply: bool = False
    origin: Message | None = None
    """As the program gave it; None of a batch."""


class MessageMaker:
    """Makes them for one producer. For all its threads."""

    def __init__(
        self, settings: ProducerSettings, make_id: Callable[[], str], group: str, namespace: str | None = None
    ) -> None:
        """`group` as brokers know it."""
        self._settings = settings
        self._make_id = make_id
        self._group = group
        self._namespace = namespace
        self._topic = lru_cache(4_096)(self._checked_topic)
        self._max_bytes = settings.max_message_bytes
        self._limits = Limits(settings.max_message_bytes)
        self._compress_from = settings.compress_over_bytes
        self._compression = COMPRESSIONS[settings.compression]
        self._instance = f"{_INSTANCE_ID}\x01{namespace}\x02" if namespace else ""

    def topic(self, topic: str) -> str:
        """A topic that messages may be sent to, as brokers know it. Raises MessageRefusedError."""
        return self._topic(topic)

    def message(self, message: Message) -> OutgoingMessage:
        """One message. Raises MessageRefusedError."""
        return self._single(message, message.properties, sys_flag=0)

    def request(self, message: Message, added: Mapping[str, str]) -> OutgoingMessage:
        """One that waits for a reply, with the properties that say to whom. Raises MessageRefusedError."""
        return self._single(message, message.properties, 0, added)

    def reply(self, message: Message, added: Mapping[str, str]) -> OutgoingMessage:
        """A reply, with the properties that say to what. Its topic is a cluster's own, and has no namespace.

        Raises MessageRefusedError.
        """
        return self._single(message, message.properties, 0, added, topic=message.topic)._replace(is_reply=True)

    def half(self, message: Message) -> OutgoingMessage:
        """One that waits for its transaction. Its delay level is dropped, as in Java. Raises MessageRefusedError.

        CHECK_IMMUNITY_TIME_IN_SECONDS may stand among its properties: for so long the broker does not ask back.
        """
        for is_refused, refusal in half_refusals(0, message.deliver_time_ms is not None, not message.body):
            if is_refused:
                raise MessageRefusedError(message.topic, "transaction", refusal.reason)
        own = dict(message.properties)
        added: dict[str, str] = client_properties(self._group)
        if IMMUNITY in own:
            added[IMMUNITY] = own.pop(IMMUNITY)
        return self._single(message, own, TRANSACTION_PREPARED, added)

    def handed_on(self, message: Message) -> OutgoingMessage:
        """A message with properties that this client itself put together: a consumer's retry. Not held to a program's rules.

        Java: DefaultMQProducerImpl.sendKernelImpl, which takes the reconsume times of a retry topic's message out.
        """
        properties = {UNIQUE_KEY: self._make_id(), WAIT: "true"} | dict(message.properties)
        times, most = 0, None
        if message.topic.startswith(RETRY_PREFIX):
            times = int(properties.pop(RECONSUME_TIMES, "0"))
            text = properties.pop(MAX_RECONSUME_TIMES, None)
            most = None if text is None else int(text)
        sys_flag = TRANSACTION_PREPARED if properties.get(PREPARED) == "true" else 0
        body, sys_flag = self._packed(message.body, sys_flag)
        return OutgoingMessage(
            topic=with_namespace(self._namespace, message.topic),
            body=body,
            properties=_joined(properties),
            sys_flag=sys_flag,
            flag=message.flag,
            message_id=properties[UNIQUE_KEY],
            reconsume_times=times,
            max_reconsume_times=most,
        )

    def batch(self, messages: Iterable[Message]) -> OutgoingMessage:
        """Messages of one topic that go to one queue, in one request. Raises MessageRefusedError."""
        listed = list(messages)
        if not listed:
            raise MessageRefusedError("", "batch", "it holds no message")
        first = listed[0]
        ids, items = [], []
        for number, message in enumerate(listed):
            _check_batched(message, first, number)
            self._check_body(message)
            message_id = self._make_id()
            ids.append(message_id)
            properties = self._properties(message, message.properties, message_id, {})
            items.append(BatchedMessage(message.body, properties.encode(), message.flag))
        try:
            body = encode_batch(items)
        except MessageIllegalError as error:
            raise MessageRefusedError(first.topic, "batch", error.describe()) from None
        if len(body) > self._max_bytes:
            rule = f"its {len(listed)} messages are {len(body)} bytes together, max_message_bytes is {self._max_bytes}"
            raise MessageRefusedError(first.topic, "batch", rule)
        wait = "true" if first.wait_stored else "false"
        envelope = f"{WAIT}\x01{wait}\x02{UNIQUE_KEY}\x01{self._make_id()}\x02{self._instance}"
        return OutgoingMessage(self.topic(first.topic), body, envelope, 0, 0, ",".join(ids), is_batch=True)

    # One message.

    def _single(
        self,
        message: Message,
        own: Mapping[str, str],
        sys_flag: int,
        added: Mapping[str, str] | None = None,
        topic: str | None = None,
    ) -> OutgoingMessage:
        topic = topic or self._topic(message.topic)
        self._check_body(message)
        message_id = self._make_id()
        properties = self._properties(message, own, message_id, added or {})
        body, sys_flag = self._packed(message.body, sys_flag)
        is_timed = message.deliver_time_ms is not None
        if is_timed or len(properties) > _UNSUSPICIOUS_BYTES or len(body) > self._max_bytes:
            self._check_sizes(topic, body, properties, is_timed=is_timed)
        return OutgoingMessage(topic, body, properties, sys_flag, message.flag, message_id, origin=message)

    def _packed(self, body: bytes, sys_flag: int) -> tuple[bytes, int]:
        """The body as it is stored. Java keeps what is compressed even where it is larger."""
        if self._compress_from is None or len(body) < self._compress_from:
            return body, sys_flag
        packed = compress(body, self._compression, self._settings.compression_level)
        return packed, sys_flag | COMPRESSED | self._compression

    def _properties(self, message: Message, own: Mapping[str, str], message_id: str, added: Mapping[str, str]) -> str:
        text = f"{UNIQUE_KEY}\x01{message_id}\x02{WAIT}\x01{'true' if message.wait_stored else 'false'}\x02"
        if message.tags:
            _check_text(message, "tags", message.tags, CONTROL_CHARACTERS)
            text += f"TAGS\x01{message.tags}\x02"
        keys = _keys_text(message) if message.keys else ""
        if keys:
            text += f"KEYS\x01{keys}\x02"
        if message.delay_level and PREPARED not in added:
            if message.delay_level < 0:
                _refuse(message, "delay_level", f"{message.delay_level} is no level: they are counted from 1")
            text += f"{DELAY}\x01{message.delay_level:d}\x02"
        if message.deliver_time_ms is not None:
            rule = other_unit_rule(message.deliver_time_ms)
            if rule is not None:
                _refuse(message, "deliver_time_ms", rule)
            text += f"{TIMER_DELIVER_MS}\x01{message.deliver_time_ms:d}\x02"
        for name, value in own.items():
            fault = property_fault(name, value, allowed=_SHARDING_KEY)
            if fault is not None:
                _refuse(message, "properties", fault)
        return text + self._instance + _joined(added) + _joined(own)

    # Rules.

    def _checked_topic(self, topic: str) -> str:
        try:
            named = with_namespace(self._namespace, validate_topic(topic))
            validate_topic(named)
        except NameIllegalError as error:
            raise MessageRefusedError(topic, "topic", error.rule) from None
        if named in NOT_ALLOWED_SEND_TOPICS:
            raise MessageRefusedError(
                topic, "topic", "brokers keep it for themselves and take no client's messages there"
            )
        return named

    def _check_body(self, message: Message) -> None:
        body = message.body
        if not isinstance(body, bytes):
            _refuse(
                message,
                "body",
                f"it is {type(body).__name__}, not bytes" + (": write body.encode()" if isinstance(body, str) else ""),
            )
        if not body:
            _refuse(message, "body", "it is empty; brokers want one byte at least")
        if len(body) > self._max_bytes:
            _refuse(message, "body", f"it is {len(body)} bytes, max_message_bytes is {self._max_bytes}")

    def _check_sizes(self, topic: str, body: bytes, properties: str, *, is_timed: bool) -> None:
        sizes = Sizes.of(len(topic), len(properties.encode()), len(body), 0, is_timed)
        for excess in excesses(sizes, self._limits, is_timed):
            if excess.over:
                raise MessageRefusedError(topic, excess.what, excess.reason())


def _check_batched(message: Message, first: Message, number: int) -> None:
    """Java: MessageBatch.generateFromList."""
    if message.delay_level or message.deliver_time_ms is not None:
        _refuse(message, "batch", f"message {number} is delayed, and a batch cannot be: send it alone")
    if message.topic.startswith(RETRY_PREFIX):
        _refuse(message, "batch", f"message {number} goes to a retry topic: send it alone")
    if message.topic != first.topic:
        _refuse(first, "batch", f"message {number} goes to topic {message.topic!r}: a batch has one topic")
    if message.wait_stored != first.wait_stored:
        _refuse(message, "batch", f"message {number} has another wait_stored than the first: a batch has one")


def _keys_text(message: Message) -> str:
    keys: Sequence[str] = message.keys
    if any(" " in key for key in keys):
        _refuse(message, "keys", BLANK_IN_KEY)
    text = " ".join(filter(None, keys))
    _check_text(message, "keys", text, SEPARATORS)
    return text


def _check_text(message: Message, what: str, text: str, unwanted: bytes) -> None:
    fault = text_fault(text, unwanted)
    if fault is not None:
        _refuse(message, what, fault)


def _joined(properties: Mapping[str, str]) -> str:
    """Java: MessageDecoder.messageProperties2String."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def _refuse(message: Message, what: str, rule: str) -> NoReturn:
    raise MessageRefusedError(message.topic, what, rule)


class UniqueIds:
    """Ids that a producer gives its messages (UNIQ_KEY), in the Java client's form. For all threads of one process; a forked child
    must make its own.

    |8 or 32 digits      4 |      8 |                       8 |       4 |   hexadecimal, upper-case
    | IPv4 or IPv6 | pid   | random | ms since the month began | counter |

    Java: MessageClientIDSetter; its third part is a class loader's hash code. The month begins in local time.
    """

    def __init__(
        self,
        ip: str,
        pid: int | None = None,
        salt: bytes | None = None,
        clock: Callable[[], int] = current_time_ms,
    ) -> None:
        """`ip` is a textual address; of a host's name that is none, four random bytes stand in its place."""
        salt = secrets.token_bytes(4) if salt is None else salt
        pid = os.getpid() if pid is None else pid
        self._prefix = (_address(ip) + (pid & 0xFFFF).to_bytes(2, "big") + salt).hex().upper()
        self._clock = clock
        self._count = itertools.count()
        self._month = month_bounds(clock())

    def make(self) -> str:
        """The next id."""
        now_ms = self._clock()
        start_ms, end_ms = self._month
        if now_ms >= end_ms:
            start_ms, end_ms = self._month = month_bounds(now_ms)
        since_ms = max(now_ms - start_ms, 0)  # a clock set back across the month's beginning
        return f"{self._prefix}{since_ms & 0xFFFFFFFF:08X}{next(self._count) & 0xFFFF:04X}"


def month_bounds(now_ms: int) -> tuple[int, int]:
    """When the month of that time began and the next one begins, local time, in ms."""
    year, month = time.localtime(now_ms // 1000)[:2]
    begins = [time.mktime((year, month + step, 1, 0, 0, 0, 0, 0, -1)) for step in (0, 1)]
    return int(begins[0]) * 1000, int(begins[1]) * 1000


def _address(ip: str) -> bytes:
    try:
        return ipaddress.ip_address(ip.partition("%")[0]).packed
    except ValueError:
        return secrets.token_bytes(4)
