"""What a writing task does: rows into one staged segment, and invalid rows to where the options say. Stateless; opens what it needs.

The log is not touched: what a task leaves lies beside it until the batch's commit takes it over.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from spark_mq.conditions import InvalidRowError, WriteFailedError, writing_conditions
from spark_mq.dead_letters import DeadLetterWriter
from spark_mq.sink_columns import InputColumns
from spark_mq.sink_options import SinkOptions
from storage.batch_ledger import Batch
from storage.config import load_config
from storage.files.file_system import LocalFileSystem
from storage.format.record_block import encode_block
from storage.kafka_rows import from_kafka_columns
from storage.message_rows import MessageRows
from storage.message_rules import MessageRules
from storage.put import message_rules
from storage.put_settings import PutSettings, put_settings
from storage.staged_segment import SegmentWriter, StagedSegment, sink_digest

_REJECTIONS_SHOWN = 5
_MAX_PARTITIONS = 1 << 16  # a unique key has two bytes for it


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What one task has staged: names and numbers; the rows lie in the files."""

    batch: Batch
    segment: StagedSegment | None
    topics: tuple[str, ...]
    dead_letters: tuple[str, str] | None


def stage_rows(
    options: SinkOptions,
    columns: InputColumns,
    batch: Batch,
    partition: int,
    attempt: int,
    frames: Iterator[pa.RecordBatch],
    *,
    is_only: bool = False,
) -> StagedRows:
    """Encode the rows of a task and stage them. `is_only`: no other batch has this one's sink and query, so no key needs its number.

    Raises InvalidRowError, WriteFailedError, or a storage error's condition; what was staged is given back then.
    """
    if partition >= _MAX_PARTITIONS:
        raise WriteFailedError(f"partition {partition}: a write has at most {_MAX_PARTITIONS}; coalesce the rows")
    with writing_conditions(options.root):
        writer = _PartitionWriter(options, columns, batch, partition, attempt, is_only)
    try:
        for frame in frames:
            with writing_conditions(options.root):
                writer.append(frame)
        with writing_conditions(options.root):
            return writer.finish()
    except BaseException:
        writer.discard()
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
        settings = settings_of(options, files)
        digest = sink_digest(batch.sink_id, batch.query_id)
        # Of 65,000 writes, two would share all keys with a probability of 0.4 if four bytes told them apart.
        behind = digest[4:8] if is_only else (batch.batch_id % (1 << 32)).to_bytes(4, "big")
        prefix = digest[:4] + partition.to_bytes(2, "big") + behind
        # Attempt ids begin anew with every driver, and an intent may still name the segment of one that died.
        name = f"{attempt}-{uuid.uuid4().hex}"
        self._columns = columns
        self._batch = batch
        self._partition = partition
        self._host = settings.host
        # A replay of the batch makes the same choices; small batches do not all begin with queue 0.
        self._rows = MessageRows(_rules_of(settings, options), prefix, partition + batch.batch_id)
        self._topics: dict[str, None] = {}
        self._segment = SegmentWriter(files, options.root, digest.hex(), f"{batch.batch_id}-{partition}-{name}")
        self._dead_letters = None
        if options.dead_letter_path is not None:
            self._dead_letters = DeadLetterWriter(
                files,
                options.dead_letter_path,
                batch=f"{digest.hex()}-{batch.batch_id}",
                partition=partition,
                attempt=name,
            )

    def append(self, frame: pa.RecordBatch) -> None:
        taken = frame.select(list(self._columns.names))
        prepared = self._rows.prepare(from_kafka_columns(taken) if self._columns.kafka else taken, _now_ms())
        if prepared.rejected:
            if self._dead_letters is None:
                shown = prepared.rejected[:_REJECTIONS_SHOWN]
                raise InvalidRowError(self._partition, len(prepared.rejected), *shown)
            self._dead_letters.append(frame.take(pa.array(prepared.rejected_indices)), prepared.rejected)
        self._topics.update(dict.fromkeys(topic for topic, _ in prepared.messages.queues))
        self._segment.append(encode_block(prepared.messages, self._host))

    def finish(self) -> StagedRows:
        # In this order: a finished file of dead letters can still be discarded, a finished segment cannot.
        dead_letters = None if self._dead_letters is None else self._dead_letters.finish()
        return StagedRows(self._batch, self._segment.finish(), tuple(self._topics), dead_letters)

    def discard(self) -> None:
        self._segment.discard()
        if self._dead_letters is not None:
            self._dead_letters.discard()


def settings_of(options: SinkOptions, files: LocalFileSystem) -> PutSettings:
    """What the store says of itself now, with what the options add."""
    config = load_config(options.root, options.conf, read_bytes=files.read_file)
    return put_settings(options.root, config, files, options.store_host, options.broker_name, options.flush_disk_type)


def _rules_of(settings: PutSettings, options: SinkOptions) -> MessageRules:
    """What a row must keep to: the store's limits and topics, and the options."""
    return message_rules(
        settings,
        topic=options.topic,
        queue_count=options.queue_num,
        create_topic=options.create_topic,
        compress_body_over=options.compress_body_over,
        keep_unique_key=options.keep_unique_key,
        strict_properties=options.strict_properties,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
