"""Where a group goes on: in memory between two writings, then at the broker or, when broadcasting, in a file.

An offset says that all before it was consumed. It is written every few seconds, when a queue is given up, and at the
end; what was consumed after the last writing comes once more after a crash.

Java: OffsetStore, RemoteBrokerOffsetStore, ControllableOffset. Owned by the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Protocol

from spark_mq.client.errors import ClientError
from spark_mq.client.group_brokers import GroupBrokers
from spark_mq.client.message import MessageQueue

_LOG = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Where a group keeps its offsets."""

    async def load(self) -> None:
        """Read what is known before the first queue is taken."""

    async def stored(self, queue: MessageQueue) -> int | None:
        """What is stored outside, which counts from now on; None where nothing is. Raises ClientError where nobody answers."""

    def known(self, queue: MessageQueue) -> int | None:
        """What is in memory."""

    def update(self, queue: MessageQueue, offset: int, *, only_forward: bool) -> None:
        """All before the offset is consumed; not while the queue's offset is frozen."""

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        """Set it, and let no listener that is still at work change it until `forget`."""

    async def write(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Write what is known of these queues. With `wait` it returns when brokers have said that they have it.

        Failures are logged: the next writing says the same or more.
        """

    def forget(self, queue: MessageQueue) -> None:
        """The queue is given up."""

    def snapshot(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """What is in memory, of one topic or of all."""


class OffsetMemory:
    """Offsets between two writings."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def known(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int, *, only_forward: bool) -> None:
        if queue not in self._frozen:
            known = self._offsets.get(queue)
            self._offsets[queue] = offset if known is None or not only_forward else max(known, offset)

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        self._frozen.add(queue)
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def snapshot(self, topic: str | None = None) -> dict[MessageQueue, int]:
        return {queue: offset for queue, offset in self._offsets.items() if topic is None or queue.topic == topic}


class RemoteOffsetStore(OffsetMemory):
    """The brokers keep the offsets, each those of its queues. Java: RemoteBrokerOffsetStore."""

    def __init__(self, brokers: GroupBrokers) -> None:
        super().__init__()
        self._brokers = brokers

    async def load(self) -> None:
        """Nothing: each queue's offset is asked for when the queue is taken."""

    async def stored(self, queue: MessageQueue) -> int | None:
        offset = await self._brokers.stored_offset(queue)
        if offset is not None:
            self.update(queue, offset, only_forward=False)
        return offset

    async def write(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        known = self.snapshot()
        outcomes = await asyncio.gather(*(self._write(queue, known[queue], wait) for queue in queues if queue in known))
        failed = [outcome for outcome in outcomes if outcome is not None]
        if failed:
            _LOG.warning("%d offsets were not stored at their brokers, the first one: %s", len(failed), failed[0])

    async def _write(self, queue: MessageQueue, offset: int, wait: bool) -> str | None:
        """What went wrong."""
        try:
            await self._brokers.store_offset(queue, offset, wait=wait)
        except ClientError as error:
            return f"offset {offset} of {queue}: {error}"
        return None
