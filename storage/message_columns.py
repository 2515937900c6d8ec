"""Rows as they come, held to the rules: which of them are messages, and their columns as a record needs them. Pure.

    rows ─read_columns─▶ MessageColumns of all rows, and for each row that is no message the first rule that it breaks

Nothing here depends on other rows. What does (ranks, turns of queues) is given by `message_rows.py` to the rows that are left.
Java: Message, Validators.checkMessage, DefaultMQProducerImpl.tryToCompressMessage.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.properties import PROPERTIES_LIMIT_BYTES
from storage.format.property_encoding import COLUMN_PROPERTIES, MapEntries, encoded_size, leading_properties
from storage.format.record import BLANK_SIZE, HEADER_SIZE
from storage.format.sys_flag import COMPRESSED, COMPRESSION_ZLIB
from storage.format.texts import (
    CONTROL_CHARACTERS,
    SEPARATORS,
    as_texts,
    empty_as_null,
    is_valid,
    malformed_rows,
    rows_with,
    sizes_of,
)
from storage.format.unique_key import UNIQUE_KEY_LENGTH
from storage.message_rules import MessageRules, TopicTarget

COLUMNS = (
    *("body", "topic", "tags", "keys", "properties", "flag"),
    *("born_timestamp", "queue_id", "sharding_key", "unique_key"),
)
"""What is read of a row; other columns are not looked at."""

UNIQUE_KEY_LIMIT = 255
_NOT_IN_UNIQUE_KEY = CONTROL_CHARACTERS + b" "
_UNWANTED = {
    SEPARATORS: "it holds 0x01 or 0x02, which separate properties",
    CONTROL_CHARACTERS: "it holds a control character",
    _NOT_IN_UNIQUE_KEY: "it holds a control character or a blank",
}
_COMPRESSION_LEVEL = 5  # DefaultMQProducer.compressLevel
_NOT_GIVEN = -1
_TICKS_PER_MS = {"us": 1_000, "ns": 1_000_000}


class Rejection(NamedTuple):
    """Why a row is no message."""

    column: str
    rule: str


class Rejections(dict[int, Rejection]):
    """By row, the first rule that it breaks."""

    def add(self, rows: np.ndarray, column: str, rule: str | Callable[[int], str]) -> None:
        """The rows (ascending numbers) break a rule; its text may depend on the row."""
        for row in rows.tolist():
            if row not in self:
                self[row] = Rejection(column, rule if isinstance(rule, str) else rule(row))


@dataclass(slots=True)
class MessageColumns:
    """Columns of n rows; texts are large_string or None, a null text is not there. Rejected rows hold anything."""

    targets: tuple[TopicTarget, ...]
    target_codes: np.ndarray
    bodies: pa.Array
    """large_binary, as stored, no nulls."""
    sys_flags: np.ndarray
    queue_ids: np.ndarray
    """int64, −1 where none is asked for."""
    flags: np.ndarray
    born_times_ms: np.ndarray
    tags: pa.Array | None
    keys: pa.Array | None
    sharding_keys: pa.Array | None
    unique_keys: pa.Array | None
    maps: pa.Array | None
    """The encoded entries of the row's own properties, large_string without nulls."""

    def __len__(self) -> int:
        return len(self.target_codes)

    def without(self, rows: np.ndarray) -> MessageColumns:
        """The columns of the other rows."""
        keep = np.ones(len(self), bool)
        keep[rows] = False
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                values[name] = value[keep]
            elif isinstance(value, pa.Array):
                values[name] = value.filter(pa.array(keep))
        return MessageColumns(**values)


