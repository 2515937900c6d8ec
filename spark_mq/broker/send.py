"""A send, from request to answer: the one place that runs the decisions of this package in a broker's order.

    SEND ─begin─▶ static topic ─judge─▶ start gate ─▶ topic and queue ─▶ retry or dead letter ─▶ plan (`put_plan.py`) ─▶ PUT
    answer ◀─ code and remark, static topic ◀─ statistics ◀────────────────────────────────────────────────── its end ◀──┘

Six types hold the message on this way: RemotingCommand (the request; in the end its answer), SendMessageRequest (its header, which a
`Request` holds beside body and connection), InnerMessage (what the broker makes of it), PutPlan (the same as parts of records),
PutMessageResult (where it stands), SendMessageAnswer (the answer's header). Many sends that look alike go the same way as columns
(`send_run.py`).

The broker sets the properties MSG_REGION, TRACE_ON and CLUSTER, and UNIQ_KEY if absent. It removes POP_CK, which only a broker may set.
It keeps WAIT as the client wrote it. In Java, `asyncSendEnable` decides which thread waits for the disk; here both values answer when
the message is stored.
Not supported: topics with batch queues (BatchCQ), lite topics (a message for one is refused), hooks (SendMessageHook, RPCHook).
Java: SendMessageProcessor, AbstractSendMessageProcessor.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np

from spark_mq.broker.broker_metrics import BrokerMetrics, message_type
from spark_mq.broker.put_plan import (
    PutPlan,
    PutRules,
    disk_use_of,
    make_topic,
    plan_batch,
    plan_message,
    put_result,
    recall_handle,
    remark,
    requested_message,
    response_code,
    retry_or_dead_letter,
    save_entries,
    state_now,
)
from spark_mq.broker.requests import Request
from spark_mq.broker.send_run import SendRun
from spark_mq.remoting import RemotingCommand, write_header
from spark_mq.remoting.frames import RunAnswers
from spark_mq.remoting.messages import SendMessageAnswer, SendMessageRequest
from storage.epoch_times import current_time_ms
from storage.errors import MessageIllegalError, PutRefusedError
from storage.format.keys import FIRST_RANKS, new_prefix
from storage.format.properties import decode_properties
from storage.names import RETRY_PREFIX
from storage.pending import Pending
from storage.rules.delays import REAL_TOPIC
from storage.rules.half_messages import HALF_TOPIC
from storage.rules.inner_messages import InnerMessage, InnerMessages, Limits, refuse_any_excess, sizes_of_messages
from storage.rules.priorities import PRIORITY, by_priority
from storage.rules.put_guards import BrokerState, check_lite_topic
from storage.rules.response_codes import REJECTED, RequestRefusedError, ResponseCode
from storage.rules.static_topics import LogicalQueue, answered_place, logical_queue, physical_queue_id
from storage.rules.topics import TopicWish, check_queue, check_start, check_topic, known_topics
from storage.service.put_group import PutMessageResult
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.settings.nouns import SendConfig
from storage.tables.put_statistics import PutStatistics
from storage.tables.topics import TopicConfig
from storage.transaction.progress import save_counts

_RECEIPT = "POP_CK"
_NO_TEMPLATE = ""
"""A topic that is not there, whatever it is: with it as the template a send makes no topic."""


def unique_keys() -> Callable[[], str]:
    """Keys as long as a Java client's, no two alike. Java: MessageClientIDSetter.createUniqID."""
    prefix = new_prefix(os.getpid(), secrets.token_bytes).hex().upper()
    ranks = itertools.count(secrets.randbelow(FIRST_RANKS))
    return lambda: f"{prefix}{next(ranks):012X}"


def broker_properties(send: SendConfig) -> dict[str, str]:
    """A broker's properties in each message, and in the answer. Java: SendMessageProcessor.buildMsgContext."""
    return {"MSG_REGION": send.region_id, "TRACE_ON": str(send.trace_on).lower()}


def properties_of(header: SendMessageRequest) -> dict[str, str]:
    """The message's properties, as a broker reads them off the wire."""
    return decode_properties((header.properties or "").encode("utf-8", "surrogatepass"))


