"""Op messages: which halves are ended. Body: their queue offsets, each with a comma behind it; tag `d`.

    half queue   0 1 2 3 4 …          op queue   "0,2," "1," …

Java: TransactionalMessageServiceImpl.deletePrepareMessage, getOpMessage, batchSendOpMessage; TransactionalMessageUtil.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.arrays import bytes_and_offsets
from storage.format.properties import decode_property_maps
from storage.format.record_batch import Records
from storage.rules.half_messages import QUEUE_ID
from storage.rules.inner_messages import InnerMessage

OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ENDED_TAG = "d"
_PROPERTIES = {"WAIT": "true", "TAGS": ENDED_TAG}
_OFFSET = "^[0-9]{1,18}$"


def op_bodies(half_queue_offsets: np.ndarray, max_size_bytes: int) -> list[bytes]:
    """The bodies that name these halves, in order. Java: getOpMessage, which ends a body with the offset that fills it.

    With a size of 0 each body is one offset without a comma: as releases before 5.1 write them, and the only form that these read.
    """
    numbers = pa.array(half_queue_offsets, pa.int64()).cast(pa.large_string())
    if max_size_bytes == 0:
        return [number.encode() for number in numbers.to_pylist()]
    entries = pc.binary_join_element_wise(numbers, pa.scalar(",", pa.large_string()), pa.scalar("", pa.large_string()))
    data, places = bytes_and_offsets(entries)
    bodies = []
    first = 0
    while first < len(entries):
        last = int(np.searchsorted(places, places[first] + max_size_bytes))
        last = min(max(last, first + 1), len(entries))
        bodies.append(data[places[first] : places[last]].tobytes())
        first = last
    return bodies


def op_messages(half_queue_offsets: np.ndarray, max_size_bytes: int, now_ms: int) -> list[InnerMessage]:
    """The messages that end these halves.

    Java: TransactionalMessageBridge.makeOpMessageInner, whose unique key never reaches the record.
    """
    return [
        InnerMessage(topic=OP_TOPIC, queue_id=QUEUE_ID, body=body, properties=_PROPERTIES, born_time_ms=now_ms)
        for body in op_bodies(half_queue_offsets, max_size_bytes)
    ]


class EndedHalves(NamedTuple):
    """What a range of the op queue says; one row for each half that it names."""

    op_offsets: np.ndarray
    """int64: queue offset of the op message, ascending."""
    half_offsets: np.ndarray
    """int64: queue offset of the half."""

    def done_before(self, end: int, half_offset: int) -> int:
        """Up to which op offset all are dealt with, of the op messages before `end`, once the halves before `half_offset` are.

        Java: calculateOpOffset.
        """
        ahead = self.op_offsets[self.half_offsets >= half_offset]
        return int(ahead[0]) if len(ahead) else end


def ended_halves(op_offsets: np.ndarray, records: Records) -> EndedHalves:
    """What records of the op topic say. One without the tag, and parts of a body that are no number, end nothing."""
    tags = decode_property_maps(records.raw_properties()).values_of("TAGS")
    is_op = pc.fill_null(pc.equal(tags, ENDED_TAG), False)
    lists = pc.split_pattern(records.bodies().cast(pa.large_binary()).filter(is_op), ",")
    texts, rows = lists.flatten(), np.asarray(pc.list_parent_indices(lists))
    is_number = pc.match_substring_regex(texts, _OFFSET)
    numbers = texts.filter(is_number).cast(pa.large_string()).cast(pa.int64())
    return EndedHalves(
        op_offsets[np.asarray(is_op, bool)][rows[np.asarray(is_number, bool)]], np.asarray(numbers, np.int64)
    )


class OpBatch:
    """Ended halves that no op message names yet: one is due when they fill it, or some time after the last. Java:
    MessageQueueOpContext.

    They live in memory, and a crash loses them. Of a commit its record tells the same, so nothing is committed twice; a
    rollback is known only here, so whoever acknowledges one writes at once.
    """

    def __init__(self, max_size_bytes: int, interval_ms: int, now_ms: int) -> None:
        self.max_size_bytes = max_size_bytes
        """Of the text of one op message."""
        self.interval_ms = interval_ms
        """For how long the last may wait."""
        self._last_write_ms = now_ms
        self._offsets: list[int] = []
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, half_queue_offset: int) -> None:
        """One more half that is ended."""
        self._offsets.append(half_queue_offset)
        self._size_bytes += len(str(half_queue_offset)) + 1

    def is_due(self, now_ms: int) -> bool:
        """Whether to write now. Java: batchSendOpMessage."""
        waited = now_ms - self._last_write_ms >= self.interval_ms
        return bool(self._offsets) and (waited or self._size_bytes >= self.max_size_bytes)

    def messages(self, now_ms: int) -> list[InnerMessage]:
        """The op messages of all that wait. `written` says that they stand in the log."""
        return op_messages(np.array(self._offsets, np.int64), self.max_size_bytes, now_ms)

    def take(self, now_ms: int) -> list[int]:
        """All that wait, for whoever writes them now; nothing waits then, and the time begins anew."""
        taken = self._offsets
        self.written(now_ms)
        return taken

    def written(self, now_ms: int) -> None:
        """Begin anew."""
        self._offsets, self._size_bytes, self._last_write_ms = [], 0, now_ms
