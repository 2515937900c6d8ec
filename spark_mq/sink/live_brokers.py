"""What an exactly-once commit asks of running brokers. Each request goes to a master over a connection whose end is noticed.

The fence, broker by broker, is what makes a second attempt safe, because RocketMQ knows no producer epochs:

1.  Each attempt is a producer group of its own. It sends a heartbeat over the connection, waits for the answer, and only then rows.
2.  A later attempt asks for the group's connections (204) until the broker knows none. The broker forgets a group when it has read the
    connection to its end; so every request that came over it is in the broker's send queue by then, or past it.
3.  It stores a message in the sink's own topic, behind those requests, and waits until that message can be read. Stores are one after
    another, and queues are filled in the order of the log; so what was stored before is readable now.
4.  Both once more after a pause, because several threads take requests from the send queue.

Java: ProducerManager, ClientHousekeepingService, SendMessageProcessor, DefaultMessageStore.ReputMessageService.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.client.admin import Admin
from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.calls import make_call, read_answer_body, read_answer_header
from spark_mq.client.errors import ClientError, request_text, response_error
from spark_mq.client.namespaces import with_namespace
from spark_mq.conditions import BatchInDoubtError, DataLossError, SentRowsLostError
from spark_mq.remoting import Header, MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.admin_bodies import ProducerConnection
from spark_mq.remoting.admin_headers import CreateTopicRequest
from spark_mq.remoting.batch_body import BatchedMessage, encode_batch
from spark_mq.remoting.client_bodies import HeartbeatData, ProducerData
from spark_mq.remoting.consumer_headers import MaxOffsetRequest, OffsetAnswer, ProducerGroupRequest, QueueRequest
from spark_mq.remoting.message_headers import SendMessageAnswer
from spark_mq.sink.broker_lane import BrokerLane, LaneStoppedError, LaneTerms, QueueBatch
from spark_mq.sink.exact_commit import Marks, SendInDoubtError, Stored
from spark_mq.sink.live_options import DEFAULT_GROUP, LiveSinkOptions
from spark_mq.sink.live_request import send_request
from spark_mq.sink.live_routes import LiveRoutes
from spark_mq.sink.send_plan import QueuePlan, queue_text
from spark_mq.sink.sent_batch import Done, decode_done, encode
from spark_mq.sink.staged_rows import StagedReader
from spark_mq.sink.unsafe_answers import refuse_unsafe
from spark_mq.source.offsets import QueueId
from spark_mq.source.pull_reader import PullReader
from spark_mq.source.pull_request import PullTerms
from storage.batch.staged_segment import sink_digest
from storage.epoch_times import current_time_ms
from storage.failpoints import reach
from storage.format.batch_items import item_ends
from storage.format.property_encoding import ROW_MARK
from storage.rules.response_codes import ResponseCode

TOPIC = "SPARK_MQ_SINK"
"""The topic of all sinks: what they have sent, and the messages of fences."""
_READ_WRITE = 6
_SETTLE_S = 0.2
_POLL_S = 0.1
_MARK = rf"(?:^|\x02){ROW_MARK}\x01(?P<mark>[^\x02]*)(?:\x02|$)"
_KNOWN_ANNOUNCEMENTS = 32
_LOG = logging.getLogger("spark_mq.sink")

T = TypeVar("T")


class LiveBrokers:
    """The brokers of one commit (`exact_commit.Brokers`)."""

    def __init__(self, options: LiveSinkOptions, routes: LiveRoutes, batch_text: str) -> None:
        self._options = options
        self._routes = routes
        self._settings = options.client_settings()
        self._batch_text = batch_text
        self._topic = with_namespace(options.namespace, TOPIC)
        self._topic_of: dict[str, str] = {}
        self._statuses: Counter[tuple[str, int]] = Counter()

    # What a commit asks.

    def prepare(self, queues: Iterable[MessageQueue]) -> None:
        """The sink's own topic is there, at each of the brokers."""
        for name in self._names(queues):
            with self._connected(name) as connection:
                answer = self._call(
                    connection, RequestCode.GET_TOPIC_CONFIG, QueueRequest(topic=self._topic, queue_id=0)
                )
                if answer.code == ResponseCode.SUCCESS:
                    continue
                code = RequestCode.UPDATE_AND_CREATE_TOPIC
                header = CreateTopicRequest(
                    topic=self._topic,
                    default_topic="TBW102",
                    read_queue_count=1,
                    write_queue_count=1,
                    perm=_READ_WRITE,
                    topic_filter_type="SINGLE_TAG",
                    topic_sys_flag=0,
                )
                self._ask(connection, code, header)

    def ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """As their masters say."""
        return {queue: self._offset(RequestCode.GET_MAX_OFFSET, queue) for queue in queues}

    def fence(self, queues: Iterable[MessageQueue], groups: Sequence[str]) -> None:
        """As the module says. Raises BatchInDoubtError when `fenceTimeout` is over."""
        deadline = time.monotonic() + self._options.fence_timeout / 1_000
        for name in self._names(queues):
            self._until(deadline, lambda name=name: self._is_past(name, groups), name)  # type: ignore[misc]
            time.sleep(_SETTLE_S)
            self._until(deadline, lambda name=name: self._is_past(name, groups), name)  # type: ignore[misc]

    def marks(self, queue: MessageQueue, start: int, prefix: str) -> Marks:
        """Every record from there to the end is looked at."""
        end = self._offset(RequestCode.GET_MAX_OFFSET, queue)
        least = self._offset(RequestCode.GET_MIN_OFFSET, queue)
        if least > start:
            raise SentRowsLostError(
                queue_text(queue),
                f"its messages from {start} to {least} are gone: they have expired, or somebody has deleted them",
            )
        offsets: list[np.ndarray] = []
        marks: list[str] = []
        reader = PullReader(
            QueueId(queue.topic, queue.broker_name, queue.queue_id),
            {0: self._address(queue.broker_name, queue.topic)},
            PullTerms(self._settings, DEFAULT_GROUP, timeout_ms=self._options.fence_timeout),
        )
        try:
            for part in reader.slices(start, end):
                properties = part.records.raw_properties().cast(pa.large_binary())
                texts = pc.struct_field(pc.extract_regex(properties, _MARK), [0])
                ours = pc.starts_with(texts, prefix.encode()).fill_null(False).to_numpy(zero_copy_only=False)
                offsets.append(part.queue_offsets[ours])
                marks += [mark.decode() for mark in texts.filter(pa.array(ours)).to_pylist()]
        except DataLossError as error:
            raise SentRowsLostError(queue_text(queue), error.describe()) from None
        finally:
            reader.close()
        return Marks(np.concatenate(offsets) if offsets else np.empty(0, np.int64), marks)

    def send(self, group: str, plans: Mapping[MessageQueue, QueuePlan], files: Sequence[StagedReader]) -> Stored:
        """A connection for each broker, which is not made again."""
        ends: dict[MessageQueue, int] = {}
        statuses: Counter[int] = Counter()
        lock = threading.Lock()

        def take(batch: QueueBatch, answer: RemotingCommand) -> None:
            header = read_answer_header(SendMessageAnswer, answer, batch.queue.broker_name, 320)
            with lock:
                ends[batch.queue] = header.queue_offset + batch.row_count
                statuses[answer.code] += batch.row_count
                self._statuses[batch.queue.broker_name, answer.code] += batch.row_count
            reach("live-amid-send")

        lanes: dict[str, BrokerLane] = {}
        connections: list[BlockingConnection[object]] = []
        body = HeartbeatData(client_id=group, producers=(ProducerData(group_name=group),))
        heartbeat = make_call(RequestCode.HEART_BEAT, body=body)
        try:
            for name in self._names(plans):
                connections.append(self._registered(name, group, heartbeat))
                lanes[name] = self._lane(connections[-1], group, heartbeat, take)
            reach("live-connected")
            for batch in _interleaved(plans, files):
                lanes[batch.queue.broker_name].offer(batch)
            for lane in lanes.values():
                lane.finish()
        except LaneStoppedError as error:
            if error.is_doubt:
                raise SendInDoubtError(error.describe()) from None
            raise error.cause from None
        except (
            ClientError
        ) as error:  # no connection, or no answer to its heartbeat: nothing was sent over it, maybe over others
            raise SendInDoubtError(error.describe()) from None
        finally:
            for lane in lanes.values():
                lane.stop()
            for connection in connections:
                connection.close()
        return Stored(ends, statuses)

    def check_safety(self, statuses: Mapping[int, int]) -> None:
        """With `acks=all`: every answer said SEND_OK."""
        if self._options.acks == "all":
            for (broker_name, code), rows in self._statuses.items():
                refuse_unsafe({code: rows}, broker_name)

    def announce(self, done: Done) -> None:
        """A message with the sink's digest as key. The batch is done already, so an error is logged and no more."""
        if not done.spans:
            return
        name = self._names(span.queue for span in done.spans)[0]
        try:
            with self._connected(name) as connection:
                self._put(connection, name, encode(done), key=_key(done.batch.sink_id))
        except ClientError as error:
            _LOG.warning("batch %d is sent; the sink's topic was not told: %s", done.batch.batch_id, error.describe())

    def announced(self, sink_id: str) -> Done | None:
        """By the brokers' index; the newest batch number counts."""
        with Admin(self._settings) as admin:
            if self._topic not in admin.topics():
                return None
            found = admin.query_by_key(self._topic, _key(sink_id), limit=_KNOWN_ANNOUNCEMENTS).messages
        known = []
        for message in found:
            try:
                done = decode_done(message.body)
            except ValueError:
                continue
            if done.batch.sink_id == sink_id and done.spans and done.rows > 0:  # no sink tells of an empty batch
                known.append(done)
        return max(known, key=lambda done: done.batch.batch_id, default=None)

    # How it is asked.

    def _names(self, queues: Iterable[MessageQueue]) -> list[str]:
        """The queues' brokers. A topic of each is remembered: by its route the address is found."""
        names = set()
        for queue in queues:
            names.add(queue.broker_name)
            self._topic_of.setdefault(queue.broker_name, queue.topic)
        return sorted(names)

    def _is_past(self, broker_name: str, groups: Sequence[str]) -> bool:
        """Whether the broker knows no connection of the groups, and everything that was stored before can be read."""
        with self._connected(broker_name) as connection:
            for group in groups:
                code = RequestCode.GET_PRODUCER_CONNECTION_LIST
                answer = self._call(connection, code, ProducerGroupRequest(producer_group=group))
                if (
                    answer.code == ResponseCode.SUCCESS
                ):  # brokers up to 4.9 keep a group whose last connection has ended
                    if read_answer_body(ProducerConnection, answer, connection.address, code).connections:
                        return False
                elif answer.code != ResponseCode.SYSTEM_ERROR or "not exist" not in (answer.remark or ""):
                    raise self._refused(connection, code, answer)
            put = self._put(connection, broker_name, json.dumps({"fence": groups[-1]}).encode())
            queue = MessageQueue(self._topic, broker_name, put.queue_id)
            deadline = time.monotonic() + self._options.send_timeout / 1_000
            while self._offset_at(connection, RequestCode.GET_MAX_OFFSET, queue) <= put.queue_offset:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_POLL_S / 5)
            return True

    def _until(self, deadline: float, is_met: Callable[[], bool], broker_name: str) -> None:
        reason = f"broker {broker_name} still has a connection of an earlier attempt, or stores without showing it"
        while True:
            try:
                if is_met():
                    return
            except ClientError as error:
                reason = f"broker {broker_name} does not answer: {error.describe()}"
                if not error.retriable:
                    raise BatchInDoubtError(self._batch_text, reason) from None
            if time.monotonic() > deadline:
                raise BatchInDoubtError(self._batch_text, reason)
            time.sleep(_POLL_S)

    def _registered(self, broker_name: str, group: str, heartbeat: RemotingCommand) -> BlockingConnection[object]:
        """A connection that the broker knows as the group's."""
        connection = BlockingConnection[object](self._address(broker_name), self._settings)
        try:
            answer = self._exchange(connection, heartbeat)
            if answer.code != ResponseCode.SUCCESS:
                raise self._refused(connection, RequestCode.HEART_BEAT, answer)
        except BaseException:
            connection.close()
            raise
        return connection

    def _lane(
        self,
        connection: BlockingConnection[object],
        group: str,
        heartbeat: RemotingCommand,
        take: Callable[[QueueBatch, RemotingCommand], None],
    ) -> BrokerLane:
        timeouts = self._options.send_timeout, self._options.retry_timeout
        return BrokerLane(lambda: connection, LaneTerms(group, True, *timeouts, take, heartbeat))  # type: ignore[arg-type,return-value]

    def _put(
        self, connection: BlockingConnection[object], broker_name: str, body: bytes, key: str | None = None
    ) -> SendMessageAnswer:
        """A message in the sink's own topic."""
        properties = b"" if key is None else f"KEYS\x01{key}\x02".encode()
        item = encode_batch([BatchedMessage(body, properties)])
        queue = MessageQueue(self._topic, broker_name, 0)
        request = send_request(queue, item, 1, 0, group=DEFAULT_GROUP, born_time_ms=current_time_ms())
        answer = self._exchange(connection, request)
        if answer.code not in (0, 10, 11, 12):
            raise self._refused(connection, RequestCode.SEND_MESSAGE_V2, answer)
        return read_answer_header(SendMessageAnswer, answer, connection.address, RequestCode.SEND_MESSAGE_V2)

    def _offset(self, code: RequestCode, queue: MessageQueue) -> int:
        self._names([queue])
        with self._connected(queue.broker_name) as connection:
            return self._offset_at(connection, code, queue)

    def _offset_at(self, connection: BlockingConnection[object], code: RequestCode, queue: MessageQueue) -> int:
        kind = MaxOffsetRequest if code == RequestCode.GET_MAX_OFFSET else QueueRequest
        header = kind(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
        answer = self._ask(connection, code, header)
        return read_answer_header(OffsetAnswer, answer, connection.address, code).queue_offset

    @contextmanager
    def _connected(self, broker_name: str) -> Iterator[BlockingConnection[object]]:
        connection = BlockingConnection[object](self._address(broker_name), self._settings)
        try:
            yield connection
        finally:
            connection.close()

    def _address(self, broker_name: str, topic: str | None = None) -> str:
        return self._routes.address_of(broker_name, topic or self._topic_of[broker_name])

    def _ask(self, connection: BlockingConnection[object], code: RequestCode, header: Header) -> RemotingCommand:
        answer = self._call(connection, code, header)
        if answer.code != ResponseCode.SUCCESS:
            raise self._refused(connection, code, answer)
        return answer

    def _call(self, connection: BlockingConnection[object], code: RequestCode, header: Header) -> RemotingCommand:
        return self._exchange(connection, make_call(code, header))

    def _exchange(self, connection: BlockingConnection[object], request: RemotingCommand) -> RemotingCommand:
        connection.send([(request, None)], self._options.send_timeout)
        (_, answer), *_ = connection.receive(self._options.send_timeout)
        return answer

    def _refused(
        self, connection: BlockingConnection[object], code: RequestCode, answer: RemotingCommand
    ) -> ClientError:
        return response_error(answer.code, answer.remark, connection.address, request_text(code))


def _interleaved(plans: Mapping[MessageQueue, QueuePlan], files: Sequence[StagedReader]) -> Iterator[QueueBatch]:
    """The first batch of each queue, then the second of each, so that all queues are busy."""
    turns = [(queue, iter(plan)) for queue, plan in plans.items()]
    while turns:
        going_on = []
        for queue, plan in turns:
            one = next(plan, None)
            if one is None:
                continue
            going_on.append((queue, plan))
            body = files[one.file].read(one.batch.start, one.batch.size_bytes)
            if one.skip:
                body = body[item_ends(body)[one.skip - 1] :]
            yield QueueBatch(queue, body, len(one.batch.ranks) - one.skip, one.batch.sys_flag)
        turns = going_on


def _key(sink_id: str) -> str:
    return sink_digest(sink_id, sink_id).hex()
