"""Ask what became of half messages, and commit them, roll them back or put them back.

    python -m jobs.check_transactions PATH --checkpoint DIR

One run deals once with every half message that is older than transactionTimeOut (6 s), as a broker does every transactionCheckInterval
(30 s). Two kinds of checkers can answer:

  --checker MODULE:CALLABLE   Python code. It is called with each message (storage.Message: topic and queue it was sent to, properties,
                              body) and returns "commit", "rollback" or "unknown"
  --checkpoint DIR            the checkpoint of a Spark query whose sink has transactional=true. Messages of a committed micro-batch
                              are committed. May be given several times

The job does not hold the store while it waits for answers: a sink commits meanwhile. It asks about several messages at a time
(--threads), so the code must be safe for threads; with 1 one thread calls it. No question begins more than 60 s after the run has;
the next run goes on from there.

After 15 unknown answers (transactionCheckMax), or when it is as old as the log's files get, a message goes to
TRANS_CHECK_MAX_TIME_TOPIC; `jobs.redrive_transactions` puts it back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import chain, repeat
from typing import Annotated, Any

import typer

from jobs.run import JobReport, Shared, StorePath, open_to_write, run_job
from spark_mq.conditions import OptionError
from spark_mq.sink.options import BATCH_PROPERTY, QUERY_PROPERTY
from storage import Message
from storage.epoch_times import current_time_ms
from storage.errors import StateFileError
from storage.files.remote import file_system_of, plain_path
from storage.rules.half_messages import TransactionState
from storage.tables.document import parse_document
from storage.tables.put_statistics import PutStatistics
from storage.transaction.check import Asking, Checker, CheckReport, check_half_messages

ANSWERS_PATIENCE_MS = 60_000


def check_transactions(
    path: str,
    checker: Checker,
    *,
    conf: str | None = None,
    lock_timeout_ms: int = 0,
    asking: Asking | None = None,
    put: PutStatistics | None = None,
    clock: Callable[[], int] = current_time_ms,
) -> CheckReport:
    """One run. `clock` gives milliseconds, `put` counts what is put.

    If a sink's commit holds the store, answers wait for it at least ANSWERS_PATIENCE_MS. Raises StorageError,
    StoreLockedError if another writer has the store.
    """
    waits_ms = chain([lock_timeout_ms], repeat(max(lock_timeout_ms, ANSWERS_PATIENCE_MS)))
    return check_half_messages(
        lambda: open_to_write(path, conf=conf, clock=clock, lock_timeout_ms=next(waits_ms), put=put),
        checker,
        clock(),
        asking=asking,
    )


class CheckpointChecker:
    """Answers from the checkpoint of a structured streaming query: DIR/metadata has the query's id, DIR/commits/N means that batch N
    is done.

    Batches are done in order, so a later commit confirms an earlier batch, whose own file Spark may have removed.
    A batch without commit is unknown: the query, running or started again, will finish it. Nothing is ever rolled back.
    Raises OptionError if DIR is no checkpoint.
    """

    def __init__(self, directory: str) -> None:
        self._directory = plain_path(directory).rstrip("/")
        self._files = file_system_of(directory)
        self.query_id = self._query_id()
        self._last_batch = max(self._numbers("commits"), default=-1)

    def __call__(self, message: Message) -> TransactionState:
        batch = message.properties.get(BATCH_PROPERTY, "")
        is_ours = message.properties.get(QUERY_PROPERTY) == self.query_id and batch.isascii() and batch.isdigit()
        return TransactionState.COMMIT if is_ours and int(batch) <= self._last_batch else TransactionState.UNKNOWN

    def _query_id(self) -> str:
        path = f"{self._directory}/metadata"
        content = self._files.read_file(path)
        if content is None:
            raise OptionError("--checkpoint", f"{self._directory} is no checkpoint of a query: it has no file metadata")
        try:
            query_id = parse_document(content.decode(errors="replace"), path).get("id")
        except StateFileError as error:
            raise OptionError("--checkpoint", error.describe()) from error
        if not isinstance(query_id, str):
            raise OptionError("--checkpoint", f"{path} has no query id")
        return query_id

    def _numbers(self, log: str) -> Iterable[int]:
        names = (entry.name for entry in self._files.list_directory(f"{self._directory}/{log}"))
        return [int(name) for name in names if name.isascii() and name.isdigit()]


def load_checker(text: str) -> Checker:
    """The callable that `module:callable` names; modules of the working directory are found, too. Raises OptionError."""
    module_name, _, name = text.partition(":")
    if not module_name or not name or module_name.startswith("."):
        raise OptionError("--checker", f"{text!r} is not MODULE:CALLABLE")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        raise OptionError("--checker", f"there is no module {error.name} in this directory or on PYTHONPATH") from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise OptionError("--checker", f"{module_name} has no callable {name}")
    checker: Checker = found
    return checker


def first_answer(checkers: Sequence[Checker]) -> Checker:
    """A checker that calls these in turn until one knows the answer. Raises OptionError for an invalid answer."""

    def ask(message: Message) -> TransactionState:
        answers = (_state(checker(message)) for checker in checkers)
        return next((answer for answer in answers if answer is not TransactionState.UNKNOWN), TransactionState.UNKNOWN)

    return ask


def _state(answer: object) -> TransactionState:
    try:
        return TransactionState(answer)
    except ValueError:
        states = ", ".join(state.value for state in TransactionState)
        raise OptionError("--checker", f"it answered {answer!r:.40}, which is none of {states}") from None


def run(
    path: StorePath,
    shared: Shared,
    *,
    checker: Annotated[
        str | None,
        typer.Option("--checker", metavar="MODULE:CALLABLE", help="Python code that is called for each message."),
    ] = None,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", min=1, help="How many messages are checked at a time.")
    ] = Asking().threads,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option("--checkpoint", metavar="DIR", help="The checkpoint of a query that writes here."),
    ] = None,
) -> JobReport:
    checkers: list[Checker] = [CheckpointChecker(directory) for directory in checkpoint or ()]
    if checker is not None:
        checkers.append(load_checker(checker))
    if not checkers:
        raise OptionError("--checker", "give --checker or --checkpoint, which know what became of the messages")
    put = PutStatistics()
    report = check_transactions(
        path,
        first_answer(checkers),
        conf=shared.conf,
        lock_timeout_ms=shared.lock_timeout_ms,
        asking=Asking(threads=threads),
        put=put,
    )
    return JobReport(report.lines(), is_busy=report.answers_left > 0, figures=report.figures(), put=put)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job(run, arguments)


if __name__ == "__main__":
    sys.exit(main())
