"""What the commands that run a server share: settings told, a run until a signal ends it, a log on stderr."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, NamedTuple, Protocol, TypeVar

import typer

from spark_mq.cli.app import CommandError
from spark_mq.remoting_server.server import FILES_LEAST, ListenError
from storage.errors import StorageError
from storage.files.local_file_system import LocalFileSystem
from storage.files.os_errors import need_files, raise_file_limit

_HOME = "ROCKETMQ_HOME"
_LOOK_SECONDS = 1.0
_NEW_OBJECTS = 50_000
_COLLECTIONS = (20, 50)
"""Of young objects before older ones are looked at, and of these before all."""


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


PrintsAll = Annotated[
    bool, typer.Option("-p", "--printConfigItem", help="Print the process's settings and those of the file, and end.")
]
PrintsImportant = Annotated[
    bool, typer.Option("-m", "--printImportantConfig", help="Print the important settings and end.")
]


PrintsWatermarks = Annotated[
    bool, typer.Option("--watermarks", help="Write each second to stderr how many requests wait, and for how long.")
]


class Shown(NamedTuple):
    """Which settings are to be printed in place of a run."""

    all: bool
    important: bool

    def tell(self, texts: Mapping[str, str], important: Container[str], warnings: Iterable[str]) -> bool:
        """Prints warnings, and settings as `name=value` lines if they are asked for; whether they are, and that is all."""
        for warning in warnings:
            typer.echo(f"warning: {warning}", err=True)
        for name, value in texts.items():
            if self.all or (self.important and name in important):
                typer.echo(f"{name}={value}")
        return self.all or self.important


C = TypeVar("C")


def configuration_from(
    config_file: str | None,
    program: str,
    of_texts: Callable[[dict[str, str]], C],
    of_file: Callable[[bytes, str, dict[str, str]], C],
) -> C:
    """What a properties file says, or the defaults; ROCKETMQ_HOME counts where no file says another home. Raises CommandError."""
    home = {"rocketmqHome": os.environ[_HOME]} if os.environ.get(_HOME) else {}
    if config_file is None:
        return of_texts(home)
    content = file_content(config_file, f"name a properties file, as {program} -c takes it")
    return of_file(content, os.path.abspath(config_file), home)


def serve(
    start: Callable[[], Awaitable[S]],
    words_of: Callable[[S], str],
    *,
    verbose: bool,
    watermarks: bool = False,
    failure_of: Callable[[S], str | None] = lambda running: None,
) -> None:
    """Starts a server, prints that it runs, and ends it at SIGTERM or Ctrl-C.

    Raises CommandError where it cannot listen, and as soon as `failure_of` says why it does nothing more; ConfigurationError where
    the process may open too few files.
    """
    raise_file_limit()
    need_files(FILES_LEAST, "a server")  # before anything is opened
    with _logging_to_stderr(logging.INFO if verbose else logging.WARNING, watermarks=watermarks):
        try:
            failure = asyncio.run(_run(start, words_of, failure_of))
        except ListenError as error:
            hint = "another process may listen there: bindAddress and listenPort say where"
            raise CommandError(str(error), hint) from None
    if failure is not None:
        raise CommandError(failure, "when its disk is well again, start it again: it goes on where it was")


async def _run(
    start: Callable[[], Awaitable[S]], words_of: Callable[[S], str], failure_of: Callable[[S], str | None]
) -> str | None:
    """Why it has ended by itself; None = it was ended."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    running = await start()
    _collect_seldom()
    print(words_of(running), flush=True)
    failure: str | None = None
    while failure is None and not stopping.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _LOOK_SECONDS)
        failure = failure_of(running)
    try:
        await running.close()
    except (StorageError, OSError):
        if failure is None:
            raise
    return failure


def _collect_seldom() -> None:
    """The garbage collector leaves alone what the start has made, and looks at what is new less often.

    Requests make objects by the thousand, and hardly any in circles. By the interpreter's thresholds a third of a busy broker's
    time goes into looking at them, and again and again at the hundred thousand objects of the modules.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *_COLLECTIONS)


@contextmanager
def _logging_to_stderr(level: int, *, watermarks: bool) -> Iterator[None]:
    """What this package logs, from a level on; watermarks only where they are asked for."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = {logging.getLogger("spark_mq"): level, logging.getLogger("storage"): level}
    before = {logger: logger.level for logger in loggers}
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)
    logging.getLogger("spark_mq.watermark").setLevel(logging.INFO if watermarks else logging.WARNING)
    try:
        yield
    finally:
        for logger, old_level in before.items():
            logger.removeHandler(handler)
            logger.setLevel(old_level)
