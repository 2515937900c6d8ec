"""The RocketMQ release of a store's broker, and what older releases cannot read of what this package writes. Pure.

    what is written                                first release that reads it   what an older broker does
    timer messages (deliver_at)                    5.0.0                         never delivers them
    records of topics of more than 127 bytes       5.1.0                         ends its log at the first one and cuts the rest
    op messages that name several half messages    5.1.0                         asks again about ended transactions

A store does not say which release wrote it. So somebody must name the release: `rocketmqVersion` in broker.conf, or an option.
A broker ignores that line. No Java class has this rule: a Java broker writes only what it can read.

Java: HookUtils.handleScheduleMessage, MessageDecoder.MESSAGE_MAGIC_CODE_V2, TransactionalMessageServiceImpl.fillOpRemoveMap.
"""

from __future__ import annotations

import re
from typing import NamedTuple

VERSION_SETTING = "rocketmqVersion"
"""Its name in broker.conf and as an option; no setting of Java's."""
SHORT_TOPIC_LIMIT = 127
"""Bytes of a topic in a record with one byte for that length (magic V1)."""

_TEXT = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", re.ASCII)


class BrokerVersion(NamedTuple):
    """A release, such as 4.9.7. Compares as releases do."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @property
    def has_timer(self) -> bool:
        """Whether it delivers timer messages."""
        return self >= (5, 0)

    @property
    def reads_op_lists(self) -> bool:
        """Whether it reads op messages that name several halves. One that does not wants a bare number."""
        return self >= (5, 1)

    def refusal_of_topic(self, topic: str) -> str | None:
        """Why this release must not find a record of this topic in its log; None if it may."""
        length = len(topic.encode())
        if length <= SHORT_TOPIC_LIMIT or self >= (5, 1):
            return None
        return (
            f"topic {topic!r} has {length} bytes: a broker of RocketMQ {self} ({VERSION_SETTING}) reads at most {SHORT_TOPIC_LIMIT}, "
            "and would cut its log at this message; 5.1.0 is the first release that reads it"
        )


OLDEST_VERSION = BrokerVersion(4, 9)
DEFAULT_VERSION = BrokerVersion(5, 3)


def parse_broker_version(text: str) -> BrokerVersion:
    """`4.9.7` or `5.3`. Raises ValueError with the rule for anything else, and for releases before 4.9, which nobody has tried."""
    matched = _TEXT.fullmatch(text.strip())
    if matched is None:
        raise ValueError(f"{text!r} is no release of RocketMQ; write it as 4.9.7 or 5.3")
    version = BrokerVersion(*(int(part or 0) for part in matched.groups()))
    if version < OLDEST_VERSION:
        raise ValueError(
            f"{version} is older than {OLDEST_VERSION.major}.{OLDEST_VERSION.minor}, the oldest release that was tried"
        )
    return version
