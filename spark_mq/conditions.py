"""Named error conditions of the Spark source and sink, the one place where errors of storage and of the client become them, and how
they leave a Python worker.

A text begins with its condition in brackets, as Spark's own do, because Spark hands on nothing of a Python error but its text: the name
is what a user can search for and what a program can test. Each class states its `condition`, and docs/errors.md explains all of them.

An error leaves a Python worker of Spark's under its condition's name, its cause first, without a traceback (`named_for_spark`).
PySpark sends Spark the text that `traceback.format_exc()` makes of an error, and Spark puts its own words in front of it ("Failed to
create Python data source instance: Traceback (most recent call last): …"). A source can choose one thing only: with the variable
SPARK_HIDE_TRACEBACK, which `spark.sql.execution.pyspark.udf.hideTraceback.enabled` sets, PySpark sends the error's type and text alone.
A worker process ends when it has sent an error, so the variable that is set here hides no other traceback. An error without a name is a
fault of ours, and keeps its traceback.

A query that has rows enough, as `show(5)`, hangs up while a worker still writes; so does a session that ends while workers are idle.
PySpark's daemon prints the traceback of that BrokenPipeError, though nothing is wrong; in a worker that has worked for us it does not.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, TypeVar

from storage.errors import (
    DescribedError,
    ErrorWithValues,
    OffsetOutOfRangeError,
    StorageError,
    StoreNotWritableError,
    cause_and_cure,
)
from storage.files.os_errors import from_os_error

_NAMES_SHOWN = 10
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class SparkMqError(ErrorWithValues):
    """Base of the named conditions. `describe` says what happened, where and by which rule: with it the text's first line begins."""

    condition = "SPARK_MQ_ERROR"
    retriable = False
    """Whether the same call may succeed later without a change by an operator."""
    advice: ClassVar[tuple[str, ...]] = ()

    def details(self) -> tuple[str, ...]:
        """The cure, which ends the first line unless `describe` says so; then details of the failure, line by line."""
        return self.advice

    def __str__(self) -> str:
        cure, *others = self.details() or (None,)
        first = cause_and_cure(f"[{self.condition}] {self.describe()}", cure)
        return "\n".join((first, *(line for line in others if line)))


class ConvertedError(SparkMqError):
    """An error of storage or of the client under its condition's name. `lines` say what to do."""

    template = "{text}"

    def __init__(self, condition: str, text: str, *lines: str, retriable: bool = False) -> None:
        super().__init__(condition, text, *lines)
        self.retriable = retriable
        self.condition = condition
        self.text = text
        self.lines = lines

    def details(self) -> tuple[str, ...]:
        return self.lines


class OptionError(SparkMqError):
    """An option's value, or a combination of options, breaks `rule`."""

    condition = "SPARK_MQ_INVALID_OPTION"
    template = "option {option}: {rule}"
    option: str
    rule: str


class UnknownOptionError(SparkMqError):
    """No option has this name; `nearest` is the known name most like it, if any is like it at all."""

    condition = "SPARK_MQ_UNKNOWN_OPTION"
    template = "there is no option {option}[; did you mean {nearest}?]"
    option: str
    nearest: str | None
    hint: str | None = None

    def details(self) -> tuple[str, ...]:
        listed = "docs/reading.md and docs/writing.md list the options" if self.nearest is None else None
        return tuple(line for line in (self.hint or listed,) if line)


_OFFSETS = '{"TOPIC": {"BROKER": {"0": 12}}}, with one broker {"TOPIC": {"0": 12}}'
_TIMES = _OFFSETS.replace("12", "1767225600000")
_SHAPES = {
    "startingOffsets": _OFFSETS,
    "endingOffsets": _OFFSETS,
    "startingOffsetsByTimestamp": _TIMES,
    "endingOffsetsByTimestamp": _TIMES,
    "assign": '{"TOPIC": {"BROKER": [0, 1]}}, with one broker {"TOPIC": [0, 1]}',
    "paths": '["/one/store", "/another/store"]',
}
"""An example of options with JSON."""


