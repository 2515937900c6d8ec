"""Everything that can go wrong in a store, as one tree.

    StorageError
      ConfigurationError                broker.conf has a line that makes no sense
      StateFileError                    a config/*.json file is not readable
      NameIllegalError                  a topic, group or broker name is not legal
      StoreNotFoundError                no store there
        StoreNotSharedError             a machine does not see the store that another one sees
      TopicNotFoundError                the store knows no such topic
      StoreRefusedError                 a store that this package must not open
        IndexGeometryUnknownError       key look-ups need broker.conf
        IndexElsewhereError             a look-up by key of a store whose index lies in RocksDB
        ForeignLogError                 its log may be another store's, and is not written
      StoreLockedError                  another writer has it; retriable
        StoreServedError                a broker of ours has it, and has not taken a batch
      FileFailedError                   the operating system cannot read or write a file
        AccessDeniedError               this user may not open it, or has no credentials
        FileSystemUnavailableError      a scheme without a client here, or a server that refuses
      ReplicasNotEnoughError            too few replicas follow; nothing was written; retriable
      NotReplicatedError                a batch is in the log, and not yet on so many replicas; retriable
      StoreNotWritableError             read-only, disk full, shutting down; retriable
        LogFileNotMadeError             the log needs a new file, and none can be made
      StoreDamagedError                 intact records stand behind a bad one
        LogFileMissingError             the log lacks a file amid others
      StagedRowsGoneError               the rows that a task has staged are not there to be appended
      SinkTakenError                    another query writes under this sink's id
      SinkAheadError                    another run of the query has written the batch, or later ones
      SinkProgressError                 the sink's consumer offset is ahead of its ledger
      SliceMismatchError                a repeated batch has other rows than its slices in the log
      HalvesGoneError                   a repeated batch's first halves have expired
      TopicChangedError                 rows were staged for a queue that cannot be written
      CorruptRecordError                bytes on disk are wrong
        CorruptMessageError             a queue's message whose body is not what its record says
      MessageIllegalError               the caller's message is not acceptable
      PutRefusedError                   the put path refuses to store the message
      ColumnIllegalError                a table whose columns are not those of messages
      RowIllegalError                   a row that cannot be a message
      OffsetOutOfRangeError             the requested offset is not in the queue
        MovedMessagesMissingError       tiered storage lacks a file

A class is a declaration: its annotations are what it carries and what its constructor takes, `template` is its text, `hint` what an
operator can do, `condition` the name under which a Spark user sees it. Begin with `ErrorWithValues`.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, dataclass_transform

from storage.pending import PutStatus


@dataclass_transform()
class ErrorWithValues(Exception):
    """The root of all errors of this project that carry values.

    The annotations of a subclass are its constructor's parameters and its attributes, in order and with their defaults, like those of a
    dataclass. `__post_init__` may set others. Errors survive pickling, so they cross from a worker to the driver whole. A class with
    other parameters than its base writes an `__init__` and sets `args` to its own arguments: pickle makes the copy from them.
    """

    template: ClassVar[str] = ""
    """What happened and where, in one sentence, with names of attributes in braces. A part in square brackets stands only if its first
    attribute is neither None, 0 nor empty. What is more involved is written in `describe`."""

    hint: str | None = None
    """What can be done about it: of the class, or of one error. None for the parameter of that name leaves the class's."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = (name for name, kind in cls.__annotations__.items() if not str(kind).startswith("ClassVar"))
        cls._fields = tuple(dict.fromkeys((*cls._fields, *own)))

    def __init__(self, *given: Any, **named: Any) -> None:
        cls, fields = type(self), self._fields
        if fields:
            defaults = {name: getattr(cls, name) for name in fields if hasattr(cls, name)}
            values = defaults | dict(zip(fields, given, strict=False)) | named
            if len(given) > len(fields) or values.keys() != set(fields):
                raise TypeError(f"{cls.__name__} takes {', '.join(fields)}; given {given!r} and {named!r}")
            if "hint" in values:
                values["hint"] = values["hint"] or cls.hint
            for name, value in values.items():
                setattr(self, name, value)
            self.__post_init__()
            given = tuple(getattr(self, name) for name in fields)
        super().__init__(*given)

    def __post_init__(self) -> None:
        """For values that follow from those given."""

    def describe(self) -> str:
        """What happened and where, in one sentence: the text's first line. The hint is the second."""
        if not self.template:
            return ": ".join(map(str, self.args))
        text = _OPTIONAL.sub(lambda part: part[1] if getattr(self, part[2]) else "", self.template)
        return text.format_map(_Attributes(self))

    def __str__(self) -> str:
        return f"{self.describe()}\n{self.hint}" if self.hint else self.describe()


