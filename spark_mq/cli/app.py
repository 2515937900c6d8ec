"""The program `spark-mq`: the list of its commands, and errors as lines.

A command's module is loaded when the command is used, so `--help` and `--version` load none. Errors are one line and a hint on stderr,
with --json also an object on stdout, and end with a code of `spark_mq/terminal.py`.
"""

from __future__ import annotations

import gc
import io
import os
import select
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from spark_mq import __version__

LOOK, READ_AND_WRITE, RUN_SERVERS, UPKEEP, REPAIR = "Look", "Read and write", "Run servers", "Upkeep", "Repair"


class Listed(NamedTuple):
    """A command as `--help` lists it."""

    panel: str
    place: str
    """Its function: `module.name`, below `spark_mq.cli`; with a dot before it, beside that package: its room imports this one."""
    line: str
    """The first part of the function's docstring."""


COMMANDS = {
    "demo": Listed(LOOK, "demo.demo", "Read, stream and copy an example store with Spark."),
    "doctor": Listed(LOOK, "upkeep.doctor", "Find what keeps Spark from working here."),
    "topics": Listed(LOOK, "topics.topics", "List topics."),
    "offset-by-time": Listed(LOOK, "topics.offset_by_time", "Find the offset of each queue at a time."),
    "lag": Listed(LOOK, "lag.lag", "Show which consumer groups are behind."),
    "exporter": Listed(LOOK, "exporter.exporter", "Serve the lag of groups and queries to Prometheus."),
    "groups": Listed(LOOK, "cluster.groups", "List the consumer groups of a running cluster."),
    "brokers": Listed(LOOK, "cluster.brokers", "List the brokers of a running cluster."),
    "sink-status": Listed(LOOK, "sinks.sink_status", "Show what Spark sinks have written to a store."),
    "console": Listed(LOOK, ".console.command.console", "Show a cluster or stores as pages."),
    "report": Listed(LOOK, "report.report", "Write a page about a store or a cluster."),
    "verify": Listed(LOOK, "upkeep.verify", "Compare queues, index and checkpoint with the log."),
    "dump": Listed(READ_AND_WRITE, "messages.dump", "Print messages, queue by queue."),
    "query": Listed(READ_AND_WRITE, "messages.query", "Find messages by key or by id."),
    "consume": Listed(READ_AND_WRITE, "cluster.consume", "Join a consumer group and print its messages."),
    "produce": Listed(READ_AND_WRITE, "produce.produce", "Write a message for each line of standard input."),
    "create-topic": Listed(
        READ_AND_WRITE, "topic_changes.create_topic", "Make a topic in a store or in a running cluster."
    ),
    "alter-topic": Listed(READ_AND_WRITE, "topic_changes.alter_topic", "Change a topic's queues or permission."),
    "delete-topic": Listed(
        READ_AND_WRITE, "topic_changes.delete_topic", "Delete a topic of a store or of a running cluster."
    ),
    "reset-offset": Listed(
        READ_AND_WRITE, "cluster.reset_offset", "Move a consumer group to another place of a topic."
    ),
    "broker": Listed(RUN_SERVERS, "processes.broker", "Run a broker."),
    "namesrv": Listed(RUN_SERVERS, "processes.namesrv", "Run a name server."),
    "controller": Listed(RUN_SERVERS, "processes.controller", "Run a controller, which elects masters."),
    "replicate": Listed(RUN_SERVERS, "replicas.replicate", "Serve a store's log to slaves."),
    "follow": Listed(RUN_SERVERS, "replicas.follow", "Keep a replica of a master's log."),
    "job": Listed(UPKEEP, "", "Run a broker's duty on a store, once or repeatedly."),
    "close": Listed(UPKEEP, "sinks.close", "Close a store that sinks have written to."),
    "promote": Listed(UPKEEP, "replicas.promote", "Make a replica a store of its own."),
    "convert": Listed(UPKEEP, "upkeep.convert", "Make a plain store of a DLedger group's."),
    "bind-log": Listed(UPKEEP, "upkeep.bind_log", "Allow writing to a log outside the store's directory."),
    "recover": Listed(REPAIR, "upkeep.recover", "Recover a store after a crash."),
    "repair": Listed(REPAIR, "upkeep.repair", "Cut a damaged log, and keep a copy of what is cut."),
    "quarantine": Listed(REPAIR, "upkeep.quarantine", "List and print what was cut from a log."),
    "confirm-sink": Listed(REPAIR, "sinks.confirm_sink", "Set which batch of a sink is the last in the store."),
}
JOB_LIST = "list"


_ClickUsageError: type[Exception] = typer.BadParameter.__bases__[
    0
]  # click's; some releases of Typer have a click of their own


class _Jobs(TyperGroup):
    """The group `job`: the jobs of the package `jobs`, and `list`."""

    def __init__(self) -> None:
        from jobs import JOBS

        lines = {**JOBS, JOB_LIST: "List all jobs."}
        commands: dict[str, Any] = {name: TyperCommand(name, help=line) for name, line in lines.items()}
        text = f"{COMMANDS['job'].line}\n\nTwo runs at a time are safe: the second waits for its turn, or does nothing."
        super().__init__(name="job", help=text, commands=commands, no_args_is_help=True)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0].replace("-", "_")  # as commands are spelled
        if name in self.commands or args[0].startswith("-") or ctx.resilient_parsing:
            _, command, _ = super().resolve_command(ctx, [name])
            return name, None if command is None else _loaded(f"job {name}", ctx), args[1:]
        from storage.names import nearest

        meant = nearest(name, list(self.commands))
        hint = f"did you mean {meant}?" if meant else f"spark-mq job {JOB_LIST} names them all"
        from spark_mq.terminal import UsageError

        raise UsageError(f"there is no job {name}", hint)


