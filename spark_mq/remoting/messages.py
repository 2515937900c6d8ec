"""Sends, pulls, and other requests that carry or read messages: headers, and the body of a batch. Java: remoting.protocol.header."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from spark_mq.remoting.command import Header, RpcHeader, TopicHeader
from storage.errors import MessageIllegalError
from storage.format.properties import PROPERTIES_LIMIT_BYTES
from storage.format.typed_json import Int, Long, wire


class SendMessageRequest(TopicHeader):
    """A message, or a batch of them: codes 10 and 324 with these names, 310, 320 and 325 with the short ones."""

    producer_group: str | None = wire(short="a", default=None)
    topic: str = wire(short="b")
    default_topic: str | None = wire(short="c", default=None)
    """The template for a topic that is not there; without it none is made, as without the number of queues."""
    default_topic_queue_count: Int | None = wire("defaultTopicQueueNums", short="d", default=None)
    queue_id: Int = wire(short="e")
    sys_flag: Int = wire(short="f")
    born_time_ms: Long = wire("bornTimestamp", short="g")
    flag: Int = wire(short="h")
    properties: str | None = wire(short="i", default=None)
    reconsume_times: Int | None = wire(short="j", default=None)
    unit_mode: bool | None = wire(short="k", default=None)
    max_reconsume_times: Int | None = wire(short="l", default=None)
    is_batch: bool | None = wire("batch", short="m", default=None)


class SendMessageAnswer(Header):
    """The place of a put message. Answers also have MSG_REGION and TRACE_ON among their extFields."""

    message_id: str = wire("msgId")
    """Address and commit log offset in hexadecimal; of a batch one for each message, with commas."""
    queue_id: Int
    queue_offset: Long
    """For a batch, that of its first message."""
    transaction_id: str | None = None
    batch_unique_id: str | None = wire("batchUniqId", default=None)
    recall_handle: str | None = None


class PullMessageRequest(TopicHeader):
    """Messages of one queue: code 11, and 361 from lite pull consumers."""

    consumer_group: str
    topic: str
    lite_topic: str | None = None
    """A topic within the topic, of 5.5.0. Brokers before it do not look, and serve the topic's own queue."""
    queue_id: Int
    queue_offset: Long
    max_messages: Int = wire("maxMsgNums")
    sys_flag: Int
    """1 commit_offset counts, 2 may be held, 4 the subscription is in the request, 8 class filter, 16 lite."""
    commit_offset: Long | None = None
    suspend_timeout_ms: Long = wire("suspendTimeoutMillis", default=0)
    subscription: str | None = None
    sub_version: Long = 0
    expression_type: str | None = None
    max_message_bytes: Int | None = wire("maxMsgBytes", default=None)
    request_source: Int | None = None
    proxy_forward_client_id: str | None = wire("proxyFrowardClientId", default=None)


class PullMessageAnswer(Header):
    """The next offset, and the bounds of the queue. The messages are the body, as in the log."""

    suggested_broker_id: Long = wire("suggestWhichBrokerId")
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    offset_delta: Long | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None
    forbidden_type: Int | None = None


class QueryMessageRequest(TopicHeader):
    """Messages by key, or by tag. With `_UNIQUE_KEY_QUERY`=true among the extFields the key is a unique one."""

    topic: str
    key: str
    max_messages: Int = wire("maxNum")
    begin_time_ms: Long = wire("beginTimestamp")
    end_time_ms: Long = wire("endTimestamp")
    index_type: str | None = None
    """K a key, U a unique one, T a tag. Brokers before 5.4.0 do not look, and take a tag for a key."""
    last_key: str | None = None
    """Where a page of an index in RocksDB begins; index files have no pages."""


class QueryMessageAnswer(Header):
    """The end of the index."""

    index_last_update_time_ms: Long = wire("indexLastUpdateTimestamp")
    index_last_update_commitlog_offset: Long = wire("indexLastUpdatePhyoffset")


class ViewMessageRequest(Header):
    """The message at a place of the commit log."""

    topic: str | None = None
    commitlog_offset: Long = wire("offset")


class SendBackRequest(RpcHeader):
    """A message that a consumer failed on, to be tried again."""

    commitlog_offset: Long = wire("offset")
    group: str
    delay_level: Int
    origin_message_id: str | None = wire("originMsgId", default=None)
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


class EndTransactionRequest(RpcHeader):
    """The end of a half message. `commit_or_rollback`: 8 commit, 12 roll back, 0 not known."""

    topic: str | None = None
    producer_group: str
    half_queue_offset: Long = wire("tranStateTableOffset")
    half_commitlog_offset: Long = wire("commitLogOffset")
    commit_or_rollback: Int
    from_transaction_check: bool | None = False
    message_id: str | None = wire("msgId", default=None)
    transaction_id: str | None = None


class CheckTransactionStateRequest(RpcHeader):
    """The broker asks what became of a half message, whose record is the body."""

    topic: str | None = None
    half_queue_offset: Long = wire("tranStateTableOffset")
    half_commitlog_offset: Long = wire("commitLogOffset")
    message_id: str | None = wire("msgId", default=None)
    transaction_id: str | None = None
    offset_message_id: str | None = wire("offsetMsgId", default=None)


