"""Commands that run a server in place of Apache's: broker, namesrv, controller. Their settings, signals and logs are alike."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from spark_mq.cli.app import NEW_OBJECTS
from spark_mq.remoting_server.server import FILES_LEAST, ListenError
from spark_mq.remoting_server.settings import java_names, read_settings, texts_of_file
from spark_mq.terminal import CommandError, also_unread
from storage.errors import ConfigurationError, StorageError
from storage.files.local_file_system import LocalFileSystem
from storage.files.os_errors import need_files, raise_file_limit
from storage.names import address_text

if TYPE_CHECKING:
    from spark_mq.broker_server.controlled import ControlledBroker
    from spark_mq.broker_server.grouped import GroupedBroker
    from spark_mq.broker_server.settings import Configuration as BrokerConfiguration
    from spark_mq.broker_server.supervised import SupervisedBroker
    from spark_mq.controller.server import RunningController
    from spark_mq.controller.settings import Configuration as ControllerConfiguration
    from spark_mq.namesrv.server import RunningNameServer
    from spark_mq.namesrv.settings import Configuration as NameServerConfiguration
    from spark_mq.remoting_server.server import Closing

_HOME = "ROCKETMQ_HOME"
_LOOK_SECONDS = 1.0
_LOG = logging.getLogger(__name__)
_COLLECTIONS = (20, 50)
"""Of young objects before older ones are looked at, and of these before all."""


Verbose = Annotated[bool, typer.Option("--verbose", help="Write events to stderr.")]


S = TypeVar("S", bound="Closing")


def file_content(path: str, hint: str) -> bytes:
    """The text of a configuration file. Raises CommandError, with the hint, if there is none."""
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
    """The settings to print in place of a run."""

    all: bool
    important: bool

    def print(self, texts: Mapping[str, str], important: Container[str], warnings: Iterable[str]) -> bool:
        """Prints warnings, and settings as `name=value` lines if the user wants them. Returns whether that is all."""
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
    """The settings of a properties file, or the defaults; ROCKETMQ_HOME applies if no file sets a home. Raises CommandError."""
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
    failure_of: Callable[[S], CommandError | None] = lambda running: None,
) -> None:
    """Starts a server, prints that it runs, and ends it at SIGTERM or Ctrl-C.

    Raises CommandError where it cannot listen, and what `failure_of` returns as soon as it does nothing more; ConfigurationError
    where the process may open too few files.
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
        raise failure


async def _run(
    start: Callable[[], Awaitable[S]], words_of: Callable[[S], str], failure_of: Callable[[S], CommandError | None]
) -> CommandError | None:
    """Why it ended by itself; None if a signal ended it."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    running = await start()
    _collect_seldom()
    with also_unread():
        print(words_of(running))
    failure: CommandError | None = None
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
    gc.set_threshold(NEW_OBJECTS, *_COLLECTIONS)


@contextmanager
def _logging_to_stderr(level: int, *, watermarks: bool) -> Iterator[None]:
    """Show this package's log from a level on; watermarks only with --watermarks."""
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


