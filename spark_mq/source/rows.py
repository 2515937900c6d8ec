"""The columns of a message, and Arrow batches with a query's columns from slices of decoded records. Pure.

A column has a Spark type, an Arrow type, and a function from a slice to its values; only requested columns are decoded. Records from
files and pulled records use the same code. Spark: KafkaRecordToRowConverter; `columns=kafka` gives exactly that source's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.source.offsets import QueueId
from storage.errors import CorruptMessageError
from storage.format.properties import PropertyMaps, RegularProperties
from storage.format.record_batch import Records, fail
from storage.format.window_decoder import Wanted
from storage.queues.scan import QueueSlice

TIMESTAMP = pa.timestamp("us", "UTC")
STRING_MAP = pa.map_(pa.string(), pa.string())
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
PROPERTY_COLUMNS = {"properties", "headers"}  # that show all properties
PLAIN_BYTES = 32 << 20
"""Of decompressed bodies in a batch: a few stored bytes may say gigabytes, and no binary array holds more than two."""
LOG_APPEND_TIME = 1  # Kafka's timestampType of a time that the broker set


@dataclass
class RowSource:
    """One slice with what its columns share. `partition_base` is the broker's rank × 65,536, for Kafka's partition.

    A corrupt message is an error, or of a `permissive` source a row whose reason stands in `corrupt`.
    """

    slice: QueueSlice
    topic: str
    broker_name: str
    queue_id: int
    decompress: bool = True
    partition_base: int = 0
    all_properties: bool = False  # requested as a column: single properties are then taken from the map
    permissive: bool = False
    corrupt: dict[int, str] = field(default_factory=dict)
    """Row → why it is corrupt, as far as was looked."""

    @property
    def records(self) -> Records:
        return self.slice.records

    @property
    def count(self) -> int:
        return len(self.slice.queue_offsets)

    @cached_property
    def properties(self) -> PropertyMaps | RegularProperties:
        properties = self.records.properties()
        return properties.maps if self.all_properties and isinstance(properties, RegularProperties) else properties

    @cached_property
    def bodies(self) -> pa.Array:
        return self.records.plain_bodies() if self.decompress else self.records.bodies()

    def note_corrupt_sums(self, *, force_property_crc: bool) -> None:
        """Compare the checksums of all rows."""
        for row, error in self.records.corrupt_sums(force_property_crc=force_property_crc):
            self._note_corrupt(row, error)

    def _note_corrupt(self, row: int, error: CorruptMessageError) -> None:
        self.corrupt.setdefault(row, error.reason)

    def take(self, rows: np.ndarray) -> None:
        """Keep only the rows of a mask."""
        if self.corrupt:
            numbers = np.cumsum(rows) - 1
            self.corrupt = {int(numbers[row]): reason for row, reason in self.corrupt.items() if rows[row]}
        self.slice = QueueSlice(self.slice.queue_offsets[rows], self.records.take(rows))
        self.__dict__.pop("properties", None)
        self.__dict__.pop("bodies", None)

    def parts(self) -> Iterator[RowSource]:
        """The rows in parts of at most PLAIN_BYTES of bodies that were compressed, or one of them; each has its bodies."""
        for rows, bodies in self.records.plain_parts(PLAIN_BYTES, self._note_corrupt if self.permissive else fail):
            part = replace(
                self,
                slice=QueueSlice(self.slice.queue_offsets[rows], self.records.take(rows)),
                corrupt={
                    row - rows.start: reason for row, reason in self.corrupt.items() if rows.start <= row < rows.stop
                },
            )
            part.__dict__["bodies"] = bodies
            yield part

    def text(self, property_name: str) -> pa.Array:
        known = self.records.property(property_name)
        return self.properties.values_of(property_name) if known is None else known


class Values(NamedTuple):
    """A column's function from a slice to its values, and the parts of records that it needs."""

    of: Callable[[RowSource], pa.Array]
    wanted: Wanted = Wanted()

    def __call__(self, source: RowSource) -> pa.Array:
        return self.of(source)


class Column(NamedTuple):
    """A column of a row: its DDL type, whether it can be null, what it means, and its values for a slice."""

    name: str
    sql_type: str
    arrow_type: pa.DataType
    nullable: bool
    meaning: str
    values: Values


def _field(name: str) -> Values:
    return Values(lambda source: pa.array(source.records.column(name)), Wanted(fields=frozenset({name})))


def _timestamp(name: str) -> Values:
    return Values(
        lambda source: pa.array(source.records.column(name) * 1_000).view(TIMESTAMP), Wanted(fields=frozenset({name}))
    )


def _host(name: str) -> Values:
    return Values(lambda source: source.records.host_texts(name), Wanted(fields=frozenset({name})))


