"""Rows that consumers of a group failed to process, by the same rules as one message (`retries.py`). No loop over rows. Pure.

A client itself sends a row to the group's retry topic (columns `retry_group` and `reconsume_times`, read by `read_retries`): so do
orderly consumers, and consumers that could not send a message back. The row's topic becomes RETRY_TOPIC, and column `origin_msg_id`
ORIGIN_MESSAGE_ID.

    reconsume_times >  maximum   %DLQ%GROUP, DELAY −1
    else                         %RETRY%GROUP, by way of the schedule topic: DELAY delay_level, or 3 + reconsume_times

Or rows are sent back as they were consumed, as the Spark source gives them:

    rows ─ReturnedRows.prepare─▶ OutgoingMessages for %DLQ%GROUP or, by way of the schedule topic, %RETRY%GROUP, and the rejected
                                 rows, with the column and the rule that each breaks

Java: SendMessageProcessor.handleRetryAndDLQ, ConsumeMessageOrderlyService.sendMessageBack; AbstractSendMessageProcessor.
consumerSendMsgBack.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import NameIllegalError
from storage.format.arrays import SEPARATORS, as_texts, is_valid, malformed_rows, rows_with, sizes_of
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.properties import CRC_NAME, MapEntries, encode_columns, with_crc_room
from storage.format.record import MULTI_TAGS, TRANSACTION_COMMIT, TRANSACTION_MASK, V4_HOST_SIZE, V6_HOST_SIZE
from storage.format.record_block import OutgoingMessages
from storage.format.typed_json import SubscriptionGroupConfig
from storage.names import dead_letter_topic, host_of, retry_topic, validate_path_element, validate_topic
from storage.rules.delays import REAL_QUEUE_ID, REAL_TOPIC, TIMES, DelayWish, decimal_texts, judge_delays
from storage.rules.inner_messages import (
    InnerMessages,
    Limits,
    excesses,
    outgoing_messages,
    sizes_of_messages,
    topic_limit,
)
from storage.rules.retries import (
    DEAD_LETTER_QUEUE_COUNT,
    FIRST_RETRY_LEVEL,
    MAX_RECONSUME_TIMES,
    RECONSUME_TIMES,
    SENT_DEAD_LETTER_LEVEL,
    Given,
    ReturnBar,
    dead_letter_topic_config,
    is_sent_too_often,
    most_retries,
    next_reconsume_times,
    retry_queue_count,
    retry_topic_config,
    return_bar,
    sent_back_says,
    sent_back_to,
)
from storage.rules.row_rules import DEFAULT_DELAYS_MS, MessageRules, TopicTarget
from storage.rules.values import NOT_UTF8, UNWANTED, RejectedRow, Rejections, read_integers, read_texts, read_times_ms
from storage.settings.nouns import TimerConfig
from storage.tables.topics import PERM_READ, PERM_WRITE, TopicConfig

RETRY_COLUMNS = ("retry_group", "reconsume_times", "origin_msg_id")
RETRY_TOPIC, ORIGIN_MESSAGE_ID = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"

Targets = tuple[tuple[TopicTarget, ...], np.ndarray]
"""Distinct topics, and each row's index in them."""


