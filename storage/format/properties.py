"""Message properties: `name 0x01 value 0x02` repeated, UTF-8. Java: MessageDecoder.string2messageProperties, MessageConst.

Reading, as Java does: the last 0x02 may be missing; the first 0x01 of an entry splits it, so a value may contain more;
an entry without 0x01, or with an empty name or value, is dropped; of equal names the last wins; malformed UTF-8
becomes U+FFFD; NUL is an ordinary character.

`decode_property_maps` does it for many messages at once. If every entry of every row is regular (a vectorised check), names and values
are located by the separators alone, and only requested ones are gathered. If not, the irregular rows go through `decode_properties`
one by one.

Encoding: the strings of many outgoing messages at once, and the names that a row's own map must not set (MessageDecoder.
messageProperties2String; its STRING_HASH_SET are the names that a client refuses from an application; Java refuses none of the others
here, although brokers and clients act on them). A store with `enabledAppendPropCRC` needs room at the end of each string
for the record's checksum, which is computed when the record has its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.arrays import as_texts, bytes_and_offsets, is_utf8, is_valid, joined, view_at, words_of

NAME_VALUE_SEPARATOR = 1
PROPERTY_SEPARATOR = 2
PROPERTIES_LIMIT_BYTES = 32_767
CRC_NAME = "__CRC32#"
"""The property with a broker's checksum of a whole record. Java: MessageConst.PROPERTY_CRC32."""
CRC_DIGITS = 10
CRC_TENS = 10 ** np.arange(CRC_DIGITS, dtype=np.int64)
"""The value of each of its digits."""
CRC_SIZE = len(CRC_NAME) + 1 + CRC_DIGITS + 1
"""Bytes of that property, the last ones of a record; the sum is over all before. Java: CommitLog.CRC32_RESERVED_LEN."""
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def decode_properties(raw: bytes | memoryview) -> dict[str, str]:
    """The properties of one message."""
    properties: dict[str, str] = {}
    for entry in _text(bytes(raw)).split("\x02"):
        name, _, value = entry.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def _text(raw: bytes) -> str:
    """Text as Java's String reads it: an encoded or incomplete surrogate becomes one U+FFFD; Python would make one for each byte."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(b"\xff", raw).decode(errors="replace")


def stated_crc(properties: dict[str, str]) -> int | None:
    """The checksum in the properties; None if there is none, or Java does not accept it.

    The least significant digit comes first; the number overflows as an int does. Java: CommitLog.checkMessageAndReturnSize.
    """
    text = properties.get(CRC_NAME)
    if text is None:
        return None
    value = 0
    for unit in np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")[::-1].tolist():
        value = (value * 10 + unit - ord("0")) & 0xFFFFFFFF
    return value if value < 1 << 31 else None


class PropertyMaps:
    """The properties of n messages: message i has the names and values `offsets[i]` to `offsets[i + 1]`, no name twice."""

    def __init__(self, offsets: np.ndarray, names: pa.StringArray, values: pa.StringArray) -> None:
        self.offsets = offsets  # int32, n + 1
        self.names = names
        self.values = values

    def map_array(self) -> pa.MapArray:
        """As Arrow `map<string, string>`."""
        return pa.MapArray.from_arrays(pa.array(self.offsets), self.names, self.values)

    def values_of(self, name: str) -> pa.StringArray:
        """The value of one property for every message, null where a message has none."""
        found = np.flatnonzero(pc.equal(self.names, name).to_numpy(zero_copy_only=False))
        taken = np.full(len(self.offsets) - 1, -1, np.int64)
        taken[np.searchsorted(self.offsets, found, side="right") - 1] = found
        return self.values.take(pa.array(taken, mask=taken < 0))


class SequencedMaps(PropertyMaps):
    """Properties of messages with few distinct sequences of names: a sequence gives a property's place in its messages."""

    def __init__(
        self,
        offsets: np.ndarray,
        names: pa.StringArray,
        values: pa.StringArray,
        sequences: _Sequences,
        codes: np.ndarray,
    ) -> None:
        super().__init__(offsets, names, values)
        self._sequences = sequences
        self._codes = codes

    def values_of(self, name: str) -> pa.StringArray:
        """The value of one property for every message, null where a message has none."""
        places = self._sequences.kept_places(name.encode())[self._codes]
        missing = places < 0
        return self.values.take(pa.array(self.offsets[:-1] + places, mask=missing if missing.any() else None))


