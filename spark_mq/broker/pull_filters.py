"""Which messages of a topic a group gets: by tags or by an SQL92 expression, as a heartbeat or the pull itself says.

A broker compares hashes of tags; the client compares the texts. Java: FilterAPI, ExpressionMessageFilter.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_mq.broker.sql92 import Expression, SqlError, compile_expression
from spark_mq.remoting.consumers import SubscriptionData
from storage.format.bloom_filter import BitTest
from storage.format.java_hash import string_hash
from storage.format.properties import decode_properties
from storage.service.raw_get import ALL_MESSAGES, MessageFilter

ALL = "*"
SQL92 = "SQL92"
TAG = "TAG"


def is_tag_type(expression_type: str | None) -> bool:
    """Whether tags are meant: also where nothing is said. Java: ExpressionType.isTagType."""
    return expression_type in (None, "", TAG)


def pull_subscription(topic: str, expression: str | None, expression_type: str | None, now_ms: int) -> SubscriptionData:
    """The subscription that a pull carries, of the version of now. Raises ValueError where there is none. Java: FilterAPI.build."""
    if expression_type not in (None, TAG):
        if not expression:
            raise ValueError("an expression is needed")
        return SubscriptionData(topic=topic, sub_string=expression, expression_type=expression_type, sub_version=now_ms)
    if not expression or expression == ALL:
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=now_ms)
    tags = [tag for part in expression.split("||") if (tag := _trimmed(part))]
    if not expression.strip("|"):
        raise ValueError("no tag")
    codes = tuple(dict.fromkeys(string_hash(tag) for tag in tags))
    return SubscriptionData(
        topic=topic, sub_string=expression, tags=tuple(dict.fromkeys(tags)), codes=codes, sub_version=now_ms
    )


def message_filter(
    subscription: SubscriptionData, expression: Expression | None, bits: BitTest | None = None
) -> MessageFilter:
    """What a pull's entries and records are held to; an SQL text that does not compile has no expression, and all pass."""
    if subscription.class_filter_mode:
        return ALL_MESSAGES
    if is_tag_type(subscription.expression_type):
        return ALL_MESSAGES if subscription.sub_string == ALL else MessageFilter(frozenset(subscription.codes))
    if expression is None:
        return ALL_MESSAGES
    return MessageFilter(bits=bits, accepts=lambda raw: expression(decode_properties(raw)))


def retry_filter(
    subscription: SubscriptionData, expression_of: Callable[[str], Expression | None], bits: BitTest | None = None
) -> MessageFilter:
    """As `message_filter`, for a retry topic: each message is held to the group's expression for the topic that it comes from.

    Java: ExpressionForRetryMessageFilter.
    """
    if subscription.class_filter_mode or is_tag_type(subscription.expression_type):
        return message_filter(subscription, None)

    def accepts(raw: bytes) -> bool:
        properties = decode_properties(raw)
        expression = expression_of(properties.get("RETRY_TOPIC", ""))
        return expression is None or expression(properties)

    return MessageFilter(bits=bits, accepts=accepts)


def compiled(subscription: SubscriptionData) -> Expression | None:
    """The expression of an SQL92 subscription; None where its text is none."""
    return compiled_text(subscription.expression_type, subscription.sub_string)


def compiled_text(expression_type: str | None, text: str | None) -> Expression | None:
    """The expression; None where the text is none, or the type another than SQL92."""
    try:
        return compile_expression(text or "") if expression_type == SQL92 else None
    except SqlError:
        return None


def _trimmed(text: str) -> str:
    """Java: String.trim."""
    return text.strip("".join(map(chr, range(0x21))))
