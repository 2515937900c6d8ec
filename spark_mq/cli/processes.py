"""What the commands that run a server share: they run until a signal ends them, and log to stderr."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar


class Closing(Protocol):
    """A server that runs."""

    async def close(self) -> None:
        """Ends it."""


S = TypeVar("S", bound=Closing)


async def run_until_stopped(start: Callable[[], Awaitable[S]], words_of: Callable[[S], str]) -> None:
    """Starts a server, prints that it runs, waits for SIGTERM or Ctrl-C, and ends it."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    running = await start()
    print(words_of(running), flush=True)
    await stopping.wait()
    await running.close()


def log_to_stderr(level: int) -> None:
    """What this package logs, from a level on; watermarks only as warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("spark_mq")
    logger.addHandler(handler)
    logger.setLevel(level)
    logging.getLogger("spark_mq.watermark").setLevel(logging.WARNING)
