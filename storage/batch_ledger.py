"""The ledger: which batches of which sinks the log holds. Topic `rmq_sys_spark_mq_ledger`, queue 0, two messages a batch.

    BEGIN  {"sink", "query", "batch", "rows", "from"}    the rows from number `from` on follow it directly
    END    {"sink", "query", "batch", "rows", "last"}    all rows stand before it; `last` is the last one's place and unique key

Ordinary messages: TAGS says which, KEYS are the ids of sink and query. The prefix keeps a broker's clean-ups away, and no entry in
topics.json is needed. Anybody may send to the topic, so an END counts only if the last row that it names stands where it says, or
has expired. A cut of the log takes the END with the rows before it, so an END in the log means that its rows are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.commit_log import CommitLog
from storage.consume_queue import ConsumeQueue, valid_entries
from storage.errors import CorruptRecordError, OffsetOutOfRangeError
from storage.format.index import index_key
from storage.format.java_hash import index_key_hash, string_hash
from storage.format.properties import decode_property_maps
from storage.format.record import Message
from storage.format.record_block import OutgoingMessages
from storage.hint import LedgerEnds

TOPIC = "rmq_sys_spark_mq_ledger"
QUEUE_ID = 0
BEGIN = "BEGIN"
END = "END"
GROUP_PREFIX = "CID_RMQ_SYS_SPARK_"
UNNAMED_PREFIX = "|"
"""How the id of a sink begins that writes one batch and is never asked for again; no user's begins so."""
_SLICE_ENTRIES = 8_192


class Batch(NamedTuple):
    """What one batch is called: a sink's id, the query that feeds it, and the batch's number in the query."""

    sink_id: str
    query_id: str
    batch_id: int


class LedgerMessage(NamedTuple):
    """A BEGIN or an END, as somebody wrote it."""

    kind: str
    batch: Batch
    row_count: int
    first_row: int
    """Of a BEGIN: how many rows stood in the log before it."""
    last: tuple[int, str] | None
    """Of an END: place and unique key of the batch's last row."""
    commitlog_offset: int
    end: int
    """Where its record ends."""


def outgoing_ledger_message(
    kind: str, batch: Batch, row_count: int, *, first_row: int = 0, last: tuple[int, str] | None = None, now_ms: int
) -> OutgoingMessages:
    """A ledger message for `encode_block`."""
    document: dict[str, object] = {
        "sink": batch.sink_id,
        "query": batch.query_id,
        "batch": batch.batch_id,
        "rows": row_count,
    }
    if kind == BEGIN:
        document["from"] = first_row
    else:
        document["last"] = list(last) if last is not None else None
    keys = _keys_of(batch)
    properties = f"TAGS\x01{kind}\x02KEYS\x01{_keys_text(batch)}\x02"
    return OutgoingMessages(
        ((TOPIC, QUEUE_ID),),
        np.zeros(1, np.int32),
        pa.array([json.dumps(document, separators=(",", ":")).encode()], pa.binary()),
        pa.array([properties.encode()], pa.binary()),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        np.array([now_ms], np.int64),
        np.array([string_hash(kind)], np.int64),
        np.array([len(keys)], np.int32),
        np.array([index_key_hash(index_key(TOPIC, key)) for key in keys], np.int32),
    )


