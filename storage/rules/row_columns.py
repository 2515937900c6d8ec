"""Checks rows and makes the columns that records need. Pure.

    rows ─read_columns─▶ MessageColumns of all rows, and for each row that is no message the first rule that it breaks

Nothing here depends on other rows. `message_rows.py` then gives the accepted rows what does (ranks, turns of queues).
Java: Message, Validators.checkMessage, DefaultMQProducerImpl.tryToCompressMessage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import ColumnIllegalError
from storage.format.arrays import (
    CONTROL_CHARACTERS,
    SEPARATORS,
    as_texts,
    empty_as_null,
    is_valid,
    malformed_rows,
    rows_with,
    sizes_of,
)
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.keys import RANK_DIGITS, UNIQUE_KEY_LENGTH
from storage.format.properties import (
    COLUMN_PROPERTIES,
    CRC_SIZE,
    ROW_MARK,
    MapEntries,
    encoded_size,
    leading_properties,
)
from storage.format.record import COMPRESSED, COMPRESSION_ZLIB, V6_HOST_SIZE, compress
from storage.names import advice
from storage.rules.delays import DELAY_COLUMNS, TIMER_TOPIC, Delays, check_levels, read_delays
from storage.rules.half_messages import (
    HALF_EMPTY,
    HALF_PROPERTIES,
    HALF_TOPIC,
    TRANSACTION_COLUMNS,
    TransactionColumns,
    half_refusals,
    read_transactions,
)
from storage.rules.inner_messages import Excess, Limits, Sizes, excesses
from storage.rules.priorities import read_priorities
from storage.rules.retry_rows import RETRY_COLUMNS, Retries, read_retries
from storage.rules.row_rules import NAMED_QUEUES_LIMIT, MessageRules, TopicTarget
from storage.rules.values import (
    BLANK_IN_KEY,
    EMPTY,
    NOT_UTF8,
    UNWANTED,
    WORD_SEPARATORS,
    Rejections,
    of_property,
    read_integers,
    read_texts,
    read_times_ms,
    reserved,
)

COLUMNS = (
    *("body", "topic", "tags", "keys", "properties", "flag"),
    *("born_timestamp", "queue_id", "sharding_key", "unique_key"),
    *DELAY_COLUMNS,
    *RETRY_COLUMNS,
    *TRANSACTION_COLUMNS,
)
"""The columns read of a row; others are ignored."""

UNIQUE_KEY_LIMIT = 255
_NOT_GIVEN = -1
_COLUMN_OF = {"topic": "topic", "properties": "properties", "body": "body", "record": "body"}
assert len(SCHEDULE_TOPIC) == len(TIMER_TOPIC)  # the topics where rows wait
LEFT_COLUMNS = (
    *("broker_name", "queue_offset", "msg_id", "store_timestamp", "born_host", "store_host", "sys_flag"),
    *("body_crc", "prepared_transaction_offset", "commitlog_offset", "store_size"),
    *("real_topic", "real_queue_id", "origin_topic", "_corrupt"),
)
"""The source's other columns."""


@dataclass(slots=True)
class MessageColumns:
    """Columns of n rows; texts are large_string or None, a null text is missing. Values of rejected rows are undefined."""

    targets: tuple[TopicTarget, ...]
    target_codes: np.ndarray
    bodies: pa.Array
    """large_binary, as stored, no nulls."""
    sys_flags: np.ndarray
    queue_ids: np.ndarray
    """int64, −1 if none is requested."""
    flags: np.ndarray
    born_times_ms: np.ndarray
    tags: pa.Array | None
    keys: pa.Array | None
    sharding_keys: pa.Array | None
    unique_keys: pa.Array | None
    maps: pa.Array | None
    """The encoded entries of the row's own properties, large_string without nulls."""
    delays: Delays | None = None
    """None if no row is delayed."""
    transactions: TransactionColumns | None = None
    """None if rows are ordinary messages."""
    retries: Retries | None = None
    """None if no row goes to a retry topic."""

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
            elif isinstance(value, pa.Array | Delays | Retries | TransactionColumns):
                values[name] = value.filter(pa.array(keep))
        return MessageColumns(**values)


