"""Filters of a group's messages: tags or an SQL92 expression, from a heartbeat or from the pull itself.

A broker compares hashes of tags; the client compares the texts. Heartbeats carry the expressions by which groups filter topics. The
broker keeps them over restarts, and for a while after their groups have left. Each change replaces the table, so the dispatching
thread reads a table that does not change. One thread at a time may make changes.

Java: FilterAPI, ExpressionMessageFilter, ConsumerFilterManager, CommitLogDispatcherCalcBitMap. Departure: a filter is born when the
dispatching thread knows it; Java sets its time before, so that a message between the two may be withheld from the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from spark_mq.broker.sql92 import Expression, SqlError, compile_expression
from spark_mq.remoting.consumers import SubscriptionData
from storage.format.arrays import string_hash
from storage.format.bloom_filter import BitTest, BloomFilter, MapsOf
from storage.format.properties import decode_properties
from storage.service.served_store import ALL_MESSAGES, MessageFilter
from storage.tables.consumer_groups import BloomData, ConsumerFilter, ConsumerFilterTable

_AT_START_MS = 30_000
"""Age of a group's departure if a broker finds the group in its file. Java: ConsumerFilterManager.decode."""
_NEVER_MS = 2**63 - 1
ALL = "*"
SQL92 = "SQL92"
TAG = "TAG"


class KnownFilter(NamedTuple):
    """A group's filter of a topic and its expression; None where the file has one that is none: then all messages pass."""

    filter: ConsumerFilter
    expression: Expression | None

    def changed(self, **changes: int) -> KnownFilter:
        """With other times or another version."""
        return self._replace(filter=replace(self.filter, **changes))  # type: ignore[arg-type]

    def is_same(self, text: str, expression_type: str, bloom: BloomData) -> bool:
        """Whether it wants the same messages, by the same bits."""
        known = self.filter
        return (known.expression, known.expression_type, known.bloom) == (text, expression_type, bloom)


class ConsumerFilters:
    """All of them. Times are ms."""

    def __init__(
        self,
        shape: BloomFilter,
        table: ConsumerFilterTable | None = None,
        *,
        clock: Callable[[], int],
        kept_ms: int = 86_400_000,
    ) -> None:
        """`table` is the file's; all of it is dropped where its bits are of another shape, as in Java. `kept_ms` is how long a dead
        filter stays.
        """
        self.shape = shape
        self._clock = clock
        self._kept_ms = kept_ms
        self._is_changed = False
        self._known: Mapping[str, Mapping[str, KnownFilter]] = {}
        if table is not None and all(_is_of_shape(each.bloom, shape) for each in table):
            now_ms = clock()
            self._known = {
                topic: {group: _loaded(each, now_ms) for group, each in groups.items()}
                for topic, groups in table.topics.items()
            }

    # Heartbeats

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take the expressions of a heartbeat: new or newer ones are added; those of topics that it leaves out die."""
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                self._register(group, subscription)
        self._bury(group, topics)

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        topic, text, expression_type = (
            subscription.topic,
            subscription.sub_string or "",
            subscription.expression_type or "",
        )
        old = self.find(topic, group)
        if old is not None and subscription.sub_version <= old.filter.client_version:
            if subscription.sub_version == old.filter.client_version and old.filter.is_dead:
                self._set(topic, group, old.changed(dead_ms=0))
            return
        bloom = BloomData(self.shape.bit_count, self.shape.positions(f"{group}#{topic}"))
        if old is not None and old.is_same(text, expression_type, bloom):
            self._set(topic, group, old.changed(client_version=subscription.sub_version, dead_ms=0))
            return
        expression = compiled_text(expression_type, text)
        if expression is None:  # the group's next pull tells it
            self._drop(topic, group)
            return
        new = KnownFilter(
            ConsumerFilter(
                group,
                topic,
                text,
                expression_type,
                born_ms=_NEVER_MS,
                client_version=subscription.sub_version,
                bloom_document=bloom.to_document(),
            ),
            expression,
        )
        self._set(topic, group, new)
        self._set(topic, group, new.changed(born_ms=self._clock()))

    def unregister(self, group: str) -> None:
        """The group has left."""
        self._bury(group, set())

    def _bury(self, group: str, kept_topics: set[str]) -> None:
        now_ms = self._clock()
        for topic, groups in self._known.items():
            known = groups.get(group)
            if known is not None and topic not in kept_topics and not known.filter.is_dead:
                self._set(topic, group, known.changed(dead_ms=now_ms))

    def _set(self, topic: str, group: str, known: KnownFilter) -> None:
        self._known = {**self._known, topic: {**self._known.get(topic, {}), group: known}}
        self._is_changed = True

    def _drop(self, topic: str, group: str) -> None:
        if self.find(topic, group) is not None:
            groups = {name: known for name, known in self._known[topic].items() if name != group}
            others = {name: known for name, known in self._known.items() if name != topic}
            self._known = {**others, topic: groups} if groups else others
            self._is_changed = True

    # Pulls and dispatch

    def find(self, topic: str, group: str) -> KnownFilter | None:
        """The group's filter for the topic, dead or alive; None if unknown."""
        return self._known.get(topic, {}).get(group)

    def bit_test(self, known: KnownFilter) -> BitTest | None:
        """The group's check of bit maps; None if there is nothing to compare."""
        bloom = known.filter.bloom
        if known.expression is None or not _is_of_shape(bloom, self.shape) or bloom is None:
            return None
        return BitTest(self.shape, bloom.positions, known.filter.born_ms)

    def maps_of(self, topic: str) -> MapsOf | None:
        """The maker of bit maps for a topic's messages; None if no group filters it. By any thread."""
        found = self._known.get(topic)
        return None if not found else lambda properties: self._maps(found, properties)

    def _maps(self, found: Mapping[str, KnownFilter], properties: Sequence[bytes]) -> np.ndarray:
        decoded = [decode_properties(raw) for raw in properties]
        sets = []
        for known in found.values():
            test = self.bit_test(known)
            if test is not None and (expression := known.expression) is not None:
                sets.append((test.positions, np.array([expression(each) for each in decoded], bool)))
        return self.shape.maps(sets, len(decoded))

    # The file

    def note_unsaved(self) -> None:
        """The table that was taken is not in the file."""
        self._is_changed = True

    def take_change(self) -> ConsumerFilterTable | None:
        """The table for the file, without filters that have been dead for too long; None if unchanged since the last call."""
        now_ms = self._clock()
        for topic, groups in self._known.items():
            for group, known in groups.items():
                if known.filter.is_dead and now_ms - known.filter.dead_ms >= self._kept_ms:
                    self._drop(topic, group)
        was_changed, self._is_changed = self._is_changed, False
        if not was_changed:
            return None
        return ConsumerFilterTable(
            {topic: {group: known.filter for group, known in groups.items()} for topic, groups in self._known.items()}
        )


def _is_of_shape(bloom: BloomData | None, shape: BloomFilter) -> bool:
    """Java: BloomFilter.isValid."""
    return bloom is not None and (bloom.bit_count, len(bloom.positions)) == (shape.bit_count, shape.hash_count)


def _loaded(found: ConsumerFilter, now_ms: int) -> KnownFilter:
    """All groups are taken for gone when a broker starts, since a while ago."""
    if found.dead_ms == 0:
        found = replace(found, dead_ms=max(found.born_ms, now_ms - _AT_START_MS))
    return KnownFilter(found, compiled_text(found.expression_type, found.expression))


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
    """The filter for a pull's entries and records; an SQL text that does not compile has no expression, and all messages pass."""
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
