"""The items of a send batch: made from columns, and read from records of a batch queue. Many at once, no loop over messages.

    0      4     8     12     16            20       20 + n              22 + n
    | size | (0) | (0) | flag | body length | body n | properties length | properties |

The fields in parentheses stay zero, as in Java's producer; a broker ignores them. Concatenated items are a batch's body, so any run of
them is a batch. Java: MessageDecoder.encodeMessage; the inverse for a request is `spark_mq/remoting/messages.py`.

A record of a batch queue has a batch as its body. A consumer makes messages of it (`single_records`). Java: PullAPIWrapper,
MessageDecoder.decodeMessage.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from storage.errors import CorruptMessageError, CorruptRecordError
from storage.format.arrays import body_crc, bytes_and_offsets, crcs_between, joined, sizes_of, view_at
from storage.format.properties import decode_properties
from storage.format.record import COMPRESSED, COMPRESSION_MASK, HEADERS, INNER_BATCH, NEED_UNWRAP, Message
from storage.format.record_batch import Records, gather_bytes

HEAD = np.dtype([("size_bytes", ">i4"), ("unread", "V8"), ("flag", ">i4"), ("body_size_bytes", ">i4")])
"""The part before the body."""
_LENGTH = np.dtype(">i2")
ITEM_OVERHEAD = HEAD.itemsize + _LENGTH.itemsize
"""Bytes of an item without its body and properties."""


class BatchItems(NamedTuple):
    """Items back to back: item i is `data[ends[i - 1]:ends[i]]`."""

    data: np.ndarray
    """uint8."""
    ends: np.ndarray
    """int64."""

    def __len__(self) -> int:
        return len(self.ends)


def encode_items(bodies: pa.Array, properties: pa.Array, flags: np.ndarray) -> BatchItems:
    """The items of n messages: `bodies` and `properties` are binary or large_binary without nulls, `flags` are int32."""
    count = len(flags)
    body_sizes, property_sizes = sizes_of(bodies), sizes_of(properties)
    sizes = body_sizes + property_sizes + ITEM_OVERHEAD
    head = np.zeros(count, HEAD)
    head["size_bytes"] = sizes
    head["flag"] = flags
    head["body_size_bytes"] = body_sizes
    items = joined(_fixed(head), bodies, _fixed(property_sizes.astype(_LENGTH)), properties)
    ends = np.cumsum(sizes)
    data = items.buffers()[2] if count else None
    return BatchItems(np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[: int(ends[-1])], ends)


def item_ends(body: bytes | memoryview) -> list[int]:
    """Where the items of a batch's body end. ValueError where their sizes do not add up."""
    data, ends, position = np.frombuffer(body, np.uint8), [], 0
    while position < len(data):
        size = int(view_at(data, np.array([position]), HEAD)["size_bytes"][0]) if len(data) - position >= 22 else 0
        if size < ITEM_OVERHEAD or position + size > len(data):
            raise ValueError(f"the item at byte {position} does not end within the batch")
        position += size
        ends.append(position)
    return ends


def _fixed(values: np.ndarray) -> pa.Array:
    """Each value's bytes, as large_binary."""
    count, width = len(values), values.dtype.itemsize
    offsets = np.arange(0, count * width + 1, width, dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values.view(np.uint8))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers)


_UNWRAPPED = INNER_BATCH | NEED_UNWRAP
_NOT_COMPRESSED = ~(COMPRESSED | COMPRESSION_MASK)
_BATCH = "batch of messages"


class SingleRecords(NamedTuple):
    """The messages of n records as records of their own."""

    records: Records
    rows: np.ndarray
    """Which of the n records each was in, ascending."""
    numbers: np.ndarray
    """Its number in the record, from 0."""


