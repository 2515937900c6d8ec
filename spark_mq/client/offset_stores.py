"""Committed offsets of a group: in memory, and written every few seconds to the broker or, when broadcasting, to a file.

An offset says that all messages before it were consumed. It is written every few seconds, when a queue is given up, and at
close; messages consumed after the last write are delivered again after a crash.

Java: OffsetStore, RemoteBrokerOffsetStore, LocalFileOffsetStore, ControllableOffset. Owned by the event loop's thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import field
from pathlib import Path

from spark_mq.client.consumer_calls import GroupBrokers
from spark_mq.client.errors import ClientError
from spark_mq.client.message import MessageQueue
from spark_mq.client.settings import default_offset_directory
from spark_mq.remoting import BodyError, WireBody, read_body
from spark_mq.remoting.consumers import MessageModel
from storage.format.typed_json import Long

_LOG = logging.getLogger(__name__)


class OffsetStore(ABC):
    """A group's offsets: in memory between two writes, then in the place of a subclass."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def known(self, queue: MessageQueue) -> int | None:
        """The queue's offset in memory."""
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int, *, only_forward: bool) -> None:
        """All before the offset is consumed; not while the queue's offset is frozen."""
        if queue not in self._frozen:
            known = self._offsets.get(queue)
            self._offsets[queue] = offset if known is None or not only_forward else max(known, offset)

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        """Set it, and let no listener that is still at work change it until `forget`."""
        self._frozen.add(queue)
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        """The queue is given up."""
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def snapshot(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """The offsets in memory, of one topic or of all."""
        return {queue: offset for queue, offset in self._offsets.items() if topic is None or queue.topic == topic}

    async def stored(self, queue: MessageQueue) -> int | None:
        """Read the stored offset, which counts from now on; None if there is none. Raises ClientError if it is not readable."""
        offset = await self._read(queue)
        if offset is not None:
            self.update(queue, offset, only_forward=False)
        return offset

    @abstractmethod
    async def load(self) -> None:
        """Read what is known before the first queue is taken."""

    @abstractmethod
    async def _read(self, queue: MessageQueue) -> int | None:
        """The stored offset."""

    @abstractmethod
    async def write(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Write what is known of these queues. With `wait` it returns when brokers have said that they have it.

        Failures are logged: the next writing says the same or more.
        """


class RemoteOffsetStore(OffsetStore):
    """The brokers keep the offsets, each those of its queues. Java: RemoteBrokerOffsetStore."""

    def __init__(self, brokers: GroupBrokers) -> None:
        super().__init__()
        self._brokers = brokers

    async def load(self) -> None:
        """Does nothing: each queue's offset is read when the queue is taken."""

    async def _read(self, queue: MessageQueue) -> int | None:
        return await self._brokers.stored_offset(queue)

    async def write(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        known = self.snapshot()
        outcomes = await asyncio.gather(*(self._write(queue, known[queue], wait) for queue in queues if queue in known))
        failed = [outcome for outcome in outcomes if outcome is not None]
        if failed:
            _LOG.warning("%d offsets were not stored at their brokers, the first one: %s", len(failed), failed[0])

    async def _write(self, queue: MessageQueue, offset: int, wait: bool) -> str | None:
        """The errors."""
        try:
            await self._brokers.store_offset(queue, offset, wait=wait)
        except ClientError as error:
            return f"offset {offset} of {queue}: {error}"
        return None


class _OffsetFile(WireBody):
    """The file's text. Java: OffsetSerializeWrapper."""

    offset_table: Mapping[MessageQueue, Long] = field(default_factory=dict)


class LocalOffsetFile:
    """A broadcast's offsets in a file: `~/.rocketmq_offsets/CLIENT_ID/GROUP/offsets.json`, as Java's clients write and read it.

    The file is replaced whole; the one before stays beside it as `offsets.json.bak` and is read where the file is not whole.
    A client id with a process id in it is another one after a restart: name the instance (`instance_name`) to go on.

    Java: LocalFileOffsetStore, OffsetSerializeWrapper, MixAll.string2File.
    """

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self.path = directory / client_id / group / "offsets.json"
        self._backup = self.path.with_name("offsets.json.bak")
        self._lock = threading.RLock()

    def read(self) -> dict[MessageQueue, int]:
        """All offsets, of the file or else of the one before; none where neither is there and whole."""
        with self._lock:
            for path in (self.path, self._backup):
                try:
                    return dict(read_body(_OffsetFile, path.read_bytes()).offset_table)
                except FileNotFoundError:
                    continue
                except (OSError, BodyError) as error:
                    _LOG.warning("%s cannot be read: %s", path, error)
        return {}

    def update(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write these beside those of other queues; of several threads one after the other. Raises OSError."""
        with self._lock:
            text = offsets_text({**self.read(), **offsets})
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = self.path.with_name("offsets.json.tmp")
            with aside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists():
                self.path.replace(self._backup)
            aside.replace(self.path)


def offsets_text(offsets: Mapping[MessageQueue, int]) -> str:
    """The file's text in fastjson's pretty layout, queues sorted."""
    entries = ",".join(
        "{\n\t\t\t"
        f'"brokerName":{json.dumps(queue.broker_name)},\n\t\t\t"queueId":{queue.queue_id},\n\t\t\t"topic":{json.dumps(queue.topic)}'
        f"\n\t\t}}:{offset}"
        for queue, offset in sorted(offsets.items())
    )
    return f'{{\n\t"offsetTable":{{{entries}' + ("\n\t}\n}" if offsets else "}\n}")


class LocalOffsetStore(OffsetStore):
    """A file of this client keeps the offsets: each client of a broadcast has its own. Java: LocalFileOffsetStore."""

    def __init__(self, file: LocalOffsetFile) -> None:
        super().__init__()
        self._file = file
        self._writing = asyncio.Lock()  # what is written later is what was known later

    async def load(self) -> None:
        for queue, offset in (await asyncio.to_thread(self._file.read)).items():
            self.update(queue, offset, only_forward=False)

    async def _read(self, queue: MessageQueue) -> int | None:
        return (await asyncio.to_thread(self._file.read)).get(queue)

    async def write(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        async with self._writing:
            known = self.snapshot()
            changed = {queue: known[queue] for queue in queues if queue in known}
            if not changed:
                return
            try:
                await asyncio.to_thread(self._file.update, changed)
            except OSError as error:
                _LOG.warning("offsets were not stored in %s; it is tried again: %s", self._file.path, error)


def offset_store_of(
    model: MessageModel, brokers: GroupBrokers, directory: Path | None, client_id: str, group: str
) -> OffsetStore:
    """The store for a group of this model: CLUSTERING at its brokers, BROADCASTING in a file of each client."""
    if model is MessageModel.CLUSTERING:
        return RemoteOffsetStore(brokers)
    return LocalOffsetStore(LocalOffsetFile(directory or default_offset_directory(), client_id, group))