class RegularProperties:
    """The same of messages whose entries are all regular: bytes, and where names and values begin and end in them.

    Row i has the entries `entry_offsets[i]` to `entry_offsets[i + 1]`, equal names included.
    """

    def __init__(
        self,
        data: np.ndarray,
        entry_offsets: np.ndarray,
        name_starts: np.ndarray,
        name_ends: np.ndarray,
        value_ends: np.ndarray,
    ) -> None:
        self._data = data
        self._entry_offsets = entry_offsets
        self._name_starts = name_starts
        self._name_ends = name_ends
        self._value_ends = value_ends

    @cached_property
    def _rows(self) -> np.ndarray:
        """The row of every entry."""
        counts = np.diff(self._entry_offsets)
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)

    @cached_property
    def _name_sizes(self) -> np.ndarray:
        return self._name_ends - self._name_starts

    def values_of(self, name: str) -> pa.StringArray:
        """The value of one property for every message, null where a message has none. Reads no other value."""
        text = name.encode()
        found = np.flatnonzero(self._name_sizes == len(text))
        for at, word in words_of(text):
            found = found[view_at(self._data, self._name_starts[found] + at, word.dtype) == word]
        taken = np.full(len(self._entry_offsets) - 1, -1, np.int64)
        taken[self._rows[found]] = found  # of equal names the last stays
        has = taken >= 0
        if has.all():
            return _gather_strings(self._data, self._name_ends[taken] + 1, self._value_ends[taken])
        values = _gather_strings(self._data, self._name_ends[taken[has]] + 1, self._value_ends[taken[has]])
        places = np.cumsum(has) - 1
        return values.take(pa.array(places, mask=~has))

    @cached_property
    def maps(self) -> PropertyMaps:
        """Names and values gathered, the earlier of equal names left out (a batch's records carry UNIQ_KEY and WAIT twice).

        Messages of one producer have the same names in the same order, so the work on names is done for each such sequence.
        """
        if not len(self._name_starts):
            return PropertyMaps(self._entry_offsets, pa.array([], pa.string()), pa.array([], pa.string()))
        names = _gather_strings(self._data, self._name_starts, self._name_ends + 1)
        name_bytes, name_bounds = _bytes_and_offsets(names)
        bounds = np.ascontiguousarray(name_bounds[self._entry_offsets])
        sequences = pa.BinaryArray.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(name_bytes)]
        ).dictionary_encode()
        return self._maps_of(_Sequences(sequences.dictionary.to_pylist()), sequences.indices.to_numpy())

    def _maps_of(self, sequences: _Sequences, codes: np.ndarray) -> PropertyMaps:
        counts = np.diff(self._entry_offsets)
        place = np.arange(len(self._rows)) + np.repeat(sequences.starts[codes] - self._entry_offsets[:-1], counts)
        starts, ends, offsets = self._name_ends + 1, self._value_ends, self._entry_offsets
        if not sequences.kept.all():
            kept = sequences.kept[place]
            place, starts, ends = place[kept], starts[kept], ends[kept]
            offsets = np.concatenate(([0], np.cumsum(sequences.kept_counts[codes]))).astype(np.int32)
        names = sequences.names.take(pa.array(sequences.name_codes[place]))
        return SequencedMaps(offsets, names, _gather_strings(self._data, starts, ends), sequences, codes)

    @property
    def offsets(self) -> np.ndarray:
        return self.maps.offsets

    @property
    def names(self) -> pa.StringArray:
        return self.maps.names

    @property
    def values(self) -> pa.StringArray:
        return self.maps.values

    def map_array(self) -> pa.MapArray:
        """As Arrow `map<string, string>`."""
        return self.maps.map_array()


class _Sequences:
    """The distinct sequences of names that messages have, each name followed by 0x01, laid end to end."""

    def __init__(self, sequences: list[bytes]) -> None:
        split = [sequence.split(b"\x01")[:-1] for sequence in sequences]
        distinct = {name: code for code, name in enumerate(dict.fromkeys(name for names in split for name in names))}
        kept = [[last[name] == i for i, name in enumerate(names)] for names in split for last in [_last_places(names)]]
        self.starts = np.concatenate(([0], np.cumsum([len(names) for names in split])))[:-1]
        self.kept = np.array([keep for keeps in kept for keep in keeps], bool)
        self.kept_counts = np.array([sum(keeps) for keeps in kept])
        self.names = pa.array([name.decode() for name in distinct], pa.string())
        self.name_codes = np.array([distinct[name] for names in split for name in names], np.int32)
        self._kept_names = [
            [name for name, keep in zip(names, keeps, strict=True) if keep]
            for names, keeps in zip(split, kept, strict=True)
        ]

    def kept_places(self, name: bytes) -> np.ndarray:
        """The place of a name among those that each sequence keeps; −1 where it has none."""
        return np.array([names.index(name) if name in names else -1 for names in self._kept_names], np.int64)


def _last_places(names: list[bytes]) -> dict[bytes, int]:
    """Where each name stands last."""
    return {name: i for i, name in enumerate(names)}


def decode_property_maps(raw: pa.Array) -> RegularProperties | PropertyMaps:
    """The properties of many messages, from a binary array without nulls."""
    raw = closed(raw.cast(pa.binary()))
    regular = _regular(raw)
    return _decode_mixed(raw) if regular is None else regular


