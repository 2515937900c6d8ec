"""One message as a JSON object whose names are the columns of the Spark source.

The commands dump, query and quarantine print it, and produce reads it. Three things JSON cannot say as Spark does: times are
milliseconds since 1970; `properties` is an object; a body that is not UTF-8 is `body_base64`. `dump.py` has the same message in the
words of Apache's tools.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any, NamedTuple

from storage import Message, MessageStore
from storage.errors import CorruptMessageError, StorageError
from storage.format.record import host_text

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