def read_columns(
    batch: pa.RecordBatch, rules: MessageRules, target: Callable[[str | None], TopicTarget], now_ms: int
) -> tuple[MessageColumns, Rejections]:
    """The rows' columns and the rejected rows. `target` is `rules.target`, or a cache of it.

    An empty text column counts as null. Tags are kept unchanged, as by a Java client, although tags with blanks around them can only
    be subscribed to by `*`. An empty body is allowed: a broker accepts it, only a Java client does not send it.
    """
    taken = [name for name in COLUMNS if name in batch.schema.names and name not in rules.said_of_all]
    given = {name: batch.column(name) for name in taken}
    rejections = Rejections()
    named, codes = _targets(given.get("topic"), len(batch), target)
    targets, retried = named, None
    if "retry_group" in given and rules.transaction is None:
        retried = read_retries(given, (named, codes), rules, rejections)
    if retried is not None:
        targets, codes = retried[1]
        if "queue_id" in given:  # a queue of the topic that the row was consumed from
            given["queue_id"] = pc.if_else(pa.array(retried[0].rows), None, given["queue_id"])
    for code, found in enumerate(named):  # only for rows that go there: the original topic of a retried row may be gone
        if found.refusal is not None:
            rejections.add(np.flatnonzero(codes == code), "topic", found.refusal)
    bodies, sys_flags = _bodies(given["body"], rules.compress_body_over, rejections)
    tags = read_texts("tags", given.get("tags"), CONTROL_CHARACTERS, rejections)
    keys = read_texts("keys", _joined_keys(given.get("keys"), rejections), SEPARATORS, rejections)
    sharding_keys = read_texts("sharding_key", given.get("sharding_key"), SEPARATORS, rejections)
    unique_keys = _unique_keys(given.get("unique_key"), rejections) if rules.keep_unique_key else None
    priorities = None
    if rules.honours_priority:
        are_other = _are_of_other_type(given, sharding_keys, None if retried is None else retried[0], rules)
        priorities = read_priorities(given.get("properties"), are_other)
    columns = MessageColumns(
        targets=targets,
        target_codes=codes,
        bodies=bodies,
        sys_flags=sys_flags | _of_targets(targets, codes, [target.sys_flag for target in targets], np.int32),
        queue_ids=_queue_ids(given.get("queue_id"), targets, codes, rejections),
        flags=read_integers("flag", given.get("flag"), len(batch), 0, np.int32, rejections),
        born_times_ms=read_times_ms(given.get("born_timestamp"), len(batch), now_ms),
        tags=tags,
        keys=keys,
        sharding_keys=sharding_keys,
        unique_keys=unique_keys,
        maps=read_properties(
            given.get("properties") if priorities is None else priorities.properties,
            {"TAGS": tags, "KEYS": keys, "__SHARDINGKEY": sharding_keys},
            rules.strict_properties,
            rejections,
        ),
    )
    columns.retries = None if retried is None else retried[0]
    if priorities is not None:
        counts = _of_targets(targets, codes, [target.queue_count for target in targets], np.int64)[priorities.rows]
        columns.queue_ids[priorities.rows] = np.minimum(priorities.priorities, counts - 1)
    _check_keys(columns, rejections)
    if rules.transaction is not None:
        state, group = given.get("transaction_state"), given.get("producer_group")
        columns.transactions = read_transactions(state, group, len(batch), rules.transaction, rejections)
        _check_halves(columns, given, rejections)
    sizes = _property_sizes(columns, rules)
    if rules.transaction is None and (columns.retries is not None or "delay_level" in given or "deliver_at" in given):
        columns.delays = read_delays(
            _levels(columns, given.get("delay_level"), rejections),
            given.get("deliver_at"),
            sizes_of(bodies),
            rejections,
            rules.delay_rules,
            now_ms,
        )
    if columns.delays is not None:
        sizes += columns.delays.added_sizes(*_real_sizes(columns))
    _check_sizes(columns, sizes, rules, rejections)
    return columns, rejections


def overruled(batch: pa.RecordBatch, said: Mapping[str, str]) -> dict[str, str]:
    """For each column of `said`, the first different text in the rows. It has no effect (`MessageRules.said_of_all`)."""
    found: dict[str, str] = {}
    for column, text in said.items():
        if column in batch.schema.names:
            texts = empty_as_null(as_texts(batch.column(column)))
            others = pc.not_equal(texts, pa.scalar(text, pa.large_string()))
            if (row := pc.index(others, True).as_py()) >= 0:
                found[column] = texts[row : row + 1].cast(pa.large_binary())[0].as_py().decode(errors="replace")
    return found


