"""Requests that a server does not support: how many there were, and whose they are. For the loop's thread.

The first of a code, a client and a group is named in the log at once, those after it once a minute, with their number. So a client
that goes without something for good is seen, and one that asks each second fills no disk.

Departure: Java says nothing of them. A consumer that gets nothing because of one is not seen at its broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple

from spark_mq.client.errors import request_text
from spark_mq.remoting import RemotingCommand

_NAMED_MOST = 256
_CODES_MOST = 64
_OTHERS = -1
"""Stands for all codes behind the first ones."""
_MINUTE_SECONDS = 60
_GROUPS = ("consumerGroup", "producerGroup", "group", "groupName")
_GROUP_CHARACTERS = 127
_LOG = logging.getLogger(__name__)


class _Whose(NamedTuple):
    code: int
    address: str
    group: str | None

    def __str__(self) -> str:
        group = "" if self.group is None else f", group {self.group!r}"
        return f"{request_text(self.code)} of client {self.address}{group}"


class Unsupported:
    """Of all connections of a server."""

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
        """Nothing is told any more."""
        if self._timer is not None:
            self._timer.cancel()


def _group(request: RemotingCommand) -> str | None:
    fields = request.ext_fields or {}
    found = next((fields[name] for name in _GROUPS if fields.get(name)), None)
    return None if found is None else found[:_GROUP_CHARACTERS]
