"""What all connections of a server share: its settings, and how much of memory they may take together. For the loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_mq.remoting import FrameLimits
from spark_mq.remoting_server.peer import Outbox, Peer
from spark_mq.remoting_server.settings import ServerSettings
from spark_mq.remoting_server.unsettled import Unsettled
from spark_mq.remoting_server.unwritten import UnwrittenOfAll

if TYPE_CHECKING:
    from spark_mq.remoting_server.channel import Channel


class Shared:
    """Made on the loop. `on_close` hears of each connection that has ended."""

    def __init__(self, settings: ServerSettings, on_close: Callable[[Peer], None]) -> None:
        self.settings = settings
        self.on_close = on_close
        self.frame_limits = FrameLimits(settings.frame_bytes_most, min(settings.frame_bytes_most, 0xFF_FFFF))
        self.outbox = Outbox(asyncio.get_running_loop())
        self.unsettled = Unsettled(asyncio.get_running_loop(), self.outbox)
        self.channels: set[Channel] = set()
        self.is_going_away = False
        self.unwritten = UnwrittenOfAll()
        self._request_bytes = 0
        self._unfinished_bytes = 0

    def take_bytes(self, size: int) -> bool:
        """A request has come; False where the requests are too much together. It is to be given back in any case."""
        self._request_bytes += size
        return self._request_bytes <= self.settings.requests_bytes_most

    def give_bytes(self, size: int) -> None:
        """A request is answered, or refused."""
        self._request_bytes -= size

    def count_unfinished(self, change: int) -> bool:
        """A frame that has begun has grown, or ended; False where they are too much together."""
        self._unfinished_bytes += change
        return change <= 0 or self._unfinished_bytes <= self.settings.unfinished_bytes_most
