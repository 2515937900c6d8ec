"""A slave in its master's place puts what is due into the logs of other masters: levels, timed messages, halves without an end.

    own queues ─▶ what is due ─▶ SEND to a queue of its topic at another broker ─▶ stored there ─▶ own progress

Needs enableSlaveActingMaster and enableRemoteEscape. Progress is saved after the other broker's answer, and moves over no message that
is not there. So no message is lost. One comes twice if an answer is lost, or if the slave is killed before it saves, as in Java.
A master that comes back takes the slave's progress over before it registers, and again before it delivers (`take_back`).

Java: EscapeBridge, and its callers in ScheduleMessageService, TimerMessageStore and TransactionalMessageServiceImpl. Departures: Java
sends with WAIT=false, here the other broker waits for its disk, as its settings say. A message that no other broker takes waits, and
those behind it: of its level, of the timer, of the halves. Java drops a half after eleven tries, and a timed message after three.
Answers that the message is stored count, Java sends it again. A message for a static topic waits for its master.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from spark_mq.broker_server.member_group import Member
from spark_mq.client.errors import ClientError
from spark_mq.client.event_loop import run
from spark_mq.client.remoting_client import NameServers, RemotingClient
from spark_mq.client.routes import TopicRoute
from spark_mq.client.send_results import stored_status
from spark_mq.client.settings import ClientSettings
from spark_mq.remoting import MessageQueue, RemotingCommand, RequestCode, make_request, write_header
from spark_mq.remoting.messages import SendMessageRequest
from storage.delay.schedule import due_rounds, save_level
from storage.delay.timer_store import deliver_timed
from storage.epoch_times import is_time, steady_time_ms
from storage.errors import PutRefusedError
from storage.format.properties import CRC_NAME
from storage.names import MASTER_ID
from storage.rules.delays import DELAY, REAL_QUEUE_ID, REAL_TOPIC, TIMER_DEQUEUE_MS, TIMES
from storage.rules.half_messages import PRODUCER_GROUP, sent_again
from storage.rules.inner_messages import InnerMessage, InnerMessages, encode_properties
from storage.rules.topics import AUTO_CREATE_TOPIC
from storage.service.put_service import PutService
from storage.tables.document import OFFSETS_FILE
from storage.tables.masters import DELAYS_FILE, TIMER_CHECKPOINT_FILE
from storage.transaction.check import open_halves, save_open_halves
from storage.transaction.check_plan import CheckRules

SEND_TIMEOUT_MS = 3_000
ROUND_MESSAGES = 64
"""Messages between two saves of progress."""
_ROUTE_MS = 5_000
_NO_ROUTE_MS = 1_000
_SHUNNED_MS = 5_000
"""So long a broker that has not taken a message of a topic gets others of it only if no other broker is left."""
_TEMPLATE_QUEUES = 8
PROGRESS_FILES = {DELAYS_FILE: "delay levels", TIMER_CHECKPOINT_FILE: "the timer", OFFSETS_FILE: "half messages"}
"""The file that says how far a master has delivered, and what it counts."""
_LOG = logging.getLogger(__name__)


class _Queues(NamedTuple):
    """The queues of a topic at other masters."""

    queues: list[tuple[MessageQueue, str]]
    """With the address of each."""
    why_not: str
    requested_at_ms: int


class EscapeBridge:
    """Sends to other masters of the cluster, one message at a time. For one thread at a time."""

    def __init__(
        self,
        own: Member,
        client: ClientSettings,
        acts: Callable[[], bool],
        *,
        steady: Callable[[], int] = steady_time_ms,
    ) -> None:
        """`acts`: whether this broker stands in for its master now."""
        self._own = own
        self._acts = acts
        self._steady = steady
        self._client = RemotingClient(client)
        self._name_servers = NameServers(self._client, client)
        self._queues: dict[str, _Queues] = {}
        self._turns: Counter[str] = Counter()
        """How many queues of a topic were chosen."""
        self._refused_at_ms: dict[tuple[str, str], int] = {}
        """By topic and broker name, until the broker takes a message of the topic."""
        self._is_closed = False

    @property
    def acts(self) -> bool:
        """Whether it may send."""
        return self._acts() and not self._is_closed

    def end_soon(self) -> None:
        """Send nothing more."""
        self._is_closed = True

    def close(self) -> None:
        """Hangs up."""
        self.end_soon()
        run(self._client.close())

    def put(self, message: InnerMessage) -> str | None:
        """Put a message into a queue of its topic at another master; None = it is stored there, else why it is not known to be."""
        if not self.acts:
            return "the broker stands in for no master any more"
        topic = message.topic
        found = self._queues_of(topic)
        if not found.queues:
            return found.why_not
        queue, address = self._chosen(topic, found.queues)
        try:
            answer = run(self._client.invoke(address, self._request(message, queue), SEND_TIMEOUT_MS))
        except ClientError as error:
            return self._refused(queue, error.describe())
        if stored_status(answer.code) is None:
            return self._refused(queue, f"{answer.code} {answer.remark or ''}".rstrip())
        self._refused_at_ms.pop((topic, queue.broker_name), None)
        return None

    def _refused(self, queue: MessageQueue, why: str) -> str:
        self._queues.pop(queue.topic, None)
        self._refused_at_ms[queue.topic, queue.broker_name] = self._steady()
        return f"broker {queue.broker_name} does not take a message of topic {queue.topic}: {why}"

    def _chosen(self, topic: str, queues: list[tuple[MessageQueue, str]]) -> tuple[MessageQueue, str]:
        """The next one in turn of a broker that has not refused of late, else of the one that did so first.

        Java: TopicPublishInfo.selectOneMessageQueue with the name of the last broker.
        """
        now_ms, start = self._steady(), self._turns[topic] % len(queues)
        self._turns[topic] += 1

        def refused_at_ms(place: tuple[MessageQueue, str]) -> float:
            at_ms = self._refused_at_ms.get((topic, place[0].broker_name))
            return -math.inf if at_ms is None or is_time(now_ms, at_ms, _SHUNNED_MS) else at_ms

        return min(queues[start:] + queues[:start], key=refused_at_ms)

    def _request(self, message: InnerMessage, queue: MessageQueue) -> RemotingCommand:
        own = self._own
        properties = {name: value for name, value in message.properties.items() if name != CRC_NAME}
        inner_group = f"InnerProducerGroup_{own.broker_name}_{own.broker_id}"
        header = SendMessageRequest(
            producer_group=properties.get(PRODUCER_GROUP) or inner_group,
            topic=message.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_count=_TEMPLATE_QUEUES,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag,
            born_time_ms=message.born_time_ms,
            flag=message.flag,
            properties=encode_properties(properties).decode(),
            reconsume_times=message.reconsume_times,
            is_batch=False,
        )
        code = RequestCode.SEND_MESSAGE_V2
        return make_request(code, write_header(header, code), message.body)

    def _queues_of(self, topic: str) -> _Queues:
        now_ms = self._steady()
        kept = self._queues.get(topic)
        if kept is None or is_time(now_ms, kept.requested_at_ms, _ROUTE_MS if kept.queues else _NO_ROUTE_MS):
            kept = self._queues[topic] = self._requested(topic, now_ms)
        return kept

    def _requested(self, topic: str, now_ms: int) -> _Queues:
        why_not = f"no other master of the cluster has topic {topic}"
        try:
            queues = queues_elsewhere(run(self._name_servers.route(topic, SEND_TIMEOUT_MS)), self._own.broker_name)
        except ClientError as error:
            return _Queues([], f"{why_not}: {error.describe()}", now_ms)
        return _Queues(queues, why_not, now_ms)


def queues_elsewhere(route: TopicRoute, own_name: str) -> list[tuple[MessageQueue, str]]:
    """The writable queues of a topic at other masters, with their addresses. Of a static topic none: its queues belong to no broker.

    Raises MessageQueueNotFoundError for an order configuration that cannot be read.
    """
    return [
        (queue, route.brokers[queue.broker_name][MASTER_ID])
        for queue in route.publish_queues
        if queue.broker_name != own_name and MASTER_ID in route.brokers.get(queue.broker_name, {})
    ]


class Escapes:
    """What a slave in its master's place has due, by turns; each does nothing while it stands in for none."""

    def __init__(self, service: PutService, bridges: Callable[[str], EscapeBridge]) -> None:
        """`bridges` makes a bridge for each file of PROGRESS_FILES, because each kind of turn has its thread."""
        self._service = service
        self._levels, self._timed, self._halves = map(bridges, PROGRESS_FILES)
        self._there: Counter[bytes] = Counter()
        """Timed messages that other brokers have, while their slots have others that they do not have."""
        self._troubles: dict[str, str] = {}

    def end_soon(self) -> None:
        """Send nothing more; a turn that runs ends after the message that is being sent."""
        for bridge in (self._levels, self._halves, self._timed):
            bridge.end_soon()

    def close(self) -> None:
        """Hangs up, after the last turn."""
        for bridge in (self._levels, self._halves, self._timed):
            bridge.close()

    def deliver_levels(self, now_ms: int) -> None:
        """Due messages of the delay levels, each level up to the first that no broker takes. Raises StateFileError, OSError."""
        stopped: set[int] = set()
        while self._levels.acts:
            with self._service.exclusive() as store:
                found = [each for each in due_rounds(store, now_ms, ROUND_MESSAGES) if each.level not in stopped]
            for each in found:
                if each.level in stopped:
                    continue
                count = self._put_all(self._levels, each.messages, f"level {each.level}", _without_delay)
                is_whole = count == each.messages.row_count
                if not is_whole:
                    stopped.add(each.level)
                if count or is_whole:
                    offset = each.end if is_whole else int(each.next_offsets[count - 1])
                    save_level(self._service.store, each.level, offset, now_ms)
            if not found:
                return

    def send_halves(self, now_ms: int) -> None:
        """Halves without an end become halves of another broker, which asks their producers. Raises StateFileError, OSError."""
        if not self._halves.acts:
            return
        with self._service.exclusive() as store:
            found = open_halves(store, now_ms, CheckRules.of(store.config))
        sent = 0
        while self._halves.acts:
            with self._service.exclusive() as store:
                messages, offsets, end = found.round(store, sent, ROUND_MESSAGES)
            count = self._put_all(self._halves, messages, "half messages", sent_again)
            is_whole = count == messages.row_count
            save_open_halves(self._service.store, found, end if is_whole else int(offsets[count]), now_ms)
            sent += count
            if not is_whole or sent >= found.halves.row_count:
                return

    def deliver_timed(self, now_ms: int) -> None:
        """Messages that the timer has due. Raises what `deliver_timed` of the store does.

        Under the lock they are read, and those that others have are counted as delivered; between the two they are sent.
        """
        if not self._timed.acts:
            return
        while wanted := self._wanted_timed(now_ms):
            for message in wanted:
                if self._put_one(self._timed, _without(message, (REAL_TOPIC, REAL_QUEUE_ID)), "the timer") is not None:
                    return
                self._there[_name(message)] += 1

    def _wanted_timed(self, now_ms: int) -> list[InnerMessage]:
        """Count as delivered what others have; return the next due messages that they do not have."""
        left, wanted = Counter(self._there), list[InnerMessage]()

        def is_there(message: InnerMessage) -> bool:
            if left[name := _name(message)]:
                left[name] -= 1
                return True
            return False

        def take(messages: InnerMessages) -> bool:
            wanted.extend(each for each in map(messages.message, range(messages.row_count)) if not is_there(each))
            return not wanted

        def saved() -> None:
            self._there = +left

        with self._service.exclusive() as store:
            deliver_timed(store, now_ms, take, saved)
        if not wanted:
            self._there.clear()
        return wanted

    def _put_all(
        self,
        bridge: EscapeBridge,
        messages: InnerMessages,
        what: str,
        changed: Callable[[InnerMessage], InnerMessage],
    ) -> int:
        """How many, from the first on, other brokers have."""
        for row in range(messages.row_count):
            try:
                message = changed(messages.message(row))
            except PutRefusedError as refused:
                self._note(what, str(refused))
                return row
            if self._put_one(bridge, message, what) is not None:
                return row
        return messages.row_count

    def _put_one(self, bridge: EscapeBridge, message: InnerMessage, what: str) -> str | None:
        trouble = bridge.put(message)
        if bridge.acts:
            self._note(what, trouble)
        return trouble

    def _note(self, what: str, trouble: str | None) -> None:
        """Log a trouble once, until it is over."""
        if trouble is None:
            if self._troubles.pop(what, None) is not None:
                _LOG.warning("%s: other brokers take messages again", what)
        elif self._troubles.get(what) != trouble:
            self._troubles[what] = trouble
            _LOG.warning("%s: messages wait: %s", what, trouble)


def _without_delay(message: InnerMessage) -> InnerMessage:
    """Without its delay, or the other broker would delay it again. Java: ScheduleMessageService.messageTimeUp."""
    return _without(message, (DELAY, *TIMES))


def _without(message: InnerMessage, names: tuple[str, ...]) -> InnerMessage:
    return replace(message, properties={key: text for key, text in message.properties.items() if key not in names})


def _name(message: InnerMessage) -> bytes:
    """Identifies a timed message while its slot is delivered: when it leaves the wheel changes with each try."""
    kept = {name: value for name, value in message.properties.items() if name != TIMER_DEQUEUE_MS}
    parts = (message.topic.encode(), encode_properties(kept), str(message.born_time_ms).encode(), message.body)
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()