class Retries(NamedTuple):
    """The retries of n rows; columns of equal length."""

    rows: np.ndarray
    """bool: which rows name a group."""
    dead: np.ndarray
    """bool: which of these are dead letters."""
    reconsume_times: np.ndarray
    """int32; 0 in other rows."""
    properties: dict[str, pa.Array]
    """RETRY_TOPIC and ORIGIN_MESSAGE_ID as large_string, null in rows that have none."""

    def filter(self, keep: pa.Array) -> Retries:
        """Some of the rows, by a mask."""
        mask = keep.to_numpy(zero_copy_only=False)
        kept = {name: values.filter(keep) for name, values in self.properties.items()}
        return Retries(self.rows[mask], self.dead[mask], self.reconsume_times[mask], kept)

    def levels(self, requested: np.ndarray, is_requested: np.ndarray) -> np.ndarray:
        """The levels of all rows: the requested ones, else a client's default; dead letters do not wait."""
        own = np.where(is_requested, requested, FIRST_RETRY_LEVEL + self.reconsume_times.astype(np.int64))
        return np.asarray(np.where(self.rows, np.where(self.dead, 0, own), requested), np.int64)

    def dead_letter_levels(self) -> pa.Array:
        """DELAY of dead letters, null in other rows."""
        return pa.array(np.full(len(self.dead), SENT_DEAD_LETTER_LEVEL), mask=~self.dead).cast(pa.large_string())

    def header_properties(self, max_reconsume_times: int | None) -> dict[str, pa.Array]:
        """Additional properties for the request's header, as a client sends them: RECONSUME_TIME, and MAX_RECONSUME_TIMES if known."""
        said = {RECONSUME_TIMES: decimal_texts(self.reconsume_times, self.rows)}
        if max_reconsume_times is not None:
            said[MAX_RECONSUME_TIMES] = decimal_texts(np.full(len(self.rows), max_reconsume_times), self.rows)
        return said


def read_retries(
    given: dict[str, pa.Array], origins: Targets, rules: MessageRules, rejections: Rejections
) -> tuple[Retries, Targets] | None:
    """The retries of rows that name a group, and the targets of all rows; `origins` are the topics that the rows name.

    None if no row names a group.
    """
    texts = as_texts(given["retry_group"])
    rows = is_valid(texts)
    if not rows.any():
        return None
    count = len(rows)
    times = read_integers("reconsume_times", given.get("reconsume_times"), count, 0, np.int32, rejections)
    times = np.where(rows, times, 0).astype(np.int32)
    rejections.add(np.flatnonzero(times < 0), "reconsume_times", lambda row: f"{times[row]} is negative")
    encoded = texts.dictionary_encode()
    groups = [name.decode(errors="replace") for name in encoded.dictionary.cast(pa.large_binary()).to_pylist()]
    group_codes = encoded.indices.fill_null(0).to_numpy()
    maxima = np.array([rules.max_reconsume_times(group) for group in groups])[group_codes]
    dead = rows & is_sent_too_often(times, maxima)
    codes = np.where(rows, len(origins[0]) + 2 * group_codes + dead, origins[1]).astype(np.int32)
    targets = [*origins[0], *(rules.retry_target(group, is_dead) for group in groups for is_dead in (False, True))]
    for code in range(len(origins[0]), len(targets)):
        if (refusal := targets[code].refusal) is not None:
            rejections.add(np.flatnonzero(codes == code), "retry_group", refusal)
    for code, origin in enumerate(origins[0]):
        if (refusal := _refusal_of_origin(origin)) is not None:
            rejections.add(np.flatnonzero(rows & (origins[1] == code)), "topic", refusal)
    topics = pa.array([target.topic for target in origins[0]], pa.large_string())
    properties = {RETRY_TOPIC: topics.take(pa.array(origins[1], mask=~rows))}
    origin_ids = read_texts("origin_msg_id", given.get("origin_msg_id"), SEPARATORS, rejections)
    if origin_ids is not None:
        properties[ORIGIN_MESSAGE_ID] = _where(rows, origin_ids)
    return Retries(rows, dead, times, properties), (tuple(targets), codes)


def _refusal_of_origin(origin: TopicTarget) -> str | None:
    """Why no message can have been consumed from this topic. Only its name is checked: a broker does not look for its entry."""
    try:
        validate_topic(origin.topic)
    except NameIllegalError as error:
        return origin.refusal or error.describe()
    return None


def _where(rows: np.ndarray, texts: pa.Array) -> pa.Array:
    return texts.take(pa.array(np.arange(len(texts)), mask=~rows))


SENT_BACK_COLUMNS = (
    *("topic", "msg_id", "properties", "body"),
    *("reconsume_times", "born_timestamp", "born_host", "flag", "sys_flag", "delay_level"),
)
"""The columns read. The first four are required; `delay_level` is the consumer's choice, the others are as consumed."""

