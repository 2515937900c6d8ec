"""Properties of outgoing messages, many at once: `name 0x01 value 0x02` repeated. The way back from `properties.py`.

A store with `enabledAppendPropCRC` wants room at the end of each string for the record's sum, which is known when it has its place.

Also which names a row's own map must not set. Java: MessageDecoder.messageProperties2String, MessageConst. Its STRING_HASH_SET are the
names that a client refuses from an application; the others here nobody refuses, although somebody acts on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.kernels.compiled import ENCODE, sealed, strings_of
from storage.format.properties import CRC_DIGITS, CRC_NAME, CRC_SIZE
from storage.format.texts import as_texts, bytes_and_offsets, is_valid

MADE_ANEW = ("UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT")
"""What every message gets from the client that sends it or the broker that takes it."""

ROW_MARK = "SPARK_MQ_ROW"
"""Which row of which batch a message was made of, by a sink that looks for it again."""

COLUMN_PROPERTIES = {"TAGS": "tags", "KEYS": "keys", "__SHARDINGKEY": "sharding_key"}
"""Properties that a row states in a column of its own."""

EARLIER_LIFE = {
    # delay, retry, dead letters
    "DELAY": "level at which to deliver it later",
    "RETRY_TOPIC": "topic that a retry came from",
    "REAL_TOPIC": "topic behind a delay or half message",
    "REAL_QID": "queue behind a delay or half message",
    "ORIGIN_MESSAGE_ID": "id before the first retry",
    "RECONSUME_TIME": "retries so far, for the client that sends back",
    "MAX_RECONSUME_TIMES": "retries allowed, for the client that sends back",
    "CONSUME_START_TIME": "when a consumer took it up",
    "DLQ_ORIGIN_TOPIC": "topic of a dead letter",
    "DLQ_ORIGIN_MESSAGE_ID": "id of a dead letter",
    # transactions
    "TRAN_MSG": "marks a half message",
    "PGROUP": "producer group to ask back",
    "TRAN_PREPARED_QUEUE_OFFSET": "place of the half message",
    "__transactionId__": "id of the transaction",
    "TRANSACTION_CHECK_TIMES": "how often it was asked back",
    "CHECK_IMMUNITY_TIME_IN_SECONDS": "how long not to ask back",
    # delivery at a given time
    "TIMER_DELAY_SEC": "time to wait",
    "TIMER_DELAY_MS": "time to wait",
    "TIMER_DELIVER_MS": "when to deliver",
    "TIMER_OUT_MS": "when it was due",
    "TIMER_ENQUEUE_MS": "when it went on the wheel",
    "TIMER_DEQUEUE_MS": "when it left the wheel",
    "TIMER_ROLL_TIMES": "how often it went round",
    "TIMER_DEL_UNIQKEY": "timer message to delete",
    "TIMER_DELAY_LEVEL": "delay level turned into a time",
    # pull and pop consumption
    "MIN_OFFSET": "the queue's first offset at a pull",
    "MAX_OFFSET": "the queue's end at a pull",
    "POP_CK": "receipt of a pop",
    "POP_CK_OFFSET": "receipt of a pop",
    "1ST_POP_TIME": "time of the first pop",
    # request and reply
    "MSG_TYPE": "marks a reply",
    "CORRELATION_ID": "joins reply and request",
    "REPLY_TO_CLIENT": "client that waits for a reply",
    "TTL": "how long it waits",
    "ARRIVE_TIME": "when the reply came",
    "PUSH_REPLY_TIME": "when the reply was pushed",
    # batches and several queues for one message
    "INNER_NUM": "messages in a batch record; a broker refuses it on others",
    "INNER_BASE": "first offset of a batch record",
    "INNER_MULTI_DISPATCH": "further queues to enter it in",
    "INNER_MULTI_QUEUE_OFFSET": "its offsets there",
    "__CRC32#": "sum over the record",
    "DUP_INFO": "answers of a store that removed doubles",
    # proxy, routing between units, older servers
    "TRACE_CONTEXT": "a proxy's trace",
    "__BORNHOST": "a proxy's client",
    "BORN_TIMESTAMP": "time at a proxy's client",
    "PROPERTY_FORWARD_QUEUE_ID": "forwarding between brokers",
    "REDIRECT": "forwarding between brokers",
    "TRANSFER_FLAG": "forwarding between units",
    "CORRECTION_FLAG": "forwarding between units",
    "MQ2_FLAG": "forwarding between units",
    "INSTANCE_ID": "namespace",
    "EXTEND_UNIQ_INFO": "further unique key",
    "BUYER_ID": "older client",
    # this package's sink
    ROW_MARK: "row of a batch that was sent to running brokers",
}
"""What brokers, clients and proxies note on a message on its way, and would act on if they met it again."""

TRANSIENT_PREFIX = "__RMQ.TRANSIENT."
"""Names that are never stored."""

CRC_ROOM = f"{CRC_NAME}\x01{'0' * CRC_DIGITS}\x02"
"""The property `__CRC32#` before its digits are known; the end of a record's properties. Java: MessageExtEncoder."""
assert len(CRC_ROOM) == CRC_SIZE
_OF_ANOTHER_RECORD = f"((?:^|\x02))(?:{CRC_NAME}\x01[^\x02]*(?:\x02|$))+"

