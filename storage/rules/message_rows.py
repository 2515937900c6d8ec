"""Makes messages of rows: one task's rows, batch after batch, with their keys and queues.

    rows ─prepare─▶ OutgoingMessages (record_block.encode_block makes records of them), and the rejected rows

State that depends on earlier rows is kept here: a row's number, its rank, the turns of a topic's queues. A task that is repeated
on the same rows makes the same keys and takes the same queues. Pure: no clock, no disk.
Java: SelectMessageQueueByHash, MessageClientIDSetter, SendMessageProcessor, CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import ColumnIllegalError
from storage.format.arrays import as_texts, is_valid, queue_of_hash, string_hash, string_hashes
from storage.format.keys import (
    HashedTexts,
    UniqueKeys,
    hashes_behind,
    index_hashes,
    message_keys,
    tag_hashes,
    with_tag_hashes,
)
from storage.format.properties import ROW_MARK, encode_columns
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_PREPARED, committed_flags
from storage.format.record_block import OutgoingMessages
from storage.rules.delays import DELAY, REAL_QUEUE_ID, REAL_TOPIC, moved, real_places
from storage.rules.half_messages import (
    HALF_TOPIC,
    PRODUCER_GROUP,
    QUEUE_ID,
    UNKNOWN,
    TransactionColumns,
    half_properties,
)
from storage.rules.row_columns import MessageColumns, overruled, read_columns
from storage.rules.row_rules import MessageRules
from storage.rules.values import RejectedRow

Queue = tuple[str, int]

_TOPICS_REMEMBERED = 4_096
_COUNTED_PLACES = 1 << 20
_HALF_QUEUE = HALF_TOPIC, QUEUE_ID
_HALF_PREFIX = string_hash(f"{HALF_TOPIC}#") & 0xFFFFFFFF
_TYPES = {
    "topic": pa.string(),
    "body": pa.binary(),
    "tags": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "born_timestamp": pa.timestamp("ms", "UTC"),
    "queue_id": pa.int32(),
    "sharding_key": pa.string(),
    "transaction_state": pa.string(),
}


class Commits(NamedTuple):
    """What ends halves."""

    states: np.ndarray
    """int8: for each half the transaction bits of its end, 0 if it is not known."""
    messages: OutgoingMessages
    """Commits of the committed halves, in order; their halves' places are not known yet."""
    unresolved: Mapping[str, int]
    """How many halves of each topic are open."""


class Prepared(NamedTuple):
    """A checked batch of rows."""

    messages: OutgoingMessages
    """With transactions the halves."""
    rejected: tuple[RejectedRow, ...]
    """In row order."""
    rejected_indices: np.ndarray
    """Row indices of the rejected rows in the batch."""
    destinations: tuple[Queue, ...]
    """The distinct final (topic, queue id) of the messages, even if they wait elsewhere first."""
    topics: Mapping[str, int]
    """The destinations' topics, and how many queues missing ones get."""
    grown: Mapping[str, int]
    """Existing topics with fewer queues than rows name, and how many they get."""
    commits: Commits | None = None
    """With transactions."""
    passing: tuple[RejectedRow, ...] = ()
    """The rows in `rejected` that may be accepted unchanged at a later time."""
    overruled: Mapping[str, str] = MappingProxyType({})
    """By column, a text of these rows without effect, because an option overrides it; the first in each task."""
    sent_states: np.ndarray | None = None
    """int8, for halves that are sent: the transaction bits of each one's end, 0 if it is not known."""