class OffsetJsonError(SparkMqError):
    """JSON with offsets that does not have the promised shape.

    `source` is the option's name, or "offset" for a checkpoint's; `pointer` is the JSON pointer (RFC 6901) of the value that is wrong,
    "" for the whole text.
    """

    condition = "SPARK_MQ_INVALID_OFFSETS"
    template = "{source}[ at {pointer}]: {rule}"
    source: str
    pointer: str
    rule: str

    def details(self) -> tuple[str, ...]:
        shape = _SHAPES.get(self.source)
        return () if shape is None else (f"write {shape}",)


class QueuesNotMatchedError(SparkMqError):
    """An option's JSON must name exactly the queues of the query: it names some that are not there, or omits some that are."""

    condition = "SPARK_MQ_QUEUES_NOT_MATCHED"
    option: str
    unknown: Iterable[str]
    omitted: Iterable[str]

    def __post_init__(self) -> None:
        self.unknown = tuple(self.unknown)
        self.omitted = tuple(self.omitted)

    def describe(self) -> str:
        faults = []
        if self.unknown:
            faults.append(f"these are not queues of this query: {names(self.unknown)}")
        if self.omitted:
            faults.append(f"these queues are missing: {names(self.omitted)}")
        return f"option {self.option} must name every queue of the query and no other; " + "; ".join(faults)


class StartBeyondEndError(SparkMqError):
    """A batch query whose start of a queue lies behind its end."""

    condition = "SPARK_MQ_START_BEYOND_END"
    template = "queue {queue}: its start, {start}, is greater than its end, {end}"
    advice = ("start it earlier, or end it later",)
    queue: str
    start: int
    end: int


class NoOffsetForTimestampError(SparkMqError):
    """No message of the queue was stored at or after the starting timestamp."""

    condition = "SPARK_MQ_NO_OFFSET_FOR_TIMESTAMP"
    template = "queue {queue} holds no message stored at or after {timestamp_ms} ms"
    advice = ("set startingOffsetsByTimestampStrategy to latest to start such queues at their end",)
    queue: str
    timestamp_ms: int


class NoGroupOffsetsError(SparkMqError):
    """`startingOffsets=group`, but the group has stored no offset for any queue of the query."""

    condition = "SPARK_MQ_NO_GROUP_OFFSETS"
    template = "group {group} has stored no offset for any queue of this query; check consumerGroup"
    group: str


class CheckpointOfAnotherQueryError(SparkMqError):
    """A checkpoint that has no queue in common with the query: nothing was lost, whatever `failOnDataLoss` says.

    `difference` says what the checkpoint holds and what the query reads, `cure` what to do.
    """

    condition = "SPARK_MQ_CHECKPOINT_OF_ANOTHER_QUERY"
    template = "the checkpoint is another query's, or another store's: {difference}"
    difference: str
    cure: str

    def details(self) -> tuple[str, ...]:
        return (self.cure, "Nothing was read or lost; failOnDataLoss does not matter here")


class DataLossError(SparkMqError):
    """Messages that the query was to read are gone, and `failOnDataLoss` is true.

    One text a queue: the cause, and maybe a second line that says what to do about this one.
    """

    condition = "SPARK_MQ_DATA_LOSS"

    def __init__(self, *losses: str) -> None:
        super().__init__(*losses)
        self.losses = losses

    def describe(self) -> str:
        more = len(self.losses) - 1
        cause = self.losses[0].partition("\n")[0] if self.losses else "messages are gone"
        return cause + (f"; and {more} more" if more > 0 else "")

    def details(self) -> tuple[str, ...]:
        parts = [loss.partition("\n") for loss in self.losses]
        first, *others = dict.fromkeys(cure or _LOST for _, _, cure in parts or [("", "", "")])
        return (first, *(cause for cause, _, _ in parts[1:]), *others)


_LOST = (
    "Set failOnDataLoss to false to go on with what is there. "
    "Some messages may have been lost: they expired, or the topic was deleted before they were read"
)


def warn_of_losses(losses: Iterable[str]) -> None:
    """Say what `failOnDataLoss=false` lets pass."""
    for loss in losses:
        warnings.warn(
            f"[{DataLossError.condition}] tolerated: {loss.partition(chr(10))[0]}", RuntimeWarning, stacklevel=2
        )


