"""A name server and a broker on free loopback ports, for the examples that need a cluster and are given none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

COMMAND = [sys.executable, "-c", "from spark_mq.cli import main; main()"]  # the command spark-mq


@contextmanager
def cluster(address: str | None = None) -> Iterator[str]:
    """The address of a name server: the given one, or that of a cluster which lives as long as the context."""
    if address is not None:
        yield address
        return
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        name_server, broker = _free_port(), _free_port()
        files = {"kvConfigPath": f"{home}/kv.json", "configStorePath": f"{home}/namesrv.properties"}
        stack.enter_context(_server(home, "namesrv", {"listenPort": name_server, **files}))
        place = {"storePathRootDir": f"{home}/store", "namesrvAddr": f"127.0.0.1:{name_server}"}
        stack.enter_context(_server(home, "broker", {"brokerName": "broker-a", "listenPort": broker, **place}))
        yield f"127.0.0.1:{name_server}"


@contextmanager
def _server(home: str, name: str, settings: dict[str, object]) -> Iterator[None]:
    conf = Path(home, f"{name}.conf")
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
    process = subprocess.Popen([*COMMAND, name, "-c", conf], stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert process.stdout is not None
        while "boot success" not in (line := process.stdout.readline()):
            if not line:
                raise RuntimeError(f"{name} did not start")
        yield
    finally:
        process.terminate()
        process.wait(60)


def _free_port() -> int:
    """A port P; a broker also listens at P - 2 and P + 1."""
    while True:
        with socket.socket() as first, socket.socket() as second, socket.socket() as third:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port - 2))
                third.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
