"""A writing task: rows become records in a staged segment; the options decide about invalid rows. Stateless; opens what it needs.

By the options, rows are ordinary messages and transactions, or messages that go back to a consumer group. A task that runs again on
the same rows makes the same records. A task does not touch the log: its files lie beside it until the commit of the batch takes them.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_mq.conditions import OptionError, WriteFailedError, writing_conditions
from spark_mq.hand_over.local_socket import broker_note
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.dead_letters import RejectedRows
from spark_mq.sink.options import BATCH_PROPERTY, QUERY_PROPERTY, SinkOptions
from spark_mq.sink.place import SeenStore, check_task_place
from spark_mq.spark_api import WriterCommitMessage
from storage.batch.intent import DeadLetterFile
from storage.batch.ledger import Batch
from storage.batch.staged_segment import SegmentWriter, StagedSegment, sink_digest
from storage.epoch_times import current_time_ms
from storage.files.local_file_system import LocalFileSystem, read_table
from storage.files.os_errors import host_name
from storage.format.record import V4_HOST_SIZE
from storage.format.record_block import BlockColumns, UnjoinedBlock, encode_parts
from storage.put.half_ends import with_states
from storage.put.settings import PutOptions, PutSettings, message_rules, parse_host, put_settings, refuse_before_start
from storage.rules.message_rows import MessageRows, from_kafka_columns
from storage.rules.retries import RetryRules, find_group
from storage.rules.retry_rows import ReturnedRows, ReturnRules
from storage.rules.values import RejectedRow
from storage.settings.load import StoreConfig, load_config
from storage.tables.consumer_groups import SubscriptionGroupTable
from storage.tables.document import GROUPS_FILE


class EncodedRows(NamedTuple):
    """The result of a batch of rows."""

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
    """The staged part of commits of half messages; their records are made from the halves."""
    unresolved: Mapping[str, int] = MappingProxyType({})
    """Number of half messages without an end, by topic."""
    passing: tuple[RejectedRow, ...] = ()
    """Those of `rejected` that may be taken at a later time, as they are."""
    overruled: Mapping[str, str] = MappingProxyType({})
    """By column, what a row says that has no effect (`storage.rules.message_rows.Prepared`)."""


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
) -> MessageEncoder | ReturnEncoder:
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
        groups,
        send.auto_create_subscription_group,
        send.enable_create_sys_group,
        options.max_reconsume_times,
        config.release.longest_group,
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
        longest=config.release.longest_group,
    )
    if group is None and (rule := config.release.refusal_of_group(options.consumer_group)) is not None:
        raise OptionError("consumerGroup", rule)
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
        appends_crc=settings.appends_crc,
        indexes_tags=settings.release.indexes_tags,
        broker_permission=config.send.broker_permission,
    )


def read_groups(root: str, files: LocalFileSystem) -> SubscriptionGroupTable:
    """The store's consumer groups; none where there is no store yet. Raises StateFileError."""
    path = f"{root}/config/{GROUPS_FILE}"
    return read_table(path, SubscriptionGroupTable.load, files.read_file) or SubscriptionGroupTable()


_MAX_PARTITIONS = 1 << 16  # a unique key has two bytes for it
_LONG_HOST_SUFFIX = "-v6"  # the records of a segment are all born at hosts of one kind
_COMMITS_SUFFIX = "-commits"


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """The staged files of one task: names and numbers."""

    batch: Batch
    segments: tuple[StagedSegment, ...]
    topics: dict[str, int]
    """Topics that may be made, with how many queues."""
    grown: dict[str, int] = field(default_factory=dict)
    """Topics that are there and get more queues, with how many."""
    dead_letters: DeadLetterFile | None = None
    commits: tuple[StagedSegment, ...] = ()
    """The ends of the segments' half messages."""
    destinations: tuple[tuple[str, int], ...] = ()
    """The queues of rows that wait elsewhere first."""
    unresolved: Counter[str] = field(default_factory=Counter)
    """Number of half messages without an end, by topic."""
    host: str = ""
    """The machine that has staged them."""
    overruled: dict[str, str] = field(default_factory=dict)
    """By column, what a row says that has no effect (`columns.warn_of_overruled`)."""
    refused: int = 0
    """Number of dead letters."""


def stage_rows(
    options: SinkOptions,
    columns: InputColumns,
    batch: Batch,
    partition: int,
    attempt: int,
    frames: Iterator[pa.RecordBatch],
    *,
    is_only: bool = False,
    seen: SeenStore | None = None,
) -> StagedRows:
    """Encode the rows of a task and stage them. `is_only`: no other batch has this one's sink and query, so no key needs its number.
    `seen` is the store that the driver saw, where there was one.

    Raises InvalidRowError, WritesOwnSourceError, WriteFailedError, or a storage error's condition; what was staged is given back then.
    """
    if partition >= _MAX_PARTITIONS:
        raise WriteFailedError(f"partition {partition}: a write has at most {_MAX_PARTITIONS}; coalesce the rows")
    with writing_conditions(options.root):
        if seen is not None:
            check_task_place(options.root, seen)
        writer = _PartitionWriter(options, columns, batch, partition, attempt, is_only)
    try:
        for frame in frames:
            with writing_conditions(options.root):
                writer.append(frame)
        with writing_conditions(options.root):
            return writer.finish()
    except BaseException as error:
        try:
            writer.discard()
        except OSError as left:  # it must not take the place of what has happened
            error.add_note(f"what was staged could not all be given back: {left}")
        raise


