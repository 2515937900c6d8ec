"""Which messages of a topic a group gets: by tags or by an SQL92 expression, as a heartbeat or the pull itself says.

A broker compares hashes of tags; the client compares the texts. Java: FilterAPI, ExpressionMessageFilter, ConsumerFilterManager.
Not supported: bit maps of bloom filters in extension units (`enableCalcFilterBitMap`, off by default), `filterSupportRetry`.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_mq.broker.sql92 import Expression, compile_expression
from spark_mq.broker.sql92_tokens import SqlError
from spark_mq.remoting.client_bodies import SubscriptionData
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


def message_filter(subscription: SubscriptionData, expression: Expression | None) -> MessageFilter:
    """What a pull's entries and records are held to; an SQL text that does not compile has no expression, and all pass."""
    if subscription.class_filter_mode:
        return ALL_MESSAGES
    if is_tag_type(subscription.expression_type):
        return ALL_MESSAGES if subscription.sub_string == ALL else MessageFilter(frozenset(subscription.codes))
    if expression is None:
        return ALL_MESSAGES
    return MessageFilter(accepts=lambda raw: expression(decode_properties(raw)))


def compiled(subscription: SubscriptionData) -> Expression | None:
    """The expression of an SQL92 subscription; None where its text is none."""
    try:
        return compile_expression(subscription.sub_string or "") if subscription.expression_type == SQL92 else None
    except SqlError:
        return None


def heed_subscriptions(
    known: dict[tuple[str, str], tuple[int, Expression]], group: str, subscriptions: Mapping[str, SubscriptionData]
) -> None:
    """Take the expressions of a group's heartbeat: later versions replace earlier ones, topics that are left out go.

    Java: ConsumerFilterManager.register.
    """
    for topic, subscription in subscriptions.items():
        version, _ = known.get((group, topic), (-1, None))
        if is_tag_type(subscription.expression_type) or subscription.sub_version <= version:
            continue
        if (expression := compiled(subscription)) is not None:
            known[group, topic] = subscription.sub_version, expression
        else:  # the group's next pull tells it
            known.pop((group, topic), None)
    for key in [key for key in known if key[0] == group and key[1] not in subscriptions]:
        del known[key]


def _trimmed(text: str) -> str:
    """Java: String.trim."""
    return text.strip("".join(map(chr, range(0x21))))
