"""Messages as a broker itself puts them, with every field of the record set: delivered, put back, sent back, halves and their commits.

    InnerMessage (one) ─┐
    Records of the log ─┴▶ InnerMessages (columns) ─outgoing_messages▶ OutgoingMessages ─encode_block▶ records

    EncodedMessage ─few_block▶ records          ordinary ones from IPv4 clients: most of a broker's messages
                   ─columns_of▶ InnerMessages   the others: by columns

A row of columns costs almost nothing, but columns of one row cost as much as those of a thousand: a request with a thousand
messages costs the same either way, a smaller one less by records. `few_block` makes the same bytes as columns do, and leaves to
them the rare cases: halves, waiting messages, IPv6, checksums over records, and messages that are too large for their record.

The caller is responsible for the content; only what a record cannot hold is refused here.

The size limits of a message stand at the top, each once, for one message and for columns of them. Every size is a number or an array of
them. Limits come in Java's order; the first that is exceeded counts:

    topic        255 bytes in a record; a client's limit is lower (`topic_limit`)
    properties   32,767 bytes, including what a timer adds later if the message waits there
    body         maxMessageSize
    record       maxMessageSize and 64 KiB; in the timer's topic maxMessageSize and 100 bytes, which is what a timer can read back
    record       a log file, with the filler after it

Java: MessageExtBrokerInner, MessageExtEncoder (encode, calMsgLength); HookUtils.checkBeforePutMessage (topic);
TimerMessageStore.getMessageByCommitOffset.
Departures: Java stores a record that its timer cannot read back, and properties to which it can add nothing; its timer then stops.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import MessageIllegalError, PutRefusedError
from storage.format.arrays import hashes_of
from storage.format.delay import SCHEDULE_TOPIC
from storage.format.keys import few_message_keys
from storage.format.properties import PROPERTIES_LIMIT_BYTES, decode_properties, decode_property_maps, with_crc_room
from storage.format.record import (
    BLANK_SIZE,
    BORN_HOST_V6,
    HEADER_SIZE,
    HOST_FLAGS,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    V4_HOST_SIZE,
    V6_HOST_SIZE,
    Message,
    has_queue_entry,
)
from storage.format.record_batch import Records
from storage.format.record_block import DUE_IN, BlockColumns, OutgoingMessages, RecordBlock, join_records
from storage.log.dispatch import DispatchBatch, index_keys, tags_codes
from storage.names import RETRY_PREFIX, RETRY_TOPIC_LENGTH_LIMIT, TOPIC_LENGTH_LIMIT
from storage.pending import PutStatus

MAX_MESSAGE_SIZE = 4 << 20
"""Java: MessageStoreConfig.maxMessageSize, its default."""
RECORD_ROOM = 64 * 1024
"""Bytes that a record may have in addition to the largest body."""
TIMER_BUFFER_ROOM = 100
"""The same for a record in the timer's topic."""
TIMER_PROPERTIES_ROOM = 2 * (len("TIMER_DEQUEUE_MS") + 20)
"""Bytes of properties that the timer adds when it enters and delivers a message."""
_HOST_GROWTH = V6_HOST_SIZE - V4_HOST_SIZE

Numbers = int | np.integer[Any] | np.ndarray
Truths = bool | np.bool_ | np.ndarray


class Limits(NamedTuple):
    """A store's size limits."""

    max_message_size: Numbers = MAX_MESSAGE_SIZE
    """One limit for all messages, or one for each."""
    log_file_size: Numbers | None = None
    """None = other code checks whether the record fits into a log file."""


class Sizes(NamedTuple):
    """Bytes of one message's parts as they will be stored, or of many messages'."""

    topic: Numbers
    properties: Numbers
    body: Numbers
    record: Numbers

    @classmethod
    def of(
        cls, topic: Numbers, properties: Numbers, body: Numbers, v6_hosts: Numbers, is_timed: Truths = False
    ) -> Sizes:
        """The sizes of records; of their two hosts `v6_hosts` are IPv6. Java: MessageExtEncoder.calMsgLength.

        A message that waits for its time (`is_timed`) is counted with two IPv6 hosts, as a later roll by the timer may write it.
        """
        v6_hosts = v6_hosts + (2 - v6_hosts) * is_timed
        topic_length_size = 1 + (topic > TOPIC_LENGTH_LIMIT)
        record = HEADER_SIZE + _HOST_GROWTH * v6_hosts + body + topic_length_size + topic + 2 + properties
        return cls(topic, properties, body, record)


