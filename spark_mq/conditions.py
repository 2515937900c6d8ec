"""Named error conditions of the Spark source and sink, and the one place where storage errors become them.

    SparkMqError
      OptionError(option, rule)                       SPARK_MQ_INVALID_OPTION
      UnknownOptionError(option, nearest)             SPARK_MQ_UNKNOWN_OPTION
      OffsetJsonError(source, pointer, rule)          SPARK_MQ_INVALID_OFFSETS
      QueuesNotMatchedError(option, unknown, omitted) SPARK_MQ_QUEUES_NOT_MATCHED
      StartBeyondEndError(queue, start, end)          SPARK_MQ_START_BEYOND_END
      NoOffsetForTimestampError(queue, timestamp_ms)  SPARK_MQ_NO_OFFSET_FOR_TIMESTAMP
      NoGroupOffsetsError(group)                      SPARK_MQ_NO_GROUP_OFFSETS
      CheckpointOfAnotherQueryError(difference, cure) SPARK_MQ_CHECKPOINT_OF_ANOTHER_QUERY
      DataLossError(*losses)                          SPARK_MQ_DATA_LOSS
      AvailableNowError(rule, *queues)                SPARK_MQ_AVAILABLE_NOW_CHANGED
      SinkModeError(mode)                             SPARK_MQ_SINK_MODE
      SinkSchemaError(column, rule)                   SPARK_MQ_SINK_SCHEMA
      WritesOwnSourceError(topic)                     SPARK_MQ_WRITES_OWN_SOURCE
      InvalidRowError(partition, count, *rejections)  SPARK_MQ_INVALID_ROW
      WriteFailedError(rule)                          SPARK_MQ_WRITE_FAILED
      NotConfirmedError(broker, count, status, why)   SPARK_MQ_SEND_NOT_CONFIRMED
      BatchInDoubtError(batch, reason)                SPARK_MQ_BATCH_IN_DOUBT
      SentRowsLostError(queue, rule)                  SPARK_MQ_SENT_ROWS_LOST
      StagingLostError(sink, rule)                    SPARK_MQ_STAGING_LOST
      ConvertedError(condition, text, *lines)
        StoreConditionError                           SPARK_MQ_STORE_…, one per kind of storage error
        ClusterConditionError                         one per kind of the client's errors

A text begins with its condition in brackets, as Spark's own do, because Spark hands on nothing of a Python
error but its text: the name is what a user can search for and what a program can test.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from storage.errors.base import cause_and_cure

_NAMES_SHOWN = 10


class SparkMqError(Exception):
    """Base of the named conditions.

    A subclass hands its values to `super().__init__` in the order of its own parameters, so that the error
    survives pickling, and writes its text in `describe`.
    """

    condition: str = "SPARK_MQ_ERROR"

    def describe(self) -> str:
        """What happened, where and by which rule, in one sentence: with it the text's first line begins."""
        return ": ".join(str(value) for value in self.args)

    def details(self) -> tuple[str, ...]:
        """What to do about it, which ends the first line unless `describe` says so; then more about what happened, line by line."""
        return ()

    def __str__(self) -> str:
        cure, *others = self.details() or (None,)
        first = cause_and_cure(f"[{self.condition}] {self.describe()}", cure)
        return "\n".join((first, *(line for line in others if line)))


class ConvertedError(SparkMqError):
    """An error of a lower layer under its condition's name. `lines` say what to do."""

    def __init__(self, condition: str, text: str, *lines: str) -> None:
        super().__init__(condition, text, *lines)
        self.condition = condition
        self.text = text
        self.lines = lines

    def describe(self) -> str:
        return self.text

    def details(self) -> tuple[str, ...]:
        return self.lines


class OptionError(SparkMqError):
    """An option's value, or a combination of options, breaks `rule`."""

    condition = "SPARK_MQ_INVALID_OPTION"

    def __init__(self, option: str, rule: str) -> None:
        super().__init__(option, rule)
        self.option = option
        self.rule = rule

    def describe(self) -> str:
        return f"option {self.option}: {self.rule}"


