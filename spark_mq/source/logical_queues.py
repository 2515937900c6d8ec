"""Static topics as their clients see them: logical queues over the physical ones that a cluster's stores hold. Driver side.

    logical queue 3      |0 ────── broker-a, queue 1 ──────|   20,000 ─── broker-b, queue 0 ──▶      offsets in rows and checkpoint
    physical queues       0 … 12,345                          0 …                                    what is read

A logical queue belongs to no broker; its broker name is `__syslo__global__`, as in Java's clients. Offsets between two links belong to
no message. A link without a decided place is not read, and neither is a link whose broker's store is not in the cluster.
Java: TopicQueueMappingUtils.getMockBrokerName, PullMessageProcessor.rewriteRequestForStaticTopic, LogicQueueMappingItem.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spark_mq.conditions import names
from spark_mq.source.cluster import Cluster
from spark_mq.source.offsets import QueueId, RecordPlace
from spark_mq.source.ranges import QueueRange
from spark_mq.source.rows import ShownAs
from spark_mq.source.starting_offsets import QueueFacts
from storage import MessageStore
from storage.queues.store import QueuePosition
from storage.tables.topics import MAPPINGS_FILE, MappingItem, TopicQueueMappingTable, next_item

LOGICAL_BROKER = "__syslo__global__"
"""In place of a broker's name. Java: MixAll.LOGICAL_QUEUE_MOCK_BROKER_PREFIX, METADATA_SCOPE_GLOBAL."""

Chain = tuple[MappingItem, ...]
Bounds = Callable[[QueueId], tuple[int, int]]


class Link(NamedTuple):
    """The part of a physical queue that belongs to a logical one and is there, [start, end), and what leads to logical offsets."""

    queue: QueueId
    start: int
    end: int
    delta: int
    """Logical minus physical."""
    is_used: bool = True
    """Whether a message was ever put there, though all may have expired."""

    def cut(self, logical_start: int, logical_end: int) -> QueueRange | None:
        """The physical range for these logical offsets; None if empty."""
        start, end = max(self.start, logical_start - self.delta), min(self.end, logical_end - self.delta)
        return QueueRange(self.queue, start, end) if start < end else None


def chains_of(tables: Mapping[str, TopicQueueMappingTable]) -> dict[QueueId, Chain]:
    """The chain of each logical queue, of all that brokers know of it: the one that goes on longest, the newest of equals. Pure."""
    found: dict[QueueId, tuple[tuple[int, int], Chain]] = {}
    for table in tables.values():
        for topic, mapping in table.mappings.items():
            for queue_id, items in mapping.hosted_queues.items():
                queue = QueueId(topic, LOGICAL_BROKER, queue_id)
                age = (items[-1].generation, mapping.epoch) if items else (-1, mapping.epoch)
                if items and (queue not in found or age > found[queue][0]):
                    found[queue] = age, items
    return {queue: found[queue][1] for queue in sorted(found)}


def links_of(topic: str, chain: Chain, brokers: Sequence[str], bounds: Bounds) -> list[Link]:
    """The links of a chain that these brokers' stores hold, in logical order. `bounds` are a physical queue's minimum and maximum.

    A link ends where the mapping ends it, and before the next link begins.
    """
    links = []
    for item in chain:
        if not item.is_decided or item.broker_name not in brokers:
            continue
        queue = QueueId(topic, item.broker_name, item.queue_id)
        minimum, maximum = bounds(queue)
        end = max(minimum, maximum)
        if item.end_offset >= item.start_offset and item is not chain[-1]:
            end = min(end, item.end_offset)
        behind = next_item(chain, item)
        if behind is not None:
            end = min(end, item.physical(behind.logic_offset))
        start = max(item.start_offset, minimum)
        links.append(Link(queue, start, max(start, end), item.offset_delta, max(start, end) > item.start_offset))
    return links


