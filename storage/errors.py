"""Everything that can go wrong in a store, as one tree.

    StorageError
      ConfigurationError(file, line, key, rule)     broker.conf says what nobody can follow
      StateFileError(file, line, column, rule)      a config/*.json file is not readable
      NameIllegalError(kind, name, rule)            a topic, group or broker name is not legal
      StoreNotFoundError(path, missing)             no store there
        StoreNotSharedError(host, path, reason)     a machine does not see the store that another one sees
      TopicNotFoundError(path, topic, nearest)      the store knows no such topic
      StoreRefusedError(path, reason)               a store that this package must not open
        IndexGeometryUnknownError(path, found)      key look-ups need broker.conf
        ForeignLogError(path, log, reason, hint)    its log may be another store's, and is not written
      StoreLockedError(path)                        another writer has it; retriable
      FileFailedError(path, host, reason)           the operating system cannot read or write a file
        AccessDeniedError(path, host, user, reason)   this user may not open it, or has no credentials
        FileSystemUnavailableError(url, host, reason) a scheme without a client here, or a server that refuses
      StoreNotWritableError(path, reason)           read-only, disk full, shutting down; retriable
      StagedRowsGoneError(path, rows)               what a task has staged is not there to be appended
      SinkTakenError(path, sink_id, owner, query)   another query writes under this sink's id
      SinkProgressError(path, sink_id, …)           the sink's consumer offset says more than its ledger
      TopicChangedError(topic, queue_id, rule)      rows were staged for a queue that cannot be written
      StoreDamagedError(file, position, field, …)   intact records stand behind a bad one
        LogFileMissingError(file, before, behind, …)  the log lacks a file amid others
      CorruptRecordError(field, position, …)        bytes on disk are wrong
        CorruptMessageError(topic, queue_id, …)     a queue's message whose body is not what its record says
      ColumnIllegalError(column, rule)              a table that is none of messages
      RowIllegalError(row, column, rule, more)      a row that is no message
      MessageIllegalError(what, limit, actual)      the caller's message is not acceptable
      PutRefusedError(status, reason)               the put path takes the message for none that it may store
      OffsetOutOfRangeError(topic, queue_id, …)     the asked offset is not in the queue

Each error carries its values as attributes, says where (file, position) and by which rule, and where an
operator can do something about it, `hint` says what. `retriable` tells whether the same call may succeed
later without anybody changing anything. All of them survive pickling, so that an error crosses from a worker
to the driver whole.
"""

from __future__ import annotations

from typing import ClassVar

from storage.put_status import PutStatus


class StorageError(Exception):
    """Base of all errors of this package.

    A subclass hands its values to `super().__init__` in the order of its own parameters (pickle builds a copy
    from them) and writes its text in `describe`.
    """

    retriable: ClassVar[bool] = False

    hint: str | None = None
    """What an operator can do about it; a class's advice, or an instance's own."""

    def describe(self) -> str:
        """What happened and where, in one sentence: the text's first line. The hint is the second."""
        return ": ".join(str(value) for value in self.args)

    def __str__(self) -> str:
        return f"{self.describe()}\n{self.hint}" if self.hint else self.describe()


def _at(file: str | None, position: int) -> str:
    return f"at byte {position}" if file is None else f"in {file} at byte {position}"


def _shortened(path: str) -> str:
    """A path of which both ends are shown, so that a text stays short."""
    return path if len(path) <= 120 else f"{path[:60]}…{path[-59:]}"


class ConfigurationError(StorageError):
    """A line of broker.conf, or a value given in its place, that cannot be followed.

    `line` counts from 1 and is None when the value stands in no file; `key` is Java's property name.
    """

    def __init__(self, file: str | None, line: int | None, key: str | None, rule: str) -> None:
        super().__init__(file, line, key, rule)
        self.file = file
        self.line = line
        self.key = key
        self.rule = rule

    def describe(self) -> str:
        where = "configuration" if self.file is None else self.file
        if self.line is not None:
            where += f", line {self.line}"
        return f"{where}: {self.rule}" if self.key is None else f"{where}: {self.key}: {self.rule}"


class StateFileError(StorageError):
    """A `config/*.json` file (topics, groups, offsets) that cannot be read.

    `line` and `column` count from 1; 0 = unknown.
    """

    def __init__(self, file: str | None, line: int, column: int, rule: str) -> None:
        super().__init__(file, line, column, rule)
        self.file = file
        self.line = line
        self.column = column
        self.rule = rule

    def describe(self) -> str:
        where = "state file" if self.file is None else self.file
        if self.line:
            where += f", line {self.line}, column {self.column}"
        return f"{where}: {self.rule}"


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