_RESERVED = (*COLUMN_PROPERTIES, *MADE_ANEW, *EARLIER_LIFE)
_RESERVED_NAMES = pa.array(_RESERVED, pa.large_string())
_RESERVED_SET = frozenset(_RESERVED)
_TRANSIENT = len(_RESERVED)
_END = pa.scalar("", pa.large_string())


def _piece(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def is_reserved_name(name: str) -> bool:
    """Whether a name is not an application's."""
    return name in _RESERVED_SET or name.startswith(TRANSIENT_PREFIX)


class MapEntries:
    """The entries of a `map<string, string>` column, row after row: row i has entries `offsets[i]` to `offsets[i + 1]`.

    Entries with a null value are left out. Of equal names in a row all stand in the record, and every reader takes the last.
    """

    def __init__(self, names: pa.Array, values: pa.Array, offsets: np.ndarray) -> None:
        self.names = names
        self.values = values
        self.offsets = offsets  # int64, n + 1

    @classmethod
    def of(cls, maps: pa.Array) -> MapEntries:
        """The entries of a map column; a null row has none."""
        bounds = maps.offsets.to_numpy().astype(np.int64)
        start, end = int(bounds[0]), int(bounds[-1])
        names, values = as_texts(maps.keys[start:end]), as_texts(maps.items[start:end])
        if names.null_count:
            names = names.fill_null("")  # the map of a table that Spark did not make; an empty name is refused
        entries = cls(names, values, bounds - start)
        keep = is_valid(values)
        if maps.null_count:
            keep = keep & is_valid(maps)[entries.rows]
        return entries.filter(keep)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def rows(self) -> np.ndarray:
        """The row of every entry."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def filter(self, keep: np.ndarray) -> MapEntries:
        """Some of the entries, by a mask; the rows stay."""
        if keep.all():
            return self
        mask = pa.array(keep)
        counted = np.concatenate(([0], np.cumsum(keep)))
        return MapEntries(self.names.filter(mask), self.values.filter(mask), counted[self.offsets])

    @cached_property
    def _reserved(self) -> np.ndarray:
        """For each entry the place of its name in _RESERVED, _TRANSIENT, or −1."""
        places = pc.index_in(self.names, _RESERVED_NAMES).fill_null(-1).to_numpy().copy()
        transient = pc.starts_with(self.names, TRANSIENT_PREFIX)
        if pc.any(transient).as_py():
            places[np.flatnonzero(transient.to_numpy(zero_copy_only=False))] = _TRANSIENT
        return np.asarray(places, np.int64)

    @cached_property
    def is_reserved(self) -> np.ndarray:
        """Which entries have a name that is not an application's."""
        return self._reserved >= 0

    def entries_of(self, name: str) -> np.ndarray:
        """The entries of one of the reserved names."""
        return np.flatnonzero(self._reserved == _RESERVED.index(name))

    def encode(self) -> pa.Array:
        """The encoded entries of each row, large_string. Names and values must not hold the separators."""
        if not len(self):
            return pa.repeat(_END, len(self.offsets) - 1)
        joined = pc.binary_join_element_wise(self.names, _piece("\x01"), self.values, _piece("\x02"), _END)
        _, places = bytes_and_offsets(joined)
        # Arrow lays the entries end to end, so a row is a longer stretch of the same bytes.
        bounds = pa.py_buffer(places[self.offsets])
        return pa.LargeStringArray.from_buffers(len(self.offsets) - 1, bounds, joined.buffers()[2])


def leading_properties(region: str, trace_on: bool, cluster: str) -> dict[str, str]:
    """What precedes UNIQ_KEY in every message: the broker's marks, and a client's that waits for its answer."""
    return {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false", "CLUSTER": cluster, "WAIT": "true"}


def encode_columns(
    leading: Mapping[str, str], columns: Mapping[str, pa.Array | None], maps: pa.Array | None
) -> pa.Array:
    """The property strings of n messages, large_binary: the same `leading` in all, a property a column, then encoded maps.

    Columns are large_string or None; a null row has no such property. At least the first column has no nulls.
    """
    laid = _laid_by_kernel(leading, columns, maps)
    if laid is not None:
        return laid
    parts: list[pa.Array | pa.Scalar] = []
    text = "".join(f"{name}\x01{value}\x02" for name, value in leading.items())
    for name, values in columns.items():
        if values is None:
            continue
        before, after = f"{name}\x01", "\x02"
        if values.null_count:
            if text:
                parts.append(_piece(text))
            parts.append(pc.binary_join_element_wise(_piece(before), values, _piece(after), _END))
            text = ""
        else:
            parts += [_piece(text + before), values]
            text = after
    if text:
        parts.append(_piece(text))
    if maps is not None:
        parts.append(maps)
    absent = pc.JoinOptions(null_handling="replace", null_replacement="")
    return pc.binary_join_element_wise(*parts, _END, options=absent).cast(pa.large_binary())


def _laid_by_kernel(
    leading: Mapping[str, str], columns: Mapping[str, pa.Array | None], maps: pa.Array | None
) -> pa.Array | None:
    """The same by a compiled kernel, a column at a time; None where there is none, or it does not know such columns."""
    given = {name: values for name, values in columns.items() if values is not None}
    everything = [*given.values(), *(() if maps is None else (maps,))]
    kernels = ENCODE.for_rows()
    if kernels is None or not given or any(values.type != pa.large_string() for values in everything):
        return None
    count = len(everything[0])
    if not count or any(len(values) != count for values in everything):
        return None
    before = [f"{name}\x01" for name in given] + [""] * (maps is not None)
    after = ["\x02"] * len(given) + [""] * (maps is not None)
    leads = ["".join(f"{name}\x01{value}\x02" for name, value in leading.items())] + [""] * (len(everything) - 1)
    arounds = [
        kernels.Around(*(np.frombuffer(text.encode(), np.uint8) for text in texts))
        for texts in zip(leads, before, after, strict=True)
    ]
    strings = [strings_of(kernels, values) for values in everything]
    offsets = np.empty(count + 1, np.int64)
    offsets[:] = len(arounds[0].lead)
    offsets[0] = 0
    for values, around, (texts, _) in zip(everything, arounds, strings, strict=True):
        sizes = np.diff(texts.offsets) + (len(around.before) + len(around.after))
        offsets[1:] += np.where(is_valid(values), sizes, 0) if values.null_count else sizes
    np.cumsum(offsets, out=offsets)
    out, places, ends = np.empty(int(offsets[-1]), np.uint8), offsets[:-1].copy(), sealed(offsets[1:])
    for around, (texts, valid) in zip(arounds, strings, strict=True):
        if kernels.lay_column(out, places, ends, texts, valid, around) != count:
            return None
    if not np.array_equal(places, ends):
        return None
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(out)])


def with_crc_room(properties: pa.Array) -> pa.Array:
    """Encoded property strings, large_binary, that end in `CRC_ROOM`: what they say of another record's sum is left out.

    Java: CommitLog.asyncPutMessage (MessageUtils.deleteProperty), MessageExtEncoder.encode, which ends the last property too where it
    is open. Departure: Java's encode of a batch may not, and then makes a record without the sum.
    """
    strings = properties.cast(pa.large_binary())
    if pc.any(pc.match_substring(strings, CRC_NAME)).as_py():
        strings = pc.replace_substring_regex(strings, _OF_ANOTHER_RECORD, r"\1")
    closed = pc.or_(pc.ends_with(strings, b"\x02"), pc.equal(pc.binary_length(strings), 0))
    room = pa.scalar(CRC_ROOM.encode(), pa.large_binary())
    ends = (
        room
        if pc.all(closed).as_py()
        else pc.if_else(closed, room, pa.scalar(b"\x02" + room.as_py(), pa.large_binary()))
    )
    return pc.binary_join_element_wise(strings, ends, pa.scalar(b"", pa.large_binary()))


def encoded_size(properties: Mapping[str, str]) -> int:
    """Bytes of the same properties in every message."""
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items())