class UnknownOptionError(SparkMqError):
    """No option has this name; `nearest` is the known name most like it, if any is like it at all."""

    condition = "SPARK_MQ_UNKNOWN_OPTION"

    def __init__(self, option: str, nearest: str | None, hint: str | None = None) -> None:
        super().__init__(option, nearest, hint)
        self.option = option
        self.nearest = nearest
        self.hint = hint

    def describe(self) -> str:
        text = f"there is no option {self.option}"
        return text if self.nearest is None else f"{text}; did you mean {self.nearest}?"

    def details(self) -> tuple[str, ...]:
        if self.hint is not None:
            return (self.hint,)
        return (_LISTED,) if self.nearest is None else ()


_LISTED = "docs/reading.md and docs/writing.md list the options"


class OffsetJsonError(SparkMqError):
    """JSON with offsets that does not have the promised shape.

    `source` is the option's name, or "offset" for a checkpoint's; `pointer` is the JSON pointer (RFC 6901)
    of the value that is wrong, "" for the whole text.
    """

    condition = "SPARK_MQ_INVALID_OFFSETS"

    def __init__(self, source: str, pointer: str, rule: str) -> None:
        super().__init__(source, pointer, rule)
        self.source = source
        self.pointer = pointer
        self.rule = rule

    def describe(self) -> str:
        where = f" at {self.pointer}" if self.pointer else ""
        return f"{self.source}{where}: {self.rule}"

    def details(self) -> tuple[str, ...]:
        shape = _SHAPES.get(self.source)
        return () if shape is None else (f"write {shape}",)


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
"""What options with JSON look like."""


class QueuesNotMatchedError(SparkMqError):
    """An option's JSON must name exactly the queues of the query: it names some that are not there, or omits
    some that are.
    """

    condition = "SPARK_MQ_QUEUES_NOT_MATCHED"

    def __init__(self, option: str, unknown: Iterable[str], omitted: Iterable[str]) -> None:
        self.option = option
        self.unknown = tuple(unknown)
        self.omitted = tuple(omitted)
        super().__init__(option, self.unknown, self.omitted)

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

    def __init__(self, queue: str, start: int, end: int) -> None:
        super().__init__(queue, start, end)
        self.queue = queue
        self.start = start
        self.end = end

    def describe(self) -> str:
        return f"queue {self.queue}: its start, {self.start}, is greater than its end, {self.end}"

    def details(self) -> tuple[str, ...]:
        return ("start it earlier, or end it later",)


class NoOffsetForTimestampError(SparkMqError):
    """No message of the queue was stored at or after the starting timestamp."""

    condition = "SPARK_MQ_NO_OFFSET_FOR_TIMESTAMP"

    def __init__(self, queue: str, timestamp_ms: int) -> None:
        super().__init__(queue, timestamp_ms)
        self.queue = queue
        self.timestamp_ms = timestamp_ms

    def describe(self) -> str:
        return f"queue {self.queue} holds no message stored at or after {self.timestamp_ms} ms"

    def details(self) -> tuple[str, ...]:
        return ("set startingOffsetsByTimestampStrategy to latest to start such queues at their end",)


class NoGroupOffsetsError(SparkMqError):
    """`startingOffsets=group`, but the group has stored no offset for any queue of the query."""

    condition = "SPARK_MQ_NO_GROUP_OFFSETS"

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def describe(self) -> str:
        return f"group {self.group} has stored no offset for any queue of this query; check consumerGroup"


class CheckpointOfAnotherQueryError(SparkMqError):
    """A checkpoint that has no queue in common with the query: nothing was lost, whatever `failOnDataLoss` says.

    `difference` says what the checkpoint holds and what the query reads, `cure` what to do.
    """

    condition = "SPARK_MQ_CHECKPOINT_OF_ANOTHER_QUERY"

    def __init__(self, difference: str, cure: str) -> None:
        super().__init__(difference, cure)
        self.difference = difference
        self.cure = cure

    def describe(self) -> str:
        return f"the checkpoint is another query's, or another store's: {self.difference}"

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


class SinkModeError(SparkMqError):
    """A way of writing that a log cannot do."""

    condition = "SPARK_MQ_SINK_MODE"

    def __init__(self, mode: str) -> None:
        super().__init__(mode)
        self.mode = mode

    def describe(self) -> str:
        return f"a commit log is only appended to, {self.mode} would replace what it holds; write in mode append"


