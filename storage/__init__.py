"""Apache RocketMQ's message store in Python: the engine, without Spark. Start with `open_store`."""

from __future__ import annotations

from storage.errors import StorageError
from storage.format.record import Message
from storage.get_result import GetResult, GetStatus
from storage.message_store import MessageStore, open_store
from storage.put.put import PutResult
from storage.settings.load import StoreConfig

__all__ = [
    "GetResult",
    "GetStatus",
    "Message",
    "MessageStore",
    "PutResult",
    "StorageError",
    "StoreConfig",
    "open_store",
]
