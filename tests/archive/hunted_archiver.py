"""An archiver that is killed: at a step that it comes to, or from outside at any moment. `python -m tests.archive.hunted_archiver`.

It archives again and again until it dies. Its tasks run in its own process, so the kill takes driver and tasks together; killed tasks
of Spark are in `test_archive_job.py`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from random import Random
from typing import Any

from spark_mq.archive import archiver, commits, data_files
from spark_mq.archive.archiver import ArchiveReport, archive_once, write_task
from spark_mq.archive.commits import open_or_make
from spark_mq.archive.upkeep import UpkeepReport, compact, write_joined
from spark_mq.conditions import ConvertedError, DataLossError
from spark_mq.source.archive_table import Place
from spark_mq.source.options import SourceOptions
from tests.support.warm_process import WarmProcess, serve

STEPS = (
    "a file begins",
    "a file is whole",
    "tasks are done",
    "before the commit",
    "after the commit",
    "at a later commit",
)


class Archivers(WarmProcess):
    """Forks archivers, one after the other."""

    module = "tests.archive.hunted_archiver"


def live(order: dict[str, Any]) -> None:
    random = Random(order["seed"])
    _die_at(order["step"], random)
    source = {**order["source"], "topic": "Topic"}
    table = open_or_make(Place.of(order["table"]))
    while True:
        try:
            options = SourceOptions.parse(source, "batch")
            archive_once(options, table, _tasks, max_offsets=random.randrange(20, 400), file_rows=50, on_commit=_Told())
        except DataLossError:
            continue
        if random.random() < order["compacts"]:
            compact(table, lambda joins: [write_joined(join) for join in joins], UpkeepReport())
        table.refresh()
        time.sleep(random.random() * 0.02)


class _Told:
    """Tells of each commit, and of the conflicts since the last one."""

    def __init__(self) -> None:
        self._conflicts = 0

    def __call__(self, report: ArchiveReport) -> None:
        news = report.conflicts - self._conflicts
        self._conflicts = report.conflicts
        print(json.dumps({"commits": 1, "conflicts": news}), flush=True)


def _tasks(tasks: Any) -> Any:
    try:
        return [write_task(task) for task in tasks]
    except ConvertedError as error:  # as it comes from Spark's tasks
        if DataLossError.condition in str(error):
            raise DataLossError(str(error)) from error
        raise


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(step: str | None, random: Random) -> None:
    """Die when the step is reached for the first or the second time."""
    left = [random.randrange(1, 3)]

    def reached() -> None:
        left[0] -= 1
        if left[0] <= 0:
            time.sleep(random.random() * 0.005)
            _die()

    def around(target: Any, name: str, *, before: bool) -> None:
        real: Callable[..., Any] = getattr(target, name)

        def patched(*given: Any, **named: Any) -> Any:
            if before:
                reached()
            found = real(*given, **named)
            if not before:
                reached()
            return found

        setattr(target, name, patched)

    match step:
        case "a file begins":
            around(data_files._DataFile, "add", before=False)
        case "a file is whole":
            around(data_files._DataFile, "finish", before=False)
        case "tasks are done":
            around(archiver, "_write", before=False)
        case "before the commit":
            around(commits, "_transaction", before=True)
        case "after the commit":
            around(commits, "_transaction", before=False)
        case "at a later commit":
            left[0] = 4
            around(archiver, "commit", before=False)


if __name__ == "__main__":
    serve(live)