def broker(
    config_file: Annotated[
        str | None, typer.Option("-c", "--configFile", metavar="FILE", help="A broker.conf, as mqbroker takes it.")
    ] = None,
    name_servers: Annotated[
        str | None, typer.Option("-n", "--namesrvAddr", metavar="ADDRESSES", help="Name servers: host:port;host:port.")
    ] = None,
    prints_all: PrintsAll = False,
    prints_important: PrintsImportant = False,
    verbose: Verbose = False,
    prints_watermarks: PrintsWatermarks = False,
) -> None:
    """Run a broker.

    Its clients are producers and consumers of RocketMQ's remoting protocol. Its store is at storePathRootDir (~/store), and is made
    where there is none. It listens on 127.0.0.1:10911 unless the file says otherwise (bindAddress, listenPort; brokerIP1 is the address
    that clients get). SIGTERM and Ctrl-C end it.
    """
    from spark_mq.broker_server.settings import IMPORTANT  # each kind of server loads its own modules

    configuration = _broker_configuration(config_file, {} if name_servers is None else {"namesrvAddr": name_servers})
    if Shown(prints_all, prints_important).print(configuration.printed(), IMPORTANT, configuration.store.warnings):
        return
    addresses = ";".join(configuration.process.addresses)
    if configuration.is_member:
        from spark_mq.broker_server.grouped import GroupedBroker

        serve(
            partial(GroupedBroker.start, configuration),
            lambda running: _grouped_words(running, configuration.group.group, addresses),
            verbose=verbose,
            watermarks=prints_watermarks,
        )
        return
    if configuration.controllers is not None:
        from spark_mq.broker_server.controlled import ControlledBroker

        serve(
            partial(ControlledBroker.start, configuration),
            lambda running: _controlled_words(running, addresses, configuration.process.controllers),
            verbose=verbose,
            watermarks=prints_watermarks,
        )
        return
    from spark_mq.broker_server.supervised import SupervisedBroker

    start = partial(SupervisedBroker.start, configuration)
    serve(start, lambda running: _broker_words(running, addresses), verbose=verbose, watermarks=prints_watermarks)


def _broker_configuration(config_file: str | None, given: dict[str, str]) -> BrokerConfiguration:
    from spark_mq.broker_server.settings import read_configuration

    if config_file is None:
        return read_configuration(b"", None, given)
    content = file_content(config_file, "name a broker.conf, as mqbroker -c takes it")
    return read_configuration(content, os.path.abspath(config_file), given)


def _controlled_words(running: ControlledBroker, name_servers: str, controllers: str) -> str:
    known = f" and name server is {name_servers}" if name_servers else ""
    return (
        f"The broker[{running.name}, {running.address}] boot success{known}. "
        f"It takes requests as soon as a controller of {controllers} says whether it is master"
    )


def _grouped_words(running: GroupedBroker, group: str, name_servers: str) -> str:
    known = f" and name server is {name_servers}" if name_servers else ""
    return (
        f"The broker[{running.name}, {running.address}] boot success{known}. It is {running.self_id} of DLedger group {group}, "
        "and takes messages while it leads"
    )


def _broker_words(running: SupervisedBroker, name_servers: str) -> str:
    known = f" and name server is {name_servers}" if name_servers else ""
    missing = () if running.running is None else running.running.unknown_to
    yet = f"; not yet known to {';'.join(missing)}: it is tried again" if missing else ""
    return f"The broker[{running.name}, {running.address}] boot success. serializeType=JSON{known}{yet}"


def namesrv(
    config_file: Annotated[
        str | None, typer.Option("-c", "--configFile", metavar="FILE", help="Settings, as mqnamesrv takes them.")
    ] = None,
    prints_all: PrintsAll = False,
    prints_important: PrintsImportant = False,
    name_servers: Annotated[
        str | None, typer.Option("-n", "--namesrvAddr", metavar="ADDRESSES", help="Has no effect, as at mqnamesrv.")
    ] = None,
    verbose: Verbose = False,
    prints_watermarks: PrintsWatermarks = False,
) -> None:
    """Run a name server.

    Brokers register there, and clients look up there where topics are. It listens on 127.0.0.1:9876 unless the file says otherwise
    (bindAddress, listenPort), and keeps the operators' texts in ~/namesrv/kvConfig.json (kvConfigPath). With enableControllerInNamesrv
    a controller runs in the same process. SIGTERM and Ctrl-C end it.
    """
    from spark_mq.namesrv.settings import IMPORTANT

    name_server, controller = configuration_from(
        config_file,
        "mqnamesrv",
        _name_server_settings,
        lambda content, file, given: _name_server_settings(texts_of_file(content, file, given), file),
    )
    texts, warnings, important = name_server.texts(), name_server.warnings, frozenset(IMPORTANT)
    if controller is not None:
        from spark_mq.controller.settings import IMPORTANT as CONTROLLERS  # most name servers have none

        texts = dict(sorted((controller.texts() | texts).items()))
        warnings, important = (*warnings, *controller.warnings), important | {*CONTROLLERS}
    if Shown(prints_all, prints_important).print(texts, important, warnings):
        return
    serve(
        lambda: _NameServerProcess.start(name_server, controller),
        lambda running: running.words,
        verbose=verbose,
        watermarks=prints_watermarks,
    )


