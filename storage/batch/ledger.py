"""The ledger: which batches of each sink the log holds. Topic `rmq_sys_spark_mq_ledger`, queue 0.

    SLICE  {"sink", "query", "batch", "rows", "from", "bytes", "sum"}
           so many rows, from number `from` on, follow it directly; `bytes` is the size of their records, `sum` their `content_sum`.
           All rows before them are in the log
    END    {"sink", "query", "batch", "rows", "last"}
           all rows are before it; `last` is the last one's place and unique key. If some rows became dead letters,
           `refused` is how many
    BEGIN  {"sink", "query", "batch", "rows", "from"}
           from versions before slices: the rest of the batch's rows follow it

A batch has as many SLICEs as slices, and one END. TAGS holds the kind, KEYS the ids of sink and query. The topic's prefix protects it
from a broker's clean-ups, and it needs no entry in topics.json. Any client may send to the topic through a broker, so a message counts
only if its record is, byte for byte except its stamps, the one that this package makes of that body (`own_record`). No broker writes
such a record:

    preparedTransactionOffset is MARK, and sysFlag's transaction bits are 0: a broker sets the field in commits only, which have bits
    the born host is the store host: a broker writes the client's address
    there are no other properties than TAGS and KEYS: a broker adds UNIQ_KEY and CLUSTER, among others

One of these would not be enough. A client that lies about the address bits of sysFlag shifts the record's last fields by 12 or 24
bytes, so that a broker stores a record whose preparedTransactionOffset, body, topic and properties are the client's (seen with 5.3.3).
Versions before the mark wrote 0 instead: their messages count up to the place that `sink_notes.py` has noted.

An END counts only if the last row that it names is at its place, or has expired. A cut of the log removes the END before the rows
before it, so an END in the log means that its rows are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.dispatch.writer import LedgerEnds, OpenBatches
from storage.errors import CorruptRecordError, OffsetOutOfRangeError
from storage.format.arrays import index_key_hash, string_hash
from storage.format.consume_queue import is_ext_address
from storage.format.keys import index_key
from storage.format.properties import decode_property_maps
from storage.format.record import TRANSACTION_MASK, Message
from storage.format.record_batch import Records
from storage.format.record_block import OutgoingMessages, encode_block, read_stamps, stamp, stamp_crcs
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue, valid_entries

TOPIC = "rmq_sys_spark_mq_ledger"
QUEUE_ID = 0
SLICE = "SLICE"
END = "END"
BEGIN = "BEGIN"
"""Read, but not written by this version."""
OPENING = SLICE, BEGIN
"""Kinds of messages that rows follow."""
KINDS = SLICE, END, BEGIN
GROUP_PREFIX = "CID_RMQ_SYS_SPARK_"
UNNAMED_PREFIX = "|"
"""Prefix of the id of a sink that writes one batch and is never looked up again; no user's id begins so."""
MARK = int.from_bytes(b"SPARKMQ1", "big")
"""The preparedTransactionOffset of our messages; no log offset has this value."""
UNMARKED = 0
"""The same field in messages of versions before the mark."""
_SLICE_ENTRIES = 8_192
_LOOPBACK_V6 = bytes(15) + b"\x01"


class Batch(NamedTuple):
    """The name of one batch: a sink's id, the query that feeds it, and the batch's number in the query."""

    sink_id: str
    query_id: str
    batch_id: int