def _are_of_other_type(
    given: Mapping[str, pa.Array], sharding_keys: pa.Array | None, retries: Retries | None, rules: MessageRules
) -> np.ndarray:
    """The rows whose priority does not count: they are halves, delayed, sent to a group again, or in order."""
    are_other = np.full(len(given["body"]), rules.transaction is not None)
    for texts in (sharding_keys, given.get("deliver_at")):
        if texts is not None:
            are_other |= is_valid(texts)
    if (levels := given.get("delay_level")) is not None:
        are_other |= np.asarray(pc.fill_null(pc.not_equal(levels, 0), False).to_numpy(zero_copy_only=False), bool)
    return are_other if retries is None else are_other | retries.rows


def _levels(columns: MessageColumns, column: pa.Array | None, rejections: Rejections) -> np.ndarray:
    """The delay level of each row, 0 if it must not wait."""
    requested = read_integers("delay_level", column, len(columns), 0, np.int32, rejections)
    if columns.retries is None:
        return requested
    return columns.retries.levels(requested, np.zeros(len(requested), bool) if column is None else is_valid(column))


def _check_halves(columns: MessageColumns, given: dict[str, pa.Array], rejections: Rejections) -> None:
    """Reject rows that a broker could not commit, by `half_refusals`."""
    levels = read_integers("delay_level", given.get("delay_level"), len(columns), 0, np.int32, rejections)
    check_levels(levels, rejections)
    has_time = is_valid(given["deliver_at"]) if "deliver_at" in given else np.zeros(len(columns), bool)
    for is_refused, refusal in half_refusals(levels, has_time, sizes_of(columns.bodies) == 0):
        refused = np.asarray(is_refused)
        if refusal is HALF_EMPTY:
            rejections.add(np.flatnonzero(refused), "body", refusal.reason)
            continue
        rejections.add(np.flatnonzero(refused & (levels > 0)), "delay_level", refusal.reason)
        rejections.add(np.flatnonzero(refused), "deliver_at", refusal.reason)


def _of_targets(targets: tuple[TopicTarget, ...], codes: np.ndarray, values: list[int], dtype: type) -> np.ndarray:
    """A value of each row's topic."""
    if len(targets) == 1:
        return np.full(len(codes), values[0], dtype)
    return np.array(values, dtype)[codes]


def _targets(
    topics: pa.Array | None, count: int, target: Callable[[str | None], TopicTarget]
) -> tuple[tuple[TopicTarget, ...], np.ndarray]:
    """The distinct topics, and each row's index in them."""
    if topics is None or topics.null_count == count:
        targets: tuple[TopicTarget, ...] = (target(None),)
        codes = np.zeros(count, np.int32)
    else:
        encoded = as_texts(topics).dictionary_encode("encode")
        names = encoded.dictionary.cast(pa.large_binary()).to_pylist()
        # A name with invalid UTF-8 gets U+FFFD, which no topic may hold.
        targets = tuple(target(None if name is None else name.decode(errors="replace")) for name in names)
        codes = encoded.indices.to_numpy()
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
            compressed = pa.array([compress(body, COMPRESSION_ZLIB) for body in plain], pa.large_binary())
            order = np.arange(len(bodies))
            order[large] = len(bodies) + np.arange(len(large))
            bodies = pa.concat_arrays([bodies, compressed]).take(pa.array(order))
            sys_flags[large] = COMPRESSED | COMPRESSION_ZLIB
    return bodies, sys_flags


def _joined_keys(column: pa.Array | None, rejections: Rejections) -> pa.Array | None:
    """KEYS as one text: keys of a list are joined by blanks, empty ones omitted."""
    if column is None or not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return column
    counts = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    elements = empty_as_null(as_texts(column.flatten()))
    rows = np.repeat(np.arange(len(column)), counts)
    rejections.add(np.unique(rows[rows_with(elements, b" ")]), "keys", BLANK_IN_KEY)
    present = is_valid(elements)
    bounds = np.concatenate(([0], np.cumsum(present)))[np.concatenate(([0], np.cumsum(counts)))]
    kept = elements.filter(pa.array(present))
    lists = pa.LargeListArray.from_arrays(pa.array(bounds), kept)
    return pc.binary_join(lists, pa.scalar(" ", pa.large_string()))


