"""A static topic as one broker knows it: which logical queues it leads, and which it does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from storage import open_store
from storage.tables.topics import MAPPINGS_FILE, MappingItem, TopicConfig, TopicQueueMapping, TopicQueueMappingTable

TOPIC, BROKER, OTHER = "Static", "broker-lab", "broker-other"
MADE_MS = 1_600_000_000_000
MAPPING = TopicQueueMapping(
    TOPIC,
    BROKER,
    6,
    MADE_MS,
    hosted_queues={
        1: (MappingItem(OTHER, 5, end_offset=12_345), MappingItem(BROKER, 2, generation=1, logic_offset=20_000)),
        2: (MappingItem(BROKER, 1, end_offset=7), MappingItem(OTHER, 6, generation=1, logic_offset=10_000)),
        4: (MappingItem(BROKER, 0),),
        5: (MappingItem(OTHER, 7, end_offset=9), MappingItem(BROKER, 3, generation=1, logic_offset=-1)),
    },
)
HERE_LED = {1: 2, 4: 0, 5: 3}
"""Logical queue → physical."""
NOT_HERE = {
    2: "logical queue 2 of static topic 'Static' is led by broker 'broker-other', and this is 'broker-lab': write it there",
    3: "broker 'broker-lab' leads no logical queue 3 of static topic 'Static'; the topic has 6 of them",
    6: "broker 'broker-lab' leads no logical queue 6 of static topic 'Static'; the topic has 6 of them",
}
"""Logical queue → why a row for it is refused."""


def make_static_store(root: Path) -> None:
    """A new store with the static topic and no message; its broker.conf lies beside it."""
    with open_store(root, read_only=False, create=True) as store:
        store.save_topic(TopicConfig(TOPIC, 4, 4))
    save_mapping(root, MAPPING.hosted_queues)


def save_mapping(root: Path, hosted_queues: Mapping[int, tuple[MappingItem, ...]]) -> None:
    """The topic's mapping, in place of an older one."""
    mapping = TopicQueueMapping(TOPIC, BROKER, MAPPING.total_queue_count, MADE_MS, hosted_queues=hosted_queues)
    table = TopicQueueMappingTable().with_mapping(mapping, now_ms=MADE_MS)
    with open_store(root, read_only=False) as store:
        store.save_state(MAPPINGS_FILE, table.to_text())