NEEDED_COLUMNS = SENT_BACK_COLUMNS[:4]
_REPLACED_BY_DELAY = (REAL_TOPIC, REAL_QUEUE_ID, *TIMES)
_KEPT_SYS_FLAG = MULTI_TAGS
_UNSPECIFIED_HOST = "0.0.0.0:0"


class SentBack(NamedTuple):
    """The messages that rows become."""

    messages: InnerMessages
    """The messages to put: retries in the schedule topic."""
    dead: np.ndarray
    """bool: which are dead letters."""
    rows: np.ndarray
    """The row of each, ascending: without rejected ones, and without any if the group takes no retries."""


def send_back_rows(
    rows: pa.RecordBatch,
    group: SubscriptionGroupConfig,
    rejections: Rejections,
    *,
    delays_ms: tuple[int, ...],
    now_ms: int,
    max_reconsume_times: int | None = None,
    first_row: int = 0,
    appends_crc: bool = False,
) -> SentBack:
    """The messages that put `rows` back; `rejections` gets the rows that cannot be.

    `max_reconsume_times` overrides the group's. Retry queues, as many as `group` says (`ReturnRules.spread_group`), take turns by
    `first_row` + the row's number, where Java draws one, so that a repeated task makes the same messages. With `appends_crc`
    properties leave room for a checksum of the record. If a group's `retry_queue_count` is 0 or less, it takes no retries: its failed
    messages are dropped, as in Java.
    Bodies are stored as they come, uncompressed: so are the source's rows, except with decompress=false, which must not be used here.
    Departure: a dead letter keeps its TIMER properties, but does not become a timer message again.
    """
    count = rows.num_rows
    given = {name: rows.column(name) for name in SENT_BACK_COLUMNS if name in rows.schema.names}
    topics = read_origin_topics(given["topic"], rejections)
    msg_ids = read_origin_ids(given["msg_id"], rejections)

    def integers(name: str) -> np.ndarray:
        return read_integers(name, given.get(name), count, 0, np.int32, rejections)

    times, requested = integers("reconsume_times"), integers("delay_level")
    dead, levels = sent_back_to(times, requested, most_retries(group, max_reconsume_times))
    bodies = _bodies(given["body"], rejections)
    hosts, are_v6 = _hosts(given.get("born_host"), rejections)
    dead_letters = dead_letter_topic(group.group)
    if len(dead_letters) > (limit := topic_limit(dead_letters)):
        rule = f"a dead letter's topic {dead_letters} has {len(dead_letters)} characters, the limit is {limit}"
        rejections.add(np.flatnonzero(dead), "reconsume_times", rule)
    turns = (first_row + np.arange(count)) % max(group.retry_queue_count, 1)
    queue_ids = np.where(dead, turns % DEAD_LETTER_QUEUE_COUNT, turns)
    nothing = np.zeros(count, np.int64)
    wish = DelayWish(levels, nothing > 0, nothing, sizes_of(bodies) == 0)
    waits = judge_delays(wish, delays_ms=delays_ms, timer=TimerConfig(), now_ms=now_ms)
    for refused, refusal in waits.refused_rows():
        rejections.add(refused, "body", refusal.reason)
    levels, is_delayed = np.asarray(waits.levels), np.asarray(waits.levels) > 0
    targets = pa.array([retry_topic(group.group), dead_letters]).take(pa.array(dead.astype(np.int8)))
    real = {
        REAL_TOPIC: pc.if_else(pa.array(is_delayed), targets.cast(pa.large_string()), None),
        REAL_QUEUE_ID: decimal_texts(queue_ids, is_delayed),
    }
    messages = InnerMessages(
        topics=pc.if_else(pa.array(is_delayed), SCHEDULE_TOPIC, targets),
        queue_ids=np.where(is_delayed, levels - 1, queue_ids).astype(np.int32),
        bodies=bodies,
        properties=_properties(given["properties"], topics, msg_ids, levels, real, appends_crc, rejections),
        flags=integers("flag"),
        sys_flags=_sys_flags(integers("sys_flag")),
        born_times_ms=read_times_ms(given.get("born_timestamp"), count, now_ms),
        born_hosts=hosts,
        born_v6=are_v6,
        reconsume_times=next_reconsume_times(times),
        prepared_transaction_offsets=np.zeros(count, np.int64),
    )
    keep = np.full(count, group.retry_queue_count > 0)
    keep[list(rejections)] = False
    kept = np.flatnonzero(keep)
    return SentBack(messages, dead, kept) if len(kept) == count else SentBack(messages.take(kept), dead[kept], kept)