class MessageRows:
    """Makes messages of one task's rows. `key_prefix` are the first 10 bytes of their unique keys.

    Rejected rows take no rank and no turn.
    """

    def __init__(self, rules: MessageRules, key_prefix: bytes, round_robin_start: int = 0) -> None:
        self._rules = rules
        self._key_prefix = key_prefix
        self._start = round_robin_start
        self._turns: dict[str, int] = {}  # by topic: how many rows took the queue whose turn it was
        self._rank = 0
        self._row_count = 0
        self._leading = rules.leading
        self._target = lru_cache(_TOPICS_REMEMBERED)(rules.target)
        self._said = dict(rules.said_of_all)
        """The options that no row has contradicted so far."""

    def prepare(self, batch: pa.RecordBatch, now_ms: int) -> Prepared:
        """The messages of a batch that has a column `body` and any of `rows.columns.COLUMNS`."""
        first_row = self._row_count
        self._row_count += len(batch)
        ignored = overruled(batch, self._said)
        for column in ignored:
            del self._said[column]
        columns, rejections = read_columns(batch, self._rules, self._target, now_ms)
        rejected_indices = np.array(sorted(rejections), np.int64)
        if len(rejected_indices):
            columns = columns.without(rejected_indices)
        rejected = tuple(RejectedRow(first_row + row, *rejections[row]) for row in rejected_indices.tolist())
        passing = tuple(row for row in rejected if row.row - first_row in rejections.passing)
        unique = UniqueKeys(self._key_prefix, self._rank, len(columns))
        self._rank += len(columns)
        queues, queue_codes = self._queues(columns)
        keys = HashedTexts.of_keys(columns.keys)
        messages = self._messages(columns, unique, keys, queues, queue_codes)
        commits = sent_states = None
        if columns.transactions is not None and self._rules.is_sent:
            sent_states = columns.transactions.states
        elif columns.transactions is not None:
            commits = self._commits(columns, unique, keys, queues, queue_codes, messages)
        named = {topic: queue_id + 1 for topic, queue_id in sorted(queues)}  # the last one of each topic stays
        used = {target.topic: target for target in columns.targets if target.topic in named}
        topics = {topic: max(target.queue_count, named[topic]) for topic, target in used.items()}
        grown = {
            topic: named[topic]
            for topic, target in used.items()
            if not target.is_new and named[topic] > target.there_count
        }
        return Prepared(
            messages,
            rejected,
            rejected_indices,
            queues,
            topics,
            grown,
            commits,
            passing,
            ignored,
            sent_states,
        )

    def _messages(
        self,
        columns: MessageColumns,
        unique: UniqueKeys,
        keys: HashedTexts,
        queues: tuple[Queue, ...],
        queue_codes: np.ndarray,
    ) -> OutgoingMessages:
        unique_texts = _unique_texts(columns, unique)
        properties: dict[str, pa.Array | str | None] = {
            "UNIQ_KEY": unique_texts,
            "TAGS": columns.tags,
            "KEYS": columns.keys,
            "__SHARDINGKEY": columns.sharding_keys,
        }
        if self._rules.row_mark is not None:
            properties[ROW_MARK] = unique.marked(self._rules.row_mark)
        prefixes = _prefixes(columns)
        tags_codes = _tags_codes(columns)
        delays, transactions, retries = columns.delays, columns.transactions, columns.retries
        sys_flags = columns.sys_flags
        if retries is not None:
            properties |= retries.properties
            if self._rules.is_sent:
                properties |= retries.header_properties(self._rules.retries.max_reconsume_times)
        if delays is not None and self._rules.is_sent:
            properties |= delays.properties
        elif delays is not None:
            waiting = delays.are_waiting
            properties |= delays.properties | real_places(queues, queue_codes, waiting)
            waiting_codes = delays.codes()
            prefixes = np.broadcast_to(prefixes, len(columns)).copy()
            prefixes[waiting] = np.array([_prefix(topic) for topic, _ in delays.queues], np.uint32)[waiting_codes]
            tags_codes = np.where(delays.tags_codes > 0, delays.tags_codes, tags_codes)
            queues, queue_codes = moved(queues, queue_codes, waiting, delays.queues, waiting_codes)
        if transactions is not None:
            properties |= {**self._marks(transactions), PRODUCER_GROUP: self._producer_groups(transactions)}
        if transactions is not None and self._rules.is_sent:
            sys_flags = sys_flags | TRANSACTION_PREPARED
        elif transactions is not None:
            real = real_places(queues, queue_codes)
            properties |= half_properties(real[REAL_TOPIC], real[REAL_QUEUE_ID], unique_texts)
            prefixes = np.array([_HALF_PREFIX], np.uint32)
            queues, queue_codes = (_HALF_QUEUE,), np.zeros(len(columns), np.int32)
        if retries is not None and retries.dead.any():
            own = properties.get(DELAY)
            properties[DELAY] = (
                retries.dead_letter_levels() if own is None else pc.coalesce(own, retries.dead_letter_levels())
            )
        key_counts, key_hashes = self._keys_behind(prefixes, columns, unique, keys)
        return OutgoingMessages(
            queues=queues,
            queue_codes=queue_codes,
            bodies=columns.bodies,
            properties=encode_columns(self._leading, properties, columns.maps),
            flags=columns.flags,
            sys_flags=sys_flags,
            born_times_ms=columns.born_times_ms,
            tags_codes=tags_codes,
            key_counts=key_counts,
            key_hashes=key_hashes,
            reconsume_times=0 if retries is None else retries.reconsume_times,
        )

    def _keys_behind(
        self, prefixes: np.ndarray, columns: MessageColumns, unique: UniqueKeys, keys: HashedTexts
    ) -> tuple[np.ndarray, np.ndarray]:
        """How many index keys each message has, and the hashes of all."""
        hashes = unique.hashes_behind(prefixes)
        if columns.unique_keys is not None:
            hashes = hashes_behind(prefixes, _unique_texts(columns, unique))
        found = message_keys(prefixes, index_hashes(hashes), keys)
        if columns.tags is None or not self._rules.indexes_tags:
            return found
        return with_tag_hashes(*found, tag_hashes(prefixes, columns.tags))

    def _marks(self, transactions: TransactionColumns) -> Mapping[str, pa.Array | str]:
        """Additional properties of rows whose end is decided; none for rows with an unknown end."""
        assert self._rules.transaction is not None
        unknown = pa.array(transactions.states == UNKNOWN)
        if not pc.any(unknown).as_py():
            return dict(self._rules.transaction.marks)
        nothing = pa.scalar(None, pa.large_string())
        return {
            name: pc.if_else(unknown, nothing, pa.scalar(text, pa.large_string()))
            for name, text in self._rules.transaction.marks
        }

    def _producer_groups(self, transactions: TransactionColumns) -> pa.Array | str:
        if transactions.producer_groups is not None:
            return transactions.producer_groups
        assert self._rules.transaction is not None
        return self._rules.transaction.producer_group or ""

    def _commits(
        self,
        columns: MessageColumns,
        unique: UniqueKeys,
        keys: HashedTexts,
        queues: tuple[Queue, ...],
        queue_codes: np.ndarray,
        halves: OutgoingMessages,
    ) -> Commits:
        """The commits of these halves. Their properties are the halves', including REAL_TOPIC, as a broker's."""
        assert columns.transactions is not None
        key_counts, key_hashes = self._keys_behind(_prefixes(columns), columns, unique, keys)
        messages = halves._replace(
            queues=queues,
            queue_codes=queue_codes,
            sys_flags=committed_flags(halves.sys_flags),
            key_counts=key_counts,
            key_hashes=key_hashes,
        )
        states = columns.transactions.states
        waiting = np.bincount(columns.target_codes[states == UNKNOWN], minlength=len(columns.targets)).tolist()
        unresolved = {target.topic: count for target, count in zip(columns.targets, waiting, strict=True) if count}
        return Commits(states, _rows_of(messages, states == TRANSACTION_COMMIT), unresolved)

    def _queues(self, columns: MessageColumns) -> tuple[tuple[Queue, ...], np.ndarray]:
        """The distinct queues, and each row's index in them."""
        counts = np.array([target.queue_count for target in columns.targets], np.int64)
        codes = columns.target_codes
        of_rows = counts[codes]
        queue_ids = columns.queue_ids.copy()
        extents = counts.copy()
        beyond = np.flatnonzero(queue_ids >= of_rows)  # queues that a topic gets because rows name them
        if len(beyond):
            np.maximum.at(extents, codes[beyond], queue_ids[beyond] + 1)
        firsts = np.concatenate(([0], np.cumsum(extents)))
        if columns.sharding_keys is not None:
            hashed = np.flatnonzero((queue_ids < 0) & is_valid(columns.sharding_keys))
            hashes = string_hashes(columns.sharding_keys.take(pa.array(hashed))).astype(np.int64)
            queue_ids[hashed] = queue_of_hash(hashes, of_rows[hashed])
        turning = np.flatnonzero(queue_ids < 0)
        if len(turning):
            queue_ids[turning] = (self._start + self._take_turns(columns, codes[turning])) % of_rows[turning]
        places = firsts[codes] + queue_ids
        used, numbers = _distinct(places, int(firsts[-1]))
        owners = np.searchsorted(firsts, used, side="right") - 1
        queues = tuple(
            (columns.targets[owner].topic, columns.targets[owner].physical_queue(place))
            for owner, place in zip(owners.tolist(), (used - firsts[owners]).tolist(), strict=True)
        )
        return queues, numbers

    def _take_turns(self, columns: MessageColumns, codes: np.ndarray) -> np.ndarray:
        """For each of these rows, how many rows of its topic took a turn before it."""
        if len(columns.targets) == 1:
            before_all = self._turns.get(columns.targets[0].topic, 0)
            self._turns[columns.targets[0].topic] = before_all + len(codes)
            return np.arange(before_all, before_all + len(codes))
        order = np.argsort(codes, kind="stable")
        sizes = np.bincount(codes, minlength=len(columns.targets))
        before = np.array([self._turns.get(target.topic, 0) for target in columns.targets], np.int64)
        turns = np.empty(len(codes), np.int64)
        turns[order] = np.arange(len(codes)) + np.repeat(before - (np.cumsum(sizes) - sizes), sizes)
        for target, taken in zip(columns.targets, sizes.tolist(), strict=True):
            if taken:
                self._turns[target.topic] = self._turns.get(target.topic, 0) + taken
        return turns


