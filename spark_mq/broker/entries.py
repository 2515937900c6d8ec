"""Entries of topics and groups as they stand on the wire and as tables hold them, and changes of their attributes. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from spark_mq.remoting.admin_bodies import SubscriptionGroupConfig as WireGroup
from spark_mq.remoting.route_bodies import DataVersion as WireVersion
from spark_mq.remoting.route_bodies import TopicConfigData, TopicQueueMappingInfo
from storage.tables.document import DataVersion
from storage.tables.subscription_groups import SubscriptionGroupConfig
from storage.tables.topic_queue_mappings import TopicQueueMapping
from storage.tables.topics import TopicConfig

_OTHER_NAMES = {"group": "group_name", "consume_timeout_minutes": "consume_timeout_minute"}


def wire_topic(config: TopicConfig) -> TopicConfigData:
    """A topic's entry for a body."""
    return TopicConfigData(
        topic_name=config.topic,
        read_queue_count=config.read_queue_count,
        write_queue_count=config.write_queue_count,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        is_order=config.order,
        attributes=config.attributes,
    )


def wire_topics(topics: Mapping[str, TopicConfig]) -> dict[str, TopicConfigData]:
    """All of a table, by name."""
    return {name: wire_topic(config) for name, config in topics.items()}


def topic_entry(told: TopicConfigData) -> TopicConfig:
    """A body's topic as an entry; its attributes are the change that is asked for."""
    return TopicConfig(
        told.topic_name or "",
        told.read_queue_count,
        told.write_queue_count,
        told.perm,
        told.topic_filter_type,
        told.topic_sys_flag,
        told.is_order,
        told.attributes,
    )


def wire_group(config: SubscriptionGroupConfig) -> WireGroup:
    """A group's entry for a body."""
    values: dict[str, Any] = {item.name: getattr(config, item.name) for item in fields(config)}
    return WireGroup(**{_OTHER_NAMES.get(name, name): value for name, value in values.items()})


def group_entry(told: WireGroup) -> SubscriptionGroupConfig:
    """A body's group as an entry."""
    names = [item.name for item in fields(SubscriptionGroupConfig)]
    return SubscriptionGroupConfig(**{name: getattr(told, _OTHER_NAMES.get(name, name)) for name in names})


def wire_mapping(mapping: TopicQueueMapping) -> TopicQueueMappingInfo:
    """Which logical queues of a static topic the broker leads. Java: TopicQueueMappingDetail.cloneAsMappingInfo."""
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


def wire_version(version: DataVersion) -> WireVersion:
    """Which state of a table."""
    return WireVersion(counter=version.counter, state_version=version.state_version, time_ms=version.timestamp_ms)


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
    current: Mapping[str, str] | None, change: Mapping[str, str], known: Mapping[str, _Attribute] = TOPIC_ATTRIBUTES
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