def _name_server_settings(
    texts: dict[str, str], file: str | None = None
) -> tuple[NameServerConfiguration, ControllerConfiguration | None]:
    """Of the name server, and of a controller in its process; the port in a file is the name server's. Java: NamesrvStartup."""
    from spark_mq.namesrv.settings import Configuration, NameServerSettings

    if not read_settings(NameServerSettings, texts, file).has_controller:
        return Configuration.of(texts, file), None
    from spark_mq.controller.settings import Configuration as OfController
    from spark_mq.controller.settings import split_settings

    rest, own = split_settings(texts, java_names(NameServerSettings))
    if not own.get("controllerDLegerPeers"):
        raise ConfigurationError(
            file, None, "controllerDLegerPeers", "it is needed where enableControllerInNamesrv is true"
        )
    return Configuration.of(rest, file), OfController.of(own, file)


@dataclass
class _NameServerProcess:
    """A name server, and maybe a controller beside it: one that fails ends alone."""

    name_server: RunningNameServer
    controller: RunningController | None
    _watching: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, name_server: NameServerConfiguration, controller: ControllerConfiguration | None
    ) -> _NameServerProcess:
        from spark_mq.namesrv.server import RunningNameServer

        made = cls(await RunningNameServer.start(name_server), None)
        if controller is not None:
            from spark_mq.controller.server import RunningController

            try:
                made.controller = await RunningController.start(controller)
            except BaseException:
                await made.name_server.close()
                raise
            made._watching = asyncio.create_task(made._watch(made.controller))
        return made

    @property
    def words(self) -> str:
        found = f"The Name Server boot success. serializeType=JSON, address {address_text(*self.name_server.address)}"
        return found if self.controller is None else f"{found}\n{_controller_words(self.controller)}"

    async def _watch(self, controller: RunningController) -> None:
        while (failure := controller.failure) is None:
            await asyncio.sleep(_LOOK_SECONDS)
        _LOG.error("the controller ends, and the name server goes on: %s; %s", failure.text, failure.cure)
        self.controller = None
        try:
            await controller.close()
        except Exception as error:  # its disk
            _LOG.error("the controller's end: %s: %s", type(error).__name__, error)

    async def close(self) -> None:
        """Ends both."""
        try:
            if self._watching is not None and self.controller is not None:
                self._watching.cancel()
                await self.controller.close()
            elif self._watching is not None:
                await self._watching
        finally:
            await self.name_server.close()


def controller(
    config_file: Annotated[
        str | None, typer.Option("-c", "--configFile", metavar="FILE", help="Settings, as mqcontroller takes them.")
    ] = None,
    prints_all: PrintsAll = False,
    prints_important: PrintsImportant = False,
    verbose: Verbose = False,
) -> None:
    """Run a controller, which elects masters.

    Brokers in controller mode register there. It is a single node, or one of those in controllerDLegerPeers. It listens on
    127.0.0.1:9877 unless the file says otherwise (bindAddress, controllerDLegerPeers), and keeps its decisions in ~/DledgerController
    (controllerStorePath). SIGTERM and Ctrl-C end it.
    """
    from spark_mq.controller.server import RunningController
    from spark_mq.controller.settings import IMPORTANT, Configuration

    configuration = configuration_from(config_file, "mqcontroller", Configuration.of, Configuration.read)
    if Shown(prints_all, prints_important).print(configuration.texts(), IMPORTANT, configuration.warnings):
        return
    serve(
        lambda: RunningController.start(configuration),
        _controller_words,
        verbose=verbose,
        failure_of=_controller_failure,
    )


def _controller_failure(running: RunningController) -> CommandError | None:
    return None if running.failure is None else CommandError(running.failure.text, running.failure.cure)


def _controller_words(running: RunningController) -> str:
    return f"The Controller Server boot success. serializeType=JSON, address {address_text(*running.address)}"
