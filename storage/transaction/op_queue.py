"""The op queue read as columns: which halves are ended, and how far its messages are dealt with.

Java: TransactionalMessageServiceImpl.fillOpRemoveMap, calculateOpOffset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.properties import decode_property_maps
from storage.format.record_batch import Records
from storage.messages.half_messages import QUEUE_ID
from storage.messages.op_messages import ENDED_TAG, OP_TOPIC
from storage.store_reader import StoreReader
from storage.transaction.half_queue import scan_topic

_OFFSET = "^[0-9]{1,18}$"


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


def read_ended(store: StoreReader, start: int, end: int) -> EndedHalves:
    """What op messages [start, end) say."""
    nothing = np.empty(0, np.int64)
    parts = [EndedHalves(nothing, nothing)]
    parts += [ended_halves(offsets, records) for offsets, records in scan_topic(store, OP_TOPIC, start, end)]
    return EndedHalves(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


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


def read_ended_since(store: StoreReader, commitlog_offset: int) -> np.ndarray:
    """The queue offsets of halves that op messages behind a place in the log end, ascending."""
    queue = store.queues.get(OP_TOPIC, QUEUE_ID)
    if queue is None:
        return np.empty(0, np.int64)
    end = store.max_offset(OP_TOPIC, QUEUE_ID)
    return np.unique(read_ended(store, queue.first_offset_at(commitlog_offset, end), end).half_offsets)