_OPTIONAL = re.compile(r"\[([^]{]*\{(\w+)[^]]*)\]")


class _Attributes:
    """An error's attributes, properties among them, by name."""

    def __init__(self, error: ErrorWithValues) -> None:
        self._error = error

    def __getitem__(self, name: str) -> Any:
        return getattr(self._error, name)


class DescribedError(ErrorWithValues):
    """An error of a store or of a client, with what a Spark user is shown for it."""

    retriable = False
    """Whether the same call may succeed later without a change by an operator."""

    condition = "SPARK_MQ_ERROR"
    """The name in brackets, which docs/errors.md explains; of the nearest base that has one."""

    spark_cure: ClassVar[str | None] = None
    """What a Spark user can do, in terms of options. It replaces the hint."""

    spark_note: ClassVar[str | None] = None
    """What else a Spark user can do or should know."""

    def cure(self) -> str | None:
        """The hint, or a better one for these values."""
        return self.hint

    def advice(self) -> tuple[str, ...]:
        """What a Spark user can do, line by line."""
        return tuple(line for line in (self.spark_cure or self.cure(), self.spark_note) if line)


class StorageError(DescribedError):
    """Base of all errors of this package."""

    condition = "SPARK_MQ_STORE_ERROR"


def cause_and_cure(cause: str, cure: str | None) -> str:
    """One line: what happened, and behind it what to do."""
    if not cure:
        return cause
    if cause.endswith("?"):
        return f"{cause} {cure}"
    return f"{cause}. {cure}" if cure[0].isupper() else f"{cause}; {cure}"


# A store, its settings, its files, or the machine that opens it.

_NOT_LOST = "No message is lost by it; failOnDataLoss does not matter here"
_CONFIGURE = "Name the broker's configuration file in the option conf"


class ConfigurationError(StorageError):
    """A line of broker.conf, or a value given in its place, that makes no sense.

    `line` counts from 1 and is None when the value stands in no file; `key` is Java's property name.
    """

    condition = "SPARK_MQ_STORE_CONFIGURATION"
    spark_note = _CONFIGURE
    file: str | None
    line: int | None
    key: str | None
    rule: str

    def describe(self) -> str:
        where = "configuration" if self.file is None else self.file
        if self.line is not None:
            where += f", line {self.line}"
        return f"{where}: {self.rule}" if self.key is None else f"{where}: {self.key}: {self.rule}"


class StateFileError(StorageError):
    """A `config/*.json` file (topics, groups, offsets) that cannot be read. `line` and `column` count from 1; 0 = unknown."""

    condition = "SPARK_MQ_STORE_STATE_FILE"
    file: str | None
    line: int
    column: int
    rule: str

    def describe(self) -> str:
        where = "state file" if self.file is None else self.file
        if self.line:
            where += f", line {self.line}, column {self.column}"
        return f"{where}: {self.rule}"


class NameIllegalError(StorageError):
    """A name that must not become a path, a key or a record; `kind` is "topic", "group" or "broker"."""

    condition = "SPARK_MQ_ILLEGAL_NAME"
    spark_note = "Check topic, subscribe, assign and consumerGroup"
    kind: str
    name: str
    rule: str

    def describe(self) -> str:
        shown = self.name if len(self.name) <= 80 else self.name[:80] + "…"
        return f"{self.kind} name {shown!r} is illegal: {self.rule}"


