"""A send, from request to answer: the one place that runs the decisions of this package in a broker's order.

    request ─RPC hooks─▶ static topic ─hooks─▶ start gate ─▶ topic and queue ─▶ retry or dead letter ─▶ plan (`put_plan.py`)
       ─▶ PUT ─▶ code and remark ─▶ static topic ─▶ statistics ─▶ hooks ─RPC hooks─▶ answer

What a message gets from the broker: MSG_REGION and TRACE_ON (anew), CLUSTER, UNIQ_KEY if it has none; POP_CK, which only a broker
may say, is taken off; WAIT stays as the client wrote it. `asyncSendEnable` decides in Java which thread waits for the disk; here
either setting answers when the message stands.
Not supported: topics with batch queues (BatchCQ), multi-dispatch to LMQ. Java: SendMessageProcessor, AbstractSendMessageProcessor.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from spark_mq.broker.put_plan import PutPlan, PutRules, plan_batch, plan_message, requested_message
from spark_mq.broker.put_response import (
    Appended,
    DiskUse,
    PutOutcome,
    SendResponse,
    recall_handle,
    remark,
    response_code,
)
from spark_mq.broker.retry import retry_or_dead_letter
from spark_mq.broker.send_hooks import (
    AbortProcessError,
    RpcHook,
    SendMessageContext,
    SendMessageHook,
    answer_between,
    context_of,
    run_after,
    run_before,
)
from spark_mq.broker.send_request import SendRequest, broker_properties
from spark_mq.broker.send_run import SendRun
from spark_mq.broker.store_put import (
    HandlerStore,
    Put,
    at_work,
    at_work_for_later,
    make_topic,
    put_into,
    put_later_into,
    receipt_or_refusal,
    save_entries,
    state_now,
    store_of,
)
from spark_mq.remoting.request_runs import RunAnswers
from storage.epoch_times import current_time_ms
from storage.errors import MessageIllegalError, PutRefusedError
from storage.files.local_file_system import disk_used_percent
from storage.format.keys import FIRST_RANKS, new_prefix
from storage.format.properties import decode_properties
from storage.names import RETRY_PREFIX
from storage.put_status import PutStatus
from storage.rules.delays import REAL_TOPIC
from storage.rules.half_messages import HALF_TOPIC
from storage.rules.inner_messages import InnerMessage, InnerMessages, encode_properties, sizes_of_messages
from storage.rules.put_guards import BrokerState, has_batch_queues
from storage.rules.response_codes import REJECTED, RequestRefusedError, ResponseCode
from storage.rules.sizes import Limits, refuse_any_excess
from storage.rules.static_topics import LogicalQueue, answered_place, logical_queue, physical_queue_id
from storage.rules.topics import check_queue, check_start, check_topic, known_topics
from storage.service.pending import Pending
from storage.service.put_group import PutReceipt
from storage.service.put_service import PutService
from storage.settings.load import StoreConfig
from storage.tables.put_statistics import PutStatistics
from storage.tables.topic_queue_mappings import FILE_NAME as MAPPINGS_FILE
from storage.tables.topic_queue_mappings import TopicQueueMappingTable
from storage.tables.topics import TopicConfig
from storage.transaction.progress import save_counts

_RECEIPT = "POP_CK"
_Put: TypeAlias = tuple[PutPlan, int, Pending[PutOutcome]]
"""What is put, the queue that it goes to, and what waits for the put's end."""
_BegunPut: TypeAlias = Callable[[SendRequest, int, Mapping[str, str], int], _Put]


def disk_use_of(store: HandlerStore) -> DiskUse:
    """Of the disks that an open store lies on."""
    logs = [disk_used_percent(path) for path in store.settings.log_directories]
    queues, index = (disk_used_percent(f"{store.root}/{name}") for name in ("consumequeue", "index"))
    return DiskUse(*(used / 100 if used >= 0 else used for used in (min(logs), queues, index)))


