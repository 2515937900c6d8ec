"""The command that runs the jobs of the package `jobs`: what it is given behind a job's name is that job's own command line."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Annotated

import typer

import jobs
from jobs.run import job_description
from spark_mq.cli.app import UsageError, app
from spark_mq.cli.output import print_table
from storage.names import nearest

LIST = "list"
_RUNNER = "run"


def job_names() -> list[str]:
    """The modules of `jobs` that are jobs, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(jobs.__path__) if module.name != _RUNNER)


def load_job(name: str) -> ModuleType:
    """The job of that name, spelled with _ or -. Raises UsageError where there is none."""
    known, name = job_names(), name.replace("-", "_")
    if name not in known:
        meant = nearest(name, known)
        hint = f"did you mean {meant}?" if meant else f"spark-mq job {LIST} names them all"
        raise UsageError(f"there is no job {name}", hint)
    return import_module(f"jobs.{name}")


@app.command(context_settings={"allow_interspersed_args": False})
def job(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help=f"Which job; {LIST} names them all.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="PATH …", show_default=False, help="The job's own; try NAME --help.")
    ] = None,
) -> None:
    """Run a duty on a store, once or with --every 30s again and again. Two runs at a time are safe: one steps back."""
    if name == LIST:
        print_table(
            ("job", "what it does"), [(known, job_description(load_job(known).__doc__)) for known in job_names()]
        )
        return
    raise typer.Exit(load_job(name).main(arguments or []))