class StoreNotFoundError(StorageError):
    """There is no store at `path`; `missing` names what was looked for, `found` says what is there instead."""

    condition = "SPARK_MQ_STORE_NOT_FOUND"
    template = "no RocketMQ store at {path}: {found_instead}"
    spark_note = "Check the option path"
    path: str
    missing: str = "commitlog/"
    found: str | None = None
    hint: str | None = "give the directory that holds commitlog/, consumequeue/ and config/"

    @property
    def found_instead(self) -> str:
        return self.found or f"{self.missing} is missing"


class StoreNotSharedError(StoreNotFoundError):
    """The machine `host` sees another directory at `path` than the rest of its query, or none; `reason` says how that shows.

    No messages are lost: they are where the other machines look.
    """

    template = "machine {host} does not see at {path} what the rest of the query sees there: {reason}"
    spark_note = _NOT_LOST
    hint = (
        "mount one directory at this path on every machine that runs executors, and on the driver's; "
        "if that is so, its files have changed since the query was planned: start the query again"
    )

    def __init__(self, host: str, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.args = (host, path, reason)
        self.host = host
        self.reason = reason


class TopicNotFoundError(StorageError):
    """The store has no queue of `topic`, and its topics.json does not name it. `nearest` is the most similar known topic, or None."""

    condition = "SPARK_MQ_TOPIC_NOT_FOUND"
    template = "there is no topic {topic} in {path}[; did you mean {nearest}?]"
    path: str
    topic: str
    nearest: str | None


class StoreRefusedError(StorageError):
    """A store that must not be written (DLedger, RocksDB, batch queues …), or not opened, lest it show wrong or zero rows."""

    condition = "SPARK_MQ_STORE_REFUSED"
    template = "store {path} is refused: {reason}"
    path: str
    reason: str
    hint: str | None = None


class IndexGeometryUnknownError(StoreRefusedError):
    """The slot and item counts of an index file are in no file. They are not configured, and not Java's default.

    `found_size_bytes` is the length of the index file.
    """

    condition = "SPARK_MQ_INDEX_GEOMETRY_UNKNOWN"
    spark_note = _CONFIGURE + ", or filter without the option key"
    hint = "give broker.conf with maxHashSlotNum and maxIndexNum"

    def __init__(self, path: str, found_size_bytes: int) -> None:
        super().__init__(
            path,
            f"its index file of {found_size_bytes} bytes has not the default geometry, "
            "and the geometry stands in no file of the store",
        )
        self.args = (path, found_size_bytes)
        self.found_size_bytes = found_size_bytes


class IndexElsewhereError(StoreRefusedError):
    """A look-up by key cannot be answered: the index lies in RocksDB, and the index files lack what was stored since.

    Spark's option `key` looks into the log for what the files lack, so it never raises this.
    """

    condition = "SPARK_MQ_INDEX_ELSEWHERE"
    hint = (
        "read with Spark's option key, which scans what the files lack, or ask a broker with indexFileReadEnable=false"
    )

    def __init__(self, path: str) -> None:
        rule = "indexRocksDBEnable=true, indexFileWriteEnable=false: its index lies in RocksDB, a look-up by key would find nothing"
        super().__init__(path, rule)
        self.args = (path,)


class ForeignLogError(StoreRefusedError):
    """The log to write lies outside the store's directory, and may be another store's. Nothing was changed.

    `log` is the directory or file concerned.
    """

    condition = "SPARK_MQ_FOREIGN_LOG"
    template = "store {path} is not written: {reason}"

    def __init__(self, path: str, log: str, reason: str, hint: str) -> None:
        super().__init__(path, reason, hint)
        self.args = (path, log, reason, hint)
        self.log = log


class StoreLockedError(StorageError):
    """Another writer, ours or a running broker, holds byte 0 of `ROOT/lock`.

    `holder` is that process; None if this machine does not show it.
    """

    condition = "SPARK_MQ_STORE_LOCKED"
    template = "store {path} is locked by another writer{by_and_wait}"
    retriable = True
    hint = "stop the broker or wait for the other writer; reading needs no lock"
    spark_note: ClassVar[str | None] = "Only commitOffsets and writing need the lock; a sink waits lockTimeout for it"
    path: str
    waited_ms: int = 0
    holder: str | None = None

    @property
    def by_and_wait(self) -> str:
        waited = f" after waiting {self.waited_ms} ms" if self.waited_ms else ""
        return waited if self.holder is None else f", {self.holder},{waited}".rstrip(",")


class StoreServedError(StoreLockedError):
    """A broker of this package serves the store: it takes a sink's batches, and `reason` says why it has not taken this one."""

    condition = "SPARK_MQ_STORE_SERVED"
    template = "store {path} is served by a broker of this package[, {holder}]: {reason}"
    spark_note = None
    hint = (
        "run the query on the broker's machine, as the broker's user; or send to the broker as to any other (option nameServer); "
        "reading needs no lock"
    )

    def __init__(self, path: str, reason: str, holder: str | None = None) -> None:
        super().__init__(path, 0, holder)
        self.args = (path, reason, holder)
        self.reason = reason


class FileFailedError(StorageError):
    """The operating system of `host` could not read, write or find `path`."""

    condition = "SPARK_MQ_FILE_FAILED"
    template = "{short_path} on host {host}: {reason}"
    path: str
    host: str
    reason: str
    hint: str

    @property
    def short_path(self) -> str:
        """The path, or its two ends, so that a text stays short."""
        return self.path if len(self.path) <= 120 else f"{self.path[:60]}…{self.path[-59:]}"


class AccessDeniedError(FileFailedError):
    """`user` on `host` may not open `path`, or the machine has no credentials for it; `reason` names what stands in the way."""

    condition = "SPARK_MQ_ACCESS_DENIED"
    template = "user {user} on host {host} may not open {short_path}: {reason}"

    def __init__(self, path: str, host: str, user: str, reason: str, hint: str) -> None:
        super().__init__(path, host, reason, hint)
        self.args = (path, host, user, reason, hint)
        self.user = user


class FileSystemUnavailableError(FileFailedError):
    """No client on `host` can open `path`, a URL: its scheme is unknown, a package is missing, a server does not answer."""

    condition = "SPARK_MQ_FILE_SYSTEM_UNAVAILABLE"
    template = "host {host} cannot open {short_path}: {reason}"


class ReplicasNotEnoughError(StorageError):
    """Too few replicas follow the store, so the batch is not started. Java: IN_SYNC_REPLICAS_NOT_ENOUGH."""

    condition = "SPARK_MQ_REPLICAS_NOT_ENOUGH"
    retriable = True
    template = "store {path}: {needed} copies are required, and {present} are in sync, the master's among them; nothing was written"
    hint = "start the slaves, look at their logs, or require fewer copies (option inSyncReplicas)"
    path: str
    needed: int
    present: int


class NotReplicatedError(StorageError):
    """A batch is in the log, and too few replicas have confirmed in time that they hold it. Java: FLUSH_SLAVE_TIMEOUT."""

    condition = "SPARK_MQ_NOT_REPLICATED"
    retriable = True
    hint = "the next try writes nothing twice, and waits on"
    path: str
    needed: int
    timeout_ms: int

    def describe(self) -> str:
        copies = f"{self.needed} copies" if self.needed > 0 else "copies on the whole SyncStateSet"
        return (
            f"store {self.path}: the batch is in the log, and {copies} of it were not there within {self.timeout_ms} ms"
        )


class StoreNotWritableError(StorageError):
    """The store cannot take a write now: opened read-only, disk full, a sync failed, shutting down."""

    condition = "SPARK_MQ_STORE_NOT_WRITABLE"
    retriable = True
    template = "store {path} cannot be written: {reason}"
    path: str
    reason: str
    hint: str | None = None


class LogFileNotMadeError(StoreNotWritableError):
    """The log needs a new file, and none can be made: a full disk, no permission. Nothing was written.

    Java: CREATE_MAPPED_FILE_FAILED.
    """


class StoreDamagedError(StorageError):
    """A bad record with intact ones behind it: damage in the middle, not the torn tail of a crash.

    `commitlog_offset` is where the bad record begins in the log, `position` the same within `file`; `field` is what was wrong with it
    and `intact_records_behind` how many good records cutting there would lose (a lower bound).
    """

    condition = "SPARK_MQ_STORE_DAMAGED"
    template = (
        "the log is damaged in {file} at byte {position} (bad {field}): "
        "at least {intact_records_behind} intact record(s) stand behind it"
    )
    hint = "`spark-mq repair` copies what stands behind it to a quarantine and cuts the log there, as a broker would"
    file: str
    position: int
    field: str
    intact_records_behind: int
    commitlog_offset: int | None = None


class LogFileMissingError(StoreDamagedError):
    """The log lacks `count` files, from `file` on, between the files `before` and `behind`; records stand behind them.

    `start` and `end` are the range of log offsets that they held.
    """

    condition = "SPARK_MQ_LOG_FILE_MISSING"
    template = "the log lacks {files}, between {before} and {behind}: the messages in bytes {start} to {end} of the log cannot be read"
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

    @property
    def files(self) -> str:
        return self.file if self.count == 1 else f"{self.count} files from {self.file} on"


# What keeps a sink's batch from being committed.


class StagedRowsGoneError(StorageError):
    """A file that a task of the sink staged is missing; `rows` is how many rows it held, None if not known."""

    condition = "SPARK_MQ_STAGED_ROWS_GONE"
    template = "the staged file {path} is gone[, with {rows} rows that were to be written]"
    hint = "put the file back, if somebody has moved it; its rows belong to a batch that was decided"
    path: str
    rows: int | None = None


class SinkTakenError(StorageError):
    """A sink's id belongs to one query: `owner` wrote under it last, and `query_id` is another.

    A query gets a new id with a new checkpoint, so its batches begin at 0 again, and the ledger cannot say which of them are done.
    """

    condition = "SPARK_MQ_SINK_TAKEN"
    template = "sink {sink_id} of store {path} belongs to query {owner}, and this is query {query_id}"
    hint = (
        "the usual cause is a checkpoint that was deleted or is new: bring the old one back, or give the query a sinkId of its own; "
        "sinkTakeover=true writes the rows of the new checkpoint's first batches again, whatever of them the store holds"
    )
    path: str
    sink_id: str
    owner: str
    query_id: str


class SinkAheadError(StorageError):
    """A run of a query brings a batch that another run of the query has already passed, has written with other rows, or is writing now.

    The other run has written batch `known` with `known_rows` rows (None if not known). This run's rows would count as written without
    being written, or would be written twice.
    """

    condition = "SPARK_MQ_SINK_AHEAD"
    path: str
    sink_id: str
    batch_id: int
    row_count: int
    known: int
    known_rows: int | None

    def __post_init__(self) -> None:
        another_run = (
            "another run of the query has gone on: its checkpoint is a copy or an older backup, or a driver stood still while its "
            "successor ran. End one of the two, and go on with the newest checkpoint; where there is none, take a new one and start it "
            "behind what was written"
        )
        if self.known == self.batch_id and self.known_rows != self.row_count:
            self.hint = (
                "the query gives other rows now than when this batch was written: a filter was changed, a static table that it joins "
                "has, or the number of its rows is left to chance. Then sinkTakeover=true passes over this batch, whose rows stay as "
                f"they were written, and the query goes on behind it; take the option away again. Or {another_run}"
            )
        elif self.known >= self.batch_id:
            self.hint = f"{another_run}. sinkTakeover=true passes over this batch: its rows are not written"
        else:
            self.hint = another_run

    def describe(self) -> str:
        rows = "" if self.known_rows is None else f" with {self.known_rows} rows"
        whose = " by another run of its query, too" if self.known < self.batch_id else ""
        return (
            f"{self.path}: batch {self.known} of sink {self.sink_id} is written{rows}{whose}, and this run of its query comes with "
            f"batch {self.batch_id}, {self.row_count} rows. Nothing was written"
        )


class SinkProgressError(StorageError):
    """A sink's consumer offset names a batch that the ledger does not know.

    A client of a broker may have set the offset, or the log has lost its end. `mirrored` is the last batch by the offset, `known` the
    last by the ledger; None if the sink's ledger messages have expired or were cut.
    """

    condition = "SPARK_MQ_SINK_PROGRESS"
    path: str
    sink_id: str
    mirrored: int
    known: int | None
    query_id: str

    def __post_init__(self) -> None:
        command = f"`spark-mq confirm-sink {self.path} {self.sink_id}"
        if self.known is not None:
            cure = f"{command}` sets the offset back to {self.known + 1}, and later batches are written again"
        else:
            query = "" if self.query_id == self.sink_id else f" --query {self.query_id}"
            cure = f"{command} --last-batch N{query}` says so to the store, with -1 for N if none is there"
        self.hint = f"find out which of the sink's batches are in the store; {cure}"

    def describe(self) -> str:
        known = "the ledger holds none of its batches" if self.known is None else f"the ledger's last is {self.known}"
        return (
            f"store {self.path}: the consumer offset of sink {self.sink_id} says that batch {self.mirrored} is written, but {known}; "
            "either a client has set the offset, or the log has lost its end. Nothing was written"
        )


class SliceMismatchError(StorageError):
    """The log holds a slice of a batch without an END, and the rows `first_row` up to `end_row`, staged again, differ from it.

    `query_id` and `batch_id` name the batch; `commitlog_offset` is the place of the slice's ledger message.
    """

    condition = "SPARK_MQ_SLICE_MISMATCH"
    hint = (
        "a query must give the same rows in the same order when it repeats a batch: undo what was changed in it, in its sources or in "
        "its number of partitions, in its options (compressBodyOver, queueNum), or in the settings that rows carry (regionId, traceOn, "
        "brokerClusterName, the topic's number of queues), and start it again; or give it a sinkId of its own, under which the batch "
        "is written anew, beside the rows of it that the store holds"
    )
    path: str
    sink_id: str
    query_id: str
    batch_id: int
    first_row: int
    end_row: int
    commitlog_offset: int
    row_count: int

    def describe(self) -> str:
        return (
            f"store {self.path}: the log holds a part of batch {self.batch_id} of sink {self.sink_id}, and rows {self.first_row} to "
            f"{self.end_row - 1} of it (slice at {self.commitlog_offset}) are not those that were staged now, {self.row_count} in all. "
            "Nothing was written"
        )


class HalvesGoneError(StorageError):
    """The log holds a part of a batch of transactions without an END, but its first halves have expired.

    `first_row` is the first half that is still there, `commitlog_offset` the place of its slice's ledger message.
    """

    condition = "SPARK_MQ_HALVES_GONE"
    template = (
        "store {path}: the log holds halves of batch {batch_id} of sink {sink_id} from number {first_row} on "
        "(slice at {commitlog_offset}). The halves before them have expired, so no commit can name them. Nothing was written"
    )
    hint = (
        "give the query a sinkId of its own: under it the batch is written anew, whole. A broker, or the transaction check, asks the "
        "producer about the halves that are there, and gives them up in the end"
    )
    path: str
    sink_id: str
    query_id: str
    batch_id: int
    first_row: int
    commitlog_offset: int


class TopicChangedError(StorageError):
    """Rows were staged for a queue that the topic, at the time of the commit, does not offer for writing."""

    condition = "SPARK_MQ_TOPIC_CHANGED"
    template = "rows are staged for queue {queue_id} of topic {topic}, but {rule}"
    hint = "nothing was written; start the query again, so that its rows are staged for the topic as it is"
    topic: str
    queue_id: int
    rule: str


# A message, a row, a record, or a request for them.


class CorruptRecordError(StorageError):
    """Bytes that are not what the format says.

    `field` is the part that is wrong, `position` the byte where the record (or the structure) begins in `file`, or in the given buffer
    if `file` is None; `expected` and `found` are the values or a few words.
    """

    condition = "SPARK_MQ_CORRUPT_RECORD"
    template = "bad {field} [in {file} ]at byte {position}: expected {expected}, found {found}"
    spark_note = "`spark-mq verify` shows what else differs"
    field: str
    position: int
    expected: object
    found: object
    file: str | None = None

    @property
    def reason(self) -> str:
        """What is wrong, without where."""
        return f"bad {self.field}: expected {self.expected}, found {self.found}"


class CorruptMessageError(CorruptRecordError):
    """A message whose body or checksum is not what its record says, though its queue serves it.

    The producer may have sent it so: a broker does not look at a body that is flagged as compressed. `broker_name` is None if not
    known. `position` is the place in the commit log.
    """

    template = (
        "the message at offset {queue_offset} of topic {topic}, queue {queue_id}[, broker {broker_name}] "
        "(byte {commitlog_offset} of the commit log) is corrupt: {reason}"
    )
    spark_note = (
        "With mode=PERMISSIVE such a message becomes a row with a null body and the reason in the column _corrupt, and the query goes "
        "on from its checkpoint; a new query can also start behind the message (startingOffsets)"
    )

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


class MessageIllegalError(StorageError):
    """A message over a limit. `what` is the part ("body", …); `limit` and `actual` are bytes unless `what` says otherwise."""

    condition = "SPARK_MQ_ILLEGAL_MESSAGE"
    template = "illegal message: {what} is {actual}, the limit is {limit}"
    what: str
    limit: int
    actual: int


class PutRefusedError(StorageError):
    """A message that was not stored; `status` says why, in a broker's words."""

    condition = "SPARK_MQ_MESSAGE_REFUSED"
    template = "{status.value}: {reason}"
    status: PutStatus
    reason: str


class ColumnIllegalError(StorageError):
    """The columns of a table are not those of messages: one is unknown, missing, duplicate or of another type."""

    condition = "SPARK_MQ_SINK_SCHEMA"
    template = "column {column}: {rule}"
    column: str
    rule: str


class RowIllegalError(StorageError):
    """Rows that cannot be messages; nothing of the call was appended.

    `row` counts from 0 in the given table; `more` is how many other rows are refused too.
    """

    condition = "SPARK_MQ_ILLEGAL_ROW"
    template = "row {row}, column {column}: {rule}[; {more} more rows are refused]"
    row: int
    column: str
    rule: str
    more: int = 0


class OffsetOutOfRangeError(StorageError):
    """`asked` lies outside `minimum` (inclusive) … `maximum` (exclusive) of a queue.

    `queue_id` is None if `topic` names the log itself. A stream handles it as `failOnDataLoss` says.
    """

    condition = "SPARK_MQ_DATA_LOSS"
    topic: str
    queue_id: int | None
    minimum: int
    maximum: int
    asked: int

    def describe(self) -> str:
        place = self.topic if self.queue_id is None else f"{self.topic} queue {self.queue_id}"
        return f"offset {self.asked} of {place} is out of range: it holds [{self.minimum}, {self.maximum})"


class MovedMessagesMissingError(OffsetOutOfRangeError):
    """Tiered storage lacks the messages at `asked` (inclusive) … `minimum` (exclusive) of a queue; `file` should have the first."""

    file: str

    def describe(self) -> str:
        last, place = self.minimum - 1, f"{self.topic} queue {self.queue_id}"
        return f"offsets {self.asked} to {last} of {place} have moved into tiered storage, and are not there: see file {self.file}"
