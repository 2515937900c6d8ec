"""Entries of one queue as a broker sees them: extension units read, and held to a filter. Java: ConsumeQueue.iterateFrom, CqUnit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from storage.format.bloom_filter import BitTest
from storage.format.consume_queue import is_ext_address
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.ext import ExtUnit
from storage.queues.store import ConsumeQueueStore
from storage.service.raw_get import MessageFilter, pass_by_entry


class ServedEntry(NamedTuple):
    """An entry as it stands in its queue, its extension unit if it names one, and whether a filter lets it through."""

    commitlog_offset: int
    size_bytes: int
    tags_code: int
    unit: ExtUnit | None
    passes: bool


def by_units(
    queues: ConsumeQueueStore, queue: ConsumeQueue, entries: np.ndarray, wanted: BitTest | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The entries' tags codes, and which pass by bit maps (None = all): where they name extension units, as these say."""
    codes = entries["tags_code"]
    if not is_ext_address(codes).any():
        return codes, None
    ext = queues.ext(queue.topic, queue.queue_id)
    try:
        return ext.tags_codes(codes), None if wanted is None else ext.passes(codes, wanted)
    finally:
        ext.close()


def served_entries(
    queues: ConsumeQueueStore, queue: ConsumeQueue, start: int, end: int, wanted: MessageFilter
) -> list[ServedEntry]:
    """Those from one queue offset to another."""
    entries = queue.entries(start, end)
    codes, by_bits = by_units(queues, queue, entries, wanted.bits)
    passes = pass_by_entry(codes, wanted.tags_codes, by_bits).tolist()
    named = is_ext_address(entries["tags_code"]).tolist()
    ext = queues.ext(queue.topic, queue.queue_id)
    try:
        units = [ext.unit(row[2]) if is_named else None for row, is_named in zip(entries.tolist(), named, strict=True)]
    finally:
        ext.close()
    return [ServedEntry(*row, *more) for row, *more in zip(entries.tolist(), units, passes, strict=True)]