def parse_ledger_body(body: bytes, commitlog_offset: int, end: int) -> LedgerMessage | None:
    """What a ledger message says; None where it does not say what one says."""
    try:
        document = json.loads(body)
        kind = BEGIN if "from" in document else END
        last = document.get("last") if kind == END else None
        batch = Batch(str(document["sink"]), str(document["query"]), int(document["batch"]))
        _keys_text(batch).encode()  # half a surrogate names nobody
        return LedgerMessage(
            kind,
            batch,
            int(document["rows"]),
            int(document.get("from", 0)),
            None if last is None else (int(last[0]), str(last[1])),
            commitlog_offset,
            end,
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        return None  # anybody may send to the topic


def _keys_of(batch: Batch) -> list[str]:
    return list(dict.fromkeys((batch.sink_id, batch.query_id)))


def _keys_text(batch: Batch) -> str:
    return " ".join(_keys_of(batch))


class BatchLedger:
    """Reads the ledger's queue. `end` is the queue offset behind its last message, `log_end` where the valid log ends."""

    def __init__(self, log: CommitLog, queue: ConsumeQueue | None, end: int, log_end: int) -> None:
        self._log = log
        self._queue = queue
        self._end = end
        self._log_end = log_end

    def newest_ends(self) -> LedgerEnds:
        """For every sink and query the newest END that counts."""
        ends: LedgerEnds = {}
        for message in self.newest_end_messages():
            ends.setdefault(message.batch.sink_id, {}).setdefault(message.batch.query_id, message.batch.batch_id)
        return ends

    def newest_end_messages(self) -> Iterator[LedgerMessage]:
        """The newest END that counts of every sink and query, newest first. Looks at the whole ledger, but decodes little of it."""
        found: set[str] = set()
        for places, kinds, keys in self._slices_backwards():
            rows = np.flatnonzero(pc.fill_null(pc.equal(kinds, END), False).to_numpy(zero_copy_only=False))[::-1]
            pairs = keys.take(pa.array(rows)).fill_null("").dictionary_encode()
            open_pairs = np.array([pair not in found for pair in pairs.dictionary.to_pylist()] or [False])
            codes = pairs.indices.to_numpy(zero_copy_only=False)
            for row, code in zip(rows.tolist(), codes.tolist(), strict=True):
                if not open_pairs[code]:
                    continue
                if pairs.dictionary[code].as_py().startswith(UNNAMED_PREFIX):
                    continue  # nobody asks for it again
                message = self._read(int(places[row]))
                pair = pairs.dictionary[code].as_py()
                if message is not None and pair == _keys_text(message.batch) and self._counts(message):
                    yield message
                    found.add(pair)
                    open_pairs[code] = False

    def messages_from(self, commitlog_offset: int) -> Iterator[LedgerMessage]:
        """The ledger's messages at or behind a place in the log, oldest first."""
        if self._queue is None:
            return
        first = self._queue.first_offset_at(commitlog_offset, self._end)
        for start in range(first, self._end, _SLICE_ENTRIES):
            for place in self._places(start, min(self._end, start + _SLICE_ENTRIES)).tolist():
                if (message := self._read(place)) is not None:
                    yield message

    def _places(self, start: int, end: int) -> np.ndarray:
        assert self._queue is not None
        entries = self._queue.entries(start, end)
        valid = valid_entries(entries, TOPIC, QUEUE_ID, self._log, self._log_end)
        return entries["commitlog_offset"][valid].astype(np.int64)

    def _slices_backwards(self) -> Iterator[tuple[np.ndarray, pa.Array, pa.Array]]:
        """Places, TAGS and KEYS of messages: ascending within a part, the newest part first."""
        if self._queue is None:
            return
        end = self._end
        minimum = self._queue.first_file_offset
        while end > minimum:
            start = max(minimum, end - _SLICE_ENTRIES)
            places = self._places(start, end)
            parts = list(self._log.records(places, np.full(len(places), 4096)))  # one for each log file
            for part, records in reversed(parts):
                properties = decode_property_maps(records.raw_properties())
                yield places[part], properties.values_of("TAGS"), properties.values_of("KEYS")
            end = start

    def _read(self, commitlog_offset: int) -> LedgerMessage | None:
        """The message there; None where it does not say what a ledger message says."""
        message = self._log.message_at(commitlog_offset, self._log_end)
        return parse_ledger_body(message.body, commitlog_offset, commitlog_offset + message.size_bytes)

    def _counts(self, end: LedgerMessage) -> bool:
        """Whether the last row that an END names stands there."""
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
