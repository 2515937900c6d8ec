"""Rows of one task become records: ordinary messages and transactions, or messages that go back to a consumer group.

Which of the two is decided by the options; either way a task that is run again on the same rows makes the same records.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from spark_mq.conditions import OptionError
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.options import SinkOptions
from storage.files.atomic_file import read_table
from storage.files.local_file_system import LocalFileSystem
from storage.format.record_block import BlockColumns, UnjoinedBlock, encode_parts
from storage.put.half_ends import with_states
from storage.put.put import PutOptions, message_rules
from storage.put.settings import PutSettings
from storage.rules.message_rows import MessageRows, from_kafka_columns
from storage.rules.retries import RetryRules, find_group
from storage.rules.retry_rows import ReturnedRows, ReturnRules
from storage.rules.values import RejectedRow
from storage.settings.load import StoreConfig
from storage.tables.consumer_groups import GROUPS_FILE, SubscriptionGroupTable

QUERY_PROPERTY = "SPARK_MQ_QUERY"
BATCH_PROPERTY = "SPARK_MQ_BATCH"
"""By these a transaction check finds the checkpoint that tells whether a half's micro-batch was committed."""


class EncodedRows(NamedTuple):
    """What a batch of rows has become."""

    blocks: tuple[UnjoinedBlock, ...]
    rejected: tuple[RejectedRow, ...]
    rejected_indices: np.ndarray
    topics: Mapping[str, int]
    """Topics that may be made, with how many queues."""
    grown: Mapping[str, int] = MappingProxyType({})
    """Topics that are there and get more queues, with how many."""
    destinations: tuple[tuple[str, int], ...] = ()
    """The queues that the rows are for, wherever they wait first."""
    commits: BlockColumns | None = None
    """What of the commits of half messages is staged; their records are made of the halves'."""
    unresolved: Mapping[str, int] = MappingProxyType({})
    """How many half messages of each topic nothing ends yet."""
    passing: tuple[RejectedRow, ...] = ()
    """Of `rejected`, those that may be taken at a later time, as they are."""
    overruled: Mapping[str, str] = MappingProxyType({})
    """By column, what a row says that has no effect (`storage.rules.message_rows.Prepared`)."""


class RowEncoder(Protocol):
    """Encodes one task's rows, batch after batch."""

    def encode(self, rows: pa.RecordBatch, now_ms: int) -> EncodedRows: ...


class MessageEncoder:
    """Rows that are sent."""

    def __init__(self, columns: InputColumns, settings: PutSettings, rows: MessageRows) -> None:
        self._columns = columns
        self._settings = settings
        self._rows = rows

    def encode(self, rows: pa.RecordBatch, now_ms: int) -> EncodedRows:
        prepared = self._rows.prepare(from_kafka_columns(rows) if self._columns.kafka else rows, now_ms)
        block = self._settings.encode_parts(prepared.messages)
        encoded = EncodedRows(
            (block,),
            prepared.rejected,
            prepared.rejected_indices,
            prepared.topics,
            prepared.grown,
            prepared.destinations,
            passing=prepared.passing,
            overruled=prepared.overruled,
        )
        if (ends := prepared.commits) is None:
            return encoded
        commits = self._settings.columns_of(ends.messages)
        return encoded._replace(blocks=(with_states(block, ends.states),), commits=commits, unresolved=ends.unresolved)


class ReturnEncoder:
    """Rows that are sent back."""

    def __init__(self, rules: ReturnRules) -> None:
        self._host = rules.host
        self._rows = ReturnedRows(rules)

    def encode(self, rows: pa.RecordBatch, now_ms: int) -> EncodedRows:
        returned = self._rows.prepare(rows, now_ms)
        blocks = tuple(encode_parts(part, self._host) for part in returned.parts)
        return EncodedRows(blocks, returned.rejected, returned.rejected_indices, returned.topics)


def row_encoder(
    options: SinkOptions,
    columns: InputColumns,
    config: StoreConfig,
    settings: PutSettings,
    files: LocalFileSystem,
    *,
    key_prefix: bytes,
    round_robin_start: int,
    marks: tuple[tuple[str, str], ...] = (),
) -> RowEncoder:
    """The encoder for a task. `marks` are properties that half messages get."""
    if options.send_back:
        return ReturnEncoder(_return_rules(options, config, settings, files))
    said = PutOptions(
        topic=options.topic,
        queue_count=options.queue_num,
        create_topic=options.create_topic,
        compress_body_over=options.compress_body_over,
        keep_unique_key=options.keep_unique_key,
        strict_properties=options.strict_properties,
        transactional=options.transactional,
        producer_group=options.producer_group,
        marks=marks,
        retries=_retry_rules(options, columns, config, files),
        is_repeatable=True,
    )
    rows = MessageRows(message_rules(settings, said), key_prefix, round_robin_start)
    return MessageEncoder(columns, settings, rows)


def _retry_rules(
    options: SinkOptions, columns: InputColumns, config: StoreConfig, files: LocalFileSystem
) -> RetryRules:
    if "retry_group" not in columns.names:
        return RetryRules()
    groups = read_groups(options.root, files).groups
    send = config.send
    return RetryRules(
        groups, send.auto_create_subscription_group, send.enable_create_sys_group, options.max_reconsume_times
    )


def _return_rules(
    options: SinkOptions, config: StoreConfig, settings: PutSettings, files: LocalFileSystem
) -> ReturnRules:
    assert options.consumer_group is not None, "sendBack=true needs it"
    group = find_group(
        options.consumer_group,
        read_groups(options.root, files).groups,
        auto_create=config.send.auto_create_subscription_group,
        create_system_groups=config.send.enable_create_sys_group,
    )
    if group is None:
        rule = f"there is no group {options.consumer_group!r}, and autoCreateSubscriptionGroup is false"
        raise OptionError("consumerGroup", rule)
    return ReturnRules(
        group,
        settings.host,
        settings.topics.topics,
        options.max_reconsume_times,
        settings.delays_ms,
        settings.limits,
        settings.appends_crc,
        config.send.broker_permission,
    )


def read_groups(root: str, files: LocalFileSystem) -> SubscriptionGroupTable:
    """The store's consumer groups; none where there is no store yet. Raises StateFileError."""
    path = f"{root}/config/{GROUPS_FILE}"
    return read_table(path, SubscriptionGroupTable.load, files.read_file) or SubscriptionGroupTable()
