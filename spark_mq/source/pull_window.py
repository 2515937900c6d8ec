"""Which offsets of a range are asked for next, with several pulls in flight, and which answers are next in order. Pure.

A broker gives at most 32 messages or 256 KiB a pull, fewer from disk, and says only in the answer where to go on. In a queue without
gaps the next offsets are known ahead, so the window asks for offset, offset + stride, offset + 2 × stride …, each up to where the next
one begins. An answer that ends short leaves a rest, which is asked for before anything new, and teaches a smaller stride. Of several
rests the first is asked for first, by strides, so that few parts wait for it. After some answers that were full the stride is
doubled: what comes of it is a longer answer, or a rest of the usual size.

    asked    |---- a ----|---- b ----|---- c ----|
    answered |---- a ----|-- b -|    |---- c ----|
    next                        |-b'-|           |---- d ----|         a, b are given; c waits for b'

Where the broker filters, an answer may cover more than was asked for; the offsets that others were asked for are theirs.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

FIRST_STRIDE = 32
"""Messages that a broker gives a pull by default. Java: MessageStoreConfig.maxTransferCountOnMessageInMemory."""
MOST_STRIDE = 1_024
FULL_ANSWERS = 8
"""After so many the stride is doubled."""

T = TypeVar("T")


class Ask(NamedTuple):
    """A pull at `offset` for no message from `end` on."""

    offset: int
    end: int


class Part(NamedTuple, Generic[T]):
    """The offsets [`offset`, `end`), and what their answer brought."""

    offset: int
    end: int
    content: T


class PullWindow(Generic[T]):
    """The range [start, end) of one queue on its way. `depth` asks are in flight at most, and twice as many parts are kept."""

    def __init__(self, start: int, end: int, depth: int, first_stride: int = FIRST_STRIDE) -> None:
        self.position = start
        """Up to where parts were taken."""
        self.end = end
        self._depth = depth
        self._stride = first_stride
        self._full_answers = 0
        self._frontier = start
        self._rests: list[Ask] = []  # a heap
        self._in_flight: set[Ask] = set()
        self._parts: dict[int, Part[T]] = {}

    @property
    def is_done(self) -> bool:
        """Whether all was taken."""
        return self.position >= self.end

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def asks(self) -> list[Ask]:
        """What to ask for now; it is in flight from here on."""
        asks: list[Ask] = []
        while len(self._in_flight) < self._depth:
            has_room = len(self._in_flight) + len(self._parts) < 2 * self._depth
            if self._rests and (has_room or self._rests[0].offset == self.position):
                offset, end = heappop(self._rests)
                ask = Ask(offset, min(offset + self._stride, end))
                if ask.end < end:
                    heappush(self._rests, Ask(ask.end, end))
            elif not self._rests and has_room and self._frontier < self.end:
                ask = Ask(self._frontier, min(self._frontier + self._stride, self.end))
                self._frontier = ask.end
            else:
                break
            self._in_flight.add(ask)
            asks.append(ask)
        return asks

    def answer(self, ask: Ask, next_offset: int, content: T) -> None:
        """The answer to an ask in flight covers the offsets up to `next_offset`, which is behind the asked one."""
        self._in_flight.remove(ask)
        end = min(next_offset, ask.end)
        if end < min(ask.end, self.end):
            heappush(self._rests, Ask(end, ask.end))
        self._parts[ask.offset] = Part(ask.offset, end, content)
        self._learn(ask, next_offset)

    def _learn(self, ask: Ask, next_offset: int) -> None:
        covered = next_offset - ask.offset
        if next_offset < ask.end:
            self._stride, self._full_answers = max(1, min(self._stride, covered)), 0
            return
        self._full_answers += 1
        if next_offset > ask.end:  # filtered: one answer covers more than a full one
            self._stride = min(max(self._stride, covered), MOST_STRIDE)
        elif self._full_answers >= FULL_ANSWERS:
            self._stride, self._full_answers = min(2 * self._stride, MOST_STRIDE), 0

    def withdraw(self) -> None:
        """Everything in flight is asked for again: the connection is gone."""
        self._rests += self._in_flight
        heapify(self._rests)
        self._in_flight.clear()

    def again(self, ask: Ask) -> None:
        """An ask in flight that was not answered is asked for again."""
        self._in_flight.remove(ask)
        heappush(self._rests, ask)

    def cut(self, end: int) -> None:
        """The range ends before: nothing from there on is asked for any more, or given."""
        self.end = max(min(end, self.end), self.position)
        self._frontier = min(self._frontier, self.end)
        self._rests = [Ask(ask.offset, min(ask.end, self.end)) for ask in self._rests if ask.offset < self.end]
        heapify(self._rests)

    def take(self) -> list[Part[T]]:
        """The parts that come next in order, as far as they are there."""
        parts: list[Part[T]] = []
        while self.position < self.end and (part := self._parts.pop(self.position, None)) is not None:
            part = part._replace(end=min(part.end, self.end))
            parts.append(part)
            self.position = part.end
        return parts
