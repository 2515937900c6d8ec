"""Ports of servers that a test starts: on loopback, below the range that Linux gives to connections."""

from __future__ import annotations

import os
import random
import socket


def free_ports() -> int:
    """A port P below the ephemeral range for which P - 2, P and P + 1 are free: a broker takes the three.

    Tests that run beside each other draw from ranges of their own, and not from the generator that each test seeds anew.
    """
    first = 20_002 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8 * 1_490
    for port in random.SystemRandom().sample(range(first, first + 1_480), 200):
        if all(_is_free(port + step) for step in (-2, 0, 1)):
            return port
    raise RuntimeError(f"no three free ports between {first} and {first + 1_480}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
