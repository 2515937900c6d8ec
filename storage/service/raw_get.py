"""Records of one queue for a pull: which entries it takes, decided by arrays. Pure. Java: DefaultMessageStore.getMessage.

    entries ─▶ filter by tags code or bit map ─▶ which the log still holds ─▶ where the pull is full ─▶ rows to be read

A pull is full before an entry when its count, or the bytes with that entry, would pass the limits; they are lower for an entry that
has probably left the page cache. It is never full before its first message. What is filtered out counts as looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from storage.format.bloom_filter import BitTest
from storage.format.consume_queue import ENTRY_SIZE, is_pre_blank
from storage.queues.get import GetStatus

_MOST_BYTES = 128 << 20
"""Java: DefaultMessageStore.MAX_PULL_MSG_SIZE."""
_INT_BITS = 32


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """What one pull gets at most. Java: MessageStoreConfig.maxTransfer…, maxFilterMessageSize, accessMessageInMemoryMaxRatio."""

    memory_bytes: int
    """Records so close to the log's end count as in memory."""
    in_memory_count: int = 32
    in_memory_bytes: int = 262_144
    on_disk_count: int = 8
    on_disk_bytes: int = 65_536
    filter_bytes: int = 16_000
    """Of queue entries that one pull looks at, unless it asks for more messages than these."""


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages a pull wants: by the entry's tags code, by its unit's bit map, then by the record's encoded properties;
    None = all.
    """

    tags_codes: frozenset[int] | None = None
    bits: BitTest | None = None
    accepts: Callable[[bytes], bool] | None = None


ALL_MESSAGES = MessageFilter()


class RawGet(NamedTuple):
    """What a pull found. `body` holds the records one behind the other, as they stand in the log."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    message_count: int = 0
    is_behind: bool = False
    """Whether what was looked at last lies so far behind the log's end that a slave should be asked."""
    last_store_time_ms: int = 0
    """Of the last record that was found."""
    behind_bytes: int | None = None
    """How far before the log's end what was looked at last lies; None where nothing was."""


class LogSpan(NamedTuple):
    """The part of the log that can be read, where what is written ends, and the size of its files."""

    minimum: int
    end: int
    written_end: int
    file_size_bytes: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """The entries that a pull looks at, from its offset on."""

    places: np.ndarray
    sizes: np.ndarray
    passes: np.ndarray
    """Which the filter lets through by their tags codes and bit maps."""
    is_gone: np.ndarray
    """Which name a message that the log no longer holds."""
    is_there: np.ndarray
    """Which name one that it holds; the others only fill room."""


def entries_looked_at(max_messages: int, limits: TransferLimits) -> int:
    """How many entries a pull looks at, at most. The product wraps as Java's int."""
    product = (max_messages * ENTRY_SIZE + (1 << _INT_BITS - 1)) % (1 << _INT_BITS) - (1 << _INT_BITS - 1)
    return -(-max(limits.filter_bytes, product) // ENTRY_SIZE)


def candidates(
    entries: np.ndarray,
    tags_codes: np.ndarray,
    wanted: frozenset[int] | None,
    span: LogSpan,
    by_bits: np.ndarray | None = None,
) -> Candidates:
    """Entries as the pull sees them. `tags_codes` are theirs, read through extension units; Java compares their lower 32 bits.

    `by_bits` says which pass by the bit maps of these units.
    """
    places, sizes = entries["commitlog_offset"].astype(np.int64), entries["size_bytes"].astype(np.int64)
    passes = pass_by_entry(tags_codes, wanted, by_bits)
    is_message = ~is_pre_blank(entries) & (sizes > 0)
    is_there = is_message & (places >= span.minimum) & (places + sizes <= span.end)
    return Candidates(places, sizes, passes, is_message & ~is_there, is_there)


def pass_by_entry(tags_codes: np.ndarray, wanted: frozenset[int] | None, by_bits: np.ndarray | None) -> np.ndarray:
    """Which entries a filter lets through by their tags codes and bit maps. Java: MessageFilter.isMatchedByConsumeQueue."""
    if wanted is None:
        return np.ones(len(tags_codes), bool) if by_bits is None else by_bits
    return np.isin(tags_codes.astype(np.int32), list(wanted))


def stop_of(seen: Candidates, taken: np.ndarray, max_messages: int, limits: TransferLimits, span: LogSpan) -> int:
    """Before which entry the pull is full, where `taken` says which it takes; their number if it is not. Java: isTheBatchFull."""
    most = max(1, min(max_messages, limits.in_memory_count))
    if taken.all() and span.written_end - int(seen.places.min()) <= limits.memory_bytes:  # as with most pulls
        stop = min(len(taken), most)
        if int(seen.sizes[:stop].sum()) <= min(limits.in_memory_bytes, _MOST_BYTES):
            return stop
    taken_sizes = np.where(taken, seen.sizes, 0)
    count = np.cumsum(taken) - taken
    with_entry = np.cumsum(taken_sizes) - taken_sizes + seen.sizes
    in_memory = span.written_end - seen.places <= limits.memory_bytes
    most_bytes = np.where(in_memory, limits.in_memory_bytes, limits.on_disk_bytes)
    most_count = np.where(in_memory, limits.in_memory_count, limits.on_disk_count)
    is_full = (count + 1 > max_messages) | (with_entry > np.minimum(most_bytes, _MOST_BYTES)) | (count > most_count - 1)
    is_full &= count > 0
    stop = int(np.argmax(is_full))
    return stop if is_full[stop] else len(taken)


def status_of_nothing(seen: Candidates, count: int, span: LogSpan) -> GetStatus:
    """How a pull ended that found none among the first `count`: did one go that is gone, or one that is filtered out, come last?

    Java passes over the rest of the log file of one that is gone.
    """
    passes, is_gone, places = seen.passes[:count], seen.is_gone[:count], seen.places[:count]
    if not is_gone.any():
        return GetStatus.NO_MATCHED_MESSAGE
    size = max(1, span.file_size_bytes)
    rolled = np.where(is_gone & passes, (places // size + 1) * size, 0)
    is_looked_at = places >= np.concatenate(([0], np.maximum.accumulate(rolled)[:-1]))
    gone, filtered = np.flatnonzero(is_gone & passes & is_looked_at), np.flatnonzero(~passes & is_looked_at)
    is_gone_last = len(gone) and (not len(filtered) or gone[-1] > filtered[-1])
    return GetStatus.MESSAGE_WAS_REMOVING if is_gone_last else GetStatus.NO_MATCHED_MESSAGE
