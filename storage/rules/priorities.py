"""The queue that a message's priority means. One rule for a send to the broker and for rows.

Java since 5.4: SendMessageProcessor.sendMessage, Message.getPriority, TopicMessageType.parseFromMessageProperty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.format.arrays import as_texts
from storage.format.properties import MapEntries
from storage.rules.delays import DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS
from storage.rules.inner_messages import InnerMessage

PRIORITY = "_SYS_MSG_PRIORITY_"
SHARDING_KEY = "__SHARDINGKEY"
NO_PRIORITY = -1
_TEXT = re.compile(r"\+?0*([0-9]{1,10})|-0+", re.ASCII)
_GREATEST = 2**31 - 1
_OTHER_TYPES = frozenset((DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS, SHARDING_KEY))
"""Properties of messages that are delayed or in order, so no priority counts."""


def parse_priority(text: str) -> int:
    """The priority, or NO_PRIORITY of a text that is none: the message is put as without it. Java: NumberUtils.toInt(text, -1)."""
    matched = _TEXT.fullmatch(text)
    if matched is None:
        return NO_PRIORITY
    priority = int(matched[1] or 0)
    return priority if priority <= _GREATEST else NO_PRIORITY


def by_priority(message: InnerMessage, write_queue_count: int) -> InnerMessage:
    """The message in the queue that its priority means, or without the property if it is a message of another type.

    The topic's type is not looked at.
    """
    properties = message.properties
    priority = parse_priority(properties.get(PRIORITY, ""))
    if priority == NO_PRIORITY:
        return message
    if is_of_other_type(properties):
        return replace(message, properties={name: value for name, value in properties.items() if name != PRIORITY})
    return replace(message, queue_id=min(priority, write_queue_count - 1))


def is_of_other_type(properties: Mapping[str, str]) -> bool:
    """Whether the message is a half message, delayed, or in order."""
    return properties.get("TRAN_MSG", "").lower() == "true" or not _OTHER_TYPES.isdisjoint(properties)


class RowPriorities(NamedTuple):
    """What the priorities of rows change."""

    rows: np.ndarray
    """The rows whose queue is chosen by priority."""
    priorities: np.ndarray
    """int64, their priorities."""
    properties: pa.Array
    """The rows' own properties, without the priorities of rows of another type."""


def read_priorities(properties: pa.Array | None, are_other: np.ndarray) -> RowPriorities | None:
    """The priorities in rows' own properties, a map column; None if no row has any. `are_other` = rows of another type.

    The last of equal names counts, as for every reader of properties.
    """
    if properties is None or properties.null_count == len(properties):
        return None
    if not pc.any(pc.equal(as_texts(properties.keys), PRIORITY)).as_py():
        return None
    entries = MapEntries.of(properties)
    are_priorities = pc.equal(entries.names, PRIORITY).to_numpy(zero_copy_only=False)
    texts = entries.values.filter(pa.array(are_priorities)).dictionary_encode()
    distinct = [parse_priority(text.decode(errors="replace")) for text in _bytes_of(texts.dictionary)]
    of_rows = np.full(len(properties), NO_PRIORITY, np.int64)
    of_rows[entries.rows[are_priorities]] = np.array(distinct, np.int64)[texts.indices.to_numpy()]
    ordered = are_other.copy()
    ordered[entries.rows[pc.equal(entries.names, SHARDING_KEY).to_numpy(zero_copy_only=False)]] = True
    has_priority = of_rows != NO_PRIORITY
    if (cleared := has_priority & ordered).any():
        entries = entries.filter(~(are_priorities & cleared[entries.rows]))
        properties = entries.to_maps()
    rows = np.flatnonzero(has_priority & ~ordered)
    return RowPriorities(rows, of_rows[rows], properties)


def _bytes_of(texts: pa.Array) -> list[bytes]:
    found: list[bytes] = texts.cast(pa.large_binary()).to_pylist()
    return found
