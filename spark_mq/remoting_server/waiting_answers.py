"""Answers that wait for a disk or a replica without holding a thread, and requests that are not supported. For the loop's thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from spark_mq.client.errors import request_text
from spark_mq.remoting import RemotingCommand
from spark_mq.remoting_server.peer import Outbox
from storage.pending import Pending

_LOOK_SECONDS = 0.01
_NAMED_MOST = 256
_CODES_MOST = 64
_OTHERS = -1
"""Stands for all codes behind the first ones."""
_MINUTE_SECONDS = 60
_GROUPS = ("consumerGroup", "producerGroup", "group", "groupName")
_GROUP_CHARACTERS = 127
_LOG = logging.getLogger(__name__)


class _Held:
    """An answer that waits; it goes on once."""

    def __init__(self, pending: Pending[Any], go_on: Callable[[], None]) -> None:
        self.pending: Pending[Any] | None = pending
        self.go_on: Callable[[], None] | None = go_on
        self.deadline: float | None = None

    def end(self) -> Callable[[], None]:
        """It goes on, by this call, and leads to nothing more.

        What it waited for keeps the call back, and so this: with the request behind it that would be a circle, and the request's body
        would stay until the garbage collector looks.
        """
        assert self.go_on is not None, "it goes on once"
        go_on, self.go_on, self.pending = self.go_on, None, None
        return go_on


class WaitingAnswers:
    """Pending answers that wait for a sync of the disk, or for replicas. Java: the futures of SendMessageProcessor.

    An answer that waits holds no thread, so a request that waits for long keeps no other from its answer. `hold` is for any thread; an
    answer goes on in the loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, outbox: Outbox) -> None:
        self._loop = loop
        self._outbox = outbox
        self._lock = threading.Lock()
        self._held: set[_Held] = set()
        self._is_looking = False

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._held)

    def hold(self, pending: Pending[Any], go_on: Callable[[], None]) -> bool:
        """Call `go_on` when it is settled, or its time is over; False = there is nothing to wait for, and the caller goes on."""
        held = _Held(pending, go_on)
        seconds = self._seconds_left(held)
        if seconds is None:
            held.end()
            return False
        with self._lock:
            # It may have gone on meanwhile, or wait for something else.
            if held.go_on is not None and held.deadline is None:
                held.deadline = self._loop.time() + seconds
                self._held.add(held)
        self._outbox.put(self._look_soon)
        return True

    def _seconds_left(self, held: _Held) -> float | None:
        assert held.pending is not None, "it has not gone on"
        try:
            return held.pending.when_settled(lambda: self._outbox.put(lambda: self._go_on(held)))
        except Exception:  # `go_on` takes the answer, and gets the error, too
            _LOG.debug("a request is ended now", exc_info=True)
            return None

    # On the loop.

    def _go_on(self, held: _Held) -> None:
        """Its wait or its time is over: it goes on, unless it now waits for something else."""
        if held.go_on is None:
            return
        seconds = self._seconds_left(held)
        with self._lock:
            if seconds is not None:
                held.deadline = self._loop.time() + seconds
                self._held.add(held)
                return
            self._held.discard(held)
        held.end()()

    def _look_soon(self) -> None:
        if self._held and not self._is_looking:
            self._is_looking = True
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._is_looking = False
        now = self._loop.time()
        with self._lock:
            late = [held for held in self._held if held.deadline is not None and held.deadline <= now]
        for held in late:
            self._outbox.put(lambda held=held: self._go_on(held))  # type: ignore[misc]
        self._look_soon()


class _Whose(NamedTuple):
    """The sender of a request that is not supported."""

    code: int
    address: str
    group: str | None

    def __str__(self) -> str:
        group = "" if self.group is None else f", group {self.group!r}"
        return f"{request_text(self.code)} of client {self.address}{group}"


class Unsupported:
    """Requests that a server does not support: how many there were, and whose they are. For the loop's thread.

    The first of a code, a client and a group is named in the log at once, those after it once a minute, with their number. So a client
    that goes without something for good is seen, and one that asks each second fills no disk.

    Departure: Java says nothing of them. A consumer that gets nothing because of one is not seen at its broker.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._counts: dict[int, int] = {}
        self._again: dict[_Whose, int] = {}
        """How many have come of those that the log has named since the last minute."""
        self._unnamed = 0

    @property
    def counts(self) -> Mapping[int, int]:
        """How many there were since the start, by code; −1 counts those of all other codes. From any thread."""
        return self._counts.copy()

    def note(self, request: RemotingCommand, address: str, reason: str | None) -> None:
        """One was answered so, or would have been, were it not one-way."""
        code = request.code if request.code in self._counts or len(self._counts) < _CODES_MOST else _OTHERS
        self._counts[code] = self._counts.get(code, 0) + 1
        whose = _Whose(request.code, address, _group(request))
        if whose in self._again:
            self._again[whose] += 1
        elif len(self._again) < _NAMED_MOST:
            self._again[whose] = 0
            by = f"{request.language.name} client of version {request.version}"
            _LOG.warning("%s, a %s, is not supported: %.200s", whose, by, (reason or "").strip())
        else:
            self._unnamed += 1
        if self._timer is None:
            self._timer = self._loop.call_later(_MINUTE_SECONDS, self.tell)

    def tell(self) -> None:
        """A minute is over: how many more have come."""
        again = {whose: count for whose, count in self._again.items() if count}
        for whose, count in again.items():
            _LOG.warning("%s is not supported: %d more within a minute", whose, count)
        if self._unnamed:
            _LOG.warning("requests of others are not supported: %d within a minute", self._unnamed)
        self._unnamed = 0
        self._again = dict.fromkeys(again, 0)
        self._timer = self._loop.call_later(_MINUTE_SECONDS, self.tell) if again else None

    def close(self) -> None:
        """Log no more."""
        if self._timer is not None:
            self._timer.cancel()


def _group(request: RemotingCommand) -> str | None:
    fields = request.ext_fields or {}
    found = next((fields[name] for name in _GROUPS if fields.get(name)), None)
    return None if found is None else found[:_GROUP_CHARACTERS]