def closed(raw: pa.Array) -> pa.Array:
    """Property strings, binary or large_binary, with the last separator in every row that has any: some clients omit it."""
    is_open = pc.and_not(pc.greater(pc.binary_length(raw), 0), pc.ends_with(raw, b"\x02"))
    if not pc.any(is_open).as_py():
        return raw
    return joined(raw, pc.if_else(is_open, b"\x02", b"")).cast(raw.type)


def _bytes_and_offsets(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(texts) + 1, offset=4 * texts.offset)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]


def _regular(raw: pa.Array) -> RegularProperties | None:
    """The rows by their separators; None if one is irregular: its separators do not alternate, or its text is malformed."""
    data, offsets = _bytes_and_offsets(raw)
    separators = np.flatnonzero(data < 3)
    kinds = data[separators]
    if (is_nul := kinds == 0).any():
        separators, kinds = separators[~is_nul], kinds[~is_nul]
    if len(separators) % 2 or (kinds[::2] != NAME_VALUE_SEPARATOR).any() or (kinds[1::2] != PROPERTY_SEPARATOR).any():
        return None
    name_ends, value_ends = separators[::2], separators[1::2]
    name_starts = np.empty_like(value_ends)
    name_starts[:1] = 0
    name_starts[1:] = value_ends[:-1] + 1
    if (name_ends == name_starts).any() or (value_ends == name_ends + 1).any() or not _is_text(data, raw):
        return None
    entry_offsets = np.searchsorted(name_starts, offsets).astype(np.int32)
    return RegularProperties(data, entry_offsets, name_starts, name_ends, value_ends)