class SinkSchemaError(SparkMqError):
    """The DataFrame has a column that the sink does not take, or lacks one that it needs."""

    condition = "SPARK_MQ_SINK_SCHEMA"

    def __init__(self, column: str, rule: str) -> None:
        super().__init__(column, rule)
        self.column = column
        self.rule = rule

    def describe(self) -> str:
        return f"column {self.column}: {self.rule}"


class WritesOwnSourceError(SparkMqError):
    """A streaming query would write into a topic that it reads, in the same store or cluster."""

    condition = "SPARK_MQ_WRITES_OWN_SOURCE"

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def describe(self) -> str:
        return f"the query reads topic {self.topic} where it would write to it: each row that it writes would come back to it"

    def details(self) -> tuple[str, ...]:
        return ("Name another topic (option topic), or say writeToSource=true if that is meant",)


class Consequence(NamedTuple):
    """What to do about invalid rows, and what became of the others; `said` may be empty."""

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
            yield (
                f"{which}: the same"
                if (column, rule) == self.rejections[0][1:]
                else f"{which}, column {column}: {rule}"
            )


class WriteFailedError(SparkMqError):
    """A write that cannot be done as it was asked for; nothing of it is in the store."""

    condition = "SPARK_MQ_WRITE_FAILED"

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


class NotConfirmedError(SparkMqError):
    """A broker has stored rows, but not as safely as it is configured, and `acks=all` wants no less."""

    condition = "SPARK_MQ_SEND_NOT_CONFIRMED"

    def __init__(self, broker: str, count: int, status: str, why: str) -> None:
        super().__init__(broker, count, status, why)
        self.broker = broker
        self.count = count
        self.status = status
        self.why = why

    def describe(self) -> str:
        return f"broker {self.broker} has stored {self.count} rows and answers {self.status}: {self.why}"

    def details(self) -> tuple[str, ...]:
        return (
            "acks=stored takes such an answer for success",
            "With exactlyOnce the next try finds these rows and does not send them again; with atLeastOnce they are sent again",
        )


class BatchInDoubtError(SparkMqError):
    """A batch of an exactly-once sink of which nobody can say yet what the brokers hold; nothing more was sent."""

    condition = "SPARK_MQ_BATCH_IN_DOUBT"

    def __init__(self, batch: str, reason: str) -> None:
        super().__init__(batch, reason)
        self.batch = batch
        self.reason = reason

    def describe(self) -> str:
        return f"{self.batch} is in doubt: {self.reason}"

    def details(self) -> tuple[str, ...]:
        return (
            "Start the query again when its brokers answer; fenceTimeout says how long a commit waits for them",
            "Nothing is sent until every broker of the batch has told what it holds",
        )


class SentRowsLostError(SparkMqError):
    """Rows that an exactly-once sink has sent are not where they must be; sending the rest would break order or double rows."""

    condition = "SPARK_MQ_SENT_ROWS_LOST"

    def __init__(self, queue: str, rule: str) -> None:
        super().__init__(queue, rule)
        self.queue = queue
        self.rule = rule

    def describe(self) -> str:
        return f"queue {self.queue}: {self.rule}"

    def details(self) -> tuple[str, ...]:
        return ("docs/live.md says what to do", "What became of the batch cannot be known any more")


class StagingLostError(SparkMqError):
    """The staging directory of an exactly-once sink does not know a query that is not new."""

    condition = "SPARK_MQ_STAGING_LOST"

    def __init__(self, sink: str, rule: str) -> None:
        super().__init__(sink, rule)
        self.sink = sink
        self.rule = rule

    def describe(self) -> str:
        return f"sink {self.sink}: {self.rule}"

    def details(self) -> tuple[str, ...]:
        return ("Restore the staging directory, or begin with a new checkpoint. docs/live.md says more",)


def names(queues: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(queues)
    text = ", ".join(listed[:_NAMES_SHOWN])
    return text if len(listed) <= _NAMES_SHOWN else f"{text} and {len(listed) - _NAMES_SHOWN} more"


# Storage error → (condition, what a Spark user can do). A class not listed takes its nearest listed base.