def _unique_keys(column: pa.Array | None, rejections: Rejections) -> pa.Array | None:
    texts = read_texts("unique_key", column, WORD_SEPARATORS, rejections)
    if texts is not None:
        # A text has at most as many characters as bytes; only long ones are counted, as some may not be UTF-8.
        for row in np.flatnonzero(sizes_of(texts) > UNIQUE_KEY_LIMIT).tolist():
            if row not in rejections and (length := len(texts[row].as_py())) > UNIQUE_KEY_LIMIT:
                rule = f"it has {length} characters, the limit is {UNIQUE_KEY_LIMIT}"
                rejections.add(np.array([row]), "unique_key", rule)
    return texts


def _queue_ids(
    column: pa.Array | None, targets: tuple[TopicTarget, ...], codes: np.ndarray, rejections: Rejections
) -> np.ndarray:
    if column is None or column.null_count == len(codes):
        return np.full(len(codes), _NOT_GIVEN, np.int64)
    given = is_valid(column)
    requested = np.asarray(column.fill_null(0).to_numpy(), np.int64)
    queue_ids = requested.copy()
    for code, target in enumerate(targets):
        if target.led is not None:
            named = given & (codes == code)
            queue_ids[named] = target.led.ranks(requested[named])
    limits = _of_targets(targets, codes, [target.queue_limit for target in targets], np.int64)

    def rule(row: int) -> str:
        target, queue_id = targets[codes[row]], int(requested[row])
        if queue_id < 0:
            return f"{queue_id} is no queue: they are counted from 0"
        if target.led is not None:
            return target.led.refusal(queue_id)
        if target.queue_limit > target.there_count or target.is_new:
            return f"{queue_id} is no queue: topic {target.topic!r} gets at most {target.queue_limit} (queueNum)"
        cure = f" (queueNum={queue_id + 1} adds more)" if queue_id < NAMED_QUEUES_LIMIT and not target.is_fixed else ""
        return f"{queue_id} is no queue: topic {target.topic!r} has {target.there_count} queues{cure}"

    rejections.add(np.flatnonzero((queue_ids < 0) | (queue_ids >= limits)), "queue_id", rule)
    return queue_ids if given.all() else np.where(given, queue_ids, _NOT_GIVEN)


def _check_keys(columns: MessageColumns, rejections: Rejections) -> None:
    """Topics that keep the newest message of each key refuse messages without key. Java: SendMessageProcessor (StringUtils.isBlank)."""
    for code, target in enumerate(columns.targets):
        if target.needs_keys:
            of_topic = columns.target_codes == code
            if columns.keys is not None:
                # The blanks among these bytes are the same whether they are UTF-8 or not.
                texts = columns.keys.filter(pa.array(of_topic)).cast(pa.large_binary()).to_pylist()
                of_topic[of_topic] = [not (text or b"").strip() for text in texts]
            rule = f"topic {target.topic!r} keeps the newest message of each key (COMPACTION): a key is needed"
            rejections.add(np.flatnonzero(of_topic), "keys", rule)


def _property_sizes(columns: MessageColumns, rules: MessageRules) -> np.ndarray:
    """Bytes of each row's properties, without those of a delay."""
    sizes = np.full(len(columns), encoded_size(leading_properties(rules.region, rules.trace_on, rules.cluster_name)))
    for name, texts in (("TAGS", columns.tags), ("KEYS", columns.keys), ("__SHARDINGKEY", columns.sharding_keys)):
        if texts is not None:
            sizes += _sizes_as(name, texts)
    unique_sizes = UNIQUE_KEY_LENGTH if columns.unique_keys is None else sizes_of(columns.unique_keys)
    unique_sizes = np.where(np.equal(unique_sizes, 0), UNIQUE_KEY_LENGTH, unique_sizes)
    sizes += unique_sizes + len("UNIQ_KEY") + 2
    if columns.maps is not None:
        sizes += sizes_of(columns.maps)
    if rules.row_mark is not None:
        sizes += len(ROW_MARK) + 2 + len(rules.row_mark) + RANK_DIGITS
    if columns.retries is not None:
        for name, texts in columns.retries.properties.items():
            sizes += _sizes_as(name, texts)
        sizes += np.where(columns.retries.dead, len("DELAY") + 2 + len("-1"), 0)
    if columns.transactions is not None and rules.transaction is not None:
        groups = columns.transactions.producer_groups
        sizes += len(rules.transaction.producer_group or "") if groups is None else sizes_of(groups)
        sizes += unique_sizes + encoded_size(HALF_PROPERTIES) + encoded_size(dict(rules.transaction.marks))
        sizes += sum(_real_sizes(columns))
    return sizes + CRC_SIZE if rules.appends_crc else sizes