class Excess(NamedTuple):
    """One limit, and the messages above it."""

    what: str
    """topic, properties, body or record."""
    sizes: Numbers
    limits: Numbers
    status: PutStatus
    text: str
    """With placeholders for size and limit."""

    @property
    def over(self) -> Truths:
        """Which messages exceed the limit."""
        return self.sizes > self.limits

    def reason(self, row: int | None = None) -> str:
        """Why the message, or one of many, may not be stored."""
        size, limit = self.of_row(row)
        return self.text.format(size, limit)

    def of_row(self, row: int | None = None) -> tuple[int, int]:
        """Size and limit of the message, or of one of many."""
        return _number_at(self.sizes, row), _number_at(self.limits, row)


def excesses(sizes: Sizes, limits: Limits, is_timed: Truths = False) -> Iterator[Excess]:
    """Every limit in Java's order. `is_timed` selects the messages that wait in the timer's topic."""
    largest = limits.max_message_size
    illegal = PutStatus.MESSAGE_ILLEGAL
    yield Excess("topic", sizes.topic, RETRY_TOPIC_LENGTH_LIMIT, illegal, "it has {} bytes, the limit is {}")
    most = PROPERTIES_LIMIT_BYTES - TIMER_PROPERTIES_ROOM * is_timed
    too_many = PutStatus.PROPERTIES_SIZE_EXCEEDED
    yield Excess(
        "properties", sizes.properties, most, too_many, "all properties together are {} bytes, the limit is {}"
    )
    yield Excess("body", sizes.body, largest, illegal, "it is {} bytes as stored, maxMessageSize is {}")
    most = (largest + RECORD_ROOM) + (timer_record_limit(largest) - (largest + RECORD_ROOM)) * is_timed
    text = (
        f"its record of {{}} bytes is over the limit of {{}}: maxMessageSize and {RECORD_ROOM}, "
        f"or {TIMER_BUFFER_ROOM} where it waits for a deliver time, which is what a broker's timer reads back"
    )
    yield Excess("record", sizes.record, most, illegal, text)
    if limits.log_file_size is not None:
        most = limits.log_file_size - BLANK_SIZE
        text = (
            f"its record of {{}} bytes and {BLANK_SIZE} behind it do not fit into a log file of {limits.log_file_size}"
        )
        yield Excess("record", sizes.record, most, illegal, text)


def _number_at(numbers: Numbers, row: int | None) -> int:
    return int(numbers[row] if isinstance(numbers, np.ndarray) and row is not None else numbers)


def timer_record_limit(max_message_size: Numbers) -> Numbers:
    """The largest record that a timer reads back. Java: TimerMessageStore.getMessageByCommitOffset."""
    return max_message_size + TIMER_BUFFER_ROOM


def topic_limit(topic: str) -> int:
    """The longest topic in bytes. Java: HookUtils.checkBeforePutMessage."""
    return RETRY_TOPIC_LENGTH_LIMIT if topic.startswith(RETRY_PREFIX) else TOPIC_LENGTH_LIMIT


def refuse_excess(sizes: Sizes, limits: Limits, *, is_timed: bool) -> None:
    """Raises PutRefusedError for the first limit that one message exceeds."""
    for excess in excesses(sizes, limits, is_timed):
        if excess.over:
            raise PutRefusedError(excess.status, f"{excess.what}: {excess.reason()}")


def refuse_any_excess(sizes: Sizes, limits: Limits, is_timed: Truths) -> None:
    """Raises MessageIllegalError for the first limit that any of many messages exceeds."""
    for excess in excesses(sizes, limits, is_timed):
        if (over := np.flatnonzero(excess.over)).size:
            size, limit = excess.of_row(int(over[0]))
            raise MessageIllegalError(excess.what, limit, size)


def refuse_first_excess(sizes: Sizes, limits: Limits, *, is_timed: bool) -> None:
    """Raises PutRefusedError for the first of many messages that exceeds a limit, and for the first limit that it exceeds."""
    broken = [
        (int(np.argmax(excess.over)), excess) for excess in excesses(sizes, limits, is_timed) if np.any(excess.over)
    ]
    if broken:
        row, excess = min(broken, key=lambda found: found[0])
        raise PutRefusedError(excess.status, f"{excess.what}: {excess.reason(row)}")


def is_within(sizes: Sizes, limits: Limits) -> bool:
    """Whether one message, which does not wait for its time, exceeds no limit."""
    return not any(excess.over for excess in excesses(sizes, limits))