class LogicalCluster(Cluster):
    """A cluster whose static topics are shown by logical queues, and by these alone. Other topics are as they are."""

    def __init__(self, stores: Mapping[str, MessageStore], place: str = "") -> None:
        super().__init__(stores, place)
        self._chains = self._read_chains()
        self._shown: tuple[Sequence[QueueId], dict[QueueId, Chain], list[QueueId]] | None = None
        self._warn_of_missing_stores()

    def _read_chains(self) -> dict[QueueId, Chain]:
        tables = {name: store.state(MAPPINGS_FILE, TopicQueueMappingTable.load) for name, store in self.stores.items()}
        return chains_of({name: table for name, table in tables.items() if table is not None})

    def _warn_of_missing_stores(self) -> None:
        missing = {item.broker_name for chain in self._chains.values() for item in chain} - self.stores.keys()
        if missing:
            whose = names(sorted(missing))
            text = f"logical=true: what these brokers hold of static topics is not read, for their stores are not in path: {whose}"
            warnings.warn_explicit(text, RuntimeWarning, "<spark_mq>", 0)

    def refresh(self) -> bool:
        changed = super().refresh()
        if changed:
            self._chains = self._read_chains()
        return changed

    @property
    def brokers(self) -> list[str]:
        return [*self.stores, LOGICAL_BROKER] if self._chains else list(self.stores)

    def queues(self) -> Sequence[QueueId]:
        there = super().queues()
        if self._shown is None or self._shown[0] is not there or self._shown[1] != self._chains:
            static = {queue.topic for queue in self._chains}
            found = sorted([*(queue for queue in there if queue.topic not in static), *self._chains])
            self._shown = there, self._chains, found
        return self._shown[2]

    def queue_count(self, topic: str) -> int:
        numbers = [queue.queue_id for queue in self._chains if queue.topic == topic]
        return max(numbers) + 1 if numbers else super().queue_count(topic)

    def _links(self, queue: QueueId) -> list[Link]:
        return links_of(queue.topic, self._chains.get(queue, ()), list(self.stores), super().bounds)

    # Positions

    def bounds(self, queue: QueueId) -> tuple[int, int]:
        if queue.broker_name != LOGICAL_BROKER:
            return super().bounds(queue)
        links = self._links(queue)
        if not links:
            return 0, 0
        held = [link for link in links if link.start < link.end]
        end = max(link.end + link.delta for link in [link for link in links if link.is_used] or links)
        return (min(link.start + link.delta for link in held) if held else end), end

    def minimum(self, queue: QueueId) -> int:
        return self.bounds(queue)[0] if queue.broker_name == LOGICAL_BROKER else super().minimum(queue)

    def maximum(self, queue: QueueId) -> int:
        return self.bounds(queue)[1] if queue.broker_name == LOGICAL_BROKER else super().maximum(queue)

    def offset_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        if queue.broker_name != LOGICAL_BROKER:
            return super().offset_by_time(queue, timestamp_ms)
        for link in self._links(queue):
            found = super().offset_by_time(link.queue, timestamp_ms) if link.start < link.end else None
            if found is not None and found < link.end:
                return max(found, link.start) + link.delta
        return None

    def end_by_time(self, queue: QueueId, timestamp_ms: int) -> int | None:
        if queue.broker_name != LOGICAL_BROKER:
            return super().end_by_time(queue, timestamp_ms)
        end = None
        for link in reversed(self._links(queue)):
            if link.start < link.end:
                found = super().offset_by_time(link.queue, timestamp_ms)
                if found is None or found >= link.end:
                    return end
                end = max(found, link.start) + link.delta
                if found > link.start:
                    return end
        return end

    def group_offset(self, group: str, queue: QueueId) -> int | None:
        """The group's stored offset in the newest link that has one. Java: ConsumerManageProcessor."""
        if queue.broker_name != LOGICAL_BROKER:
            return super().group_offset(group, queue)
        for item in reversed(self._chains.get(queue, ())):
            if item.is_decided and item.broker_name in self.stores:
                found = super().group_offset(group, QueueId(queue.topic, item.broker_name, item.queue_id))
                if found is not None:
                    return item.logical(found)
        return None

    def physical_positions(self, offsets: Mapping[QueueId, int]) -> dict[QueueId, int]:
        """A group's physical offsets: for each logical queue, in the link that it reads next."""
        found = {}
        for queue, offset in offsets.items():
            if queue.broker_name != LOGICAL_BROKER:
                found[queue] = offset
                continue
            for link in self._links(queue):
                if offset >= link.start + link.delta:
                    found[link.queue] = min(offset - link.delta, link.end)
        return found

    def record_before(self, queue: QueueId, offset: int) -> RecordPlace | None:
        physical = self._physical_end(queue, offset)
        return None if physical is None else super().record_before(*physical)

    def look_up(self, offsets: Mapping[QueueId, int]) -> None:
        super().look_up(dict(filter(None, (self._physical_end(queue, offset) for queue, offset in offsets.items()))))

    def _physical_end(self, queue: QueueId, offset: int) -> tuple[QueueId, int] | None:
        """The physical queue that holds the offset before this one, and this one there; None where no link does."""
        if queue.broker_name != LOGICAL_BROKER:
            return queue, offset
        found = next((piece for link in self._links(queue) if (piece := link.cut(offset - 1, offset))), None)
        return None if found is None else (found.queue, found.end)

    def position(self, queue: QueueId, offset: int) -> QueuePosition | None:
        physical = self._physical_end(queue, offset + 1)
        return None if physical is None else super().position(physical[0], physical[1] - 1)

    def facts(self, queue: QueueId) -> QueueFacts | None:
        if queue.broker_name != LOGICAL_BROKER:
            return super().facts(queue)
        if queue not in self._chains:
            return None
        return QueueFacts(*self.bounds(queue), lambda offset: self.record_before(queue, offset))

    # Sizes

    def bytes_between(self, queue: QueueId, start: int, end: int) -> int:
        return sum(
            super(LogicalCluster, self).bytes_between(*piece)
            for piece, _ in self.physical(QueueRange(queue, start, end))
        )

    def offset_at_bytes(self, queue: QueueId, start: int, size_bytes: int) -> int:
        if queue.broker_name != LOGICAL_BROKER:
            return super().offset_at_bytes(queue, start, size_bytes)
        end = self.maximum(queue)
        for link in self._links(queue):
            piece = link.cut(start, end)
            if piece is None:
                continue
            size = super().bytes_between(*piece)
            if size > size_bytes:
                return min(super().offset_at_bytes(link.queue, piece.start, size_bytes), piece.end) + link.delta
            size_bytes -= size
        return end

    # Reading

    def physical(self, piece: QueueRange) -> list[tuple[QueueRange, ShownAs | None]]:
        if piece.queue.broker_name != LOGICAL_BROKER:
            return super().physical(piece)
        return [
            (part, ShownAs(piece.queue, link.delta))
            for link in self._links(piece.queue)
            if (part := link.cut(piece.start, piece.end)) is not None
        ]