def _text(name: str) -> Values:
    return Values(lambda source: source.text(name), Wanted(properties=frozenset({name})))


def _constant(value: Callable[[RowSource], object], arrow_type: pa.DataType) -> Values:
    return Values(lambda source: _repeated(value(source), arrow_type, source.count))


@lru_cache(maxsize=8)  # the slices of a queue have the same topic and mostly as many rows
def _repeated(value: object, arrow_type: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, arrow_type), count)


def _body_or_null(source: RowSource) -> pa.Array:
    if not source.corrupt or not source.decompress:
        return source.bodies
    is_corrupt = np.zeros(source.count, bool)
    is_corrupt[list(source.corrupt)] = True
    return pc.if_else(pa.array(is_corrupt), pa.scalar(None, pa.binary()), source.bodies)


def _why_corrupt(source: RowSource) -> pa.Array:
    if not source.corrupt:
        return pa.nulls(source.count, pa.string())
    return pa.array([source.corrupt.get(row) for row in range(source.count)], pa.string())


def _sharding_key_or_keys(source: RowSource) -> pa.Array:
    sharding_keys, keys = source.text("__SHARDINGKEY"), source.text("KEYS")
    found = keys if sharding_keys.null_count == source.count else pc.coalesce(sharding_keys, keys)
    return found.view(pa.binary())


def _all_as_headers(source: RowSource) -> pa.Array:
    properties = source.properties
    pairs = pa.StructArray.from_arrays(
        [properties.names, properties.values.view(pa.binary())], fields=list(HEADERS.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(properties.offsets), pairs, type=HEADERS)


def _or_own(property_name: str, own: Values) -> Values:
    """A property of messages that were somewhere else before, and its own of each that was not."""

    def values(source: RowSource) -> pa.Array:
        found = source.text(property_name)
        return pc.coalesce(found, own(source)) if found.null_count else found

    return Values(values, Wanted(properties=frozenset({property_name})) | own.wanted)


def _number_of_real_queue(source: RowSource) -> pa.Array:
    found = source.text("REAL_QID")
    is_number = pc.match_substring_regex(found, "^[0-9]{1,9}$")
    return pc.if_else(is_number, found, pa.scalar(None, pa.string())).cast(pa.int32())


_BODY = Wanted(fields=frozenset({"sys_flag", "body_size_bytes"}), bodies=True)
_ALL_PROPERTIES = Wanted(all_properties=True)
_body = Values(_body_or_null, _BODY)
_corrupt = Values(_why_corrupt, _BODY)
_OFFSET = Values(lambda source: pa.array(source.slice.queue_offsets))
_message_id = Values(lambda source: source.records.message_ids(), Wanted(message_ids=True))
_TOPIC = _constant(lambda source: source.topic, pa.string())
_CORRUPT = Column(
    "_corrupt",
    "STRING",
    pa.string(),
    True,
    "why the body is corrupt; null if it is sound; only with mode=PERMISSIVE",
    _corrupt,
)

COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column("topic", "STRING", pa.string(), False, "topic", _TOPIC),
        Column("broker_name", "STRING", pa.string(), False, "the store's broker",
               _constant(lambda source: source.broker_name, pa.string())),
        Column("queue_id", "INT", pa.int32(), False, "queue within the topic and broker",
               _constant(lambda source: source.queue_id, pa.int32())),
        Column("queue_offset", "BIGINT", pa.int64(), False, "position in the queue, from 0",
               _OFFSET),
        Column("msg_id", "STRING", pa.string(), False, "offset message id: store host and commit log offset, hex",
               _message_id),
        Column("unique_key", "STRING", pa.string(), True, "the id that clients show (property UNIQ_KEY)",
               _text("UNIQ_KEY")),
        Column("tags", "STRING", pa.string(), True, "property TAGS", _text("TAGS")),
        Column("keys", "STRING", pa.string(), True, "property KEYS, several separated by a space",
               _text("KEYS")),
        Column("body", "BINARY", pa.binary(), False, "the body, decompressed unless decompress=false", _body),
        Column("properties", "MAP<STRING, STRING>", STRING_MAP, False, "all properties, system ones too",
               Values(lambda source: source.properties.map_array(), _ALL_PROPERTIES)),
        Column("born_timestamp", "TIMESTAMP", TIMESTAMP, False, "when the client sent it", _timestamp("born_time_ms")),
        Column("store_timestamp", "TIMESTAMP", TIMESTAMP, False, "when the broker stored it", _timestamp("store_time_ms")),
        Column("born_host", "STRING", pa.string(), False, "address:port of the client",
               _host("born_host")),
        Column("store_host", "STRING", pa.string(), False, "address:port of the broker",
               _host("store_host")),
        Column("flag", "INT", pa.int32(), False, "the client's flag", _field("flag")),
        Column("sys_flag", "INT", pa.int32(), False, "bits: compression, transaction, IPv6 (MessageSysFlag)", _field("sys_flag")),
        Column("reconsume_times", "INT", pa.int32(), False, "how often consumption has failed", _field("reconsume_times")),
        Column("body_crc", "INT", pa.int32(), False, "CRC-32 of the stored body, top bit cleared", _field("body_crc")),
        Column("prepared_transaction_offset", "BIGINT", pa.int64(), False,
               "commit log offset of the half message that it commits, else 0",
               _field("prepared_transaction_offset")),
        Column("commitlog_offset", "BIGINT", pa.int64(), False, "offset of the record in the commit log", _field("commitlog_offset")),
        Column("store_size", "INT", pa.int32(), False, "size of the whole record, bytes", _field("size_bytes")),
        Column("origin_topic", "STRING", pa.string(), False,
               "the topic where consumption first failed (property RETRY_TOPIC), else its topic; only on request",
               _or_own("RETRY_TOPIC", _TOPIC)),
        Column("origin_msg_id", "STRING", pa.string(), False,
               "its id there (property ORIGIN_MESSAGE_ID), else its own; only on request",
               _or_own("ORIGIN_MESSAGE_ID", _message_id)),
        Column("real_topic", "STRING", pa.string(), True,
               "target topic of a delayed or transactional message (property REAL_TOPIC); only on request",
               _text("REAL_TOPIC")),
        Column("real_queue_id", "INT", pa.int32(), True, "target queue (property REAL_QID); only on request",
               Values(_number_of_real_queue, Wanted(properties=frozenset({"REAL_QID"})))),
        _CORRUPT,
    )
}  # fmt: skip

