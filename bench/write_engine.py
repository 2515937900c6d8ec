"""The storage engine alone, writing: what a task does with its rows, and the commit, each on one core.

HOME/write-engine/store/    what a measurement writes, removed after it
HOME/write-engine/used/     its staged files, which the next one finds in its pool
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from statistics import median
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from bench.engine import EngineRow, shown
from bench.messages import BODY_SIZE_BYTES, DISTINCT_BODIES, QUEUES, TAGS, TOPIC, bodies
from bench.recycled import RecycledStore
from storage import open_store
from storage.batch.commit import commit_batch
from storage.batch.ledger import Batch
from storage.batch.staged_segment import SegmentWriter, StagedBatch, StagedSegment, sink_digest
from storage.files.local_file_system import LocalFileSystem
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.record_block import BlockColumns, UnjoinedBlock, encode_block, encode_parts
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import retry_topic
from storage.put.half_ends import with_states
from storage.put.settings import PutSettings, put_settings
from storage.rules.half_messages import TransactionRules
from storage.rules.message_rows import MessageRows
from storage.rules.retry_rows import ReturnedRows, ReturnRules
from storage.rules.row_rules import MessageRules
from storage.settings.load import load_config

ROUNDS = 3
ROWS = 500_000
SMALL_BODY_SIZE_BYTES = 100
BATCH_SIZES = (10**4, 10**5, 10**6, 10**7)
QUEUE_COUNTS = (4, 32, 250, 1_000)
ROWS_OVER_QUEUES = 10**6
SINK = GROUP = "bench"
Kind = Literal["plain", "delay_level", "sendBack", "transactional"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DELAY_LEVEL = 3
_READ: dict[Kind, tuple[str, ...]] = {
    "plain": (TOPIC,),
    "delay_level": (TOPIC, SCHEDULE_TOPIC),
    "sendBack": (TOPIC, SCHEDULE_TOPIC),
    "transactional": (TOPIC,),
}
"""Where the rows of each kind, and those that were there before, can be read."""
KEY_PREFIX, OTHER_KEY_PREFIX = bytes(10), bytes([1] * 10)


class Written(NamedTuple):
    """What writing one batch took, its parts one after the other."""

    rows: int
    log_bytes: int
    encode_s: float
    """Rows to records, in memory."""
    stage_s: float
    """The same anew, into a staged file, and that onto the disk."""
    commit_s: float
    """The store opened, the batch appended, entered into queues and index, the store let go."""


class Scaling(NamedTuple):
    """One line of the table of costs per row."""

    rows: int
    queues: int
    written: list[Written]


def engine_rows(store: RecycledStore, batch_rows: int) -> list[EngineRow]:
    """Encoding and committing rows with bodies of 1 KiB, `batch_rows` of them in an Arrow batch."""
    pa.set_cpu_count(1)
    found = {
        flush: _rounds(store, ROWS, BODY_SIZE_BYTES, QUEUES, batch_rows, flush)
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH")
    }
    encoded = found["ASYNC_FLUSH"]
    rows = [EngineRow("encode", shown([one.rows / one.encode_s / 1_000 for one in encoded], ",.0f") + " k rows/s")]
    staged = [one.rows / one.stage_s / 1_000 for one in encoded]
    rows.append(EngineRow("encode and stage, synced", shown(staged, ",.0f") + " k rows/s"))
    for flush, written in found.items():
        rates = shown([one.rows / one.commit_s / 1_000 for one in written], ",.0f")
        sizes = shown([one.log_bytes / one.commit_s / 2**20 for one in written], ",.0f")
        rows.append(EngineRow(f"commit, {flush}", f"{rates} k rows/s"))
        rows.append(EngineRow("", f"{sizes} MiB/s of log"))
    return rows


def kind_rows(store: RecycledStore, batch_rows: int) -> list[EngineRow]:
    """The same of rows that are delayed, transactions, or sent back, beside plain ones; bodies of 1 KiB."""
    rows = []
    for kind in KINDS:
        written = _rounds(store, ROWS, BODY_SIZE_BYTES, QUEUES, batch_rows, "ASYNC_FLUSH", kind)
        for what, seconds in (
            ("encode", [one.encode_s for one in written]),
            ("encode and stage, synced", [one.stage_s for one in written]),
            ("commit, ASYNC_FLUSH", [one.commit_s for one in written]),
        ):
            rates = shown([one.rows / took / 1_000 for one, took in zip(written, seconds, strict=True)], ",.0f")
            rows.append(EngineRow(f"{kind}: {what}", f"{rates} k rows/s"))
    return rows


def scaling(store: RecycledStore, batch_rows: int) -> list[Scaling]:
    """Costs over the size of a commit's batch, and over the number of queues; bodies of 100 bytes. The largest is written once."""
    shapes = [(rows, QUEUES) for rows in BATCH_SIZES] + [(ROWS_OVER_QUEUES, queues) for queues in QUEUE_COUNTS]
    return [
        Scaling(rows, queues, _rounds(store, rows, SMALL_BODY_SIZE_BYTES, queues, batch_rows, "ASYNC_FLUSH"))
        for rows, queues in dict.fromkeys(shapes)
    ]


