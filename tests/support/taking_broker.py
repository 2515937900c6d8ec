"""A broker that takes rows of each kind as 5.3.3 does: sends and batches, half messages and their ends, messages sent back."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any, NamedTuple

from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, make_response, write_body
from spark_mq.remoting.administration import (
    SubscriptionGroupTable,
)
from spark_mq.remoting.headers_and_bodies import read_header
from spark_mq.remoting.messages import EndTransactionRequest, SendBackRequest, SendMessageRequest, decode_batch
from spark_mq.sink.body_limits import BodyLimit, Told, limit_of
from storage.format.properties import decode_properties
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_PREPARED, encode_offset_message_id
from storage.format.table_entries import SubscriptionGroupConfig
from tests.support.fake_broker import FakeBroker

BROKER = "broker-a"


class Taken(NamedTuple):
    """A message as it lies in a queue."""

    body: bytes
    properties: dict[str, str]
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


class TakingBroker(FakeBroker):
    """What it holds, by topic and queue; `places` are the places in its log whose messages can be sent back."""

    def __init__(self, places: tuple[int, ...] = ()) -> None:
        super().__init__([])
        self.stored: dict[tuple[str, int], list[Taken]] = defaultdict(list)
        self.halves: dict[int, tuple[SendMessageRequest, Taken]] = {}
        self.ends: list[EndTransactionRequest] = []
        self.sent_back: list[SendBackRequest] = []
        self.places = places
        self.status = 0
        self.groups: dict[str, SubscriptionGroupConfig] = {}
        """Consumer groups that it has; it makes one that is not here when it is asked for."""
        self.is_old = False
        """As brokers up to 4.9, which do not know the question about one group."""
        self.refused_topic = ""
        """Sends to it are refused for good."""
        self._turn = threading.Lock()

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        """Every request, whatever its code."""
        with self._turn:
            match request.code:
                case RequestCode.END_TRANSACTION:
                    return self._end(request)
                case RequestCode.CONSUMER_SEND_MSG_BACK:
                    return self._send_back(request)
                case RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG if self.is_old:
                    return make_response(request, 3, " request type 352 not supported")
                case RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
                    group = (request.ext_fields or {})["group"]
                    made = self.groups.setdefault(group, SubscriptionGroupConfig(group=group))
                    return make_response(request, 0, None, None, write_body(made))
                case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
                    table = SubscriptionGroupTable(subscription_group_table=self.groups)
                    return make_response(request, 0, None, None, write_body(table))
                case _:
                    return self._put(request)

    def bodies(self, topic: str) -> list[bytes]:
        """Of all queues, in their order."""
        return [taken.body for (name, _), queue in sorted(self.stored.items()) for taken in queue if name == topic]

    def _put(self, request: RemotingCommand) -> RemotingCommand:
        header = read_header(SendMessageRequest, request)
        if header.topic == self.refused_topic:
            return make_response(request, 13, "the message is illegal")
        if header.is_batch:
            items = [Taken(one.body, decode_properties(one.raw_properties)) for one in decode_batch(request.body)]
        else:
            properties = decode_properties((header.properties or "").encode())
            times = header.reconsume_times or 0, header.max_reconsume_times
            items = [Taken(bytes(request.body), properties, *times)]
        fields: dict[str, Any] = {"queueId": str(header.queue_id)}
        if header.sys_flag & TRANSACTION_PREPARED:
            assert items[0].properties["TRAN_MSG"] == "true", "a broker goes by the property"
            offset = len(self.halves)
            self.halves[1_000 + offset] = header, items[0]
            message_id = encode_offset_message_id(b"\x7f\0\0\1", 10911, 1_000 + offset)
            fields |= {"queueOffset": str(offset), "transactionId": items[0].properties["UNIQ_KEY"]}
        else:
            queue = self.stored[header.topic, header.queue_id]
            message_id = encode_offset_message_id(b"\x7f\0\0\1", 10911, len(queue))
            fields |= {"queueOffset": str(len(queue))}
            queue += items
        return make_response(request, self.status, None, {**fields, "msgId": message_id})

    def _end(self, request: RemotingCommand) -> RemotingCommand:
        end = read_header(EndTransactionRequest, request)
        self.ends.append(end)
        header, half = self.halves[end.half_commitlog_offset]
        if half.properties["PGROUP"] != end.producer_group:
            return make_response(request, 1, "The producer group wrong")
        assert end.half_queue_offset == end.half_commitlog_offset - 1_000
        if end.commit_or_rollback == TRANSACTION_COMMIT:
            self.stored[header.topic, header.queue_id].append(half)
        return make_response(request, 0, None)

    def _send_back(self, request: RemotingCommand) -> RemotingCommand:
        asked = read_header(SendBackRequest, request)
        if asked.group in self.groups and self.groups[asked.group].retry_queue_count <= 0:
            return make_response(request, 0, None)
        if asked.commitlog_offset not in self.places:
            return make_response(request, 1, f"look message by offset failed, {asked.commitlog_offset}")
        self.sent_back.append(asked)
        return make_response(request, 0, None)


class RoutesTo:
    """Routes of every topic to queues of one broker."""

    def __init__(self, broker: FakeBroker, queue_count: int = 2) -> None:
        self._broker = broker
        self._queue_count = queue_count
        self.limit = limit_of({BROKER: Told(4 << 20)}, None)

    def queues_of(self, topic: str) -> tuple[MessageQueue, ...]:
        return tuple(MessageQueue(topic, BROKER, queue_id) for queue_id in range(self._queue_count))

    def queue_at(self, topic: str, place: int) -> MessageQueue:
        return self.queues_of(topic)[place]

    def body_limit(self, topic: str) -> BodyLimit:
        return self.limit

    def address_of(self, broker_name: str, topic: str) -> str:
        assert broker_name == BROKER
        return self._broker.address

    def broker_at(self, address: str) -> str:
        assert address == "127.0.0.1:10911"
        return BROKER
