"""Ports for servers of our own, on loopback only."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack


def free_port(*neighbours: int) -> int:
    """A port `p` that nobody listens on, as little as on `p + n` for each of `neighbours`.

    Free when asked: somebody else may still take it before the server does.
    """
    for _ in range(100):
        port = random.randint(20_000, 32_000)  # below the range from which Linux gives ports to connections
        with ExitStack() as sockets:
            try:
                for candidate in (port, *(port + neighbour for neighbour in neighbours)):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", candidate))
            except OSError:
                continue
        return port
    raise RuntimeError(f"no free port between 20000 and 32000 with free neighbours {neighbours}")