def _rounds(
    store: RecycledStore, rows: int, body_size: int, queues: int, batch_rows: int, flush: str, kind: Kind = "plain"
) -> list[Written]:
    written = []
    for _ in range(ROUNDS + 1 if rows <= ROWS_OVER_QUEUES else 1):
        store.prepare()
        os.sync()  # else the last round's dirty pages go to disk at this one's cost
        written.append(_write(str(store.path), rows, body_size, queues, batch_rows, flush, kind))
        store.clear()
    return written[1:] or written  # the first warms up


def _write(root: str, rows: int, body_size: int, queues: int, batch_rows: int, flush: str, kind: Kind) -> Written:
    """One batch into a store that has the topic and as many messages as an Arrow batch has rows."""
    begin_store(root, body_size, queues, batch_rows, flush)
    segments, encode_s, stage_s = _stage(root, rows, body_size, batch_rows, kind)
    topics = {TOPIC: queues, retry_topic(GROUP): 1}
    start = time.perf_counter()
    with open_store(root, read_only=False, flush_disk_type=flush) as store:
        commit_batch(store.writer, StagedBatch(Batch(SINK, SINK, 0), segments, topics))
        store.release()
    commit_s = time.perf_counter() - start
    with open_store(root) as store:
        there = sum(store.max_offset(topic, queue_id) for topic in _READ[kind] for queue_id in store.queue_ids(topic))
    if there != batch_rows + rows:
        raise RuntimeError(f"{root}: {there} messages, expected {batch_rows + rows}")
    return Written(rows, sum(segment.data_size_bytes for segment in segments), encode_s, stage_s, commit_s)


def begin_store(root: str, body_size: int, queues: int, batch_rows: int, flush: str) -> None:
    with open_store(root, read_only=False, create=True, flush_disk_type=flush) as store:
        store.writer.topic_entries.ensure({TOPIC: queues})
        rules = MessageRules(topic=TOPIC, topics=store.writer.settings.topics.topics)
        batch = next(row_batches(batch_rows, body_size, batch_rows))
        messages = MessageRows(rules, OTHER_KEY_PREFIX).prepare(batch, 0).messages
        store.writer.append([encode_block(messages, store.writer.settings.host)])
        store.release()


def _stage(
    root: str, rows: int, body_size: int, batch_rows: int, kind: Kind
) -> tuple[list[StagedSegment], float, float]:
    """The rows as segments; seconds of encoding alone, while nothing is written, and of encoding and writing."""
    files = LocalFileSystem()
    settings = put_settings(root, load_config(root, read_bytes=files.read_file), files)
    encode = _encoder(settings, kind)
    encode_s = stage_s = 0.0
    for batch in row_batches(rows, body_size, batch_rows, kind):
        start = time.perf_counter()
        for block in encode(batch):
            if isinstance(block, UnjoinedBlock):
                deque(block.parts.pieces(), maxlen=0)
        encode_s += time.perf_counter() - start
    encode = _encoder(settings, kind)
    segments: list[SegmentWriter] = []
    for batch in row_batches(rows, body_size, batch_rows, kind):
        start = time.perf_counter()
        blocks = encode(batch)
        for number, block in enumerate(blocks):
            if number == len(segments):
                segments.append(SegmentWriter(files, root, sink_digest(SINK, SINK).hex(), f"0-0-{number}"))
            if isinstance(block, UnjoinedBlock):
                segments[number].append(block)
            else:
                segments[number].append_commits(blocks[0], block)
        stage_s += time.perf_counter() - start
    start = time.perf_counter()
    staged = [segment.finish() for segment in segments]
    return [segment for segment in staged if segment is not None], encode_s, stage_s + time.perf_counter() - start


