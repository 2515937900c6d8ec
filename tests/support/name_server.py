"""Our name server, running in a thread of the test's process on a free port of loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_mq.namesrv.server import RunningNameServer
from spark_mq.namesrv.settings import configuration_of


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
    configuration = configuration_of(
        {
            "listenPort": "0",
            "kvConfigPath": str(home / "kvConfig.json"),
            "configStorePath": str(home / "namesrv.properties"),
            **texts,
        }
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="our-name-server", daemon=True)
    thread.start()
    try:
        running = asyncio.run_coroutine_threadsafe(RunningNameServer.start(configuration), loop).result(30)
        try:
            host, port = running.address
            yield OurNameServer(f"{host}:{port}", running, loop)
        finally:
            asyncio.run_coroutine_threadsafe(running.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
