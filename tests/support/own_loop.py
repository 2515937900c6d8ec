"""A server of ours in a thread of the test's process, on an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Closing(Protocol):
    """A server that runs."""

    async def close(self) -> None:
        """Ends it."""


S = TypeVar("S", bound=Closing)


@contextmanager
def on_own_loop(start: Callable[[], Awaitable[S]], name: str) -> Iterator[tuple[S, asyncio.AbstractEventLoop]]:
    """The running server and its loop; it is closed with the context."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
    thread.start()

    async def started() -> S:
        return await start()

    try:
        running = asyncio.run_coroutine_threadsafe(started(), loop).result(30)
        try:
            yield running, loop
        finally:
            asyncio.run_coroutine_threadsafe(running.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