def _is_text(data: np.ndarray, raw: pa.Array) -> bool:
    """Whether every row is well-formed UTF-8."""
    if not len(data) or data.max() < 0x80:
        return True
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _gather_strings(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.StringArray:
    """The strings data[starts[i]:ends[i]], by one gather in Arrow over the unmoved bytes."""
    bounds = np.zeros(2 * len(starts) + 1, np.int32)
    bounds[0:-1:2] = starts
    bounds[1::2] = ends
    bounds[-1] = ends[-1] if len(ends) else 0
    everything = pa.StringArray.from_buffers(2 * len(starts), pa.py_buffer(bounds), pa.py_buffer(data))
    return everything.take(pa.array(np.arange(0, 2 * len(starts), 2, dtype=np.int32)))


def _decode_mixed(raw: pa.Array) -> PropertyMaps:
    """Rows that have an irregular entry go through `decode_properties`, the others through the fast path."""
    irregular = _irregular_rows(raw)
    regular = _regular(raw.filter(pa.array(~irregular)))
    assert regular is not None, "the two checks disagree"
    fast = regular.maps
    slow = [decode_properties(row) for row in raw.filter(pa.array(irregular)).to_pylist()]
    counts = np.empty(len(raw), np.int64)
    counts[~irregular] = np.diff(fast.offsets)
    counts[irregular] = [len(properties) for properties in slow]
    is_slow = np.repeat(irregular, counts)
    order = np.empty(len(is_slow), np.int64)
    order[~is_slow] = np.arange(len(fast.names))
    order[is_slow] = len(fast.names) + np.arange(np.count_nonzero(is_slow))
    names = pa.array([name for properties in slow for name in properties], pa.string())
    values = pa.array([value for properties in slow for value in properties.values()], pa.string())
    return PropertyMaps(
        np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        pa.concat_arrays([fast.names, names]).take(pa.array(order)),
        pa.concat_arrays([fast.values, values]).take(pa.array(order)),
    )


def _irregular_rows(raw: pa.Array) -> np.ndarray:
    """Which rows have an entry that is not `name 0x01 value 0x02` with one 0x01 and neither part empty, or malformed text."""
    data, offsets = _bytes_and_offsets(raw)
    separators = np.flatnonzero((data == NAME_VALUE_SEPARATOR) | (data == PROPERTY_SEPARATOR))
    rows = np.searchsorted(offsets, separators, side="right") - 1
    first = np.searchsorted(separators, offsets[:-1])
    counts = np.bincount(rows, minlength=len(raw))
    is_value_end = (np.arange(len(separators)) - first[rows]) % 2 == 1
    part_starts = np.concatenate(([0], separators + 1))[:-1]
    part_starts = np.maximum(part_starts, offsets[rows])
    wrong = (data[separators] != np.where(is_value_end, PROPERTY_SEPARATOR, NAME_VALUE_SEPARATOR)) | (
        separators == part_starts
    )
    irregular = (counts % 2 == 1) | ((counts == 0) & (np.diff(offsets) > 0))
    irregular[rows[wrong]] = True
    foreign = np.unique(np.searchsorted(offsets, np.flatnonzero(data >= 0x80), side="right") - 1)
    for row in foreign[~irregular[foreign]].tolist():
        irregular[row] = not is_utf8(data[offsets[row] : offsets[row + 1]].tobytes())
    return irregular


MADE_ANEW = ("UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT")
"""Properties that every message gets from the client that sends it or the broker that accepts it."""

ROW_MARK = "SPARK_MQ_ROW"
"""Property of a sink's message: the row and batch that it was made of, by which it can be found again."""

COLUMN_PROPERTIES = {"TAGS": "tags", "KEYS": "keys", "__SHARDINGKEY": "sharding_key"}
"""Properties that have a column of their own."""

EARLIER_LIFE = {
    # delay, retry, dead letters
    "DELAY": "level at which to deliver it later",
    "RETRY_TOPIC": "topic that a retry came from",
    "ORIGIN_GROUP": "group that a retry came from",
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
    "TRANSACTION_CHECK_TIMES": "how often it was checked",
    "TRANS_OFFSET": "place of the half message in RocksDB",
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
    "TIMER_ROLL_LABEL": "how RocksDB's timer rolled it",
    "E_T": "which timer has it",
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
    "__LITE_TOPIC": "lite topic to enter it in",
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
"""Properties that brokers, clients and proxies add to a message on its way, and would act on if it had them again."""

TRANSIENT_PREFIX = "__RMQ.TRANSIENT."
"""Names that are never stored."""

CRC_ROOM = f"{CRC_NAME}\x01{'0' * CRC_DIGITS}\x02"
"""The property `__CRC32#` with zeros for its digits; the end of a record's properties. Java: MessageExtEncoder."""
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

    Entries with a null value are omitted. Equal names in a row are all in the record, and every reader takes the last.
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
        """For each entry the index of its name in _RESERVED, or _TRANSIENT, or −1."""
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

    def to_maps(self) -> pa.Array:
        """A map column of the entries."""
        return pa.MapArray.from_arrays(pa.array(self.offsets.astype(np.int32)), self.names, self.values)

    def encode(self) -> pa.Array:
        """The encoded entries of each row, large_string. Names and values must not hold the separators."""
        if not len(self):
            return pa.repeat(_END, len(self.offsets) - 1)
        entries = joined(self.names, "\x01", self.values, "\x02")
        _, places = bytes_and_offsets(entries)
        # Arrow lays the entries end to end, so a row is a longer stretch of the same bytes.
        bounds = pa.py_buffer(places[self.offsets])
        return pa.LargeStringArray.from_buffers(len(self.offsets) - 1, bounds, entries.buffers()[2])


def leading_properties(region: str, trace_on: bool, cluster: str) -> dict[str, str]:
    """The properties before UNIQ_KEY in every message: the broker's, and that of a client that waits for its answer."""
    return {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false", "CLUSTER": cluster, "WAIT": "true"}


def encode_columns(
    leading: Mapping[str, str], columns: Mapping[str, pa.Array | str | None], maps: pa.Array | None
) -> pa.Array:
    """The property strings of n messages, large_binary: the same `leading` in all, a property a column, then encoded maps.

    Columns are large_string, a text that is in all, or None; a null row has no such property. The first is an array without nulls.
    """
    parts: list[pa.Array | str] = []
    text = "".join(f"{name}\x01{value}\x02" for name, value in leading.items())
    for name, values in columns.items():
        if values is None:
            continue
        if isinstance(values, str):
            text += f"{name}\x01{values}\x02"
        elif values.null_count:
            parts += [text, encoded_property(name, values)]
            text = ""
        else:
            parts += [f"{text}{name}\x01", values]
            text = "\x02"
    return joined(*parts, text) if maps is None else joined(*parts, text, maps)


def encoded_property(name: str, values: pa.Array) -> pa.Array:
    """A property of n messages as it stands in their strings, large_string; null where the value is."""
    return pc.binary_join_element_wise(_piece(f"{name}\x01"), as_texts(values), _piece("\x02"), _END)


def with_crc_room(properties: pa.Array) -> pa.Array:
    """Encoded property strings, large_binary, that end in `CRC_ROOM`, without a former record's checksum.

    Java: CommitLog.asyncPutMessage (MessageUtils.deleteProperty), MessageExtEncoder.encode, which ends the last property too where it
    is open. Departure: Java's encode of a batch may not, and then makes a record without the sum.
    """
    strings = properties.cast(pa.large_binary())
    if pc.any(pc.match_substring(strings, CRC_NAME)).as_py():
        strings = pc.replace_substring_regex(strings, _OF_ANOTHER_RECORD, r"\1")
    return joined(closed(strings), CRC_ROOM)


def encoded_size(properties: Mapping[str, str]) -> int:
    """Bytes of the same properties in every message."""
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items())
