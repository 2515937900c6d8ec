"""Ids that a producer gives its messages (UNIQ_KEY), in the Java client's form.

    |8 or 32 digits      4 |      8 |                       8 |       4 |   hexadecimal, upper-case
    | IPv4 or IPv6 | pid   | random | ms since the month began | counter |

Java: MessageClientIDSetter; its third part is a class loader's hash code. The month begins in local time.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import secrets
import time
from collections.abc import Callable

from storage.epoch_times import current_time_ms


class UniqueIds:
    """Ids of one process; for all its threads. A forked child must make its own."""

    def __init__(
        self,
        ip: str,
        pid: int | None = None,
        salt: bytes | None = None,
        clock: Callable[[], int] = current_time_ms,
    ) -> None:
        """`ip` is a textual address; of a host's name that is none, four random bytes stand in its place."""
        salt = secrets.token_bytes(4) if salt is None else salt
        pid = os.getpid() if pid is None else pid
        self._prefix = (_address(ip) + (pid & 0xFFFF).to_bytes(2, "big") + salt).hex().upper()
        self._clock = clock
        self._count = itertools.count()
        self._month = month_bounds(clock())

    def make(self) -> str:
        """The next id."""
        now_ms = self._clock()
        start_ms, end_ms = self._month
        if now_ms >= end_ms:
            start_ms, end_ms = self._month = month_bounds(now_ms)
        since_ms = max(now_ms - start_ms, 0)  # a clock set back across the month's beginning
        return f"{self._prefix}{since_ms & 0xFFFFFFFF:08X}{next(self._count) & 0xFFFF:04X}"


def month_bounds(now_ms: int) -> tuple[int, int]:
    """When the month of that time began and the next one begins, local time, in ms."""
    year, month = time.localtime(now_ms // 1000)[:2]
    begins = [time.mktime((year, month + step, 1, 0, 0, 0, 0, 0, -1)) for step in (0, 1)]
    return int(begins[0]) * 1000, int(begins[1]) * 1000


def _address(ip: str) -> bytes:
    try:
        return ipaddress.ip_address(ip.partition("%")[0]).packed
    except ValueError:
        return secrets.token_bytes(4)