def read_columns(
    batch: pa.RecordBatch, rules: MessageRules, target: Callable[[str | None], TopicTarget], now_ms: int
) -> tuple[MessageColumns, Rejections]:
    """The rows' columns and the rows that are no messages. `target` is `rules.target`, or remembers what it said.

    An empty text column is as good as null. Tags are kept as they are, as a Java client keeps them, although a subscription to
    one with blanks around it can only be `*`. An empty body is allowed: a broker takes it, only a Java client does not send it.
    """
    given = {name: batch.column(name) for name in COLUMNS if name in batch.schema.names}
    rejections = Rejections()
    targets, codes = _targets(given.get("topic"), len(batch), rules.topic, target, rejections)
    bodies, sys_flags = _bodies(given["body"], rules.compress_body_over, rejections)
    tags = _text("tags", given.get("tags"), CONTROL_CHARACTERS, rejections)
    keys = _text("keys", _joined_keys(given.get("keys"), rejections), SEPARATORS, rejections)
    sharding_keys = _text("sharding_key", given.get("sharding_key"), SEPARATORS, rejections)
    unique_keys = _unique_keys(given.get("unique_key"), rejections) if rules.keep_unique_key else None
    columns = MessageColumns(
        targets=targets,
        target_codes=codes,
        bodies=bodies,
        sys_flags=sys_flags | _of_targets(targets, codes, [target.sys_flag for target in targets], np.int32),
        queue_ids=_queue_ids(given.get("queue_id"), targets, codes, rejections),
        flags=_integers("flag", given.get("flag"), len(batch), 0, np.int32, rejections),
        born_times_ms=_times_ms(given.get("born_timestamp"), len(batch), now_ms),
        tags=tags,
        keys=keys,
        sharding_keys=sharding_keys,
        unique_keys=unique_keys,
        maps=_maps(
            given.get("properties"),
            {"TAGS": tags, "KEYS": keys, "__SHARDINGKEY": sharding_keys},
            rules.strict_properties,
            rejections,
        ),
    )
    _check_keys(columns, rejections)
    _check_sizes(columns, rules, rejections)
    return columns, rejections


def _of_targets(targets: tuple[TopicTarget, ...], codes: np.ndarray, values: list[int], dtype: type) -> np.ndarray:
    """A value of each row's topic."""
    if len(targets) == 1:
        return np.full(len(codes), values[0], dtype)
    return np.array(values, dtype)[codes]


def _targets(
    topics: pa.Array | None,
    count: int,
    default: str | None,
    target: Callable[[str | None], TopicTarget],
    rejections: Rejections,
) -> tuple[tuple[TopicTarget, ...], np.ndarray]:
    """The distinct topics, and which of them each row names."""
    if topics is None or topics.null_count == count:
        targets: tuple[TopicTarget, ...] = (target(None),)
        codes = np.zeros(count, np.int32)
    else:
        texts = as_texts(topics)
        if texts.null_count and default is not None:
            texts = texts.fill_null(default)  # one topic, whether a row names it or not
        encoded = texts.dictionary_encode("encode")
        names = encoded.dictionary.cast(pa.large_binary()).to_pylist()
        # A name that is not UTF-8 gets U+FFFD, which no topic may hold.
        targets = tuple(target(None if name is None else name.decode(errors="replace")) for name in names)
        codes = encoded.indices.to_numpy()
    for code, found in enumerate(targets):
        if found.refusal is not None:
            rejections.add(np.flatnonzero(codes == code), "topic", found.refusal)
    return targets, codes


def _bodies(column: pa.Array, compress_over: int | None, rejections: Rejections) -> tuple[pa.Array, np.ndarray]:
    bodies = column.cast(pa.large_binary())
    if bodies.null_count:
        rejections.add(np.flatnonzero(~is_valid(bodies)), "body", "it is null")
        bodies = bodies.fill_null(b"")
    sys_flags = np.zeros(len(bodies), np.int32)
    if compress_over is not None:
        large = np.flatnonzero(sizes_of(bodies) >= max(compress_over, 1))
        if len(large):
            plain = bodies.take(pa.array(large)).to_pylist()
            compressed = pa.array([zlib.compress(body, _COMPRESSION_LEVEL) for body in plain], pa.large_binary())
            order = np.arange(len(bodies))
            order[large] = len(bodies) + np.arange(len(large))
            bodies = pa.concat_arrays([bodies, compressed]).take(pa.array(order))
            sys_flags[large] = COMPRESSED | COMPRESSION_ZLIB
    return bodies, sys_flags


def _text(name: str, column: pa.Array | None, unwanted: bytes, rejections: Rejections) -> pa.Array | None:
    """A column that becomes a property: None where no row has it."""
    if column is None:
        return None
    texts = empty_as_null(as_texts(column))
    rejections.add(malformed_rows(texts), name, "it is not UTF-8")
    rejections.add(rows_with(texts, unwanted), name, _UNWANTED[unwanted])
    return None if texts.null_count == len(texts) else texts


def _joined_keys(column: pa.Array | None, rejections: Rejections) -> pa.Array | None:
    """KEYS as one text: keys of a list are joined by blanks, empty ones left out."""
    if column is None or not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return column
    counts = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    elements = empty_as_null(as_texts(column.flatten()))
    rows = np.repeat(np.arange(len(column)), counts)
    rule = "a key of the list holds a blank: a reader would take it for two keys"
    rejections.add(np.unique(rows[rows_with(elements, b" ")]), "keys", rule)
    present = is_valid(elements)
    bounds = np.concatenate(([0], np.cumsum(present)))[np.concatenate(([0], np.cumsum(counts)))]
    kept = elements.filter(pa.array(present))
    lists = pa.LargeListArray.from_arrays(pa.array(bounds), kept)
    return pc.binary_join(lists, pa.scalar(" ", pa.large_string()))


