"""One message as a JSON object, in two vocabularies: the columns of the Spark source, and the words of Apache's tools.

`message_line` has the columns. The commands dump, query and quarantine print it, and produce reads it. Three things JSON cannot say as
Spark does: times are milliseconds since 1970; `properties` is an object; a body that is not UTF-8 is `body_base64`.

`dump_queue` has queue entry, decoded record and digests. Its fields are those that an Apache broker's own classes report of a message,
so that the output of two implementations can be compared line by line.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, NamedTuple

from storage import Message, MessageStore
from storage.errors import CorruptMessageError, StorageError
from storage.format.consume_queue import MAX_EXT_ADDRESS
from storage.format.record import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_ZSTD, host_text

BODY = "body"
BODY_BASE64 = "body_base64"
CORRUPT = "_corrupt"


class Unreadable(NamedTuple):
    """A queue offset that gives no message."""

    topic: str
    queue_id: int
    queue_offset: int
    reason: str

    def describe(self) -> str:
        """In one sentence."""
        return f"{self.topic} queue {self.queue_id} offset {self.queue_offset}: {self.reason}"


def message_line(message: Message, *, broker_name: str | None = None, body: bool = False) -> dict[str, Any]:
    """The message's columns, in their order; without `broker_name` where nobody knows it, without the body unless it is asked for."""
    line: dict[str, Any] = {"topic": message.topic}
    if broker_name is not None:
        line["broker_name"] = broker_name
    line |= {
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "unique_key": message.unique_key,
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
    }
    if body:
        line |= _body(message)
    return line | {
        "properties": message.properties,
        "born_timestamp": message.born_time_ms,
        "store_timestamp": message.store_time_ms,
        "born_host": host_text(message.born_host),
        "store_host": host_text(message.store_host),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "body_crc": message.body_crc,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "commitlog_offset": message.commitlog_offset,
        "store_size": message.size_bytes,
    }


def queue_lines(
    store: MessageStore, topic: str, queue_id: int, start: int, end: int, *, broker_name: str, body: bool
) -> Iterator[dict[str, Any] | Unreadable]:
    """The messages at queue offsets [start, end) that are there. An entry that leads to no message of the queue is Unreadable."""
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return
    first, last = max(store.min_offset(topic, queue_id), start), min(end, store.max_offset(topic, queue_id))
    for offset in range(first, last):
        place = int(queue.entries(offset, offset + 1)[0]["commitlog_offset"])
        try:
            message = store.message_by_commitlog_offset(place)
        except StorageError as error:
            yield Unreadable(topic, queue_id, offset, str(error))
            continue
        if (message.topic, message.queue_id, message.queue_offset) == (topic, queue_id, offset):
            yield message_line(message, broker_name=broker_name, body=body)
        else:
            of = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
            yield Unreadable(topic, queue_id, offset, f"its entry leads to the message of {of}")


def _body(message: Message) -> dict[str, str | None]:
    """Of a body that does not decompress what the source gives with mode=PERMISSIVE: null, and the reason."""
    try:
        body = message.plain_body
    except CorruptMessageError as error:
        return {BODY: None, CORRUPT: error.reason}
    try:
        return {BODY: body.decode()}
    except UnicodeDecodeError:
        return {BODY_BASE64: b64encode(body).decode()}


_COMPRESSION_NAMES = {COMPRESSION_LZ4: "LZ4", COMPRESSION_ZSTD: "ZSTD"}


def dump_queue(
    store: MessageStore,
    topic: str,
    queue_id: int,
    start: int | None = None,
    end: int | None = None,
    *,
    bodies: bool = False,
) -> Iterator[dict[str, Any]]:
    """The messages at queue offsets [start, end) of one queue, those that are there; `bodies` adds the stored body as text.

    An offset without a visible message gives a line with `error` and the reason.
    """
    first = max(store.min_offset(topic, queue_id), start or 0)
    last = store.max_offset(topic, queue_id) if end is None else min(end, store.max_offset(topic, queue_id))
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return
    ext = store.queues.ext(topic, queue_id)
    for offset in range(first, last):
        commitlog_offset, size, tags_code = queue.entries(offset, offset + 1)[0].tolist()
        line: dict[str, Any] = {
            "type": "message",
            "cqTopic": topic,
            "cqQueueId": queue_id,
            "cqOffset": offset,
            "cqPhysicalOffset": commitlog_offset,
            "cqSize": size,
            "tagsCode": tags_code,
            "tagsCodeRaw": tags_code,
        }
        unit = ext.unit(tags_code) if tags_code <= MAX_EXT_ADDRESS else None
        if unit is not None:
            line["tagsCode"] = unit.tags_code
            line["ext"] = {
                "size": unit.size_bytes,
                "tagsCode": unit.tags_code,
                "msgStoreTime": unit.store_time_ms,
                "bitMap": unit.bit_map.hex() or None,
            }
        try:
            message = store.message_by_commitlog_offset(commitlog_offset)
        except StorageError as error:
            yield line | {"error": str(error)}
            continue
        line |= describe_message(message, store.log.bytes_at(commitlog_offset, size))
        yield line | described_body(message) if bodies else line


def described_body(message: Message) -> dict[str, Any]:
    """The body as text; null where it does not decompress (`describe_message` says so in `error`)."""
    try:
        return {"body": message.plain_body.decode(errors="replace")}
    except CorruptMessageError:
        return {"body": None}


def describe_message(message: Message, record: bytes) -> dict[str, Any]:
    """The fields of a decoded record; `record` is its bytes. A body that does not decompress gives an `error` with the reason."""
    line = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.commitlog_offset,
        "storeSize": message.size_bytes,
        "bodyCRC": message.body_crc,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_time_ms,
        "bornHost": host_text(message.born_host),
        "storeTimestamp": message.store_time_ms,
        "storeHost": host_text(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "msgId": message.msg_id,
        "properties": dict(sorted(message.properties.items())),
        "bodyLen": len(message.body),
        "bodySha256": _sha256(message.body),
        "recordSha256": _sha256(record),
        "magic": f"{message.magic:08x}",
    }
    if message.sys_flag & COMPRESSED:
        line["compressType"] = _COMPRESSION_NAMES.get(message.sys_flag & COMPRESSION_MASK, "ZLIB")
        try:
            plain = message.plain_body
        except CorruptMessageError as error:
            return line | {"error": str(error)}
        line |= {"plainBodyLen": len(plain), "plainBodySha256": _sha256(plain)}
    return line


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
