"""Many connections that say nothing, from a process of its own: `python -m tests.broker_server.idle_client HOST PORT COUNT`.

It prints how many it has opened when they are open, and `gone N` when its input ends: how many of them the server has closed.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from storage.files.os_errors import raise_file_limit
from tests.support.places import PROJECT

_OWN_FILES = 64


@contextmanager
def idle_connections(address: str, count: int) -> Iterator[int]:
    """So many connections, or as many as the descriptors of a process allow; how many. They end with the context."""
    host, port = address.rsplit(":", 1)
    command = [sys.executable, "-m", "tests.broker_server.idle_client", host, port, str(count)]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
            process.stdin.close()
            said = process.stdout.readline()
            assert said == "gone 0\n", f"the server has closed idle connections: {said}"
        finally:
            process.kill()


def main() -> None:
    host, port, count = sys.argv[1:]
    most = min(int(count), raise_file_limit() - _OWN_FILES)
    opened = []
    with suppress(OSError):
        while len(opened) < most:
            opened.append(socket.create_connection((host, int(port)), 30))
    print(len(opened), flush=True)
    sys.stdin.read()
    poll = select.poll()
    for sock in opened:
        poll.register(sock, select.POLLIN)
    print(f"gone {len(poll.poll(0))}", flush=True)


if __name__ == "__main__":
    main()
