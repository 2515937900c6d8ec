"""Requests of an exactly-once commit to running brokers. Each goes to a master, over a connection whose end is noticed.

The fence, broker by broker, is what makes a second attempt safe, because RocketMQ knows no producer epochs:

1.  Each attempt is a producer group of its own. It sends a heartbeat over the connection, asks whether the broker knows the group's
    connection now (204), and only then sends rows.
2.  A later attempt asks for the group's connections (204) until the broker knows none. The broker drops a group when it has read the
    connection to its end; so every request of that connection is in the broker's send queue by then, or past it.
3.  It stores a message in the sink's own topic, behind those requests, and waits until that message is readable. A broker stores one
    message after another, and fills queues in the order of the log; so every message stored before is readable now.
4.  It repeats 2 and 3 after a pause, because several threads take requests from the send queue.

The message of 3 is flushed and replicated after everything before it. So its answer says how durable the found rows are.

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
from functools import partial
from typing import TypeVar

import numpy as np

from spark_mq.client.admin import Admin
from spark_mq.client.blocking_connection import BlockingConnection
from spark_mq.client.calls import make_call, may_pass, patiently, read_answer_header
from spark_mq.client.errors import ClientError
from spark_mq.client.send_results import SendStatus
from spark_mq.client.settings import with_namespace
from spark_mq.conditions import BatchInDoubtError, DataLossError, SentRowsLostError, WriteFailedError
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode
from spark_mq.remoting.administration import CreateTopicRequest, ProducerConnection
from spark_mq.remoting.consumers import (
    HeartbeatData,
    MaxOffsetRequest,
    OffsetAnswer,
    ProducerData,
    ProducerGroupRequest,
    QueueRequest,
    UnregisterClientRequest,
)
from spark_mq.remoting.messages import BatchedMessage, SendMessageAnswer, encode_batch
from spark_mq.sink.broker_lane import BrokerLane, LaneStoppedError, LaneTerms, QueueBatch
from spark_mq.sink.exact_commit import Marks, SendInDoubtError, Stored
from spark_mq.sink.journal import Done, announcement_of, encode
from spark_mq.sink.live_routes import LiveRoutes
from spark_mq.sink.options import DEFAULT_GROUP, LiveSinkOptions
from spark_mq.sink.send_plan import QueuePlan, marks_of, queue_text
from spark_mq.sink.sends import refuse_unsafe, send_request
from spark_mq.sink.staged_rows import StagedReader
from spark_mq.source.cluster_questions import Answered, exchange
from spark_mq.source.offsets import QueueId
from spark_mq.source.pull_reader import PullReader
from spark_mq.source.pulls import PULL_CODES, Ask, PullRequests, PullTerms
from storage.batch.staged_segment import sink_digest
from storage.epoch_times import current_time_ms
from storage.failpoints import reach
from storage.format.batch_items import item_ends
from storage.rules.response_codes import ResponseCode

T = TypeVar("T")


class BrokerQuestions:
    """Requests to brokers, and the connections to them."""

    def __init__(self, options: LiveSinkOptions, routes: LiveRoutes) -> None:
        self.settings = options.client_settings()
        self._timeout_ms = options.send_timeout
        self._retry_timeout_ms = options.retry_timeout
        self._routes = routes
        self._topic_of: dict[str, str] = {}

    def names(self, queues: Iterable[MessageQueue]) -> list[str]:
        """The queues' brokers. A topic of each is remembered: by its route the address is found."""
        names = set()
        for queue in queues:
            names.add(queue.broker_name)
            self._topic_of.setdefault(queue.broker_name, queue.topic)
        return sorted(names)

    def address(self, broker_name: str, topic: str | None = None) -> str:
        """The address of the master of a broker that `names` has seen."""
        return self._routes.address_of(broker_name, topic or self._topic_of[broker_name])

    def at(self, broker_name: str, what: str, ask: Callable[[BlockingConnection[int]], T]) -> T:
        """The result of `ask` over a connection to the broker. Raises WaitedInVainError, which names `what`."""

        def once() -> T:
            with self.connected(broker_name) as connection:
                return ask(connection)

        return self.patiently(once, f"broker {broker_name} ({what})")

    def patiently(self, ask: Callable[[], T], what: str) -> T:
        """The same for a question to no broker alone."""
        return patiently(ask, self._retry_timeout_ms, what)

    @contextmanager
    def connected(self, broker_name: str) -> Iterator[BlockingConnection[int]]:
        """A connection for some questions."""
        connection = BlockingConnection[int](self.address(broker_name), self.settings)
        try:
            yield connection
        finally:
            connection.close()

    def ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The ends of queues, from their masters."""
        wanted, ends = list(queues), dict[MessageQueue, int]()
        for name in self.names(wanted):
            of_broker = [queue for queue in wanted if queue.broker_name == name]
            ends |= self.at(name, "where queues end", partial(self.ends_at, queues=of_broker))
        return ends

    def ends_at(self, connection: BlockingConnection[int], queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The ends of queues of the connection's broker."""
        wanted = list(queues)
        headers = (MaxOffsetRequest(topic=q.topic, queue_id=q.queue_id, broker_name=q.broker_name) for q in wanted)
        answers = self.ask(connection, *(make_call(RequestCode.GET_MAX_OFFSET, header) for header in headers))
        return {queue: one.header(OffsetAnswer).queue_offset for queue, one in zip(wanted, answers, strict=True)}

    def start(self, queue: MessageQueue) -> int:
        """The begin of a queue, from its master."""
        self.names([queue])
        header = QueueRequest(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
        request = make_call(RequestCode.GET_MIN_OFFSET, header)
        what = f"where queue {queue.topic}/{queue.queue_id} begins"
        return self.at(
            queue.broker_name, what, lambda connection: self.ask(connection, request)[0].header(OffsetAnswer)
        ).queue_offset

    def refuse_unreadable(self, connection: BlockingConnection[int], queues: Sequence[MessageQueue]) -> None:
        """Raises what the connection's broker refuses a pull from one of the queues with. A topic that is not there has no messages."""
        terms, ask = PullTerms(self.settings, DEFAULT_GROUP), Ask(0, 1)
        ids = (QueueId(queue.topic, queue.broker_name, queue.queue_id) for queue in queues)
        for answer in self.ask(connection, *(PullRequests(queue, terms).request(ask) for queue in ids)):
            answer.expect(*PULL_CODES, ResponseCode.TOPIC_NOT_EXIST)

    def has_producers(self, connection: BlockingConnection[int], group: str) -> bool:
        """Whether the broker knows a connection of that producer group."""
        header = ProducerGroupRequest(producer_group=group)
        (answer,) = self.ask(connection, make_call(RequestCode.GET_PRODUCER_CONNECTION_LIST, header))
        if answer.code == ResponseCode.SYSTEM_ERROR and "not exist" in (answer.command.remark or ""):
            return False
        # Brokers up to 4.9 keep a group whose last connection has ended.
        return bool(answer.body(ProducerConnection).connections)

    def ask(self, connection: BlockingConnection[int], *requests: RemotingCommand) -> list[Answered]:
        """The answers, whatever they say."""
        return exchange(connection, requests, self._timeout_ms)


TOPIC = "SPARK_MQ_SINK"
"""The topic of all sinks: what they have sent, and the messages of fences."""
_READ_WRITE = 6
_STORED_CODES = tuple(status.value for status in SendStatus)
_SETTLE_S = 0.2
_POLL_S = 0.1
_KNOWN_ANNOUNCEMENTS = 32
_LOG = logging.getLogger("spark_mq.sink")


class LiveBrokers:
    """The brokers of one commit (`exact_commit.Brokers`)."""

    def __init__(self, options: LiveSinkOptions, routes: LiveRoutes, batch_text: str) -> None:
        self._options = options
        self._questions = BrokerQuestions(options, routes)
        self._batch_text = batch_text
        self._topic = with_namespace(options.namespace, TOPIC)
        self._fenced: dict[str, int] = {}
        """The answer to the last message of a fence, by broker."""
        self._statuses: Counter[tuple[str, int]] = Counter()

    # What a commit asks.

    def prepare(self, queues: Iterable[MessageQueue], places: Iterable[MessageQueue] = ()) -> None:
        """The sink's own topic is there, at each of the brokers, and the places can be read. A broker that is away is waited for."""
        for name in self._questions.names(queues):
            self._questions.at(name, f"topic {self._topic}", self._make_topic)
            if at := [place for place in places if place.broker_name == name]:
                what = "where rows wait can be read"
                self._questions.at(name, what, partial(self._questions.refuse_unreadable, queues=at))

    def _make_topic(self, connection: BlockingConnection[int]) -> None:
        """May be repeated: a broker that has the topic keeps it."""
        there = make_call(RequestCode.GET_TOPIC_CONFIG, QueueRequest(topic=self._topic, queue_id=0))
        if self._questions.ask(connection, there)[0].code == ResponseCode.SUCCESS:
            return
        header = CreateTopicRequest(
            topic=self._topic,
            default_topic="TBW102",
            read_queue_count=1,
            write_queue_count=1,
            perm=_READ_WRITE,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
        )
        self._questions.ask(connection, make_call(RequestCode.UPDATE_AND_CREATE_TOPIC, header))[0].expect()

    def ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """As their masters say."""
        return self._questions.ends(queues)

    def fence(self, queues: Iterable[MessageQueue], groups: Sequence[str]) -> None:
        """As the module says. Raises BatchInDoubtError when `fenceTimeout` is over.

        The answer to the last message of a fence tells how safe everything is that the broker has stored before.
        """
        deadline = time.monotonic() + self._options.fence_timeout / 1_000
        for name in self._questions.names(queues):
            self._until(deadline, lambda name=name: self._is_past(name, groups), name)  # type: ignore[misc]
            time.sleep(_SETTLE_S)
            self._until(deadline, lambda name=name: self._is_past(name, groups), name)  # type: ignore[misc]
            self._statuses = Counter({key: rows for key, rows in self._statuses.items() if key[0] != name})

    def marks(self, queue: MessageQueue, start: int, prefix: str) -> Marks:
        """Every record from there to the end is looked at."""
        end = self._questions.ends([queue])[queue]
        first = self._questions.start(queue)
        if first > start:
            raise SentRowsLostError(
                queue_text(queue),
                f"its messages from {start} to {first} are gone: they have expired, or somebody has deleted them",
            )
        offsets: list[np.ndarray] = []
        marks: list[str] = []
        reader = PullReader(
            QueueId(queue.topic, queue.broker_name, queue.queue_id),
            {0: self._questions.address(queue.broker_name, queue.topic)},
            PullTerms(self._questions.settings, DEFAULT_GROUP, timeout_ms=self._options.retry_timeout),
        )
        try:
            for part in reader.slices(start, end):
                ours, found = marks_of(part.records.raw_properties(), prefix)
                offsets.append(part.queue_offsets[ours])
                marks += found
        except DataLossError as error:
            raise SentRowsLostError(queue_text(queue), error.describe()) from None
        finally:
            reader.close()
        if marks and queue.broker_name in self._fenced:
            self._statuses[queue.broker_name, self._fenced[queue.broker_name]] += len(marks)
        return Marks(np.concatenate(offsets) if offsets else np.empty(0, np.int64), marks)

    def send(
        self,
        group: str,
        plans: Mapping[MessageQueue, QueuePlan],
        files: Sequence[StagedReader],
        least: Mapping[MessageQueue, int],
    ) -> Stored:
        """A connection for each broker, which is not made again. Raises WriteFailedError where a fence would not see it."""
        ends: dict[MessageQueue, int] = {}
        statuses: Counter[int] = Counter()
        lock = threading.Lock()

        def take(batch: QueueBatch, answer: RemotingCommand) -> None:
            header = read_answer_header(SendMessageAnswer, answer, batch.queue.broker_name, 320)
            with lock:
                if not batch.waits:
                    ends[batch.queue] = header.queue_offset + batch.row_count
                statuses[answer.code] += batch.row_count
                self._statuses[batch.queue.broker_name, answer.code] += batch.row_count
            reach("live-amid-send")

        timeouts = self._options.send_timeout, self._options.retry_timeout
        lanes: dict[str, BrokerLane] = {}
        connections: list[BlockingConnection[int]] = []
        body = HeartbeatData(client_id=group, producers=(ProducerData(group_name=group),))
        heartbeat = make_call(RequestCode.HEART_BEAT, body=body)
        leave = make_call(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequest(client_id=group, producer_group=group))
        try:
            for name in self._questions.names(plans):
                connections.append(self._registered(name, group, heartbeat))
                self._check_ends(
                    connections[-1], {queue: at for queue, at in least.items() if queue.broker_name == name}
                )
                lanes[name] = self._lane(connections[-1], LaneTerms(group, True, *timeouts, take, heartbeat, leave))
            reach("live-connected")
            for batch in _interleaved(plans, files):
                lanes[batch.queue.broker_name].offer(batch)
            for lane in lanes.values():
                lane.finish()
        except LaneStoppedError as error:
            if error.is_doubt:
                raise SendInDoubtError(error.describe()) from None
            raise error.cause from None
        except ClientError as error:  # no connection, or no answer before the first row: nothing was sent
            raise SendInDoubtError(error.describe()) from None
        finally:
            for lane in lanes.values():
                lane.stop()
            for connection in connections:
                connection.close()
        return Stored(ends, statuses)

    def check_safety(self, statuses: Mapping[int, int]) -> None:
        """With `acks=all`: every answer said SEND_OK, and so did the fence's for rows that were found."""
        if self._options.acks == "all":
            for (broker_name, code), rows in self._statuses.items():
                refuse_unsafe({code: rows}, broker_name)

    def announce(self, done: Done) -> None:
        """A message with the sink's digest as key; twice is as good as once. The batch is done already, so an error is logged."""
        if not done.spans:
            return
        name = self._questions.names(span.queue for span in done.spans)[0]
        put = lambda connection: self._put(connection, name, encode(done), key=_key(done.batch.sink_id))  # noqa: E731
        try:
            self._questions.at(name, "the batch is announced", put)
        except ClientError as error:
            _LOG.warning(
                "batch %d is sent, but not announced in the sink's topic: %s", done.batch.batch_id, error.describe()
            )

    def announced(self, sink_id: str, *, patient: bool) -> list[Done]:
        """By the brokers' index, the newest."""
        if patient:
            query = partial(self.announced, sink_id, patient=False)
            return self._questions.patiently(query, f"brokers (what topic {self._topic} tells of the sink)")
        with Admin(self._questions.settings) as admin:
            if self._topic not in admin.topics():
                return []
            found = admin.query_by_key(self._topic, _key(sink_id), limit=_KNOWN_ANNOUNCEMENTS).messages
        known = (announcement_of(message.record, sink_id) for message in found)
        return [done for done in known if done is not None]

    # Connections and retries.

    def _is_past(self, broker_name: str, groups: Sequence[str]) -> bool:
        """Whether the broker knows no connection of the groups, and everything that was stored before can be read."""
        with self._questions.connected(broker_name) as connection:
            if any(self._questions.has_producers(connection, group) for group in groups):
                return False
            put, self._fenced[broker_name] = self._put(
                connection, broker_name, json.dumps({"fence": groups[-1]}).encode()
            )
            queue = MessageQueue(self._topic, broker_name, put.queue_id)
            deadline = time.monotonic() + self._options.send_timeout / 1_000
            while self._questions.ends_at(connection, [queue])[queue] <= put.queue_offset:
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
                if not may_pass(error):
                    raise BatchInDoubtError(self._batch_text, reason) from None
            if time.monotonic() > deadline:
                waited = f"waited {self._options.fence_timeout / 1_000:g} s (fenceTimeout)"
                raise BatchInDoubtError(self._batch_text, f"{reason}; {waited}")
            time.sleep(_POLL_S)

    def _registered(self, broker_name: str, group: str, heartbeat: RemotingCommand) -> BlockingConnection[int]:
        """A connection that the broker knows as the group's, and reports to a fence."""
        connection = BlockingConnection[int](self._questions.address(broker_name), self._questions.settings)
        try:
            self._questions.ask(connection, heartbeat)[0].expect()
            if not self._questions.has_producers(connection, group):
                raise WriteFailedError(
                    f"{self._batch_text}: broker {broker_name} takes a producer's heartbeat and does not register it, so that a "
                    "later attempt could not ask for its connection; nothing was sent to it. A broker does so with "
                    "enableRegisterProducer=false and rejectTransactionMessage=true"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_ends(self, connection: BlockingConnection[int], least: Mapping[MessageQueue, int]) -> None:
        """Raises SendInDoubtError for a queue that ends before its offset."""
        for queue, end in self._questions.ends_at(connection, least).items():
            if end < least[queue]:
                raise SendInDoubtError(f"queue {queue_text(queue)} ended at {least[queue]} and ends at {end} now")

    def _lane(self, connection: BlockingConnection[int], terms: LaneTerms) -> BrokerLane:
        return BrokerLane(lambda: connection, terms)  # type: ignore[arg-type,return-value]

    def _put(
        self, connection: BlockingConnection[int], broker_name: str, body: bytes, key: str | None = None
    ) -> tuple[SendMessageAnswer, int]:
        """A message in the sink's own topic, and the code of its answer, which says how safely it is stored."""
        properties = b"" if key is None else f"KEYS\x01{key}\x02".encode()
        item = encode_batch([BatchedMessage(body, properties)])
        queue = MessageQueue(self._topic, broker_name, 0)
        request = send_request(queue, item, 1, 0, group=DEFAULT_GROUP, born_time_ms=current_time_ms())
        (answer,) = self._questions.ask(connection, request)
        return answer.header(SendMessageAnswer, *_STORED_CODES), answer.code


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
            rows = len(one.batch.ranks) - one.skip
            yield QueueBatch(queue, body, rows, one.batch.sys_flag, waits=one.batch.waits)
        turns = going_on


def _key(sink_id: str) -> str:
    return sink_digest(sink_id, sink_id).hex()
