"""What a writing task does: rows into a staged segment, and invalid rows to where the options say. Stateless; opens what it needs.

The log is not touched: what a task leaves lies beside it until the batch's commit takes it over.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from spark_mq.conditions import InvalidRowError, WriteFailedError, writing_conditions
from spark_mq.hand_over.local_socket import broker_note
from spark_mq.sink.columns import InputColumns
from spark_mq.sink.dead_letters import DeadLetterWriter
from spark_mq.sink.options import SinkOptions
from spark_mq.sink.own_source import refuse_own
from spark_mq.sink.place import SeenStore, check_task_place
from spark_mq.sink.row_encoder import BATCH_PROPERTY, QUERY_PROPERTY, row_encoder
from storage.batch.intent import DeadLetterFile
from storage.batch.ledger import Batch
from storage.batch.staged_segment import SegmentWriter, StagedSegment, sink_digest
from storage.epoch_times import current_time_ms
from storage.files.local_file_system import LocalFileSystem
from storage.files.os_errors import host_name
from storage.format.record import V4_HOST_SIZE
from storage.put.settings import PutSettings, parse_host, put_settings, refuse_before_start
from storage.settings.load import StoreConfig, load_config

_REJECTIONS_SHOWN = 5
_MAX_PARTITIONS = 1 << 16  # a unique key has two bytes for it
_LONG_HOST_SUFFIX = "-v6"  # the records of a segment are all born at hosts of one kind
_COMMITS_SUFFIX = "-commits"


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What one task has staged: names and numbers; the rows lie in the files."""

    batch: Batch
    segments: tuple[StagedSegment, ...]
    topics: dict[str, int]
    """Topics that may be made, with how many queues."""
    grown: dict[str, int] = field(default_factory=dict)
    """Topics that are there and get more queues, with how many."""
    dead_letters: DeadLetterFile | None = None
    commits: tuple[StagedSegment, ...] = ()
    """What ends the segments' half messages."""
    destinations: tuple[tuple[str, int], ...] = ()
    """The queues of rows that wait elsewhere first."""
    unresolved: Counter[str] = field(default_factory=Counter)
    """How many half messages of each topic nothing ends yet."""
    host: str = ""
    """The machine that has staged them."""
    overruled: dict[str, str] = field(default_factory=dict)
    """By column, what a row says that has no effect (`columns.warn_of_overruled`)."""
    refused: int = 0
    """How many rows are dead letters."""


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
        # Of 65,000 writes, two would share all keys with a probability of 0.4 if four bytes told them apart.
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
        self._dead_letters = None
        if options.dead_letter_path is not None:
            self._dead_letters = DeadLetterWriter(
                files,
                options.dead_letter_path,
                sink=digest.hex(),
                batch_id=batch.batch_id,
                partition=partition,
                attempt=name,
            )

    def append(self, frame: pa.RecordBatch) -> None:
        encoded = self._encoder.encode(frame.select(list(self._columns.names)), current_time_ms())
        refuse_own(self._columns.own_topics.intersection(encoded.topics))
        if encoded.rejected:
            # A dead letter stays one. If a repeated batch took the row by then, it would be another batch than the one in the log.
            failing = encoded.rejected if self._dead_letters is None else encoded.passing
            if self._dead_letters is None or failing:
                raise InvalidRowError(self._partition, len(failing), *failing[:_REJECTIONS_SHOWN])
            self._dead_letters.append(frame.take(pa.array(encoded.rejected_indices)), encoded.rejected)
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
        dead_letters = None if self._dead_letters is None else self._dead_letters.finish()
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
            refused=0 if self._dead_letters is None else self._dead_letters.rows,
        )

    def discard(self) -> None:
        with ExitStack() as discarding:  # the others too where one fails: each holds a file and a thread
            if self._dead_letters is not None:
                discarding.callback(self._dead_letters.discard)
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
