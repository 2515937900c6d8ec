"""Apache RocketMQ's message store in Python: the engine, without Spark. Start with `open_store`.

Users import the names listed here and no others: what `open_store` gives, and every error that it raises. A name's module is loaded
when the name is first used: a name server or a client needs none of the store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        IndexElsewhereError,
        IndexGeometryUnknownError,
        LogFileMissingError,
        LogFileNotMadeError,
        MessageIllegalError,
        MovedMessagesMissingError,
        NameIllegalError,
        NotReplicatedError,
        OffsetOutOfRangeError,
        PutRefusedError,
        ReplicasNotEnoughError,
        RowIllegalError,
        SinkAheadError,
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
    from storage.put.put import PutResult
    from storage.queues.get import GetResult, GetStatus
    from storage.settings.load import StoreConfig
    from storage.store import MessageStore, open_store

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
    "IndexElsewhereError",
    "IndexGeometryUnknownError",
    "LogFileMissingError",
    "LogFileNotMadeError",
    "Message",
    "MessageIllegalError",
    "MessageStore",
    "MovedMessagesMissingError",
    "NameIllegalError",
    "NotReplicatedError",
    "OffsetOutOfRangeError",
    "PutRefusedError",
    "PutResult",
    "ReplicasNotEnoughError",
    "RowIllegalError",
    "SinkAheadError",
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

if not TYPE_CHECKING:
    _ELSEWHERE = {
        "GetResult": "queues.get",
        "GetStatus": "queues.get",
        "Message": "format.record",
        "MessageStore": "store",
        "PutResult": "put.put",
        "StoreConfig": "settings.load",
        "open_store": "store",
    }
    """Below `storage`; every other name is an error."""

    def __dir__() -> list[str]:
        """All public names, for `dir` and for completion in a shell, including names that are not loaded yet."""
        return sorted(__all__)

    def __getattr__(name: str) -> object:
        if name in __all__:
            found = getattr(import_module(f"storage.{_ELSEWHERE.get(name, 'errors')}"), name)
            globals()[name] = found
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
