"""What a program's listener gets and says. Java: MessageListenerConcurrently, MessageListenerOrderly and their contexts.

A listener runs in a thread of the consumer's. What it answers decides about all messages of the call; an exception, and
no answer at all, count as `LATER`: a message is done only when its listener says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from operator import index
from typing import Any, TypeAlias, TypeVar

from spark_mq.client.message import MessageExt, MessageQueue

_LOG = logging.getLogger(__name__)


class ConsumeStatus(Enum):
    """A listener's answer."""

    SUCCESS = "consumed"
    LATER = "failed: again later"
    """Concurrent: sent back, the broker delivers it again after a while. Orderly: the queue waits a moment, then again."""
    COMMIT = "all until now consumed"
    """Orderly without `auto_commit`: store what was answered with SUCCESS since the last commit, this call's too."""
    ROLLBACK = "all since the last commit failed: again later"
    """Orderly without `auto_commit`."""


@dataclass(slots=True)
class ConcurrentContext:
    """What a concurrent listener knows, and may change before it answers."""

    queue: MessageQueue
    acknowledged: int | None = None
    """With SUCCESS: so many messages from the first on are consumed, the others failed; None: all."""
    delay_level: int = 0
    """For failed ones: the broker's delay level for the next try; 0 leaves it to the broker, −1 makes dead letters."""


@dataclass(slots=True)
class OrderlyContext:
    """What an orderly listener knows, and may change before it answers."""

    queue: MessageQueue
    auto_commit: bool = True
    """Whether SUCCESS stores at once; else only COMMIT does."""
    suspend_ms: int | None = None
    """How long the queue waits after LATER or ROLLBACK, 10 ms to 30 s; None: as the consumer's settings say."""


ConcurrentListener: TypeAlias = Callable[[Sequence[MessageExt], ConcurrentContext], ConsumeStatus]
OrderlyListener: TypeAlias = Callable[[Sequence[MessageExt], OrderlyContext], ConsumeStatus]
Context = TypeVar("Context", ConcurrentContext, OrderlyContext)


def answer_of(
    listener: Callable[[Sequence[MessageExt], Context], object],
    messages: Sequence[MessageExt],
    context: Context,
    group: str,
) -> ConsumeStatus:
    """What a listener says; LATER, with a word in the log, where it raises or says something else. Raises nothing.

    It is LATER too where the context holds what is no value of its field; the field has its default then.
    """
    try:
        answer = listener(messages, context)
    except BaseException:  # it may even exit the thread: that consumes nothing
        _LOG.warning("the listener of group %s failed on %s", group, _named(messages), exc_info=True)
        return ConsumeStatus.LATER
    wrong = _put_right(context)
    if wrong:
        _LOG.warning(
            "the listener of group %s set %s for %s, which counts as LATER",
            group,
            " and ".join(wrong),
            _named(messages),
        )
        return ConsumeStatus.LATER
    if isinstance(answer, ConsumeStatus):
        return answer
    _LOG.warning(
        "the listener of group %s returned %r for %s, which counts as LATER: return ConsumeStatus.SUCCESS",
        group,
        answer,
        _named(messages),
    )
    return ConsumeStatus.LATER


def _put_right(context: ConcurrentContext | OrderlyContext) -> list[str]:
    """Give fields their defaults that hold no value of theirs; which these are, and what type they held."""
    wrong = []
    for each in fields(context):
        value = getattr(context, each.name)
        if each.name not in _VALUES or (value is None and each.default is None):
            continue
        try:
            setattr(context, each.name, _VALUES[each.name](value))
        except Exception:
            wrong.append(f"the context's {each.name} to a value of type {type(value).__name__} that does not fit")
            setattr(context, each.name, each.default)
    return wrong


def _int32(value: Any) -> int:
    """The number, as a request's header takes it. Raises TypeError, ValueError."""
    number = index(value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} is no int of Java's")
    return number


_VALUES: dict[str, Callable[[Any], object]] = {
    "acknowledged": index,
    "delay_level": _int32,
    "auto_commit": bool,
    "suspend_ms": index,
}
"""What makes of a field's value one of its type, or raises."""


def _named(messages: Sequence[MessageExt]) -> str:
    first = messages[0]
    return f"{len(messages)} message(s) from offset {first.queue_offset} of {first.queue}"