class AvailableNowError(SparkMqError):
    """The ends that Trigger.AvailableNow fixed when it started do not hold any more."""

    condition = "SPARK_MQ_AVAILABLE_NOW_CHANGED"

    def __init__(self, rule: str, *queues: str) -> None:
        super().__init__(rule, *queues)
        self.rule = rule
        self.queues = queues

    def describe(self) -> str:
        return f"{self.rule}: {names(self.queues)}; start the query again to fix new ends"


class ArchiveError(SparkMqError):
    """The table that option archive names cannot be read or written."""

    condition = "SPARK_MQ_ARCHIVE"
    template = "archive {url}: {rule}"
    url: str
    rule: str
    cure: str | None = None

    def details(self) -> tuple[str, ...]:
        return () if self.cure is None else (self.cure,)


class SinkModeError(SparkMqError):
    """A way of writing that a log cannot do."""

    condition = "SPARK_MQ_SINK_MODE"
    template = "a commit log is only appended to, {mode} would replace what it holds; write in mode append"
    mode: str


class SinkSchemaError(SparkMqError):
    """The DataFrame has a column that the sink does not take, or lacks one that it needs."""

    condition = "SPARK_MQ_SINK_SCHEMA"
    template = "column {column}: {rule}"
    column: str
    rule: str


class SparkTooOldError(SparkMqError):
    """What an option or a query needs, and this release of Spark cannot do; `before` says what it lacks."""

    condition = "SPARK_MQ_SPARK_TOO_OLD"
    template = "{what} needs Spark {since}: {before}; this is Spark {release}"
    advice = ("leave it out, or run a newer Spark; docs/install.md has a table of features and releases",)
    what: str
    since: str
    before: str
    release: str


class WritesOwnSourceError(SparkMqError):
    """A streaming query would write into a topic that it reads, in the same store or cluster."""

    condition = "SPARK_MQ_WRITES_OWN_SOURCE"
    template = "the query reads topic {topic} where it would write to it: each row that it writes would come back to it"
    advice = ("Name another topic (option topic), or say writeToSource=true if that is meant",)
    topic: str


class Consequence(NamedTuple):
    """Advice about invalid rows, and the fate of the others; `said` may be empty."""

    cure: str
    said: str


_PUT_ASIDE = "correct or filter such rows, or put them aside with onInvalidRow=deadLetter and a deadLetterPath"
PUT_ASIDE = Consequence(
    _PUT_ASIDE, "Nothing of the batch was written. A deliver_at for which the timer is full cannot be put aside"
)
SENT_ROWS_STAY = Consequence(_PUT_ASIDE, "Rows that this task sent before stay at their brokers")
TASK_SENT_NONE = Consequence(_PUT_ASIDE, "This task sent none of its rows")
NONE_SENT = Consequence(
    "correct or filter such rows: only guarantee=atLeastOnce can put them aside", "Nothing of the batch was sent"
)


class InvalidRowError(SparkMqError):
    """Rows that no broker would take, and `onInvalidRow` is fail. `consequence` says what became of the others, and what to do:
    `PUT_ASIDE` for a store; for running brokers `SENT_ROWS_STAY` or `TASK_SENT_NONE` at least once, `NONE_SENT` exactly once.

    `rejections` are (row of the task from 0, column, rule) of the first few; `count` says how many there were in the Arrow batch
    that held the first.
    """

    condition = "SPARK_MQ_INVALID_ROW"

    def __init__(
        self, partition: int, count: int, *rejections: tuple[int, str, str], consequence: Consequence = PUT_ASIDE
    ) -> None:
        super().__init__(partition, count, *rejections)
        self.partition = partition
        self.count = count
        self.rejections = rejections
        self.consequence = consequence

    def describe(self) -> str:
        more = f"; and {self.count - 1} more" if self.count > 1 else ""
        row, column, rule = self.rejections[0]
        return f"partition {self.partition}: row {row}, column {column}: {rule}{more}"

    def details(self) -> tuple[str, ...]:
        unnamed = self.count - len(self.rejections)
        return (
            self.consequence.cure,
            *self._others(),
            *([f"and {unnamed} more rows of the same Arrow batch"] if unnamed > 0 else []),
            self.consequence.said,
        )

    def _others(self) -> Iterator[str]:
        """The rows behind the first; a rule that several break is said once."""
        rows_by_rule: dict[tuple[str, str], list[str]] = {}
        for row, column, rule in self.rejections[1:]:
            rows_by_rule.setdefault((column, rule), []).append(str(row))
        for (column, rule), rows in rows_by_rule.items():
            which = f"row{'' if len(rows) == 1 else 's'} {', '.join(rows)}"
            is_first_rule = (column, rule) == self.rejections[0][1:]
            yield f"{which}: the same" if is_first_rule else f"{which}, column {column}: {rule}"


