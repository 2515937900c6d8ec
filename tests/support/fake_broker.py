"""Brokers on loopback that answer as 5.3.3 does, or as a test tells them to: late, torn, wrong, or not at all.

`FakeBroker` has one queue and answers pulls, `FakeCluster` is a name server beside it, `TakingBroker` takes rows of each kind: sends
and batches, half messages and their ends, messages sent back.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from spark_mq.remoting import (
    MessageQueue,
    RemotingCommand,
    RequestCode,
    WireBody,
    make_response,
    write_body,
)
from spark_mq.remoting.administration import SubscriptionGroupTable, TopicOffset, TopicStatsTable
from spark_mq.remoting.command import read_header
from spark_mq.remoting.messages import EndTransactionRequest, SendBackRequest, SendMessageRequest, decode_batch
from spark_mq.remoting.routes import BrokerData, ClusterInfo, QueueData, TopicList, TopicRouteData
from spark_mq.sink.live_routes import BodyLimit, KnownLimits, limit_of
from storage.format.properties import decode_properties
from storage.format.record import TRANSACTION_COMMIT, TRANSACTION_PREPARED, encode_offset_message_id, encode_record
from storage.format.typed_json import SubscriptionGroupConfig, TopicConfig
from storage.rules.response_codes import ResponseCode
from tests.support.message_builder import make_message
from tests.support.planned_server import Peer, PlannedServer

Answer = Callable[["FakeBroker", RemotingCommand], RemotingCommand | bytes | None]
"""An answer, bytes in place of one, or None: the connection is closed."""

LOOKED_AT = 800
"""Entries that a pull looks at, at most. Java: maxFilterMessageSize, over the size of an entry."""


class FakeBroker:
    """Serves the records of offsets from `minimum` on, at most `most` a pull; every request is kept in `requests`."""

    def __init__(self, records: Sequence[bytes | None], *, minimum: int = 0, most: int = 32) -> None:
        self.records = list(records)
        self.minimum = minimum
        self.deleted_before = 0
        """Records below are deleted, and the broker has not moved `minimum` yet."""
        self.first_left: bytes | None = None
        """The log's first file, with the queue's first record at log offset 0, is deleted. The next one begins with these bytes."""
        self.most = most
        self.suggested_broker_id = 0
        self.answers: list[Answer] = []
        """What answers the next requests, one each; behind the last one pulls are answered as a broker does."""
        self._heard: set[Peer] = set()
        self._server = PlannedServer(self._serve)
        self.address = self._server.address
        self.requests = self._server.commands

    @property
    def connections(self) -> int:
        """How many have asked anything."""
        return len(self._heard)

    @property
    def offsets(self) -> list[int]:
        """The offsets that were pulled, in the order of their requests."""
        pulls = (request for request in self.requests if request.code == RequestCode.PULL_MESSAGE)
        return [int((request.ext_fields or {})["queueOffset"]) for request in pulls]

    def __enter__(self) -> FakeBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        """DefaultMessageStore.getMessage, of one queue without a filter. It knows no other request."""
        if request.code != RequestCode.PULL_MESSAGE:
            return make_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not known")
        fields = request.ext_fields or {}
        at, count = int(fields["queueOffset"]), min(int(fields["maxMsgNums"]), self.most)
        end = len(self.records)
        body, then = b"", at
        if at < self.minimum:
            code, remark, then = ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", self.minimum
        elif at == end:
            code, remark = ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"
        elif at > end:
            code, remark, then = ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", end
        elif at == 0 and self.first_left is not None:
            first = 1 if count == 1 else min(max(1, self.deleted_before), LOOKED_AT)
            found = self.records[first : min(first + count - 1, LOOKED_AT)]
            parts = [self.first_left[: len(self.records[0] or b"")], *found]
            body, then = b"".join(part for part in parts if part is not None), first + len(found)
            code, remark = ResponseCode.SUCCESS, "FOUND"
        elif at < self.deleted_before and self.deleted_before >= (stop := min(at + LOOKED_AT, end)):
            code, remark, then = ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING", stop
        else:
            first = max(at, self.deleted_before)
            found = self.records[first : first + count]
            body, then = b"".join(record for record in found if record is not None), first + len(found)
            code = ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY
            remark = "FOUND" if body else "NO_MATCHED_MESSAGE"
        return self.said(request, code, remark, then, body)

    def said(self, request: RemotingCommand, code: int, remark: str, then: int, body: bytes = b"") -> RemotingCommand:
        """An answer with the fields of a pull's."""
        fields = {
            "suggestWhichBrokerId": str(self.suggested_broker_id),
            "nextBeginOffset": str(then),
            "minOffset": str(self.minimum),
            "maxOffset": str(len(self.records)),
        }
        return make_response(request, code, remark, fields, body)

    def _serve(self, peer: Peer, request: RemotingCommand) -> None:
        self._heard.add(peer)
        answer = self.answers.pop(0)(self, request) if self.answers else self.pull(request)
        if answer is None:
            peer.hang_up()
        elif isinstance(answer, bytes):
            peer.send_bytes(answer)
        else:
            peer.send(answer)