def single_records(records: Records) -> SingleRecords:
    """Each message of whole records as a record, with the fields of Java's consumer. Records without a batch stay as they are.

    A message has its own flag, body and properties, the queue offset of its place in the batch, and else the batch's fields. Its size
    and sum are those of the record that it would be. Raises CorruptMessageError where a body is no batch.
    """
    flags = records.column("sys_flag")
    batches = np.flatnonzero(flags & _UNWRAPPED == _UNWRAPPED)
    if not len(batches):
        return SingleRecords(records, np.arange(len(records)), np.zeros(len(records), np.int64))
    parts = records.take(batches)
    data, offsets = bytes_and_offsets(parts.plain_bodies().cast(pa.large_binary()))
    starts, owners, numbers = _items(parts, data, offsets)
    heads = view_at(data, starts, HEAD)
    body_sizes = heads["body_size_bytes"].astype(np.int64)
    body_starts = starts + HEAD.itemsize
    owner = pa.array(owners)
    header_sizes = (parts.body_starts - parts.positions)[owners]
    topic_ends = parts.property_bounds()[0] - _LENGTH.itemsize
    made = joined(
        gather_bytes(parts.buffer, parts.positions, parts.body_starts).take(owner),
        gather_bytes(data, body_starts, body_starts + body_sizes),
        gather_bytes(parts.buffer, parts.body_ends, topic_ends).take(owner),
        gather_bytes(data, body_starts + body_sizes, starts + heads["size_bytes"]),
    )
    others = np.setdiff1d(np.arange(len(records)), batches)
    ends = records.positions[others] + records.column("size_bytes")[others]
    kept = gather_bytes(records.buffer, records.positions[others], ends).cast(pa.large_binary())
    rows = np.concatenate((batches[owners], others))
    order = np.argsort(rows, kind="stable")
    view, bounds = bytes_and_offsets(pa.concat_arrays([made, kept]).take(pa.array(order)))
    buffer, places = view.copy(), bounds[:-1]
    is_made = order < len(owners)
    at, item = places[is_made], order[is_made]
    plain = HEADERS[0].fields
    assert plain is not None

    def write(field: str, values: np.ndarray) -> None:
        layout, position = plain[field][:2]
        _write(buffer, at + position, values.astype(layout))

    write("size_bytes", np.diff(bounds)[is_made])
    write("flag", heads["flag"][item])
    write("queue_offset", (parts.column("queue_offset")[owners] + numbers)[item])
    write("sys_flag", (flags[batches[owners]] & _NOT_COMPRESSED)[item])
    _write(buffer, at + header_sizes[item] - 4, body_sizes[item].astype(">i4"))
    sums = crcs_between(buffer, at + header_sizes[item], at + header_sizes[item] + body_sizes[item])
    write("body_crc", np.where(parts.crc_agrees()[owners[item]], sums, ~sums & 0x7FFFFFFF))
    all_numbers = np.concatenate((numbers, np.zeros(len(others), np.int64)))
    return SingleRecords(Records(buffer, places), rows[order], all_numbers[order])


def _items(records: Records, data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the items of the records' batches begin, whose each is, and its number. The loop goes over the longest batch's items."""
    found, owners, numbers = [], [], []
    rows = np.flatnonzero(offsets[:-1] < offsets[1:])
    at = offsets[rows]
    number = 0
    while len(rows):
        room = offsets[rows + 1] - at
        wrong = room < ITEM_OVERHEAD
        heads = view_at(data, np.where(wrong, 0, at), HEAD) if len(data) >= ITEM_OVERHEAD else np.zeros(len(rows), HEAD)
        sizes, bodies = heads["size_bytes"].astype(np.int64), heads["body_size_bytes"].astype(np.int64)
        wrong |= (sizes < ITEM_OVERHEAD) | (sizes > room) | (bodies < 0) | (bodies + ITEM_OVERHEAD > sizes)
        if not wrong.any():
            properties = view_at(data, at + HEAD.itemsize + bodies, _LENGTH).astype(np.int64)
            wrong |= bodies + ITEM_OVERHEAD + properties != sizes
        if wrong.any():
            row = int(rows[np.argmax(wrong)])
            raise records.corrupt_message(row, CorruptRecordError(_BATCH, 0, "whole items", f"a broken item {number}"))
        found.append(at)
        owners.append(rows)
        numbers.append(np.full(len(rows), number, np.int64))
        at, number = at + sizes, number + 1
        going_on = at < offsets[rows + 1]
        rows, at = rows[going_on], at[going_on]
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    whose, starts = np.concatenate(owners), np.concatenate(found)
    order = np.argsort(starts)
    return starts[order], whose[order], np.concatenate(numbers)[order]


def _write(buffer: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """Write values of one layout at byte positions of a `uint8` buffer."""
    size = values.dtype.itemsize
    if len(positions):
        void = np.dtype((np.void, size))
        np.ndarray((len(buffer) - size + 1,), void, buffer, strides=(1,))[positions] = values.view(void)


def single_messages(record: Message) -> list[Message]:
    """The messages of a record (`single_records`); the record itself if it holds no batch.

    Raises CorruptMessageError where the body is no batch.
    """
    if record.sys_flag & _UNWRAPPED != _UNWRAPPED:
        return [record]
    body, start, found = record.plain_body, 0, []
    try:
        ends = item_ends(body)
    except ValueError as error:
        place = record.topic, record.queue_id, record.queue_offset, record.commitlog_offset
        raise CorruptMessageError(*place, _BATCH, "whole items", str(error)) from error
    others = record.size_bytes - len(record.body) - len(record.raw_properties)
    for number, end in enumerate(ends):
        head = np.frombuffer(body, HEAD, 1, start)[0]
        body_end = start + HEAD.itemsize + int(head["body_size_bytes"])
        raw, own = body[body_end + _LENGTH.itemsize : end], body[start + HEAD.itemsize : body_end]
        found.append(
            replace(
                record,
                queue_offset=record.queue_offset + number,
                flag=int(head["flag"]),
                sys_flag=record.sys_flag & _NOT_COMPRESSED,
                body=own,
                body_crc=body_crc(own),
                raw_properties=raw,
                properties=decode_properties(raw),
                size_bytes=others + len(own) + len(raw),
            )
        )
        start = end
    return found
