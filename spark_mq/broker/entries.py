"""Entries of topics and groups as they stand on the wire, and as tables hold them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from spark_mq.remoting.admin_bodies import SubscriptionGroupConfig as WireGroup
from spark_mq.remoting.route_bodies import DataVersion as WireVersion
from spark_mq.remoting.route_bodies import TopicConfigData, TopicQueueMappingInfo
from storage.tables.data_version import DataVersion
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
