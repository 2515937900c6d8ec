"""A few messages as a broker puts them, each with its property string made: records one by one, where columns would cost more.

    EncodedMessage ─few_block▶ records          ordinary ones, of IPv4 clients: what a broker takes most of the time
                   ─columns_of▶ InnerMessages   the others: by columns

A row of columns costs next to nothing, and columns of one row as much as those of a thousand: a request that brings a thousand
messages costs the same either way, a smaller one less by records. `few_block` makes the bytes that columns make, and leaves to
them what is seldom: halves, waiting messages, IPv6, sums over records, and what is too large for its record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.format.delay import SCHEDULE_TOPIC
from storage.format.java_hash import hashes_of
from storage.format.keys import few_message_keys
from storage.format.properties import decode_properties
from storage.format.record import HOST_FLAGS, TRANSACTION_MASK, V4_HOST_SIZE
from storage.format.record_block import BlockColumns, RecordBlock
from storage.format.record_parts import join_records
from storage.rules.inner_messages import InnerMessage, InnerMessages, encode_properties, hosts_of
from storage.rules.sizes import Limits, Sizes, is_within


class EncodedMessage(NamedTuple):
    """One message, all of whose record is said but places and store time."""

    topic: str
    queue_id: int
    body: bytes
    raw_properties: bytes
    """The property string, as it will be stored."""
    properties: Mapping[str, str]
    """What a reader finds in it."""
    flag: int
    sys_flag: int
    """Without the bits of hosts."""
    born_time_ms: int
    born_host: bytes | None
    reconsume_times: int
    prepared_transaction_offset: int

    @classmethod
    def of(cls, message: InnerMessage) -> EncodedMessage:
        """The message with its own properties."""
        raw = encode_properties(message.properties)
        return cls.batch(message, [(message.body, message.flag, raw, read_back(raw, message.properties))])[0]

    @classmethod
    def batch(
        cls, common: InnerMessage, rows: Iterable[tuple[bytes, int, bytes, Mapping[str, str]]]
    ) -> tuple[EncodedMessage, ...]:
        """Messages with so many bodies, flags, property strings and properties, which have the rest in common."""
        begin = common.topic, common.queue_id
        end = (
            common.sys_flag & ~HOST_FLAGS,
            common.born_time_ms,
            common.born_host,
            common.reconsume_times,
            common.prepared_transaction_offset,
        )
        return tuple(cls._make((*begin, body, raw, found, flag, *end)) for body, flag, raw, found in rows)


def read_back(raw: bytes, properties: Mapping[str, str]) -> Mapping[str, str]:
    """What a reader of the property string finds: `properties`, which it was made of, unless one of them holds what separates them."""
    count = len(properties)
    is_regular = (
        raw.count(b"\x01") == count == raw.count(b"\x02") and b"?" not in raw
    )  # which may stand for what UTF-8 cannot say
    if is_regular and b"\x01\x02" not in raw and b"\x02\x01" not in raw and not raw.startswith(b"\x01"):
        return properties
    return decode_properties(raw)


def columns_of(messages: Sequence[EncodedMessage]) -> InnerMessages:
    """The columns of these. Raises ValueError or OverflowError for what no column holds."""
    hosts, v6 = hosts_of([message.born_host for message in messages])
    return InnerMessages(
        pa.array([message.topic for message in messages], pa.string()),
        np.array([message.queue_id for message in messages], np.int32),
        pa.array([message.body for message in messages], pa.large_binary()),
        pa.array([message.raw_properties for message in messages], pa.large_binary()),
        np.array([message.flag for message in messages], np.int32),
        np.array([message.sys_flag for message in messages], np.int32),
        np.array([message.born_time_ms for message in messages], np.int64),
        hosts,
        v6,
        np.array([message.reconsume_times for message in messages], np.int32),
        np.array([message.prepared_transaction_offset for message in messages], np.int64),
    )


def few_block(messages: Sequence[EncodedMessage], host: bytes, limits: Limits) -> RecordBlock | None:
    """The records of these messages in a store at `host`; None where columns are to make them, or to say what is wrong."""
    if len(host) != V4_HOST_SIZE or not all(map(_is_ordinary, messages)) or not _fit(messages, limits):
        return None
    codes: dict[tuple[str, int], int] = {}
    queue_codes = [codes.setdefault((message.topic, message.queue_id), len(codes)) for message in messages]
    try:
        data, sizes = join_records(messages, host)
    except struct.error:  # a number that its field does not hold
        return None
    key_counts, key_hashes = few_message_keys([message.topic for message in messages], [m.properties for m in messages])
    tags_codes = hashes_of([message.properties.get("TAGS", "") for message in messages])
    columns = BlockColumns(
        tuple(codes),
        np.array(queue_codes, np.int32),
        np.array(sizes, np.int32),
        tags_codes.astype(np.int64),
        key_counts,
        key_hashes,
    )
    return RecordBlock(columns, np.frombuffer(data, np.uint8))


def _is_ordinary(message: EncodedMessage) -> bool:
    is_v4 = message.born_host is None or len(message.born_host) == V4_HOST_SIZE
    is_simple = not message.sys_flag & TRANSACTION_MASK and message.topic != SCHEDULE_TOPIC
    return is_v4 and is_simple and message.topic.isascii()


def _fit(messages: Sequence[EncodedMessage], limits: Limits) -> bool:
    """Whether a record would fit that has the largest of each part."""
    topic = max(len(message.topic) for message in messages)
    properties = max(len(message.raw_properties) for message in messages)
    body = max(len(message.body) for message in messages)
    return is_within(Sizes.of(topic, properties, body, 0), limits)