class RecallMessageRequest(TopicHeader):
    """A timed message that shall not be delivered."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallMessageAnswer(Header):
    """The unique key of the recalled message."""

    message_id: str = wire("msgId")


class RecallHandle(NamedTuple):
    """The identity of a timed message: topic, broker, deliver time and unique key. Java: RecallMessageHandle.HandleV1."""

    topic: str
    broker_name: str
    time_ms: int
    unique_key: str

    def text(self) -> str:
        """As a send's answer has it."""
        words = ("v1", self.topic, self.broker_name, str(self.time_ms), self.unique_key)
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()

    @classmethod
    def read(cls, text: str) -> RecallHandle | None:
        """The handle that a send was answered with; None of a text that is none."""
        try:
            parts = base64.urlsafe_b64decode(text.encode("ascii")).decode().split(" ")
        except (ValueError, binascii.Error):
            return None
        if len(parts) < 5 or parts[0] != "v1":
            return None
        _, topic, broker_name, time_text, unique_key, *_ = parts
        time_ms = int(time_text) if re.fullmatch("-?[0-9]{1,18}", time_text) else -1
        return cls(topic, broker_name, time_ms, unique_key)


class ReplyMessageRequest(TopicHeader):
    """The broker passes a reply on to the client that waits for it."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_count: Int = wire("defaultTopicQueueNums")
    queue_id: Int
    sys_flag: Int
    born_time_ms: Long = wire("bornTimestamp")
    flag: Int
    properties: str | None = None
    reconsume_times: Int | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_time_ms: Long = wire("storeTimestamp")


class ConsumeDirectlyRequest(TopicHeader):
    """One message, handed to a consumer's listener at an operator's wish."""

    consumer_group: str
    client_id: str | None = None
    message_id: str | None = wire("msgId", default=None)
    message_broker_name: str | None = wire("brokerName", default=None)
    topic: str | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None


class ResumeCheckHalfMessageRequest(Header):
    """A half message that was given up, to be checked again."""

    topic: str | None = None
    message_id: str | None = wire("msgId", default=None)


# The body of a batch: the client's messages one behind the other.
#
#     0      4     8          12     16            20       20 + n              22 + n
#     | size | (0) | body_crc | flag | body length | body n | properties length | properties |
#
# Size, magic and CRC are read over, as Java does. Each message becomes a record of its own in the batch's queue.
# Java: MessageDecoder.encodeMessage, MessageExtEncoder.encode of a MessageExtBatch.


_READ_HEAD = struct.Struct(">12x i i")
_ITEM = struct.Struct(">i 8x i i")
_LENGTH = struct.Struct(">h")


class BatchedMessage(NamedTuple):
    """One message of a batch."""

    body: bytes
    raw_properties: bytes
    flag: int = 0


def decode_batch(body: bytes | memoryview) -> list[BatchedMessage]:
    """The messages of a batch; ValueError where its lengths do not add up."""
    return list(_messages(bytes(body)))


def _messages(body: bytes) -> Iterator[BatchedMessage]:
    position = 0
    while position < len(body):
        try:
            flag, body_size = _READ_HEAD.unpack_from(body, position)
            start = position + _READ_HEAD.size
            (properties_size,) = _LENGTH.unpack_from(body, start + max(body_size, 0))
        except struct.error:
            raise ValueError(f"the message at byte {position} does not end within the batch") from None
        end = start + body_size + _LENGTH.size + properties_size
        if body_size < 0 or properties_size < 0 or end > len(body):
            raise ValueError(f"the message at byte {position} does not end within the batch")
        yield BatchedMessage(body[start : start + body_size], body[start + body_size + _LENGTH.size : end], flag)
        position = end


def encode_batch(messages: Iterable[BatchedMessage]) -> bytes:
    """The body of a batch, as a client makes it.

    Raises MessageIllegalError for properties of more than 32,767 bytes; Java writes a length of 16 bits that is another, and the broker
    reads what follows as something else.
    """
    pieces: list[bytes] = []
    for body, raw_properties, flag in messages:
        if len(raw_properties) > PROPERTIES_LIMIT_BYTES:
            raise MessageIllegalError("properties", PROPERTIES_LIMIT_BYTES, len(raw_properties))
        size = _ITEM.size + len(body) + _LENGTH.size + len(raw_properties)
        pieces += (_ITEM.pack(size, flag, len(body)), body, _LENGTH.pack(len(raw_properties)), raw_properties)
    return b"".join(pieces)


def with_batch_properties(raw_properties: bytes, batch_properties: bytes) -> bytes:
    """A message's own property string, closed if need be, and the batch's behind it; a name may stand there twice."""
    is_open = raw_properties and batch_properties and not raw_properties.endswith(b"\x02")
    return raw_properties + (b"\x02" if is_open else b"") + batch_properties
