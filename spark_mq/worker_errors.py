"""How an error leaves a Python worker of Spark's: under its condition's name, its cause first, without a traceback.

PySpark sends Spark the text that `traceback.format_exc()` makes of an error, and Spark puts its own words in front of it ("Failed to
create Python data source instance: Traceback (most recent call last): …"). A source can choose one thing only: with the variable
SPARK_HIDE_TRACEBACK, which `spark.sql.execution.pyspark.udf.hideTraceback.enabled` sets, PySpark sends the error's type and text alone.
A worker process ends when it has sent an error, so the variable that is set here hides no other traceback.

An error without a name is a fault of ours, and keeps its traceback.

A query that has rows enough, as `show(5)`, hangs up while a worker still writes; so does a session that ends while workers are idle.
PySpark's daemon prints the traceback of that BrokenPipeError, though nothing is wrong; in a worker that has worked for us it does not.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
_CONDITION = re.compile(r"\[(SPARK_MQ_\w+)\] (.*)")
_LOST_EXECUTOR = "ExecutorLostFailure"
"""Spark's word for an executor whose process or machine is gone."""

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def named_for_spark() -> Iterator[None]:
    """Every method that Spark calls runs its work within this. Errors of storage, of files and of the client become conditions.

    A connection's error is Spark's own: a worker reads its rows from one.
    """
    from spark_mq.conditions import SparkMqError, as_condition
    from storage.errors import DescribedError

    expect_hang_up()
    try:
        yield
    except SparkMqError:
        _hide_traceback()
        raise
    except ConnectionError:
        raise
    except (DescribedError, OSError) as error:
        _hide_traceback()
        raise as_condition(error) from None


def _hide_traceback() -> None:
    if _is_spark_worker():
        os.environ[_HIDE_TRACEBACK] = "1"


def _is_spark_worker() -> bool:
    """Spark starts workers as `python -m pyspark.daemon` or `python -m pyspark.….worker`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


class _TracebackOfDaemon:
    """The module `traceback` for PySpark's daemon, which does not print that Spark has hung up."""

    def print_exc(self) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            traceback.print_exc()

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)


def expect_hang_up() -> None:
    """Changes what this process, forked from PySpark's daemon, prints when it ends, and nothing else."""
    main = sys.modules.get("__main__")
    if _is_spark_worker() and getattr(main, "traceback", None) is traceback:
        setattr(main, "traceback", _TracebackOfDaemon())  # noqa: B010


MAY_PASS = "This may pass: run it again"
"""A note on an error that may pass. It is in the text, which is all that Spark hands on."""


def noting_what_may_pass(task: Callable[[T], R], piece: T) -> R:
    """Run a task of Spark's. An error that may pass gets the note `MAY_PASS`, and is raised as it is."""
    from spark_mq.conditions import may_pass

    try:
        return task(piece)
    except Exception as error:
        if may_pass(error):
            error.add_note(MAY_PASS)
        raise


def from_task(text: str) -> Exception | None:
    """The condition that a task has failed with, by the text of Spark's error; None where the text names none, and nothing may pass."""
    from spark_mq.conditions import ConvertedError, DataLossError

    lines = text.splitlines()
    passing = [number for number, line in enumerate(lines) if line.strip() == MAY_PASS or _LOST_EXECUTOR in line]
    for line in lines:
        if named := _CONDITION.search(line):
            name, said = named.groups()
            return (
                DataLossError(said)
                if name == DataLossError.condition
                else ConvertedError(name, said, retriable=bool(passing))
            )
    if not passing:
        return None
    said = lines[max(passing[0] - 1, 0)] if lines[passing[0]].strip() == MAY_PASS else lines[passing[0]]
    return ConvertedError("SPARK_MQ_ERROR", said.strip(), retriable=True)
