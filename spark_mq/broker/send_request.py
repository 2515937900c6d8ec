"""A send request as a broker takes it off the wire, or a caller makes it. Java: SendMessageRequestHeader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_mq.broker.retry import CURRENT_VERSION
from storage.format.record import V4_HOST_SIZE, V6_HOST_SIZE, host_text
from storage.rules.topics import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUE_COUNT, TopicWish
from storage.settings.nouns import SendConfig

_INTEGERS = ("queue_id", "default_topic_queue_count", "flag", "sys_flag", "reconsume_times", "max_reconsume_times")
_BITS = dict.fromkeys(_INTEGERS, 32) | {"born_time_ms": 64}
NO_TEMPLATE = ""
"""A topic that is not there, whatever it is: with it as the template a send makes no topic."""
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1


def broker_properties(send: SendConfig) -> dict[str, str]:
    """What a broker says of itself in each message that is sent, and in the answer. Java: SendMessageProcessor.buildMsgContext."""
    return {"MSG_REGION": send.region_id, "TRACE_ON": str(send.trace_on).lower()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """One message, or a batch of them for one queue. Raises ValueError for a number that Java's field does not hold."""

    topic: str
    body: bytes | None
    """As stored: compressed if `sys_flag` says so. Of a batch: the client's encoding of its messages (`remoting/messages.py`)."""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of a batch: what all its messages get besides their own."""
    queue_id: int = -1
    """Negative = any write queue. Of a static topic the logical queue."""
    producer_group: str = ""
    default_topic: str = AUTO_CREATE_TOPIC
    """The template for a topic that is not there."""
    default_topic_queue_count: int = DEFAULT_TOPIC_QUEUE_COUNT
    flag: int = 0
    sys_flag: int = 0
    born_time_ms: int = 0
    born_host: bytes | None = None
    """The client's 4 or 16 bytes of address, 4 of port; None = the store's own."""
    reconsume_times: int | None = None
    max_reconsume_times: int | None = None
    unit_mode: bool = False
    is_batch: bool = False
    logical: bool | None = None
    """False = the queue id is physical, for another broker forwards the request (`lo`)."""
    client_version: int = CURRENT_VERSION
    """The ordinal in MQVersion.Version."""
    are_properties_read: bool = False
    """Whether they were read off the wire: else a broker reads them as it would from there."""
    is_heard: bool = True
    """False: one-way, or of a client that has gone. It is not refused because the store is busy: its put waits."""
    ext_fields: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Whatever else the request says, for hooks."""

    def __post_init__(self) -> None:
        numbers = self.queue_id, self.default_topic_queue_count, self.flag, self.sys_flag, self.reconsume_times or 0
        are_small = (
            min(numbers) >= _LEAST and max(numbers) <= _MOST and _LEAST <= (self.max_reconsume_times or 0) <= _MOST
        )
        if not are_small or not 0 <= self.born_time_ms < 1 << 62:
            self._check_numbers()
        if self.born_host is not None and len(self.born_host) not in (V4_HOST_SIZE, V6_HOST_SIZE):
            raise ValueError(f"born_host has {len(self.born_host)} bytes; an address and its port have 8, or 20")

    def _check_numbers(self) -> None:
        for name, bits in _BITS.items():
            value = getattr(self, name)
            if value is not None and not -(1 << bits - 1) <= value < 1 << bits - 1:
                raise ValueError(f"{name} is {value}, which {bits} bits do not hold")

    @property
    def topic_wish(self) -> TopicWish:
        """What the topic shall be like if the message makes it."""
        return TopicWish(self.default_topic, self.default_topic_queue_count, self.unit_mode)

    @property
    def client_address(self) -> str:
        """address:port of the client, "" if nobody knows it."""
        return "" if self.born_host is None else host_text(self.born_host)