def _sizes_as(name: str, texts: pa.Array) -> np.ndarray:
    """Bytes of a property of each row, 0 where its text is null."""
    sizes = sizes_of(texts) + (len(name) + 2)
    return np.where(is_valid(texts), sizes, 0) if texts.null_count else sizes


def _real_sizes(columns: MessageColumns) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the values of REAL_TOPIC and, at most, of REAL_QID."""
    topics = [len(target.topic) for target in columns.targets]
    digits = [len(str(target.greatest_queue)) for target in columns.targets]
    return (
        _of_targets(columns.targets, columns.target_codes, topics, np.int64),
        _of_targets(columns.targets, columns.target_codes, digits, np.int64),
    )


def _limits(target: TopicTarget, rules: MessageRules) -> Limits:
    """The limits of the topic's broker, if known."""
    body, file = target.max_message_size, target.log_file_size
    return Limits(rules.max_message_size if body is None else body, rules.log_file_size if file is None else file)


def _check_sizes(
    columns: MessageColumns, property_sizes: np.ndarray, rules: MessageRules, rejections: Rejections
) -> None:
    """Check every limit of `rules/inner_messages.py`; a violation names the column that exceeds it."""
    topics = [len(target.topic) for target in columns.targets]
    topic_sizes: np.ndarray | int
    topic_sizes = topics[0] if len(topics) == 1 else np.array(topics, np.int64)[columns.target_codes]
    is_timed: np.ndarray | bool = False
    if columns.delays is not None:
        topic_sizes = np.where(columns.delays.are_waiting, len(SCHEDULE_TOPIC), topic_sizes)
        is_timed = columns.delays.waits < 0
    if columns.transactions is not None:  # a half and its commit
        topic_sizes = np.maximum(topic_sizes, len(HALF_TOPIC))
    v6_hosts = 2 * (rules.host_size == V6_HOST_SIZE)
    sizes = Sizes.of(topic_sizes, property_sizes, sizes_of(columns.bodies), v6_hosts, is_timed)
    limits = [_limits(target, rules) for target in columns.targets]
    all_limits = limits[0] if len(limits) == 1 else Limits(*np.array(limits, np.int64)[columns.target_codes].T)

    def rule(excess: Excess, row: int) -> str:
        cure = columns.targets[columns.target_codes[row]].size_cure
        return f"{excess.reason(row)} ({cure})" if cure and excess.what == "body" else excess.reason(row)

    for excess in excesses(sizes, all_limits, is_timed):
        if not np.any(excess.over):
            continue
        over = np.broadcast_to(excess.over, len(columns))
        for column, rows in ((_COLUMN_OF[excess.what], over & ~np.asarray(is_timed)), ("deliver_at", over & is_timed)):
            rejections.add(np.flatnonzero(rows), column, partial(rule, excess))


def read_properties(
    column: pa.Array | None, stated: dict[str, pa.Array | None], strict: bool, rejections: Rejections
) -> pa.Array | None:
    """The rows' own properties, encoded as large_string; None if no row has any.

    Reserved names (see `property_encoding`) are omitted, or refused if `strict`. `stated` are the columns of properties that have
    one; the values in a row's map must agree with them.
    """
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
                # The source has no such column, so without one its rows have the value in the map.
                alone = np.ones(len(found), bool) if values is None else ~is_valid(values)[rows]
                keep[found[alone]], refused[found[alone]] = True, False
                wrong &= ~alone
            rule = f"{name} is reserved and not what column {COLUMN_PROPERTIES[name]} says: use the column"
            rejections.add(rows[wrong], "properties", rule)
        if strict:
            names = dict(
                zip(entries.rows[refused].tolist(), entries.names.filter(pa.array(refused)).to_pylist(), strict=True)
            )
            rejections.add(np.unique(entries.rows[refused]), "properties", lambda row: reserved(names[row]))
        entries = entries.filter(keep)
    _check_entries(entries, rejections)
    return entries.encode()


