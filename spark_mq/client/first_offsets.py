"""Where a consumer begins to read a queue that it has just been given. Pure.

    stored at the broker ─▶ there
    nothing stored       ─▶ by `ConsumeFrom`:      LAST       FIRST       TIMESTAMP
                            of a topic              the end    0           the first stored at that time or later
                            of the retry topic      0          0           the end

A broker answers 0 for a new group of a queue that still has its first message in memory, whatever the consumer asks for:
to a young topic LAST means FIRST. Where a broker does not answer, the queue is not taken now.

Java: RebalancePushImpl.computePullFromWhereWithException, ConsumeFromWhere.
"""

from __future__ import annotations

from enum import Enum

from spark_mq.remoting.consumers import ConsumeFromWhere


class ConsumeFrom(Enum):
    """Where a group without stored offsets begins."""

    LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


class Asked(Enum):
    """What must be asked of the broker first."""

    END = "the queue's end"
    TIME = "the first offset stored at a time or later"


def first_offset(stored_offset: int | None, where: ConsumeFrom, *, is_retry_topic: bool) -> int | Asked:
    """The offset to begin at, or what to ask the broker for; `stored_offset` is None where it has none."""
    if stored_offset is not None:
        return stored_offset
    if where is ConsumeFrom.FIRST:  # too small perhaps: the first pull is answered with the queue's first offset
        return 0
    if where is ConsumeFrom.LAST:
        return 0 if is_retry_topic else Asked.END
    return Asked.END if is_retry_topic else Asked.TIME