KAFKA_COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column("key", "BINARY", pa.binary(), True, "the sharding key, else KEYS",
               Values(_sharding_key_or_keys, Wanted(properties=frozenset({"__SHARDINGKEY", "KEYS"})))),
        Column("value", "BINARY", pa.binary(), True, "the body", _body),
        Column("topic", "STRING", pa.string(), True, "topic", _TOPIC),
        Column("partition", "INT", pa.int32(), True, "queue id, plus 65,536 × the broker's rank by name",
               _constant(lambda source: source.partition_base + source.queue_id, pa.int32())),
        Column("offset", "BIGINT", pa.int64(), True, "queue offset", _OFFSET),
        Column("timestamp", "TIMESTAMP", TIMESTAMP, True, "store time", _timestamp("store_time_ms")),
        Column("timestampType", "INT", pa.int32(), True, "1: the broker's time",
               _constant(lambda source: LOG_APPEND_TIME, pa.int32())),
        Column("headers", "ARRAY<STRUCT<key: STRING, value: BINARY>>", HEADERS, True, "the properties, with includeHeaders",
               Values(_all_as_headers, _ALL_PROPERTIES)),
        _CORRUPT,
    )
}  # fmt: skip


KAFKA_HEADERS = "headers"
CORRUPT_COLUMN = "_corrupt"
"""The column that exists only with mode=PERMISSIVE, and then always; it is last unless it is named."""
EARLIER_PLACE_COLUMN_NAMES = ("origin_topic", "origin_msg_id", "real_topic", "real_queue_id")
"""Columns only on request: in retry, dead-letter, schedule, timer and half topics they name the original message."""
COLUMN_NAMES = tuple(name for name in COLUMNS if name not in (*EARLIER_PLACE_COLUMN_NAMES, CORRUPT_COLUMN))
"""The columns of a row unless option `columns` or a schema says otherwise."""
KAFKA_COLUMN_NAMES = tuple(name for name in KAFKA_COLUMNS if name not in (KAFKA_HEADERS, CORRUPT_COLUMN))


def columns_named(names: Sequence[str], *, kafka: bool, permissive: bool = False) -> list[Column]:
    """The columns in the requested order. The body of a permissive read can be null."""
    table = KAFKA_COLUMNS if kafka else COLUMNS
    columns = [table[name] for name in names]
    return [column._replace(nullable=True) if permissive and column.values is _body else column for column in columns]


def wanted_of(columns: Sequence[Column]) -> Wanted:
    """The parts of records that these columns need."""
    return Wanted.union(column.values.wanted for column in columns)


def arrow_schema(columns: Sequence[Column], nullable: Collection[str] = ()) -> pa.Schema:
    """The schema of a batch; columns in `nullable` are said to be, whatever they are. Spark compares this too."""
    return pa.schema(
        [pa.field(column.name, column.arrow_type, column.nullable or column.name in nullable) for column in columns]
    )


def ddl(columns: Sequence[Column]) -> str:
    """The schema as Spark's DDL."""
    return ", ".join(f"{column.name} {column.sql_type}{'' if column.nullable else ' NOT NULL'}" for column in columns)


