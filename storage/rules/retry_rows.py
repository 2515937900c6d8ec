"""Rows that consumers of a group failed on, sent back many at once: the same rules as for one message (`retries.py`). Pure.

    rows as the Spark source gives them ─send_back_rows─▶ InnerMessages for %DLQ%GROUP or, by way of the schedule topic, %RETRY%GROUP

No loop over rows. A row that cannot be sent back is rejected with the column and the rule that it breaks; how large its message may
be is asked by `returns.py`.
Java: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import NameIllegalError
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.format.properties import CRC_NAME
from storage.format.property_encoding import MapEntries, encode_columns
from storage.format.record import V4_HOST_SIZE, V6_HOST_SIZE
from storage.format.sys_flag import MULTI_TAGS, TRANSACTION_COMMIT, TRANSACTION_MASK
from storage.format.texts import SEPARATORS, as_texts, is_valid, malformed_rows, rows_with, sizes_of
from storage.names import dead_letter_topic, host_of, retry_topic, validate_path_element
from storage.rules.delayed_rows import decimal_texts
from storage.rules.delays import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMES,
    DelayWish,
    judge_delays,
)
from storage.rules.inner_messages import InnerMessages
from storage.rules.message_check import NOT_UTF8, UNWANTED
from storage.rules.retries import (
    DEAD_LETTER_QUEUE_COUNT,
    Given,
    most_retries,
    next_reconsume_times,
    sent_back_says,
    sent_back_to,
)
from storage.rules.row_values import Rejections, read_integers, read_times_ms
from storage.rules.sizes import topic_limit
from storage.settings.nouns import TimerConfig
from storage.tables.subscription_groups import SubscriptionGroupConfig

COLUMNS = (
    *("topic", "msg_id", "properties", "body"),
    *("reconsume_times", "born_timestamp", "born_host", "flag", "sys_flag", "delay_level"),
)
"""What is read of a row. The first four must be there; `delay_level` is the consumer's wish, the others are as they were consumed."""

NEEDED_COLUMNS = COLUMNS[:4]
_REPLACED_BY_DELAY = (REAL_TOPIC, REAL_QUEUE_ID, *TIMES)
_KEPT_SYS_FLAG = MULTI_TAGS
_UNSPECIFIED_HOST = "0.0.0.0:0"


class SentBack(NamedTuple):
    """What rows become."""

    messages: InnerMessages
    """As they are to be put: retries in the schedule topic."""
    dead: np.ndarray
    """bool: which are dead letters."""
    rows: np.ndarray
    """The row of each, ascending: rejected ones are missing, and all where the group takes no retries."""


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

    `max_reconsume_times` comes before the group's. Retry queues, as many as `group` says (`ReturnRules.spread_group`), take turns by
    `first_row` + the row's number, where Java draws one, so that a task that runs again makes the same messages. With `appends_crc`
    properties leave room for a sum over the record. A group whose `retry_queue_count` is 0 or less takes no retries: what it failed on
    is dropped, as Java does.
    Bodies are stored as they come, uncompressed: the source's rows are, unless decompress=false, whose rows must not come here.
    Departure: a dead letter keeps its TIMER properties and is no timer message again, whatever they say.
    """
    count = rows.num_rows
    given = {name: rows.column(name) for name in COLUMNS if name in rows.schema.names}
    topics = read_origin_topics(given["topic"], rejections)
    msg_ids = read_origin_ids(given["msg_id"], rejections)

    def integers(name: str) -> np.ndarray:
        return read_integers(name, given.get(name), count, 0, np.int32, rejections)

    times, asked = integers("reconsume_times"), integers("delay_level")
    dead, levels = sent_back_to(times, asked, most_retries(group, max_reconsume_times))
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
    """Why a topic's name can be none that a message was consumed from; None if it can."""
    if name is None:
        return "it is null: nobody knows where the message came from"
    if any(separator in name for separator in SEPARATORS):
        return UNWANTED[SEPARATORS]
    try:
        validate_path_element("topic", name.decode(errors="replace"))
    except NameIllegalError as error:
        return error.describe()
    return None


def read_origin_ids(column: pa.Array, rejections: Rejections) -> pa.Array:
    """The ids that rows had there, large_string."""
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
    keep = pc.greater(pc.binary_length(entries.values), 0).to_numpy(zero_copy_only=False)  # no reader sees an empty one
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
    """The texts with what is not UTF-8 replaced by a letter: only blanks are asked for."""
    malformed = malformed_rows(texts)
    if not len(malformed):
        return texts
    wrong = np.zeros(len(texts), bool)
    wrong[malformed] = True
    return pc.if_else(pa.array(wrong), pa.scalar("x", pa.large_string()), texts)


def _check_entries(entries: MapEntries, rejections: Rejections) -> None:
    """A value may hold 0x01, which no reader takes for a separator there."""
    rejections.add(np.unique(entries.rows[malformed_rows(entries.names)]), "properties", "a name is not UTF-8")
    rejections.add(np.unique(entries.rows[malformed_rows(entries.values)]), "properties", "a value is not UTF-8")
    names, values = rows_with(entries.names, SEPARATORS), rows_with(entries.values, b"\x02")
    rejections.add(np.unique(entries.rows[names]), "properties", "a name holds 0x01 or 0x02, which separate properties")
    rejections.add(np.unique(entries.rows[values]), "properties", "a value holds 0x02, which separates properties")
    nameless = np.flatnonzero(pc.equal(pc.binary_length(entries.names), 0).to_numpy(zero_copy_only=False))
    rejections.add(np.unique(entries.rows[nameless]), "properties", "a name is empty: no reader would see it")


def _sys_flags(flags: np.ndarray) -> np.ndarray:
    """The flags that a message keeps when it is sent back, its body as the source gives it: several tags, committed."""
    committed = np.where(flags & TRANSACTION_MASK == TRANSACTION_COMMIT, TRANSACTION_COMMIT, 0)
    return ((flags & _KEPT_SYS_FLAG) | committed).astype(np.int32)


def _hosts(column: pa.Array | None, rejections: Rejections) -> tuple[np.ndarray | None, np.ndarray | None]:
    """`address:port` as records hold it, and which are IPv6. Distinct hosts are few, so each is read once."""
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
    """Address and port of `record.host_text`, as a record holds them. Raises ValueError where it is none."""
    port = text.rpartition(":")[2]
    try:
        return ipaddress.ip_address(host_of(text)).packed + int(port).to_bytes(4, "big", signed=True)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no address:port") from error
