"""Ports for servers that a test starts: on loopback, below the range that Linux gives to connections."""

from __future__ import annotations

import errno
import os
import random
import socket

_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
_FIRST = 20_002 + (int(_WORKER) if _WORKER.isdecimal() else 0) % 8 * 1_490
"""The processes of pytest-xdist have ranges of their own."""
_left: list[int] = []


def free_ports() -> int:
    """A port P for which P - 2, P and P + 1 are free: a broker takes the three.

    It is another one each time, until all are used, and none of its three is one of those given before. The order is not that of the
    generator that a test may seed. Another process may take the port before the caller does.
    """
    for _ in range(500):
        if not _left:
            _left.extend(range(_FIRST, _FIRST + 1_480, 4))
            random.SystemRandom().shuffle(_left)
        port = _left.pop()
        if all(_is_free(port + step) for step in (-2, 0, 1)):
            return port
    raise RuntimeError(f"no three free ports between {_FIRST} and {_FIRST + 1_480}")


def _is_free(port: int) -> bool:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:  # a machine may have no IPv6
                    return False
    return True
