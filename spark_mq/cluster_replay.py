"""Dead letters of a running cluster, put back by its brokers' own sends. `replay.py` is the same for a store; what a copy is, it says.

    letters    pulled from the group's dead-letter topic          copies    sent one by one; each answer is waited for
    lock       a producer group of the replay's own: of two runs that brokers know at once, both step back

A copy is found again by its property REPLAYED_FROM. A run looks for copies before it sends: in the topics from the time of the oldest
letter on, or of the unfinished run's plan where there is an audit. When it looks, no broker of the letters knows a producer of an
earlier run any more, so nothing of that run is on its way. After an answer that says neither stored nor refused the run ends; the
next one looks. So a letter gets one copy, with one limit: a broker that took a request of a dead run and has not stored it yet when the
next run looks, a fraction of a second later at the least, makes a second one. A copy goes to its letter's broker, so that who sees the
letter finds it. Where that broker has no queue of the topic it goes to another, and is looked for only while that one is registered.

Departure: a copy is born when it is sent, as every message of a client.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

from spark_mq.client.admin import AsyncAdmin
from spark_mq.client.errors import (
    ClientError,
    GroupTakenError,
    MessageQueueNotFoundError,
    MessageRefusedError,
    ResponseError,
    TopicRouteNotFoundError,
)
from spark_mq.client.event_loop import run
from spark_mq.client.message import Message, decode_records
from spark_mq.client.producer import Producer
from spark_mq.client.pulls import Pull, PullStatus, subscription
from spark_mq.client.send_results import SendResult, SendStatus
from spark_mq.client.settings import ProducerSettings, with_namespace
from spark_mq.options import ClusterOptions
from spark_mq.remoting import MessageQueue
from spark_mq.remoting.frames import MOST_BODY_BYTES
from spark_mq.replay import REFUSED, REPLAYED, REPLAYED_FROM, DeadLetter, Outcome, Target, copied_properties, target_of
from spark_mq.sink.sends import Verdict, verdict_of
from storage.errors import CorruptMessageError, NameIllegalError
from storage.failpoints import reach
from storage.format.record import Message as Record
from storage.names import RETRY_PREFIX, dead_letter_topic, retry_topic, validate_user_topic
from storage.rules.response_codes import ResponseCode

CLOCKS_MS = 60_000
"""By so much the clocks of brokers and of this machine may differ."""
_SEND_TIMEOUT_MS = 30_000
_PAUSES_S = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Between the tries of a copy that a broker refuses for a while."""
_MARK = REPLAYED_FROM.encode()


class ReplayAtWorkError(Exception):
    """Another run replays this group's letters now."""


class _Place(NamedTuple):
    queue: MessageQueue
    offset: int
    store_time_ms: int


