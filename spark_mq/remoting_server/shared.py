"""What all connections of a server share: settings, turns, and how much of memory they may take together. For the loop's thread."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_mq.remoting import FrameLimits
from spark_mq.remoting_server.peer import Outbox, Peer
from spark_mq.remoting_server.settings import ServerSettings
from spark_mq.remoting_server.unsettled import Unsettled
from spark_mq.remoting_server.unsupported import Unsupported
from spark_mq.remoting_server.unwritten import UnwrittenOfAll

if TYPE_CHECKING:
    from spark_mq.remoting_server.channel import Channel


_TURN_SECONDS = 0.005
_PIECE_BYTES = 256 << 10
_SMALL_PIECE_BYTES = 16 << 10
_PIECES_MOST = 64
_BURST_BYTES = 16 << 20
_LOG = logging.getLogger(__name__)


class Turns:
    """Connections of which more was read than has begun: each in its turn, for a few milliseconds of each turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: OrderedDict[Channel, None] = OrderedDict()
        self._is_due = False

    def add(self, channel: Channel) -> None:
        """Its turn comes behind those of the others."""
        self._waiting.setdefault(channel)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        end = self._loop.time() + _TURN_SECONDS
        try:
            while self._waiting and self._loop.time() < end:
                channel, _ = self._waiting.popitem(last=False)
                try:
                    channel.take_turn()
                except Exception as error:  # that one ends, and the others have their turns
                    _LOG.exception("the turn of %s failed", channel.peer)
                    channel.close(f"its turn failed: {type(error).__name__}: {error}")
        finally:
            self._is_due = bool(self._waiting)
            if self._is_due:
                self._loop.call_soon(self._run)


class Shared:
    """Made on the loop. `on_close` hears of each connection that has ended."""

    def __init__(self, settings: ServerSettings, on_close: Callable[[Peer], None]) -> None:
        self.settings = settings
        self.on_close = on_close
        self.frame_limits = FrameLimits(settings.frame_bytes_most, min(settings.frame_bytes_most, 0xFF_FFFF))
        self.outbox = Outbox(asyncio.get_running_loop())
        self.unsettled = Unsettled(asyncio.get_running_loop(), self.outbox)
        self.unsupported = Unsupported(asyncio.get_running_loop())
        self.turns = Turns(asyncio.get_running_loop())
        self.channels: set[Channel] = set()
        self.behind: set[Channel] = set()
        """Of which more was read than has begun, also some that have ended."""
        self.is_going_away = False
        self.is_ending = False
        """Nothing more is read."""
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        self.unwritten = UnwrittenOfAll()
        self._most_bytes = 0  # of requests and unfinished frames together
        self.ended_count = 0
        """How many requests have ended."""
        self.request_count = 0
        """How many wait or run."""
        self._request_bytes = 0
        self._unfinished_bytes = 0

    def piece(self, size: int = -1) -> memoryview:
        """What is read at once, of one connection after the other; little while many have something left of theirs.

        With a size, which TLS asks for, all that it has decrypted: it would lose the rest at the connection's end.
        """
        if size > _PIECE_BYTES:
            return memoryview(bytearray(size))
        is_little = len(self.behind) >= _PIECES_MOST and size < 0
        return self._piece[:_SMALL_PIECE_BYTES] if is_little else self._piece

    def is_over_a_burst(self) -> bool:
        """Whether much was held in memory since this was asked before, and little is now."""
        held = self._request_bytes + self._unfinished_bytes
        if self._most_bytes < _BURST_BYTES or held > _BURST_BYTES // 4:
            return False
        self._most_bytes = held
        return True

    def has_room(self, size: int, *, is_heard: bool) -> bool:
        """Whether a request of that size may wait or run beside the others. One that cannot be refused has room without others."""
        if not is_heard and not self._request_bytes:
            return True
        return self._request_bytes + size <= self.settings.requests_bytes_most

    def begin(self, size: int, count: int = 1) -> None:
        """Requests wait, or run; of that size together."""
        self._request_bytes += size
        self.request_count += count
        self._most_bytes = max(self._most_bytes, self._request_bytes + self._unfinished_bytes)

    def end(self, size: int, count: int = 1) -> None:
        """They are answered, or refused."""
        self._request_bytes -= size
        self.request_count -= count
        self.ended_count += count

    def count_unfinished(self, change: int) -> bool:
        """A frame that has begun has grown, or ended; what a connection leaves counts, too. False: they are too much together."""
        self._unfinished_bytes += change
        self._most_bytes = max(self._most_bytes, self._request_bytes + self._unfinished_bytes)
        return change <= 0 or self._unfinished_bytes <= self.settings.unfinished_bytes_most
