"""Static topics: mappings that a broker accepts, requests and answers. Clients use logical queues and offsets, the store physical ones.

    request (logical queue) ──rewrite──▶ leader's physical queue ──put──▶ physical offset ──rewrite──▶ answer (logical queue, offset)

Only the leader of a logical queue accepts messages for it. Pulls and offsets go to the leader too, which forwards them to the broker
with an earlier link. All functions are pure.
Java: TopicQueueMappingManager, TopicQueueMappingContext, TopicQueueMappingUtils, TopicQueueMappingCleanService;
rewriteRequestForStaticTopic and rewriteResponseForStaticTopic of the processors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from storage.rules.response_codes import RequestRefusedError, ResponseCode
from storage.tables.topics import (
    MappingItem,
    TopicQueueMapping,
    TopicQueueMappingTable,
    check_items,
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
    return leader_here(queue, requested).queue_id


def leader_here(queue: LogicalQueue, requested: int) -> MappingItem:
    """The link of a static topic that accepts messages. Raises RequestRefusedError (NOT_LEADER_FOR_QUEUE) if another broker leads."""
    assert queue.mapping is not None, "the topic is static"
    if queue.leader is None or not queue.is_led_here:
        remark = (
            f"{queue.topic}-{requested} does not exit in request process of current broker {queue.mapping.broker_name}"
        )
        raise RequestRefusedError(ResponseCode.NOT_LEADER_FOR_QUEUE, remark, _why_not_here(queue, queue.mapping))
    return queue.leader


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


# Offsets


class LinkPlace(NamedTuple):
    """A logical offset in the link that holds it."""

    item: MappingItem
    queue_offset: int
    """Physical."""
    is_here: bool
    """Whether this broker holds the link."""


def link_place(queue: LogicalQueue, logical_offset: int) -> LinkPlace:
    """Where a logical offset of a static topic lies; the last decided link holds all later offsets, the first one all earlier ones.

    Raises RequestRefusedError with NOT_LEADER_FOR_QUEUE; with SYSTEM_ERROR if no link's place is decided.
    Java: ConsumerManageProcessor.rewriteRequestForStaticTopic, AdminBrokerProcessor.rewriteRequestForStaticTopic. Departure: Java reads
    the end of a queue whose leader is undecided in the queue of the leader's number at the broker before; here in that broker's own.
    """
    leader_here(queue, -1 if queue.queue_id is None else queue.queue_id)
    assert queue.mapping is not None, "the topic is static"
    item = find_item(queue.items, logical_offset)
    if item is None:
        remark = f"{queue.topic}-{queue.queue_id} has no link whose logical offset is decided"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    return LinkPlace(item, item.physical(logical_offset), item.broker_name == queue.mapping.broker_name)


def committed_place(queue: LogicalQueue, queue_id: int, committed: int) -> tuple[int, int] | None:
    """(physical queue, physical offset) of an offset that a pull commits; `queue_id` and the offset itself for an ordinary topic.

    None: the link is another broker's, which hears of it by the consumer's own request (15).
    Departure: Java stores the logical offset as if it was one of the queue that is pulled. A consumer that starts then is sent to the
    queue's end, and skips what lies between.
    """
    if queue.mapping is None:
        return queue_id, committed
    place = link_place(queue, committed)
    return (place.item.queue_id, place.queue_offset) if place.is_here else None


# What operators change


def accepted_mapping(
    before: TopicQueueMapping | None, told: TopicQueueMapping, broker_name: str, *, force: bool = False
) -> TopicQueueMapping:
    """The mapping after an operator's request (513): what it says, and the logical queues of before that it does not name.

    With `force` only the chains themselves are checked. ValueError with the rule for one that is older than what is known, or that
    changes what must stay: it would hide messages, or have two brokers accept them for one logical queue.
    Java: TopicQueueMappingManager.updateTopicQueueMapping. Departures: Java checks the broker's name, and that links stay as they are,
    by assertions, which are off by default; and takes a chain that ends before the one it knows.
    """
    if told.broker_name != broker_name:
        raise ValueError(f"the mapping is that of broker {told.broker_name!r}, and this is {broker_name!r}")
    for items in told.hosted_queues.values():
        check_items(items)
    if before is None:
        return told
    kept = {queue_id: items for queue_id, items in before.hosted_queues.items() if queue_id not in told.hosted_queues}
    after = replace(told, hosted_queues={**told.hosted_queues, **kept})
    if force:
        return after
    if told.epoch < before.epoch:
        raise ValueError(f"Can't accept data with small epoch {told.epoch} < {before.epoch}")
    if told.scope != before.scope:
        raise ValueError(f"Can't accept data with unmatched scope {told.scope} != {before.scope}")
    if kept and told.epoch == before.epoch:
        raise ValueError("Cannot accept equal epoch with null data")
    for queue_id in before.hosted_queues.keys() - kept.keys():
        _check_kept(before.hosted_queues[queue_id], told.hosted_queues[queue_id], told.epoch == before.epoch)
    return after


def _check_kept(before: Sequence[MappingItem], told: Sequence[MappingItem], is_same_epoch: bool) -> None:
    """ValueError for links that are not as they were. Java: TopicQueueMappingUtils.makeSureLogicQueueMappingItemImmutable."""
    if not before:
        return
    if not told:
        raise ValueError("The new item list is null or empty")
    known = {item.generation: item for item in before}
    for item in told:
        was = known.get(item.generation)
        if was is None:
            continue
        if _queue_of(was) != _queue_of(item):
            raise ValueError(f"link {item.generation} was {_queue_of(was)}, and cannot become {_queue_of(item)}")
        if was.logic_offset not in (-1, item.logic_offset):
            rule = f"it begins at logical offset {was.logic_offset}, and cannot begin at {item.logic_offset}"
            raise ValueError(f"link {item.generation} is decided: {rule}")
    if is_same_epoch and (told[-1].generation, _queue_of(told[-1])) != (before[-1].generation, _queue_of(before[-1])):
        raise ValueError("The new leader is different but epoch equal")
    if told[-1].generation < before[-1].generation:
        rule = "messages after it would be hidden"
        raise ValueError(f"the chain ends at link {told[-1].generation}, before link {before[-1].generation}: {rule}")


def _queue_of(item: MappingItem) -> tuple[str, int, int]:
    """What never changes of a link: broker, queue, first physical offset."""
    return item.broker_name, item.queue_id, item.start_offset


# What is cleaned away


class QueueEnds(NamedTuple):
    """The bounds of a physical queue."""

    minimum: int
    maximum: int


def first_links(mapping: TopicQueueMapping) -> dict[int, MappingItem]:
    """The first link of each logical queue that this broker leads and that has more than one decided link.

    Java: TopicQueueMappingCleanService.cleanItemExpired. Departure: a link before an undecided one stays.
    """
    return {
        queue_id: items[0]
        for queue_id, items in mapping.hosted_queues.items()
        if len(items) > 1 and items[-1].broker_name == mapping.broker_name and items[1].is_decided
    }


def without_expired(mapping: TopicQueueMapping, ends: dict[tuple[str, int], QueueEnds]) -> TopicQueueMapping:
    """The mapping without first links whose messages have expired, as the bounds by (broker, physical queue) say; itself if there are
    none. A link whose bounds are not known stays. Java: TopicQueueMappingCleanService.cleanItemExpired.
    """
    gone = set()
    for queue_id, item in first_links(mapping).items():
        found = ends.get((item.broker_name, item.queue_id))
        if found is not None and (found.minimum == found.maximum or found.maximum == 0):
            gone.add(queue_id)
    if not gone:
        return mapping
    hosted = {queue: items[1:] if queue in gone else items for queue, items in mapping.hosted_queues.items()}
    return replace(mapping, hosted_queues=hosted)


def without_passed_on(mapping: TopicQueueMapping, leaders: dict[int, TopicQueueMapping]) -> TopicQueueMapping:
    """The mapping without logical queues that this broker gave to a broker which gave them on; itself if there are none.

    `leaders` are the mappings of the brokers that lead the queues now, by logical queue; of another epoch they say nothing.
    Java: TopicQueueMappingCleanService.cleanItemListMoreThanSecondGen.
    """
    gone = set()
    for queue_id, items in mapping.hosted_queues.items():
        leader = leaders.get(queue_id)
        if not items or items[-1].broker_name == mapping.broker_name or leader is None:
            continue
        agrees = (leader.total_queue_count, leader.epoch) == (mapping.total_queue_count, mapping.epoch)
        theirs = leader.hosted_queues.get(queue_id, ())
        leads = bool(theirs) and theirs[-1].broker_name == leader.broker_name
        if agrees and leads and leader.broker_name != items[-1].broker_name:
            gone.add(queue_id)
    if not gone:
        return mapping
    hosted = {queue: items for queue, items in mapping.hosted_queues.items() if queue not in gone}
    return replace(mapping, hosted_queues=hosted)
