"""What is wrong with a store, its settings, its files, or the machine that opens it."""

from __future__ import annotations

from storage.errors.base import StorageError, place_text


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


class StoreServedError(StoreLockedError):
    """A broker of this package serves the store: it takes a sink's batches, and `reason` says why it has not taken this one."""

    hint = (
        "run the query on the broker's machine, as the broker's user; or send to the broker as to any other (option nameServer); "
        "reading needs no lock"
    )

    def __init__(self, path: str, reason: str, holder: str | None = None) -> None:
        super().__init__(path, 0, holder)
        self.args = (path, reason, holder)
        self.reason = reason

    def describe(self) -> str:
        by = "a broker of this package" if self.holder is None else f"a broker of this package, {self.holder}"
        return f"store {self.path} is served by {by}: {self.reason}"


class ReplicasNotEnoughError(StorageError):
    """Too few replicas follow the store, so a batch that must have so many copies is not begun. Java: IN_SYNC_REPLICAS_NOT_ENOUGH."""

    retriable = True
    hint = "start the slaves, look at their logs, or ask for fewer copies (option inSyncReplicas)"

    def __init__(self, path: str, needed: int, present: int) -> None:
        super().__init__(path, needed, present)
        self.path = path
        self.needed = needed
        self.present = present

    def describe(self) -> str:
        counts = f"{self.needed} copies are asked for, and {self.present} are in sync, the master's among them"
        return f"store {self.path}: {counts}; nothing was written"


class NotReplicatedError(StorageError):
    """A batch is in the log, and too few replicas have told in time that they hold it. Java: FLUSH_SLAVE_TIMEOUT."""

    retriable = True
    hint = "the next try writes nothing twice, and waits on"

    def __init__(self, path: str, needed: int, timeout_ms: int) -> None:
        super().__init__(path, needed, timeout_ms)
        self.path = path
        self.needed = needed
        self.timeout_ms = timeout_ms

    def describe(self) -> str:
        copies = f"{self.needed} copies" if self.needed > 0 else "copies on the whole SyncStateSet"
        return (
            f"store {self.path}: the batch is in the log, and {copies} of it were not there within {self.timeout_ms} ms"
        )


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


class LogFileNotMadeError(StoreNotWritableError):
    """The log needs a new file, and none can be made: a full disk, no permission. Nothing was written.

    Java: CREATE_MAPPED_FILE_FAILED.
    """


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
            f"the log is damaged {place_text(self.file, self.position)} (bad {self.field}): "
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
