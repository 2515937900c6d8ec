"""Messages as a program sends and receives them, and the queues they lie in. Java: Message, MessageExt, MessageQueue.

A received message keeps the record as the broker stored it and decodes a field when it is read: a body is decompressed at its first
use, in the reader's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from spark_mq.client.errors import MessageRefusedError
from spark_mq.remoting import MessageQueue as MessageQueue
from storage.errors import CorruptRecordError
from storage.format.record import Message as Record
from storage.format.record import NeedMoreBytes, decode_record, host_text
from storage.names import RETRY_PREFIX, retry_topic
from storage.rules.retries import FIRST_RETRY_LEVEL

_KEYS = "give a list of texts, or one text with blanks between keys"


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. `properties` are the program's own; tags, keys and delay have fields.

    `keys` is a list of them as in a received message; a text is taken too, in which blanks separate keys, as in the column `keys` of a
    row and in property KEYS.

    `delay_level` is a broker's level (1 is its first, 0 none); `deliver_time_ms` a time since 1970 UTC, for brokers with a timer.
    `wait_stored` asks the broker to answer only when the message is flushed and replicated as it is configured.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    deliver_time_ms: int | None = None
    wait_stored: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self._listed_keys())

    def _listed_keys(self) -> list[str]:
        given: object = self.keys
        if given is None:
            return []
        if isinstance(given, str):
            return [key for key in given.split(" ") if key]
        listed: list[str] = []
        for key in given if isinstance(given, Iterable) and not isinstance(given, bytes) else [given]:
            if not isinstance(key, str):
                raise MessageRefusedError(self.topic, "keys", f"{key!r} is {type(key).__name__}; {_KEYS}")
            listed.append(key)
        return listed


@dataclass(frozen=True)
class MessageExt:
    """A message as a consumer gets it.

    `topic` is the one that was subscribed: of a message that is tried again, the topic of its first try, without the
    namespace. `record` holds all fields as they stand in the broker's log.
    """

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    reconsume_times: int
    """Number of failed tries: by the log, and since then in this consumer."""
    record: Record = field(repr=False)
    min_offset: int | None = None
    """The queue's first offset when it was pulled."""
    max_offset: int | None = None
    """The queue's end when it was pulled."""

    @classmethod
    def of(cls, record: Record, broker_name: str) -> MessageExt:
        """The message of a record that a broker of that name keeps."""
        return cls(record.topic, broker_name, record.queue_id, record.queue_offset, record.reconsume_times, record)

    @cached_property
    def body(self) -> bytes:
        """The body as the producer gave it. Raises CorruptMessageError where it does not decompress."""
        return self.record.plain_body

    @property
    def queue(self) -> MessageQueue:
        """The queue that it was pulled from: topic and queue as the broker names them."""
        return MessageQueue(self.record.topic, self.broker_name, self.queue_id)

    @property
    def properties(self) -> Mapping[str, str]:
        return self.record.properties

    @property
    def tags(self) -> str | None:
        return self.record.tags

    @property
    def keys(self) -> list[str]:
        return self.record.keys

    @property
    def message_id(self) -> str:
        """The producer's id (UNIQ_KEY), else the broker's. Java: MessageClientExt.getMsgId."""
        return self.record.unique_key or self.record.msg_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id: its address and the place in its log."""
        return self.record.msg_id

    @property
    def flag(self) -> int:
        return self.record.flag

    @property
    def sys_flag(self) -> int:
        return self.record.sys_flag

    @property
    def commitlog_offset(self) -> int:
        return self.record.commitlog_offset

    @property
    def born_time_ms(self) -> int:
        return self.record.born_time_ms

    @property
    def store_time_ms(self) -> int:
        return self.record.store_time_ms

    @property
    def born_host(self) -> str:
        """Address and port of the producer, as the broker saw them."""
        return host_text(self.record.born_host)

    @property
    def store_host(self) -> str:
        """Address and port of the broker that took it first."""
        return host_text(self.record.store_host)

    def failed_once_more(self) -> MessageExt:
        """The same message after one more failure in this consumer."""
        return replace(self, reconsume_times=self.reconsume_times + 1)


def decode_records(records: bytes | memoryview) -> list[Record]:
    """The records of a body (answers to 11, 12, 33, 361), in order. Java: MessageDecoder.decodesBatch.

    Checksums are not compared: the records came over a connection, not from a disk. Raises CorruptRecordError where the
    bytes are no records, or the last one is cut short.
    """
    return list(_decoded(memoryview(records)))


def _decoded(records: memoryview) -> Iterator[Record]:
    position = 0
    while position < len(records):
        record = decode_record(records, position, check_crc=False)
        if not isinstance(record, Record):
            found = f"{len(records) - position} bytes" if isinstance(record, NeedMoreBytes) else "a blank filler"
            raise CorruptRecordError("record", position, "a whole record", found)
        yield record
        position += record.size_bytes


def retry_message(message: MessageExt, group: str, origin_topic: str, max_reconsume_times: int) -> Message:
    """A message that a consumer failed, as a new message of its group's retry topic; topics and group as brokers know them.

    It is sent where sending back (36) does not work, and where an orderly consumer has had enough of a message: the broker makes a dead
    letter of it when it was tried too often. Java: DefaultMQPushConsumerImpl.sendMessageBackAsNormalMessage,
    ConsumeMessageOrderlyService.sendMessageBack. Departure: the origin's id is kept in both cases; Java's concurrent consumer
    overwrites it.
    """
    properties = {name: value for name, value in message.properties.items() if name != "TRAN_MSG"}
    origin = properties.get("ORIGIN_MESSAGE_ID", "").strip() or message.message_id
    properties |= {
        "ORIGIN_MESSAGE_ID": origin,
        "RETRY_TOPIC": origin_topic,
        "RECONSUME_TIME": str(message.reconsume_times + 1),
        "MAX_RECONSUME_TIMES": str(max_reconsume_times),
        "DELAY": str(FIRST_RETRY_LEVEL + message.reconsume_times),
    }
    return Message(retry_topic(group), message.body, properties=properties, flag=message.flag)


def origin_topic(record: Record) -> str:
    """The topic of a message's first try, as brokers know it. Java: DefaultMQPushConsumerImpl.resetRetryAndNamespace."""
    topic = record.topic
    return record.properties.get("RETRY_TOPIC", topic) if topic.startswith(RETRY_PREFIX) else topic