FIRST_TIME_MS = 1_700_000_000_000


def timed_records(times: Sequence[int]) -> list[bytes | None]:
    """Records of TopicA's queue 0, stored so many ms after FIRST_TIME_MS; a body is its offset."""
    return [
        encode_record(
            make_message(
                queue_offset=at, commitlog_offset=100 * at, body=b"%d" % at, store_time_ms=FIRST_TIME_MS + time_ms
            )
        )
        for at, time_ms in enumerate(times)
    ]


class FakeCluster(FakeBroker):
    """Topic `TopicA` with one queue at `broker-a`; `broker-b` has no queue. Codes that are not known here are answered with 3."""

    def __init__(self, times: Sequence[int]) -> None:
        super().__init__(timed_records(times))
        self.times = list(times)
        self.has_topic = True
        self.unregistered = 0
        """So many times more the name server does not know broker-a."""
        self.searched = 0
        """The offset that the broker gives for any time."""
        self.refused: dict[int, int] = {}
        """Requests that are refused with a code."""
        self.attributes: dict[str, str] = {}
        """The topic's."""
        self.understands = False
        """Whether it knows about expressions."""
        self.broker_address: str | None = None
        """Where the brokers are, as the name server says; None = here."""

    def pull(self, request: RemotingCommand) -> RemotingCommand:
        """An answer to any request."""
        if request.code in self.refused:
            return make_response(request, self.refused[request.code], "refused")
        match request.code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                self.unregistered -= 1
                names = ["broker-b"] if self.unregistered >= 0 else ["broker-a", "broker-b"]
                datas = {
                    name: BrokerData(
                        broker_name=name, cluster="C", broker_addresses={0: self.broker_address or self.address}
                    )
                    for name in names
                }
                return self._body(request, ClusterInfo(broker_address_table=datas))
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                return self._body(request, TopicList(topics=("TopicA",)))
            case RequestCode.GET_ROUTEINFO_BY_TOPIC if self.has_topic and self.unregistered < 0:
                data = QueueData(broker_name="broker-a", read_queue_count=1, write_queue_count=1, perm=6)
                return self._body(request, TopicRouteData(queue_datas=(data,)))
            case RequestCode.GET_TOPIC_STATS_INFO if self.has_topic:
                last = FIRST_TIME_MS + self.times[-1] if self.times else 0
                ends = TopicOffset(min_offset=self.minimum, max_offset=len(self.records), last_update_time_ms=last)
                table = {MessageQueue("TopicA", "broker-a", 0): ends}
                return self._body(request, TopicStatsTable(offset_table=table))
            case RequestCode.GET_TOPIC_CONFIG:
                return self._body(request, TopicConfig(topic="TopicA", attributes=self.attributes))
            case RequestCode.CHECK_CLIENT_CONFIG if self.understands:
                return make_response(request, 0, None)
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                return make_response(request, 0, None, {"offset": str(self.searched)})
            case RequestCode.PULL_MESSAGE if self.has_topic:
                return super().pull(request)
            case RequestCode.GET_ROUTEINFO_BY_TOPIC | RequestCode.GET_TOPIC_STATS_INFO | RequestCode.PULL_MESSAGE:
                return make_response(request, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return make_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not known")

    def _body(self, request: RemotingCommand, body: WireBody) -> RemotingCommand:
        return make_response(request, 0, None, None, write_body(body))


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
        self.limit = limit_of({BROKER: KnownLimits(4 << 20)}, None)

    def queues_of(self, topic: str) -> tuple[MessageQueue, ...]:
        return tuple(MessageQueue(topic, BROKER, queue_id) for queue_id in range(self._queue_count))

    def queue_at(self, topic: str, place: int) -> MessageQueue:
        return self.queues_of(topic)[place]

    def is_static(self, topic: str) -> bool:
        return False

    def body_limit(self, topic: str) -> BodyLimit:
        return self.limit

    def address_of(self, broker_name: str, topic: str) -> str:
        assert broker_name == BROKER
        return self._broker.address

    def broker_at(self, address: str) -> str:
        assert address == "127.0.0.1:10911"
        return BROKER