class SendMessageHandler:
    """Answers the sends of one broker into the store of a service. Thread-safe."""

    def __init__(
        self,
        service: PutService,
        *,
        statistics: PutStatistics | None = None,
        metrics: BrokerMetrics | None = None,
        clock: Callable[[], int] = current_time_ms,
        holds_order_lock: Callable[[str], bool] = lambda group: False,
    ) -> None:
        """`clock` gives milliseconds; `holds_order_lock` whether an orderly consumer of a group has a queue locked. For which times the
        timer takes no more is said by the wheel as it was at the opening.

        Raises StoreNotWritableError of a store that is open for reading, StateFileError.
        """
        settings = service.settings
        self.state = BrokerState()
        """Whether sends are taken; the broker sets it. What the service knows of itself is added to each request."""
        self.statistics = statistics or PutStatistics(settings.broker_name, settings.cluster)
        self._metrics = metrics
        self._service = service
        self._config = service.config
        self._host = settings.host
        self._broker_name, self._cluster_name = settings.broker_name, settings.cluster
        self._clock = clock
        self._new_unique_key = unique_keys()
        self._holds_order_lock = holds_order_lock
        self._is_congested = settings.full_slots
        self._added = broker_properties(self._config.send)
        self._counting = threading.Lock()
        self._prepared: Counter[str] = Counter()

    def configure(self, config: StoreConfig) -> None:
        """An operator has changed settings: these hold from now on."""
        self._config, self._added = config, broker_properties(config.send)

    @property
    def prepared(self) -> Mapping[str, int]:
        """Half messages by their real topic, since the start."""
        with self._counting:
            return dict(self._prepared)

    def close(self) -> None:
        """Write how many half messages were prepared (transactionMetrics; a kill loses the count). The store stays open.

        Java: TransactionMetrics.addAndGet.
        """
        with self._counting:
            prepared, self._prepared = self._prepared, Counter()
        save_counts(self._service.store, prepared, now_ms=self._clock())

    # A send

    def send(self, request: Request) -> RemotingCommand:
        """Store what the request brings, or say why not. A stored message is readable when this returns (a delayed one when it is
        due), and on the disk under SYNC_FLUSH.

        A store that cannot be written is SERVICE_NOT_AVAILABLE.
        Raises OSError where a topic or group that the request makes cannot be saved.
        """
        return self._begin(request, self._service.at_work)()

    def begin(self, request: Request) -> Pending[RemotingCommand]:
        """Run a send up to its put. The returned `Pending` waits for the put; the caller must call it once.

        So one thread may judge several sends, and they become one append. Raises what `send` raises.
        """
        return self._begin(request, self._service.at_work_for_later)

    def _begin(self, request: Request, at_work: Callable[[], AbstractContextManager[None]]) -> Pending[RemotingCommand]:
        """Java: SendMessageProcessor.processRequest, sendMessage, sendBatchMessage."""
        if state_now(self._service, self.state, is_heard=request.is_heard).rejects_requests:
            return Pending.done(request.answer(ResponseCode.SYSTEM_BUSY, REJECTED))
        header: SendMessageRequest = request.header
        begin_ms = self._clock()
        try:
            with at_work():  # a change of the mapping waits for the puts that were judged by the old one
                mappings = self._service.settings.mappings
                queue = logical_queue(
                    mappings, header.topic, header.queue_id, logical=header.is_logical, choose_queue=True
                )
                try:
                    queue_id = physical_queue_id(queue, header.queue_id)
                except RequestRefusedError as refused:
                    return Pending.done(request.answer(refused.code, refused.remark))
                plan, queue_id = self._judge(request, queue_id, begin_ms)
                pending = self._service.put_later(plan.messages, is_heard=plan.is_heard)
        except RequestRefusedError as refused:
            return Pending.done(request.answer(refused.code, refused.remark, self._added))
        except PutRefusedError as refused:
            self._service.times.refused(refused.status)
            return Pending.done(self._refusal(request, PutMessageResult(refused.status, reason=refused.reason)))

        def answer(put: Callable[[], PutMessageResult]) -> RemotingCommand:
            result = put_result(put, plan.message.topic)
            if not result.status.is_stored:
                return self._refusal(request, result)
            self._count(request, plan, result, queue_id, self._clock() - begin_ms)
            return self._stored(request, plan, result, queue_id, queue)

        return pending.then(answer)

    # Judging

    def checked(self, request: Request) -> RemotingCommand | None:
        """Check start, topic and queue of a message that is not stored: the refusal, or None.

        Java: AbstractSendMessageProcessor.msgCheck.
        """
        try:
            rules = self._rules(self._clock(), is_heard=request.is_heard)
            self._checked_topic(request, request.header.queue_id, rules)
        except RequestRefusedError as refused:
            return request.answer(refused.code, refused.remark, self._added)
        return None

    def _judge(self, request: Request, queue_id: int, now_ms: int) -> tuple[PutPlan, int]:
        """The plan of the put, and its queue. Raises RequestRefusedError, PutRefusedError."""
        header: SendMessageRequest = request.header
        properties = properties_of(header) | self._added
        properties.pop(_RECEIPT, None)
        rules = self._rules(now_ms, is_heard=request.is_heard)
        if self._config.release.knows_lite_topics:
            check_lite_topic(header.topic, properties)
        topic = self._checked_topic(request, queue_id, rules)
        if header.topic not in rules.topics:
            rules = self._rules(now_ms, is_heard=request.is_heard)
        if queue_id < 0:
            queue_id = _any_queue(topic)
        message = requested_message(request, queue_id, properties)
        if header.is_batch:
            return plan_batch(message, topic, rules), queue_id
        message = self._retried(message, request, rules.topics)
        if PRIORITY in properties and self._config.release.honours_priority:
            message = by_priority(message, topic.write_queue_count)
            queue_id = message.queue_id
        return plan_message(message, topic, rules, self._new_unique_key), queue_id

    def _rules(self, now_ms: int, *, is_heard: bool) -> PutRules:
        return PutRules(
            config=self._config,
            host=self._host,
            now_ms=now_ms,
            cluster_name=self._cluster_name,
            topics=self._topics,
            state=state_now(self._service, self.state, is_heard=is_heard),
            is_congested=self._is_congested,
            is_heard=is_heard,
        )

    @property
    def _topics(self) -> Mapping[str, TopicConfig]:
        """The file's entries over the built-in ones."""
        topics = self._service.settings.topics.topics
        return known_topics(topics, self._broker_name, self._cluster_name, self._config.send, self._config.timer)

    def _checked_topic(self, request: Request, queue_id: int, rules: PutRules) -> TopicConfig:
        name = request.header.topic
        check_start(self._config.send, rules.now_ms)
        checked = check_topic(name, topic_wish(request.header), rules.topics, self._config.send, rules.address)
        config = make_topic(self._service, checked.config) if checked.is_new else checked.config
        check_queue(queue_id, config, request.connection.address)
        return config

    def _retried(self, message: InnerMessage, request: Request, topics: Mapping[str, TopicConfig]) -> InnerMessage:
        is_retry = message.topic.startswith(RETRY_PREFIX)
        routed = retry_or_dead_letter(
            message,
            self._service.groups if is_retry else {},
            topics,
            config=self._config,
            max_reconsume_times=request.header.max_reconsume_times,
            client_version=request.command.version,
            group_holds_lock=is_retry and self._holds_order_lock(message.topic.removeprefix(RETRY_PREFIX)),
        )
        if routed.is_dead_letter and self._metrics is not None:
            self._metrics.dead_letter(request.header.producer_group or "", message.topic)
        save_entries(self._service, routed.topics, routed.groups, topics)
        return routed.message

    # Answering

    def _stored(
        self, request: Request, plan: PutPlan, put: PutMessageResult, queue_id: int, queue: LogicalQueue
    ) -> RemotingCommand:
        """Java: SendMessageProcessor.handlePutMessageResult."""
        properties = plan.message.properties
        said_queue_id, said_offset = answered_place(queue, queue_id, put.queue_offset)
        # The transaction's end must name the offset; Java's cannot where a queue has moved.
        if plan.message.topic == HALF_TOPIC:
            said_offset = put.queue_offset
        header = SendMessageAnswer(
            message_id=put.msg_id,
            queue_id=said_queue_id,
            queue_offset=said_offset,
            transaction_id=properties.get("UNIQ_KEY"),
            recall_handle=None if request.header.is_batch else recall_handle(properties, self._broker_name),
        )
        return request.answer(response_code(put.status), None, write_header(header) | self._added)

    def _refusal(self, request: Request, put: PutMessageResult) -> RemotingCommand:
        return request.answer(response_code(put.status), self._remark(put), self._added)

    def _remark(self, put: PutMessageResult) -> str | None:
        limit = self._config.commit_log.max_message_size
        disk_use = disk_use_of(self._service)
        return remark(put.status, max_message_size=limit, timer=self._config.timer, disk_use=disk_use)

    def _count(self, request: Request, plan: PutPlan, put: PutMessageResult, queue_id: int, latency_ms: int) -> None:
        message = plan.message
        if self._metrics is not None:
            kind = message_type(properties_of(request.header))
            self._metrics.stored(message.topic, kind, put.message_count, plan.size_bytes)
        self.statistics.put(message.topic, message.queue_id, put.message_count, plan.size_bytes)
        self.statistics.put_latency(message.topic, queue_id, latency_ms)
        if message.topic == HALF_TOPIC:
            self.statistics.prepared(message.properties[REAL_TOPIC])
            with self._counting:
                self._prepared[message.properties[REAL_TOPIC]] += 1

    # A run of sends

    def begin_run(self, run: SendRun, requests: Sequence[Request]) -> Pending[RunAnswers] | None:
        """As `begin` for a run of sends; `requests` are those of its kinds. None, with nothing done: they must be taken one by one."""
        if self._config.commit_log.appends_crc or state_now(self._service, self.state).rejects_requests:
            return None
        begin_ms = self._clock()
        with self._service.at_work_for_later():
            messages = self._messages_of(run, requests, begin_ms)
        if messages is None:
            return None
        pending = self._service.put_later(messages, waits=True, puts=messages.row_count)
        return pending.then(lambda put: self._run_answers(run, messages, put, begin_ms))

    def _messages_of(self, run: SendRun, requests: Sequence[Request], now_ms: int) -> InnerMessages | None:
        """The messages to put, after the rules for the send of each kind."""
        plans, topics = [], self._topics
        for kind, request in zip(run.kinds, requests, strict=True):
            header: SendMessageRequest = request.header
            topic = topics.get(header.topic)
            if topic is None or topic.is_compacted or header.is_batch:
                return None
            if header.topic.startswith(RETRY_PREFIX) or header.topic in self._service.settings.mappings.mappings:
                return None
            try:
                plan, _ = self._judge(request, header.queue_id, now_ms)
                check_queue(kind.greatest_queue_id, topic, request.connection.address)
            except (RequestRefusedError, PutRefusedError):
                return None
            plans.append(plan)
        if (messages := run.messages(plans, requests[0].connection.host)) is None:
            return None
        try:
            limits = Limits(self._config.commit_log.max_message_size, self._service.settings.log_file_size_bytes)
            refuse_any_excess(sizes_of_messages(messages, len(self._host)), limits, is_timed=False)
        except MessageIllegalError:
            return None
        return messages

    def _run_answers(
        self, run: SendRun, messages: InnerMessages, put: Callable[[], PutMessageResult], begin_ms: int
    ) -> RunAnswers:
        result = put_result(put, run.kinds[0].topic)
        code = response_code(result.status)
        if not result.status.is_stored:
            return run.refused(code, self._remark(result), self._added)
        self._count_run(messages, self._clock() - begin_ms)
        return run.stored(code, result.places, self._added)

    def _count_run(self, messages: InnerMessages, latency_ms: int) -> None:
        topics = messages.topics.dictionary_encode()
        codes = topics.indices.to_numpy().astype(np.int64) << 32 | messages.queue_ids
        found, numbers = np.unique(codes, return_inverse=True)
        names = topics.dictionary.to_pylist()
        queues = [(names[code >> 32], code & 0xFFFF_FFFF) for code in found.tolist()]
        sizes = np.asarray(sizes_of_messages(messages, len(self._host)).record)
        self.statistics.put_columns(queues, numbers, sizes, are_single=True)
        if self._metrics is not None:
            self._metrics.stored_run(topics, messages.properties, sizes)
        for (topic, queue_id), count in zip(queues, np.bincount(numbers).tolist(), strict=True):
            self.statistics.put_latency(topic, queue_id, latency_ms, count)


def topic_wish(header: SendMessageRequest) -> TopicWish:
    """The settings of the topic, if the message creates it."""
    queue_count = header.default_topic_queue_count
    template = _NO_TEMPLATE if queue_count is None else header.default_topic or _NO_TEMPLATE
    return TopicWish(template, queue_count or 0, bool(header.unit_mode))


def _any_queue(topic: TopicConfig) -> int:
    """Java: AbstractSendMessageProcessor.randomQueueId, which divides by zero where there is none."""
    if topic.write_queue_count <= 0:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"topic[{topic.topic}] has no write queue")
    return random.randrange(topic.write_queue_count)
