"""Offsets of groups and delay levels that lie behind their queues' ends: lowered before the store takes messages.

A replica that was promoted, a log that was cut, or one that has lost its end with the power: new messages get offsets that the tables
count as done already, and nobody would get them. What a table counts of a cut delivery is lowered, too.
Departure: Java lowers delay levels when it becomes master (correctDelayOffset), groups only when they pull.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from storage.epoch_times import current_time_ms
from storage.format.delay_level import SCHEDULE_TOPIC
from storage.format.properties import decode_property_maps
from storage.message_store import MessageStore
from storage.messages.delays import DELAY, REAL_TOPIC, TIMER_TOPIC
from storage.messages.half_messages import HALF_TOPIC
from storage.names import MULTI_DISPATCH_PREFIX
from storage.tables.consumer_offsets import FILE_NAME as OFFSETS_FILE
from storage.tables.consumer_offsets import ConsumerOffsets
from storage.tables.delay_offsets import FILE_NAME as DELAYS_FILE
from storage.tables.delay_offsets import DelayOffsets
from storage.tables.followed_timer import forget_followed_timer
from storage.tables.topic_queue_mappings import FILE_NAME as MAPPINGS_FILE
from storage.tables.topic_queue_mappings import TopicQueueMappingTable

_PARKED = [name.encode() for name in (SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC)]
_LOG = logging.getLogger(__name__)


def lower_offsets(store: MessageStore) -> None:
    """No offset lies behind the end of its queue any more. Of static topics and multi-dispatch queues they stay: they count otherwise.

    For who has the store open alone. Raises StateFileError, OSError.
    """
    ends = store.writer.ends.queue_ends
    mappings = store.state(MAPPINGS_FILE, TopicQueueMappingTable.load)
    apart = store.queues.batch_topics.union(() if mappings is None else mappings.mappings)

    def end_of(topic: str, queue_id: int) -> int | None:
        counts_otherwise = topic in apart or topic.startswith(MULTI_DISPATCH_PREFIX)
        return None if counts_otherwise else ends.get((topic, queue_id), 0)

    with store.tables_lock:
        groups = store.state(OFFSETS_FILE, ConsumerOffsets.load)
        if groups is not None and (lowered := groups.lowered(end_of, now_ms=current_time_ms())) is not groups:
            _LOG.warning("%s: offsets of groups lay behind the ends of their queues, and are lowered", store.root)
            store.save_state(OFFSETS_FILE, lowered.to_text())
    _lower_levels(store, lambda level, offset: min(offset, ends.get((SCHEDULE_TOPIC, level - 1), 0)))


def lower_levels_for_cut(store: MessageStore, place: int) -> None:
    """Of a store whose log is to be cut at a place: each delay level goes back by as many messages as the log behind it delivers.

    Whose level is not known (Java's broker takes it off) counts for each, so some may be delivered twice, and none is lost.
    What the master's timer has delivered is not known any more.
    Raises StateFileError, OSError.
    """
    cut = _deliveries_behind(store, place)
    unknown = cut[None]
    _lower_levels(store, lambda level, offset: max(0, offset - cut[level] - unknown))
    forget_followed_timer(store.writer.file_system, store.root)


def _lower_levels(store: MessageStore, right: Callable[[int, int], int]) -> None:
    with store.tables_lock:
        known = store.state(DELAYS_FILE, DelayOffsets.load)
        if known is None:
            return
        offsets = {level: right(level, offset) for level, offset in known.offsets.items()}
        if (lowered := known.with_offsets(offsets, now_ms=current_time_ms())) is not known:
            _LOG.warning("%s: delay levels were ahead of the log, and go back: %s", store.root, offsets)
            store.save_state(DELAYS_FILE, lowered.to_text())


def _deliveries_behind(store: MessageStore, place: int) -> Counter[int | None]:
    """By level, None of the unknown ones."""
    found: Counter[int | None] = Counter()
    for _, records in store.log.walk(place, check_crc=False):
        properties = decode_property_maps(records.raw_properties())
        is_delivered = pc.and_(
            properties.values_of(REAL_TOPIC).is_valid(),
            pc.invert(pc.is_in(records.topics().cast(pa.large_binary()), pa.array(_PARKED, pa.large_binary()))),
        )
        levels = properties.values_of(DELAY).filter(is_delivered)
        for each in pc.value_counts(levels).to_pylist():
            text = each["values"]
            found[int(text) if text is not None and text.isdecimal() else None] += each["counts"]
    return found
