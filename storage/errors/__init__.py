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
        StoreServedError(path, reason)              a broker of ours has it, and has not taken a batch
      FileFailedError(path, host, reason)           the operating system cannot read or write a file
        AccessDeniedError(path, host, user, reason)   this user may not open it, or has no credentials
        FileSystemUnavailableError(url, host, reason) a scheme without a client here, or a server that refuses
      ReplicasNotEnoughError(path, needed, present) too few replicas follow; nothing was written; retriable
      NotReplicatedError(path, needed, timeout_ms)  a batch is in the log, and not yet on so many replicas; retriable
      StoreNotWritableError(path, reason)           read-only, disk full, shutting down; retriable
        LogFileNotMadeError(path, reason)           the log needs a new file, and none can be made
      StagedRowsGoneError(path, rows)               what a task has staged is not there to be appended
      SinkTakenError(path, sink_id, owner, query)   another query writes under this sink's id
      SinkAheadError(path, sink_id, …)              another run of the query has written the batch, or later ones
      SinkProgressError(path, sink_id, …)           the sink's consumer offset says more than its ledger
      SliceMismatchError(path, sink_id, …)          a repeated batch has other rows than its slices in the log
      HalvesGoneError(path, sink_id, …)             a repeated batch's first halves have expired
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

Begin with `base.py`. Imports `put_status.py` alone.
"""

from __future__ import annotations

from storage.errors.base import StorageError
from storage.errors.of_messages import (
    ColumnIllegalError,
    CorruptMessageError,
    CorruptRecordError,
    MessageIllegalError,
    NameIllegalError,
    OffsetOutOfRangeError,
    PutRefusedError,
    RowIllegalError,
    TopicNotFoundError,
)
from storage.errors.of_sinks import (
    HalvesGoneError,
    SinkAheadError,
    SinkProgressError,
    SinkTakenError,
    SliceMismatchError,
    StagedRowsGoneError,
    TopicChangedError,
)
from storage.errors.of_stores import (
    AccessDeniedError,
    ConfigurationError,
    FileFailedError,
    FileSystemUnavailableError,
    ForeignLogError,
    IndexGeometryUnknownError,
    LogFileMissingError,
    LogFileNotMadeError,
    NotReplicatedError,
    ReplicasNotEnoughError,
    StateFileError,
    StoreDamagedError,
    StoreLockedError,
    StoreNotFoundError,
    StoreNotSharedError,
    StoreNotWritableError,
    StoreRefusedError,
    StoreServedError,
)

__all__ = [
    "AccessDeniedError",
    "ColumnIllegalError",
    "ConfigurationError",
    "CorruptMessageError",
    "CorruptRecordError",
    "FileFailedError",
    "FileSystemUnavailableError",
    "ForeignLogError",
    "HalvesGoneError",
    "IndexGeometryUnknownError",
    "LogFileMissingError",
    "LogFileNotMadeError",
    "MessageIllegalError",
    "NameIllegalError",
    "NotReplicatedError",
    "OffsetOutOfRangeError",
    "PutRefusedError",
    "ReplicasNotEnoughError",
    "RowIllegalError",
    "SinkAheadError",
    "SinkProgressError",
    "SinkTakenError",
    "SliceMismatchError",
    "StagedRowsGoneError",
    "StateFileError",
    "StorageError",
    "StoreDamagedError",
    "StoreLockedError",
    "StoreNotFoundError",
    "StoreNotSharedError",
    "StoreNotWritableError",
    "StoreRefusedError",
    "StoreServedError",
    "TopicChangedError",
    "TopicNotFoundError",
]