def _bodies(column: pa.Array, rejections: Rejections) -> pa.Array:
    bodies = column.cast(pa.large_binary())
    if bodies.null_count:
        rejections.add(np.flatnonzero(~is_valid(bodies)), "body", "it is null")
        bodies = bodies.fill_null(b"")
    return bodies


def read_origin_topics(column: pa.Array, rejections: Rejections) -> pa.Array:
    """The topics that rows were consumed from, large_string."""
    texts = as_texts(column)
    encoded = texts.dictionary_encode("encode")
    codes = encoded.indices.to_numpy()
    for code, name in enumerate(encoded.dictionary.cast(pa.large_binary()).to_pylist()):
        rule = _topic_rule(name)
        if rule is not None:
            rejections.add(np.flatnonzero(codes == code), "topic", rule)
    return texts


def _topic_rule(name: bytes | None) -> str | None:
    """Why no message can have been consumed from a topic of this name; None if it is possible."""
    if name is None:
        return "it is null: the message has no origin"
    if any(separator in name for separator in SEPARATORS):
        return UNWANTED[SEPARATORS]
    try:
        validate_path_element("topic", name.decode(errors="replace"))
    except NameIllegalError as error:
        return error.describe()
    return None


def read_origin_ids(column: pa.Array, rejections: Rejections) -> pa.Array:
    """The rows' message ids in their first topics, large_string."""
    texts = as_texts(column)
    if texts.null_count:
        rejections.add(np.flatnonzero(~is_valid(texts)), "msg_id", "it is null: it is the origin message's id")
    rejections.add(malformed_rows(texts), "msg_id", NOT_UTF8)
    rejections.add(rows_with(texts, SEPARATORS), "msg_id", UNWANTED[SEPARATORS])
    return texts


def _properties(
    column: pa.Array,
    topics: pa.Array,
    msg_ids: pa.Array,
    levels: np.ndarray,
    real: Mapping[str, pa.Array],
    appends_crc: bool,
    rejections: Rejections,
) -> pa.Array:
    """The property strings, large_binary: `retries.sent_back_says` of every row."""
    entries = MapEntries.of(column)
    is_delayed = levels > 0
    says = sent_back_says(topics, msg_ids, pa.array(levels).cast(pa.large_string()))
    keep = pc.greater(pc.binary_length(entries.values), 0).to_numpy(zero_copy_only=False)  # readers ignore empty ones
    for name, (given, _) in says.items():
        found = entries.entries_of(name)
        if given is Given.ALWAYS:
            keep[found] = False
        elif given is Given.WHERE_BLANK:
            texts = _well_formed(entries.values.take(pa.array(found)))
            blank = pc.equal(pc.binary_length(pc.utf8_trim_whitespace(texts)), 0)
            keep[found[blank.to_numpy(zero_copy_only=False)]] = False
    if appends_crc:
        keep[entries.entries_of(CRC_NAME)] = False
    for name in _REPLACED_BY_DELAY:
        found = entries.entries_of(name)
        keep[found[is_delayed[entries.rows[found]]]] = False
    entries = entries.filter(keep)
    _check_entries(entries, rejections)
    shared = {name: text for name, (_, text) in says.items() if isinstance(text, str)}
    own = {
        name: values if given is Given.ALWAYS else _where_missing(entries, name, values)
        for name, (given, values) in says.items()
        if name not in shared
    }
    return encode_columns(shared, {**own, **real}, entries.encode())


def _where_missing(entries: MapEntries, name: str, values: pa.Array) -> pa.Array:
    """The values, null in rows whose entries have that name."""
    missing = np.ones(len(values), bool)
    missing[entries.rows[entries.entries_of(name)]] = False
    return pc.if_else(pa.array(missing), values, pa.scalar(None, pa.large_string()))


