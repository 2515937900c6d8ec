"""The command `spark-mq console`. Its libraries are those of the extra `console`; they are loaded when the server starts."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_mq.cli.pages import INSTALL
from spark_mq.cli.processes import Verbose, file_content, serve
from spark_mq.cli.stores import ReadPath, one_store
from spark_mq.cli.visible_text import shown_place
from spark_mq.command_options import NO_CLUSTER, Conf, Connection
from spark_mq.source.cluster import find_stores
from spark_mq.terminal import CommandError, UsageError
from storage.names import address_text, split_address

if TYPE_CHECKING:
    from spark_mq.console.pages import Console
    from spark_mq.console.views import Views

TOKEN = "SPARK_MQ_CONSOLE_TOKEN"
"""The variable of the environment that holds the token."""
SHORTEST_TOKEN = 16
_DEFAULT_LISTEN = "127.0.0.1:9877"
_GRACE_S = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where the console listens, and what it lets a browser do."""

    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Where to listen. Other than on loopback it needs a token."),
    ] = _DEFAULT_LISTEN
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help=f"Its only line is the token; else the variable {TOKEN}, else a new one.",
        ),
    ] = None
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let a browser replay dead letters. Without it nothing is changed.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is shown beside the cluster or the stores."""

    archive: Annotated[
        str | None, typer.Option("--archive", metavar="TABLE", help="The Delta table of archived topics.")
    ] = None
    storage: Annotated[
        list[str] | None,
        typer.Option(
            "--storage",
            metavar="NAME=VALUE",
            help="A storage option of the archive's and the audit's place; repeat it.",
        ),
    ] = None
    audit: Annotated[
        str | None,
        typer.Option(
            "--audit", metavar="TABLE", help="The Delta table of replayed dead letters, kept by Spark; as the job's."
        ),
    ] = None
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--checkpoint", metavar="DIRECTORY", help="The checkpoint of a Spark query, shown beside groups; repeat it."
        ),
    ] = None


def console(
    serving: Serving,
    beside: Beside,
    path: ReadPath = None,
    conf: Conf = None,
    verbose: Verbose = False,
    connection: Connection = NO_CLUSTER,
) -> None:
    """Show a cluster or stores as pages.

    The pages are for a browser: brokers, topics, messages, groups and their lag, dead letters, transactions, timers, sinks. It changes
    nothing without --allow-changes. It listens on 127.0.0.1:9877, for this machine alone. On another address every page needs a token.
    SIGTERM and Ctrl-C end it.
    """
    is_cluster = connection.is_chosen(path)
    if is_cluster and conf is not None:
        raise UsageError("--conf is the configuration of stores: leave it away with --name-server")
    with _needing_extra():
        from spark_mq.console.security import is_loopback
    host, port = _place(serving.listen)
    token = _token(serving.token_file, os.environ)
    if not is_loopback(host) and token is None:
        token = secrets.token_urlsafe(24)
        typer.echo(f"the token of this run: {token}", err=True)
    wanted = _Wanted(path, conf, connection, serving, beside, token, checks_host=is_loopback(host))
    serve(lambda: _Running.start(wanted, host, port), lambda running: running.words, verbose=verbose)


@contextmanager
def _needing_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise CommandError(f"the console needs the package {error.name}", INSTALL) from error


def _place(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if colon and port == "0":  # any free one
        return split_address(f"{host}:1")[0], 0
    try:
        return split_address(listen)
    except ValueError as error:
        raise UsageError(f"--listen: {error}, found {listen}") from None


def _token(file: str | None, environment: Mapping[str, str]) -> str | None:
    """The given token; None where there is none. Raises UsageError for a short one."""
    found = environment.get(TOKEN) or None
    where = TOKEN
    if file is not None:
        where = file
        found = file_content(file, "--token-file names the file that holds the token").decode(errors="replace").strip()
    if found is not None and len(found) < SHORTEST_TOKEN:
        raise UsageError(f"{where}: a token has at least {SHORTEST_TOKEN} characters")
    return found


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The command line."""

    path: str | None
    conf: str | None
    connection: Connection
    serving: Serving
    beside: Beside
    token: str | None
    checks_host: bool

    def console(self) -> Console:
        """The console's parts: opens the stores, or the connections. Raises what opening raises."""
        from spark_mq.console.pages import Console
        from spark_mq.console.replays import Replays
        from spark_mq.console.samples import Samples
        from spark_mq.console.security import Access
        from spark_mq.source.archive_table import Place

        archive = None if self.beside.archive is None else Place.given(self.beside.archive, self.beside.storage)
        store = self._store()
        views = self._views()
        return Console(
            views,
            Samples(views),
            Replays(store, self.connection, conf=self.conf, audit=self.beside.audit, storage=self.beside.storage),
            Access(self.token, self.checks_host),
            allows_changes=self.serving.allow_changes,
            archive=archive,
        )

    def _store(self) -> str | None:
        """The store whose dead letters are replayed; None of a cluster, and of several stores that are only looked at."""
        if self.connection.is_given or (not self.serving.allow_changes and len(find_stores(self.path or "")) > 1):
            return None
        return one_store(self.path or "", to_write=self.serving.allow_changes)

    def _views(self) -> Views:
        checkpoints = self.beside.checkpoint or []
        if self.connection.is_given:
            from spark_mq.console.cluster_view import ClusterViews

            return ClusterViews(self.connection.name_server or "", self.connection.settings(), checkpoints)
        from spark_mq.console.store_view import StoreViews

        return StoreViews(self.path or "", self.conf, checkpoints)


class _Running:
    """The server, on the loop that started it."""

    def __init__(self, server: Any, serving: asyncio.Task[None], words: str) -> None:
        self._server = server
        self._serving = serving
        self.words = words

    @classmethod
    async def start(cls, wanted: _Wanted, host: str, port: int) -> _Running:
        """Raises CommandError where it cannot listen, and what opening the stores raises."""
        with _needing_extra():
            import uvicorn

            from spark_mq.console.application import application, close

        made = await asyncio.to_thread(wanted.console)
        try:
            listening = _listen(host, port)
        except CommandError:
            await asyncio.to_thread(close, made)
            raise
        config = uvicorn.Config(
            application(made),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        server = uvicorn.Server(config)
        server.capture_signals = _no_signals  # type: ignore[method-assign]  # `serve` has them
        task = asyncio.create_task(server.serve(sockets=[listening]))
        place = address_text(*listening.getsockname()[:2])
        changes = "changes are allowed" if made.allows_changes else "it changes nothing"
        return cls(server, task, f"the console of {shown_place(made.views.name)} is at http://{place}/; {changes}")

    async def close(self) -> None:
        self._server.should_exit = True
        await self._serving


@contextmanager
def _no_signals() -> Iterator[None]:
    yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = f"cannot listen on {address_text(host, port)}: {error.strerror or error}"
        raise CommandError(reason, "another process may listen there: --listen says where") from None
