"""Static topics in requests and answers: clients use logical queues and offsets, the store physical ones.

    request (logical queue) ──rewrite──▶ leader's physical queue ──put──▶ physical offset ──rewrite──▶ answer (logical queue, offset)

Only the leader of a logical queue accepts messages for it. A pull goes to the leader too, which may have to forward it to the broker
with an earlier link. All functions are pure.
Java: TopicQueueMappingManager, TopicQueueMappingContext, SendMessageProcessor.rewriteResponseForStaticTopic,
PullMessageProcessor.rewriteRequestForStaticTopic and rewriteResponseForStaticTopic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.tables.topics import (
    MappingItem,
    TopicQueueMapping,
    TopicQueueMappingTable,
    find_item,
    next_item,
)


@dataclass(frozen=True, slots=True)
class LogicalQueue:
    """The queue that a request names, with its mapping. Java: TopicQueueMappingContext."""

    topic: str
    queue_id: int | None = None
    mapping: TopicQueueMapping | None = None
    """None = the topic is not static, and nothing is rewritten."""

    @property
    def items(self) -> tuple[MappingItem, ...]:
        """The chain of physical queues; empty if this broker never had a part of it."""
        if self.mapping is None or self.queue_id is None:
            return ()
        return self.mapping.hosted_queues.get(self.queue_id, ())

    @property
    def leader(self) -> MappingItem | None:
        """The link that accepts messages."""
        return self.items[-1] if self.items else None

    @property
    def is_led_here(self) -> bool:
        """Whether this broker leads it. Java: TopicQueueMappingContext.isLeader."""
        return (
            self.mapping is not None and self.leader is not None and self.leader.broker_name == self.mapping.broker_name
        )


def logical_queue(
    table: TopicQueueMappingTable,
    topic: str,
    queue_id: int | None,
    *,
    logical: bool | None = None,
    choose_queue: bool = False,
) -> LogicalQueue:
    """The topic and queue of a request. Java: TopicQueueMappingManager.buildTopicQueueMappingContext.

    `logical` is the request's field `lo`: False means that a broker forwards it and its queue is physical. With `choose_queue` a
    negative queue id, which leaves the choice to the broker, becomes the first logical queue that this broker knows, even if
    another one leads it.
    """
    mapping = None if logical is False else table.mappings.get(topic)
    if mapping is None:
        return LogicalQueue(topic)
    if queue_id is not None and queue_id < 0 and choose_queue and mapping.hosted_queues:
        queue_id = min(mapping.hosted_queues)
    return LogicalQueue(topic, queue_id, mapping)


def physical_queue_id(queue: LogicalQueue, requested: int) -> int:
    """The queue id that a send goes to: the requested one of an ordinary topic, the leader's of a static one.

    Raises RequestRefusedError with NOT_LEADER_FOR_QUEUE if another broker leads; then the client fetches its route again.
    Java: TopicQueueMappingManager.rewriteRequestForStaticTopic.
    """
    if queue.mapping is None:
        return requested
    if queue.leader is None or not queue.is_led_here:
        remark = (
            f"{queue.topic}-{requested} does not exit in request process of current broker {queue.mapping.broker_name}"
        )
        raise RequestRefusedError(ResponseCode.NOT_LEADER_FOR_QUEUE, remark, _why_not_here(queue, queue.mapping))
    return queue.leader.queue_id


def _why_not_here(queue: LogicalQueue, mapping: TopicQueueMapping) -> str:
    named = f"logical queue {queue.queue_id} of static topic {queue.topic!r}"
    if queue.leader is not None:
        return f"{named} is led by broker {queue.leader.broker_name!r}, and this is {mapping.broker_name!r}: write it there"
    return f"broker {mapping.broker_name!r} leads no {named}; the topic has {mapping.total_queue_count} of them"


class LedQueues(NamedTuple):
    """The logical queues of a static topic that this broker leads, ascending, and each one's physical queue: the targets of rows."""

    mapping: TopicQueueMapping
    logical: np.ndarray
    physical: np.ndarray

    @classmethod
    def of(cls, mapping: TopicQueueMapping, queue_limit: int) -> LedQueues:
        """The queues whose physical queue is below the limit. Raises RequestRefusedError if there is none."""
        refusal = None
        led: list[tuple[int, int]] = []
        for queue_id in sorted(mapping.hosted_queues):
            try:
                physical = physical_queue_id(LogicalQueue(mapping.topic, queue_id, mapping), queue_id)
            except RequestRefusedError as refused:
                refusal = refusal or refused
                continue
            if physical < queue_limit:
                led.append((queue_id, physical))
        if not led:
            reason = f"broker {mapping.broker_name!r} leads no queue of static topic {mapping.topic!r}"
            raise RequestRefusedError(
                ResponseCode.NOT_LEADER_FOR_QUEUE, None if refusal is None else refusal.remark, reason
            )
        numbers = np.array(led, np.int64).reshape(-1, 2)
        return cls(mapping, numbers[:, 0], numbers[:, 1])

    def ranks(self, logical_queue_ids: np.ndarray) -> np.ndarray:
        """The index of each in the led queues; their number for one that is not led here."""
        ranks = np.searchsorted(self.logical, logical_queue_ids)
        found = self.logical[np.minimum(ranks, len(self.logical) - 1)] == logical_queue_ids
        return np.where(found, ranks, len(self.logical))

    def refusal(self, logical_queue_id: int) -> str:
        """Why a row is refused that names this queue, which is not led here."""
        queue = LogicalQueue(self.mapping.topic, logical_queue_id, self.mapping)
        try:
            physical = physical_queue_id(queue, logical_queue_id)
        except RequestRefusedError as refused:
            return refused.reason
        return f"logical queue {logical_queue_id} leads to physical queue {physical}, which topic {self.mapping.topic!r} has not"


