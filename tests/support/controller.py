"""Our controller, running in a thread of the test's process on a free port of loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_mq.controller.server import RunningController
from spark_mq.controller.settings import Configuration
from spark_mq.controller.state import Group
from tests.support.own_loop import on_own_loop


@dataclass(frozen=True)
class OurController:
    """`address` is host:port. What is called on `running` is called on its loop."""

    address: str
    running: RunningController
    loop: asyncio.AbstractEventLoop

    def group(self, name: str) -> Group | None:
        """What is known of the brokers of a name: a value that does not change."""
        return self.running.controller.state.groups.get(name)


@contextmanager
def our_controller(home: Path, **settings: str) -> Iterator[OurController]:
    """`settings` by Java's names. It is closed with the context, and may be started again on the same `home`."""
    configuration = Configuration.of(
        {
            "listenPort": "0",
            "controllerStorePath": str(home / "controller"),
            "configStorePath": str(home / "controller.properties"),
            **settings,
        }
    )
    with on_own_loop(lambda: RunningController.start(configuration), "our-controller") as (running, loop):
        host, port = running.address
        yield OurController(f"{host}:{port}", running, loop)
