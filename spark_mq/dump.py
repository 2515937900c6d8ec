"""One message as a JSON object: queue entry, decoded record and digests, in the words of Apache's tools.

The fields are those that an Apache broker's own classes report of a message, so that the output of two implementations can
be compared line by line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from storage import MessageStore
from storage.errors import CorruptMessageError, StorageError
from storage.format.consume_queue import MAX_EXT_ADDRESS
from storage.format.record import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_ZSTD, Message, host_text

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
