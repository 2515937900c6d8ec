"""What is wrong with a message, a row, a record, or what was asked of them."""

from __future__ import annotations

from storage.errors.base import StorageError, place_text
from storage.put_status import PutStatus


class NameIllegalError(StorageError):
    """A name that must not become a path, a key or a record; `kind` is "topic", "group" or "broker"."""

    def __init__(self, kind: str, name: str, rule: str) -> None:
        super().__init__(kind, name, rule)
        self.kind = kind
        self.name = name
        self.rule = rule

    def describe(self) -> str:
        shown = self.name if len(self.name) <= 80 else self.name[:80] + "…"
        return f"{self.kind} name {shown!r} is illegal: {self.rule}"


class TopicNotFoundError(StorageError):
    """The store has no queue of `topic`, and its topics.json does not name it; `nearest` is the known topic most like it, if any is."""

    def __init__(self, path: str, topic: str, nearest: str | None) -> None:
        super().__init__(path, topic, nearest)
        self.path = path
        self.topic = topic
        self.nearest = nearest

    def describe(self) -> str:
        text = f"there is no topic {self.topic} in {self.path}"
        return text if self.nearest is None else f"{text}; did you mean {self.nearest}?"


class CorruptRecordError(StorageError):
    """Bytes that are not what the format says.

    `field` is the part that is wrong, `position` the byte where the record (or the structure) begins in
    `file`, or in the given buffer if `file` is None; `expected` and `found` are the values or a few words.
    """

    def __init__(self, field: str, position: int, expected: object, found: object, file: str | None = None) -> None:
        super().__init__(field, position, expected, found, file)
        self.field = field
        self.position = position
        self.expected = expected
        self.found = found
        self.file = file

    @property
    def reason(self) -> str:
        """What is wrong, without where."""
        return f"bad {self.field}: expected {self.expected}, found {self.found}"

    def describe(self) -> str:
        return f"bad {self.field} {place_text(self.file, self.position)}: expected {self.expected}, found {self.found}"


class CorruptMessageError(CorruptRecordError):
    """A message that its queue serves, but whose body or checksum is not what its record says.

    The producer may have sent it so: a broker stores a body that is called compressed without looking at it. `broker_name` is None
    where nobody asked which broker's store it is. `position` is the place in the commit log.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        commitlog_offset: int,
        field: str,
        expected: object,
        found: object,
        broker_name: str | None = None,
    ) -> None:
        super().__init__(field, commitlog_offset, expected, found)
        self.args = (topic, queue_id, queue_offset, commitlog_offset, field, expected, found, broker_name)
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.commitlog_offset = commitlog_offset
        self.broker_name = broker_name

    def of_broker(self, broker_name: str) -> CorruptMessageError:
        """The same error with the broker's name."""
        place = self.topic, self.queue_id, self.queue_offset, self.commitlog_offset
        return CorruptMessageError(*place, self.field, self.expected, self.found, broker_name)

    def describe(self) -> str:
        broker = "" if self.broker_name is None else f", broker {self.broker_name}"
        return (
            f"the message at offset {self.queue_offset} of topic {self.topic}, queue {self.queue_id}{broker} "
            f"(byte {self.commitlog_offset} of the commit log) is corrupt: {self.reason}"
        )


class MessageIllegalError(StorageError):
    """A message over a limit.

    `what` is the part ("body", "properties", …); `limit` and `actual` are bytes unless `what` says otherwise.
    """

    def __init__(self, what: str, limit: int, actual: int) -> None:
        super().__init__(what, limit, actual)
        self.what = what
        self.limit = limit
        self.actual = actual

    def describe(self) -> str:
        return f"illegal message: {self.what} is {self.actual}, the limit is {self.limit}"


class PutRefusedError(StorageError):
    """A message that is not stored; `status` says why in the words of a broker."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason

    def describe(self) -> str:
        return f"{self.status.value}: {self.reason}"


class ColumnIllegalError(StorageError):
    """A table whose columns are not those of messages: one is unknown, missing, there twice, or of another type."""

    def __init__(self, column: str, rule: str) -> None:
        super().__init__(column, rule)
        self.column = column
        self.rule = rule

    def describe(self) -> str:
        return f"column {self.column}: {self.rule}"


class RowIllegalError(StorageError):
    """Rows that cannot be messages; nothing of the call was appended.

    `row` counts from 0 in the table given, `more` is how many other rows are refused too.
    """

    def __init__(self, row: int, column: str, rule: str, more: int = 0) -> None:
        super().__init__(row, column, rule, more)
        self.row = row
        self.column = column
        self.rule = rule
        self.more = more

    def describe(self) -> str:
        others = f"; {self.more} more rows are refused" if self.more else ""
        return f"row {self.row}, column {self.column}: {self.rule}{others}"


class OffsetOutOfRangeError(StorageError):
    """`asked` lies outside `minimum` (inclusive) … `maximum` (exclusive) of a queue.

    `queue_id` is None where `topic` names the log itself. What it means for a stream is `failOnDataLoss`'s
    business.
    """

    def __init__(self, topic: str, queue_id: int | None, minimum: int, maximum: int, asked: int) -> None:
        super().__init__(topic, queue_id, minimum, maximum, asked)
        self.topic = topic
        self.queue_id = queue_id
        self.minimum = minimum
        self.maximum = maximum
        self.asked = asked

    def describe(self) -> str:
        place = self.topic if self.queue_id is None else f"{self.topic} queue {self.queue_id}"
        return f"offset {self.asked} of {place} is out of range: it holds [{self.minimum}, {self.maximum})"