def _unique_keys(column: pa.Array | None, rejections: Rejections) -> pa.Array | None:
    texts = _text("unique_key", column, _NOT_IN_UNIQUE_KEY, rejections)
    if texts is not None:
        # No text has more characters than bytes; only long ones are counted, for some may not be UTF-8.
        for row in np.flatnonzero(sizes_of(texts) > UNIQUE_KEY_LIMIT).tolist():
            if row not in rejections and (length := len(texts[row].as_py())) > UNIQUE_KEY_LIMIT:
                rule = f"it has {length} characters, the limit is {UNIQUE_KEY_LIMIT}"
                rejections.add(np.array([row]), "unique_key", rule)
    return texts


def _integers(
    name: str, column: pa.Array | None, count: int, absent: int, dtype: type, rejections: Rejections
) -> np.ndarray:
    if column is None or column.null_count == count:
        return np.full(count, absent, dtype)
    values = column.fill_null(absent).to_numpy()
    limits = np.iinfo(dtype)
    if values.dtype.itemsize > np.dtype(dtype).itemsize:
        outside = np.flatnonzero((values < limits.min) | (values > limits.max))
        bits = 8 * np.dtype(dtype).itemsize
        rejections.add(outside, name, lambda row: f"{values[row]} does not fit into {bits} bits")
    return np.asarray(values, dtype)


def _times_ms(column: pa.Array | None, count: int, absent: int) -> np.ndarray:
    """Timestamps, or whole numbers of milliseconds, as milliseconds; parts of one are cut off towards the past."""
    if column is None or column.null_count == count:
        return np.full(count, absent, np.int64)
    ticks = 1
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz)) if column.type.unit == "s" else column
        ticks = _TICKS_PER_MS.get(column.type.unit, 1)
        column = column.cast(pa.int64())
    values = np.asarray(column.fill_null(absent * ticks).to_numpy(), np.int64)
    return values // ticks if ticks > 1 else values


def _queue_ids(
    column: pa.Array | None, targets: tuple[TopicTarget, ...], codes: np.ndarray, rejections: Rejections
) -> np.ndarray:
    if column is None or column.null_count == len(codes):
        return np.full(len(codes), _NOT_GIVEN, np.int64)
    given = is_valid(column)
    queue_ids = np.asarray(column.fill_null(0).to_numpy(), np.int64)
    counts = _of_targets(targets, codes, [target.queue_count for target in targets], np.int64)

    def rule(row: int) -> str:
        target = targets[codes[row]]
        has = f"topic {target.topic!r} has {target.queue_count} write queues"
        return f"{queue_ids[row]} is no queue: {has}{' (new, queueNum)' if target.is_new else ''}"

    rejections.add(np.flatnonzero((queue_ids < 0) | (queue_ids >= counts)), "queue_id", rule)
    return queue_ids if given.all() else np.where(given, queue_ids, _NOT_GIVEN)


def _maps(
    column: pa.Array | None, stated: dict[str, pa.Array | None], strict: bool, rejections: Rejections
) -> pa.Array | None:
    """The row's own properties, encoded; reserved names are left out (see `property_encoding`)."""
    if column is None or column.null_count == len(column):
        return None
    entries = MapEntries.of(column)
    keep = ~entries.is_reserved
    if not keep.all():
        refused = entries.is_reserved.copy()
        for name, values in stated.items():
            found = entries.entries_of(name)
            rows = entries.rows[found]
            if values is None:
                agrees = np.zeros(len(found), bool)
            else:
                equal = pc.equal(entries.values.take(pa.array(found)), values.take(pa.array(rows))).fill_null(False)
                agrees = np.asarray(equal.to_numpy(zero_copy_only=False), bool)
            wrong = ~agrees
            if name == "__SHARDINGKEY":
                # The source has no such column, so where none is given its rows state it here.
                alone = np.ones(len(found), bool) if values is None else ~is_valid(values)[rows]
                keep[found[alone]], refused[found[alone]] = True, False
                wrong &= ~alone
            rule = f"{name} is reserved and not what column {COLUMN_PROPERTIES[name]} says: use the column"
            rejections.add(rows[wrong], "properties", rule)
        if strict:
            names = dict(
                zip(entries.rows[refused].tolist(), entries.names.filter(pa.array(refused)).to_pylist(), strict=True)
            )
            rejections.add(np.unique(entries.rows[refused]), "properties", lambda row: f"{names[row]} is reserved")
        entries = entries.filter(keep)
    _check_entries(entries, rejections)
    return entries.encode()