def _check_entries(entries: MapEntries, rejections: Rejections) -> None:
    for what, texts in (("name", entries.names), ("value", entries.values)):
        if not len(texts):
            return

        def reject(found: np.ndarray, rule: str, what: str = what) -> None:
            first = dict(zip(entries.rows[found[::-1]].tolist(), found[::-1].tolist(), strict=True))
            rejections.add(
                np.unique(entries.rows[found]), "properties", lambda row: _of_entry(entries, first[row], what, rule)
            )

        reject(malformed_rows(texts), NOT_UTF8)
        reject(rows_with(texts, SEPARATORS), UNWANTED[SEPARATORS])
        if pc.min(sizes := pc.binary_length(texts)).as_py() == 0:
            reject(np.flatnonzero(sizes.to_numpy() == 0), EMPTY)


def _of_entry(entries: MapEntries, entry: int, what: str, rule: str) -> str:
    name = entries.names.slice(entry, 1).cast(pa.large_binary())[0].as_py().decode(errors="replace")
    return of_property(name, what, rule)


def check_columns(schema: pa.Schema) -> None:
    """Raises ColumnIllegalError for an unknown or repeated column, one of a wrong type, or a missing `body`.

    A column of Arrow's type null counts as missing. For a dictionary the type of its values counts.

    Only the schema is checked, before a row is read. Pure.

    `rows.columns.COLUMNS` become messages. The other columns of the Spark source belong to a message's place in a store, or to its
    history; they are accepted and ignored, so that rows can be written as they were read.
    """
    check_names(schema.names, COLUMNS, LEFT_COLUMNS, needed="body")
    for column in schema:
        kind = _KINDS.get(column.name)
        if kind is not None and not (pa.types.is_null(column.type) or kind.fits(column.type)):
            raise ColumnIllegalError(column.name, f"it is {column.type}, expected {kind.expected}")


def check_names(names: Sequence[str], known: Collection[str], left: Collection[str], *, needed: str) -> None:
    """Raises ColumnIllegalError for a name that is neither known nor ignored (`left`), for a repeated known one, and if the `needed`
    one is missing.
    """
    if needed not in names:
        raise ColumnIllegalError(needed, f"it is missing; there are {', '.join(names) or 'no columns'}")
    for name in names:
        if name not in known and name not in left:
            raise ColumnIllegalError(name, "no message has such a column" + (advice(name, [*left, *known]) or _DROP_IT))
        if name in known and names.count(name) > 1:
            raise ColumnIllegalError(name, "it is there twice")


_DROP_IT = "; drop it, or put it into the column properties"


class _Kind(NamedTuple):
    expected: str
    fits: Callable[[pa.DataType], bool]


def _is_text(found: pa.DataType) -> bool:
    if pa.types.is_dictionary(found):
        return _is_text(found.value_type)
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))


def _is_bytes_or_text(found: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(found):
        return _is_bytes_or_text(found.value_type)
    is_bytes = types.is_binary(found) or types.is_large_binary(found) or types.is_binary_view(found)
    return is_bytes or types.is_fixed_size_binary(found) or _is_text(found)


def _is_keys(found: pa.DataType) -> bool:
    is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
    return _is_text(found) or (is_list and (_is_text(found.value_type) or pa.types.is_null(found.value_type)))


def _is_text_map(found: pa.DataType) -> bool:
    return bool(pa.types.is_map(found)) and _is_text(found.key_type) and _is_text(found.item_type)


def _is_integer(found: pa.DataType) -> bool:
    return bool(pa.types.is_integer(found))


def _is_time(found: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(found)) or _is_integer(found)


_TEXT = _Kind("string", _is_text)


_INTEGER = _Kind("a whole number", _is_integer)


_KINDS = {
    "body": _Kind("binary or string", _is_bytes_or_text),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _Kind("string or list<string>", _is_keys),
    "properties": _Kind("map<string, string>", _is_text_map),
    "flag": _INTEGER,
    "born_timestamp": _Kind("timestamp, or whole milliseconds", _is_time),
    "queue_id": _INTEGER,
    "sharding_key": _TEXT,
    "unique_key": _TEXT,
    "delay_level": _INTEGER,
    "deliver_at": _Kind("timestamp, or whole milliseconds", _is_time),
    "retry_group": _TEXT,
    "reconsume_times": _INTEGER,
    "origin_msg_id": _TEXT,
    "transaction_state": _TEXT,
    "producer_group": _TEXT,
}