def unique_keys() -> Callable[[], str]:
    """Keys as long as a Java client's, no two alike. Java: MessageClientIDSetter.createUniqID."""
    prefix = new_prefix(os.getpid(), secrets.token_bytes).hex().upper()
    ranks = itertools.count(secrets.randbelow(FIRST_RANKS))
    return lambda: f"{prefix}{next(ranks):012X}"


class SendMessageHandler:
    """Answers the sends of one broker, whose store is open for writing.

    Thread-safe in front of a `PutService`; hooks must then be, too.
    """

    def __init__(
        self,
        store: HandlerStore,
        *,
        hooks: Sequence[SendMessageHook] = (),
        rpc_hooks: Sequence[RpcHook] = (),
        put: Put | None = None,
        clock: Callable[[], int] = current_time_ms,
        choose_queue: Callable[[int], int] = random.randrange,
        holds_order_lock: Callable[[str], bool] = lambda group: False,
        disk_use: Callable[[], DiskUse] | None = None,
    ) -> None:
        """`clock` gives milliseconds; `choose_queue` one of so many write queues; `holds_order_lock` whether an orderly consumer of
        a group has a queue locked; `put` stores (the default: `put_into`). For which times the timer takes no more is said by the
        wheel as it was at the opening.

        Raises StoreNotWritableError of a store that is open for reading, StateFileError.
        """
        settings = store.settings
        self.state = BrokerState()
        """Whether sends are taken; whoever runs the broker sets it. What a service knows of itself is added to each request."""
        self.statistics = PutStatistics(settings.broker_name, settings.cluster)
        self._store = store
        self._config = store.config
        self._host = settings.host
        self._broker_name, self._cluster_name = settings.broker_name, settings.cluster
        self._hooks = tuple(hooks)
        self._rpc_hooks = tuple(rpc_hooks)
        self._put = put or put_into(store)
        self._put_later = put_later_into(store) if put is None and isinstance(store, PutService) else None
        self._clock = clock
        self._choose_queue = choose_queue
        self._new_unique_key = unique_keys()
        self._holds_order_lock = holds_order_lock
        self._is_congested = settings.full_slots
        self._disk_use = disk_use or partial(disk_use_of, store)
        self._added = broker_properties(self._config.send)
        self._mappings = store.state(MAPPINGS_FILE, TopicQueueMappingTable.load) or TopicQueueMappingTable()
        self._counting = threading.Lock()
        self._prepared: Counter[str] = Counter()

    def send(self, request: SendRequest) -> SendResponse:
        """Store what the request brings, or say why not. A stored message is readable when this returns (a delayed one when it is
        due), and on the disk under SYNC_FLUSH.

        A store that cannot be written is SERVICE_NOT_AVAILABLE.
        Raises OSError where a topic or group that the request makes cannot be saved.
        """
        if state_now(self._store, self.state, is_heard=request.is_heard).rejects_requests:
            return SendResponse(ResponseCode.SYSTEM_BUSY, REJECTED)
        return answer_between(
            self._rpc_hooks,
            request.client_address,
            request,
            lambda request: self._begin(request, self._put_now)(),
            SendResponse,
        )

    def configure(self, config: StoreConfig) -> None:
        """An operator has changed settings: these hold from now on."""
        self._config, self._added = config, broker_properties(config.send)

    def begin(self, request: SendRequest) -> Pending[SendResponse]:
        """A send in two steps, of which the first waits for no put: what is returned waits, and is to be asked once.

        So one thread may judge several sends, and they become one append. Where RPC hooks or another `put` are given the first step
        is all of it. Raises what `send` raises.
        """
        if self._put_later is None or self._rpc_hooks:
            response = self.send(request)
            return Pending(lambda: response)
        if state_now(self._store, self.state, is_heard=request.is_heard).rejects_requests:
            return Pending(lambda: SendResponse(ResponseCode.SYSTEM_BUSY, REJECTED))
        return self._begin(request, self._join)

    def begin_run(self, run: SendRun, requests: Sequence[SendRequest]) -> Pending[RunAnswers] | None:
        """As `begin` for a run of sends; `requests` are those of its kinds. None, with nothing done: they must be taken one by one."""
        is_plain = self._put_later is not None and not self._hooks and not self._rpc_hooks
        if not is_plain or self._config.commit_log.appends_crc or state_now(self._store, self.state).rejects_requests:
            return None
        assert isinstance(self._store, PutService)
        begin_ms = self._clock()
        with at_work_for_later(self._store):
            messages = self._messages_of(run, requests, begin_ms)
        if messages is None:
            return None
        pending = self._store.put_later(messages, waits=True)
        return pending.then(lambda receipt: self._run_answers(run, messages, receipt, begin_ms))

    def _messages_of(self, run: SendRun, requests: Sequence[SendRequest], now_ms: int) -> InnerMessages | None:
        """What is to be put, past the rules of each kind's send."""
        plans, topics = [], self._topics
        for kind, request in zip(run.kinds, requests, strict=True):
            topic = topics.get(request.topic)
            if topic is None or topic.attributes.get("cleanup.policy") == "COMPACTION" or request.is_batch:
                return None
            if request.topic.startswith(RETRY_PREFIX) or request.topic in self._mappings.mappings:
                return None
            try:
                plan, _ = self._judged(request, request.queue_id, {**request.properties, **self._added}, now_ms)
                check_queue(kind.greatest_queue_id, topic, request.client_address)
            except (RequestRefusedError, PutRefusedError):
                return None
            plans.append(plan)
        host = requests[0].born_host or self._host
        if (messages := run.messages(plans, host)) is None:
            return None
        try:
            limits = Limits(self._config.commit_log.max_message_size, self._store.settings.log_file_size_bytes)
            refuse_any_excess(sizes_of_messages(messages, len(self._host)), limits, is_timed=False)
        except MessageIllegalError:
            return None
        return messages

    def _run_answers(
        self, run: SendRun, messages: InnerMessages, put: Callable[[], PutReceipt], begin_ms: int
    ) -> RunAnswers:
        receipt = receipt_or_refusal(put, run.kinds[0].topic)
        if isinstance(receipt, PutOutcome):
            return run.refused(self._refusal(receipt))
        self._count_run(messages, self._clock() - begin_ms)
        return run.stored(response_code(receipt.status), receipt.places, self._added)

    def _count_run(self, messages: InnerMessages, latency_ms: int) -> None:
        topics = messages.topics.dictionary_encode()
        codes = topics.indices.to_numpy().astype(np.int64) << 32 | messages.queue_ids
        found, numbers = np.unique(codes, return_inverse=True)
        names = topics.dictionary.to_pylist()
        queues = [(names[code >> 32], code & 0xFFFF_FFFF) for code in found.tolist()]
        sizes = np.asarray(sizes_of_messages(messages, len(self._host)).record)
        self.statistics.put_columns(queues, numbers, sizes, are_single=True)
        for (topic, queue_id), count in zip(queues, np.bincount(numbers).tolist(), strict=True):
            self.statistics.put_latency(topic, queue_id, latency_ms, count)

    def close(self) -> None:
        """Write how many half messages were prepared (transactionMetrics; a kill loses the count). The store stays open.

        Java: TransactionMetrics.addAndGet.
        """
        with self._counting:
            prepared, self._prepared = self._prepared, Counter()
        save_counts(store_of(self._store), prepared, now_ms=self._clock())

    def _begin(self, request: SendRequest, put: _BegunPut) -> Pending[SendResponse]:
        """Java: SendMessageProcessor.processRequest."""
        asked = request.properties
        if not request.are_properties_read:
            asked = decode_properties(encode_properties(asked))  # as a broker reads them off the wire
        queue = logical_queue(
            self._mappings, request.topic, request.queue_id, logical=request.logical, choose_queue=True
        )
        try:
            queue_id = physical_queue_id(queue, request.queue_id)
        except RequestRefusedError as refused:
            response = SendResponse(refused.code, refused.remark)
            return Pending(lambda: response)
        context = None
        if self._hooks:
            context = context_of(request, queue_id, asked, self._config.send.region_id, self._host, self._clock())
        try:
            if context is not None:
                run_before(self._hooks, context)
        except AbortProcessError as abort:
            response = SendResponse(abort.code, abort.message)
            return Pending(lambda: response)
        added = self._added
        properties = {**asked, **added}
        properties.pop(_RECEIPT, None)
        try:
            put_send = self._begin_put(request, queue_id, properties, queue, context, put)
        except RequestRefusedError as refused:
            response = SendResponse(refused.code, refused.remark, ext_fields=added)
            return Pending(lambda: response)
        return put_send

    def _begin_put(
        self,
        request: SendRequest,
        queue_id: int,
        properties: Mapping[str, str],
        queue: LogicalQueue,
        context: SendMessageContext | None,
        put: _BegunPut,
    ) -> Pending[SendResponse]:
        """Java: SendMessageProcessor.sendMessage, sendBatchMessage, handlePutMessageResult. Raises RequestRefusedError."""
        begin_ms = self._clock()
        try:
            plan, queue_id, pending = put(request, queue_id, properties, begin_ms)
        except PutRefusedError as refused:
            refusal = self._refusal(PutOutcome(refused.status, reason=refused.reason))
            self._tell_hooks(context, request, refusal, None)
            return Pending(lambda: refusal)

        def response(outcome_of: Callable[[], PutOutcome]) -> SendResponse:
            outcome = outcome_of()
            if outcome.status.is_stored and outcome.appended is not None:
                self._count(plan.message, outcome.appended, queue_id, self._clock() - begin_ms)
                answer = self._receipt(
                    plan.message, outcome.status, outcome.appended, queue_id, queue, is_batch=request.is_batch
                )
            else:
                answer = self._refusal(outcome)
            self._tell_hooks(context, request, answer, outcome.appended)
            return answer

        return pending.then(response)

    def _put_now(self, request: SendRequest, queue_id: int, properties: Mapping[str, str], now_ms: int) -> _Put:
        with at_work(self._store):
            plan, queue_id = self._judged(request, queue_id, properties, now_ms)
            outcome = self._put(plan)
        return plan, queue_id, Pending(lambda: outcome)

    def _join(self, request: SendRequest, queue_id: int, properties: Mapping[str, str], now_ms: int) -> _Put:
        assert self._put_later is not None
        with at_work_for_later(self._store):
            plan, queue_id = self._judged(request, queue_id, properties, now_ms)
        return plan, queue_id, self._put_later(plan)

    def _judged(
        self, request: SendRequest, queue_id: int, properties: Mapping[str, str], now_ms: int
    ) -> tuple[PutPlan, int]:
        """What is to be put, and the queue that it goes to. Raises RequestRefusedError, PutRefusedError."""
        rules = self._rules(now_ms, request)
        topic = self._checked_topic(request, queue_id, rules)
        if request.topic not in rules.topics:
            rules = self._rules(now_ms, request)
        if queue_id < 0:
            queue_id = self._any_queue(topic)
        message = requested_message(request, queue_id, properties)
        if not request.is_batch:
            message = self._retried(message, request, rules.topics)
        return self._plan(request, message, topic, rules), queue_id

    # What is stored

    def _checked_topic(self, request: SendRequest, queue_id: int, rules: PutRules) -> TopicConfig:
        check_start(self._config.send, rules.now_ms)
        checked = check_topic(request.topic, request.topic_wish, rules.topics, self._config.send, rules.address)
        config = make_topic(self._store, checked.config) if checked.is_new else checked.config
        check_queue(queue_id, config, request.client_address)
        if has_batch_queues(config):
            reason = f"topic[{request.topic}] has batch consume queues, which this broker does not write"
            raise RequestRefusedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, reason)
        return config

    def _any_queue(self, topic: TopicConfig) -> int:
        """Java: AbstractSendMessageProcessor.randomQueueId, which divides by zero where there is none."""
        if topic.write_queue_count <= 0:
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"topic[{topic.topic}] has no write queue")
        return self._choose_queue(topic.write_queue_count)

    def _retried(self, message: InnerMessage, request: SendRequest, topics: Mapping[str, TopicConfig]) -> InnerMessage:
        is_retry = message.topic.startswith(RETRY_PREFIX)
        routed = retry_or_dead_letter(
            message,
            self._store.groups,
            topics,
            send=self._config.send,
            max_reconsume_times=request.max_reconsume_times,
            client_version=request.client_version,
            group_holds_lock=is_retry and self._holds_order_lock(message.topic.removeprefix(RETRY_PREFIX)),
        )
        save_entries(self._store, routed.topics, routed.groups, topics)
        return routed.message

    def _plan(self, request: SendRequest, message: InnerMessage, topic: TopicConfig, rules: PutRules) -> PutPlan:
        if request.is_batch:
            return plan_batch(message, request.body, topic, rules)
        return plan_message(message, request.body, topic, rules, self._new_unique_key)

    def _rules(self, now_ms: int, request: SendRequest) -> PutRules:
        return PutRules(
            config=self._config,
            host=self._host,
            now_ms=now_ms,
            cluster_name=self._cluster_name,
            topics=self._topics,
            state=state_now(self._store, self.state, is_heard=request.is_heard),
            is_congested=self._is_congested,
            is_heard=request.is_heard,
        )

    @property
    def _topics(self) -> Mapping[str, TopicConfig]:
        """The file's entries over the built-in ones."""
        topics = self._store.settings.topics.topics
        return known_topics(topics, self._broker_name, self._cluster_name, self._config.send, self._config.timer)

    # What is answered

    def _receipt(
        self,
        message: InnerMessage,
        status: PutStatus,
        appended: Appended,
        queue_id: int,
        queue: LogicalQueue,
        *,
        is_batch: bool,
    ) -> SendResponse:
        told_queue_id, told_offset = answered_place(queue, queue_id, appended.queue_offset)
        return SendResponse(
            response_code(status),
            None,
            appended.msg_id,
            told_queue_id,
            told_offset,
            message.properties.get("UNIQ_KEY"),
            None if is_batch else recall_handle(message.properties, self._broker_name),
            self._added,
        )

    def _refusal(self, outcome: PutOutcome) -> SendResponse:
        limit = self._config.commit_log.max_message_size
        text = remark(outcome.status, max_message_size=limit, timer=self._config.timer, disk_use=self._disk_use())
        return SendResponse(response_code(outcome.status), text, ext_fields=self._added)

    def _count(self, message: InnerMessage, appended: Appended, queue_id: int, latency_ms: int) -> None:
        count, size = appended.message_count, appended.size_bytes
        self.statistics.put(message.topic, message.queue_id, count, size)
        self.statistics.put_latency(message.topic, queue_id, latency_ms)
        if message.topic == HALF_TOPIC:
            self.statistics.prepared(message.properties[REAL_TOPIC])
            with self._counting:
                self._prepared[message.properties[REAL_TOPIC]] += 1

    # Hooks

    def _tell_hooks(
        self,
        context: SendMessageContext | None,
        request: SendRequest,
        response: SendResponse,
        appended: Appended | None,
    ) -> None:
        """Java: the ends of handlePutMessageResult, executeSendMessageHookAfter."""
        if context is None:
            return
        context.is_stored = response.is_stored
        context.size_bytes = appended.size_bytes if response.is_stored and appended else len(request.body or b"")
        context.message_count = appended.message_count if appended else 1
        units = -(-context.size_bytes // self._config.send.commercial_size_per_msg)
        context.commercial_message_count = units
        context.commercial_times = units * (self._config.send.commercial_base_count if response.is_stored else 1)
        context.msg_id, context.queue_offset = response.msg_id, response.queue_offset
        if response.queue_id is not None:
            context.queue_id = response.queue_id
        context.code, context.error_message = response.code, response.remark
        run_after(self._hooks, context)