def _check_entries(entries: MapEntries, rejections: Rejections) -> None:
    for what, texts in (("name", entries.names), ("value", entries.values)):
        if not len(texts):
            return

        def reject(found: np.ndarray, rule: str) -> None:
            first = dict(zip(entries.rows[found[::-1]].tolist(), found[::-1].tolist(), strict=True))
            rejections.add(
                np.unique(entries.rows[found]), "properties", lambda row: _of_entry(entries, first[row], rule)
            )

        reject(malformed_rows(texts), f"its {what} is not UTF-8")
        reject(rows_with(texts, SEPARATORS), f"its {what} holds 0x01 or 0x02, which separate properties")
        if pc.min(sizes := pc.binary_length(texts)).as_py() == 0:
            reject(np.flatnonzero(sizes.to_numpy() == 0), f"its {what} is empty: no reader would see it")


def _of_entry(entries: MapEntries, entry: int, rule: str) -> str:
    name = entries.names.slice(entry, 1).cast(pa.large_binary())[0].as_py().decode(errors="replace")
    return f"property {name!r}: {rule}"


def _check_keys(columns: MessageColumns, rejections: Rejections) -> None:
    """Topics that keep the newest message of each key take none without. Java: SendMessageProcessor (StringUtils.isBlank)."""
    for code, target in enumerate(columns.targets):
        if target.needs_keys:
            of_topic = columns.target_codes == code
            if columns.keys is not None:
                # Which of these bytes are blank does not depend on whether they are UTF-8.
                texts = columns.keys.filter(pa.array(of_topic)).cast(pa.large_binary()).to_pylist()
                of_topic[of_topic] = [not (text or b"").strip() for text in texts]
            rule = f"topic {target.topic!r} keeps the newest message of each key (COMPACTION): a key is needed"
            rejections.add(np.flatnonzero(of_topic), "keys", rule)


def _check_sizes(columns: MessageColumns, rules: MessageRules, rejections: Rejections) -> None:
    """Java's further limit, a record of maxMessageSize + 64 KiB, cannot be met by what passes these."""
    body_sizes = sizes_of(columns.bodies)
    limit = rules.max_message_size
    if body_sizes.max(initial=0) > limit:
        found = np.flatnonzero(body_sizes > limit)
        rule = "it is {} bytes as stored, maxMessageSize is {}"
        rejections.add(found, "body", lambda row: rule.format(body_sizes[row], limit))
    sizes = np.full(len(columns), encoded_size(leading_properties(rules.region, rules.trace_on, rules.cluster_name)))
    for name, texts in (("TAGS", columns.tags), ("KEYS", columns.keys), ("__SHARDINGKEY", columns.sharding_keys)):
        if texts is not None:
            sizes += np.where(is_valid(texts), sizes_of(texts) + len(name) + 2, 0)
    unique_sizes = UNIQUE_KEY_LENGTH if columns.unique_keys is None else sizes_of(columns.unique_keys)
    sizes += np.where(np.equal(unique_sizes, 0), UNIQUE_KEY_LENGTH, unique_sizes) + len("UNIQ_KEY") + 2
    if columns.maps is not None:
        sizes += sizes_of(columns.maps)
    if sizes.max(initial=0) > PROPERTIES_LIMIT_BYTES:
        rule = "all properties together are {} bytes, the limit is {}"
        found = np.flatnonzero(sizes > PROPERTIES_LIMIT_BYTES)
        rejections.add(found, "properties", lambda row: rule.format(sizes[row], PROPERTIES_LIMIT_BYTES))
    topic_sizes = [len(target.topic) for target in columns.targets]
    sizes += HEADER_SIZE + 2 * (rules.host_size - 8) + body_sizes + 1 + 2
    sizes += _of_targets(columns.targets, columns.target_codes, topic_sizes, np.int64)
    if sizes.max(initial=0) + BLANK_SIZE > rules.log_file_size:
        found = np.flatnonzero(sizes + BLANK_SIZE > rules.log_file_size)
        rule = "its record of {} bytes and {} behind it do not fit into a log file of {}"
        rejections.add(found, "body", lambda row: rule.format(sizes[row], BLANK_SIZE, rules.log_file_size))
