"""The health check of the image: does the server of this container answer on its port?

The first process is `spark-mq COMMAND`. SPARK_MQ_PORT names the port where a configuration file does; other commands count as healthy.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

PORTS = {"namesrv": 9876, "controller": 9877, "broker": 10911}


def port_of(words: list[str]) -> int | None:
    """The port of a server's command line; None if it is no server."""
    server = next((word for word in words if word in PORTS), None)
    return None if server is None else int(os.environ.get("SPARK_MQ_PORT", PORTS[server]))


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    port = port_of(Path("/proc/1/cmdline").read_text("utf-8").split("\0"))
    sys.exit(0 if port is None or answers(port) else 1)