def _distinct(places: np.ndarray, end: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values of numbers below `end`, ascending, and each number's index in them. Counts if that takes little memory."""
    if end > _COUNTED_PLACES:
        used, numbers = np.unique(places, return_inverse=True)
        return used, numbers.astype(np.int32)
    used = np.flatnonzero(np.bincount(places, minlength=end))
    renumbered = np.empty(end, np.int32)
    renumbered[used] = np.arange(len(used))
    return used, renumbered[places]


def _rows_of(messages: OutgoingMessages, rows: np.ndarray) -> OutgoingMessages:
    """Some of the messages, by a mask."""
    if rows.all():
        return messages
    taken = pa.array(rows)
    used, codes = np.unique(messages.queue_codes[rows], return_inverse=True)
    return messages._replace(
        queues=tuple(messages.queues[code] for code in used.tolist()),
        queue_codes=codes.astype(np.int32),
        bodies=messages.bodies.filter(taken),
        properties=messages.properties.filter(taken),
        flags=messages.flags[rows],
        sys_flags=messages.sys_flags[rows],
        born_times_ms=messages.born_times_ms[rows],
        tags_codes=messages.tags_codes[rows],
        key_counts=messages.key_counts[rows],
        key_hashes=messages.key_hashes[np.repeat(rows, messages.key_counts)],
    )


def _unique_texts(columns: MessageColumns, unique: UniqueKeys) -> pa.Array:
    texts = unique.texts()
    return texts if columns.unique_keys is None else pc.coalesce(columns.unique_keys, texts)


def _prefix(topic: str) -> int:
    """`String.hashCode` of the part before a topic's keys in the index, modulo 2^32."""
    return string_hash(f"{topic}#") & 0xFFFFFFFF


def _prefixes(columns: MessageColumns) -> np.ndarray:
    """The hash of the part before each row's keys; a single one if all rows have one topic."""
    prefixes = np.array([target.key_prefix_hash for target in columns.targets], np.uint32)
    return prefixes[columns.target_codes] if len(prefixes) > 1 else prefixes


def _tags_codes(columns: MessageColumns) -> np.ndarray:
    if columns.tags is None:
        return np.zeros(len(columns), np.int64)
    return string_hashes(columns.tags).astype(np.int64)


def one_row(
    message: Mapping[str, object],
    *,
    keys: str | Sequence[str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> pa.RecordBatch:
    """The columns of one message (`columns.COLUMNS`): those of `message`, by their names, with `keys` and `properties`.

    Raises ColumnIllegalError for a value of another type.
    """
    columns = {column: _one_value(column, value, _TYPES[column]) for column, value in message.items()}
    listed = keys if keys is None or isinstance(keys, str) else list(keys)
    columns["keys"] = _one_value("keys", listed, pa.list_(pa.string()) if isinstance(listed, list) else pa.string())
    columns["properties"] = _one_value("properties", list((properties or {}).items()), _TYPES["properties"])
    return pa.record_batch(columns)


def _one_value(column: str, value: object, kind: pa.DataType) -> pa.Array:
    """A column of one row. Raises ColumnIllegalError for a value that is not of its type."""
    try:
        return pa.array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ColumnIllegalError(column, f"{value!r:.80} is {type(value).__name__}, expected {kind}") from error


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """The whole table, each column in one piece."""
    columns = [column.combine_chunks() for column in table.columns]
    return pa.record_batch(
        [c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in columns], names=table.column_names
    )


KAFKA_COLUMNS = ("key", "value", "topic", "partition", "headers", "offset", "timestamp", "timestampType", "_corrupt")
_TEXT = pa.large_string()


# Rows with the column names of Spark's Kafka sink and source, converted to ours. Spark: KafkaRowWriter.
#
# | Kafka's | here |
# | --- | --- |
# | `value` | `body` |
# | `key` | `sharding_key` and `keys` |
# | `topic` | `topic` |
# | `partition` | `queue_id` |
# | `headers` | `properties`; the headers TAGS and KEYS become `tags` and `keys` |
#
# `offset`, `timestamp`, `timestampType` and `_corrupt` are ignored.


def is_kafka(names: list[str]) -> bool:
    """Whether columns with these names are Kafka's: there is a `value` and no `body`."""
    return "value" in names and "body" not in names


def from_kafka_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows under our names. Bytes of keys and headers are assumed to be UTF-8, without a check.

    Of equal header names the last one counts, as for every reader of properties; a header without a value is omitted. An empty
    key counts as none.
    """
    given = {name: batch.column(name) for name in KAFKA_COLUMNS if name in batch.schema.names}
    columns = {"body": given["value"]}
    if "topic" in given:
        columns["topic"] = given["topic"]
    if "partition" in given:
        columns["queue_id"] = given["partition"]
    if "key" in given:
        columns["sharding_key"] = columns["keys"] = as_texts(given["key"])
    if "headers" in given:
        columns["properties"] = maps = _maps(given["headers"])
        for name, column in (("TAGS", "tags"), ("KEYS", "keys")):
            if pc.any(pc.equal(maps.keys, name)).as_py():
                stated = _text_of(maps, name)
                columns[column] = pc.coalesce(stated, columns[column]) if column in columns else stated
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _text_of(maps: pa.Array, name: str) -> pa.Array:
    """The last value of a header in each row."""
    return pc.map_lookup(maps, pa.scalar(name, _TEXT), "last")


def _maps(headers: pa.Array) -> pa.Array:
    """`array<struct<key: string, value: binary>>` as `map<string, string>`; a null key becomes an empty one, which the rules refuse."""
    offsets = headers.offsets.cast(pa.int32())
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    pairs = headers.values.slice(first, last - first)
    names, values = as_texts(pc.struct_field(pairs, "key")).fill_null(""), as_texts(pc.struct_field(pairs, "value"))
    mask = headers.is_null() if headers.null_count else None
    return pa.MapArray.from_arrays(pc.subtract(offsets, offsets[0]), names, values, pa.map_(_TEXT, _TEXT), mask=mask)
