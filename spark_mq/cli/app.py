"""The program `spark-mq`: what all of its commands share.

Errors are one line and a hint on stderr, with --json also an object on stdout, and end with a code of `spark_mq/exit_codes.py`.
"""

from __future__ import annotations

import io
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from spark_mq import __version__
from spark_mq.cli.output import print_json
from spark_mq.client.errors import ClientError, ClientSettingError, TlsError
from spark_mq.conditions import SparkMqError
from spark_mq.exit_codes import INTERRUPTED, USAGE, exit_code_of
from spark_mq.session import SESSION_ERRORS
from spark_mq.source.cluster import Cluster, find_stores
from spark_mq.source.option_values import parse_duration_ms
from storage.errors import StorageError, StoreNotFoundError, StoreNotWritableError
from storage.files.local_file_system import LocalFileSystem
from storage.files.os_errors import from_os_error
from storage.files.remote import only_for_reading, plain_path
from storage.tables.surroundings import is_empty_place, no_store

StorePath = Annotated[
    str, typer.Argument(metavar="PATH", show_default=False, help="A broker's store, or a directory of stores.")
]
OneStorePath = Annotated[
    str, typer.Argument(metavar="PATH", show_default=False, help="A broker's store: what holds commitlog/.")
]
Conf = Annotated[
    str | None,
    typer.Option(
        "--conf", metavar="FILE", help="The broker's broker.conf; without it the one beside the store, if any."
    ),
]
LockTimeout = Annotated[
    str, typer.Option("--lock-timeout", metavar="TIME", help="How long to wait for a store that another writer holds.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Everything = Annotated[
    bool, typer.Option("--all", help="RocketMQ's own topics and groups too, and those of Spark sinks.")
]
Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="One topic; without it all.")]
RequiredTopic = Annotated[str, typer.Option("--topic", metavar="TOPIC", show_default=False, help="The topic.")]
QueueNumber = Annotated[int | None, typer.Option("--queue-id", metavar="ID", min=0, help="One queue of each topic.")]


class CommandError(Exception):
    """What was asked for cannot be done; `hint` says what can."""

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text, hint)
        self.text = text
        self.hint = hint


class UsageError(CommandError):
    """The command line is not right."""


_ClickUsageError: type[Exception] = typer.BadParameter.__bases__[
    0
]  # click's; some releases of Typer have a click of their own


class _Commands(TyperGroup):
    """Turns errors that a user can do something about into lines."""

    def invoke(self, ctx: Any) -> Any:
        arguments = [*ctx._protected_args, *ctx.args]
        prints_json = "--json" in arguments[1:] and arguments[0] not in _READ_JSON
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except _ClickUsageError as error:  # click prints it, and how the command is used
            if prints_json:
                _print_error(getattr(error, "format_message", error.__str__)(), None, USAGE)
            raise
        except (ClientError, CommandError, *SESSION_ERRORS, OSError, SparkMqError, StorageError) as error:
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            text, hint = _describe(error)
            code = USAGE if isinstance(error, UsageError | ClientSettingError) else exit_code_of(error)
            if prints_json:
                _print_error(text, hint, code)
            typer.echo(f"error: {text}", err=True)
            if hint:
                typer.echo(f"hint: {hint}", err=True)
            raise typer.Exit(code) from error


_READ_JSON = ("produce", "job")
"""Commands to which --json says something else, or that print their errors themselves."""


def _print_error(text: str, hint: str | None, code: int) -> None:
    """The object in place of a result, or behind those that were printed before."""
    print_json({"error": text, "hint": hint, "exitCode": code})


_TLS_HINT = (
    "use --tls exactly where the server speaks TLS (tls.server.mode); a self-signed certificate needs --tls-ca-file, or "
    "--tls-no-verify where that risk is taken"
)


def _describe(error: Exception) -> tuple[str, str | None]:
    """The cause in one sentence, and what to do."""
    match error:
        case CommandError():
            return error.text, error.hint
        case TlsError():
            return error.describe(), _TLS_HINT
        case ClientError() | StorageError():
            return error.describe(), error.cure()
        case SparkMqError():
            return error.describe(), "\n".join(error.details()) or None
        case OSError():
            return _describe(from_os_error(error))
    return str(error), None


app = typer.Typer(
    name="spark-mq",
    cls=_Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"spark-mq {__version__}")
        raise typer.Exit


_FIRST_STEPS = """\
spark-mq reads, writes and mends stores of Apache RocketMQ, and speaks to running clusters.
A store is the directory that holds commitlog/.

First steps:
  spark-mq demo                             read, stream and copy an example store with Spark
  spark-mq doctor                           look for what keeps Spark from working here

With a store of your own, also beside its running broker; nothing in it is changed:
  spark-mq topics PATH                      which topics and queues it has
  spark-mq dump PATH --limit 5 --bodies     its first messages
  spark-mq lag PATH                         how far its consumers are behind

With a running cluster, by the address of its name server:
  spark-mq topics -n HOST:9876              the same commands take it in place of PATH

A store to try things with:
  echo hello | spark-mq produce PATH --topic greetings

spark-mq --help lists all commands.
spark-mq --install-completion lets the Tab key complete them."""


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Read, write, look into and mend the stores of Apache RocketMQ brokers."""
    # `debug` is looked up where errors are printed.
    if context.invoked_subcommand is None:
        typer.echo(_FIRST_STEPS)


def open_cluster(path: str, conf: str | None) -> Cluster:
    """The store or the stores at a path, open for reading. A directory that is read as a cluster is named on stderr."""
    roots, top = find_stores(path), _directory(path)
    if roots != [top]:
        listed = ", ".join(root.removeprefix(f"{top}/") for root in roots)
        stores = "1 store" if len(roots) == 1 else f"{len(roots)} stores"
        typer.echo(f"{path} is read as a cluster of {stores}: {listed}", err=True)
    return Cluster.open([path], conf=conf)


def one_store(path: str, *, to_write: bool = False) -> str:
    """The root of the only store at a path, named on stderr where the path is not the store itself.

    Raises CommandError where there are several; with `to_write` StoreNotWritableError for one that is not local, of which nothing is
    asked then.
    """
    if to_write and (rule := only_for_reading(path)):
        raise StoreNotWritableError(path, rule)
    roots = find_stores(path)
    if len(roots) > 1:
        raise CommandError(f"{path} holds {len(roots)} stores", f"name one of them: {', '.join(roots)}")
    if roots != [_directory(path)]:
        typer.echo(f"the store at {path} is {roots[0]}", err=True)
    return roots[0]


def _directory(path: str) -> str:
    return plain_path(path).rstrip("/") or "/"


def store_to_write(path: str) -> tuple[str, bool]:
    """The root of the only store at a path, and whether it is yet to be made: where nothing is, or an empty directory."""
    try:
        return one_store(path, to_write=True), False
    except StoreNotFoundError:
        root, files = _directory(path), LocalFileSystem()
        if not is_empty_place(root, files):
            raise no_store(root, "commitlog/", files, to_make=True) from None
        return root, True


def lock_timeout_ms(text: str) -> int:
    """What `LockTimeout` says. Raises OptionError."""
    return parse_duration_ms(text, "--lock-timeout")


def main() -> None:
    """The entry point: `app`, with UTF-8 output and warnings as single lines."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")

    warnings.showwarning = lambda message, *_, **__: typer.echo(f"warning: {message}", err=True)
    app()
