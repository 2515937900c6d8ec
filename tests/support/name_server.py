"""Our name server, running in a thread of the test's process on a free port of loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_mq.namesrv.server import RunningNameServer
from spark_mq.namesrv.settings import Configuration
from tests.support.own_loop import on_own_loop


@dataclass(frozen=True)
class OurNameServer:
    """`address` is host:port. What is called on `running` is called on its loop."""

    address: str
    running: RunningNameServer
    loop: asyncio.AbstractEventLoop

    @property
    def connection_count(self) -> int:
        """How many are connected."""
        return self.running.connection_count


@contextmanager
def our_name_server(home: Path, **settings: str) -> Iterator[OurNameServer]:
    """`settings` by Java's names; a dot in a name is written as two underscores. It is closed with the context."""
    texts = {name.replace("__", "."): text for name, text in settings.items()}
    configuration = Configuration.of(
        {
            "listenPort": "0",
            "kvConfigPath": str(home / "kvConfig.json"),
            "configStorePath": str(home / "namesrv.properties"),
            **texts,
        }
    )
    with on_own_loop(lambda: RunningNameServer.start(configuration), "our-name-server") as (running, loop):
        host, port = running.address
        yield OurNameServer(f"{host}:{port}", running, loop)