def to_record_batches(source: RowSource, columns: Sequence[Column], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A slice as Arrow batches exactly of `schema`; more than one where its bodies are many times as large in the clear."""
    has_plain_bodies = source.decompress and any(column.values in (_body, _corrupt) for column in columns)
    for part in source.parts() if has_plain_bodies else (source,):
        yield to_record_batch(part, columns, schema)


def to_record_batch(source: RowSource, columns: Sequence[Column], schema: pa.Schema) -> pa.RecordBatch:
    """One Arrow batch of a slice, exactly of `schema`."""
    return pa.RecordBatch.from_arrays([column.values(source) for column in columns], schema=schema)


def rows_with_tags(source: RowSource, tags: frozenset[str]) -> np.ndarray:
    """The rows of a slice with one of the tags, by text: hashes in the queue collide."""
    has = pc.is_in(source.text("TAGS"), pa.array(sorted(tags), pa.string()))
    return np.asarray(has.to_numpy(zero_copy_only=False), bool)


@dataclass(frozen=True, slots=True)
class RowRequest:
    """A query's needs of each message: the same for all its partitions."""

    column_names: tuple[str, ...]
    kafka: bool = False
    tags: frozenset[str] | None = None
    key: str | None = None
    decompress: bool = True
    verify_crc: bool = False
    fail_on_data_loss: bool = True
    judges_holes: bool = True
    """Whether offsets that a broker passes over are a loss where their messages have expired. The archiver judges them itself, by the
    master."""
    asks_leniently: bool = False
    """Whether a loss is still a loss, and no refusal is raised, where the broker does not say whether the topic is compacted. Without
    `fail_on_data_loss` it always is so."""
    nullable: frozenset[str] = frozenset()  # columns that a schema of the user's lets be null
    permissive: bool = False

    @property
    def columns(self) -> list[Column]:
        return columns_named(self.column_names, kafka=self.kafka, permissive=self.permissive)

    @property
    def wanted(self) -> Wanted:
        """What to decode of all messages that are read. Of those with one key the rest is decoded when they are found: they are few."""
        if self.key is not None:
            return Wanted(properties=frozenset({"KEYS", "UNIQ_KEY"}), raw=True)
        tags = Wanted() if self.tags is None else Wanted(properties=frozenset({"TAGS"}), raw=True)
        return tags | Wanted(raw=self.verify_crc) | wanted_of(self.columns)


class ShownAs(NamedTuple):
    """The queue that rows name in place of the one that is read, whose offsets are `delta` greater."""

    queue: QueueId
    delta: int


def to_batches(
    slices: Iterable[QueueSlice],
    queue: QueueId,
    broker_rank: int,
    request: RowRequest,
    shown: ShownAs | None,
    *,
    force_property_crc: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The messages of slices of one queue that the request wants, as batches of its schema, in the order of the slices.

    Raises CorruptMessageError, unless the request is permissive, where a body does not decompress.
    """
    columns = request.columns
    schema = arrow_schema(columns, request.nullable)
    shown_queue, delta = shown or (queue, 0)
    for part in slices:
        source = RowSource(
            QueueSlice(part.queue_offsets + delta, part.records) if delta else part,
            shown_queue.topic,
            shown_queue.broker_name,
            shown_queue.queue_id,
            request.decompress,
            broker_rank << 16,
            all_properties=any(column.name in PROPERTY_COLUMNS for column in columns),
            permissive=request.permissive,
        )
        if request.permissive and request.verify_crc:
            source.note_corrupt_sums(force_property_crc=force_property_crc)
        wanted = _wanted_rows(source, request)
        if wanted is not None and not wanted.all():
            source.take(wanted)
        if source.count:
            yield from to_record_batches(source, columns, schema)


def _wanted_rows(source: RowSource, request: RowRequest) -> np.ndarray | None:
    wanted = None if request.tags is None else rows_with_tags(source, request.tags)
    if request.key is not None:
        has_key = rows_with_key(source, request.key)
        wanted = has_key if wanted is None else wanted & has_key
    return wanted


def rows_with_key(source: RowSource, key: str) -> np.ndarray:
    """The rows with this key or unique key."""
    lists = pc.split_pattern(source.text("KEYS").fill_null(""), " ")
    rows = np.repeat(np.arange(source.count), pc.list_value_length(lists).to_numpy())
    equal = pc.equal(lists.flatten(), key).to_numpy(zero_copy_only=False)
    has_key = np.zeros(source.count, bool)
    has_key[rows[equal]] = True
    unique = pc.fill_null(pc.equal(source.text("UNIQ_KEY"), key), False).to_numpy(zero_copy_only=False)
    return has_key | unique