class ClusterLetters:
    """The dead letters of one group at the brokers of a cluster. Use it within `locked`."""

    def __init__(self, cluster: ClusterOptions, group: str, to: Target = "topic") -> None:
        self._settings = cluster.client_settings()
        self._namespace = cluster.namespace
        self._group = with_namespace(cluster.namespace, group)
        self._producer_group = f"SPARK_MQ_REPLAY_{group}"
        self._to = to
        self._topic = dead_letter_topic(self._group)
        self._places: dict[str, _Place] = {}
        self._targets: dict[str, tuple[MessageQueue, ...] | str] = {}
        self._closed: dict[tuple[str, str], str] = {}
        """Why a broker's retry topic takes no more copies, by topic and broker."""
        self._turn = count()
        self._producer: Producer | None = None
        self._admin = AsyncAdmin(self._settings)
        self._instance = self._admin.instance

    def close(self) -> None:
        """Leave the brokers."""
        self._admin.release()

    def exist(self) -> bool:
        """Whether the group has any."""
        return any(self._end(queue) > self._start(queue) for queue in self._queues(self._topic))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other run replays this group's letters meanwhile. Raises ReplayAtWorkError."""
        run(self._instance.route(self._topic))  # whose brokers the producer is made known to
        settings = ProducerSettings(retries=0, send_timeout_ms=_SEND_TIMEOUT_MS, max_message_bytes=MOST_BODY_BYTES)
        try:
            producer = Producer(self._settings, self._producer_group, settings)
        except GroupTakenError as error:
            raise ReplayAtWorkError(f"this process replays dead letters of {self._group} already") from error
        with producer as self._producer:
            known = run(
                self._admin.producer_connection(with_namespace(self._namespace, self._producer_group), self._topic)
            )
            others = {each.client_id for each in known.connections} - {self._producer.client_id}
            if others:
                raise ReplayAtWorkError(f"client {sorted(map(str, others))[0]} replays dead letters of {self._group}")
            yield
        self._producer = None

    def listed(self, since_ms: int | None = None, until_ms: int | None = None) -> list[DeadLetter]:
        """Those that became such in [since_ms, until_ms), by broker, queue and offset."""
        found = []
        for queue, record in self._look():
            if (since_ms is None or record.store_time_ms >= since_ms) and (
                until_ms is None or record.store_time_ms < until_ms
            ):
                origin = record.properties.get("RETRY_TOPIC", record.topic)
                found.append(DeadLetter(queue.queue_id, record.queue_offset, record.msg_id, record.unique_key, origin))
        return found

    def without_copies(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Those that the topics hold no copy of. It says so for certain: a copy is younger than its letter at the same broker, and so
        expires after it.
        """
        places = self._known_places()
        times = [places[letter.msg_id].store_time_ms for letter in letters if letter.msg_id in places]
        if not times:
            return list(letters)
        copies, _ = self.copies(letters, min(times))
        return [letter for letter in letters if letter.msg_id not in copies]

    def mark(self) -> int:
        """The time: a copy that is sent from now on is younger, but for what clocks differ."""
        return time.time_ns() // 1_000_000

    def copies(self, letters: Sequence[DeadLetter], mark: int) -> tuple[dict[str, str], bool]:
        """The letters' copies since a mark, their message ids by the letters'; and whether none of those since then has expired."""
        ids = {letter.msg_id for letter in letters}
        topics = {self._target(letter, to) for letter in letters for to in ("topic", "retry")}
        topics.add(self._topic)  # a copy that failed again, or that its broker did not let be tried
        found: dict[str, str] = {}
        have_expired, oldest_ms = set[str](), dict[str, int]()
        for queue in (queue for topic in sorted(topics) for queue in self._queues(topic)):
            start, end = self._start(queue), self._end(queue)
            first = run(self._admin.search_offset(queue, max(mark - CLOCKS_MS, 0))) if end > start else end
            if start > 0:
                have_expired.add(queue.broker_name)
            if end > start:
                first_ms = run(self._admin.earliest_time_ms(queue))
                oldest_ms[queue.broker_name] = min(first_ms, oldest_ms.get(queue.broker_name, first_ms))
            for record in self._records(queue, max(first, start), end, marked=True):
                source = record.properties.get(REPLAYED_FROM)
                if source in ids:
                    found[source] = record.msg_id
        # A log expires from its beginning: a broker that holds anything from before the mark has lost nothing since.
        return found, all(oldest_ms.get(name, mark + 1) <= mark for name in have_expired)

    def replay(self, letters: Sequence[DeadLetter]) -> list[Outcome]:
        """Send copies; the outcome of each letter, in their order.

        A letter that no topic takes, that has expired, has been replaced or does not decompress is refused alone. Raises the client's
        errors if it is unknown whether a copy is stored, or if a broker refuses for too long: `copies` finds the copies sent before.
        """
        return [self._replayed(letter) for letter in letters]

    def _replayed(self, letter: DeadLetter) -> Outcome:
        record = self._read(letter)
        if record is None:
            return Outcome(letter, REFUSED, "it is not there any more")
        topic = self._target(letter, self._to)
        queues = self._queues_to_write(topic, self._places[letter.msg_id].queue.broker_name)
        if isinstance(queues, str):
            return Outcome(letter, REFUSED, queues)
        try:
            body = record.plain_body
        except CorruptMessageError as error:
            return Outcome(letter, REFUSED, f"body: {error.describe()}")
        origin = with_namespace(self._namespace, target_of(letter.origin_topic, self._group, "topic"))
        properties = copied_properties(record.properties, letter.msg_id, origin if self._to == "retry" else None)
        message = Message(topic, body, properties=properties, flag=record.flag)
        queue = queues[next(self._turn) % len(queues)]
        sent = self._send(message, queue)
        if isinstance(sent, str):
            return Outcome(letter, REFUSED, sent)
        reach("replay-amid-copies")
        reason = None if sent.status is SendStatus.SEND_OK else sent.status.name
        if topic.startswith(RETRY_PREFIX) and (rule := self._is_dead_again(sent, topic, queue.broker_name)):
            reason = self._closed[topic, queue.broker_name] = rule
        return Outcome(letter, REPLAYED, reason, sent.offset_message_id)

    def _send(self, message: Message, queue: MessageQueue) -> SendResult | str:
        """The result of the send, or the reason why the message is refused."""
        assert self._producer is not None, "not locked"
        for pause_s in (*_PAUSES_S, None):
            try:
                return self._producer.hand_on(message, queue)
            except MessageRefusedError as error:
                return error.describe()
            except ResponseError as error:
                verdict = verdict_of(error.code, is_exact=True)
                if verdict is Verdict.REFUSED or error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    return error.describe()
                if verdict is not Verdict.AGAIN or pause_s is None:
                    raise
                time.sleep(pause_s)
        raise AssertionError

    def _target(self, letter: DeadLetter, to: Target) -> str:
        return with_namespace(self._namespace, target_of(letter.origin_topic, self._group, to))

    def _is_dead_again(self, sent: SendResult, topic: str, broker_name: str) -> str | None:
        """Why copies in that retry topic are of no use there: the broker has put one among the dead letters. None also where it does
        not say.
        """
        try:
            if run(self._admin.view_message(sent.offset_message_id, topic)).record.topic == topic:
                return None
        except ClientError:  # the copy is stored, and `copies` finds it wherever it is
            return None
        return (
            f"broker {broker_name} puts what group {self._group} is to try again among the dead letters: it consumes in order, or its "
            "entry allows no tries (retryMaxTimes). Replay to the topic, or stop its consumers and run again after a minute"
        )

    def _queues_to_write(self, topic: str, broker_name: str) -> tuple[MessageQueue, ...] | str:
        """The queues that take the copy of a letter of that broker, or why there are none: those of the same broker where it has some.

        Who can read the letter finds its copy then, whichever other broker is away, and the copy expires after its letter.
        """
        if (rule := self._closed.get((topic, broker_name))) is not None:
            return rule
        queues = self._all_queues_to_write(topic)
        own = () if isinstance(queues, str) else tuple(queue for queue in queues if queue.broker_name == broker_name)
        return own or queues

    def _all_queues_to_write(self, topic: str) -> tuple[MessageQueue, ...] | str:
        if topic not in self._targets:
            try:
                if topic != retry_topic(self._group):
                    validate_user_topic(topic)
                self._targets[topic] = run(self._instance.publish_queues(topic))
            except (NameIllegalError, TopicRouteNotFoundError, MessageQueueNotFoundError) as error:
                self._targets[topic] = error.describe()
        return self._targets[topic]

    # What brokers hold

    def _look(self) -> Iterator[tuple[MessageQueue, Record]]:
        for queue in self._queues(self._topic):
            for record in self._records(queue, self._start(queue), self._end(queue)):
                self._places[record.msg_id] = _Place(queue, record.queue_offset, record.store_time_ms)
                yield queue, record

    def _known_places(self) -> dict[str, _Place]:
        if not self._places:  # Spark has listed the letters
            for _ in self._look():
                pass
        return self._places

    def _read(self, letter: DeadLetter) -> Record | None:
        place = self._known_places().get(letter.msg_id)
        if place is None:
            return None
        found = self._records(place.queue, place.offset, place.offset + 1, limit=1)
        return next((record for record in found if record.msg_id == letter.msg_id), None)

    def _queues(self, topic: str) -> tuple[MessageQueue, ...]:
        try:
            return run(self._instance.subscribe_queues(topic))
        except TopicRouteNotFoundError:
            return ()

    def _start(self, queue: MessageQueue) -> int:
        return run(self._admin.min_offset(queue))

    def _end(self, queue: MessageQueue) -> int:
        return run(self._admin.max_offset(queue))

    def _records(
        self, queue: MessageQueue, start: int, end: int, *, marked: bool = False, limit: int = 32
    ) -> Iterator[Record]:
        """The records of [start, end); with `marked` those of pulls that hold a copy's mark somewhere."""
        wanted = subscription(queue.topic, "*", 1)
        while start < end:
            pull = Pull(queue, start, wanted, limit, suspend_ms=0, sends_subscription=True)
            result = run(self._admin.pull(pull, self._group))
            if result.status is PullStatus.FOUND and (not marked or _MARK in bytes(result.records)):
                yield from (record for record in decode_records(result.records) if record.queue_offset < end)
            if result.next_offset <= start:
                return
            start = result.next_offset