def _encoder(settings: PutSettings, kind: Kind) -> Callable[[pa.RecordBatch], list[UnjoinedBlock | BlockColumns]]:
    """From rows to what is staged: a block, or halves and what their commits need."""
    if kind == "sendBack":
        returned = ReturnedRows(ReturnRules(SubscriptionGroupConfig(GROUP), settings.host))
        return lambda batch: [encode_parts(part, settings.host) for part in returned.prepare(batch, 0).parts]
    transaction = TransactionRules(GROUP) if kind == "transactional" else None
    rules = MessageRules(topic=TOPIC, topics=settings.topics.topics, transaction=transaction)
    messages = MessageRows(rules, KEY_PREFIX)

    def encode(batch: pa.RecordBatch) -> list[UnjoinedBlock | BlockColumns]:
        prepared = messages.prepare(batch, 0)
        block = encode_parts(prepared.messages, settings.host)
        if prepared.commits is None:
            return [block]
        return [with_states(block, prepared.commits.states), settings.columns_of(prepared.commits.messages)]

    return encode


def row_batches(rows: int, body_size: int, batch_rows: int, kind: Kind = "plain") -> Iterator[pa.RecordBatch]:
    """Rows with a key and a tag, as Spark hands them to a sink."""
    distinct = pa.array([body[:body_size] for body in bodies()], pa.binary())
    tags = pa.array(TAGS)
    for start in range(0, rows, batch_rows):
        numbers = np.arange(start, min(start + batch_rows, rows))
        columns = {
            "keys": pc.binary_join_element_wise("order-", pc.cast(pa.array(numbers), pa.string()), ""),
            "tags": tags.take(pa.array(numbers // 7 % len(TAGS))),
            "body": distinct.take(pa.array(numbers % DISTINCT_BODIES)),
        }
        if kind == "delay_level":
            columns["delay_level"] = pa.repeat(pa.scalar(DELAY_LEVEL, pa.int32()), len(numbers))
        yield pa.RecordBatch.from_pydict(_as_consumed(columns) if kind == "sendBack" else columns)


def _as_consumed(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """As our source gives them: with an id, all properties in the map."""
    count = len(columns["keys"])
    ids = pc.utf8_lpad(columns["keys"], 32, "0")
    names = pa.array(["KEYS", "TAGS", "UNIQ_KEY"]).take(pa.array(np.tile(np.arange(3), count)))
    values = pa.concat_arrays([columns["keys"], columns["tags"], ids])
    values = values.take(pa.array(np.arange(3 * count).reshape(3, count).T.ravel()))
    return {
        "topic": pa.repeat(pa.scalar(TOPIC), count),
        "msg_id": ids,
        "properties": pa.MapArray.from_arrays(pa.array(np.arange(0, 3 * count + 1, 3), pa.int32()), names, values),
        "body": columns["body"],
    }


def scaling_table(lines: list[Scaling]) -> Table:
    """Microseconds a row: medians."""
    caption = "microseconds a row, 100-byte bodies with a key and a tag, ASYNC_FLUSH"
    made = Table(title="Cost per row", caption=caption)
    for heading in ("rows a commit", "queues", "encode", "encode and stage", "commit", "in all"):
        made.add_column(heading, justify="right")
    for line in lines:
        parts = [
            1e6 * median(seconds) / line.rows
            for seconds in zip(*((one.encode_s, one.stage_s, one.commit_s) for one in line.written), strict=True)
        ]
        made.add_row(f"{line.rows:,}", f"{line.queues:,}", *(f"{part:.2f}" for part in [*parts, sum(parts[1:])]))
    return made