class WriteFailedError(SparkMqError):
    """A write that cannot be done as requested; nothing of it is in the store."""

    condition = "SPARK_MQ_WRITE_FAILED"
    template = "{rule}"
    rule: str


class NotConfirmedError(SparkMqError):
    """A broker has stored rows, but not as safely as it is configured, and `acks=all` wants no less."""

    condition = "SPARK_MQ_SEND_NOT_CONFIRMED"
    template = "broker {broker} has stored {count} rows and answers {status}: {why}"
    advice = (
        "acks=stored takes such an answer for success",
        "With exactlyOnce the next try finds these rows and does not send them again; with atLeastOnce they are sent again",
    )
    broker: str
    count: int
    status: str
    why: str


class BatchInDoubtError(SparkMqError):
    """A batch of an exactly-once sink for which it is not known yet what the brokers hold; nothing more was sent."""

    condition = "SPARK_MQ_BATCH_IN_DOUBT"
    template = "{batch} is in doubt: {reason}"
    advice = (
        "Start the query again when its brokers answer; fenceTimeout says how long a commit waits for them",
        "Nothing is sent until every broker of the batch has answered what it holds",
    )
    batch: str
    reason: str


class SentRowsLostError(SparkMqError):
    """Rows that an exactly-once sink has sent are not where they must be; sending the rest would break order or double rows."""

    condition = "SPARK_MQ_SENT_ROWS_LOST"
    template = "queue {queue}: {rule}"
    advice = ("docs/live.md says what to do", "What became of the batch cannot be known any more")
    queue: str
    rule: str


class StagingLostError(SparkMqError):
    """The staging directory of an exactly-once sink does not know a query that is not new."""

    condition = "SPARK_MQ_STAGING_LOST"
    template = "sink {sink}: {rule}"
    advice = ("Restore the staging directory, or begin with a new checkpoint. docs/live.md says more",)
    sink: str
    rule: str


def names(queues: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(queues)
    text = ", ".join(listed[:_NAMES_SHOWN])
    return text if len(listed) <= _NAMES_SHOWN else f"{text} and {len(listed) - _NAMES_SHOWN} more"


def may_pass(error: BaseException) -> bool:
    """Whether a job that has failed by this may succeed at its next run, though nobody has changed anything."""
    is_full = isinstance(error, OSError) and error.errno in _DISK_FULL
    return is_full or (isinstance(error, SparkMqError | DescribedError) and error.retriable)


def as_condition(error: DescribedError | OSError) -> SparkMqError:
    """The condition that an error of a store, a file or the client is for a Spark user.

    It says all that the original does: raise it `from None`. An offset out of range is data loss, wherever it was found.
    """
    if isinstance(error, OSError):
        return as_condition(from_os_error(error))
    if isinstance(error, OffsetOutOfRangeError):
        return DataLossError(error.describe())
    if not isinstance(error, StorageError):
        from spark_mq.client.errors import ClientSettingError  # a query over files need not load the client

        if isinstance(error, ClientSettingError):
            return OptionError(error.setting, error.rule)
    return ConvertedError(error.condition, error.describe(), *error.advice(), retriable=error.retriable)


@contextmanager
def writing_conditions(path: str) -> Iterator[None]:
    """Turns what goes wrong while something is written for the store at `path` into its condition, a full disk among it."""
    try:
        yield
    except StorageError as error:
        raise as_condition(error) from None
    except PermissionError as error:
        raise as_condition(from_os_error(error, path)) from None
    except OSError as error:
        raise as_condition(StoreNotWritableError(path, str(error))) from None


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

    try:
        return task(piece)
    except Exception as error:
        if may_pass(error):
            error.add_note(MAY_PASS)
        raise


def from_task(text: str) -> Exception | None:
    """The condition that a task has failed with, by the text of Spark's error; None where the text names none, and nothing may pass."""

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
