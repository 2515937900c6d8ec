"""A few messages from a queue offset on, as a consumer gets them. Java: DefaultMessageStore.getMessage, GetMessageResult."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from storage.format.arrays import string_hash
from storage.format.consume_queue import ENTRY_SIZE
from storage.format.record import Message
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue, valid_entries
from storage.queues.ext import ConsumeQueueExt
from storage.queues.scan import TORN_TAGS_CODES, record_sizes

MAX_TRANSFER_BYTES = 256 << 10  # maxTransferBytesOnMessageInMemory
_MAX_FILTER_BYTES = 16_000  # maxFilterMessageSize: bytes of queue entries that one get looks at


class GetStatus(Enum):
    """How a `get` ended. Java: GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class GetResult:
    """What a `get` found. Java: GetMessageResult."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[Message, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(message.size_bytes for message in self.messages)


class Get(NamedTuple):
    """The arguments of one look, as of `MessageStore.get`."""

    offset: int
    max_count: int
    tags: str | None
    max_bytes: int


def get_messages(
    queue: ConsumeQueue, ext: ConsumeQueueExt, log: CommitLog, log_end: int, bounds: tuple[int, int], get: Get
) -> GetResult:
    """The result of `MessageStore.get` at an offset within the queue's `bounds` (minimum and maximum)."""
    offset, max_count, tags, max_bytes = get
    minimum, maximum = bounds
    # A queue that has moved has no file, and a batch queue's files end at any queue offset.
    has_even_files = queue.unit_size_bytes == ENTRY_SIZE
    file_entries = (queue.file_size_bytes // ENTRY_SIZE if has_even_files else 0) or maximum
    last = min(maximum, offset + max(_MAX_FILTER_BYTES // 20, max_count), (offset // file_entries + 1) * file_entries)
    entries = queue.entries(offset, last)
    wanted = None if tags in (None, "*", "") else frozenset(tag.strip() for tag in (tags or "").split("||"))
    codes = ext.tags_codes(entries["tags_code"])
    hashes = None if wanted is None else {string_hash(tag) for tag in wanted}
    border = queue.border(log, last)
    read, valid = queue.reading(log, log_end), np.empty(0, bool)
    messages: list[Message] = []
    status, total, next_offset = GetStatus.NO_MATCHED_MESSAGE, 0, offset
    for number in range(len(entries)):
        size = int(entries["size_bytes"][number])
        if messages and (len(messages) >= max_count or total + size > max_bytes):
            break
        next_offset = offset + number + 1
        if hashes is not None and int(codes[number]) not in hashes | TORN_TAGS_CODES:
            continue
        if number >= len(valid):  # check a block at a time: most calls need only the first
            block = entries[number : number + max_count]
            block = block[: max(1, int(np.searchsorted(np.cumsum(record_sizes(block)), max_bytes, side="right")))]
            sound = valid_entries(block, queue.topic, queue.queue_id, log, log_end)
            sound[: max(0, border - offset - number)] = True  # they lie in tiered storage
            valid = np.concatenate((valid, np.zeros(number - len(valid), bool), sound))
        if not valid[number]:
            status = status if messages else GetStatus.MESSAGE_WAS_REMOVING
            continue
        message = read(offset + number, int(entries["commitlog_offset"][number]))
        if wanted is not None and message.tags not in wanted:
            continue
        messages.append(message)
        total += size
        status = GetStatus.FOUND
    return GetResult(status, next_offset, minimum, maximum, tuple(messages))
