"""What the commands that run a server share: settings told, a run until a signal ends it, a log on stderr."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Container, Mapping
from typing import Protocol, TypeVar

import typer

from spark_mq.cli.app import CommandError
from spark_mq.remoting_server.server import ListenError, raise_file_limit
from storage.files.local_file_system import LocalFileSystem


class Closing(Protocol):
    """A server that runs."""

    async def close(self) -> None:
        """Ends it."""


S = TypeVar("S", bound=Closing)


def file_content(path: str, hint: str) -> bytes:
    """Of a configuration file. Raises CommandError, with the hint, where there is none."""
    content = LocalFileSystem().read_file(path)
    if content is None:
        raise CommandError(f"{path}: there is no such file", hint)
    return content


def tell_settings(texts: Mapping[str, str], only: Container[str] | None = None) -> None:
    """Prints settings as `name=value` lines."""
    for name, value in texts.items():
        if only is None or name in only:
            typer.echo(f"{name}={value}")


def serve(start: Callable[[], Awaitable[S]], words_of: Callable[[S], str], *, verbose: bool) -> None:
    """Starts a server, prints that it runs, and ends it at SIGTERM or Ctrl-C. Raises CommandError where it cannot listen."""
    _log_to_stderr(logging.INFO if verbose else logging.WARNING)
    raise_file_limit()
    try:
        asyncio.run(_run(start, words_of))
    except ListenError as error:
        hint = "another process may listen there: bindAddress and listenPort say where"
        raise CommandError(str(error), hint) from None


async def _run(start: Callable[[], Awaitable[S]], words_of: Callable[[S], str]) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    running = await start()
    print(words_of(running), flush=True)
    await stopping.wait()
    await running.close()


def _log_to_stderr(level: int) -> None:
    """What this package logs, from a level on; watermarks only as warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("spark_mq")
    logger.addHandler(handler)
    logger.setLevel(level)
    logging.getLogger("spark_mq.watermark").setLevel(logging.WARNING)