class _PartitionWriter:
    def __init__(
        self,
        options: SinkOptions,
        columns: InputColumns,
        batch: Batch,
        partition: int,
        attempt: int,
        is_only: bool,
    ) -> None:
        files = LocalFileSystem()
        config = load_config(
            options.root, options.conf, read_bytes=files.read_file, rocketmq_version=options.rocketmq_version
        )
        settings = settings_of(options, config, files)
        if not options.send_back:
            refuse_before_start(options.root, settings, current_time_ms())
        digest = sink_digest(batch.sink_id, batch.query_id)
        # With four bytes, two of 65,000 writes would share all keys with a probability of 0.4.
        behind = digest[4:8] if is_only else (batch.batch_id % (1 << 32)).to_bytes(4, "big")
        # Attempt ids begin anew with every driver, and an intent may still name the segment of one that died.
        name = f"{attempt}-{uuid.uuid4().hex}"
        self._files = files
        self._root = options.root
        self._columns = columns
        self._batch = batch
        self._partition = partition
        self._encoder = row_encoder(
            options,
            columns,
            config,
            settings,
            files,
            key_prefix=digest[:4] + partition.to_bytes(2, "big") + behind,
            # A replay of the batch makes the same choices; small batches do not all begin with queue 0.
            round_robin_start=partition + batch.batch_id,
            marks=() if is_only else ((QUERY_PROPERTY, batch.query_id), (BATCH_PROPERTY, str(batch.batch_id))),
        )
        self._topics: Counter[str] = Counter()
        self._grown: Counter[str] = Counter()
        self._destinations: dict[tuple[str, int], None] = {}
        self._unresolved: Counter[str] = Counter()
        self._overruled: dict[str, str] = {}
        self._directory = digest.hex()
        self._name = f"{batch.batch_id}-{partition}-{name}"
        self._segments: dict[str, SegmentWriter] = {}
        self._rejected = RejectedRows(options.dead_letter_path, batch, partition, name)

    def append(self, frame: pa.RecordBatch) -> None:
        encoded = self._encoder.encode(frame.select(list(self._columns.names)), current_time_ms())
        self._columns.refuse_own(encoded.topics)
        self._rejected.take(frame, encoded.rejected, encoded.rejected_indices, passing=encoded.passing)
        self._topics |= Counter(encoded.topics)  # of each the greater number
        self._grown |= Counter(encoded.grown)
        self._destinations.update(dict.fromkeys(encoded.destinations))
        self._unresolved.update(encoded.unresolved)
        self._overruled |= encoded.overruled
        for block in encoded.blocks:
            self._segment("" if block.columns.host_size == V4_HOST_SIZE else _LONG_HOST_SUFFIX).append(block)
        if encoded.commits is not None:
            self._segment(_COMMITS_SUFFIX).append_commits(encoded.blocks[0], encoded.commits)

    def finish(self) -> StagedRows:
        # In this order: a finished file of dead letters can still be discarded, a finished segment cannot.
        dead_letters = self._rejected.finish()
        finished = {suffix: writer.finish() for suffix, writer in self._segments.items()}
        segments = {suffix: segment for suffix, segment in finished.items() if segment is not None}
        commits = segments.pop(_COMMITS_SUFFIX, None)
        return StagedRows(
            self._batch,
            tuple(segments.values()),
            dict(self._topics),
            dict(self._grown),
            dead_letters,
            () if commits is None else (commits,),
            tuple(self._destinations),
            self._unresolved,
            host=host_name(),
            overruled=self._overruled,
            refused=self._rejected.rows,
        )

    def discard(self) -> None:
        with ExitStack() as discarding:  # the others too where one fails: each holds a file and a thread
            discarding.callback(self._rejected.discard)
            for segment in self._segments.values():
                discarding.callback(segment.discard)

    def _segment(self, suffix: str) -> SegmentWriter:
        """The segment for records of one kind."""
        if suffix not in self._segments:
            self._segments[suffix] = SegmentWriter(self._files, self._root, self._directory, self._name + suffix)
        return self._segments[suffix]


def settings_of(options: SinkOptions, config: StoreConfig, files: LocalFileSystem) -> PutSettings:
    """What the store says of itself now, with what the options add. Where neither option nor brokerIP1 says it, its host is that of the
    broker that runs there, or was killed there: it may have moved since the last record.
    """
    settings = put_settings(
        options.root, config, files, options.store_host, options.broker_name, options.flush_disk_type
    )
    if options.store_host is None and config.identity.broker_ip1 is None:
        note = broker_note(options.root)
        return settings if note is None else replace(settings, host=parse_host(note.store_host, "storeHost"))
    return settings