@dataclass(frozen=True, slots=True)
class LedgerStatement:
    """The content of a ledger message about a batch: a SLICE, an END or a BEGIN."""

    kind: str
    batch: Batch
    row_count: int
    """The rows of a SLICE; for the others the batch's."""
    first_row: int = 0
    """For a SLICE or a BEGIN: how many of the batch's rows were in the log before it."""
    last: tuple[int, str] | None = None
    """For an END: place and unique key of the batch's last row."""
    size_bytes: int = 0
    """For a SLICE: the size of its rows' records, which the checksum covers."""
    checksum: int = 0
    refused: int = 0
    """For an END: how many more rows came and became dead letters."""

    @property
    def end_row(self) -> int:
        """The end of the rows that follow a SLICE or a BEGIN, as a row number of the batch."""
        return self.first_row + self.row_count if self.kind == SLICE else self.row_count

    @property
    def body(self) -> bytes:
        """The body of its message."""
        document: dict[str, object] = {
            "sink": self.batch.sink_id,
            "query": self.batch.query_id,
            "batch": self.batch.batch_id,
            "rows": self.row_count,
        }
        if self.kind == SLICE:
            document |= {"from": self.first_row, "bytes": self.size_bytes, "sum": self.checksum}
        elif self.kind == BEGIN:
            document["from"] = self.first_row
        else:
            document["last"] = list(self.last) if self.last is not None else None
            document |= {"refused": self.refused} if self.refused else {}
        return json.dumps(document, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class LedgerMessage(LedgerStatement):
    """A statement from any writer, and the place of its record in the log."""

    commitlog_offset: int = field(kw_only=True)
    end: int = field(kw_only=True)
    """End of its record."""


def outgoing_ledger_message(said: LedgerStatement, *, now_ms: int, mark: int = MARK) -> OutgoingMessages:
    """A ledger message for `encode_block`."""
    keys = _keys_of(said.batch)
    properties = f"TAGS\x01{said.kind}\x02KEYS\x01{_keys_text(said.batch)}\x02"
    return OutgoingMessages(
        ((TOPIC, QUEUE_ID),),
        np.zeros(1, np.int32),
        pa.array([said.body], pa.binary()),
        pa.array([properties.encode()], pa.binary()),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        np.array([now_ms], np.int64),
        np.array([string_hash(said.kind)], np.int64),
        np.array([len(keys)], np.int32),
        np.array([index_key_hash(index_key(TOPIC, key)) for key in keys], np.int32),
        prepared_transaction_offsets=mark,
    )


def parse_ledger_body(body: bytes, commitlog_offset: int, end: int) -> LedgerMessage | None:
    """The content of a ledger message; None if it is no valid one."""
    try:
        document = json.loads(body)
        kind = SLICE if "sum" in document else BEGIN if "from" in document else END
        last = document.get("last") if kind == END else None
        batch = Batch(str(document["sink"]), str(document["query"]), int(document["batch"]))
        _keys_text(batch).encode()  # half a surrogate is no name
        return LedgerMessage(
            kind,
            batch,
            int(document["rows"]),
            int(document.get("from", 0)),
            None if last is None else (int(last[0]), str(last[1])),
            int(document["bytes"]) if kind == SLICE else 0,
            int(document["sum"]) if kind == SLICE else 0,
            int(document.get("refused", 0)) if kind == END else 0,
            commitlog_offset=commitlog_offset,
            end=end,
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        return None  # any client may send to the topic


class OwnRecord(NamedTuple):
    """A record of the ledger's that this package has written, at least up to its body."""

    message: LedgerMessage
    logged: np.ndarray
    """Its bytes in the log."""
    whole: np.ndarray
    """As this package makes them, with the stamps of `logged`."""


def own_record(buffer: np.ndarray, start: int, commitlog_offset: int, *, unmarked: bool) -> OwnRecord | None:
    """The record at `start` of a buffer if its header and body are those of a ledger message of ours; else None.

    Its topic and properties may be torn: `logged` and `whole` differ then. `unmarked`: whether a version before the mark may have
    written it.
    """
    record = Records(buffer, np.array([start]))
    size = int(record.column("size_bytes")[0])
    mark, host = int(record.column("prepared_transaction_offset")[0]), record.column("store_host")[0].tobytes()
    if mark != MARK and not (unmarked and mark == UNMARKED):
        return None
    if len(host) == 20 and not any(host[:8]) and host[:16] != _LOOPBACK_V6:
        return None  # fields of another record, read as a host
    body_start, body_end = int(record.body_starts[0]), int(record.body_ends[0])
    message = parse_ledger_body(buffer[body_start:body_end].tobytes(), commitlog_offset, commitlog_offset + size)
    if message is None or (message.kind == SLICE and mark != MARK):  # versions with slices always wrote the mark
        return None
    outgoing = outgoing_ledger_message(message, now_ms=int(record.column("born_time_ms")[0]), mark=mark)
    block = encode_block(outgoing, host)
    if len(block.data) != size:
        block = encode_block(outgoing.with_crc_room(), host)
    if len(block.data) != size:
        return None
    logged, whole, at = buffer[start : start + size], block.data.copy(), np.zeros(1, np.int64)
    offsets, times = read_stamps(logged, at, len(host))
    stamp(whole, at, offsets, np.array([commitlog_offset]), times, len(host))
    if block.columns.has_crc:
        stamp_crcs(whole, at, block.columns.sizes_bytes)
    body_size = body_end - start
    return OwnRecord(message, logged, whole) if np.array_equal(logged[:body_size], whole[:body_size]) else None


def _keys_of(batch: Batch) -> list[str]:
    return list(dict.fromkeys((batch.sink_id, batch.query_id)))


def _keys_text(batch: Batch) -> str:
    return " ".join(_keys_of(batch))


class BatchLedger:
    """Reads the ledger's queue: only messages of this package.

    `end` is the queue offset after its last message, `log_end` the end of the valid log. Before the log offset `unmarked_end`
    messages without a mark count too.
    """

    def __init__(
        self, log: CommitLog, queue: ConsumeQueue | None, end: int, log_end: int, *, unmarked_end: int
    ) -> None:
        self._log = log
        self._queue = queue
        self._end = end
        self._log_end = log_end
        self._unmarked_end = unmarked_end

    @property
    def log_minimum(self) -> int:
        """Where the log begins; earlier ENDs have expired."""
        return self._log.minimum

    def newest_ends(self) -> LedgerEnds:
        """For every sink and query the newest END that counts."""
        ends: LedgerEnds = {}
        for message in self.newest_end_messages():
            ends.setdefault(message.batch.sink_id, {}).setdefault(message.batch.query_id, message.batch.batch_id)
        return ends

    def newest_end_messages(self) -> Iterator[LedgerMessage]:
        """The newest END that counts of every sink and query, newest first. Reads the whole ledger, but decodes little of it."""
        found: set[str] = set()
        for places, kinds, keys in self._slices_backwards((END,)):
            rows = np.flatnonzero(pc.fill_null(pc.equal(kinds, END), False).to_numpy(zero_copy_only=False))[::-1]
            pairs = keys.take(pa.array(rows)).fill_null("").dictionary_encode()
            open_pairs = np.array([pair not in found for pair in pairs.dictionary.to_pylist()] or [False])
            codes = pairs.indices.to_numpy(zero_copy_only=False)
            for row, code in zip(rows.tolist(), codes.tolist(), strict=True):
                if not open_pairs[code]:
                    continue
                if pairs.dictionary[code].as_py().startswith(UNNAMED_PREFIX):
                    continue  # it is never looked up again
                message = self._read(int(places[row]))
                pair = pairs.dictionary[code].as_py()
                if message is not None and pair == _keys_text(message.batch) and self._counts(message):
                    yield message
                    found.add(pair)
                    open_pairs[code] = False

    def open_batches(self) -> OpenBatches:
        """For every sink and query the place of the oldest SLICE or BEGIN after its newest END. Reads the whole ledger, too."""
        # The place of the END itself does not count: retention writes it again after slices of the next batch.
        ends = {
            _keys_text(message.batch): message.commitlog_offset if message.last is None else message.last[0]
            for message in self.newest_end_messages()
        }
        found: OpenBatches = {}
        for places, kinds, keys in self._slices_backwards(OPENING):
            is_opening = pc.is_in(kinds, pa.array(OPENING))
            rows = np.flatnonzero(is_opening.to_numpy(zero_copy_only=False))
            pairs = keys.take(pa.array(rows)).fill_null("").dictionary_encode()
            codes = pairs.indices.to_numpy(zero_copy_only=False)
            for code, pair in enumerate(pairs.dictionary.to_pylist()):
                if pair.startswith(UNNAMED_PREFIX):
                    continue
                of_pair = places[rows[codes == code]]
                for place in of_pair[of_pair > ends.get(pair, -1)].tolist():
                    message = self._read(place)
                    if message is not None and message.kind in OPENING and _keys_text(message.batch) == pair:
                        found.setdefault(message.batch.sink_id, {})[message.batch.query_id] = place
                        break
        return found

    def messages_from(self, commitlog_offset: int, kinds: Sequence[str] = KINDS) -> Iterator[LedgerMessage]:
        """The ledger's messages of these kinds at or after a log offset, oldest first."""
        if self._queue is None:
            return
        first = self._queue.first_offset_at(commitlog_offset, self._end)
        for start in range(first, self._end, _SLICE_ENTRIES):
            for place in self._places(start, min(self._end, start + _SLICE_ENTRIES), kinds).tolist():
                message = self._read(place)
                if message is not None and message.kind in kinds:
                    yield message

    def _places(self, start: int, end: int, kinds: Sequence[str]) -> np.ndarray:
        """Places of messages that may be of these kinds, by their tags codes, so others cost no read of the log."""
        assert self._queue is not None
        entries = self._queue.entries(start, end)
        if kinds != KINDS:
            codes = entries["tags_code"]
            entries = entries[np.isin(codes, [string_hash(kind) for kind in kinds]) | is_ext_address(codes)]
        valid = valid_entries(entries, TOPIC, QUEUE_ID, self._log, self._log_end)
        return entries["commitlog_offset"][valid].astype(np.int64)

    def _slices_backwards(self, kinds: Sequence[str]) -> Iterator[tuple[np.ndarray, pa.Array, pa.Array]]:
        """Places, TAGS and KEYS of messages that may be of these kinds: ascending within a part, the newest part first."""
        if self._queue is None:
            return
        end = self._end
        minimum = self._queue.first_file_offset
        while end > minimum:
            start = max(minimum, end - _SLICE_ENTRIES)
            places = self._places(start, end, kinds)
            parts = list(self._log.records(places, np.full(len(places), 4096)))  # one for each log file
            for part, records in reversed(parts):
                rows = np.flatnonzero(self._may_be_own(records, places[part]))
                properties = decode_property_maps(records.take(rows).raw_properties())
                yield places[part][rows], properties.values_of("TAGS"), properties.values_of("KEYS")
            end = start

    def _may_be_own(self, records: Records, places: np.ndarray) -> np.ndarray:
        """Which of many records to read, so that a flood of foreign ones costs no decoding."""
        marks, flags = records.column("prepared_transaction_offset"), records.column("sys_flag")
        is_marked = (marks == MARK) | ((marks == UNMARKED) & (places < self._unmarked_end))
        return np.asarray(is_marked & (flags & TRANSACTION_MASK == 0))

    def _read(self, commitlog_offset: int) -> LedgerMessage | None:
        """The message at a log offset; None if this package did not write it."""
        message = self._log.message_at(commitlog_offset, self._log_end)
        data = np.frombuffer(self._log.bytes_at(commitlog_offset, message.size_bytes), np.uint8)
        own = own_record(data, 0, commitlog_offset, unmarked=commitlog_offset < self._unmarked_end)
        return own.message if own is not None and np.array_equal(own.logged, own.whole) else None

    def _counts(self, end: LedgerMessage) -> bool:
        """Whether the last row that an END names is at its place."""
        if end.last is None:
            return False
        place, unique_key = end.last
        if 0 <= place < self._log.minimum:
            return True  # expired
        try:
            message: Message = self._log.message_at(place, end.commitlog_offset)
        except (OffsetOutOfRangeError, CorruptRecordError):
            return False
        return (message.unique_key or "") == unique_key