class StoreNotFoundError(StorageError):
    """There is no store at `path`; `missing` names what was looked for, `found` says what is there instead."""

    hint = "give the directory that holds commitlog/, consumequeue/ and config/"

    def __init__(
        self, path: str, missing: str = "commitlog/", *, found: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(path, missing)
        self.path = path
        self.missing = missing
        self.found = found
        if hint is not None:
            self.hint = hint

    def describe(self) -> str:
        return f"no RocketMQ store at {self.path}: {self.found or f'{self.missing} is missing'}"


class StoreNotSharedError(StoreNotFoundError):
    """The machine `host` sees another directory at `path` than the rest of its query, or none; `reason` says how that shows.

    It is no loss of messages: they are where the others look.
    """

    hint = (
        "mount one directory at this path on every machine that runs executors, and on the driver's; "
        "if that is so, its files have changed since the query was planned: start the query again"
    )

    def __init__(self, host: str, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.args = (host, path, reason)
        self.host = host
        self.reason = reason

    def describe(self) -> str:
        return f"machine {self.host} does not see at {self.path} what the rest of the query sees there: {self.reason}"


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


class StoreRefusedError(StorageError):
    """A store that must not be opened (RocksDB, DLedger, batch queues …), lest it show wrong or zero rows."""

    def __init__(self, path: str, reason: str, hint: str | None = None) -> None:
        super().__init__(path, reason, hint)
        self.path = path
        self.reason = reason
        if hint is not None:
            self.hint = hint

    def describe(self) -> str:
        return f"store {self.path} is refused: {self.reason}"


class IndexGeometryUnknownError(StoreRefusedError):
    """The slots and items of an index file, which stand in no file, are not configured and not Java's
    default.

    `found_size_bytes` is the length of the index file.
    """

    def __init__(self, path: str, found_size_bytes: int) -> None:
        super().__init__(
            path,
            f"its index file of {found_size_bytes} bytes has not the default geometry, "
            "and the geometry stands in no file of the store",
            "give broker.conf with maxHashSlotNum and maxIndexNum",
        )
        self.args = (path, found_size_bytes)
        self.found_size_bytes = found_size_bytes


class ForeignLogError(StoreRefusedError):
    """The log that would be written does not lie in the store's directory, and may be another store's. Nothing was changed.

    `log` is the directory or file that it is about.
    """

    def __init__(self, path: str, log: str, reason: str, hint: str) -> None:
        super().__init__(path, reason, hint)
        self.args = (path, log, reason, hint)
        self.log = log

    def describe(self) -> str:
        return f"store {self.path} is not written: {self.reason}"


class StoreLockedError(StorageError):
    """Another writer, ours or a running broker, holds byte 0 of `ROOT/lock`."""

    retriable = True
    hint = "stop the broker or wait for the other writer; reading needs no lock"

    def __init__(self, path: str, waited_ms: int = 0, holder: str | None = None) -> None:
        super().__init__(path, waited_ms, holder)
        self.path = path
        self.waited_ms = waited_ms
        self.holder = holder
        """The process that holds it; None where this machine does not tell."""

    def describe(self) -> str:
        waited = f" after waiting {self.waited_ms} ms" if self.waited_ms else ""
        by = "another writer" if self.holder is None else f"another writer, {self.holder},"
        return f"store {self.path} is locked by {by}{waited}".rstrip(",")


class FileFailedError(StorageError):
    """The operating system of `host` could not read, write or find `path`."""

    def __init__(self, path: str, host: str, reason: str, hint: str) -> None:
        super().__init__(path, host, reason, hint)
        self.path = path
        self.host = host
        self.reason = reason
        self.hint = hint

    def describe(self) -> str:
        return f"{_shortened(self.path)} on host {self.host}: {self.reason}"


class AccessDeniedError(FileFailedError):
    """`user` on `host` may not open `path`, or the machine has no credentials for it; `reason` names what stands in the way."""

    def __init__(self, path: str, host: str, user: str, reason: str, hint: str) -> None:
        super().__init__(path, host, reason, hint)
        self.args = (path, host, user, reason, hint)
        self.user = user

    def describe(self) -> str:
        return f"user {self.user} on host {self.host} may not open {_shortened(self.path)}: {self.reason}"


class FileSystemUnavailableError(FileFailedError):
    """No client on `host` can open `path`, a URL: its scheme is unknown, a package is missing, a server does not answer."""

    def describe(self) -> str:
        return f"host {self.host} cannot open {_shortened(self.path)}: {self.reason}"


class StoreNotWritableError(StorageError):
    """The store cannot take a write now: opened read-only, disk full, a sync failed, shutting down."""

    retriable = True

    def __init__(self, path: str, reason: str, hint: str | None = None) -> None:
        super().__init__(path, reason, hint)
        self.path = path
        self.reason = reason
        if hint is not None:
            self.hint = hint

    def describe(self) -> str:
        return f"store {self.path} cannot be written: {self.reason}"


class StagedRowsGoneError(StorageError):
    """A file that a task of the sink has staged is not there; `rows` is how many it held, None where nobody knows."""

    hint = "put the file back, if somebody has moved it; its rows belong to a batch that was decided"

    def __init__(self, path: str, rows: int | None = None) -> None:
        super().__init__(path, rows)
        self.path = path
        self.rows = rows

    def describe(self) -> str:
        held = "" if self.rows is None else f", with {self.rows} rows that were to be written"
        return f"the staged file {self.path} is gone{held}"


class SinkTakenError(StorageError):
    """A sink's id belongs to one query: `owner` wrote under it last, and `query_id` is another.

    A query gets a new id with a new checkpoint, so its batches begin at 0 again, and the ledger cannot tell what of them is done.
    """

    hint = (
        "the usual cause is a checkpoint that was deleted or is new: bring the old one back, or give the query a sinkId of its own; "
        "sinkTakeover=true writes the rows of the new checkpoint's first batches again, whatever of them the store holds"
    )

    def __init__(self, path: str, sink_id: str, owner: str, query_id: str) -> None:
        super().__init__(path, sink_id, owner, query_id)
        self.path = path
        self.sink_id = sink_id
        self.owner = owner
        self.query_id = query_id

    def describe(self) -> str:
        return (
            f"sink {self.sink_id} of store {self.path} belongs to query {self.owner}, and this is query {self.query_id}"
        )


class SinkProgressError(StorageError):
    """A sink's consumer offset says that a batch is in the store which the ledger does not know.

    Any client of a broker may have set the offset, or the log has lost its end. `mirrored` is the last batch by the offset, `known` by
    the ledger; None where its messages of the sink have expired or were cut.
    """

    def __init__(self, path: str, sink_id: str, mirrored: int, known: int | None, query_id: str) -> None:
        super().__init__(path, sink_id, mirrored, known, query_id)
        self.path = path
        self.sink_id = sink_id
        self.mirrored = mirrored
        self.known = known
        self.query_id = query_id
        command = f"`spark-mq confirm-sink {path} {sink_id}"
        if known is not None:
            cure = f"{command}` sets the offset back to {known + 1}, and later batches are written again"
        else:
            query = "" if query_id == sink_id else f" --query {query_id}"
            cure = f"{command} --last-batch N{query}` says so to the store, with -1 for N if none is there"
        self.hint = f"find out which of the sink's batches are in the store; {cure}"

    def describe(self) -> str:
        known = "the ledger holds none of its batches" if self.known is None else f"the ledger's last is {self.known}"
        return (
            f"store {self.path}: the consumer offset of sink {self.sink_id} says that batch {self.mirrored} is written, but {known}; "
            "either a client has set the offset, or the log has lost its end. Nothing was written"
        )


class TopicChangedError(StorageError):
    """Rows were staged for a queue that the topic, as it is at the commit, does not offer for writing."""

    hint = "nothing was written; start the query again, so that its rows are staged for the topic as it is"

    def __init__(self, topic: str, queue_id: int, rule: str) -> None:
        super().__init__(topic, queue_id, rule)
        self.topic = topic
        self.queue_id = queue_id
        self.rule = rule

    def describe(self) -> str:
        return f"rows are staged for queue {self.queue_id} of topic {self.topic}, but {self.rule}"


class StoreDamagedError(StorageError):
    """A bad record with intact ones behind it: damage in the middle, not the torn tail of a crash.

    `commitlog_offset` is where the bad record begins in the log, `position` the same within `file`; `field`
    is what was wrong with it and `intact_records_behind` how many good records cutting there would lose (a
    lower bound).
    """

    hint = "`spark-mq repair` copies what stands behind it to a quarantine and cuts the log there, as a broker would"

    def __init__(
        self,
        file: str,
        position: int,
        field: str,
        intact_records_behind: int,
        commitlog_offset: int | None = None,
    ) -> None:
        super().__init__(file, position, field, intact_records_behind, commitlog_offset)
        self.file = file
        self.position = position
        self.field = field
        self.intact_records_behind = intact_records_behind
        self.commitlog_offset = commitlog_offset

    def describe(self) -> str:
        return (
            f"the log is damaged {_at(self.file, self.position)} (bad {self.field}): "
            f"at least {self.intact_records_behind} intact record(s) stand behind it"
        )


class LogFileMissingError(StoreDamagedError):
    """The log lacks `count` files, from `file` on, between the files `before` and `behind`; records stand behind them.

    `start` and `end` are the places in the log of the bytes that they held.
    """

    hint = (
        "bring the missing file back from a copy, or, if there is none, run `spark-mq repair`: it puts an empty file in its place "
        "and keeps the messages before and behind it"
    )

    def __init__(self, file: str, before: str, behind: str, start: int, end: int, count: int) -> None:
        super().__init__(file, 0, "file", 1, start)
        self.args = (file, before, behind, start, end, count)
        self.before = before
        self.behind = behind
        self.start = start
        self.end = end
        self.count = count

    def describe(self) -> str:
        which = self.file if self.count == 1 else f"{self.count} files from {self.file} on"
        return (
            f"the log lacks {which}, between {self.before} and {self.behind}: the messages in bytes {self.start} to {self.end} "
            "of the log cannot be read"
        )


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
        return f"bad {self.field} {_at(self.file, self.position)}: expected {self.expected}, found {self.found}"


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
