"""Attributes of topics and groups, how operators change them, pages of them, and the data that name servers get about static topics.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple, TypeVar

from spark_mq.remoting import read_body
from spark_mq.remoting.routes import TopicQueueMappingInfo
from storage.format.typed_json import DataVersion
from storage.settings.nouns import Release
from storage.tables.topics import TopicQueueMapping


def wire_mapping(mapping: TopicQueueMapping) -> TopicQueueMappingInfo:
    """The logical queues of a static topic that this broker leads. Java: TopicQueueMappingDetail.cloneAsMappingInfo."""
    leaders = {queue_id: items[-1] for queue_id, items in mapping.hosted_queues.items() if items}
    return TopicQueueMappingInfo(
        topic=mapping.topic,
        total_queues=mapping.total_queue_count,
        broker_name=mapping.broker_name,
        epoch=mapping.epoch,
        current_ids={
            queue_id: leader.queue_id
            for queue_id, leader in leaders.items()
            if leader.broker_name == mapping.broker_name
        },
    )


# Pages of topics and groups, which brokers and clients from 5.4.0 on ask for.
# Java: TopicConfigManager.subTopicConfigTable, SubscriptionGroupManager.subGroupTable.

PAGE_MOST = 2_000
"""Java: BrokerConfig.splitMetadataSize."""
_T = TypeVar("_T")


def page_of(
    table: Mapping[str, _T], version: DataVersion, first: int | None, known_version: str | None, most: int | None
) -> dict[str, _T]:
    """The entries from number `first` on, by name. A page of another version than the pages before begins at 0.

    Departure: a page that would leave one entry takes it, too. Java's slave asks for no page of the last entry alone.
    Raises BodyError for a version that is none.
    """
    begin = max(0, first or 0)
    if begin and (not known_version or read_body(DataVersion, known_version.encode()) != version):
        begin = 0
    end = begin + max(1, PAGE_MOST if most is None else min(most, PAGE_MOST))
    if end == len(table) - 1:
        end += 1
    return {name: table[name] for name in islice(sorted(table), begin, end)}


# Attributes: `+name=value,-name` as an operator says them, and what comes of it. Java: AttributeParser,
# AttributeUtil.alterCurrentAttributes, TopicAttributes, EnumAttribute, LongRangeAttribute.

_LONG = re.compile("-?[0-9]{1,19}")


class AttributeRefusedError(Exception):
    """A change that a broker does not make; the text is Java's."""


class _Attribute(NamedTuple):
    changeable: bool
    values: frozenset[str] | None
    """None = a number of at least −1."""


TOPIC_ATTRIBUTES: Mapping[str, _Attribute] = {
    "queue.type": _Attribute(False, frozenset(("BatchCQ", "SimpleCQ"))),
    "cleanup.policy": _Attribute(False, frozenset(("DELETE", "COMPACTION"))),
    "message.type": _Attribute(True, frozenset(("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"))),
    "reserve.time": _Attribute(True, None),
}
_WITH_PRIORITY = {
    **TOPIC_ATTRIBUTES,
    "message.type": _Attribute(True, frozenset((*(TOPIC_ATTRIBUTES["message.type"].values or ()), "PRIORITY"))),
}


def topic_attributes(release: Release) -> Mapping[str, _Attribute]:
    """The attributes that a topic may have. Not supported: lite topics (`message.type=LITE`, `lite.topic.expiration`)."""
    return _WITH_PRIORITY if release.honours_priority else TOPIC_ATTRIBUTES


def parse_attributes(text: str | None) -> dict[str, str]:
    """By name with its sign: `+name` with a value, `-name` with "". Raises AttributeRefusedError."""
    parsed: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if equals and "+" not in name:
            raise AttributeRefusedError(f"add/alter attribute format is wrong: {name}")
        if not equals and "-" not in name:
            raise AttributeRefusedError(f"delete attribute format is wrong: {name}")
        if name in parsed:
            raise AttributeRefusedError(f"key duplication: {name}")
        parsed[name] = value.partition("=")[0]
    return parsed


def changed_attributes(
    current: Mapping[str, str] | None, change: Mapping[str, str], known: Mapping[str, _Attribute]
) -> dict[str, str]:
    """The attributes after a change, `current` None of what is made now. Raises AttributeRefusedError."""
    result = dict(current or {})
    seen: set[str] = set()
    for signed, value in change.items():
        sign, name = signed[:1], signed[1:]
        if not name or "+" in name or "-" in name:
            raise AttributeRefusedError("kv string format wrong.")
        if name in seen:
            raise AttributeRefusedError(f"alter duplication key. key: {name}")
        seen.add(name)
        if current is None and sign != "+":
            raise AttributeRefusedError(f"only add attribute is supported while creating topic. key: {name}")
        if sign not in "+-":
            raise AttributeRefusedError(f"wrong format key: {name}")
        if sign == "-" and name not in result:
            raise AttributeRefusedError(f"attempt to delete a nonexistent key: {name}")
        _check(name, value, known, is_new=current is None, is_deleted=sign == "-")
        if sign == "-":
            del result[name]
        else:
            result[name] = value
    return result


def _check(name: str, value: str, known: Mapping[str, _Attribute], *, is_new: bool, is_deleted: bool) -> None:
    attribute = known.get(name)
    if attribute is None:
        raise AttributeRefusedError(f"unsupported key: {name}")
    if not is_new and not attribute.changeable:
        raise AttributeRefusedError(f"attempt to update an unchangeable attribute. key: {name}")
    if is_deleted:
        return
    if attribute.values is None:
        if not _LONG.fullmatch(value) or not -1 <= int(value) < 1 << 63:
            raise AttributeRefusedError(f"value is not in range(-1, {2**63 - 1})")
    elif value not in attribute.values:
        raise AttributeRefusedError(f"value is not in set: [{', '.join(sorted(attribute.values))}]")
