"""Pulls that found nothing and wait: each runs again when a matching message arrives or when its time is up.

A pull is checked when new entries of its queue can be read. All pulls are also checked every few seconds; tags are not known then, and
every message counts as a match. A put only notes its queues (`Arrivals`); the server's thread checks the pulls.
Departures: the number of waiting pulls is limited, in all and for each connection, and none waits longer than MOST_WAIT_MS. Java holds
every pull for as long as the client says, and checks in the dispatching thread.
Java: PullRequestHoldService, ManyPullRequest, NotifyMessageArrivingListener.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from spark_mq.broker.requests import ClientConnection
from spark_mq.remoting import RemotingCommand
from storage.epoch_times import is_time
from storage.names import QueueName
from storage.settings.load import StoreConfig
from storage.settings.nouns import PullConfig

LONG_POLLING_LOOK_MS = 5_000
MOST_WAIT_MS = 120_000
"""Java's clients ask for 15 or 20 seconds; a connection that is silent for so long is closed."""
_NOTES_MOST = 64


@dataclass(frozen=True, slots=True)
class HeldPull:
    """A pull, from when on and how long it waits, and which tags codes it wants (None = all)."""

    connection: ClientConnection
    command: RemotingCommand
    offset: int
    held_ms: int
    timeout_ms: int
    tags_codes: frozenset[int] | None = None
    size_bytes: int = 0
    """Approximate memory of its request, in bytes."""

    def is_due(self, now_ms: int) -> bool:
        """Whether its time is up."""
        return now_ms >= self.held_ms + self.timeout_ms

    def wants(self, tags_codes: frozenset[int] | None) -> bool:
        """Whether one of the messages may be for it; without codes any may."""
        return self.tags_codes is None or tags_codes is None or not self.tags_codes.isdisjoint(tags_codes)


class Arrivals:
    """Queues that got messages, from puts to the look at the pulls that wait. Thread-safe; neither waits for the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: dict[QueueName, list[np.ndarray] | None] = {}

    def note(self, name: QueueName, tags_codes: np.ndarray) -> None:
        """Messages with these codes can be read there now."""
        with self._lock:
            noted = self._noted.setdefault(name, [])
            if noted is not None and len(noted) < _NOTES_MOST:
                noted.append(tags_codes)
            else:
                self._noted[name] = None

    def take(self) -> Mapping[QueueName, np.ndarray | None]:
        """Take the noted arrivals since the last call; without codes if there were too many."""
        with self._lock:
            noted, self._noted = self._noted, {}
        return {name: None if codes is None else np.concatenate(codes) for name, codes in noted.items()}


@dataclass(frozen=True, slots=True)
class HeldLimits:
    """Limits of waiting pulls, by number and bytes of requests: of all connections, and of one."""

    count: int = 200_000
    size_bytes: int = 256 << 20
    count_of_one: int = 20_000
    size_bytes_of_one: int = 32 << 20


@dataclass(slots=True)
class _Load:
    """The waiting pulls of one connection. `names` may include queues without a waiting pull."""

    count: int = 0
    size_bytes: int = 0
    names: set[QueueName] = field(default_factory=set)


class HeldPulls:
    """All pulls that wait, by queue. For one thread at a time. Times are ms of a monotonic clock."""

    def __init__(self, look_interval_ms: int = LONG_POLLING_LOOK_MS, limits: HeldLimits | None = None) -> None:
        """`look_interval_ms`: how often all are looked at."""
        self._queues: dict[QueueName, list[HeldPull]] = {}
        self.look_interval_ms = look_interval_ms
        self._looked_ms: int | None = None
        self._limits = limits or HeldLimits()
        self._loads: dict[ClientConnection, _Load] = {}
        self._count = self._size_bytes = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, name: QueueName, pull: HeldPull) -> bool:
        """Let it wait; False where as many wait as may."""
        limits, load = self._limits, self._loads.get(pull.connection) or _Load()
        if (
            self._count >= limits.count
            or self._size_bytes + pull.size_bytes > limits.size_bytes
            or load.count >= limits.count_of_one
            or load.size_bytes + pull.size_bytes > limits.size_bytes_of_one
        ):
            return False
        self._queues.setdefault(name, []).append(pull)
        self._loads[pull.connection] = load
        load.names.add(name)
        self._count_in(pull, load, 1)
        return True

    def _count_in(self, pull: HeldPull, load: _Load, sign: int) -> None:
        self._count += sign
        self._size_bytes += sign * pull.size_bytes
        load.count += sign
        load.size_bytes += sign * pull.size_bytes
        if not load.count:
            del self._loads[pull.connection]

    def has(self, name: QueueName) -> bool:
        """Whether any pull waits for this queue. Any thread may call it at any time; cheap, since it runs for each dispatched queue."""
        return name in self._queues

    def arrived(self, name: QueueName, maximum: int, tags_codes: np.ndarray | None, now_ms: int) -> list[HeldPull]:
        """The queue can be read up to `maximum`, with these messages as the last: the pulls to be run again, which wait no more."""
        waiting = self._queues.get(name)
        if waiting is None:
            return []
        codes = None
        if tags_codes is not None and any(pull.tags_codes is not None for pull in waiting):
            # Of a batch they are many, and few different.
            codes = frozenset(np.unique(tags_codes.astype(np.int32)).tolist())
        woken: list[HeldPull] = []
        kept: list[HeldPull] = []
        for pull in waiting:
            is_woken = (maximum > pull.offset and pull.wants(codes)) or pull.is_due(now_ms)
            (woken if is_woken else kept).append(pull)
        self._keep(name, kept)
        for pull in woken:
            self._count_in(pull, self._loads[pull.connection], -1)
        return woken

    def _keep(self, name: QueueName, kept: list[HeldPull]) -> None:
        """Those that wait on. In one step: others ask `has` meanwhile."""
        if kept:
            self._queues[name] = kept
        else:
            del self._queues[name]

    def look(self, now_ms: int, maximum_of: Callable[[str, int], int]) -> list[HeldPull]:
        """The pulls to be run again now, if it is time to look at all."""
        if self._looked_ms is None:
            self._looked_ms = now_ms
        if not is_time(now_ms, self._looked_ms, self.look_interval_ms):
            return []
        self._looked_ms = now_ms
        return [pull for name in list(self._queues) for pull in self.arrived(name, maximum_of(*name), None, now_ms)]

    def drop(self, connections: Iterable[ClientConnection]) -> None:
        """Forget the pulls of connections that are gone. Java keeps them until their time is up."""
        for connection in connections:
            if (load := self._loads.pop(connection, None)) is None:
                continue
            self._count -= load.count
            self._size_bytes -= load.size_bytes
            for name in load.names & self._queues.keys():
                self._keep(name, [pull for pull in self._queues[name] if pull.connection != connection])


def _look_ms(pull: PullConfig) -> int:
    return LONG_POLLING_LOOK_MS if pull.long_polling_enable else pull.short_polling_time_mills


class Pulls:
    """The pulls of one broker that wait, and the queues for which messages have arrived."""

    def __init__(self, config: PullConfig) -> None:
        self.held = HeldPulls(_look_ms(config))
        self.held_lock = threading.Lock()
        """Guards `held` alone, and nothing else is taken within it."""
        self.arrivals = Arrivals()
        """Queues whose pulls must be looked at."""

    def configure(self, config: StoreConfig) -> None:
        """An operator has changed settings: these hold from now on."""
        with self.held_lock:
            self.held.look_interval_ms = _look_ms(config.pull)
