"""Apache RocketMQ's message store in Python: the engine, without Spark. Start with `open_store`.

Users import the names listed here and no others: what `open_store` gives, and every error that it raises.
"""

from __future__ import annotations

from storage.errors import (
    AccessDeniedError,
    ColumnIllegalError,
    ConfigurationError,
    CorruptMessageError,
    CorruptRecordError,
    FileFailedError,
    FileSystemUnavailableError,
    ForeignLogError,
    HalvesGoneError,
    IndexGeometryUnknownError,
    LogFileMissingError,
    LogFileNotMadeError,
    MessageIllegalError,
    NameIllegalError,
    OffsetOutOfRangeError,
    PutRefusedError,
    RowIllegalError,
    SinkProgressError,
    SinkTakenError,
    SliceMismatchError,
    StagedRowsGoneError,
    StateFileError,
    StorageError,
    StoreDamagedError,
    StoreLockedError,
    StoreNotFoundError,
    StoreNotSharedError,
    StoreNotWritableError,
    StoreRefusedError,
    StoreServedError,
    TopicChangedError,
    TopicNotFoundError,
)
from storage.format.record import Message
from storage.get_result import GetResult, GetStatus
from storage.message_store import MessageStore, open_store
from storage.put.put import PutResult
from storage.settings.load import StoreConfig

__all__ = [
    "AccessDeniedError",
    "ColumnIllegalError",
    "ConfigurationError",
    "CorruptMessageError",
    "CorruptRecordError",
    "FileFailedError",
    "FileSystemUnavailableError",
    "ForeignLogError",
    "GetResult",
    "GetStatus",
    "HalvesGoneError",
    "IndexGeometryUnknownError",
    "LogFileMissingError",
    "LogFileNotMadeError",
    "Message",
    "MessageIllegalError",
    "MessageStore",
    "NameIllegalError",
    "OffsetOutOfRangeError",
    "PutRefusedError",
    "PutResult",
    "RowIllegalError",
    "SinkProgressError",
    "SinkTakenError",
    "SliceMismatchError",
    "StagedRowsGoneError",
    "StateFileError",
    "StorageError",
    "StoreConfig",
    "StoreDamagedError",
    "StoreLockedError",
    "StoreNotFoundError",
    "StoreNotSharedError",
    "StoreNotWritableError",
    "StoreRefusedError",
    "StoreServedError",
    "TopicChangedError",
    "TopicNotFoundError",
    "open_store",
]
