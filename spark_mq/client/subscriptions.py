"""What a group wants of a topic: all of it, some tags, or what an SQL92 expression is true for.

A broker compares hashes of tags only, so the consumer compares the texts once more. SQL92 goes to the broker as it is:
the broker decides, and refuses it where `enablePropertyFilter` is off, the default.

Java: SubscriptionData, FilterAPI, PullAPIWrapper.processPullResult (the second comparison).
Not supported: class filters, which brokers from 5.0 on do not have either.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from spark_mq.remoting.consumers import SubscriptionData
from storage.format.java_hash import string_hash

ExpressionType = Literal["TAG", "SQL92"]
ALL = "*"
_SEPARATOR = "||"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of one group; made by `subscription`. `version` is a time: of two at a broker, the later one counts."""

    topic: str
    expression: str
    expression_type: ExpressionType
    tags: frozenset[str]
    version: int = field(compare=False)

    def admits(self, tag: str | None) -> bool:
        """The second comparison, of a message's tag: not only its hash, the text itself is wanted."""
        return not self.tags or tag in self.tags

    def renewed(self, version: int) -> Subscription:
        """The same with a later version, with which brokers replace what they know; later also where the clock was set back.

        Java takes the clock's time, and its brokers go on with the subscription before.
        """
        return replace(self, version=max(version, self.version + 1))

    def in_place_of(self, before: Subscription | None) -> Subscription:
        """The same with a later version than that of the topic's subscription before, if there was one."""
        return self if before is None else replace(self, version=before.renewed(self.version).version)

    def wire_form(self) -> SubscriptionData:
        """As heartbeats and the answers to 307 hold it."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            tags=tuple(sorted(self.tags)),
            codes=tuple(sorted({string_hash(tag) for tag in self.tags})),
            sub_version=self.version,
            expression_type=self.expression_type,
        )


def subscription(
    topic: str, expression: str | None, version: int, expression_type: ExpressionType = "TAG"
) -> Subscription:
    """A subscription to tags (`A || B`; `*`, nothing or blanks only: all) or by an SQL92 expression.

    Raises ValueError where Java refuses the expression.
    """
    if expression_type not in get_args(ExpressionType):
        raise ValueError(f"{expression_type!r} is no expression type: write {' or '.join(get_args(ExpressionType))}")
    if expression_type == "SQL92":
        if not expression:
            raise ValueError("an SQL92 subscription needs an expression; to get everything, subscribe to tags '*'")
        return Subscription(topic, expression, expression_type, frozenset(), version)
    if not expression or expression == ALL:
        return Subscription(topic, ALL, expression_type, frozenset(), version)
    if not expression.replace(_SEPARATOR, ""):
        raise ValueError(f"{expression!r} names no tag: write tags with {_SEPARATOR} between them, or '*' for all")
    tags = (tag.strip(_JAVA_BLANKS) for tag in expression.split(_SEPARATOR))
    return Subscription(topic, expression, expression_type, frozenset(tag for tag in tags if tag), version)


_JAVA_BLANKS = "".join(map(chr, range(0x21)))  # what String.trim takes away
