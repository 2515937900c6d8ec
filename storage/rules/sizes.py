"""The size limits of a message: each limit once, for one message and for columns of them. Pure.

    topic        255 bytes in a record; a client's limit is lower (`topic_limit`)
    properties   32,767 bytes, including what a timer adds later if the message waits there
    body         maxMessageSize
    record       maxMessageSize and 64 KiB; in the timer's topic maxMessageSize and 100 bytes, which is what a timer can read back
    record       a log file, with the filler after it

Every size is a number or an array of them. Limits come in Java's order; the first that is exceeded counts.
Java: MessageExtEncoder.encode, calMsgLength; HookUtils.checkBeforePutMessage (topic); TimerMessageStore.getMessageByCommitOffset.
Departures: Java stores a record that its timer cannot read back, and properties to which it can add nothing; its timer then stops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from storage.errors import MessageIllegalError, PutRefusedError
from storage.format.properties import PROPERTIES_LIMIT_BYTES
from storage.format.record import BLANK_SIZE, HEADER_SIZE
from storage.names import RETRY_PREFIX, RETRY_TOPIC_LENGTH_LIMIT, TOPIC_LENGTH_LIMIT
from storage.put_status import PutStatus

MAX_MESSAGE_SIZE = 4 << 20
"""Java: MessageStoreConfig.maxMessageSize, its default."""
RECORD_ROOM = 64 * 1024
"""Bytes that a record may have in addition to the largest body."""
TIMER_BUFFER_ROOM = 100
"""The same for a record in the timer's topic."""
TIMER_PROPERTIES_ROOM = 2 * (len("TIMER_DEQUEUE_MS") + 20)
"""Bytes of properties that the timer adds when it enters and delivers a message."""
_HOST_GROWTH = 12  # of an IPv6 host over an IPv4 one

Numbers = int | np.integer[Any] | np.ndarray
Truths = bool | np.bool_ | np.ndarray


class Limits(NamedTuple):
    """A store's size limits."""

    max_message_size: Numbers = MAX_MESSAGE_SIZE
    """One limit for all messages, or one for each."""
    log_file_size: Numbers | None = None
    """None = other code checks whether the record fits into a log file."""


class Sizes(NamedTuple):
    """Bytes of one message's parts as they will be stored, or of many messages'."""

    topic: Numbers
    properties: Numbers
    body: Numbers
    record: Numbers

    @classmethod
    def of(
        cls, topic: Numbers, properties: Numbers, body: Numbers, v6_hosts: Numbers, is_timed: Truths = False
    ) -> Sizes:
        """The sizes of records; of their two hosts `v6_hosts` are IPv6. Java: MessageExtEncoder.calMsgLength.

        A message that waits for its time (`is_timed`) is counted with two IPv6 hosts, as a later roll by the timer may write it.
        """
        v6_hosts = v6_hosts + (2 - v6_hosts) * is_timed
        topic_length_size = 1 + (topic > TOPIC_LENGTH_LIMIT)
        record = HEADER_SIZE + _HOST_GROWTH * v6_hosts + body + topic_length_size + topic + 2 + properties
        return cls(topic, properties, body, record)


class Excess(NamedTuple):
    """One limit, and the messages above it."""

    what: str
    """topic, properties, body or record."""
    sizes: Numbers
    limits: Numbers
    status: PutStatus
    text: str
    """With placeholders for size and limit."""

    @property
    def over(self) -> Truths:
        """Which messages exceed the limit."""
        return self.sizes > self.limits

    def reason(self, row: int | None = None) -> str:
        """Why the message, or one of many, may not be stored."""
        size, limit = self.of_row(row)
        return self.text.format(size, limit)

    def of_row(self, row: int | None = None) -> tuple[int, int]:
        """Size and limit of the message, or of one of many."""
        return _at(self.sizes, row), _at(self.limits, row)


def excesses(sizes: Sizes, limits: Limits, is_timed: Truths = False) -> Iterator[Excess]:
    """Every limit in Java's order. `is_timed` selects the messages that wait in the timer's topic."""
    largest = limits.max_message_size
    illegal = PutStatus.MESSAGE_ILLEGAL
    yield Excess("topic", sizes.topic, RETRY_TOPIC_LENGTH_LIMIT, illegal, "it has {} bytes, the limit is {}")
    most = PROPERTIES_LIMIT_BYTES - TIMER_PROPERTIES_ROOM * is_timed
    too_many = PutStatus.PROPERTIES_SIZE_EXCEEDED
    yield Excess(
        "properties", sizes.properties, most, too_many, "all properties together are {} bytes, the limit is {}"
    )
    yield Excess("body", sizes.body, largest, illegal, "it is {} bytes as stored, maxMessageSize is {}")
    most = (largest + RECORD_ROOM) + (timer_record_limit(largest) - (largest + RECORD_ROOM)) * is_timed
    text = (
        f"its record of {{}} bytes is over the limit of {{}}: maxMessageSize and {RECORD_ROOM}, "
        f"or {TIMER_BUFFER_ROOM} where it waits for a deliver time, which is what a broker's timer reads back"
    )
    yield Excess("record", sizes.record, most, illegal, text)
    if limits.log_file_size is not None:
        most = limits.log_file_size - BLANK_SIZE
        text = (
            f"its record of {{}} bytes and {BLANK_SIZE} behind it do not fit into a log file of {limits.log_file_size}"
        )
        yield Excess("record", sizes.record, most, illegal, text)


def _at(numbers: Numbers, row: int | None) -> int:
    return int(numbers[row] if isinstance(numbers, np.ndarray) and row is not None else numbers)


def timer_record_limit(max_message_size: Numbers) -> Numbers:
    """The largest record that a timer reads back. Java: TimerMessageStore.getMessageByCommitOffset."""
    return max_message_size + TIMER_BUFFER_ROOM


def topic_limit(topic: str) -> int:
    """The longest topic in bytes. Java: HookUtils.checkBeforePutMessage."""
    return RETRY_TOPIC_LENGTH_LIMIT if topic.startswith(RETRY_PREFIX) else TOPIC_LENGTH_LIMIT


def refuse_excess(sizes: Sizes, limits: Limits, *, is_timed: bool) -> None:
    """Raises PutRefusedError for the first limit that one message exceeds."""
    for excess in excesses(sizes, limits, is_timed):
        if excess.over:
            raise PutRefusedError(excess.status, f"{excess.what}: {excess.reason()}")


def refuse_any_excess(sizes: Sizes, limits: Limits, is_timed: Truths) -> None:
    """Raises MessageIllegalError for the first limit that any of many messages exceeds."""
    for excess in excesses(sizes, limits, is_timed):
        if (over := np.flatnonzero(excess.over)).size:
            size, limit = excess.of_row(int(over[0]))
            raise MessageIllegalError(excess.what, limit, size)


def refuse_first_excess(sizes: Sizes, limits: Limits, *, is_timed: bool) -> None:
    """Raises PutRefusedError for the first of many messages that exceeds a limit, and for the first limit that it exceeds."""
    broken = [
        (int(np.argmax(excess.over)), excess) for excess in excesses(sizes, limits, is_timed) if np.any(excess.over)
    ]
    if broken:
        row, excess = min(broken, key=lambda found: found[0])
        raise PutRefusedError(excess.status, f"{excess.what}: {excess.reason(row)}")


def is_within(sizes: Sizes, limits: Limits) -> bool:
    """Whether one message, which does not wait for its time, exceeds no limit."""
    return not any(excess.over for excess in excesses(sizes, limits))