def _well_formed(texts: pa.Array) -> pa.Array:
    """The texts with invalid UTF-8 replaced by a letter, for a search for blanks."""
    malformed = malformed_rows(texts)
    if not len(malformed):
        return texts
    wrong = np.zeros(len(texts), bool)
    wrong[malformed] = True
    return pc.if_else(pa.array(wrong), pa.scalar("x", pa.large_string()), texts)


def _check_entries(entries: MapEntries, rejections: Rejections) -> None:
    """Reject only values with other separators: readers accept 0x01 inside a value."""
    rejections.add(np.unique(entries.rows[malformed_rows(entries.names)]), "properties", "a name is not UTF-8")
    rejections.add(np.unique(entries.rows[malformed_rows(entries.values)]), "properties", "a value is not UTF-8")
    names, values = rows_with(entries.names, SEPARATORS), rows_with(entries.values, b"\x02")
    rejections.add(np.unique(entries.rows[names]), "properties", "a name holds 0x01 or 0x02, which separate properties")
    rejections.add(np.unique(entries.rows[values]), "properties", "a value holds 0x02, which separates properties")
    nameless = np.flatnonzero(pc.equal(pc.binary_length(entries.names), 0).to_numpy(zero_copy_only=False))
    rejections.add(np.unique(entries.rows[nameless]), "properties", "a name is empty: no reader would see it")


def _sys_flags(flags: np.ndarray) -> np.ndarray:
    """The flags that a message keeps when it is sent back, with its body as the source gives it: several tags, committed."""
    committed = np.where(flags & TRANSACTION_MASK == TRANSACTION_COMMIT, TRANSACTION_COMMIT, 0)
    return ((flags & _KEPT_SYS_FLAG) | committed).astype(np.int32)


def _hosts(column: pa.Array | None, rejections: Rejections) -> tuple[np.ndarray | None, np.ndarray | None]:
    """`address:port` as records hold it, and which are IPv6. There are few distinct hosts, so each is parsed once."""
    if column is None or column.null_count == len(column):
        return None, None
    encoded = as_texts(column).fill_null(_UNSPECIFIED_HOST).dictionary_encode()
    codes = encoded.indices.to_numpy()
    hosts: list[bytes] = []
    for code, text in enumerate(encoded.dictionary.cast(pa.large_binary()).to_pylist()):
        try:
            hosts.append(host_of_text(text.decode(errors="replace")))
        except ValueError as error:
            rejections.add(np.flatnonzero(codes == code), "born_host", str(error))
            hosts.append(bytes(V4_HOST_SIZE))
    width = max(map(len, hosts))
    table = np.frombuffer(b"".join(host.ljust(width, b"\0") for host in hosts), f"V{width}")
    return table[codes], np.array([len(host) == V6_HOST_SIZE for host in hosts])[codes]


def host_of_text(text: str) -> bytes:
    """Address and port of `record.host_text`, as a record holds them. Raises ValueError for another text."""
    port = text.rpartition(":")[2]
    try:
        return ipaddress.ip_address(host_of(text)).packed + int(port).to_bytes(4, "big", signed=True)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no address:port") from error


@dataclass(frozen=True, slots=True)
class ReturnRules:
    """The group and settings that tasks need to send rows back; a value that is sent to them."""

    group: SubscriptionGroupConfig
    host: bytes
    """The store's host."""
    topics: Mapping[str, TopicConfig] = field(default_factory=dict, hash=False)
    max_reconsume_times: int | None = None
    """How often the consumer tries again; None = as the group's entry says."""
    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS
    limits: Limits = Limits()  # noqa: RUF009 (a frozen value)
    appends_crc: bool = False
    indexes_tags: bool = False
    """Whether the index has the messages' tags (`Release.indexes_tags`)."""
    broker_permission: int = PERM_READ | PERM_WRITE
    """Java: brokerPermission."""

    @property
    def spread_group(self) -> SubscriptionGroupConfig:
        """The group, with at most as many retry queues as its topic has."""
        count = retry_queue_count(self.group, retry_topic_config(self.group, self.topics))
        return replace(self.group, retry_queue_count=count)

    def refusal(self) -> str | None:
        """Why nothing can be sent back for this group; None if it can."""
        return return_refusal(self.group, self.topics, self.broker_permission)