def answered_place(queue: LogicalQueue, queue_id: int, queue_offset: int) -> tuple[int, int]:
    """(queue id, offset) for the client's answer. The offset is −1 while the leader's place in the queue is not decided.

    Java: SendMessageProcessor.rewriteResponseForStaticTopic.
    """
    if queue.mapping is None or queue.leader is None or queue.queue_id is None:
        return queue_id, queue_offset
    return queue.queue_id, queue.leader.logical_within(queue_offset)


# Pulls


class PhysicalPull(NamedTuple):
    """A pull for the broker that holds the link."""

    item: MappingItem
    queue_offset: int
    """Physical; negative or after the link's end if the logical one lies in no link."""
    max_count: int | None
    is_here: bool
    """Whether this broker holds the link. If not, it forwards the pull, without suspending and without committing offsets."""


class PullPlace(NamedTuple):
    """The offsets in a pull's answer."""

    code: ResponseCode
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int = 0
    """Logical minus physical: the client adds it to the offsets of the messages."""


def physical_pull(queue: LogicalQueue, logical_offset: int, max_count: int | None = None) -> PhysicalPull | None:
    """The pull of a logical offset; None for an ordinary topic. Java: PullMessageProcessor.rewriteRequestForStaticTopic.

    Raises RequestRefusedError with NOT_LEADER_FOR_QUEUE; with SYSTEM_ERROR if no link's place is decided, as in Java.
    """
    if queue.mapping is None:
        return None
    name, broker = f"{queue.topic}-{queue.queue_id}", queue.mapping.broker_name
    if not queue.is_led_here:
        remark = f"{name} cannot find mapping item in request process of current broker {broker}"
        raise RequestRefusedError(ResponseCode.NOT_LEADER_FOR_QUEUE, remark)
    item = find_item(queue.items, logical_offset)
    if item is None:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"{name} has no link whose logical offset is decided")
    if item.has_end and max_count is not None:
        max_count = min(item.end_offset - item.start_offset, max_count)
    return PhysicalPull(item, item.physical(logical_offset), max_count, item.broker_name == broker)


def logical_pull(queue: LogicalQueue, pull: PhysicalPull, found: PullPlace) -> PullPlace:
    """A pull's answer in logical offsets. Java: PullMessageProcessor.rewriteResponseForStaticTopic.

    A pull that found nothing because its link is at its end continues at once with the next link; one before the first link's
    first message is moved there.
    """
    assert queue.mapping is not None, "the topic is static"
    assert queue.leader is not None, "it is led here"
    assert queue.queue_id is not None, "a pull names its queue"
    item, place = pull.item, found
    if found.code != ResponseCode.SUCCESS:
        item, place = _moved_on(queue, pull, found)
    next_begin = min(place.next_begin_offset, item.end_offset) if item.has_end else place.next_begin_offset
    return PullPlace(
        place.code,
        item.logical(next_begin),
        item.logical(max(item.start_offset, place.min_offset)),
        max(item.logical(place.max_offset), queue.mapping.end_of(queue.queue_id)),
        item.offset_delta,
    )


def _moved_on(queue: LogicalQueue, pull: PhysicalPull, found: PullPlace) -> tuple[MappingItem, PullPlace]:
    """Where a pull without messages continues: the link, and the answer in its physical offsets."""
    item, offset, place = pull.item, pull.queue_offset, found
    first = find_item(queue.items, 0)
    is_leader = queue.leader is not None and queue.leader.generation == item.generation
    is_first = first is not None and first.generation == item.generation
    if is_leader:
        if offset > found.max_offset and found.code == ResponseCode.PULL_OFFSET_MOVED:
            place = place._replace(next_begin_offset=found.max_offset)
        elif offset < found.min_offset:
            place = place._replace(code=ResponseCode.PULL_RETRY_IMMEDIATELY, next_begin_offset=found.min_offset)
    if is_first or not is_leader:
        if offset < found.min_offset:
            code = ResponseCode.PULL_OFFSET_MOVED if is_first else ResponseCode.PULL_RETRY_IMMEDIATELY
            return item, place._replace(code=code, next_begin_offset=found.min_offset)
        if offset >= found.max_offset:
            behind = next_item(queue.items, item)
            if behind is None:
                return item, place._replace(code=ResponseCode.PULL_NOT_FOUND)
            start = behind.start_offset
            return behind, PullPlace(ResponseCode.PULL_RETRY_IMMEDIATELY, start, start, start)
        return item, place._replace(code=found.code)
    return item, place