_QUEUED = [flag for flag in range(0, TRANSACTION_MASK + 1, TRANSACTION_PREPARED) if has_queue_entry(flag)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerMessage:
    """One message; its places and store time are set when it is put."""

    topic: str
    queue_id: int
    body: bytes
    """As stored: compressed if `sys_flag` says so."""
    properties: Mapping[str, str]
    """The record's properties, in order."""
    flag: int = 0
    sys_flag: int = 0
    """Without the bits of hosts."""
    born_time_ms: int = 0
    born_host: bytes | None = None
    """4 or 16 bytes of address, 4 of port; None = the store's own."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def of(cls, message: Message) -> InnerMessage:
        """The message that a record holds."""
        return cls(
            topic=message.topic,
            queue_id=message.queue_id,
            body=message.body,
            properties=dict(message.properties),
            flag=message.flag,
            sys_flag=message.sys_flag & ~HOST_FLAGS,
            born_time_ms=message.born_time_ms,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )


class InnerMessages(NamedTuple):
    """n messages; columns of equal length."""

    topics: pa.Array
    """string, no nulls."""
    queue_ids: np.ndarray
    """int32."""
    bodies: pa.Array
    """large_binary, as stored."""
    properties: pa.Array
    """large_binary: the encoded property string of each."""
    flags: np.ndarray
    """int32."""
    sys_flags: np.ndarray
    """int32, without the bits of hosts."""
    born_times_ms: np.ndarray
    """int64."""
    born_hosts: np.ndarray | None
    """`V8`, or `V20` if any is IPv6 (then an IPv4 one is its 8 bytes and zeros); None = the store's own."""
    born_v6: np.ndarray | None
    """bool: which born hosts are IPv6; None = as the width of `born_hosts` says."""
    reconsume_times: np.ndarray
    """int32."""
    prepared_transaction_offsets: np.ndarray
    """int64."""

    @property
    def wait_for_disk(self) -> bool:
        """Whether any of them lacks WAIT=false. Java: Message.isWaitStoreMsgOK."""
        if len(self.properties) == 1:  # the usual case
            texts = [decode_properties(self.properties[0].as_py()).get("WAIT")]
        else:
            texts = decode_property_maps(self.properties.cast(pa.binary())).values_of("WAIT").to_pylist()
        return any(map(is_wait, texts))

    @classmethod
    def of(cls, messages: Sequence[InnerMessage]) -> InnerMessages:
        """The columns of these messages."""
        hosts, v6 = hosts_of([message.born_host for message in messages])
        return cls(
            pa.array([message.topic for message in messages], pa.string()),
            np.array([message.queue_id for message in messages], np.int32),
            pa.array([message.body for message in messages], pa.large_binary()),
            pa.array([encode_properties(message.properties) for message in messages], pa.large_binary()),
            np.array([message.flag for message in messages], np.int32),
            np.array([message.sys_flag for message in messages], np.int32) & ~HOST_FLAGS,
            np.array([message.born_time_ms for message in messages], np.int64),
            hosts,
            v6,
            np.array([message.reconsume_times for message in messages], np.int32),
            np.array([message.prepared_transaction_offset for message in messages], np.int64),
        )

    @classmethod
    def of_records(cls, records: Records) -> InnerMessages:
        """The messages of whole records."""
        sys_flags = records.column("sys_flag").astype(np.int32)
        return cls(
            records.topics().cast(pa.string()),
            records.column("queue_id").astype(np.int32),
            records.bodies().cast(pa.large_binary()),
            records.raw_properties().cast(pa.large_binary()),
            records.column("flag").astype(np.int32),
            sys_flags & ~HOST_FLAGS,
            records.column("born_time_ms").astype(np.int64),
            records.column("born_host"),
            sys_flags & BORN_HOST_V6 != 0,
            records.column("reconsume_times").astype(np.int32),
            records.column("prepared_transaction_offset").astype(np.int64),
        )

    @classmethod
    def concat(cls, several: Sequence[InnerMessages]) -> InnerMessages:
        """All of them, in order. Either all or none must have born hosts."""
        columns = zip(*(each._widened() for each in several), strict=True)
        return cls._make(
            None
            if parts[0] is None
            else np.concatenate(parts)
            if isinstance(parts[0], np.ndarray)
            else pa.concat_arrays(parts)
            for parts in columns
        )

    def _widened(self) -> InnerMessages:
        """With hosts of the greatest width."""
        if self.born_hosts is None:
            return self
        is_wide = self.born_hosts.itemsize == V6_HOST_SIZE
        v6 = np.full(self.row_count, is_wide) if self.born_v6 is None else self.born_v6
        rows = np.ascontiguousarray(self.born_hosts).view(np.uint8).reshape(self.row_count, -1)
        wide = np.zeros((self.row_count, V6_HOST_SIZE), np.uint8)
        wide[:, : rows.shape[1]] = rows
        return self._replace(born_hosts=wide.view(f"V{V6_HOST_SIZE}")[:, 0], born_v6=v6)

    def message(self, row: int) -> InnerMessage:
        """One of them."""
        host = None
        if self.born_hosts is not None:
            is_v6 = self.born_hosts.itemsize == V6_HOST_SIZE if self.born_v6 is None else self.born_v6[row]
            host = bytes(self.born_hosts[row])[: V6_HOST_SIZE if is_v6 else V4_HOST_SIZE]
        return InnerMessage(
            topic=self.topics[row].as_py(),
            queue_id=int(self.queue_ids[row]),
            body=self.bodies[row].as_py(),
            properties=decode_properties(self.properties[row].as_py()),
            flag=int(self.flags[row]),
            sys_flag=int(self.sys_flags[row]),
            born_time_ms=int(self.born_times_ms[row]),
            born_host=host,
            reconsume_times=int(self.reconsume_times[row]),
            prepared_transaction_offset=int(self.prepared_transaction_offsets[row]),
        )

    @property
    def row_count(self) -> int:
        """How many messages; `len` counts columns, as of any tuple."""
        return len(self.queue_ids)

    def take(self, rows: np.ndarray) -> InnerMessages:
        """Some of them, by row numbers or by a mask."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        taken = pa.array(rows)
        return InnerMessages._make(
            None if column is None else column[rows] if isinstance(column, np.ndarray) else column.take(taken)
            for column in self
        )


def is_wait(text: str | None) -> bool:
    """Whether a message with that property WAIT is acknowledged only after it is on the disk. Java: Message.isWaitStoreMsgOK."""
    return text is None or text.lower() == "true"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property string; characters that UTF-8 cannot encode become "?". Java: MessageDecoder.messageProperties2String."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode(errors="replace")


def outgoing_messages(
    messages: InnerMessages,
    host: bytes,
    delays_ms: tuple[int, ...],
    limits: Limits,
    *,
    appends_crc: bool = False,
    indexes_tags: bool = False,
) -> Iterator[OutgoingMessages]:
    """The messages to store at `host`, in runs that one block can hold: born hosts of one kind, all with or all without queue entry.

    With `appends_crc` there is room for a checksum in each record, and no former checksum stays in its properties. With
    `indexes_tags` their tags are in the index.
    Raises MessageIllegalError for the first message that a record cannot hold; then nothing was yielded.
    """
    if appends_crc:
        messages = messages._replace(properties=with_crc_room(messages.properties))
    refuse_any_excess(sizes_of_messages(messages, len(host)), limits, is_timed=False)
    for run in _runs(messages):
        yield _outgoing(run, delays_ms, indexes_tags)._replace(has_crc=appends_crc)


def sizes_of_messages(messages: InnerMessages, host_size: int) -> Sizes:
    """The sizes of their records in a store with a host of so many bytes."""
    topics, properties, bodies = (
        np.asarray(pc.binary_length(column).to_numpy(), np.int64)
        for column in (messages.topics, messages.properties, messages.bodies)
    )
    is_v6 = host_size == V6_HOST_SIZE
    born_v6 = is_v6 if messages.born_v6 is None else messages.born_v6
    return Sizes.of(topics, properties, bodies, np.asarray(born_v6, np.int64) + is_v6)


def _outgoing(messages: InnerMessages, delays_ms: tuple[int, ...], indexes_tags: bool) -> OutgoingMessages:
    count = messages.row_count
    topics = messages.topics.dictionary_encode()
    names = tuple(topics.dictionary.to_pylist())
    topic_codes = topics.indices.to_numpy()
    places, queue_codes = np.unique(
        topic_codes.astype(np.int64) << 32 | messages.queue_ids.view(np.uint32), return_inverse=True
    )
    queues = [(names[place >> 32], place & 0xFFFFFFFF) for place in places.tolist()]
    properties = decode_property_maps(messages.properties.cast(pa.binary()))
    nothing, rows = np.zeros(count, np.int64), np.arange(count)
    batch = DispatchBatch(
        names,
        topic_codes,
        messages.queue_ids,
        nothing,
        rows,
        nothing,
        tags_codes(names, topic_codes, properties, np.full(count, DUE_IN), delays_ms),
        nothing,
        messages.sys_flags,
        properties,
    )
    keys = index_keys(batch, indexes_tags=indexes_tags)
    return OutgoingMessages(
        queues=tuple(queues),
        queue_codes=queue_codes.astype(np.int32),
        bodies=messages.bodies,
        properties=messages.properties,
        flags=messages.flags,
        sys_flags=messages.sys_flags,
        born_times_ms=messages.born_times_ms,
        tags_codes=batch.tags_codes,
        key_counts=np.bincount(keys.commitlog_offsets, minlength=count).astype(np.int32),
        key_hashes=keys.key_hashes.astype(np.int32),
        born_hosts=messages.born_hosts,
        reconsume_times=messages.reconsume_times,
        prepared_transaction_offsets=messages.prepared_transaction_offsets,
        is_queued=has_queue_entry(int(messages.sys_flags[0])),
    )


def _runs(messages: InnerMessages) -> Iterator[InnerMessages]:
    """Runs of one kind, in order; usually one."""
    queued = np.isin(messages.sys_flags & TRANSACTION_MASK, _QUEUED)
    v6 = messages.born_v6 if messages.born_v6 is not None else np.zeros(messages.row_count, bool)
    kinds = queued * 2 + v6
    bounds = [0, *(np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist(), messages.row_count]
    for start, end in pairwise(bounds):
        if end > start:
            run = messages if end - start == messages.row_count else messages.take(np.arange(start, end))
            if run.born_hosts is not None and run.born_v6 is not None and not run.born_v6[0]:
                run = run._replace(born_hosts=_narrow(run.born_hosts))
            yield run


def _narrow(hosts: np.ndarray) -> np.ndarray:
    """IPv4 hosts in their 8 bytes."""
    if hosts.itemsize == V4_HOST_SIZE:
        return hosts
    rows = np.ascontiguousarray(hosts).view(np.uint8).reshape(len(hosts), hosts.itemsize)
    return np.ascontiguousarray(rows[:, :V4_HOST_SIZE]).view(f"V{V4_HOST_SIZE}")[:, 0]


def hosts_of(hosts: Sequence[bytes | None]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """`born_hosts` and `born_v6` of messages. Raises ValueError if some have a born host and others have none."""
    if all(host is None for host in hosts):
        return None, None
    if any(host is None for host in hosts):
        raise ValueError("either every message of a put says where it was born, or none")
    sizes = {len(host) for host in hosts if host is not None}
    if not sizes <= {V4_HOST_SIZE, V6_HOST_SIZE}:
        raise ValueError(f"a host has 8 or 20 bytes, not {sorted(sizes)}")
    width = max(sizes)
    padded = b"".join((host or b"").ljust(width, b"\0") for host in hosts)
    return np.frombuffer(padded, f"V{width}"), np.array([len(host or b"") == V6_HOST_SIZE for host in hosts])


class EncodedMessage(NamedTuple):
    """One message whose record lacks only places and store time."""

    topic: str
    queue_id: int
    body: bytes
    raw_properties: bytes
    """The property string, as it will be stored."""
    properties: Mapping[str, str]
    """The properties as a reader finds them."""
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
        """Messages with these bodies, flags, property strings and properties, and otherwise equal fields."""
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
    """The properties that a reader of the property string finds: `properties`, unless one of them contains a separator."""
    count = len(properties)
    # "?" may replace a character that UTF-8 cannot encode.
    is_regular = raw.count(b"\x01") == count == raw.count(b"\x02") and b"?" not in raw
    if is_regular and b"\x01\x02" not in raw and b"\x02\x01" not in raw and not raw.startswith(b"\x01"):
        return properties
    return decode_properties(raw)


def columns_of(messages: Sequence[EncodedMessage]) -> InnerMessages:
    """The columns of these messages. Raises ValueError or OverflowError for a value that no column holds."""
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


def few_block(
    messages: Sequence[EncodedMessage], host: bytes, limits: Limits, *, indexes_tags: bool = False
) -> RecordBlock | None:
    """The records of these messages in a store at `host`; None if columns must make them, or report an error."""
    if len(host) != V4_HOST_SIZE or not all(map(_is_ordinary, messages)) or not _fit(messages, limits):
        return None
    codes: dict[tuple[str, int], int] = {}
    queue_codes = [codes.setdefault((message.topic, message.queue_id), len(codes)) for message in messages]
    try:
        data, sizes = join_records(messages, host)
    except struct.error:  # a number that does not fit into its field
        return None
    topics, properties = [message.topic for message in messages], [message.properties for message in messages]
    key_counts, key_hashes = few_message_keys(topics, properties, indexes_tags=indexes_tags)
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
    """Whether a record with the largest of each part would fit."""
    topic = max(len(message.topic) for message in messages)
    properties = max(len(message.raw_properties) for message in messages)
    body = max(len(message.body) for message in messages)
    return is_within(Sizes.of(topic, properties, body, 0), limits)
