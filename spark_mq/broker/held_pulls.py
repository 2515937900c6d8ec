"""Pulls that found nothing and wait for messages: woken when some come that they want, or when their time is up. Pure.

A pull is looked at when entries of its queue can be read, and all of them every few seconds, when no tags are known and every message
counts as wanted. Java: PullRequestHoldService, ManyPullRequest, NotifyMessageArrivingListener.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from spark_mq.broker.connections import ClientConnection
from spark_mq.remoting import RemotingCommand

LONG_POLLING_LOOK_MS = 5_000
QueueName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class HeldPull:
    """A pull, from when on and how long it waits, and which tags codes it wants (None = all)."""

    connection: ClientConnection
    command: RemotingCommand
    offset: int
    held_ms: int
    timeout_ms: int
    tags_codes: frozenset[int] | None = None

    def is_due(self, now_ms: int) -> bool:
        """Whether its time is up."""
        return now_ms >= self.held_ms + self.timeout_ms

    def wants(self, tags_codes: np.ndarray | None) -> bool:
        """Whether one of the messages may be for it; without codes any may."""
        if self.tags_codes is None or tags_codes is None:
            return True
        return bool(np.isin(tags_codes.astype(np.int32), list(self.tags_codes)).any())


class HeldPulls:
    """All pulls that wait, by queue. For one thread at a time. Times are ms."""

    def __init__(self, look_interval_ms: int = LONG_POLLING_LOOK_MS) -> None:
        """`look_interval_ms`: how often all are looked at."""
        self._queues: dict[QueueName, list[HeldPull]] = {}
        self._interval_ms = look_interval_ms
        self._next_look_ms: int | None = None

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def hold(self, name: QueueName, pull: HeldPull) -> None:
        """Let it wait."""
        self._queues.setdefault(name, []).append(pull)

    def has(self, name: QueueName) -> bool:
        """Whether any pull waits for this queue: asked for each dispatched queue, so cheap."""
        return name in self._queues

    def arrived(self, name: QueueName, maximum: int, tags_codes: np.ndarray | None, now_ms: int) -> list[HeldPull]:
        """The queue can be read up to `maximum`, with these messages as the last: the pulls to be run again, which wait no more."""
        waiting = self._queues.pop(name, [])
        woken: list[HeldPull] = []
        kept: list[HeldPull] = []
        for pull in waiting:
            is_woken = (maximum > pull.offset and pull.wants(tags_codes)) or pull.is_due(now_ms)
            (woken if is_woken else kept).append(pull)
        if kept:
            self._queues[name] = kept
        return woken

    def look(self, now_ms: int, maximum_of: Callable[[str, int], int]) -> list[HeldPull]:
        """The pulls to be run again now, if it is time to look at all."""
        if self._next_look_ms is None:
            self._next_look_ms = now_ms + self._interval_ms
        if now_ms < self._next_look_ms:
            return []
        self._next_look_ms = now_ms + self._interval_ms
        return [pull for name in list(self._queues) for pull in self.arrived(name, maximum_of(*name), None, now_ms)]

    def drop(self, connections: Iterable[ClientConnection]) -> None:
        """Forget the pulls of connections that are gone. Java keeps them until their time is up."""
        gone = set(connections)
        for name, pulls in list(self._queues.items()):
            kept = [pull for pull in pulls if pull.connection not in gone]
            if kept:
                self._queues[name] = kept
            else:
                del self._queues[name]