def return_refusal(
    group: SubscriptionGroupConfig,
    topics: Mapping[str, TopicConfig] | None = None,
    broker_permission: int = PERM_READ | PERM_WRITE,
) -> str | None:
    """Why nothing can be sent back for a group with this entry; None if it can.

    Departure: for a group without retry queues a broker acknowledges the message, and drops it.
    """
    target = retry_topic_config(group, topics or {})
    match return_bar(group, target, broker_permission):
        case ReturnBar.BROKER_FORBIDS:
            return f"the broker takes no messages (brokerPermission {broker_permission})"
        case ReturnBar.NO_RETRIES:
            return f"group {group.group} takes no retries (retryQueueNums {group.retry_queue_count}): it would be lost"
        case ReturnBar.TOPIC_FORBIDS:
            return f"topic {target.topic!r} cannot be written (perm {target.perm})"
    return None


class Returned(NamedTuple):
    """A checked batch of rows."""

    parts: tuple[OutgoingMessages, ...]
    """Runs with one kind of born host each."""
    rejected: tuple[RejectedRow, ...]
    rejected_indices: np.ndarray
    topics: Mapping[str, int]
    """Required topics, and with how many queues missing ones are made."""


class ReturnedRows:
    """Sends one task's rows back. Retry queues take turns by the rows' numbers, so that a repeated task does the same."""

    def __init__(self, rules: ReturnRules) -> None:
        self._rules = rules
        self._row_count = 0

    def prepare(self, batch: pa.RecordBatch, now_ms: int) -> Returned:
        """The messages of a batch that has `NEEDED_COLUMNS` and any of `SENT_BACK_COLUMNS`."""
        rules, first_row = self._rules, self._row_count
        self._row_count += len(batch)
        rejections = Rejections()
        if (refusal := rules.refusal()) is not None:
            rejections.add(np.arange(len(batch)), "topic", refusal)
        sent = send_back_rows(
            batch,
            rules.spread_group,
            rejections,
            delays_ms=rules.delays_ms,
            now_ms=now_ms,
            max_reconsume_times=rules.max_reconsume_times,
            first_row=first_row,
            appends_crc=rules.appends_crc,
        )
        messages, dead = sent.messages, sent.dead
        if (too_large := self._too_large(messages, sent.rows, rejections)).any():
            messages, dead = messages.take(~too_large), dead[~too_large]
        parts = outgoing_messages(
            messages,
            rules.host,
            rules.delays_ms,
            rules.limits,
            appends_crc=rules.appends_crc,
            indexes_tags=rules.indexes_tags,
        )
        indices = np.array(sorted(rejections), np.int64)
        rejected = tuple(RejectedRow(first_row + row, *rejections[row]) for row in indices.tolist())
        return Returned(tuple(parts), rejected, indices, self._topics(dead))

    def _topics(self, dead: np.ndarray) -> dict[str, int]:
        if not len(dead):
            return {}
        wanted = [retry_topic_config(self._rules.group, self._rules.topics)]
        if dead.any():
            wanted.append(dead_letter_topic_config(self._rules.group.group, self._rules.topics))
        return {topic.topic: topic.write_queue_count for topic in wanted}

    def _too_large(self, messages: InnerMessages, rows: np.ndarray, rejections: Rejections) -> np.ndarray:
        """Which messages are too large to be stored; a body that was compressed may be, as the source gives it decompressed."""
        with_room = messages
        if self._rules.appends_crc:
            with_room = messages._replace(properties=with_crc_room(messages.properties))
        too_large = np.zeros(len(rows), bool)
        for excess in excesses(sizes_of_messages(with_room, len(self._rules.host)), self._rules.limits):
            over = np.flatnonzero(excess.over)
            reasons = {int(rows[message]): excess.reason(message) for message in over.tolist()}
            column = "properties" if excess.what == "properties" else "body"
            rejections.add(rows[over], column, reasons.__getitem__)
            too_large[over] = True
        return too_large
