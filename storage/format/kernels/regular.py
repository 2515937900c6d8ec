"""What a regular record is: a whole one of magic V1 or V2 with IPv4 hosts. Nothing in its bytes is trusted.

Java: CommitLog.checkMessageAndReturnSize.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from storage.format.kernels.blocks import be_i16, i8
from storage.format.kernels.ground import be_i32, be_u32, inline
from storage.format.record import (
    HEADER_SIZE,
    HEADERS,
    HOST_FLAGS,
    MAGIC_V1,
    MAGIC_V2,
    MINIMUM_RECORD_SIZE,
    SYS_FLAG_POSITION,
)

BODY_SIZE = HEADERS[0].fields["body_size_bytes"][1]  # type: ignore[index]


@inline
def topic_of(buffer: Any, begin: Any, size: Any) -> Any:
    """Where the topic of a record begins and ends; (−1, −1) where no regular record of that size stands there."""
    nowhere = np.int64(-1), np.int64(-1)
    if size < MINIMUM_RECORD_SIZE or begin < 0 or size > np.int64(len(buffer)) - begin or be_i32(buffer, begin) != size:
        return nowhere
    magic = be_u32(buffer, begin + 4)
    body_size = be_i32(buffer, begin + BODY_SIZE)
    if be_i32(buffer, begin + SYS_FLAG_POSITION) & HOST_FLAGS or body_size < 0:
        return nowhere
    body_end = begin + HEADER_SIZE + body_size
    length_size = np.int64(2 if magic == MAGIC_V2 else 1)
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or body_end + length_size + 2 > begin + size:
        return nowhere
    topic_size = be_i16(buffer, body_end) if length_size == 2 else i8(buffer, body_end)
    topic_end = body_end + length_size + topic_size
    if topic_size < 0 or topic_end + 2 > begin + size or topic_end + 2 + be_i16(buffer, topic_end) != begin + size:
        return nowhere
    return topic_end - topic_size, topic_end
