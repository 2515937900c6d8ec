"""What a store should serve, as a dict of lists: `store_machine.py` holds a real store against it after each step.

Nothing here is read from the store but the places at which it says, or shows, that messages stand; the model checks that
they are new, and remembers them to know what a crash may take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from storage.format.delay import SCHEDULE_TOPIC

Queue = tuple[str, int]


class Asked(NamedTuple):
    """A message that is to appear."""

    topic: str
    queue_id: int | None
    """None: the store chooses."""
    body: bytes
    keys: tuple[str, ...]
    """The first one is its own, the others it shares."""
    tags: str | None
    batch_id: int | None = None
    """Of the sink's batch that it belongs to."""


class Stored(NamedTuple):
    """A message in its place."""

    asked: Asked
    queue_id: int
    queue_offset: int
    commitlog_offset: int
    store_time_ms: int

    @property
    def queue(self) -> Queue:
        return self.asked.topic, self.queue_id

    @property
    def name(self) -> str:
        """Its own key; empty if a power loss has torn it off."""
        return self.asked.keys[0] if self.asked.keys else ""

    @property
    def as_served(self) -> Stored:
        """Nobody sees of a message what batch it came with."""
        return self._replace(asked=self.asked._replace(batch_id=None))


class Parked(NamedTuple):
    """Where a message goes when its delay is over."""

    level: int
    delay_ms: int
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Half:
    """A half message, and what its producer will say of it."""

    asked: Asked
    commits: bool
    commitlog_offset: int
    ended_at: int | None = None
    """The place of its commit record, or where the log ended when it had been rolled back; None: it is open."""


@dataclass
class StoreModel:
    """One state of the store. Copies share the messages, which do not change."""

    queues: dict[Queue, list[Stored]] = field(default_factory=dict)
    """What each queue serves, oldest first."""
    ends: dict[Queue, int] = field(default_factory=dict)
    holes: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Queue offsets that a power loss has emptied, and the places of the records, whose topics are torn."""
    log_minimum: int = 0
    log_end: int = 0
    durable_end: int = 0
    """Up to here the log is known to be on the disk."""
    has_open_intent: bool = False
    """The last batch is decided and may not be on the disk: the next one syncs it first."""
    parked: dict[str, Parked] = field(default_factory=dict)
    delivered: dict[str, int] = field(default_factory=dict)
    """By key, the place of the delivered copy."""
    halves: dict[str, Half] = field(default_factory=dict)
    batch_count: int = 0
    """Batches that are committed, numbered from 0 on."""
    group_offsets: dict[Queue, int] = field(default_factory=dict)

    def copy(self) -> StoreModel:
        other = copy(self)
        other.queues = {queue: list(messages) for queue, messages in self.queues.items()}
        for name in ("ends", "holes", "parked", "delivered", "halves", "group_offsets"):
            setattr(other, name, dict(getattr(self, name)))
        return other

    # What there is

    def messages(self) -> Iterator[Stored]:
        for messages in self.queues.values():
            yield from messages

    def minimum(self, queue: Queue) -> int:
        """The first queue offset that the log still holds, torn or not; the end if it holds none."""
        messages = self.queues.get(queue, [])
        torn = [offset for topic, queue_id, offset in self.holes if (topic, queue_id) == queue]
        return min([self.ends.get(queue, 0), *torn, *(message.queue_offset for message in messages[:1])])

    def serves(self, queue: Queue, start: int) -> list[Stored]:
        return [message for message in self.queues.get(queue, []) if message.queue_offset >= start]

    def offset_at(self, queue: Queue, timestamp_ms: int, *, upper: bool) -> int:
        """Java: ConsumeQueue.getOffsetInQueueByTime with BoundaryType."""
        messages = self.queues.get(queue, [])
        if upper:
            before = [message.queue_offset for message in messages if message.store_time_ms <= timestamp_ms]
            return before[-1] if before else self.minimum(queue)
        after = [message.queue_offset for message in messages if message.store_time_ms >= timestamp_ms]
        return after[0] if after else self.ends.get(queue, 0)

    def with_key(self, topic: str, key: str) -> list[Stored]:
        """By place in the log."""
        found = [message for message in self.messages() if message.asked.topic == topic and key in message.asked.keys]
        return sorted(found, key=lambda message: message.commitlog_offset)

    def due(self, now_ms: int) -> list[Asked]:
        """What a delivery brings now, in its order. Java: ScheduleMessageService, level by level."""
        waiting = [
            message
            for queue in sorted(self.queues)
            if queue[0] == SCHEDULE_TOPIC
            for message in self.queues[queue]
            if message.name not in self.delivered
        ]
        return [
            message.asked._replace(topic=parked.topic, queue_id=parked.queue_id)
            for message in waiting
            if message.store_time_ms + (parked := self.parked[message.name]).delay_ms <= now_ms
        ]

    # What changes it

    def settle(self) -> None:
        """All of the log is on the disk, and what was decided is done."""
        self.durable_end, self.has_open_intent = self.log_end, False

    def add(self, messages: Iterable[Stored]) -> None:
        """Messages at the ends of their queues."""
        for message in messages:
            self.queues.setdefault(message.queue, []).append(message)
            self.ends[message.queue] = message.queue_offset + 1

    def expire(self, minimum: int) -> None:
        """The log begins there now."""
        self.log_minimum = minimum
        for queue, messages in self.queues.items():
            self.queues[queue] = [message for message in messages if message.commitlog_offset >= minimum]
        self.holes = {hole: place for hole, place in self.holes.items() if place >= minimum}

    def after_crash(self, begun: StoreModel, cut: int, minimum: int) -> tuple[StoreModel, list[Asked]]:
        """What is left in a log from `minimum` to `cut`, and the rows of batches that are not.

        `self` is the state that the last step led to, `begun` the one that it began with, if it was interrupted.
        """
        known: dict[Queue, dict[int, Stored]] = {queue: {} for queue in (*begun.queues, *self.queues)}
        for message in (*begun.messages(), *self.messages()):
            known[message.queue][message.queue_offset] = message
        left, cut_off = self.copy(), list[Stored]()
        for queue, found in known.items():
            gone = [message for _, message in sorted(found.items()) if message.commitlog_offset >= cut]
            left.queues[queue] = [message for _, message in sorted(found.items()) if message.commitlog_offset < cut]
            left.ends[queue] = min([self.ends.get(queue, 0), *(message.queue_offset for message in gone)])
            cut_off += gone
        left.holes = {hole: place for hole, place in self.holes.items() if place < cut}
        left.expire(minimum)
        left.delivered = {key: place for key, place in self.delivered.items() if place < cut}
        left.halves = {
            key: replace(half, ended_at=_if_left(half, cut))
            for key, half in self.halves.items()
            if half.commitlog_offset < cut
        }
        left.log_end, left.batch_count = cut, begun.batch_count
        cut_off.sort(key=lambda message: message.commitlog_offset)
        return left, [message.asked for message in cut_off if message.asked.batch_id is not None]


def _if_left(half: Half, cut: int) -> int | None:
    """Where it ended, if the log still says so."""
    if half.ended_at is None:
        return None
    return half.ended_at if half.ended_at + half.commits <= cut else None
