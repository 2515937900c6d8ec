"""Stores with what the cases of `put_cases/` need to be there, and a handler on them."""

from __future__ import annotations

from pathlib import Path

from storage import MessageStore, open_store
from storage.settings.load import StoreConfig, parse_config
from storage.tables.consumer_groups import SubscriptionGroupTable
from storage.tables.document import GROUPS_FILE
from storage.tables.topics import MAPPINGS_FILE, TopicQueueMappingTable
from tests.broker.put_cases import CASES
from tests.broker.put_cases.case import CONFS, PAST_MS
from tests.broker.put_cases.of_batches import STATIC
from tests.broker.put_cases.of_transactions import GROUPS

LOG_FILE_SIZE_BYTES = 1 << 20
QUEUE_FILE_SIZE_BYTES = 20_000


def conf_text(conf: str, **settings: str) -> str:
    """The broker.conf of a conf by name."""
    lines = {
        "mappedFileSizeCommitLog": str(LOG_FILE_SIZE_BYTES),
        "mappedFileSizeConsumeQueue": str(QUEUE_FILE_SIZE_BYTES),
        "maxHashSlotNum": "1000",
        "maxIndexNum": "2000",
        **CONFS[conf],
        **settings,
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def config_of(conf: str, **settings: str) -> StoreConfig:
    """The settings of a conf by name."""
    return parse_config(conf_text(conf, **settings).encode())


def open_case_store(root: Path, conf: str, **settings: str) -> MessageStore:
    """A new store, open for writing, with the topics, groups and static topics of the cases of that conf."""
    store = open_store(root, config=config_of(conf, **settings), read_only=False, create=True)
    for case in CASES:
        if case.topic is not None and case.conf == conf:
            store.save_topic(case.topic)
    groups, mappings = SubscriptionGroupTable(), TopicQueueMappingTable()
    for group in GROUPS:
        groups = groups.with_group(group, now_ms=PAST_MS)
    for mapping in STATIC:
        mappings = mappings.with_mapping(mapping, now_ms=PAST_MS)
    store.save_state(GROUPS_FILE, groups.to_text())
    store.save_state(MAPPINGS_FILE, mappings.to_text())
    store.close()  # what is opened next knows all of it
    return open_store(root, config=config_of(conf, **settings), read_only=False)