def load_job(name: str) -> Any:
    """A job with its parameters, as a command of Typer."""
    if name != JOB_LIST:
        from jobs.run import job_command

        return job_command(import_module(f"jobs.{name}").run)

    def print_list() -> None:
        from jobs import JOBS
        from spark_mq.terminal import print_table

        print_table(("job", "what it does"), [(job, line.rstrip(".")) for job, line in JOBS.items()])

    return TyperCommand(JOB_LIST, callback=print_list)


def function_of(name: str) -> Any:
    """The function of a command; imports its module."""
    module, _, function = COMMANDS[name].place.rpartition(".")
    return getattr(import_module(f".{module}", "spark_mq.cli"), function)


def load_command(name: str) -> Any:
    """A command with its parameters; imports its module."""
    if name == "job":
        return _Jobs()
    from spark_mq.command_options import with_options

    command = function_of(name)
    paragraphs = (" ".join(paragraph.split()) for paragraph in command.__doc__.split("\n\n"))
    of_one = typer.Typer(add_completion=False)
    of_one.command(name, help="\n\n".join(paragraphs))(with_options(command))  # Typer would keep the source's line ends
    return typer.main.get_command(of_one)


def _loaded(name: str, ctx: Any) -> Any:
    """A command, or `job NAME`, with its parameters; while a shell completes it, without its module."""
    group, _, job = name.partition(" ")
    if ctx.resilient_parsing and name != "job" and job != JOB_LIST:
        from spark_mq.cli.completion import completed_command

        return completed_command(name)
    return load_job(job) if job else load_command(group)


class _Commands(TyperGroup):
    """Lists commands without loading them, and turns errors that a user can act on into lines."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name, help=listed.line, rich_help_panel=listed.panel)
            for name, listed in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, left = super().resolve_command(ctx, args)
        return name, None if command is None or name is None else _loaded(name, ctx), left

    def invoke(self, ctx: Any) -> Any:
        arguments = [*ctx._protected_args, *ctx.args]
        prints_json = "--json" in arguments[1:] and arguments[0] not in _READ_JSON
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None
        except (typer.Exit, typer.Abort):
            raise
        except _ClickUsageError as error:  # click prints it, and how the command is used
            if prints_json:
                from spark_mq.terminal import USAGE, print_error

                print_error(getattr(error, "format_message", error.__str__)(), None, USAGE)
            raise
        except Exception as error:
            if isinstance(error, BrokenPipeError) and _is_stdout_gone():
                from spark_mq.terminal import NOBODY_READS

                raise typer.Exit(NOBODY_READS) from None
            if ctx.params.get("debug"):
                raise
            from spark_mq.terminal import describe, print_error  # only here: it names the errors of all packages

            described = describe(error)
            if described is None:
                raise
            if prints_json:
                with suppress(OSError):  # standard output may be what fails; the error itself follows
                    print_error(*described)
            typer.echo(f"error: {described.text}", err=True)
            if described.hint:
                typer.echo(f"hint: {described.hint}", err=True)
            raise typer.Exit(described.code) from error


_READ_JSON = ("produce", "job")
"""Commands to which --json says something else, or that print their errors themselves."""

app = typer.Typer(
    name="spark-mq",
    cls=_Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"spark-mq {__version__}")
        raise typer.Exit


_FIRST_STEPS = """\
spark-mq reads, writes and mends stores of Apache RocketMQ, and speaks to running clusters.
A store is the directory that holds commitlog/.

First steps:
  spark-mq demo                             read, stream and copy an example store with Spark
  spark-mq doctor                           find what keeps Spark from working here

With a store of your own, also beside its running broker; nothing in it is changed:
  spark-mq topics PATH                      list its topics
  spark-mq dump PATH --limit 5 --bodies     print its first messages
  spark-mq lag PATH                         show which consumers are behind

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


class _WithoutPandas:
    """Finds no pandas. Arrow imports it with the first array that it makes, to see whether the values are pandas': 0.2 s in vain."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


_MAY_USE_PANDAS = {"console", "demo", "doctor", "job"}
"""Commands that run Spark, or look at what is installed."""
_STDERR = 2


NEW_OBJECTS = 50_000
"""A garbage collection after so many. Modules are 100,000 that stay: by the interpreter's 700 it has a seventh of a start."""


def main() -> None:
    """The entry point: `app`, with UTF-8 output and warnings as single lines."""
    _open_what_is_closed()
    gc.set_threshold(NEW_OBJECTS)
    if not _MAY_USE_PANDAS.intersection(sys.argv):
        sys.meta_path.insert(0, _WithoutPandas())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")

    warnings.showwarning = lambda message, *_, **__: typer.echo(f"warning: {message}", err=True)
    try:
        app()
    except SystemExit as ending:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the last lines were still in the buffer
            from spark_mq.terminal import NOBODY_READS, drop_stdout

            drop_stdout()
            raise SystemExit(ending.code or NOBODY_READS) from None
        except OSError as error:
            from spark_mq.terminal import FAILED, drop_stdout

            drop_stdout()
            typer.echo(f"error: standard output cannot be written: {error.strerror or error}", err=True)
            raise SystemExit(ending.code or FAILED) from None
        raise


def _open_what_is_closed() -> None:
    """Stand in for standard streams that are closed (`>&-`), so that no file which the command opens gets the number of one.

    Standard output becomes a pipe whose reader has gone, standard input is empty, and standard error goes nowhere.
    """
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if sys.stdout is None:
        reader, writer = os.pipe()
        os.close(reader)
        sys.stdout = os.fdopen(writer, "w", encoding="utf-8")


def _is_stdout_gone() -> bool:
    """Whether the reader of standard output has gone."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # a test's stdout is no file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watched.poll(0))
